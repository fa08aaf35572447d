"""Synthetic profiles."""

from collections.abc import Iterable

from hcloud.classifier.profiles import FitProvenance, ProfileUnits, Provenance, ReferenceProfile, cells_of_readings
from hcloud.core.estimates import SOURCES, Measure, Reading


def readings(scale: float = 1.0, shift: float = 0.0) -> Iterable[Reading]:
    """Two sizes and every source, with limits."""
    for column, value in (("0.5 vCPU", 10.0), ("1 vCPU", 20.0)):
        yield Reading(
            question="step", column=column, value=scale * value, low=scale * value - 1, high=scale * value + 1, runs=3
        )
    yield Reading(question="type", column="local/local.small", value=10.0 * scale, low=9.0 * scale, high=11.0 * scale)
    for question, start in (("tolerated", 20.0), ("caused", 5.0)):
        for number, source in enumerate(SOURCES):
            value = min(100.0, start + shift + 4 * number)
            yield Reading(
                question=question, column=source, value=value, low=max(0.0, value - 2), high=min(100.0, value + 2)
            )


def profile(name: str = "gzip", *, scale: float = 1.0, shift: float = 0.0, unit: str = "MiB/s") -> ReferenceProfile:
    """A whole profile."""
    return ReferenceProfile(
        profile=name,
        format=1,
        group="compression",
        program=name,
        measure=Measure.PROGRESS,
        units=ProfileUnits(performance=unit),
        provenance=Provenance(
            measured_at="2026-11-21T12:00:00Z",
            provider="local",
            cpu="a <fast> CPU & more",
            cores=2,
            kernel="6.1.0",
            hcloud="0.1.0",
            stress_ng="0.15.06",
            packages={"gzip": "1.12-1"},
            load_average=0.05,
            took_s=61.5,
            command="gzip -c",
        ),
        cells=cells_of_readings(readings(scale, shift)),
        use={"local/local.small": (0.5, 11.0, 0.0, 1.5)},
        notes=("network-bandwidth: it has no network",),
    )


def fitted_profile(name: str = "typical") -> ReferenceProfile:
    """A profile that was fitted to measurements of others."""
    cells = [
        Reading(question="type", column=f"aws/m5.{size}", value=value, low=0.8 * value, high=1.25 * value)
        for size, value in (("large", 10.0), ("xlarge", 18.0))
    ]
    steps = (("2 vCPU", 10.0), ("4 vCPU", 18.0))
    cells += [Reading(question="step", column=column, value=value, low=value, high=value) for column, value in steps]
    return ReferenceProfile(
        profile=name,
        format=1,
        group="fitted",
        program=name,
        measure=Measure.COMPLETION,
        units=ProfileUnits(performance="runs/s"),
        cells=cells_of_readings(cells),
        type_vcpus={"aws/m5.large": 2.0, "aws/m5.xlarge": 4.0},
        fitted=FitProvenance(
            source="somebody's measurements, version 3",
            licence="CC BY 4.0",
            columns="seconds on m5.large and m5.xlarge",
            method="geometric mean of 9 jobs",
            provider="aws",
            fitted_at="2026-11-25",
        ),
    )
