"""Plans with GPUs: one job has each at a time, never more than there are; bought for jobs that request them only."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from hcloud.core.model import Allocation, Attempt, Gpus, Job, JobSpec, JobState, Market, Nodes, Offer, Resources
from hcloud.core.resources import gpu_kind
from hcloud.planner.invariants import check_invariants
from hcloud.planner.plan import Finish, Launch, Place, Plan, Wait
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Caps, Policy
from tests.planner.apply_model import apply_ideally
from tests.planner.properties import Case, Planner, honest
from tests.planner.scenes import decide, job, machine, need, of, offer, running, scene, spec
from tests.planner.searching import catches_its_fault, hold
from tests.policies import simple
from tests.strategies_planner import _queued, _small, _with_room, policies

T4, A100 = Gpus(count=2, kind="t4", memory_gib=16.0), Gpus(count=4, kind="a100", memory_gib=40.0)
PLAIN = offer()


def gpu_offer(gpus: Gpus = T4, usd_per_h: float = 0.5, **changes: object) -> Offer:
    """Return an on-demand offer of 4 vCPUs with GPUs."""
    plain = offer(f"with-{gpus.kind}", 4.0, usd_per_h, **changes)
    capacity = replace(plain.instance_type.capacity, gpus=gpus)
    return replace(plain, instance_type=replace(plain.instance_type, capacity=capacity))


def asks(count: int = 1, kind: str = "", memory_gib: float = 0.0) -> JobSpec:
    """Return a spec with so many GPUs."""
    return spec(resources=replace(need(), gpus=Gpus(count=count, kind=kind, memory_gib=memory_gib)))


def test_a_job_with_gpus_goes_where_enough_are_free_of_its_kind_and_memory() -> None:
    there = (machine(1), machine(2, gpu_offer()), machine(3, gpu_offer(A100)))
    for wanted, where in ((asks(), "inst-2"), (asks(kind="a100*"), "inst-3"), (asks(memory_gib=24.0), "inst-3")):
        assert of(decide(scene(*there, job(1, asks=wanted))), Place)[0].ranks[0].instance_id == where
    busy = running(2, there[1], asks=asks(count=2))
    plan = decide(scene(*there[:2], busy, job(3, asks=asks()), PLAIN, gpu_offer()))
    assert of(plan, Launch)[0].offer.instance_type.name == "with-t4", "its GPUs are taken, though vCPUs are free"


def test_machines_with_gpus_are_bought_for_jobs_with_gpus_only() -> None:
    cheap = gpu_offer(usd_per_h=0.01)
    assert of(decide(scene(job(1), PLAIN, cheap)), Launch)[0].offer is PLAIN
    assert of(decide(scene(job(1, asks=asks()), PLAIN, cheap)), Launch)[0].offer is cheap
    named = spec(instance_types=("with-*",))
    assert of(decide(scene(job(1, asks=named), PLAIN, cheap)), Launch)[0].offer is cheap
    two = decide(scene(job(1, asks=asks()), job(2, asks=asks()), PLAIN, gpu_offer()))
    assert len(of(two, Launch)) == 1, "both fit on one machine"


def test_other_jobs_use_reserved_machines_with_gpus_unless_a_job_with_gpus_waits() -> None:
    paid, rented = machine(1, gpu_offer(market=Market.RESERVED)), machine(1, gpu_offer())
    assert of(decide(scene(paid, job(1))), Place)
    assert not of(decide(scene(rented, job(1))), Place)
    full = simple(caps=Caps(max_instances=1))
    plan = decide(scene(paid, job(1), replace(job(2, asks=asks(count=2)), state=JobState.QUEUED), PLAIN), full)
    assert {each.job_id for each in of(plan, Place)} == {"job-2"}


@pytest.mark.parametrize(
    ("wanted", "offers", "words"),
    [
        (asks(2, "h100"), (PLAIN, gpu_offer()), "no offer has 2 GPUs of kind h100; available: 2 x t4 16 GiB (with-t4)"),
        (asks(3, "t4"), (gpu_offer(),), "no offer has 3 GPUs of kind t4; available: 2 x t4 16 GiB (with-t4)"),
        (asks(1, memory_gib=80), (PLAIN,), "no offer has 1 GPU with 80 GiB; available: no GPUs"),
        (spec(), (gpu_offer(),), "every offer has GPUs, which are for jobs that request some"),
    ],
)
def test_a_job_whose_gpus_no_offer_has_fails_with_one_sentence(
    wanted: JobSpec, offers: tuple[Offer, ...], words: str
) -> None:
    finish = of(decide(scene(job(1, asks=wanted), *offers)), Finish)[0]
    assert words in finish.reason.text
    assert finish.state is JobState.FAILED


def test_invariants_name_a_gpu_that_two_units_hold_and_one_that_is_not_there() -> None:
    there = machine(1, gpu_offer(), idle_since=None)

    def held(number: int, *gpus: int) -> Job:
        found = running(number, there, asks=asks())
        assert found.attempt is not None
        parts = tuple(replace(each, gpus=gpus) for each in found.attempt.allocations)
        return replace(found, attempt=replace(found.attempt, allocations=parts))

    assert check_invariants(scene(there, held(1, 0), held(2, 1))) == []
    assert check_invariants(scene(there, held(1, 1), held(2, 1))) == ["GPUs [1] of inst-1 are held by two units"]
    assert "job-1 has GPUs (2,)" in check_invariants(scene(there, held(1, 2)))[0]


# ---------------------------------------------------------------------------------------------------- the property
_GPUS = {"medium": Gpus(count=1, kind="t4", memory_gib=16.0), "large": T4, "huge": A100}
_WANTED = (None, None, Gpus(), Gpus(count=2), Gpus(kind="t4"), Gpus(count=3, kind="a*"), Gpus(memory_gib=24.0))


@st.composite
def gpu_scenes(draw: DrawFn) -> Snapshot:
    """A random fleet in which most types have GPUs that some waiting jobs request. On one more machine, with room for
    hours, a job holds some of the GPUs, and two more jobs wait for GPUs."""
    fleet: Snapshot = _with_room(draw)
    waiting = (JobState.SUBMITTED, JobState.QUEUED)
    jobs = [_asking(each, draw(st.sampled_from(_WANTED))) if each.state in waiting else each for each in fleet.jobs]
    asked = _small(draw, None, Nodes())
    resident, *others = (_asking(_queued(number, asked), draw(st.sampled_from(_WANTED[2:]))) for number in (10, 11, 12))
    gpus = resident.spec.resources.gpus
    machines = [replace(each, offer=_with_gpus(each.offer)) for each in fleet.instances]
    if gpus is not None and gpus.accepts(A100):
        held = Allocation(
            rank=0,
            instance_id=machines[-1].id,
            resources=resident.spec.resources,
            started_at=machines[-1].launched_at,
            gpus=tuple(range(gpus.count)),
        )
        attempt = Attempt(id="job-10.1", number=1, placed_at=held.started_at or 0.0, allocations=(held,))
        resident = replace(resident, state=JobState.RUNNING, attempt=attempt, attempts_made=1)
    offers = tuple(_with_gpus(each) for each in fleet.offers)
    return replace(fleet, jobs=(*jobs, resident, *others), instances=tuple(machines), offers=offers)


def _with_gpus(given: Offer) -> Offer:
    kind = given.instance_type
    capacity = replace(kind.capacity, gpus=_GPUS.get(kind.name))
    return replace(given, instance_type=replace(kind, capacity=capacity))


def _asking(given: Job, wanted: Gpus | None) -> Job:
    return replace(given, spec=replace(given.spec, resources=replace(given.spec.resources, gpus=wanted)))


def gpus_are_exclusive(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """Each GPU is held by one unit, no machine gives more than it has or of another kind, and none is bought for jobs
    that request no GPU."""
    plan = planner(snapshot, policy)
    jobs, machines = {each.id: each for each in snapshot.jobs}, {each.id: each for each in snapshot.instances}
    held: Counter[tuple[str, int]] = Counter()
    for each in apply_ideally(snapshot, plan).jobs:
        for part in each.attempt.allocations if each.attempt is not None else ():
            held.update((part.instance_id, number) for number in part.gpus if not part.released)
    assert all(count == 1 for count in held.values()), held
    given: Counter[str] = Counter(machine for machine, _ in held)
    placed = [(jobs[a.job_id], rank) for a in plan.actions if isinstance(a, Place) for rank in a.ranks]
    for name, count in Counter(rank.instance_id for each, rank in placed for _ in range(_count(each.spec))).items():
        before = sum(_held(each, name) for each in snapshot.jobs)
        assert (
            before + count <= machines[name].capacity.gpu_count == max(given[name], machines[name].capacity.gpu_count)
        )
    for each, rank in placed:
        _suits(each.spec, machines[rank.instance_id].offer)
    for launch in (a for a in plan.actions if isinstance(a, Launch)):
        for name in (*launch.for_jobs, *launch.for_running):
            _suits(jobs[name].spec, launch.offer)
        total = sum(_count(jobs[name].spec) for name in launch.for_jobs)
        assert total <= launch.offer.instance_type.capacity.gpu_count


def _count(asked: JobSpec) -> int:
    return asked.resources.gpu_count


def _held(each: Job, machine_id: str) -> int:
    parts = each.attempt.allocations if each.attempt is not None else ()
    return sum(len(part.gpus) for part in parts if part.instance_id == machine_id and not part.released)


def _suits(asked: JobSpec, chosen: Offer) -> None:
    wanted, has = asked.resources.gpus, chosen.instance_type.capacity.gpus
    if wanted is not None:
        assert has is not None
        assert wanted.kind in ("", has.kind) or has.kind.startswith(wanted.kind.rstrip("*"))
        assert wanted.memory_gib <= has.memory_gib
    elif has is not None:
        assert asked.instance_types or chosen.market is Market.RESERVED


def forgets_gpus_in_use(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: what running units hold is counted without their GPUs."""
    jobs = []
    for each in snapshot.jobs:
        parts = each.attempt.allocations if each.attempt is not None else ()
        free = tuple(replace(part, resources=replace(part.resources, gpus=None)) for part in parts)
        attempt = replace(each.attempt, allocations=free) if each.attempt is not None else None
        jobs.append(replace(each, attempt=attempt))
    return honest(replace(snapshot, jobs=tuple(jobs)), policy)


def takes_any_kind(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: only the number of GPUs counts."""
    jobs = [
        _asking(each, wanted and Gpus(count=wanted.count))
        for each, wanted in ((each, each.spec.resources.gpus) for each in snapshot.jobs)
    ]
    return honest(replace(snapshot, jobs=tuple(jobs)), policy)


CASES = (
    Case(gpus_are_exclusive, lambda: forgets_gpus_in_use),
    Case(gpus_are_exclusive, lambda: takes_any_kind),
)


def test_gpus_are_exclusive_in_any_fleet() -> None:
    hold(CASES[:1], gpu_scenes(), policies(), 25)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.broken_by().__name__)
def test_a_planner_with_a_fault_in_gpus_is_caught(case: Case) -> None:
    catches_its_fault(case, gpu_scenes(), policies())


def test_a_waiting_job_with_gpus_keeps_its_reason_for_its_own_kind() -> None:
    full = simple(caps=Caps(max_instances=1))
    busy = running(1, machine(1, gpu_offer()), asks=asks(count=2))
    plan = decide(scene(machine(1, gpu_offer(), idle_since=None), busy, job(2, asks=asks()), gpu_offer()), full)
    assert of(plan, Wait)[0].reason.code == "cap_instances"


def test_gpus_of_an_amount_add_up_and_fit_by_number_kind_and_memory() -> None:
    one, both = Resources(gpus=Gpus(kind="t4")), Resources(gpus=T4)
    assert one.plus(one).gpu_count == 2
    assert one.fits(both) and not one.plus(both).fits(both)
    assert both.minus(one).minus(one).gpus is None
    assert not Resources(gpus=Gpus(kind="a*")).fits(both) and not Resources(gpus=Gpus(memory_gib=17.0)).fits(both)
    assert gpu_kind("NVIDIA Tesla T4") == "t4" and gpu_kind("nvidia-a100-80gb") == "a100-80gb"
