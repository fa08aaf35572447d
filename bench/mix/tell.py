"""What the mix says: per order, targets met and slowdown, with how far repetitions lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, quantiles, stdev

from bench.mix.scene import ORDERS, MixRun
from bench.rows import Row

KEPT = 1.05


def table(runs: Sequence[MixRun]) -> str:
    """Return one line per order."""
    lines = ["  order         targets met  within 5 %  mean slowdown  +- between seeds  p95 slowdown"]
    for order in ORDERS:
        mine = [run for run in runs if run.order == order]
        jobs = [job for run in mine for job in run.jobs]
        met, kept = fmean(job.met for job in jobs), fmean(job.slowdown <= KEPT for job in jobs)
        p95 = quantiles([job.slowdown for job in jobs], n=20)[-1]
        means = [mean_slowdown([run]) for run in mine]
        spread = stdev(means) if len(means) > 1 else float("nan")
        lines.append(f"  {order:<13} {met:>10.0%}  {kept:>10.0%}  {fmean(means):>13.3f}  {spread:>16.3f}  {p95:>12.3f}")
    return "\n".join(lines)


def mean_slowdown(runs: Sequence[MixRun]) -> float:
    """Return how many times longer than alone the jobs took on average."""
    return fmean(job.slowdown for run in runs for job in run.jobs)


def rows(runs: Sequence[MixRun]) -> list[Row]:
    """Return each order's figures; they are reported, no target is set for them."""
    found = []
    for order in ORDERS:
        mine = [run for run in runs if run.order == order]
        share = 100 * fmean(job.met for run in mine for job in run.jobs)
        note = f"{len(mine)} repetitions of {len(mine[0].jobs)} jobs"
        found.append(Row(name=f"{order}: targets met", value=share, unit="%", note=note))
        found.append(Row(name=f"{order}: mean slowdown", value=mean_slowdown(mine), unit="times"))
    return found
