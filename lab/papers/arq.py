"""ARQ's queues (Dissertation ch. 6): which jobs they let go first (tables 6.2, 6.3), how many there should be (fig.
6.5b), what they add on a large cluster (fig. 6.6), and how well they know when a server becomes free (fig. 6.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hcloud.core.model import EventKind
from hcloud.forecast.wait_times import BusyTimes
from hcloud.simulator.performance import JobPerformance
from hcloud.simulator.qos_losses import UnitRun, unit_runs
from hcloud.simulator.workload import Workload
from hcloud.spec.policy import Policy
from lab.papers.allocation import FULL, finished, setting_on
from lab.papers.clusters import LARGE, ORACLE, PATIENT_QUEUES, scheduler
from lab.papers.study import (
    Case,
    Claim,
    Effect,
    Figure,
    Numbers,
    RunSize,
    number,
    points_more,
    setting_of,
    sized_cases,
)

URGENT_SHARE, URGENT = 0.2, 10
"""The share of jobs with a higher priority, and that priority (Dissertation §6.5)."""
QUEUES, SHORTEST, PRIORITIES = "ARQ", "ARQ, shortest first", "ARQ, priorities"
PATIENT, PATIENT_SHORTEST = "ARQ, patient", "ARQ, shortest first, patient"
RUN_TIMES = 10.0
"""For how many of their run times patient jobs wait for a suitable server."""
SHORTEST_PCT = (25, 50, 75)
"""Jobs with the shortest ideal run times, in percent of all; with fewer than 178 jobs less would be a handful."""
PROBABILITY = 0.6
"""That of fig. 6.2."""
INSTANTS = 200
"""Times of a run at which is asked when a server becomes free."""
WITHIN_10 = 0.9
"""Performance of a job that lost a tenth."""


def figures() -> Iterator[Figure]:
    """Yield the figures."""
    yield _orders()
    yield _counts()
    yield _large()


# --------------------------------------------------------------------------------------------------------------- orders
def _policy(name: str) -> Policy:
    patience = RUN_TIMES if name in (PATIENT, PATIENT_SHORTEST) else None
    plain = scheduler("paragon", queues="by_quality", patience=patience)
    order = "shortest" if name in (SHORTEST, PATIENT_SHORTEST) else "priority"
    return replace(plain, admission=replace(plain.admission, order=cast(Any, order)))


def _with_urgent(workload: Workload, seed: int) -> Workload:
    """Return the workload with a share of its jobs, drawn by lot, at a higher priority."""
    drawn = np.random.default_rng(seed).random(len(workload.arrivals)) < URGENT_SHARE
    arrivals = tuple(
        replace(each, spec=replace(each.spec, priority=URGENT)) if is_urgent else each
        for each, is_urgent in zip(workload.arrivals, drawn.tolist(), strict=True)
    )
    return replace(workload, arrivals=arrivals)


def order_numbers(name: str, size: RunSize, seed: int, within: Path | None) -> Numbers:
    """Return how much longer than ideally jobs run and take with waiting, in groups by ideal run time and priority."""
    setting = setting_of(Case(label=name, experiment=FULL, policy=_policy(name)), seed, size)
    if name == PRIORITIES:
        setting = replace(setting, workload=_with_urgent(setting.workload, seed))
    found = finished(name, setting, within)
    priority = {
        event.job_id or "": int(cast(Any, event.fields.get("priority", 0)))
        for event in found.events
        if event.kind is EventKind.JOB_SUBMITTED
    }
    ended = [each for each in found.outcome.performance if each.running > 0.0]
    by_time = sorted(ended, key=lambda each: found.ideal_s[each.job_id])
    numbers = {"all_longer_pct": _longer(ended, "running"), "all_later_pct": _longer(ended, "turnaround")}
    for share in SHORTEST_PCT:
        part = by_time[: max(1, len(by_time) * share // 100)]
        numbers[f"shortest_{share}_longer_pct"] = _longer(part, "running")
        numbers[f"shortest_{share}_later_pct"] = _longer(part, "turnaround")
    if name == PRIORITIES:
        urgent = [each for each in ended if priority[each.job_id] == URGENT]
        others = [each for each in ended if priority[each.job_id] != URGENT]
        numbers |= {
            "urgent_later_pct": _longer(urgent, "turnaround"),
            "others_later_pct": _longer(others, "turnaround"),
        }
    return numbers


def _longer(jobs: Sequence[JobPerformance], of: str) -> float:
    """Return by how much longer than ideally jobs took, the median in percent: a few wait for very long."""
    return 100.0 * float(np.median([1.0 / getattr(each, of) - 1.0 for each in jobs])) if jobs else 0.0


def _orders() -> Figure:
    def later(seed: Mapping[str, Numbers], name: str, more: str, less: str) -> float:
        return seed[name][more] - seed[name][less]

    return Figure(
        name="arq-orders",
        title="Queues that let short jobs go first, or urgent ones: oversubscribed, 40 servers of ten types",
        source="Dissertation §6.5.1, tables 6.2 and 6.3",
        cases=sized_cases(order_numbers, (QUEUES, SHORTEST, PRIORITIES, PATIENT, PATIENT_SHORTEST)),
        columns=(
            "all_longer_pct", "shortest_25_longer_pct", "all_later_pct", "shortest_25_later_pct", "urgent_later_pct",
            "others_later_pct",
        ),
        claims=(
            Claim(
                text="shortest first: how much longer all jobs run than expected",
                published="2.28 % (harmonic mean)",
                ours=number(SHORTEST, "all_longer_pct"),
                holds=lambda value: value <= 5.0,
                unit="% longer",
            ),
            Claim(
                text="shortest first: the shortest quarter is delayed less than all",
                published="1.2 % beside 2.28 %",
                ours=partial(later, name=SHORTEST, more="all_later_pct", less="shortest_25_later_pct"),
                holds=lambda value: value > 0.0,
                unit="points",
            ),
            Claim(
                text="the shortest quarter is delayed less than it is with the oldest first",
                published="-",
                ours=points_more(QUEUES, SHORTEST, "shortest_25_later_pct"),
                holds=lambda value: value > 0.0,
                unit="points",
            ),
            Claim(
                text="the same where jobs wait for up to ten of their run times",
                published="-",
                ours=points_more(PATIENT, PATIENT_SHORTEST, "shortest_25_later_pct"),
                holds=lambda value: value > 0.0,
                unit="points",
            ),
            Claim(
                text="urgent jobs end close to their ideal time",
                published="0.8 % (within 2 %)",
                ours=number(PRIORITIES, "urgent_later_pct"),
                holds=lambda value: value <= 2.0,
                unit="% later",
            ),
            Claim(
                text="urgent jobs are delayed less than others",
                published="0.8 % beside 2.74 %",
                ours=partial(later, name=PRIORITIES, more="others_later_pct", less="urgent_later_pct"),
                holds=lambda value: value > 0.0,
                unit="points",
            ),
        ),
        drawn="shortest_25_later_pct",
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- counts
COUNTS, USUAL = (1, 2, 5, 10, 20, 50), 10
"""Numbers of queues, and that of the paper."""


def _named(count: int) -> str:
    return "1 queue" if count == 1 else f"{count} queues"


def count_numbers(count: int, size: RunSize, seed: int, within: Path | None) -> Numbers:
    """Return how jobs do and how full servers are with so many queues, all true speeds and pressures known."""
    plain = scheduler("paragon", queues="by_quality", patience=RUN_TIMES)
    policy = replace(plain, admission=replace(plain.admission, classes=count))
    case = Case(label=_named(count), experiment=FULL, policy=policy, oracle=True)
    found = finished(case.label, setting_of(case, seed, size), within)
    jobs, series = found.outcome.performance, found.outcome.series
    vcpus = max(sum(market) for market in zip(*series.up_vcpus.values(), strict=True))
    held = np.array(series.held_vcpus)[np.array(series.waiting) > 0]
    return {
        "performance_pct": 100.0 * float(np.mean([each.running for each in jobs])),
        "qos_kept_pct": 100.0 * float(np.mean([each.kept for each in jobs])),
        "turnaround_pct": 100.0 * float(np.mean([each.turnaround for each in jobs])),
        "held_waiting_pct": 100.0 * float(held.mean()) / vcpus if held.size else 0.0,
        "whole_s": found.outcome.span_s,
    }


def _counts() -> Figure:
    few, usual, many = (_named(count) for count in (min(COUNTS), USUAL, max(COUNTS)))
    return Figure(
        name="arq-queues",
        title="How many queues: jobs wait for up to ten of their run times, oversubscribed, 40 servers of ten types",
        source="Dissertation §6.5.1, fig. 6.5b",
        cases=sized_cases(count_numbers, of={_named(count): (count,) for count in COUNTS}),
        columns=("performance_pct", "qos_kept_pct", "turnaround_pct", "held_waiting_pct", "whole_s"),
        claims=(
            _more(f"{few} hurts performance beside {usual}", "hurts", usual, few, "performance_pct"),
            _more(f"{few} fills servers more than {usual}", "more", few, usual, "held_waiting_pct"),
            _more(f"{many} perform better than {usual}", "better", many, usual, "performance_pct"),
            _more(f"{many} fill servers less than {usual}", "less", usual, many, "held_waiting_pct"),
        ),
        drawn="performance_pct",
    )


def _more(text: str, published: str, more: str, fewer: str, column: str) -> Claim:
    """Return the claim that the case ``more`` has more of a column than the case ``fewer``."""
    ours = points_more(more, fewer, column)
    return Claim(text=text, published=published, ours=ours, holds=lambda value: value > 0.0, unit="points")


# ---------------------------------------------------------------------------------------------------------------- large
def large_numbers(name: str, size: RunSize, seed: int, within: Path | None) -> Numbers:
    """Return how many jobs keep their QoS, or lose less than a tenth, on the large cluster when it is oversubscribed;
    and what is known of when servers become free."""
    setting = replace(setting_on(LARGE[-1], name, seed, size), oracle=name in (ORACLE, PATIENT_QUEUES))
    found = finished(name, setting, within)
    running = np.array([each.running for each in found.outcome.performance])
    runs = [run for mine in unit_runs(found.events).on.values() for run in mine]
    return {
        "qos_kept_pct": 100.0 * float(np.mean([each.kept for each in found.outcome.performance])),
        "lost_below_10_pct": 100.0 * float(np.mean(running >= WITHIN_10)),
        "performance_pct": 100.0 * float(running.mean()),
        "turnaround_pct": 100.0 * float(np.mean([each.turnaround for each in found.outcome.performance])),
        **free_server_numbers([run for run in runs if run.job_id in found.ideal_s], seed),
    }


def free_server_numbers(runs: Sequence[UnitRun], seed: int) -> Numbers:
    """Return how far busy times are from a normal distribution, and what follows from them for the first server that
    becomes free: within which time with a probability of 60 %, and how often it did, at times drawn by a seed."""
    began, ended = np.array([each.began_at for each in runs]), np.array([each.ended_at for each in runs])
    busy_s = np.sort(ended - began)
    since, until = np.quantile(ended, (0.25, 0.75)).tolist()
    drawn = np.random.default_rng(seed).uniform(since, until, INSTANTS)
    times_s = np.geomspace(0.1, float(busy_s[-1]), 500)
    waits: dict[str, list[float]] = {known: [] for known in ("", "_ends_only", "_all_known")}
    freed: dict[str, list[bool]] = {known: [] for known in waits}
    for at in drawn.tolist():
        running, over = (began <= at) & (ended > at), np.flatnonzero(ended <= at)
        if not running.any():
            continue
        ages, known_s = at - began[running], (ended - began)[over[np.argsort(ended[over])]]
        for known, busy in (
            ("", BusyTimes.of(known_s, ages)),
            ("_ends_only", BusyTimes.of(known_s)),
            ("_all_known", BusyTimes.of(ended - began)),
        ):
            enough = np.flatnonzero(busy.some_free(ages, times_s) >= PROBABILITY)
            waits[known].append(float(times_s[enough[0]]) if enough.size else float(times_s[-1]))
            freed[known].append(float(ended[ended > at].min()) - at <= waits[known][-1])
    one_s = float(np.quantile(busy_s, PROBABILITY))
    return {
        "normal_off_pct": 100.0 * _distance(busy_s),
        "log_normal_off_pct": 100.0 * _distance(np.log(busy_s)),
        "one_free_s": one_s,
        "some_free_s": float(np.median(waits[""])),
        **{f"freed_in_time{known}_pct": 100.0 * float(np.mean(each)) for known, each in freed.items()},
    }


def _distance(ordered: NDArray[np.float64]) -> float:
    """Return the largest difference between the distribution of numbers and the normal one of their mean and spread
    (Kolmogorov and Smirnov)."""
    from statistics import NormalDist

    fitted = NormalDist(float(ordered.mean()), max(float(ordered.std()), 1e-9))
    expected, count = np.array([fitted.cdf(each) for each in ordered.tolist()]), len(ordered)
    above, below = np.arange(1, count + 1) / count - expected, expected - np.arange(count) / count
    return float(max(above.max(), below.max()))


def _off(seed: Mapping[str, Numbers], name: str) -> float:
    return abs(seed["Paragon+ARQ"][name] - 100.0 * PROBABILITY)


def _free_servers() -> Iterator[Claim]:
    yield Claim(
        text="busy times follow a normal distribution: largest difference",
        published="a curve resembling a normal distribution (fig. 6.2a)",
        ours=number("Paragon+ARQ", "normal_off_pct"),
        holds=lambda value: value <= 10.0,
        unit="points of probability",
    )
    yield Claim(
        text="the first of many servers is free so many times sooner than one, both with a probability of 60 %",
        published="2,700 s for one, 56 s for the first: 48 times",
        ours=lambda seed: seed["Paragon+ARQ"]["one_free_s"] / max(1.0, seed["Paragon+ARQ"]["some_free_s"]),
        effect=Effect(48.0, none=1.0),
        unit="times sooner",
    )
    for name, known in (
        ("freed_in_time_pct", "what ended and what runs count"),
        ("freed_in_time_ends_only_pct", "only what ended counts"),
        ("freed_in_time_all_known_pct", "all of the run known"),
    ):
        yield Claim(
            text=f"a server is free within the time said with a probability of 60 %, off by ({known})",
            published="- (60 %)",
            ours=partial(_off, name=name),
            holds=lambda value: value <= 10.0,
            unit="points",
        )


def _large() -> Figure:
    names = ("Paragon", "Paragon+ARQ", ORACLE, PATIENT_QUEUES)
    return Figure(
        name="arq-large",
        title="Admission queues on 1,000 servers of 14 types, oversubscribed with a burst",
        source="Dissertation §6.5.1, fig. 6.6; §6.3, fig. 6.2",
        cases=sized_cases(large_numbers, names),
        columns=(
            "qos_kept_pct", "lost_below_10_pct", "performance_pct", "turnaround_pct", "normal_off_pct",
            "log_normal_off_pct", "one_free_s", "some_free_s", "freed_in_time_pct", "freed_in_time_ends_only_pct",
            "freed_in_time_all_known_pct",
        ),
        claims=(
            Claim(
                text="admission by quality keeps QoS for more jobs",
                published="22 points (83 % of jobs beside 61 %)",
                ours=points_more("Paragon+ARQ", "Paragon", "qos_kept_pct"),
                effect=Effect(22.0),
                unit="points",
            ),
            Claim(
                text="the same, both told the truth, where jobs wait for up to ten of their run times",
                published="22 points (83 % of jobs beside 61 %)",
                ours=points_more(PATIENT_QUEUES, ORACLE, "qos_kept_pct"),
                effect=Effect(22.0),
                unit="points",
            ),
            Claim(
                text="with it jobs lose less than a tenth",
                published="99 % of jobs",
                ours=number("Paragon+ARQ", "lost_below_10_pct"),
                effect=Effect(99.0),
                unit="% of jobs",
            ),
            *_free_servers(),
        ),
        drawn="qos_kept_pct",
        published={"Paragon": 61.0, "Paragon+ARQ": 83.0},
    )  # fmt: skip
