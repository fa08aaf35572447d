"""Hypothesis strategies for provisioning: policies of every strategy and mapping, and snapshots that look back."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from hcloud.core.estimates import Classification, Estimate
from hcloud.core.model import (
    Allocation,
    Attempt,
    Instance,
    InstanceState,
    Job,
    JobState,
    Market,
    Nodes,
    Offer,
    Resources,
)
from hcloud.core.quality import Delivered, TypeQuality
from hcloud.forecast.fleet_tracker import FleetStats, Release
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy, ProvisioningPolicy
from tests.strategies_planner import NOW, instances, offer_of, offers, policies, snapshots, specs

_TYPES = ("small", "medium", "large", "huge")


@st.composite
def provisioned_policies(
    draw: DrawFn, strategies: tuple[str, ...] = ("sr", "odf", "odm", "hf", "hm"), mappings: tuple[str, ...] = ("p8",)
) -> Policy:
    """Policies that bite, with one of the paper's strategies."""
    provisioning = ProvisioningPolicy(
        strategy=draw(st.sampled_from(strategies)),
        mapping=draw(st.sampled_from(mappings)),
        full_server_vcpus=draw(st.sampled_from([4.0, 16.0])),
        soft_limit=draw(st.sampled_from([0.3, 0.65])),
        hard_limit=draw(st.sampled_from([0.7, 0.9])),
        wait_quantile=draw(st.sampled_from([0.5, 0.99])),
        assumed_quality_batch=draw(st.sampled_from([0.1, 0.5, 0.99])),
        unmeasured_quality_small=draw(st.sampled_from([0.5, 0.95])),
    )
    policy = draw(policies())
    disruption = replace(
        policy.disruption,
        optional_ranks_rest_s=draw(st.sampled_from([1.0, 600.0])),
    )
    return replace(policy, provisioning=provisioning, disruption=disruption)


@st.composite
def recents(draw: DrawFn) -> FleetStats:
    """Queues that grew or were quiet, releases of reserved room, types that delivered well or badly."""
    lengths = draw(st.lists(st.integers(0, 40), max_size=4))
    queue = tuple((NOW - 100.0 * (len(lengths) - place), length) for place, length in enumerate(lengths))
    gap = draw(st.sampled_from([1.0, 60.0]))
    count = draw(st.sampled_from([0, 3, 8]))
    releases = tuple(Release(at=NOW - gap * (count - n), vcpus=draw(st.sampled_from([1.0, 4.0]))) for n in range(count))
    seen = [
        Delivered(provider="mock", region="r", instance_type=name, market=Market.ON_DEMAND, quality=quality)
        for name in _TYPES
        for quality in [draw(st.sampled_from([0.2, 0.9]))] * draw(st.sampled_from([0, 3, 30]))
    ]
    return FleetStats(queue=queue, releases=releases, quality=TypeQuality.of(seen))


def classification(needed: float) -> Classification:
    """What is known of a job that needs this quality."""
    low, high = max(0.0, needed - 0.1), min(1.0, needed + 0.1)
    return Classification(quality_target=Estimate(value=needed, low=low, high=high))


@st.composite
def reserved_fleets(draw: DrawFn) -> Snapshot:
    """READY machines, most of them reserved, some with a unit on them, and single jobs that wait; full servers can be
    rented."""
    machines = [
        replace(draw(instances(n)), state=InstanceState.READY, preempt_at=None, expires_at=NOW + 3000.0, idle_since=NOW)
        for n in range(1, draw(st.integers(0, 3)) + 1)
    ]
    markets = st.sampled_from([Market.RESERVED, Market.ON_DEMAND])
    machines = [replace(m, offer=replace(m.offer, market=draw(markets)), provider_id="x") for m in machines]
    jobs = [_waiting(draw, n) for n in range(1, draw(st.integers(1, 5)) + 1)]
    jobs += [_running(draw, 10 + n, m) for n, m in enumerate(machines) if draw(st.booleans())]
    return Snapshot(
        now=NOW,
        jobs=tuple(jobs),
        instances=tuple(machines),
        offers=_shared(_without_spot(draw(offers())), draw(st.sampled_from([0.0, 0.0, 6.0, 12.0]))),
        reachable=frozenset(m.id for m in machines),
        offers_known=frozenset(["mock"]),
        providers=frozenset(["mock"]),
        applications={"calm": classification(0.1), "keen": classification(0.97)},
        fleet_stats=draw(recents()),
    )


@st.composite
def paid_and_rented(draw: DrawFn) -> Snapshot:
    """Single jobs of all sizes wait before an empty fleet; small machines are paid for, large ones can be rented."""
    paid = offer_of("small", Market.RESERVED, "a", draw(st.integers(1, 3)))
    large = offer_of("huge", Market.ON_DEMAND, "a", None)
    return Snapshot(
        now=NOW,
        jobs=tuple(_waiting(draw, n) for n in range(1, draw(st.integers(2, 4)) + 1)),
        offers=(large, paid),
        offers_known=frozenset(["mock"]),
        providers=frozenset(["mock"]),
        applications={"calm": classification(0.1), "keen": classification(0.97)},
    )


def _without_spot(drawn: tuple[Offer, ...]) -> tuple[Offer, ...]:
    full = offer_of("huge", Market.ON_DEMAND, "a", None)
    kept = [offer for offer in drawn if offer.market is not Market.SPOT and offer.key != full.key]
    return tuple(sorted([*kept, full], key=lambda offer: offer.key))


def _shared(drawn: tuple[Offer, ...], vcpus: float) -> tuple[Offer, ...]:
    """The offers as those of one host with so many vCPUs left, read just after what lives now was launched."""
    if not vcpus:
        return drawn
    left = Resources(vcpus=vcpus, memory_mib=int(vcpus * 2048), disk_gib=400.0)
    return tuple(replace(offer, pool="host", pool_free=left, priced_at=NOW) for offer in drawn)


def _waiting(draw: DrawFn, number: int) -> Job:
    spec = replace(draw(specs()), nodes=Nodes(), budget_usd=None)
    known, waited_s = draw(st.sampled_from(["", "calm", "keen"])), draw(st.sampled_from([0.0, 1000.0]))
    return Job(id=f"job-{number}", spec=spec, state=JobState.QUEUED, submitted_at=NOW - waited_s, application=known)


def _running(draw: DrawFn, number: int, machine: Instance) -> Job:
    part = draw(st.sampled_from([0.5, 1.0]))
    size = Resources(vcpus=machine.capacity.vcpus * part, memory_mib=256, disk_gib=1.0)
    held = Allocation(rank=0, instance_id=machine.id, resources=size, started_at=NOW - 50.0)
    job = _waiting(draw, number)
    spec = replace(job.spec, resources=size, instance_types=(), exclusive=False)
    attempt = Attempt(id=f"job-{number}.1", number=1, placed_at=NOW - 60.0, allocations=(held,))
    return replace(job, spec=spec, state=JobState.RUNNING, attempt=attempt, attempts_made=1)


@st.composite
def looking_back(draw: DrawFn) -> Snapshot:
    """A small fleet at work, some jobs of known applications, and what the last while has shown."""
    snapshot = draw(snapshots())
    known = {"calm": classification(0.1), "keen": classification(0.97)}
    jobs = tuple(replace(j, application=draw(st.sampled_from(["", "calm", "keen"]))) for j in snapshot.jobs)
    return replace(snapshot, jobs=jobs, applications=known, fleet_stats=draw(recents()))
