"""The state of a predictor as bytes: the same predictions after it is read, in any process.

A line names format and version; compressed follow a JSON header and the arrays, little-endian, in the header's order.
Combinations are named, so what was learnt stays when others are added.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from hcloud.core.errors import BadInput
from hcloud.forecast.runtimes.distribution import LONGEST_S, SHORTEST_S, Floats
from hcloud.forecast.runtimes.features import COMBINATIONS
from hcloud.forecast.runtimes.histories import BINS, COUNTED, EMPTY, LEVELS, PLACES, KeyIndex
from hcloud.forecast.runtimes.mixture import DECAYS, PIT_BINS, MixturePredictor

FORMAT = b"hcloud run times, version 1\n"
MOST_BYTES = 2**27
"""Larger states are refused; the largest that is written takes 30 MB before compression."""
_NAMES = ["+".join(combination) for combination in COMBINATIONS]
_GRID = [SHORTEST_S, LONGEST_S, BINS, *(number for level in LEVELS for number in level), *DECAYS]


def dump(predictor: MixturePredictor) -> bytes:
    """Return all that a predictor learnt. The same runs give the same bytes."""
    table, users = predictor.histories, predictor.users
    values, people = len(table.index.rows) + 1, len(users.rows) + 1
    user_weights = predictor.user_log_weights[1:people].reshape(-1, len(COMBINATIONS), len(DECAYS))
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "keys": np.array(list(table.index.rows), "<u8"),
        "last_used": table.index.last_used[1:values].astype("<i8"),
        "codes": table.codes[1:values],
        "counts": table.counts[1:values].astype("<u2"),
        "all_runs": predictor.all_runs.astype("<f8"),
        "log_weights": predictor.log_weights.reshape(len(COMBINATIONS), -1).astype("<f8"),
        "user_keys": np.array(list(users.rows), "<u8"),
        "users_last_used": users.last_used[1:people].astype("<i8"),
        "user_log_weights": user_weights.astype("<f4"),
        "past_pits": predictor.past_pits.astype("<f8"),
    }
    header = {
        "grid": _GRID,
        "combinations": _NAMES,
        "max_values": predictor.max_values,
        "max_users": predictor.max_users,
        "now": table.now,
        "arrays": [[name, each.dtype.str, list(each.shape)] for name, each in arrays.items()],
    }
    body = b"".join(each.tobytes() for each in arrays.values())
    return FORMAT + zlib.compress(json.dumps(header).encode() + b"\n" + body, 6)


def load(state: bytes) -> MixturePredictor:
    """Return the predictor of which :func:`dump` wrote the state.

    Raises BadInput if the state is of another version or damaged.
    """
    if not state.startswith(FORMAT):
        raise BadInput(f"the state of run times begins with {state[: len(FORMAT)]!r}, expected {FORMAT!r}")
    try:
        return _restored(*_unpacked(state[len(FORMAT) :]))
    except (zlib.error, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise BadInput(f"the state of run times is damaged: {error}; learn it again from past runs") from error


def _unpacked(packed: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    reader = zlib.decompressobj()
    content = reader.decompress(packed, MOST_BYTES)
    if not reader.eof:
        raise ValueError("it ends too early or is too large")
    line, _, body = content.partition(b"\n")
    header, arrays, begin = json.loads(line), {}, 0
    if header["grid"] != _GRID:
        raise ValueError(f"its grid is {header['grid']}, expected {_GRID}")
    for name, kind, shape in header["arrays"]:
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(body, np.dtype(kind), count, begin).reshape(shape)
        begin += arrays[name].nbytes
    return header, arrays


def _restored(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> MixturePredictor:
    found = MixturePredictor(max_values=header["max_values"], max_users=header["max_users"])
    table, values = found.histories, len(arrays["keys"])
    _fill(table.index, arrays["keys"], arrays["last_used"])
    table.now = int(header["now"])
    table.codes = np.full((len(table.index.last_used), PLACES), EMPTY, np.uint8)
    table.counts = np.zeros(len(table.index.last_used), np.uint16)
    table.codes[1 : values + 1], table.counts[1 : values + 1] = arrays["codes"], arrays["counts"]
    if table.counts.max() > COUNTED:
        raise ValueError("it counts more runs of a value than are kept")
    _fill(found.users, arrays["user_keys"], arrays["users_last_used"])
    people = len(found.users.last_used)
    weights, first = np.zeros((people, len(COMBINATIONS), len(DECAYS)), np.float32), found.log_weights
    learnt = first.reshape(len(COMBINATIONS), -1)
    for old, name in enumerate(header["combinations"]):
        if name in _NAMES:
            learnt[_NAMES.index(name)] = arrays["log_weights"][old]
            weights[1 : len(arrays["user_keys"]) + 1, _NAMES.index(name)] = arrays["user_log_weights"][:, old]
    found.user_log_weights = weights.reshape(people, -1)
    found.all_runs = _positive(arrays["all_runs"], BINS)
    found.past_pits = _positive(arrays["past_pits"], PIT_BINS)
    if not (np.isfinite(first).all() and np.isfinite(weights).all()):
        raise ValueError("a weight is not finite")
    return found


def _fill(index: KeyIndex, keys: np.ndarray[Any, Any], last_used: np.ndarray[Any, Any]) -> None:
    index.rows = {key: at for at, key in enumerate(keys.tolist(), start=1)}
    if len(index.rows) != len(keys) or len(keys) > index.limit:
        raise ValueError("it has a key twice, or too many")
    index.reserve(len(keys))
    index.last_used[1 : len(keys) + 1] = last_used


def _positive(numbers: np.ndarray[Any, Any], length: int) -> Floats:
    found: Floats = numbers.astype(np.float64)
    if found.shape != (length,) or not (np.isfinite(found).all() and (found >= 0.0).all() and found.sum() > 0.0):
        raise ValueError(f"expected {length} counts")
    return found
