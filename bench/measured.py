"""What others measured of clouds and of neighbours: the numbers on which simulated clouds and worlds rest.

``python -m bench measured``; the data are read from ``../shared/data`` beside the repository: SkyPilot's spot traces,
published start-up times, benchmarks of 244 EC2 machines (Scheuner & Leitner) and ESP's pairs and triples of programs.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench.rows import Row
from hcloud.simulator.clouds import BOOT, QUALITY, SPOT

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
OF_PROCESSORS = ("intel", "c3-88")
"""The traces of machines without accelerators."""
ARTEFACT = 1.1
"""A program beside others was not faster than that; such cells are the source's artefacts."""


def run() -> list[Row]:
    """Return each measurement beside what simulations take for it."""
    if not DATA.is_dir():
        print("  skipped, because ../shared/data is not beside this repository")
        return []
    return [*_spot(), *_boots(), *_machines(), *_triples()]


def _read(name: str) -> list[dict[str, str]]:
    path = DATA / name
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        return list(csv.DictReader(lines))


def _spot() -> Iterator[Row]:
    gap_h = {
        each["trace"]: float(each["gap_s"]) / 3600
        for each in _read("spot/traces.csv")
        if each["kind"] == "preemption" and each["device"] in OF_PROCESSORS
    }
    runs: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for each in _read("spot/traces_rle.csv.gz"):
        if each["trace"] in gap_h:
            runs[each["trace"]].append((int(each["ticks"]) * gap_h[each["trace"]], int(each["value"])))
    up_h, down_h = (sum(h for run in runs.values() for h, up in run if bool(up) is there) for there in (True, False))
    lost = sum(before > after for run in runs.values() for (_, before), (_, after) in pairwise(run))
    yield Row(name="spot machines lost", value=lost / up_h, unit="/h", note=_taken(SPOT, "shortages_per_h"))
    yield Row(name="none to be had then", value=down_h / lost, unit="h", note=_taken(SPOT, "shortage_h"))


def _boots() -> Iterator[Row]:
    told = [
        float(each["total_s"])
        for each in _read("variability/boot_times.csv")
        if "Windows" not in each["os"] and "stopped" not in each["how"]
    ]
    yield Row(
        name="start-up of a Linux machine, median", value=float(np.median(told)), unit="s", note=_taken(BOOT, "p50_s")
    )
    yield Row(name="the same, 95 %", value=float(np.quantile(told, 0.95)), unit="s", note=_taken(BOOT, "p95_s"))


def _machines() -> Iterator[Row]:
    rows = [each for each in _read("variability/ec2_variability_summary.csv") if "wordpress" in each["metric"]]
    between = float(np.median([float(each["cov_between_vms"]) for each in rows]))
    within = float(np.median([float(each["cov_within_vm"]) for each in rows]))
    yield Row(name="machines of a type, serving the web", value=100 * between, unit="%", note=_taken(QUALITY, "spread"))
    yield Row(name="one machine from run to run", value=100 * within, unit="%", note="of the same")


def _triples() -> Iterator[Row]:
    """How the speed beside two neighbours follows from that beside each of them."""
    pairs = {(app, others[0]): kept for app, others, kept in _groups("esp/interference_k2.csv")}
    worse, added, between = [], [], []
    for app, others, kept in _groups("esp/interference_k3.csv"):
        alone = [pairs.get((app, each), 1.0) for each in others]
        low, high = 1 / (1 + sum(1 / each - 1 for each in alone)), min(alone)
        added.append(abs(low - kept))
        worse.append(abs(high - kept))
        between.append(low - 0.02 <= kept <= high + 0.02)
    yield Row(name="beside two: the worse one alone, mean error", value=float(np.mean(worse)), unit="of the speed")
    yield Row(name="beside two: what each takes adds up, mean error", value=float(np.mean(added)), unit="of the speed")
    yield Row(name="triples between these (± 0.02)", value=100 * float(np.mean(between)), unit="%")


def _groups(name: str) -> Iterator[tuple[str, list[str], float]]:
    for each in _read(name):
        if (kept := float(each["perf_ratio"])) <= ARTEFACT:
            yield each["app"], each["others"].split(";"), min(1.0, kept)


def _taken(settings: Mapping[str, object], key: str) -> str:
    return f"taken: {settings[key]}"
