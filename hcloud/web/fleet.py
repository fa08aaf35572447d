"""What the pages show of the whole fleet, computed once a second at most, however many look."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fastapi import Request

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
from hcloud.core.rows import number_of
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


@dataclass(slots=True, kw_only=True)
class FleetGroup:
    """Machines of one market and type."""

    market: str
    provider: str
    type_name: str
    machines: int = 0
    coming: int = 0
    vcpus: float = 0.0
    held_vcpus: float = 0.0
    busy_vcpus: float = 0.0
    measured_vcpus: float = 0.0
    """vCPUs of the machines of which the use is measured."""
    usd_per_h: float = 0.0

    def add(self, use: MachineUse) -> None:
        """Count one machine."""
        self.machines += 1
        self.coming += use.instance.state in INSTANCE_COMING
        self.usd_per_h += use.usd_per_h
        if use.instance.state in INSTANCE_COMING:
            return
        self.vcpus += use.vcpus
        self.held_vcpus += use.held_vcpus
        if use.busy_vcpus is not None:
            self.busy_vcpus += min(use.busy_vcpus, use.vcpus)
            self.measured_vcpus += use.vcpus

    @property
    def held_share(self) -> float | None:
        """Share of the vCPUs (0..1) that jobs hold."""
        return self.held_vcpus / self.vcpus if self.vcpus else None

    @property
    def busy_share(self) -> float | None:
        """Share of the vCPUs (0..1) that programs use, of the machines where it is measured."""
        return self.busy_vcpus / self.measured_vcpus if self.measured_vcpus else None


@dataclass(slots=True, kw_only=True)
class WaitGroup:
    """Waiting jobs of one class with one reason."""

    code: str
    jobs: int = 0
    longest_s: float = 0.0
    text: str = ""
    """The reason in words, as of the job that waits longest."""
    example: JobId = ""


@dataclass(slots=True, kw_only=True)
class QueueClass:
    """Jobs of one class that have not ended."""

    name: str
    waiting: int = 0
    running: int = 0
    reasons: dict[str, WaitGroup] = field(default_factory=dict)

    def add(self, job: Job, now: float) -> None:
        """Count one job."""
        if job.state in JOB_ON_INSTANCE:
            self.running += 1
            return
        self.waiting += 1
        code = job.wait_code or ("held" if job.waits_for else str(job.state))
        group = self.reasons.get(code)
        if group is None:
            group = self.reasons[code] = WaitGroup(code=code)
        group.jobs += 1
        waited_s = now - job.submitted_at
        if waited_s >= group.longest_s or not group.example:
            group.longest_s, group.example = waited_s, job.id
            group.text = job.wait_text or _words(job)

    @property
    def longest_s(self) -> float:
        """How long the job has waited that waits longest."""
        return max((each.longest_s for each in self.reasons.values()), default=0.0)

    @property
    def ranked(self) -> list[WaitGroup]:
        """Reasons, the most frequent first."""
        return sorted(self.reasons.values(), key=lambda each: (-each.jobs, each.code))


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
        return queue_classes(self.live.submitted, self.at)

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
        launched = (each.offer for each in self.live.instances if each.launched_at is not None)
        return sum(offer.price_usd_per_h for offer in launched)

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
        self._jobs: dict[JobId, Job] = {}
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
        known, stale = self._jobs, set[InstanceId]()
        for job in [each for each in jobs if known.get(each.id) is not each]:
            stale |= self._put(job)
        if len(known) != len(jobs):
            for job_id in known.keys() - {each.id for each in jobs}:
                stale |= self._remove(job_id)
                del known[job_id]
        return stale

    def _put(self, job: Job) -> frozenset[InstanceId]:
        before, places = self._remove(job.id), frozenset[InstanceId]()
        if job.attempt is not None:
            places = frozenset(each.instance_id for each in job.attempt.allocations if not each.released)
        self._jobs[job.id] = job
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
    groups: dict[tuple[str, str, str], FleetGroup] = {}
    for use in uses:
        offer = use.instance.offer
        key = (offer.market.value, offer.provider, offer.instance_type.name)
        if key not in groups:
            groups[key] = FleetGroup(market=key[0], provider=key[1], type_name=key[2])
        groups[key].add(use)
    return sorted(groups.values(), key=lambda each: (-each.usd_per_h, each.market, each.type_name))


def queue_classes(jobs: Iterable[Job], now: float) -> list[QueueClass]:
    """Return the jobs that have not ended by class: services, batch jobs, best effort, and profiling runs."""
    classes = {name: QueueClass(name=name) for name in (*_KINDS.values(), "profiling runs")}
    for job in jobs:
        name = "profiling runs" if job.spec.profile is not None else _KINDS[job.spec.target.kind]
        classes[name].add(job, now)
    return [each for each in classes.values() if each.waiting or each.running]


class FleetCache:
    """Makes the view of the fleet, once for all who ask within a second."""

    def __init__(self, context: ApiContext) -> None:
        """Prepare; nothing is read yet."""
        self._context = context
        self._lock = threading.Lock()
        self._last: FleetNow | None = None
        self._uses = MachineUses()
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
