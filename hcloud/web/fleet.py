"""What the pages show of the whole fleet, computed once a second at most, however many look."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fastapi import Request
from markupsafe import Markup

from hcloud.api.context import ApiContext, DaemonStatus, SpendStatus
from hcloud.apply.directives import PAUSED
from hcloud.core.model import (
    INSTANCE_COMING,
    JOB_ENDED,
    JOB_ON_INSTANCE,
    Event,
    EventKind,
    Instance,
    InstanceId,
    InstanceState,
    Job,
    JobId,
    JobState,
)
from hcloud.core.rows import Change, number_of, row_changes
from hcloud.forecast.job_monitor import JobSamples, sampled_since
from hcloud.store import LiveView

FRESH_S = 1.0
"""A view of the fleet is shown for so long before the next is made."""
COMING_SHOWN = 12
DECISIONS_SHOWN = 12
_DECISIONS = (
    EventKind.INSTANCE_REQUESTED,
    EventKind.INSTANCE_TERMINATED,
    EventKind.CORRECTION,
    EventKind.TARGET_MISSED,
    EventKind.BUDGET,
    EventKind.OFFER_BACKOFF,
    EventKind.PROVIDER_TROUBLE,
)
_KINDS = {"service": "service", "batch": "batch", "best_effort": "best effort"}
_PROFILING = "profiling runs"


@dataclass(kw_only=True)
class MachineUse:
    """One machine with what runs on it, at one moment; the same object as long as nothing changes there."""

    instance: Instance
    jobs: list[Job] = field(default_factory=list)
    held_vcpus: float = 0.0
    busy_vcpus: float | None = None
    """What the programs use of it, as measured lately; None: not known."""
    heat_cell: str = field(default="", compare=False, repr=False)
    """Its cell of the heat map, once that was made."""
    row: Markup = field(default=Markup(), compare=False, repr=False)
    """Its row of the list, once that was made, without its end: what it has cost, which grows."""

    @property
    def id(self) -> InstanceId:
        """The machine's id."""
        return self.instance.id

    @property
    def vcpus(self) -> float:
        """All that it has."""
        return self.instance.capacity.vcpus

    @property
    def held_share(self) -> float:
        """Share of its vCPUs (0..1) that jobs hold."""
        return min(1.0, self.held_vcpus / self.vcpus) if self.vcpus else 0.0

    @property
    def busy_share(self) -> float | None:
        """Share of its vCPUs (0..1) that programs use; None: not known."""
        if self.busy_vcpus is None:
            return None
        return min(1.0, self.busy_vcpus / self.vcpus) if self.vcpus else 0.0

    @cached_property
    def used_share(self) -> float:
        """Share that is used as far as it is measured, else the share that is held."""
        busy = self.busy_share
        return self.held_share if busy is None else busy

    @cached_property
    def usd_per_h(self) -> float:
        """What it costs; nothing before it is launched."""
        return 0.0 if self.instance.launched_at is None else self.instance.offer.price_usd_per_h

    @cached_property
    def unused_usd_per_h(self) -> float:
        """The part of its price that pays for what is not used."""
        return self.usd_per_h * (1.0 - self.used_share)

    @cached_property
    def amounts(self) -> tuple[float, ...]:
        """What it adds to the numbers of its :class:`FleetGroup`, in their order."""
        if self.instance.state in INSTANCE_COMING:
            return (1, 1, self.usd_per_h, 0.0, 0.0, 0.0, 0.0)
        busy = (0.0, 0.0) if self.busy_vcpus is None else (min(self.busy_vcpus, self.vcpus), self.vcpus)
        return (1, 0, self.usd_per_h, self.vcpus, self.held_vcpus, *busy)


@dataclass(frozen=True, slots=True)
class FleetGroup:
    """Machines of one market and type."""

    market: str
    provider: str
    type_name: str
    machines: int
    coming: int
    usd_per_h: float
    vcpus: float
    """All vCPUs of the machines that are up."""
    held_vcpus: float
    busy_vcpus: float
    measured_vcpus: float
    """vCPUs of the machines of which the use is measured."""

    @property
    def held_share(self) -> float | None:
        """Share of the vCPUs (0..1) that jobs hold."""
        return self.held_vcpus / self.vcpus if self.vcpus else None

    @property
    def busy_share(self) -> float | None:
        """Share of the vCPUs (0..1) that programs use, of the machines where it is measured."""
        return self.busy_vcpus / self.measured_vcpus if self.measured_vcpus else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitGroup:
    """Waiting jobs of one class with one reason."""

    code: str
    jobs: int
    longest_s: float
    text: str
    """The reason in words, as of the job that waits longest."""
    example: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueClass:
    """Jobs of one class that have not ended."""

    name: str
    running: int
    ranked: Sequence[WaitGroup]
    """The waiting ones by reason, the most frequent first."""

    @property
    def waiting(self) -> int:
        """Jobs that wait."""
        return sum(each.jobs for each in self.ranked)

    @property
    def longest_s(self) -> float:
        """How long the job has waited that waits longest."""
        return max((each.longest_s for each in self.ranked), default=0.0)


def _words(job: Job) -> str:
    if job.waits_for:
        return "waits for other jobs to end"
    return {
        JobState.SUBMITTED: "accepted, and looked at by the next plan",
        JobState.AWAITING_INSTANCE: "its machine is starting",
    }.get(job.state, "waits for its turn")


@dataclass(frozen=True, kw_only=True)
class FleetNow:
    """The fleet at one moment. What a page does not show is not computed."""

    at: float
    live: LiveView = field(repr=False)
    samples: Mapping[JobId, JobSamples] = field(repr=False)
    uses: MachineUses = field(repr=False)
    queue: JobsByClass = field(repr=False)
    status: DaemonStatus
    paused: str
    counts: Mapping[JobState, int]
    read_decisions: Callable[[], Sequence[Event]]

    @cached_property
    def machines(self) -> Mapping[InstanceId, MachineUse]:
        """Live machines with what runs on each."""
        return self.uses.at(self.live, self.samples)

    @cached_property
    def groups(self) -> Sequence[FleetGroup]:
        """Machines by market and type."""
        return fleet_groups(self.machines.values())

    @cached_property
    def classes(self) -> Sequence[QueueClass]:
        """Jobs that have not ended, by class."""
        return self.queue.classes(self.live, self.at)

    @cached_property
    def decisions(self) -> Sequence[Event]:
        """The latest decisions of the planner about machines and money, newest first."""
        return self.read_decisions()

    @property
    def spend(self) -> SpendStatus:
        """What was spent, and the limits."""
        return self.status.get("spend", {})

    @property
    def usd_per_h(self) -> float:
        """What all machines cost now."""
        return sum(each.usd_per_h for each in self.groups)

    @property
    def coming(self) -> list[MachineUse]:
        """Machines that are being launched, the newest first."""
        return sorted(
            (each for each in self.machines.values() if each.instance.state in INSTANCE_COMING),
            key=lambda each: -number_of(each.id),
        )

    @property
    def longest_wait_s(self) -> float:
        """How long the job has waited that waits longest."""
        return max((each.longest_s for each in self.classes), default=0.0)

    @property
    def waiting(self) -> int:
        """Jobs that have not ended and do not run."""
        ended_or_running = JOB_ENDED | JOB_ON_INSTANCE
        return sum(count for state, count in self.counts.items() if state not in ended_or_running)

    @property
    def running(self) -> int:
        """Jobs that hold resources of machines."""
        return sum(self.counts.get(state, 0) for state in JOB_ON_INSTANCE)

    @property
    def held_share(self) -> float | None:
        """Share of the vCPUs of all machines (0..1) that jobs hold."""
        vcpus = sum(each.vcpus for each in self.groups)
        return sum(each.held_vcpus for each in self.groups) / vcpus if vcpus else None


def busy_vcpus(samples: JobSamples, rank: int) -> float | None:
    """Return how many vCPUs a rank kept busy between its latest samples; None: not measured yet."""
    found = [each for each in samples.ranks.get(rank, ())[-6:] if "cpu_s" in each.values]
    if len(found) < 2 or found[-1].at <= found[0].at:
        return None
    return max(0.0, (found[-1].values["cpu_s"] - found[0].values["cpu_s"]) / (found[-1].at - found[0].at))


class MachineUses:
    """What runs on each machine, brought up to date by what has changed since the view before."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._lock = threading.Lock()
        self._jobs: Sequence[Job] = ()
        self._places: dict[JobId, frozenset[InstanceId]] = {}
        """Machines on which a job holds something."""
        self._by_machine: dict[InstanceId, dict[JobId, Job]] = {}
        self._samples: Mapping[JobId, JobSamples] = {}
        self._uses: dict[InstanceId, MachineUse] = {}

    def at(self, live: LiveView, samples: Mapping[JobId, JobSamples]) -> dict[InstanceId, MachineUse]:
        """Return the live machines with what runs on each."""
        with self._lock:
            stale = self._changed(live.jobs)
            sampled = sampled_since(self._samples, samples)
            for job_id in self._places if sampled is None else sampled:
                stale |= self._places.get(job_id, frozenset())
            before, self._samples, self._uses = self._uses, samples, {}
            for instance in live.instances:
                use = before.get(instance.id)
                if use is None or use.instance is not instance or instance.id in stale:
                    use = _machine_use(instance, self._by_machine.get(instance.id, {}).values(), samples)
                self._uses[instance.id] = use
            return self._uses

    def _changed(self, jobs: Sequence[Job]) -> set[InstanceId]:
        """Take in the jobs; return the machines on which some of them have changed."""
        stale = set[InstanceId]()
        for before, job in row_changes(self._jobs, jobs):
            if job is not None:
                stale |= self._put(job)
            elif before is not None:
                stale |= self._remove(before.id)
        self._jobs = jobs
        return stale

    def _put(self, job: Job) -> frozenset[InstanceId]:
        before, places = self._remove(job.id), frozenset[InstanceId]()
        if job.attempt is not None:
            places = frozenset(each.instance_id for each in job.attempt.allocations if not each.released)
        if places:
            self._places[job.id] = places
            for each in places:
                self._by_machine.setdefault(each, {})[job.id] = job
        return before | places

    def _remove(self, job_id: JobId) -> frozenset[InstanceId]:
        places = self._places.pop(job_id, frozenset())
        for each in places:
            held = self._by_machine[each]
            del held[job_id]
            if not held:
                del self._by_machine[each]
        return places


def _machine_use(instance: Instance, jobs: Iterable[Job], samples: Mapping[JobId, JobSamples]) -> MachineUse:
    use = MachineUse(instance=instance, jobs=sorted(jobs, key=lambda each: number_of(each.id)))
    for job in use.jobs:
        assert job.attempt is not None
        measured = samples.get(job.id)
        for allocation in job.attempt.allocations:
            if allocation.instance_id != instance.id or allocation.released:
                continue
            use.held_vcpus += allocation.resources.vcpus
            if measured is not None and measured.attempt == job.attempt.id:
                busy = busy_vcpus(measured, allocation.rank)
                if busy is not None:
                    use.busy_vcpus = (use.busy_vcpus or 0.0) + busy
    if not use.jobs and instance.state is InstanceState.READY:
        use.busy_vcpus = 0.0
    return use


def fleet_groups(uses: Iterable[MachineUse]) -> list[FleetGroup]:
    """Return the machines by market and type, the dearest first."""
    amounts: dict[tuple[str, str, str], list[tuple[float, ...]]] = {}
    for use in uses:
        offer = use.instance.offer
        amounts.setdefault((offer.market, offer.provider, offer.instance_type.name), []).append(use.amounts)
    groups = [FleetGroup(*key, *map(sum, zip(*each, strict=True))) for key, each in amounts.items()]
    return sorted(groups, key=lambda each: (-each.usd_per_h, each.market, each.type_name))


@dataclass(slots=True)
class _WaitingJobs:
    """Jobs of one class that wait with one reason."""

    jobs: dict[JobId, Job] = field(default_factory=dict)
    longest: Job | None = None
    """The job that waits longest; None: to be found."""

    def add(self, job: Job) -> None:
        if not self.jobs or (self.longest is not None and _waits_before(job) < _waits_before(self.longest)):
            self.longest = job
        self.jobs[job.id] = job

    def remove(self, job: Job) -> None:
        del self.jobs[job.id]
        if self.longest is job:
            self.longest = None

    def shown(self, code: str, now: float) -> WaitGroup:
        first = self.longest = self.longest or min(self.jobs.values(), key=_waits_before)
        return WaitGroup(
            code=code,
            jobs=len(self.jobs),
            longest_s=now - first.submitted_at,
            text=first.wait_text or _words(first),
            example=first.id,
        )


def _waits_before(job: Job) -> tuple[float, int]:
    return job.submitted_at, number_of(job.id)


class JobsByClass:
    """The jobs that have not ended by class and reason, brought up to date by what changed since the last view."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._lock = threading.Lock()
        self._seen = LiveView()
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, dict[str, _WaitingJobs]] = {name: {} for name in (*_KINDS.values(), _PROFILING)}

    def classes(self, live: LiveView, now: float) -> list[QueueClass]:
        """Return the classes with jobs: services, batch jobs, best effort, and profiling runs. Tasks do not count."""
        with self._lock:
            seen, self._seen = self._seen, live
            changes: list[Change[Job]] = [
                *row_changes(seen.jobs, live.jobs),
                *row_changes(seen.arrays, live.arrays),
                *row_changes(seen.held, live.held),
            ]
            # All removals first: a job that is held no longer leaves one kind of rows and is new in another.
            for before, _ in changes:
                if before is not None and not before.array:
                    self._remove(before)
            for _, job in changes:
                if job is not None and not job.array:
                    self._add(job)
            found = [
                QueueClass(name=name, running=self._running[name], ranked=_ranked(reasons, now))
                for name, reasons in self._waiting.items()
            ]
        return [each for each in found if each.waiting or each.running]

    def _add(self, job: Job) -> None:
        name, code = _class_and_reason(job)
        if code is None:
            self._running[name] += 1
        else:
            self._waiting[name].setdefault(code, _WaitingJobs()).add(job)

    def _remove(self, job: Job) -> None:
        name, code = _class_and_reason(job)
        if code is None:
            self._running[name] -= 1
            return
        group = self._waiting[name][code]
        group.remove(job)
        if not group.jobs:
            del self._waiting[name][code]


def _class_and_reason(job: Job) -> tuple[str, str | None]:
    """Return a job's class, and the code of the reason why it waits; None: it does not wait."""
    name = _PROFILING if job.spec.profile is not None else _KINDS[job.spec.target.kind]
    if job.state in JOB_ON_INSTANCE:
        return name, None
    return name, job.wait_code or ("held" if job.waits_for else str(job.state))


def _ranked(reasons: Mapping[str, _WaitingJobs], now: float) -> list[WaitGroup]:
    shown = [each.shown(code, now) for code, each in reasons.items()]
    return sorted(shown, key=lambda each: (-each.jobs, each.code))


class FleetCache:
    """Makes the view of the fleet, once for all who ask within a second."""

    def __init__(self, context: ApiContext) -> None:
        """Prepare; nothing is read yet."""
        self._context = context
        self._lock = threading.Lock()
        self._last: FleetNow | None = None
        self._uses, self._queue = MachineUses(), JobsByClass()
        self._decisions: deque[Event] = deque(maxlen=DECISIONS_SHOWN)
        self._seq = 0
        """Number of the last event that was looked at."""

    def current(self) -> FleetNow:
        """Return the fleet as it is, or was at most a second ago. Raises StoreBusy."""
        with self._lock:
            now = self._context.clock.now()
            last = self._last
            if last is None or not 0.0 <= now - last.at < FRESH_S:
                last = self._last = self._made(now)
            return last

    def _made(self, now: float) -> FleetNow:
        context = self._context
        return FleetNow(
            at=now,
            live=context.store.live(),
            samples=context.snapshot().job_samples,
            uses=self._uses,
            queue=self._queue,
            status=context.status(),
            paused=context.store.get_meta(PAUSED) or "",
            counts=Counter(context.store.counts()),
            read_decisions=self._latest_decisions,
        )

    def _latest_decisions(self) -> list[Event]:
        """Return the latest decisions, the newest first; only those that are new are read."""
        store = self._context.store
        with self._lock:
            newest = store.newest_event_seq()
            if newest > self._seq:
                new = store.events(after_seq=self._seq, kinds=_DECISIONS, newest=True, limit=DECISIONS_SHOWN)
                self._decisions.extend(new)
                self._seq = newest
            return list(self._decisions)[::-1]


def fleet_of(request: Request) -> FleetNow:
    """Return the fleet as it is now."""
    cache: FleetCache = request.app.state.fleet
    return cache.current()
