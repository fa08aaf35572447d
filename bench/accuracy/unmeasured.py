"""Types that no program was measured on: each job's rate on one, at stated vCPUs, from its runs on one other family.

The other family's sizes give the job's step curve, which converts every whole machine's rate to the vCPUs of the
smallest. Only that family counts as measured, so nothing is learned from other jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from bench.accuracy.lumos import Cloud
from hcloud.classifier.step_curve import conversion
from hcloud.classifier.unmeasured_types import on_unmeasured_type
from hcloud.core.estimates import Estimate

VCPUS: Mapping[str, float] = {"large": 2.0, "xlarge": 4.0, "2xlarge": 8.0}
SURE = 0.02
"""Standard deviation of the logarithm of a median of repeated runs."""


def report(cloud: Cloud) -> None:
    """Print error and coverage of 80 % limits, by how far the unmeasured type is from the measured ones."""
    found: dict[str, list[tuple[float, bool]]] = {"another size of the family": [], "another family": []}
    for job in range(len(cloud.jobs)):
        rates = {t: 1.0 / float(s) for t, s in zip(cloud.types, cloud.times[job], strict=True) if not np.isnan(s)}
        for family in sorted({_family(each) for each in cloud.types}):
            for title, predicted, measured in _predictions(rates, family):
                within = predicted.low <= measured <= predicted.high
                found[title].append((100.0 * abs(predicted.value / measured - 1.0), within))
    print(f"\n{cloud.name}: a type that no program was measured on, at the vCPUs of the smallest")
    for title, judged in found.items():
        errors, hits = np.array([each[0] for each in judged]), np.array([each[1] for each in judged])
        print(
            f"  {title:<30} mean error {errors.mean():5.1f} %, 90th percentile {np.quantile(errors, 0.9):5.1f} %, "
            f"80 % limits hold {100.0 * hits.mean():4.0f} % of {len(judged)}"
        )


def _family(name: str) -> str:
    parts = name.split(".")
    return ".".join([parts[0], *parts[2:]])  # some clouds name the memory per vCPU last


def _predictions(rates: Mapping[str, float], family: str) -> Iterator[tuple[str, Estimate, float]]:
    """Yield kind of type, estimate and measured rate of every type that is not the measured one."""
    sizes = {each: VCPUS[each.split(".")[1]] for each in rates}
    least = min(VCPUS.values())
    own = [each for each in rates if _family(each) == family]
    steps = {f"{sizes[each]:g} vCPU": rates[each] for each in own}
    measured = [each for each in own if sizes[each] == least]
    if not measured or len(steps) < len(VCPUS):
        return
    known = rates[measured[0]]
    by_type = {f"cloud/{measured[0]}": Estimate(known, known * np.exp(-SURE * 1.28), known * np.exp(SURE * 1.28), True)}
    for other in rates.keys() - set(own):
        factor = conversion(steps, sizes[other], least)
        estimate = on_unmeasured_type(by_type, f"cloud/{other}")
        if factor is not None and estimate is not None:
            yield "another family", estimate, rates[other] * factor
            if sizes[other] == least:
                yield from _sizes(rates, sizes, other, steps)


def _sizes(
    rates: Mapping[str, float], sizes: Mapping[str, float], small: str, steps: Mapping[str, float]
) -> Iterator[tuple[str, Estimate, float]]:
    """Yield the larger sizes of a family whose smallest was measured, by the step curve of another family."""
    known = rates[small]
    by_type = {f"cloud/{small}": Estimate(known, known * np.exp(-SURE * 1.28), known * np.exp(SURE * 1.28), True)}
    for other in (each for each in rates if _family(each) == _family(small) and each != small):
        factor = conversion(steps, sizes[other], sizes[small])
        estimate = on_unmeasured_type(by_type, f"cloud/{other}")
        if factor is not None and estimate is not None:
            yield "another size of the family", estimate, rates[other] * factor
