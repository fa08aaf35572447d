"""Hypothesis strategies for what a plan is made from: consistent snapshots of small fleets, and policies that bite.

Consistent means: nothing is oversubscribed, attempts fit their states, and awaited machines exist or have just failed.
Sizes are small numbers, so that ties, exact fits and full machines are common.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from hcloud.core.model import (
    JOB_ON_INSTANCE,
    Allocation,
    Attempt,
    BatchTarget,
    BestEffortTarget,
    CommittedCapacity,
    Constraints,
    FailureCause,
    Instance,
    InstanceState,
    InstanceType,
    Job,
    JobSpec,
    JobState,
    Market,
    Nodes,
    Offer,
    Resources,
    ServiceTarget,
    Target,
)
from hcloud.forecast.runtimes.mixture import MixturePredictor
from hcloud.planner.run_times import NO_RUN_TIMES, RunTimeForecasts, kind_features
from hcloud.planner.snapshot import OfferBackoff, RefusedQuota, Snapshot, Spend
from hcloud.spec.policy import Budgets, Caps, DisruptionPolicy, Policy, RetentionPolicy, ScopeBudget
from tests.policies import simple
from tests.scopes import by_user

NOW = 10_000.0


def _run_times(usual_s: float) -> RunTimeForecasts:
    """Return what is known after many runs of the jobs' programs of about this length."""
    predictor = MixturePredictor()
    for user in _USERS:
        spec = JobSpec(name="job", user=user, command=("true",), target=BestEffortTarget())
        for times in (0.5, 1.0, 1.0, 2.0) * 4:
            predictor.observe(kind_features(spec), usual_s * times)
    return RunTimeForecasts(predictor)


_TYPES = {"small": (1, 1024, 0.05), "medium": (2, 2048, 0.10), "large": (4, 8192, 0.18), "huge": (8, 16384, 0.40)}
_FACTORS = {Market.RESERVED: 0.6, Market.ON_DEMAND: 1.0, Market.SPOT: 0.3}
_USERS = ("ann", "bob")
RUN_TIMES_OF = {0.0: NO_RUN_TIMES, 100.0: _run_times(100.0), 5000.0: _run_times(5000.0)}
"""What is known of run times, by the usual one in seconds."""
_WAITING = (JobState.SUBMITTED, JobState.QUEUED, JobState.QUEUED, JobState.AWAITING_INSTANCE, JobState.PREEMPTED)
_RUNNING = (JobState.PLACED, JobState.RUNNING, JobState.RUNNING)

amounts = st.builds(
    Resources,
    vcpus=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    memory_mib=st.sampled_from([256, 1024, 2048, 6000]),
    disk_gib=st.sampled_from([1.0, 5.0, 30.0]),
)
targets: st.SearchStrategy[Target] = st.one_of(
    st.just(BatchTarget(finish_within_s=500.0)),
    st.just(BatchTarget(finish_within_s=50_000.0)),
    st.just(ServiceTarget(requests_per_s=100.0, latency_ms=10.0)),
    st.just(BestEffortTarget()),
)


@st.composite
def node_counts(draw: DrawFn) -> Nodes:
    """Mostly one node; sometimes gangs and incremental jobs of up to four."""
    count = draw(st.sampled_from([1, 1, 1, 2, 4]))
    gang = draw(st.booleans())
    return Nodes(count=count, gang=gang, minimum=draw(st.integers(1, count)))


_COMMITTED = tuple(
    tuple(CommittedCapacity(ends_at=at, free=1000, used=1) for at in ends)
    for ends in ((NOW + 5000.0, NOW + 700.0), (None, NOW + 5000.0), ())
)
"""Commitments of reserved offers, in turn."""


@st.composite
def offers(draw: DrawFn) -> tuple[Offer, ...]:
    """Some types in some markets at fitting prices, sorted by key."""
    keys = draw(
        st.sets(
            st.tuples(st.sampled_from(sorted(_TYPES)), st.sampled_from(list(Market)), st.sampled_from("ab")), max_size=6
        )
    )
    built = [
        offer_of(name, market, zone, draw(st.sampled_from([None, None, 0, 1]))) for name, market, zone in sorted(keys)
    ]
    built = [
        replace(each, committed=_COMMITTED[at % 3], price_after_usd_per_h=each.price_usd_per_h / _FACTORS[each.market])
        if each.market is Market.RESERVED
        else each
        for at, each in enumerate(built)
    ]
    return tuple(sorted(built, key=lambda offer: offer.key))


def offer_of(name: str, market: Market, zone: str, available: int | None) -> Offer:
    """An offer of one of these types."""
    vcpus, memory_mib, price = _TYPES[name]
    kind = InstanceType(
        provider="mock",
        name=name,
        capacity=Resources(vcpus=vcpus, memory_mib=memory_mib, disk_gib=40.0),
        boot_delay_s=30.0,
        labels={"size": name[0], "disk": "ssd" if name in ("medium", "huge") else "hdd"},
    )
    return Offer(
        provider="mock",
        region="r",
        zone=zone,
        instance_type=kind,
        market=market,
        price_usd_per_h=price * _FACTORS[market],
        priced_at=0.0,
        available=available,
        quota="of the smaller" if name in ("small", "medium") else "of the larger",
    )


any_offer = st.builds(
    offer_of, st.sampled_from(sorted(_TYPES)), st.sampled_from(list(Market)), st.sampled_from("aab"), st.none()
)
demands = st.builds(
    Constraints,
    zones=st.sampled_from([(), (), ("a",), ("b*", "c")]),
    labels=st.sampled_from([(), (), (("disk", "ssd"),)]),
    apart_from=st.sampled_from([(), ("db",), ("job",), ("d*", "job")]),
    spread=st.sampled_from(["none", "host", "zone"]),
).map(lambda each: each if each != Constraints() else None)


@st.composite
def instances(draw: DrawFn, number: int) -> Instance:
    """One live machine in any state, at any point of its lease."""
    state = draw(
        st.sampled_from([s for s in InstanceState if s is not InstanceState.TERMINATED] + [InstanceState.READY] * 4)
    )
    up = state in (InstanceState.READY, InstanceState.DRAINING, InstanceState.TERMINATING)
    launched_at = NOW - draw(st.sampled_from([5.0, 100.0, 700.0, 2000.0]))
    known = up or state is InstanceState.BOOTING
    offer = draw(any_offer)
    if offer.market is Market.RESERVED and number % 2:
        after_usd_per_h = offer.price_usd_per_h / _FACTORS[Market.RESERVED]
        offer = replace(offer, ends_at=NOW + 700.0, price_after_usd_per_h=after_usd_per_h)
    return Instance(
        id=f"inst-{number}",
        offer=offer,
        state=state,
        token=f"token-{number}",
        requested_at=launched_at,
        expires_at=NOW + draw(st.sampled_from([20.0, 300.0, 1000.0, 3000.0])),
        provider_id=f"cloud-{number}" if known else None,
        launched_at=launched_at if known else None,
        ready_at=launched_at if up else None,
        seen_at=NOW - draw(st.sampled_from([0.0, 60.0, 500.0])) if up else None,
        preempt_at=draw(st.sampled_from([None, None, None, None, NOW + 20.0, NOW + 90.0])) if up else None,
    )


@dataclass
class _Making:
    """A snapshot under construction."""

    machines: list[Instance]
    jobs: list[Job] = field(default_factory=list)

    def room(self, spec: JobSpec) -> list[Instance]:
        """Machines that run units and have room for one more rank of this job."""
        up = [m for m in self.machines if m.state in (InstanceState.READY, InstanceState.DRAINING)]
        fitting = [m for m in up if spec.resources.fits(m.capacity)]
        return [m for m in fitting if spec.resources_on(m.capacity).fits(free_capacity(m, self.jobs))]


@st.composite
def specs(draw: DrawFn) -> JobSpec:
    """What somebody asks for."""
    name = draw(st.sampled_from(["job", "job", "db"]))
    return JobSpec(
        name=name,
        user=draw(st.sampled_from(_USERS)),
        tags=draw(st.sampled_from([{}, {}, {"team": "ml"}, {"team": "web", "stage": "test"}])),
        command=("true",),
        target=draw(targets),
        resources=draw(amounts),
        nodes=draw(node_counts()),
        priority=draw(st.sampled_from([0, 0, 5])),
        interruptible=draw(st.booleans()),
        budget_usd=draw(st.sampled_from([None, None, None, 1.0])),
        instance_types=draw(st.sampled_from([(), (), (), ("small", "m*"), ("large",)])),
        preferred_types=("large",) if name == "db" else (),
        slower_elsewhere=2.0,
        exclusive=draw(st.sampled_from([False, False, False, True])),
        placement=draw(st.one_of(st.none(), st.none(), demands)),
    )


@st.composite
def snapshots(draw: DrawFn) -> Snapshot:
    """A small fleet at work."""
    machines = [draw(instances(number)) for number in range(1, draw(st.integers(0, 5)) + 1)]
    making = _Making(machines)
    for number in range(1, draw(st.integers(0, 8)) + 1):
        making.jobs.append(_job(draw, making, f"job-{number}"))
    busy = {a.instance_id for j in making.jobs if j.attempt for a in j.attempt.allocations if not a.released}
    idle_for = st.sampled_from([0.0, 100.0, 400.0])
    ready = InstanceState.READY
    machines = [
        m if m.id in busy or m.state is not ready else replace(m, idle_since=NOW - draw(idle_for)) for m in machines
    ]
    up = [m.id for m in machines if m.state in (InstanceState.READY, InstanceState.DRAINING)]
    unreadable = draw(st.sets(st.sampled_from([each.id for each in making.jobs] or [""]), max_size=2))
    return Snapshot(
        now=NOW,
        jobs=tuple(making.jobs),
        instances=tuple(machines),
        offers=draw(offers()),
        spend=draw(spends),
        backoffs=tuple(draw(st.lists(backoffs, max_size=2))),
        refused_quotas=tuple(draw(st.lists(refused_quotas, max_size=2, unique_by=lambda each: each.key))),
        reachable=frozenset(name for name in up if draw(st.sampled_from([True, True, True, False]))),
        offers_known=frozenset(["mock"]),
        engine_reachable=draw(st.sampled_from([True, True, True, False])),
        providers=frozenset(["mock"]),
        paused=draw(st.sampled_from(["", "", "", "", "upgrade"])),
        unreadable_secrets=dict.fromkeys(sorted(unreadable - {""}), "its key is gone"),
        run_times=RUN_TIMES_OF[draw(st.sampled_from([0.0, 0.0, 100.0, 5000.0]))],
    )


def _with_room(draw: DrawFn) -> Snapshot:
    """A small fleet, and one more machine (the last) with room for hours, which nothing keeps from being used."""
    fleet = draw(snapshots())
    machine = replace(
        draw(instances(6)),
        offer=offer_of("huge", draw(st.sampled_from([Market.ON_DEMAND, Market.RESERVED])), "a", None),
        state=InstanceState.READY,
        expires_at=NOW + 80_000.0,
        launched_at=NOW - 100.0,
        provider_id="cloud-6",
        seen_at=NOW,
        preempt_at=None,
    )
    return replace(
        fleet,
        instances=(*fleet.instances, machine),
        reachable=fleet.reachable | {machine.id},
        engine_reachable=True,
        paused="",
    )


def _small(draw: DrawFn, placement: Constraints | None, nodes: Nodes) -> JobSpec:
    """What one of ``ann``'s small jobs asks for, who may run anywhere but for its demands."""
    spec = replace(draw(specs()), user="ann", name="job", nodes=nodes, placement=placement)
    small = Resources(vcpus=1.0, memory_mib=512)
    return replace(spec, resources=small, budget_usd=None, instance_types=(), exclusive=False)


def _queued(number: int, spec: JobSpec) -> Job:
    return Job(id=f"job-{number}", spec=spec, state=JobState.QUEUED, submitted_at=NOW - 5.0)


@st.composite
def meetings(draw: DrawFn) -> Snapshot:
    """On a machine with room runs a job that avoids all named ``job``; two such, who mind nobody, are waiting."""
    fleet = _with_room(draw)
    plain = _small(draw, None, Nodes())
    older = replace(plain, name=draw(st.sampled_from(["job", "db"])), placement=Constraints(apart_from=("job",)))
    machine = fleet.instances[-1]
    held = Allocation(
        rank=0, instance_id=machine.id, resources=older.resources_on(machine.capacity), started_at=NOW - 50.0
    )
    attempt = Attempt(id="job-10.1", number=1, placed_at=NOW - 60.0, allocations=(held,))
    resident = replace(_queued(10, older), state=JobState.RUNNING, attempt=attempt, attempts_made=1)
    return replace(fleet, jobs=(*fleet.jobs, resident, _queued(11, plain), _queued(12, plain)))


@st.composite
def spreads(draw: DrawFn) -> Snapshot:
    """A job whose nodes are to be on different machines, or in different zones, waits beside a machine that has room
    for all of them."""
    fleet = _with_room(draw)
    spread = Constraints(spread=draw(st.sampled_from(["host", "zone"])))
    nodes = draw(st.sampled_from([Nodes(count=2, minimum=1, gang=False), Nodes(count=2, minimum=2)]))
    return replace(fleet, jobs=(*fleet.jobs, _queued(10, _small(draw, spread, nodes))))


spends = st.builds(
    Spend,
    day_usd=st.sampled_from([0.0, 0.5, 0.9]),
    month_usd=st.sampled_from([1.0, 2.5]),
    day_ends_at=st.sampled_from([NOW + 600.0, NOW + 50_000.0]),
    month_ends_at=st.just(NOW + 500_000.0),
    by_scope_day_usd=st.sampled_from([{}, by_user({"ann": 0.3}), by_user({"ann": 0.1, "bob": 0.4})]),
    by_scope_month_usd=st.sampled_from([{}, by_user({"ann": 0.6})]),
)
backoffs = st.builds(
    OfferBackoff,
    provider=st.just("mock"),
    zone=st.sampled_from(["", "a"]),
    instance_type=st.sampled_from(["", "small", "large"]),
    market=st.sampled_from(["", "spot"]),
    until_at=st.sampled_from([NOW - 5.0, NOW + 60.0]),
    error=st.sampled_from(["stockout", "quota exceeded"]),
)

refused_quotas = st.builds(
    RefusedQuota,
    provider=st.just("mock"),
    region=st.just("r"),
    quota=st.sampled_from(["of the smaller", "of the larger"]),
    vcpus=st.sampled_from([2.0, 8.0, 24.0]),
    instance_vcpus=st.just(2.0),
    until_at=st.sampled_from([NOW - 5.0, NOW + 50_000.0]),
)


def _job(draw: DrawFn, making: _Making, job_id: str) -> Job:
    spec = draw(specs())
    state = draw(st.sampled_from([*_WAITING, *_RUNNING]))
    failures = tuple(draw(st.lists(st.sampled_from([FailureCause.EVICTED, FailureCause.EXIT_CODE]), max_size=2)))
    job = Job(
        id=job_id,
        spec=spec,
        state=JobState.QUEUED,
        submitted_at=NOW - draw(st.sampled_from([0.0, 10.0, 1000.0])),
        failures=failures,
        cancelled_by=draw(st.sampled_from([None, None, None, None, "ann"])),
        not_before_at=draw(st.sampled_from([0.0, 0.0, NOW + 30.0])),
        spent_usd=draw(st.sampled_from([0.0, 0.0, 2.0])),
        attempts_made=len(failures),
    )
    if state in JOB_ON_INSTANCE:
        attempt = _attempt(draw, making, job)
        return job if attempt is None else replace(job, state=state, attempt=attempt, attempts_made=attempt.number)
    if state is JobState.AWAITING_INSTANCE:
        names = [m.id for m in making.machines if m.state is not InstanceState.TERMINATING] + ["inst-99"]
        return replace(job, state=state, awaiting=(draw(st.sampled_from(names)),), not_before_at=0.0)
    return replace(job, state=state)


def _attempt(draw: DrawFn, making: _Making, job: Job) -> Attempt | None:
    """Place the job's ranks where there is room, and let some of them have ended."""
    nodes, number = job.spec.nodes, job.attempts_made + 1
    attempt = Attempt(
        id=f"{job.id}.{number}", number=number, placed_at=NOW - draw(st.sampled_from([5.0, 900.0])), allocations=()
    )
    ranks = nodes.count if nodes.gang else draw(st.integers(nodes.minimum, nodes.count))
    for rank in range(ranks):
        placed = replace(job, state=JobState.RUNNING, attempt=attempt)
        room = _Making(making.machines, [*making.jobs, placed]).room(job.spec)
        if not room:
            return None
        machine = draw(st.sampled_from(room))
        held = Allocation(
            rank=rank,
            instance_id=machine.id,
            resources=job.spec.resources_on(machine.capacity),
            started_at=attempt.placed_at,
        )
        attempt = replace(attempt, allocations=(*attempt.allocations, held))
    attempt = replace(attempt, allocations=tuple(_maybe_ended(draw, held) for held in attempt.allocations))
    if draw(st.sampled_from([False, False, False, True])):
        return replace(attempt, stop_cause=FailureCause.EVICTED, stop_requested_at=NOW - 3.0)
    return attempt


def _maybe_ended(draw: DrawFn, held: Allocation) -> Allocation:
    outcome = draw(st.sampled_from(["runs", "runs", "runs", "done", *_CAUSES]))
    if outcome == "runs":
        return held
    cause = FailureCause(outcome) if outcome != "done" else None
    return replace(held, ended_at=NOW - 1.0, exit_code=0 if cause is None else 1, cause=cause)


_CAUSES = ["exit_code", "instance_lost", "preempted", "evicted"]


def _maybe(strategy: st.SearchStrategy[float]) -> st.SearchStrategy[float | None]:
    return st.one_of(st.none(), strategy)


@st.composite
def policies(draw: DrawFn) -> Policy:
    """Policies with tight limits in some places and none in others."""
    day = draw(_maybe(st.sampled_from([0.6, 1.2, 5.0])))
    users = {"default": ScopeBudget(per_day_usd=draw(_maybe(st.sampled_from([0.4, 0.6]))))}
    budgets = Budgets(
        per_hour_usd=draw(_maybe(st.sampled_from([0.1, 0.3, 0.6]))) if day is not None else None,
        per_day_usd=day,
        per_month_usd=draw(_maybe(st.sampled_from([5.0, 6.0]))),
        per_user=users if draw(st.booleans()) else {},
        per_tag=draw(st.sampled_from([{}, {}, {"team": ScopeBudget(per_day_usd=0.5)}])),
    )
    caps = Caps(
        max_instances=draw(st.sampled_from([3, 5, 20])),
        max_vcpus=draw(_maybe(st.sampled_from([6.0, 12.0]))),
        max_instances_per_type=draw(st.sampled_from([{}, {"large": 1}, {"small": 0}])),
        max_jobs_per_user=draw(st.sampled_from([None, None, 2])),
        max_price_usd_per_h=draw(_maybe(st.just(0.2))),
    )
    return simple(
        budgets=budgets,
        caps=caps,
        disruption=DisruptionPolicy(
            max_terminations_per_cycle=draw(st.sampled_from([1, 10])),
            evict_best_effort=draw(st.sampled_from([True, True, False])),
        ),
        retention=RetentionPolicy(spin_up_multiple=draw(st.sampled_from([1.0, 10.0]))),
    )


def free_capacity(instance: Instance, jobs: Sequence[Job]) -> Resources:
    """Return what of ``instance`` no unreleased allocation of ``jobs`` holds."""
    left = instance.capacity
    for job in jobs:
        if job.attempt is not None:
            for held in job.attempt.allocations:
                if held.instance_id == instance.id and not held.released:
                    left = left.minus(held.resources)
    return left
