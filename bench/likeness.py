"""How alike programs rank machine types of one size, on the clouds of Lumos: what the simulated world's types rest on.

``python -m bench likeness``; the data are read from ``../shared/data/lumos`` beside the repository. Types of one number
of vCPUs are compared with each other, since the simulated world knows the number of vCPUs apart from the type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.rows import Row
from hcloud.classifier.utility_matrix import Matrix

LUMOS = Path(__file__).resolve().parents[2] / "shared" / "data" / "lumos"
LEAST_TYPES = 3


def run() -> list[Row]:
    """Return how much log speeds differ by type for all programs alike, and for each in its own way."""
    from bench.accuracy.lumos import clouds

    found = [] if not LUMOS.is_dir() else clouds(LUMOS)
    if not found:
        print("  skipped, because ../shared/data/lumos is not beside this repository")
        return []
    sizes = [part for cloud in found for part in _one_size(cloud.name, cloud.types, cloud.times)]
    for name, common, own in sizes:
        print(f"  {name:<16} common ranking {common:8.5f}, a program's own {own:8.5f} (variances of log speed)")
    common, own = (float(np.mean([each[at] for each in sizes])) for at in (1, 2))
    first = float(np.mean([_first_part(_own(_speeds(each.times))) for each in found]))
    return [
        Row(name="common ranking, standard deviation of log speed", value=common**0.5, unit="", note="COMMON_TRAIT"),
        Row(name="a program's own, standard deviation of log speed", value=own**0.5, unit="", note="OWN_TRAIT"),
        Row(name="part that a common ranking explains", value=100 * common / (common + own), unit="%"),
        Row(name="part of the own that one trait explains", value=100 * first, unit="%", note="OWN_PARTS; all sizes"),
    ]


def _one_size(cloud: str, types: tuple[str, ...], times: Matrix) -> Iterator[tuple[str, float, float]]:
    """Yield, for each size of which there are types enough, its name and both variances (0 where noise is more)."""
    sizes = [next(iter(re.findall(r"\d*x?large", each)), each) for each in types]
    for size in sorted(set(sizes)):
        at = [place for place, each in enumerate(sizes) if each == size]
        if len(at) >= LEAST_TYPES:
            speeds = _speeds(times[:, at])
            jobs, columns = speeds.shape
            own = float((_own(speeds) ** 2).sum()) / ((jobs - 1) * (columns - 1))
            common = float((speeds.mean(axis=0) ** 2).sum()) / (columns - 1) - own / jobs
            yield f"{cloud} {size}", max(0.0, common), own


def _speeds(times: Matrix) -> Matrix:
    """Return log speeds (jobs x types) beside each job's mean, of jobs that were measured on all types."""
    whole = -np.log(times[~np.isnan(times).any(axis=1)])
    return np.asarray(whole - whole.mean(axis=1, keepdims=True))


def _own(speeds: Matrix) -> Matrix:
    return np.asarray(speeds - speeds.mean(axis=0))


def _first_part(own: Matrix) -> float:
    """Return which part of the variance the first principal trait explains."""
    squares = np.linalg.svd(own, compute_uv=False) ** 2
    return float(squares[0] / squares.sum())
