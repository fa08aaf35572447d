"""ESP's measurements of programs that ran together, from a folder of the user's; no part of them is kept here."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from bench.neighbours import Floats, MeasuredGroups, read_features, read_groups
from hcloud.core.errors import BadInput

NEEDED = ("features.csv", "interference_k2.csv", "interference_k3.csv")


@cache
def measured_groups(folder: Path) -> Mapping[int, MeasuredGroups]:
    """Return the groups by size. Raises BadInput where the folder lacks them or they cannot be read."""
    for name in NEEDED:
        if not (folder / name).is_file():
            raise BadInput(f"--data {folder}: lacks {name} of ESP's measurements")
    try:
        features = read_features(folder / NEEDED[0])
        files = {int(path.stem[-1]): path for path in sorted(folder.glob("interference_k[2-9].csv"))}
        return {size: read_groups(path, features) for size, path in files.items()}
    except (ValueError, KeyError, OSError) as error:
        raise BadInput(f"--data {folder}: these are not ESP's measurements: {error!r}") from None


def counters(folder: Path, names: tuple[str, ...]) -> Mapping[str, Floats]:
    """Return hardware counters of each program run alone, as measured."""
    with (folder / NEEDED[0]).open() as file:
        return {row["app"]: np.array([float(row[name]) for name in names]) for row in csv.DictReader(file)}
