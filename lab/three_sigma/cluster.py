"""A cluster of racks on which the jobs of a trace run, scheduled in cycles. No node fails, and no start takes time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hcloud.core.pricing import HOUR_S
from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.planner.plan_ahead.expected import slot_starts
from hcloud.planner.plan_ahead.linear_program import PendingJob, RunningJob, StartOption, schedule
from hcloud.simulator.deadline_mix import NODES, RACKS, SLOWER_ELSEWHERE, JobTrace, TracedJob
from lab.three_sigma.systems import BEST_EFFORT_WORTH, ClusterScheduler

CYCLE_S = 15.0
SLOTS, HORIZON_S = 12, 2 * HOUR_S
ANYWHERE = frozenset(range(RACKS))


@dataclass(slots=True)
class _Started:
    job: TracedJob
    at_s: float
    ends_s: float
    nodes: Mapping[int, int]
    stretch: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult:
    """What came out of one run."""

    missed_pct: float
    """Jobs with a deadline before the end that did not end by it."""
    goodput_node_h: float
    """Work of jobs that ended within the experiment, at their run time on preferred nodes."""
    best_effort_node_h: float
    """Of these, jobs of best effort."""
    latency_s: float
    """Mean time from submission to end of jobs of best effort that ended."""
    stopped: int
    """How often a job of best effort was stopped for another."""
    plan_ms: float
    """CPU time of one cycle, on average."""


def result_of(trace: JobTrace, ended: Sequence[tuple[TracedJob, float]], stopped: int, plan_ms: float) -> ClusterResult:
    """Return what comes out if these jobs ``ended`` at these times, in seconds from the start."""
    ends_s = {job.number: at_s for job, at_s in ended}
    due = [job for job in trace.jobs if job.deadline_s is not None and job.deadline_s <= trace.span_s]
    met = [job for job in due if ends_s.get(job.number, np.inf) <= (job.deadline_s or 0.0)]
    effort = [(job, at_s) for job, at_s in ended if job.deadline_s is None]
    return ClusterResult(
        missed_pct=100.0 * (1.0 - len(met) / max(1, len(due))),
        goodput_node_h=sum(job.nodes * job.run_s for job, _ in ended) / HOUR_S,
        best_effort_node_h=sum(job.nodes * job.run_s for job, _ in effort) / HOUR_S,
        latency_s=float(np.mean([at_s - job.submitted_s for job, at_s in effort])) if effort else 0.0,
        stopped=stopped,
        plan_ms=plan_ms,
    )


@dataclass(slots=True)
class _Cluster:
    trace: JobTrace
    system: ClusterScheduler
    run_times: Mapping[int, RunTimes]
    nodes: int
    free: dict[int, int] = field(init=False)
    waiting: list[TracedJob] = field(default_factory=list)
    running: dict[int, _Started] = field(default_factory=dict)
    ended: list[tuple[TracedJob, float]] = field(default_factory=list)
    stopped: int = 0
    plan_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = dict.fromkeys(range(RACKS), self.nodes // RACKS)

    def run(self) -> ClusterResult:
        arrivals, now_s = list(reversed(self.trace.jobs)), 0.0
        while now_s < self.trace.span_s:
            for number in [number for number, each in self.running.items() if each.ends_s <= now_s]:
                ended = self._release(number)
                self.ended.append((ended.job, ended.ends_s))
            while arrivals and arrivals[-1].submitted_s <= now_s:
                self.waiting.append(arrivals.pop())
            if self.waiting:
                began_s = time.process_time()
                self._by_priority(now_s) if self.system.run_times is None else self._planned(now_s)
                self.plan_s.append(time.process_time() - began_s)
            now_s += CYCLE_S
        plan_ms = 1e3 * float(np.mean(self.plan_s)) if self.plan_s else 0.0
        return result_of(self.trace, self.ended, self.stopped, plan_ms)

    # -------------------------------------------------------------------------------------------------------- decisions
    def _planned(self, now_s: float) -> None:
        pending = [self._pending(job, now_s) for job in self.waiting]
        capacity = dict.fromkeys(range(RACKS), self.nodes / RACKS)
        running = [self._running(each, now_s) for each in self.running.values()]
        found = schedule(pending, running, capacity, slot_starts(HORIZON_S, CYCLE_S, SLOTS))
        for number in found.stopping:
            self._stop(number)
        jobs = {job.number: job for job in self.waiting}
        for start in found.starting:
            self._start(jobs[start.number], {rack: round(count) for rack, count in start.amounts.items()}, now_s)

    def _pending(self, job: TracedJob, now_s: float) -> PendingJob:
        run_time = self.run_times[job.number]
        places: tuple[StartOption, ...] = (StartOption(pools=ANYWHERE),)
        if job.deadline_s is not None:
            places = (StartOption(pools=job.preferred), StartOption(pools=ANYWHERE, stretch=SLOWER_ELSEWHERE))
        return PendingJob(
            number=job.number,
            amount=float(job.nodes),
            run_time=run_time,
            utility=self.system.utility(job, run_time, now_s),
            places=places,
        )

    def _running(self, each: _Started, now_s: float) -> RunningJob:
        job, run_time, stop_cost = each.job, self.run_times[each.job.number], None
        if job.deadline_s is None:
            # What was done of it is lost, and it has to wait again.
            done = (now_s - each.at_s) / max(CYCLE_S, run_time.after(now_s - each.at_s).quantile(0.5))
            stop_cost = BEST_EFFORT_WORTH * (0.5 + done)
        return RunningJob(
            number=job.number,
            amounts={rack: float(count) for rack, count in each.nodes.items()},
            run_time=run_time,
            age_s=now_s - each.at_s,
            stretch=each.stretch,
            stop_cost=stop_cost,
        )

    def _by_priority(self, now_s: float) -> None:
        """Start jobs with a deadline first, at the expense of those of best effort, each kind in order."""
        for job in sorted(self.waiting, key=lambda job: (job.deadline_s is None, job.submitted_s)):
            if job.deadline_s is not None:
                lacks = job.nodes - sum(self.free.values())
                victims = [each for each in self.running.values() if each.job.deadline_s is None]
                if lacks > sum(each.job.nodes for each in victims):
                    continue
                for each in sorted(victims, key=lambda each: -each.at_s):
                    if sum(self.free.values()) >= job.nodes:
                        break
                    self._stop(each.job.number)
            roomy = job.deadline_s is not None and self._free_in(job.preferred) >= job.nodes
            if roomy or self._free_in(ANYWHERE) >= job.nodes:
                self._start(job, self._nodes_in(job.preferred if roomy else ANYWHERE, job.nodes), now_s)

    # ---------------------------------------------------------------------------------------------------------- actions
    def _free_in(self, racks: frozenset[int]) -> int:
        return sum(self.free[rack] for rack in racks)

    def _nodes_in(self, racks: frozenset[int], lacks: int) -> dict[int, int]:
        """Return so many free nodes of ``racks``, the emptiest first."""
        taken = dict[int, int]()
        for rack in sorted(racks, key=lambda each: (-self.free[each], each)):
            if count := min(self.free[rack], lacks):
                taken[rack] = count
                lacks -= count
        return taken

    def _start(self, job: TracedJob, nodes: Mapping[int, int], now_s: float) -> None:
        for rack, count in nodes.items():
            self.free[rack] -= count
        assert sum(nodes.values()) == job.nodes and min(self.free.values()) >= 0, f"job {job.number}: {nodes}"
        slower = job.deadline_s is not None and not job.preferred.issuperset(nodes)
        stretch = SLOWER_ELSEWHERE if slower else 1.0
        self.waiting.remove(job)
        self.running[job.number] = _Started(job, now_s, now_s + job.run_s * stretch, nodes, stretch)

    def _stop(self, number: int) -> None:
        self.waiting.append(self._release(number).job)
        self.stopped += 1

    def _release(self, number: int) -> _Started:
        ended = self.running.pop(number)
        for rack, count in ended.nodes.items():
            self.free[rack] += count
        return ended


def simulate(trace: JobTrace, system: ClusterScheduler, nodes: int = NODES) -> ClusterResult:
    """Return what comes out if a system schedules the trace on ``nodes``, as many in each rack."""
    run_times = system.run_times(trace) if system.run_times is not None else {}
    return _Cluster(trace, system, run_times, nodes).run()
