"""What is known of a job before it runs, and the combinations of it under which run times are remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import blake2b
from typing import Any

_KEY_BITS = 2**64 - 1
_ODD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFeatures:
    """What is known of a job when it is submitted. None, a negative number or one that is not finite: not known."""

    user: str | None = None
    """The user who submitted it."""
    name: str | None = None
    """Name of the job."""
    application: str | None = None
    """Program that it runs, as profiles name it."""
    executable: str | None = None
    """What is started: a file or image, or the program with one input."""
    group: str | None = None
    """Group or project of the user."""
    queue: str | None = None
    """Queue, partition or priority class."""
    requested_s: float | None = None
    """Time that the user asks for, in seconds."""
    size: float | None = None
    """Processors that the user asks for."""
    input_size: float | None = None
    """Size of the input, in any unit that does not change for the application."""
    submit_hour: int | None = None
    """Hour of the submission, 0 to 23."""
    submit_weekday: int | None = None
    """Day of the submission, 0 (Monday) to 6."""

    def to_fields(self) -> dict[str, str | float]:
        """Return what is known, by name, for an event."""
        return {name: each for name in _NAMES if (each := getattr(self, name)) is not None}

    @classmethod
    def from_fields(cls, recorded: Mapping[str, object]) -> RunFeatures:
        """Return what :meth:`to_fields` returned; names and types that are not known are left out."""
        found: dict[str, Any] = {}
        for name in _NAMES:
            value = recorded.get(name)
            if isinstance(value, str) if name in _TEXTS else isinstance(value, (int, float)):
                found[name] = value
        return cls(**found)


_NAMES: tuple[str, ...] = tuple(each.name for each in fields(RunFeatures))
_TEXTS = frozenset(each.name for each in fields(RunFeatures) if each.type == "str | None")


PARTS: tuple[str, ...] = (
    "user", "name", "application", "executable", "group", "queue", "requested", "requested_class", "size", "size_class",
    "input_class", "quarter", "weekday",
)  # fmt: skip
"""What combinations are made of. A class is a power of 2, a quarter six hours of the day."""

COMBINATIONS: tuple[tuple[str, ...], ...] = (
    (),
    ("user",),
    ("size",),
    ("requested",),
    ("requested_class",),
    ("requested_class", "size_class"),
    ("user", "size"),
    ("user", "size_class"),
    ("user", "requested"),
    ("user", "requested_class"),
    ("user", "size", "requested"),
    ("group",),
    ("queue",),
    ("user", "quarter"),
    ("user", "weekday"),
    ("name",),
    ("user", "name"),
    ("application",),
    ("application", "input_class"),
    ("application", "size"),
    ("user", "executable"),
    ("user", "executable", "size"),
    ("user", "executable", "size", "requested"),
)
"""Under which run times are remembered by the mixture. One of which a part is not known is left out for that job."""

OF_ONE_PROGRAM = (("application",), ("user", "name"), ("user", "executable"))
"""Those that only runs of the same program share."""

PRINTED_COMBINATIONS: tuple[tuple[str, ...], ...] = (
    (),
    ("user",),
    ("size",),
    ("requested",),
    ("user", "size"),
    ("user", "requested"),
    ("size", "requested"),
    ("user", "size", "requested"),
    ("group",),
    ("queue",),
    ("user", "quarter"),
    ("name",),
    ("user", "name"),
    ("application",),
    ("application", "input_class"),
    ("user", "executable"),
    ("user", "executable", "size"),
    ("user", "executable", "size", "requested"),
)
"""For the predictor as printed, which compares exact values only (3Sigma §4.1)."""


@lru_cache(maxsize=4096)
def combination_keys(
    features: RunFeatures, combinations: tuple[tuple[str, ...], ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return which combinations are known of a job, by their index, and the 64-bit key of each one's value.

    Keys are the same in every process. A value that is too long or odd to be useful is still a value.
    """
    parts = _part_keys(features)
    known, keys = list[int](), list[int]()
    for index, combination in enumerate(combinations):
        key = _ODD
        for part in combination:
            if (found := parts.get(part)) is None:
                break
            key = (key * _ODD + found) & _KEY_BITS
        else:
            known.append(index)
            keys.append(key)
    return tuple(known), tuple(keys)


def _part_keys(features: RunFeatures) -> dict[str, int]:
    found = {
        part: _key_of(part, text)
        for part, text in (
            ("user", features.user),
            ("name", features.name),
            ("application", features.application),
            ("executable", features.executable),
            ("group", features.group),
            ("queue", features.queue),
        )
        if text is not None
    }
    for part, number in (("requested", features.requested_s), ("size", features.size)):
        if number is not None and 0.0 <= number < math.inf:
            found[part] = _key_of(part, float(number))
            found[f"{part}_class"] = _key_of(f"{part}_class", _power_of_2(number))
    if features.input_size is not None and 0.0 <= features.input_size < math.inf:
        found["input_class"] = _key_of("input_class", _power_of_2(features.input_size))
    if features.submit_hour is not None:
        found["quarter"] = _key_of("quarter", features.submit_hour // 6)
    if features.submit_weekday is not None:
        found["weekday"] = _key_of("weekday", features.submit_weekday)
    return found


def _power_of_2(number: float) -> int:
    return round(math.log2(max(number, 0.5)))


@lru_cache(maxsize=4096, typed=True)
def _key_of(part: str, value: str | float) -> int:
    # Quotes distinguish texts from numbers; "surrogatepass" because names may come from damaged files.
    text = f"{part}={value!r}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
