"""Fit profiles of typical programs on EC2 types and node counts to public measurements.

``python -m bench.accuracy.fit_rows DATA OUT`` reads ``DATA/lumos`` and ``DATA/c3o`` and writes profiles to OUT, which
``hcloud profile import`` adds to a library. Neither source states a licence, so none of these profiles is shipped; see
their authors before you pass any on. ``make bench-accuracy`` never reads a library, so they cannot leak into it.

Jobs are ordered by the first principal component of their shape (performance relative to their own mean) and cut into
groups; a profile is the geometric mean of a group, and its 95 % limits enclose 95 % of the group's jobs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from bench.accuracy import c3o, lumos
from bench.accuracy.unmeasured import VCPUS
from hcloud.classifier.profiles import Cells, FitProvenance, PerformanceCell, ProfileUnits, ReferenceProfile
from hcloud.classifier.utility_matrix import Matrix
from hcloud.config.profiles import write_profile
from hcloud.core.clock import SystemClock
from hcloud.core.estimates import Measure
from hcloud.core.units import utc_text

GROUPS = {"lumos": 8, "c3o": 4}
"""Profiles per source: enough to show how shapes vary, too few to show a single job."""
FEWEST_JOBS = 4
LEAST_WIDTH = 0.1
"""Least 95 % half-width (natural logarithm): a typical program is no measured one."""
LICENCE = "none stated by the source; ask its authors before you pass this profile on"
METHOD = "geometric mean of {jobs} jobs that are alike in shape; 95 % limits enclose 95 % of them"


def main() -> int:
    """Write the profiles, and print their names."""
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy.fit_rows", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with lumos/ and c3o/")
    parser.add_argument("out", type=Path, help="folder for the profiles")
    asked = parser.parse_args()
    for profile in fitted_profiles(asked.data, utc_text(SystemClock().now())[:10]):
        print(write_profile(asked.out, profile))
    return 0


def fitted_profiles(data: Path, fitted_at: str) -> Iterator[ReferenceProfile]:
    """Yield the profiles fitted to the measurements in ``data``, as of that date."""
    for cloud in lumos.clouds(data / "lumos"):
        if cloud.name == "aws":
            yield from _of_types(cloud, fitted_at)
    yield from _of_nodes(c3o.curves(data / "c3o" / "runs.csv"), fitted_at)


def _of_types(cloud: lumos.Cloud, fitted_at: str) -> Iterator[ReferenceProfile]:
    source = "lumos-dataset @ 7f009da (Hadoop, Spark and Hive jobs, one node, 2020)"
    vcpus = {f"aws/{each}": VCPUS[each.split(".")[1]] for each in cloud.types}
    for number, logs in enumerate(groups(-np.log(cloud.times), GROUPS["lumos"]), 1):
        types = cells_of(dict(zip(vcpus, logs.T, strict=True)))
        by_size = {f"{size:g} vCPU": logs[:, [vcpus[c] == size for c in vcpus]].mean(1) for size in VCPUS.values()}
        cells = Cells(type=types, step=cells_of(by_size))
        columns = f"elapsed seconds on {', '.join(cloud.types)}"
        yield _profile(f"fitted-ec2-{number}", cells, source, columns, len(logs), fitted_at, vcpus)


def _of_nodes(curves: c3o.Curves, fitted_at: str) -> Iterator[ReferenceProfile]:
    source = "c3o-experiments @ ccdbbaa (Spark jobs, 2 to 12 nodes, IEEE Big Data 2020)"
    nodes = sorted({count for curve in curves.values() for count in curve}, key=int)
    complete = [curve for curve in curves.values() if curve.keys() == set(nodes)]
    logs = -np.log([[curve[count] for count in nodes] for curve in complete])
    for number, group in enumerate(groups(logs, GROUPS["c3o"]), 1):
        cells = Cells(nodes=cells_of(dict(zip(nodes, group.T, strict=True))))
        columns = f"runtime_s by nodes ({', '.join(nodes)}), median of repeats"
        yield _profile(f"fitted-nodes-{number}", cells, source, columns, len(group), fitted_at, {})


def groups(logs: Matrix, count: int) -> list[Matrix]:
    """Return (jobs x columns) logarithms of performance, each job relative to its mean, cut into groups of like shape.

    Jobs that lack a column are left out. Groups have at least ``FEWEST_JOBS`` jobs.
    """
    whole = logs[~np.isnan(logs).any(axis=1)]
    if len(whole) < FEWEST_JOBS:
        return []
    shapes = whole - whole.mean(axis=1, keepdims=True)
    around = shapes - shapes.mean(axis=0)
    _, _, directions = np.linalg.svd(around, full_matrices=False)
    order = np.argsort(around @ directions[0] * np.sign(directions[0, 0] or 1.0), kind="stable")
    return [shapes[part] for part in np.array_split(order, max(1, min(count, len(whole) // FEWEST_JOBS)))]


def cells_of(logs: Mapping[str, Matrix]) -> dict[str, PerformanceCell]:
    """Return one cell per column from the logarithms of a group's jobs."""
    found = {}
    for column, values in logs.items():
        mean, width = float(values.mean()), max(LEAST_WIDTH, 1.96 * float(values.std(ddof=1)))
        low, value, high = (float(f"{np.exp(mean + each):.4g}") for each in (-width, 0.0, width))
        found[column] = PerformanceCell(value=value, low=low, high=high, runs=len(values))
    return found


def _profile(
    name: str, cells: Cells, source: str, columns: str, jobs: int, fitted_at: str, vcpus: Mapping[str, float]
) -> ReferenceProfile:
    return ReferenceProfile(
        profile=name,
        format=1,
        group="fitted",
        program=name,
        measure=Measure.COMPLETION,
        units=ProfileUnits(performance="runs/s"),
        cells=cells,
        type_vcpus=vcpus,
        fitted=FitProvenance(
            source=source,
            licence=LICENCE,
            columns=columns,
            method=METHOD.format(jobs=jobs),
            provider="aws",
            fitted_at=fitted_at,
        ),
        notes=("relative to the mean of all columns: its scale says nothing",),
    )


if __name__ == "__main__":
    raise SystemExit(main())
