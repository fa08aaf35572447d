"""Properties of plans for jobs with placement constraints (zones, labels, anti-affinity, spread), and seeded faults."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import combinations

from hcloud.core.model import Allocation, Constraints, Job
from hcloud.planner.plan import Launch, Place, Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import Policy
from tests.planner.apply_model import apply_ideally
from tests.planner.properties import Case, Planner, _apart, honest
from tests.strategies_planner import meetings, spreads


def zones_and_labels_are_as_demanded(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """Nothing is started on, or launched in, a zone or instance that a job's constraints exclude."""
    plan = planner(snapshot, policy)
    jobs, machines = {j.id: j for j in snapshot.jobs}, {i.id: i for i in snapshot.instances}
    for action in plan.actions:
        if isinstance(action, Place):
            chosen = [(jobs[action.job_id], machines[rank.instance_id].offer) for rank in action.ranks]
        elif isinstance(action, Launch):
            chosen = [(jobs[job_id], action.offer) for job_id in action.for_jobs]
        else:
            continue
        for job, offer in chosen:
            where = job.spec.placement or Constraints()
            assert not where.zones or any(fnmatchcase(offer.zone, each) for each in where.zones), (job.id, offer.key)
            labels = offer.instance_type.labels
            assert all(fnmatchcase(labels[name], wanted) for name, wanted in where.labels), (job.id, offer.key)


def anti_affinity_holds(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """No two jobs of a user share an instance if one must be kept apart from the other."""
    plan = planner(snapshot, policy)
    before, after = _meetings(snapshot), _meetings(apply_ideally(snapshot, plan))
    assert not after - before, f"they meet: {after - before}"
    jobs = {job.id: job for job in snapshot.jobs}
    for launch in (a for a in plan.actions if isinstance(a, Launch)):
        company = [jobs[job_id] for job_id in launch.for_jobs]
        assert not [pair for pair in combinations(company, 2) if _apart(*pair)], f"{launch.for_jobs} would meet"


def _meetings(snapshot: Snapshot) -> set[tuple[str, int, str, str]]:
    """Return every clash of two units: instance, pair of units, and user."""
    found: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for name, units in _units(snapshot).items():
        for one, other in combinations(sorted(units, key=lambda job: job.id), 2):
            if _apart(one, other):
                found[name, one.id, other.id] += 1
    return {(name, count, one, other) for (name, one, other), most in found.items() for count in range(most)}


def _units(snapshot: Snapshot) -> dict[str, list[Job]]:
    units: defaultdict[str, list[Job]] = defaultdict(list)
    for job in snapshot.jobs:
        for held in job.attempt.allocations if job.attempt else ():
            if not held.released:
                units[held.instance_id].append(job)
    return units


def nodes_spread_as_demanded(planner: Planner, snapshot: Snapshot, policy: Policy) -> None:
    """The nodes a plan starts, or launches instances for, are on different instances or in different zones, as
    required."""
    plan, machines = planner(snapshot, policy), {i.id: i for i in snapshot.instances}
    placed = {a.job_id: [r.instance_id for r in a.ranks] for a in plan.actions if isinstance(a, Place)}
    for job in snapshot.jobs:
        spread = job.spec.placement.spread if job.spec.placement is not None else "none"
        if spread != "none":
            new = placed.get(job.id, [])
            old = [held.instance_id for held in _running(job) if job.attempt is not None and new]
            zones = [machines[name].offer.zone for name in (*old, *new)]
            where = zones if spread == "zone" else [*old, *new]
            doubled = len(where) - len(set(where))
            before = len(old) - len({machines[n].offer.zone for n in old} if spread == "zone" else set(old))
            assert doubled <= before, f"{job.id} ({spread}) on {where}"
            for launch in (a for a in plan.actions if isinstance(a, Launch)):
                assert launch.for_jobs.count(job.id) <= 1, f"{job.id} twice on one new machine"
            bought = [a.offer.zone for a in plan.actions if isinstance(a, Launch) and job.id in a.for_jobs]
            assert spread != "zone" or len(set(bought)) == len(bought), f"{job.id} awaits {bought}"


def _running(job: Job) -> Iterable[Allocation]:
    return [held for held in (job.attempt.allocations if job.attempt else ()) if not held.released]


# ---------------------------------------------------------------------------------------------------- the seeded faults
def _without(snapshot: Snapshot, **forgotten: object) -> Snapshot:
    jobs = tuple(
        replace(job, spec=replace(job.spec, placement=replace(job.spec.placement, **forgotten)))  # type: ignore[arg-type]
        if job.spec.placement is not None
        else job
        for job in snapshot.jobs
    )
    return replace(snapshot, jobs=jobs)


def ignores_zones_and_labels(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores zones and labels."""
    return honest(_without(snapshot, zones=(), labels=()), policy)


def ignores_running_anti_affinity(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: checks the anti-affinity of new jobs only, not of those that run."""
    jobs = tuple(
        replace(job, spec=replace(job.spec, placement=None)) if job.attempt is not None else job
        for job in snapshot.jobs
    )
    return honest(replace(snapshot, jobs=jobs), policy)


def ignores_spread(snapshot: Snapshot, policy: Policy) -> Plan:
    """Seeded fault: ignores spread."""
    return honest(_without(snapshot, spread="none"), policy)


CASES = (
    Case(zones_and_labels_are_as_demanded, lambda: ignores_zones_and_labels, seed=303),
    Case(anti_affinity_holds, lambda: ignores_running_anti_affinity, scenes=meetings()),
    Case(nodes_spread_as_demanded, lambda: ignores_spread, scenes=spreads()),
)
