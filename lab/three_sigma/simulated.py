"""3Sigma's cluster as HCloud's simulator runs it: the daemon's own cycles, and its planner with ``queues: planned``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hcloud.config import load_policy, package_data
from hcloud.core.model import Event, EventKind, FailureCause, Job, JobState
from hcloud.core.rows import number_of
from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.planner import make_plan
from hcloud.planner.plan import Plan
from hcloud.planner.plan_ahead import stage
from hcloud.planner.run_times import RunTimeForecasts
from hcloud.planner.snapshot import Snapshot
from hcloud.quarantine.planning import Planner
from hcloud.simulator.clusters import WARM_UP_S, deadline_mix
from hcloud.simulator.deadline_mix import NUMBER_TAG, JobTrace
from hcloud.simulator.run import START_AT, Progress, Setting, simulated
from hcloud.spec.policy import Policy
from lab.three_sigma.cluster import ClusterResult, result_of
from lab.three_sigma.systems import OVERESTIMATED_BELOW, ClusterScheduler

CYCLE_S = 5.0
"""Seconds between cycles; the daemon's are one second apart."""


_OVERESTIMATED_BELOW = {"no": -1.0, "adaptive": OVERESTIMATED_BELOW, "always": 2.0}
"""Probability to meet the deadline below which the value of a job falls slowly: never, seldom, always."""


class _Over(Exception):
    """The experiment's time is over, though jobs still run."""


@dataclass(frozen=True, slots=True, eq=False)
class _GivenRunTimes(RunTimeForecasts):
    """Run times by number of the job in the trace, fixed for the whole experiment."""

    by_number: Mapping[int, RunTimes] = None  # type: ignore[assignment]

    def of_job(self, job: Job) -> RunTimes | None:
        return self.by_number.get(int(job.spec.tags.get(NUMBER_TAG, -1)))


def cluster_policy(queues: str = "planned") -> Policy:
    """Return the default policy for a fixed cluster, all machines of which are kept; nothing is profiled."""
    shipped = load_policy(package_data.path("policies") / "default.yaml")
    return replace(
        shipped,
        caps=replace(shipped.caps, max_instances=20_000, max_vcpus=None, max_queued_jobs=1_000_000),
        retention=replace(shipped.retention, minimum_s=86_400.0, maximum_s=86_400.0),
        profiling=replace(shipped.profiling, when="never"),
        admission=replace(shipped.admission, queues=queues),  # type: ignore[arg-type]
    )


def with_run_times(run_times: Mapping[int, RunTimes], overestimates: str = "adaptive") -> Planner:
    """Return the planner, for which run times are as given, and ``overestimates`` are allowed for as
    :class:`ClusterScheduler` says."""
    given, below = _GivenRunTimes(by_number=run_times), _OVERESTIMATED_BELOW[overestimates]

    def plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        usual, stage.OVERESTIMATED_BELOW = stage.OVERESTIMATED_BELOW, below
        try:
            return make_plan(replace(snapshot, run_times=given), policy, rng)
        finally:
            stage.OVERESTIMATED_BELOW = usual

    return plan


def run_system(
    system: ClusterScheduler, trace: JobTrace, *, share: float, seed: int = 0, within: Path | None = None
) -> ClusterResult:
    """Return what comes out with one of the paper's schedulers on ``share`` of the cluster, up to the end of the trace.

    Strict priorities are HCloud's without a plan. ``within``: the folder of temporary ones; None: the default.
    """
    planner, policy = with_run_times({}), cluster_policy("by_quality")
    if system.run_times is not None:
        planner, policy = with_run_times(system.run_times(trace), system.overestimates), cluster_policy()
    made = deadline_mix(trace, share=share)
    setting = Setting(
        workload=made.workload, policy=policy, cloud={"keep_terminated_s": 600, **made.cloud}, seed=seed,
        truth=made.truth, planner=planner, cycle_s=CYCLE_S,
    )  # fmt: skip

    def watch(progress: Progress) -> None:
        if progress.now_s >= trace.span_s + WARM_UP_S:
            raise _Over

    with tempfile.TemporaryDirectory(dir=within) as folder, simulated(setting, Path(folder)) as simulation:
        began_s = time.process_time()
        with suppress(_Over):
            simulation.run(watch)
        numbers = [int(each.spec.tags.get(NUMBER_TAG, 0)) for each in made.workload.arrivals]
        plan_ms = 1e3 * (time.process_time() - began_s) / max(1, simulation.progress.cycles)
        return _result(trace, numbers, simulation.events(), plan_ms)


def _result(trace: JobTrace, numbers: Sequence[int], events: Iterable[Event], plan_ms: float) -> ClusterResult:
    """Return what came out; ``numbers``: that of each job in order of submission, 0 for others."""
    jobs, ends_s, stopped = {job.number: job for job in trace.jobs}, dict[int, float](), 0
    for event in events:
        if event.kind is EventKind.JOB_FINISHED and event.fields.get("state") == JobState.SUCCEEDED:
            ends_s[numbers[number_of(event.job_id or "") - 1]] = event.at - START_AT - WARM_UP_S
        elif event.kind is EventKind.UNIT_ENDED and event.fields.get("rank") == 0:
            stopped += event.fields.get("cause") == FailureCause.EVICTED
    ended = [(jobs[number], at_s) for number, at_s in ends_s.items() if number and at_s <= trace.span_s]
    return result_of(trace, ended, stopped, plan_ms)
