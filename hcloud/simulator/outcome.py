"""Results of a simulation, read from its event log: cost, targets, waits, utilisation and churn, and their course over
time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType

import numpy as np

from hcloud.core.model import PROFILE_TAG, Event, EventKind, JobState, Market
from hcloud.core.pricing import HOUR_S, cost_usd
from hcloud.report import build_report
from hcloud.report.fleet import FleetHistory, Stretch
from hcloud.report.serving import Serving
from hcloud.report.spending_accounts import ACCOUNT_COLUMNS, ROUNDING, Spending, SpendingReader, account_values
from hcloud.report.table import ReportTable, Row, columns, share_pct
from hcloud.simulator.performance import Ideal, JobPerformance, kept_pct, mean, performances, quantile
from hcloud.simulator.run import Commitment
from hcloud.simulator.utilisation import Hold, MachineLifetime, Utilisation, utilisation_of

POINTS = 240
"""Points of a time series."""
RENTED = "rented "
"""Prefix of series names for rented vCPUs of one machine type."""
REASONS_SHOWN, WAIT_SHARE_SHOWN = 2, 0.1
"""Notes show this many reasons, and only wait reasons with at least this share of the total wait."""


@dataclass(slots=True)
class _MachineUse:
    vcpus: float
    market: str
    type_name: str
    launched_at: float | None = None


@dataclass(slots=True)
class _Job:
    kind: str
    submitted_at: float
    serving: Serving
    wait_reason: tuple[str, str] = ("", "")
    wait_reason_at: float = 0.0

    @property
    def started_at(self) -> float | None:
        return self.serving.started_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Amounts over time, each at POINTS times."""

    at_s: tuple[float, ...] = ()
    """The times, in seconds from the start."""
    up_vcpus: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """vCPUs of running machines, by market."""
    rented_vcpus: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """vCPUs of rented machines, by machine type."""
    held_vcpus: tuple[float, ...] = ()
    """vCPUs held by jobs."""
    waiting: tuple[float, ...] = ()
    """The number of waiting jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitReason:
    """A reason for which jobs waited until their first start."""

    code: str
    text: str
    """The explanation of one of these jobs."""
    job_s: float
    """Seconds waited, summed over jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReason:
    """A reason for which jobs failed."""

    code: str
    text: str
    """The explanation of one of these jobs."""
    jobs: int
    """The number of jobs that failed for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """The result of one simulation."""

    name: str
    span_s: float
    jobs: int
    succeeded: int
    metered_usd: float
    """The cost of machines that are not reserved."""
    committed_usd: float
    """The cost of reserved machines, used or not."""
    target_met_pct: float | None
    """Batch jobs count 0 or 100; services count by the share of good samples and of time running since their first
    start, as in the performance report. None without targets."""
    batch_met_pct: float | None
    service_met_pct: float | None
    wait_s: tuple[float, ...]
    """Seconds from submission to first start of each job that started, sorted."""
    launches: int
    used_once: int
    """Machines that served a single job."""
    misbehaved: int
    """Machines released because they delivered too little."""
    up_vcpu_h: float
    held_vcpu_h: float
    committed_vcpu_h: float
    committed_held_vcpu_h: float
    series: Series
    fullness: Utilisation = field(default_factory=Utilisation)
    performance: tuple[JobPerformance, ...] = ()
    waited_for: tuple[WaitReason, ...] = ()
    """The longest total wait first."""
    failed_by: tuple[FailureReason, ...] = ()
    """The most frequent reason first."""
    planning_failed: tuple[str, ...] = ()
    """The jobs or stages on which planning failed, with the error: each is a bug."""
    spending: Spending = field(default_factory=Spending)
    """What the cost was paid for; its total is the cost."""

    @property
    def cost_usd(self) -> float:
        """The metered and the committed cost."""
        return self.metered_usd + self.committed_usd

    def wait_quantile_s(self, share: float) -> float | None:
        """Return the wait quantile ``share`` (0..1) over jobs that started; None if none did."""
        return float(np.quantile(self.wait_s, share)) if self.wait_s else None


@dataclass(slots=True)
class _EventReader:
    """Collects counts and intervals from one pass over the log."""

    machines: dict[str, _MachineUse] = field(default_factory=dict)
    jobs: dict[str, _Job] = field(default_factory=dict)
    profiled: dict[str, str] = field(default_factory=dict)
    """The profiled job of each profiling run. Such runs hold machines but do not count as jobs."""
    met: dict[str, list[float]] = field(default_factory=lambda: {"batch": [], "service": []})
    changes: list[tuple[float, str, float]] = field(default_factory=list)
    """Changes of amounts: seconds from the start, the amount's name, and by how much. Names are a market, RENTED + a
    type, ``held`` or ``waiting``."""
    waits: list[float] = field(default_factory=list)
    succeeded: int = 0
    launches: int = 0
    uses: dict[str, set[str]] = field(default_factory=dict)
    misbehaved: set[str] = field(default_factory=set)
    held_since: dict[tuple[str, object], tuple[float, float, str]] = field(default_factory=dict)
    """By running unit: start time, vCPUs held, and machine."""
    lifetimes: dict[str, MachineLifetime] = field(default_factory=dict)
    holds: list[Hold] = field(default_factory=list)
    waited_for_s: dict[str, float] = field(default_factory=dict)
    wait_texts: dict[str, str] = field(default_factory=dict)
    failed: dict[str, list[str]] = field(default_factory=dict)
    """By reason code: the explanation of each failed job."""
    planning_failed: list[str] = field(default_factory=list)
    began_at: float = 0.0
    last_at: float = 0.0
    last_job_at: float = 0.0
    """The last submission or end of a job; after that, at most idle rented machines are left."""

    def follow(self, events: Iterable[Event]) -> None:
        """Read all events, then close the intervals of machines and units that are left at the last event (reserved
        machines)."""
        for number, event in enumerate(events):
            if not number:  # the daemon's start
                self.began_at = self.last_at = self.last_job_at = event.at
            handler = _HANDLERS.get(event.kind)
            if handler is not None:
                handler(self, event)
        for name, machine in self.machines.items():
            self._add_lifetime(name, machine, self.last_at)
        for since, vcpus, name in self.held_since.values():
            self._add_hold(name, vcpus, since, self.last_at)

    def change(self, at: float, what: str, by: float) -> None:
        """Record a change of an amount."""
        self.changes.append((at - self.began_at, what, by))
        self.last_at = max(self.last_at, at)

    def submitted(self, event: Event) -> None:
        """Count a waiting job, or remember a profiling run."""
        tags = event.fields.get("tags")
        if isinstance(tags, Mapping) and PROFILE_TAG in tags:
            self.profiled[event.job_id or ""] = str(tags[PROFILE_TAG])
            return
        latency, percentile = event.fields.get("latency_ms"), event.fields.get("percentile")
        serving = Serving(
            latency_ms=float(latency) if isinstance(latency, (int, float)) else None,
            percentile=float(percentile) if isinstance(percentile, (int, float)) else 99.0,
        )
        self.jobs[event.job_id or ""] = _Job(
            kind=str(event.fields.get("target_kind")), submitted_at=event.at, wait_reason_at=event.at, serving=serving
        )
        self.last_job_at = max(self.last_job_at, event.at)
        self.change(event.at, "waiting", 1)

    def job_state_changed(self, event: Event) -> None:
        """Record why a job failed, or what a job that has not started waits for from now on."""
        job = self.jobs.get(event.job_id or "")
        if job is not None and event.fields.get("to") == JobState.FAILED.value:
            self.failed.setdefault(str(event.fields.get("code")), []).append(str(event.fields.get("text")))
        if job is not None and job.started_at is None:
            self._add_wait(job, event.at)
            job.wait_reason, job.wait_reason_at = (
                (str(event.fields.get("code")), str(event.fields.get("text"))),
                event.at,
            )

    def _add_wait(self, job: _Job, until_at: float) -> None:
        code, text = job.wait_reason
        self.waited_for_s[code] = self.waited_for_s.get(code, 0.0) + max(0.0, until_at - job.wait_reason_at)
        self.wait_texts.setdefault(code, text)

    def requested(self, event: Event) -> None:
        """Remember a requested machine; it costs nothing until it is launched."""
        self.machines[event.instance_id or ""] = _MachineUse(
            vcpus=_number(event, "vcpus"),
            market=str(event.fields.get("market")),
            type_name=str(event.fields.get("type")),
        )

    def launched(self, event: Event) -> None:
        """Count a launched machine from the time the provider states."""
        machine = self.machines[event.instance_id or ""]
        machine.launched_at = _number(event, "launched_at") or event.at
        self.launches += 1
        self._change_vcpus_up(machine.launched_at, machine, machine.vcpus)

    def instance_state_changed(self, event: Event) -> None:
        """Record a machine that is drained or released because it delivered too little."""
        if event.fields.get("code") == "misbehaved":
            self.misbehaved.add(event.instance_id or "")

    def terminated(self, event: Event) -> None:
        """Record a machine's lifetime, if it was launched at all."""
        machine = self.machines.pop(event.instance_id or "")
        if machine.launched_at is None:
            return
        ended_at = _number(event, "terminated_at") or event.at
        self._add_lifetime(event.instance_id or "", machine, ended_at)
        self._change_vcpus_up(ended_at, machine, -machine.vcpus)

    def _change_vcpus_up(self, at: float, machine: _MachineUse, by_vcpus: float) -> None:
        self.change(at, machine.market, by_vcpus)
        if machine.market != Market.RESERVED.value:
            self.change(at, RENTED + machine.type_name, by_vcpus)

    def _add_lifetime(self, name: str, machine: _MachineUse, until_at: float) -> None:
        if machine.launched_at is not None:
            since_s, until_s = machine.launched_at - self.began_at, max(machine.launched_at, until_at) - self.began_at
            self.lifetimes[name] = MachineLifetime(
                market=machine.market, vcpus=machine.vcpus, since_s=since_s, until_s=until_s
            )

    def unit_started(self, event: Event) -> None:
        """Record held vCPUs; a job's wait ends with its first unit."""
        name = event.job_id or ""
        self.uses.setdefault(event.instance_id or "", set()).add(self.profiled.get(name, name))
        job = self.jobs.get(name)
        if job is not None and job.started_at is None:
            self._add_wait(job, event.at)
            self.waits.append(max(0.0, event.at - job.submitted_at))
            self.change(event.at, "waiting", -1)
        if job is not None:
            job.serving.unit_started(event.at)
        vcpus = _number(event, "vcpus")
        self.held_since[_unit(event)] = (event.at, vcpus, event.instance_id or "")
        self.change(event.at, "held", vcpus)

    def unit_ended(self, event: Event) -> None:
        """Record what the unit held, if it started."""
        if _unit(event) in self.held_since:
            since, vcpus, name = self.held_since.pop(_unit(event))
            self._add_hold(name, vcpus, since, event.at)
            self.change(event.at, "held", -vcpus)
            if (job := self.jobs.get(event.job_id or "")) is not None:
                job.serving.unit_ended(event)

    def _add_hold(self, name: str, vcpus: float, since: float, until_at: float) -> None:
        until_s = max(since, until_at) - self.began_at
        self.holds.append(Hold(machine=name, vcpus=vcpus, since_s=since - self.began_at, until_s=until_s))

    def vcpu_s_up(self) -> float:
        """Return the vCPU-seconds of all machines."""
        return sum((life.until_s - life.since_s) * life.vcpus for life in self.lifetimes.values())

    def vcpu_s_held(self, market: str | None = None, within_s: float = inf) -> float:
        """Return the vCPU-seconds held by units, of one market if given, within the first ``within_s`` seconds."""
        return sum(
            max(0.0, min(hold.until_s, within_s) - hold.since_s) * hold.vcpus
            for hold in self.holds
            if market in (None, self.lifetimes[hold.machine].market)
        )

    def unit_resized(self, event: Event) -> None:
        """Close the interval at the old size and open one at the new."""
        if _unit(event) in self.held_since:
            self.unit_ended(event)
            self.unit_started(event)

    def sample(self, event: Event) -> None:
        """Count a service's sample."""
        if (job := self.jobs.get(event.job_id or "")) is not None:
            job.serving.count_sample(event)

    def finished(self, event: Event) -> None:
        """Record how a job ended and whether it met its target; a service counts by its share (0..1) if it was sampled
        or failed."""
        job = self.jobs.get(event.job_id or "")
        if job is None:
            return
        self.last_job_at = max(self.last_job_at, event.at)
        self.succeeded += event.fields.get("state") == "succeeded"
        met = event.fields.get("target_met")
        if job.kind == "service":
            served = job.serving.share(event.at, over=True)
            if served is not None or event.fields.get("state") != "succeeded":
                self.met["service"].append(served or 0.0)
        elif isinstance(met, bool):
            self.met["batch"].append(float(met))
        if job.started_at is None:
            self.change(event.at, "waiting", -1)

    def planning_trouble(self, event: Event) -> None:
        """Record on what planning failed."""
        self.planning_failed.append(f"{event.fields['left_out']} ({event.fields['error']})")


def _number(event: Event, key: str) -> float:
    value = event.fields.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _unit(event: Event) -> tuple[str, object]:
    return str(event.fields.get("attempt")), event.fields.get("rank")


_HANDLERS = {
    EventKind.JOB_SUBMITTED: _EventReader.submitted,
    EventKind.JOB_STATE: _EventReader.job_state_changed,
    EventKind.INSTANCE_REQUESTED: _EventReader.requested,
    EventKind.INSTANCE_LAUNCHED: _EventReader.launched,
    EventKind.INSTANCE_STATE: _EventReader.instance_state_changed,
    EventKind.INSTANCE_TERMINATED: _EventReader.terminated,
    EventKind.UNIT_STARTED: _EventReader.unit_started,
    EventKind.UNIT_RESIZED: _EventReader.unit_resized,
    EventKind.UNIT_ENDED: _EventReader.unit_ended,
    EventKind.SAMPLE: _EventReader.sample,
    EventKind.JOB_FINISHED: _EventReader.finished,
    EventKind.PLANNING_TROUBLE: _EventReader.planning_trouble,
}


def outcome_of(
    name: str,
    events: Callable[[], Iterable[Event]],
    commitments: Sequence[Commitment] = (),
    ideals: Mapping[str, Ideal] | None = None,
    paid_s: float | None = None,
    needs_vcpus: Mapping[str, float] = MappingProxyType({}),
) -> SimulationResult:
    """Return the results of a finished simulation; ``events`` is called several times.

    Costs and commitments count from the start for ``paid_s`` seconds. With None, rented machines count to their end and
    commitments to the end of the last job, however long idle machines are kept after it. ``ideals`` is
    ``Simulation.ideals()``; without it there is no performance. ``needs_vcpus`` is ``Simulation.needs_vcpus()``;
    without it every job needs what it holds.
    """
    reader = _EventReader()
    reader.follow(events())
    span_s = reader.last_at - reader.began_at
    worked_s = reader.last_job_at - reader.began_at
    paid_h = (worked_s if paid_s is None else min(worked_s, paid_s)) / HOUR_S
    batch, service = reader.met["batch"], reader.met["service"]
    failures = [FailureReason(code=code, text=texts[0], jobs=len(texts)) for code, texts in reader.failed.items()]
    committed_usd = sum(each.count * each.price_usd_per_h for each in commitments) * paid_h
    metered_until = reader.last_at + HOUR_S if paid_s is None else reader.began_at + paid_s
    committed = _Committed(usd=committed_usd, until=reader.began_at + paid_h * HOUR_S)
    return SimulationResult(
        name=name,
        span_s=span_s,
        jobs=len(reader.jobs),
        succeeded=reader.succeeded,
        metered_usd=_metered_usd(events(), reader.last_at, None if paid_s is None else reader.began_at + paid_s),
        committed_usd=committed_usd,
        target_met_pct=share_pct(sum(batch) + sum(service), len(batch) + len(service)),
        batch_met_pct=share_pct(sum(batch), len(batch)),
        service_met_pct=share_pct(sum(service), len(service)),
        wait_s=tuple(sorted(reader.waits)),
        launches=reader.launches,
        used_once=sum(len(jobs) == 1 for jobs in reader.uses.values()),
        misbehaved=len(reader.misbehaved),
        up_vcpu_h=reader.vcpu_s_up() / HOUR_S,
        held_vcpu_h=reader.vcpu_s_held() / HOUR_S,
        committed_vcpu_h=sum(each.count * each.vcpus for each in commitments) * paid_h,
        committed_held_vcpu_h=reader.vcpu_s_held(Market.RESERVED.value, paid_h * HOUR_S) / HOUR_S,
        series=_series(reader.changes, span_s),
        fullness=utilisation_of(reader.lifetimes, reader.holds, span_s),
        performance=performances(events(), ideals) if ideals else (),
        waited_for=_waited_for(reader),
        failed_by=tuple(sorted(failures, key=lambda each: (-each.jobs, each.code))),
        planning_failed=tuple(dict.fromkeys(reader.planning_failed)),
        spending=_spending(events(), metered_until, committed, needs_vcpus),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Committed:
    """All reserved machines: their cost, and until when it is counted (Unix seconds)."""

    usd: float
    until: float


def _spending(
    events: Iterable[Event], metered_until: float, committed: _Committed, needs_vcpus: Mapping[str, float]
) -> Spending:
    """Return the accounts of the metered cost up to a time and of the committed cost, used or not."""
    history, reader, reserved_usd = FleetHistory(0.0, metered_until), SpendingReader(needs_vcpus), 0.0

    def stretches() -> Iterator[Stretch]:
        for event in events:
            if event.at <= metered_until:
                yield from history.take(event)
        yield from history.finish()

    for stretch in stretches():
        if stretch.market == Market.RESERVED.value:
            stretch = replace(stretch, until=min(stretch.until, committed.until))
            if stretch.seconds <= 0.0:
                continue
            reserved_usd += cost_usd(stretch.price_usd_per_h, stretch.seconds)
        reader.add(stretch)
    unused_usd = committed.usd - reserved_usd
    reader.add_reserved_unused(unused_usd if abs(unused_usd) > ROUNDING * committed.usd else 0.0)
    return reader.finish()


def _waited_for(reader: _EventReader) -> tuple[WaitReason, ...]:
    reasons = [
        WaitReason(code=code, text=reader.wait_texts[code], job_s=job_s)
        for code, job_s in reader.waited_for_s.items()
        if job_s > 0.0
    ]
    return tuple(sorted(reasons, key=lambda each: (-each.job_s, each.code)))


def _metered_usd(events: Iterable[Event], now: float, until: float | None) -> float:
    """Return the cost of all metered machines by the cost report, up to a time (None: to the end)."""
    table = build_report("cost", events, now + HOUR_S, by="market", until=until)
    cost = [column.name for column in table.columns].index("cost_usd")
    return sum(float(row[cost] or 0.0) for row in table.rows if row[0] != Market.RESERVED.value)


def _series(changes: Sequence[tuple[float, str, float]], span_s: float) -> Series:
    at_s = np.linspace(0.0, max(span_s, 1.0), POINTS)
    named = sorted({what for _, what, _ in changes})
    amounts = {what: _amounts([(at, by) for at, each, by in changes if each == what], at_s) for what in named}
    zero = (0.0,) * POINTS
    types = [name for name in named if name.startswith(RENTED)]
    return Series(
        at_s=tuple(at_s.tolist()),
        up_vcpus={name: amounts[name] for name in named if name not in ("held", "waiting", *types)},
        rented_vcpus={name.removeprefix(RENTED): amounts[name] for name in types},
        held_vcpus=amounts.get("held", zero),
        waiting=amounts.get("waiting", zero),
    )


def _amounts(changes: Sequence[tuple[float, float]], at_s: np.ndarray) -> tuple[float, ...]:
    ordered = sorted(changes)
    moments, sums = np.array([at for at, _ in ordered]), np.cumsum([by for _, by in ordered])
    places = np.searchsorted(moments, at_s, side="right")
    return tuple(float(sums[place - 1]) if place else 0.0 for place in places)


def comparison(outcomes: Sequence[SimulationResult]) -> ReportTable:
    """Return one row per outcome; ``cost_pct`` is relative to the first."""
    names = columns(
        "policy", "cost_usd", "cost_pct", "metered_usd", "committed_usd", "target_met_pct", "batch_met_pct",
        "service_met_pct", "qos_kept_pct", "performance_pct", "performance_p5_pct", "performance_p95_pct", "wait_p50_s",
        "wait_p95_s", "used_pct", "reserved_used_pct", "launches", "used_once_pct",
        "succeeded", "jobs",
    )  # fmt: skip
    names += ACCOUNT_COLUMNS
    first = outcomes[0].cost_usd if outcomes else 0.0
    rows = tuple(_row(each, first) for each in outcomes)
    return ReportTable(title="Simulated", columns=names, rows=rows, notes=(*NOTES, *notes_on(outcomes)))


def notes_on(outcomes: Sequence[SimulationResult]) -> Iterator[str]:
    """Yield notes on what jobs waited for, why jobs failed, and what planning failed on."""
    yield from wait_notes(outcomes)
    for each in outcomes:
        yield from filter(None, (failures_of(each), defects_of(each)))


def failures_of(outcome: SimulationResult) -> str | None:
    """Return a note on why jobs failed; None if none did."""
    parts = [f"{reason.jobs} {reason.code} ({reason.text})" for reason in outcome.failed_by[:REASONS_SHOWN]]
    failed = sum(reason.jobs for reason in outcome.failed_by)
    return f"{outcome.name}: {failed} of {outcome.jobs} jobs failed: {'; '.join(parts)}" if parts else None


def defects_of(outcome: SimulationResult) -> str | None:
    """Return a note on what planning failed on; None if it never did."""
    if not outcome.planning_failed:
        return None
    skipped = "; ".join(outcome.planning_failed[:REASONS_SHOWN])
    return f"{outcome.name}: planning failed (a bug in HCloud) and skipped {skipped}; do not trust these numbers"


def wait_notes(outcomes: Sequence[SimulationResult]) -> Iterator[str]:
    """Yield a note for each outcome with waiting jobs: the reasons, the longest total wait first, with one explanation
    each."""
    for each in outcomes:
        waited_s = sum(reason.job_s for reason in each.waited_for)
        parts = [
            f"{reason.job_s / waited_s:.0%} {reason.code} ({reason.text})"
            for reason in each.waited_for[:REASONS_SHOWN]
            if reason.job_s >= WAIT_SHARE_SHOWN * waited_s
        ]
        if parts:
            yield f"{each.name}: jobs waited {waited_s / HOUR_S:.2f} h in total: {'; '.join(parts)}"


NOTES = (
    "cost_pct: relative to the first policy; committed: reserved machines, paid whether used or not",
    "performance: relative to running alone on the best type; qos_kept: at most 5 % lost, or latency within its target",
    "used: vCPUs held by jobs / vCPUs up; reserved_used: reserved vCPUs held / reserved vCPUs paid for",
    "used_once: machines that served a single job; wait: from submission to the first start",
)
"""Explanations of columns."""


def _percent(part: float | None) -> float | None:
    return None if part is None else 100.0 * part


def _row(each: SimulationResult, first_usd: float) -> Row:
    return (
        each.name,
        each.cost_usd,
        share_pct(each.cost_usd, first_usd),
        each.metered_usd,
        each.committed_usd,
        each.target_met_pct,
        each.batch_met_pct,
        each.service_met_pct,
        kept_pct(each.performance),
        _percent(mean(each.performance)),
        _percent(quantile(each.performance, 0.05)),
        _percent(quantile(each.performance, 0.95)),
        each.wait_quantile_s(0.5),
        each.wait_quantile_s(0.95),
        share_pct(each.held_vcpu_h, each.up_vcpu_h),
        share_pct(each.committed_held_vcpu_h, each.committed_vcpu_h),
        each.launches,
        share_pct(each.used_once, each.launches),
        each.succeeded,
        each.jobs,
        *account_values(each.spending),
    )
