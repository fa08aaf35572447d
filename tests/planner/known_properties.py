"""Properties of plans that use estimates of jobs, and for each a seeded fault that it must catch.

The oracles compute independently: pressure is summed unit by unit from the classifications alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hcloud.classifier.interference import LOSS
from hcloud.core.model import BatchTarget, BestEffortTarget, Instance, InstanceState, Job, JobState, Resources
from hcloud.core.quality import encode
from hcloud.planner.fit.arq import slack_s
from hcloud.planner.fit.job_run_times import JobRunTimes
from hcloud.planner.plan import Action, Place, Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import AdmissionPolicy, PlacementPolicy, Policy
from tests.planner.apply_model import apply_ideally
from tests.planner.properties import (
    Case,
    Planner,
    _being_freed,
    _could_run,
    _of,
    _open_machines,
    a_plan_settles,
    disruption_stays_within_limits,
    drops_a_rank,
    ends_without_limit,
    forgets_what_it_awaits,
    forgets_what_runs,
    gangs_start_whole,
    honest,
    money_and_caps_hold,
    moody,
    names_and_order_do_not_matter,
    nothing_is_oversubscribed,
    places_on_anything,
    places_only_where_allowed,
    plans_in_listed_order,
    reasons_are_complete,
    same_again,
    speechless,
    spends_without_limits,
)
from tests.strategies_known import contended

DUST = 1e-6


# --------------------------------------------------------------------------------------------------------- the oracle
@dataclass(frozen=True)
class Unit:
    """One unit on an instance, and what its application causes and tolerates at the policy's confidence."""

    job: Job
    caused: dict[str, float]
    tolerated: dict[str, float]


def _unit(job: Job, snapshot: Snapshot, policy: Policy) -> Unit | None:
    known = snapshot.applications.get(job.application)
    if known is None:
        return None
    reach = 1.0 if policy.placement.neighbour_confidence == 0.9 else 0.0
    caused = {s: min(100.0, e.value + reach * (e.high - e.value)) for s, e in known.caused.items()}
    tolerated = {s: max(0.0, e.value - reach * (e.value - e.low)) for s, e in known.tolerated.items()}
    return Unit(job=job, caused=caused, tolerated=tolerated)


def _jobs_on(machine: str, snapshot: Snapshot) -> list[Job]:
    """Return the jobs on an instance, one entry per unit."""
    attempts = [(job, job.attempt) for job in snapshot.jobs if job.attempt is not None]
    return [job for job, a in attempts for held in a.allocations if held.instance_id == machine and not held.released]


def _strained(units: Sequence[Unit]) -> set[tuple[str, str]]:
    """Return the pairs of job and resource where the job is pressed beyond what it tolerates."""
    found = set()
    for at, unit in enumerate(units):
        for source, borne in unit.tolerated.items():
            pressed = min(100.0, sum(other.caused[source] for place, other in enumerate(units) if place != at))
            if pressed > borne + DUST:
                found.add((unit.job.id, source))
    return found


def _all_known(jobs: Iterable[Job], snapshot: Snapshot) -> bool:
    return all(job.application in snapshot.applications for job in jobs)


def _suits(job: Job, machine: Instance, snapshot: Snapshot, policy: Policy) -> bool:
    """Return whether ``job`` on ``machine`` would add no pair to those pressed beyond tolerance."""
    there = _jobs_on(machine.id, snapshot)
    units = [unit for each in (*there, job) if (unit := _unit(each, snapshot, policy)) is not None]
    return len(units) == len(there) + 1 and not _strained(units)


# ------------------------------------------------------------------------------------------------------- the properties
def tolerances_hold(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """No placement presses any unit beyond what it tolerates, unless its reason says so."""
    plan = planner(snapshot, policy)
    after, placed = apply_ideally(snapshot, plan), _of(plan, Place)
    for machine in after.instances:
        came = [action for action in placed if any(rank.instance_id == machine.id for rank in action.ranks)]
        there = _jobs_on(machine.id, after)
        if not came or not _all_known(there, after):
            continue
        before = [_unit(job, snapshot, policy) for job in _jobs_on(machine.id, snapshot)]
        strained = _strained([u for job in there if (u := _unit(job, after, policy)) is not None])
        said = " ".join(str(action.reason.numbers.get("relaxed", "")) for action in came)
        for job_id, source in strained - _strained([unit for unit in before if unit is not None]):
            assert source in said, f"{job_id} is pressed on {source} on {machine.id}, and nobody says so: {said!r}"


def best_effort_relaxes_no_tolerance(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """Best-effort jobs never press a neighbour beyond what it tolerates."""
    jobs = {job.id: job for job in snapshot.jobs}
    for action in _of(planner(snapshot, policy), Place):
        if isinstance(jobs[action.job_id].spec.target, BestEffortTarget):
            assert "neighbours" not in str(action.reason.numbers.get("relaxed", "")), action


def no_job_waits_while_an_instance_suits(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """A job of one node never waits while an instance with room suits it; one with a target and no slack left does not
    wait while any instance has room."""
    after = apply_ideally(snapshot, planner(snapshot, policy))
    promised = {i for job in after.jobs for i in job.awaiting}
    gangs_wait = any(job.spec.nodes.count > 1 and job.state is JobState.QUEUED for job in after.jobs)
    limits = (*policy.budgets.per_user.values(), *policy.budgets.per_tag.values())
    limited = any(limit.per_day_usd is not None for limit in limits)
    if after.paused or gangs_wait or limited or policy.caps.max_jobs_per_user is not None:
        return
    taken = promised | _being_freed(after)
    for job in (each for each in after.jobs if _waits(each, after)):
        room = [m for m in _open_machines(after, policy) if m.id not in taken and _could_run(job, m, after, policy)]
        suited = [machine.id for machine in room if _suits(job, machine, after, policy)]
        assert not suited, f"{job.id} waits for {job.wait_code!r} beside {suited}"
        if _impatient(job, after, policy):
            assert not room, f"{job.id} is out of patience and waits beside {[m.id for m in room]}"


def _waits(job: Job, snapshot: Snapshot) -> bool:
    ready = job.state is JobState.QUEUED and job.not_before_at <= snapshot.now and job.cancelled_by is None
    ready = ready and job.id not in snapshot.unreadable_secrets
    return ready and job.application in snapshot.applications


def _impatient(job: Job, snapshot: Snapshot, policy: Policy) -> bool:
    """Return whether even the longest patience that any rule allows is used up."""
    assert job.queued_at is not None
    promise = isinstance(job.spec.target, BatchTarget)
    return promise and snapshot.now - job.queued_at > policy.admission.patience_cap_s


def no_job_starves(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """With queues by quality, no new job is started where a job without slack could have run and is left waiting."""
    if policy.admission.queues != "by_quality" or policy.caps.max_jobs_per_user is not None:
        return
    plan = planner(snapshot, policy)
    jobs, after = {job.id: job for job in snapshot.jobs}, apply_ideally(snapshot, plan)
    late = [job for job in after.jobs if _waits(job, after) and _impatient(job, after, policy)]
    machines = {machine.id: machine for machine in snapshot.instances}
    for action in _of(plan, Place):
        job, rank = jobs[action.job_id], action.ranks[0]
        if job.state is JobState.QUEUED and job.queued_at == snapshot.now and job.spec.nodes.count == 1:
            passed = [each.id for each in late if _takes(each, rank.resources, machines[rank.instance_id])]
            assert not passed, f"{passed} have lost patience, and {job.id} is started on {rank.instance_id}"


def _takes(job: Job, amount: Resources, machine: Instance) -> bool:
    """Return whether ``job`` could have started on ``machine`` instead of something that got ``amount`` there."""
    demands = job.spec.nodes.count > 1 or job.spec.exclusive or job.spec.vcpus_within or job.spec.placement
    return not demands and job.spec.may_use(machine.offer) and job.spec.resources.fits(amount)


def unsuited_machines_wait_their_turn(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """A job goes where interference exceeds tolerance only if no job is left that suits that instance."""
    plan = planner(snapshot, policy)
    jobs, after = {job.id: job for job in snapshot.jobs}, apply_ideally(snapshot, plan)
    promised = {i for job in (*snapshot.jobs, *after.jobs) for i in job.awaiting}
    for action in _of(plan, Place):
        job = jobs[action.job_id]
        if job.spec.nodes.count == 1 and action.reason.numbers.get("relaxed"):
            open_now = [m for m in _open_machines(after, policy) if m.id not in promised | _being_freed(after)]
            better = [
                m.id
                for m in open_now
                if m.id != action.ranks[0].instance_id
                and _could_run(job, m, after, policy)
                and _suits(job, m, after, policy)
                and m.state is InstanceState.READY
            ]
            assert not better, f"{job.id} went to {action.ranks[0].instance_id}, though {better} suits it"


def up_only_past_an_empty_queue(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """With queues by quality, a job with slack goes to a pool above its class only if no job of a class above is left
    waiting that the same room would suit (ARQ: "up if the queue above is empty")."""
    if policy.admission.queues != "by_quality" or policy.caps.max_jobs_per_user is not None:
        return
    plan = planner(snapshot, policy)
    jobs, after = {job.id: job for job in snapshot.jobs}, apply_ideally(snapshot, plan)
    machines = {machine.id: machine for machine in _open_machines(after, policy)}
    left = [job for job in after.jobs if _waits(job, after) and not isinstance(job.spec.target, BestEffortTarget)]
    for action in _of(plan, Place):
        job, rank = jobs[action.job_id], action.ranks[0]
        machine = machines.get(rank.instance_id)
        if (
            machine is None
            or job.state is not JobState.QUEUED
            or job.spec.nodes.count > 1
            or _is_late(job, after, policy)
        ):
            continue
        others = replace(after, jobs=tuple(each for each in after.jobs if each.id != job.id))
        own = _class_of(job, snapshot, policy)
        if own is None or not _all_known(_jobs_on(machine.id, others), others):
            continue
        if _pool_of(machine, others, policy) <= own:
            continue
        passed = [
            each.id
            for each in left
            if (_class_of(each, snapshot, policy) or 0) > own
            and _takes(each, rank.resources, machine)
            and _suits(each, machine, others, policy)
        ]
        assert not passed, f"{job.id} went up to {machine.id}, and {passed} of a queue above could have used it"


def _class_of(job: Job, snapshot: Snapshot, policy: Policy) -> int | None:
    known = snapshot.applications.get(job.application)
    return None if known is None else _level(known.quality_target.value, snapshot, policy)


def _pool_of(machine: Instance, snapshot: Snapshot, policy: Policy) -> int:
    """Return the class of the quality an instance offers beside its present units, all known."""
    units = [snapshot.applications[job.application] for job in _jobs_on(machine.id, snapshot)]
    pressed = (
        [min(99.0, sum(unit.caused[source].value for unit in units)) for source in units[0].caused] if units else []
    )
    allowed = policy.placement.neighbour_tolerance / LOSS
    return _level(max(0.0, 1.0 - encode(pressed) / allowed), snapshot, policy)


def _level(quality: float, snapshot: Snapshot, policy: Policy) -> int:
    """Return the class of a quality: quantiles of what known applications need, and of an even spread."""
    count = policy.admission.classes
    needed = [known.quality_target.value for known in snapshot.applications.values()]
    below = sum(each < quality for each in [*needed, *((place + 0.5) / count for place in range(count))])
    return min(count - 1, count * below // (len(needed) + count))


def _is_late(job: Job, snapshot: Snapshot, policy: Policy) -> bool:
    assert job.queued_at is not None
    placement = policy.placement
    run_times = JobRunTimes(snapshot, placement.neighbour_tolerance, placement.confidence)
    slack = slack_s(job, job.queued_at, run_times.limits(job), policy.admission)
    return snapshot.now - job.queued_at >= slack


def sizes_are_the_least_that_do(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """Sizes chosen by the planner are within bounds, and one whole step less would miss the target; other sizes are as
    requested."""
    jobs = {job.id: job for job in snapshot.jobs}
    for action in _of(planner(snapshot, policy), Place):
        spec, asked = jobs[action.job_id].spec, jobs[action.job_id].spec.resources.vcpus
        for rank in action.ranks:
            got = rank.resources.vcpus
            known = snapshot.applications.get(jobs[action.job_id].application)
            blind = known is None or not known.by_step or policy.placement.order != "quasar"
            # A type that was not measured is estimated from those that were.
            if spec.vcpus_within is None or blind or not known.by_type:  # type: ignore[union-attr]
                assert got == asked or spec.exclusive, f"{action.job_id} gets {got} of {asked}"
                continue
            low, high = spec.vcpus_within
            assert low <= got <= high, f"{action.job_id} gets {got} of {low}..{high}"
            assert known is not None
            below = [step for step in (low, asked, 1.0, 2.0) if low <= step < got]
            rise = {float(name.split()[0]): each.value for name, each in known.by_step.items()}
            flat = [step for step in below if step in rise and got in rise and rise[step] == rise[got]]
            assert not flat, f"{action.job_id} gets {got}, and {flat} would be as good"


# ---------------------------------------------------------------------------------------------------- the seeded faults
def gives_the_most(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: grants the most that is allowed."""
    plan, within = honest(snapshot, policy), {job.id: job.spec.vcpus_within for job in snapshot.jobs}

    def most(action: Action) -> Action:
        bounds = within.get(action.job_id) if isinstance(action, Place) else None
        if bounds is None or not isinstance(action, Place):
            return action
        ranks = [replace(rank, resources=replace(rank.resources, vcpus=bounds[1])) for rank in action.ranks]
        return replace(action, ranks=tuple(ranks))

    return replace(plan, actions=tuple(most(action) for action in plan.actions))


def ignores_neighbours(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: places by type alone."""
    return honest(snapshot, replace(policy, placement=PlacementPolicy(order="interference_oblivious")))


def treats_all_as_targets(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: treats best-effort jobs like jobs with a target."""
    target = BatchTarget(finish_within_s=50_000.0)
    jobs = tuple(replace(job, spec=replace(job.spec, target=target)) for job in snapshot.jobs)
    return honest(replace(snapshot, jobs=jobs), policy)


def blocks_easy_behind_demanding(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: stops at the first job in the queue that cannot be placed."""
    plan = honest(snapshot, policy)
    waiting = {job.id for job in apply_ideally(snapshot, plan).jobs if job.state is JobState.QUEUED}
    kept = [action for action in plan.actions if not (waiting and isinstance(action, Place))]
    return replace(plan, actions=tuple(kept))


def has_endless_patience(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: slack never ends."""
    endless = AdmissionPolicy(queues=policy.admission.queues, patience_s=1e8, patience_cap_s=1e8)
    calm = {name: replace(known, measure=None) for name, known in snapshot.applications.items()}
    jobs = tuple(replace(job, spec=replace(job.spec, target=BatchTarget())) for job in snapshot.jobs)
    return honest(replace(snapshot, applications=calm, jobs=jobs), replace(policy, admission=endless))


def keeps_one_queue(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: serves jobs of all classes in the order in which they came."""
    return honest(snapshot, replace(policy, admission=replace(policy.admission, queues="one")))


def serves_the_newest_first(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: serves the newest job first."""
    now = snapshot.now
    jobs = tuple(
        replace(job, submitted_at=-job.submitted_at, queued_at=2 * now - (job.queued_at or now))
        if job.state is JobState.QUEUED
        else job
        for job in snapshot.jobs
    )
    return honest(replace(snapshot, jobs=jobs), policy)


def is_content_with_the_first(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: always claims to have relaxed something, and takes the first instance with room."""
    plan = honest(snapshot, replace(policy, placement=PlacementPolicy(order="first_fit")))
    numbers = {"relaxed": "cpu on itself by 1"}
    actions = [
        replace(a, reason=replace(a.reason, numbers={**a.reason.numbers, **numbers})) if isinstance(a, Place) else a
        for a in plan.actions
    ]
    return replace(plan, actions=tuple(actions))


CASES = (
    Case(tolerances_hold, lambda: ignores_neighbours),
    Case(best_effort_relaxes_no_tolerance, lambda: treats_all_as_targets),
    Case(no_job_waits_while_an_instance_suits, lambda: blocks_easy_behind_demanding),
    Case(no_job_waits_while_an_instance_suits, lambda: has_endless_patience, seed=1),
    Case(unsuited_machines_wait_their_turn, lambda: is_content_with_the_first),
    Case(no_job_starves, lambda: serves_the_newest_first, seed=2),
    Case(up_only_past_an_empty_queue, lambda: keeps_one_queue, seed=7, scenes=contended()),
    Case(sizes_are_the_least_that_do, lambda: gives_the_most),
    Case(a_plan_settles, lambda: forgets_what_it_awaits),
    Case(names_and_order_do_not_matter, lambda: plans_in_listed_order),
    Case(same_again, moody),
    Case(money_and_caps_hold, lambda: spends_without_limits),
    Case(places_only_where_allowed, lambda: places_on_anything),
    Case(nothing_is_oversubscribed, lambda: forgets_what_runs),
    Case(gangs_start_whole, lambda: drops_a_rank),
    Case(disruption_stays_within_limits, lambda: ends_without_limit),
    Case(reasons_are_complete, lambda: speechless),
)
BARRING = frozenset({tolerances_hold, best_effort_relaxes_no_tolerance})
"""Properties of placement orders that keep jobs from instances where interference would exceed tolerance."""
OWN_CASES = CASES[:8]
"""The cases whose fault is seeded in this file; the faults of the others are seeded elsewhere."""
