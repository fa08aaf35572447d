"""An ideal world that applies a plan to its own snapshot: no action is refused and nothing else happens.

`apply_ideally` does what the real applier does when everything works. `pass_time` lets instances boot, units run and
stops take effect. So a test can drive a whole fleet without store, provider or engine.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hcloud.core.model import (
    JOB_ON_INSTANCE,
    Allocation,
    Attempt,
    Correction,
    FailureCause,
    Instance,
    InstanceState,
    Job,
    JobState,
    Offer,
    move_instance,
    move_job,
    with_memory,
)
from hcloud.core.resources import free_gpus
from hcloud.core.rows import number_of
from hcloud.planner.plan import (
    MET,
    Action,
    Classify,
    Correct,
    Drain,
    Enqueue,
    Finish,
    Launch,
    Miss,
    Pause,
    Place,
    Plan,
    Preempted,
    Profile,
    Renew,
    Resize,
    StopAttempt,
    StopRank,
    Terminate,
    Wait,
)
from hcloud.planner.snapshot import Snapshot


@dataclass
class World:
    """The rows as they change; launched instances are numbered from the highest id on."""

    now: float
    jobs: dict[str, Job]
    instances: dict[str, Instance]
    offers: dict[tuple[str, str, str, str], Offer]

    def carry_out(self, action: Action) -> None:
        _EFFECTS[type(action)](self, action)


def apply_ideally(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Return the snapshot after every action of `plan` was carried out."""
    world = World(
        now=snapshot.now,
        jobs={job.id: job for job in snapshot.jobs},
        instances={instance.id: instance for instance in snapshot.instances},
        offers={offer.key: offer for offer in snapshot.offers},
    )
    for action in plan.actions:
        world.carry_out(action)
    jobs = sorted(world.jobs.values(), key=lambda job: number_of(job.id))
    instances = sorted(world.instances.values(), key=lambda instance: number_of(instance.id))
    return replace(snapshot, jobs=tuple(jobs), instances=tuple(instances), offers=tuple(world.offers.values()))


def _enqueue(world: World, action: Enqueue) -> None:
    job = world.jobs[action.job_id]
    assert job.attempt is None or job.attempt.over, f"{job.id} is queued while its attempt runs"
    failures = (*job.failures, action.failure) if action.failure else job.failures
    world.jobs[job.id] = move_job(
        job,
        JobState.QUEUED,
        queued_at=world.now,
        not_before_at=action.not_before_at,
        awaiting=(),
        failures=failures,
        spec=with_memory(job.spec, action.memory_mib),
        memory_mib=action.memory_mib or job.memory_mib,
        wait_code="",
        reserved=(),
    )


def _preempted(world: World, action: Preempted) -> None:
    job = world.jobs[action.job_id]
    assert job.attempt is None or job.attempt.over, f"{job.id} is preempted while its attempt runs"
    failures = (*job.failures, action.failure)
    world.jobs[job.id] = move_job(
        job, JobState.PREEMPTED, not_before_at=action.not_before_at, failures=failures, wait_code="", reserved=()
    )


def _wait(world: World, action: Wait) -> None:
    job = world.jobs[action.job_id]
    told, known = (action.reason.code, action.reserved), (job.wait_code, job.reserved)
    assert told != known, f"{job.id} is told again that it waits for {job.wait_code}"
    world.jobs[job.id] = replace(job, wait_code=action.reason.code, reserved=action.reserved)


def _miss(world: World, action: Miss) -> None:
    job, code = world.jobs[action.job_id], "" if action.reason.code == MET else action.reason.code
    assert job.unmet_code != code, f"{job.id} is recorded again as missing its target for {code}"
    world.jobs[job.id] = replace(job, unmet_code=code)


def _finish(world: World, action: Finish) -> None:
    job = world.jobs.pop(action.job_id)
    assert job.attempt is None or job.attempt.over, f"{job.id} is ended while its attempt runs"
    move_job(job, action.state)
    if action.state is not JobState.SUCCEEDED:
        _end_runs(world, job)


def _profile(world: World, action: Profile) -> None:
    job = world.jobs[action.job_id]
    beside = job.state in JOB_ON_INSTANCE
    assert beside or job.state is JobState.SUBMITTED, f"{job.id} is {job.state} and profiled"
    first = 1 + max(number_of(job_id) for job_id in world.jobs)
    names = tuple(f"job-{number}" for number in range(first, first + len(action.runs)))
    for name, spec in zip(names, action.runs, strict=True):
        world.jobs[name] = Job(id=name, spec=spec, state=JobState.SUBMITTED, submitted_at=world.now)
    runs = (*job.profile_runs, *names)
    told = {} if beside else {"application": action.application, "wait_code": action.reason.code}
    world.jobs[job.id] = replace(job, profile_runs=runs, **told)


def _classify(world: World, action: Classify) -> None:
    job = world.jobs[action.job_id]
    if job.state is not JobState.SUBMITTED:
        assert job.application != action.application, f"{job.id} is classified as what it is already"
        world.jobs[job.id] = replace(job, application=action.application)
        return
    world.jobs[job.id] = move_job(job, JobState.CLASSIFIED, application=action.application, wait_code="", reserved=())
    _end_runs(world, job)


def _end_runs(world: World, job: Job) -> None:
    for name in job.profile_runs:
        if name in world.jobs:
            world.jobs[name] = replace(world.jobs[name], cancelled_by="hcloud")


def _place(world: World, action: Place) -> None:
    job = world.jobs[action.job_id]
    taken: dict[str, set[int]] = {rank.instance_id: _gpus_in_use(world, rank.instance_id) for rank in action.ranks}
    new: tuple[Allocation, ...] = ()
    for r in action.ranks:
        count = world.instances[r.instance_id].capacity.gpu_count
        gpus = free_gpus(count, taken[r.instance_id], r.resources.gpu_count)
        taken[r.instance_id].update(gpus)
        new += (Allocation(rank=r.rank, instance_id=r.instance_id, resources=r.resources, gpus=gpus),)
    for rank in action.ranks:
        world.instances[rank.instance_id] = replace(world.instances[rank.instance_id], idle_since=None)
    if job.attempt is not None and not job.attempt.over:
        old = {a.rank: a for a in job.attempt.allocations}
        new = tuple(replace(a, relaunch=old[a.rank].relaunch + 1 if a.rank in old else 0) for a in new)
        kept = tuple(a for a in job.attempt.allocations if a.rank not in {n.rank for n in new})
        grown = replace(job.attempt, allocations=tuple(sorted((*kept, *new), key=lambda a: a.rank)))
        world.jobs[job.id] = replace(job, attempt=grown)
        return
    number = job.attempts_made + 1
    attempt = Attempt(id=f"{job.id}.{number}", number=number, placed_at=world.now, allocations=new)
    world.jobs[job.id] = move_job(
        job, JobState.PLACED, attempt=attempt, attempts_made=number, awaiting=(), wait_code="", reserved=()
    )


def _gpus_in_use(world: World, instance_id: str) -> set[int]:
    held = (each for job in world.jobs.values() if job.attempt is not None for each in job.attempt.allocations)
    return {number for each in held if each.instance_id == instance_id and not each.released for number in each.gpus}


def _stop(world: World, action: StopAttempt) -> None:
    job = world.jobs[action.job_id]
    assert job.attempt is not None and not job.attempt.over, f"{job.id} has nothing to stop"
    attempt = replace(job.attempt, stop_cause=action.cause, stop_requested_at=world.now)
    world.jobs[job.id] = replace(job, attempt=attempt)


def _correct(world: World, action: Correct) -> None:
    job = world.jobs[action.job_id]
    assert job.attempt is not None, f"{job.id} has nothing to correct"
    made = Correction(at=world.now, step=action.step, attempt=job.attempt.id, instances=action.instances)
    world.jobs[job.id] = replace(job, corrections=(*job.corrections, made))


def _change_rank(world: World, job_id: str, rank: int, **changes: Any) -> None:
    job = world.jobs[job_id]
    assert job.attempt is not None
    ranks = tuple(replace(a, **changes) if a.rank == rank else a for a in job.attempt.allocations)
    world.jobs[job.id] = replace(job, attempt=replace(job.attempt, allocations=ranks))


def _resize(world: World, action: Resize) -> None:
    for each in action.ranks:
        pinned = {} if each.cpus is None else {"cpus": each.cpus}
        _change_rank(world, action.job_id, each.rank, resources=each.resources, **pinned)


def _pause(world: World, action: Pause) -> None:
    job = world.jobs[action.job_id]
    held = job.attempt.held(action.rank) if job.attempt is not None else None
    assert held is not None
    if action.undo:
        changes = {"resumed_at": world.now, "paused_s": held.total_paused_s(world.now)}
        _change_rank(world, job.id, action.rank, paused_at=None, paused_text="", **changes)
    else:
        _change_rank(world, job.id, action.rank, paused_at=world.now, paused_text=action.reason.text)


def _stop_rank(world: World, action: StopRank) -> None:
    yielded_at = world.now if action.yields else None
    changes = {"ended_at": world.now, "cause": FailureCause.EVICTED, "yielded_at": yielded_at}
    _change_rank(world, action.job_id, action.rank, **changes)


def _launch(world: World, action: Launch) -> None:
    number = 1 + max((number_of(instance_id) for instance_id in world.instances), default=0)
    instance = Instance(
        id=f"inst-{number}",
        offer=action.offer,
        state=InstanceState.REQUESTED,
        token=f"token-{number}",
        requested_at=world.now,
        expires_at=action.expires_at,
        for_running=action.for_running,
    )
    world.instances[instance.id] = instance
    offered = world.offers[action.offer.key]
    if offered.available is not None:
        offered = replace(offered, available=offered.available - 1)
    parts = [
        replace(each, free=each.free - 1, used=each.used + 1) if each.ends_at == action.offer.ends_at else each
        for each in offered.committed
    ]
    world.offers[offered.key] = replace(offered, committed=tuple(parts))
    for job_id in action.for_jobs:
        job = world.jobs[job_id]
        awaiting = (*job.awaiting, instance.id)
        world.jobs[job_id] = move_job(job, JobState.AWAITING_INSTANCE, awaiting=awaiting, wait_code="", reserved=())


def _renew(world: World, action: Renew) -> None:
    instance = world.instances[action.instance_id]
    world.instances[instance.id] = replace(instance, expires_at=action.expires_at)


def _drain(world: World, action: Drain) -> None:
    instance = world.instances[action.instance_id]
    state = InstanceState.READY if action.undo else InstanceState.DRAINING
    world.instances[instance.id] = move_instance(instance, state)


def _terminate(world: World, action: Terminate) -> None:
    instance = world.instances[action.instance_id]
    world.instances[instance.id] = move_instance(instance, InstanceState.TERMINATING)


_EFFECTS: dict[type, Callable[[World, Any], None]] = {
    Enqueue: _enqueue,
    Preempted: _preempted,
    Wait: _wait,
    Miss: _miss,
    Finish: _finish,
    Profile: _profile,
    Classify: _classify,
    Place: _place,
    StopAttempt: _stop,
    Correct: _correct,
    Resize: _resize,
    Pause: _pause,
    StopRank: _stop_rank,
    Launch: _launch,
    Renew: _renew,
    Drain: _drain,
    Terminate: _terminate,
}


# ------------------------------------------------------------------------------------------------------- time goes by
def pass_time(snapshot: Snapshot, seconds: float, *, run_s: float = 60.0) -> Snapshot:
    """Return the world `seconds` later: instances boot in their typical time, units end after `run_s` or when stopped.

    Terminating instances are gone, and their units are lost.
    """
    now = snapshot.now + seconds
    machines = [m for i in snapshot.instances if (m := _machine_later(i, now)) is not None]
    alive = {machine.id for machine in machines}
    jobs = tuple(_job_later(job, now, alive, run_s) for job in snapshot.jobs)
    busy = {a.instance_id for j in jobs for a in (j.attempt.allocations if j.attempt else ()) if not a.released}
    machines = [_idle_later(machine, busy, now) for machine in machines]
    ready = frozenset(m.id for m in machines if m.state in (InstanceState.READY, InstanceState.DRAINING))
    return replace(snapshot, now=now, jobs=jobs, instances=tuple(machines), reachable=ready)


def _machine_later(instance: Instance, now: float) -> Instance | None:
    if instance.state is InstanceState.TERMINATING or instance.expires_at <= now:
        return None
    if instance.state is InstanceState.REQUESTED:
        return move_instance(instance, InstanceState.BOOTING, provider_id=f"cloud-{instance.id}", launched_at=now)
    if instance.state is InstanceState.BOOTING and instance.launched_at is not None:
        if now >= instance.launched_at + instance.offer.instance_type.boot_delay_s:
            return move_instance(instance, InstanceState.READY, ready_at=now, seen_at=now)
        return instance
    return replace(instance, seen_at=now)


def _idle_later(instance: Instance, busy: set[str], now: float) -> Instance:
    if instance.id in busy or instance.state is not InstanceState.READY:
        return replace(instance, idle_since=None)
    return instance if instance.idle_since is not None else replace(instance, idle_since=now)


def _job_later(job: Job, now: float, alive: set[str], run_s: float) -> Job:
    if job.attempt is None or job.attempt.over:
        return job
    allocations = tuple(_unit_later(a, job.attempt, now, alive, run_s) for a in job.attempt.allocations)
    attempt = replace(job.attempt, allocations=allocations)
    return move_job(job, JobState.RUNNING, attempt=attempt)


def _unit_later(unit: Allocation, attempt: Attempt, now: float, alive: set[str], run_s: float) -> Allocation:
    if unit.released:
        return unit
    if unit.instance_id not in alive:
        return replace(unit, ended_at=now, cause=FailureCause.INSTANCE_LOST)
    if attempt.stop_requested_at is not None:
        return replace(unit, ended_at=now, exit_code=-15, cause=attempt.stop_cause)
    if unit.started_at is None:
        return replace(unit, started_at=now)
    if now - unit.started_at >= run_s:
        return replace(unit, ended_at=now, exit_code=0)
    return unit
