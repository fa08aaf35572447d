"""Unit actions: start, stop and resize the units of attempts, each with its intent first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from hcloud.apply.kept_checkpoints import archive_of, kept_checkpoint, restored_checkpoint_at
from hcloud.apply.task_runs import unit_tasks
from hcloud.apply.transitions import reason_fields, release_allocation, transition_job
from hcloud.buckets import InputPreparer
from hcloud.buckets.inputs import PreparedInputs
from hcloud.core.arrays import Interval, with_positions
from hcloud.core.clock import Clock
from hcloud.core.cpu_topology import cpu_list
from hcloud.core.errors import Refused, SecretUnreadable
from hcloud.core.model import (
    JOB_ON_INSTANCE,
    JOB_WAITING,
    Allocation,
    Attempt,
    EventKind,
    FailureCause,
    Instance,
    InstanceState,
    Intent,
    IntentKind,
    Job,
    JobState,
    Reason,
    Resources,
    UnitId,
)
from hcloud.core.resources import free_gpus
from hcloud.core.rows import replace_fields
from hcloud.forecast.runtimes.prediction import RECORDED_IN
from hcloud.planner.plan import Candidate, Place, RankPlacement, Resize, StopAttempt, StopRank
from hcloud.provider import ResizeResult, Runner, StartResult, UnitSpec
from hcloud.secret_references import SecretReferences
from hcloud.store import LeaderLease, Store, Transaction

LOOPBACK = "127.0.0.1"
START_RETRY_S = 2.0
STOP_RETRY_S = 10.0
TASK_MAY_END_S = 300.0
"""So long a task may still run whose unit is stopped because others of it were cancelled."""
INPUTS_LOOK_S = 0.2
"""So often it is looked whether a job's inputs are listed and its secrets read."""


def _unseal_nothing(user: str, sealed: Mapping[str, str]) -> Mapping[str, str]:
    raise SecretUnreadable("secrets cannot be decrypted here: there is no key")


@dataclass(slots=True)
class UnitActions:
    """Starts, stops and resizes units."""

    store: Store
    runner: Runner
    clock: Clock
    uploads_dir: Path
    """Archives of work directories, by content hash."""
    checkpoints_dir: Path | None = None
    """Where the last checkpoints of running jobs are; None: nowhere."""
    unseal: Callable[[str, Mapping[str, str]], Mapping[str, str]] = _unseal_nothing
    """Decrypts a user's secrets, by name of the variable. Raises SecretUnreadable."""
    references: SecretReferences = field(default_factory=SecretReferences)
    """Reads what secret managers keep."""
    inputs: InputPreparer | None = None
    """Lists what machines fetch; None: no programs run, so nothing is fetched."""
    is_on_one_host: Callable[[str], bool] = lambda _: True
    """Whether the instances of a provider, by name, are all on one host, where nodes need no addresses."""
    epoch: int = 0
    """The leader's epoch under which plans are applied."""
    _unsent: dict[UnitId, int] = field(default_factory=dict)
    """Units that this process placed and that cannot have been sent to an instance, with the leader's epoch then."""

    # -------------------------------------------------------------------------------------------------------- starting
    def record_place(
        self, txn: Transaction, action: Place, free: dict[str, Resources], gpus_in_use: Mapping[str, set[int]]
    ) -> Intent:
        """Write the attempt and its start intent. ``free``: what is left on READY instances; it is reduced.
        ``gpus_in_use``: numbers of the GPUs that units hold, by instance; those given now are added.

        Raises Refused if the job or an instance is no longer as the plan saw it.
        """
        job = txn.job(action.job_id)
        _refuse_unready(txn, job, action, free)
        held = tuple(_allocation(txn, rank, gpus_in_use) for rank in action.ranks)
        attempt = _with_ranks(job, held, txn.now)
        more = job.state in JOB_ON_INSTANCE
        state = job.state if more else JobState.PLACED
        changes: dict[str, Any] = {"attempt": attempt, "attempts_made": attempt.number, "awaiting": (), "wait_code": ""}
        if job.attempts_made:
            changes["run"] = None  # what is tried again runs alone
        transition_job(txn, job, state, action.reason, **changes)
        for allocation in held:
            free[allocation.instance_id] = free[allocation.instance_id].minus(allocation.resources)
            instance = txn.instance(allocation.instance_id)
            if instance.idle_since is not None:
                txn.put_instance(replace_fields(instance, idle_since=None))
        predicted = {} if action.run_time is None else {RECORDED_IN: action.run_time.to_fields()}
        txn.emit(
            EventKind.ATTEMPT_PLACED,
            job_id=job.id,
            user=job.spec.user,
            **{
                **reason_fields(action.reason),
                "attempt": attempt.id,
                "allocations": [f"{a.instance_id}:{a.rank}:{a.resources.vcpus}:{a.resources.memory_mib}" for a in held],
                **gpu_fields(held),
                **predicted,
            },
            candidates=[_candidate_text(each) for each in action.candidates],
        )
        self._unsent |= dict.fromkeys((attempt.unit_id(each.rank) for each in held), self.epoch)
        token = f"start:{attempt.id}:{held[0].rank}"
        # A rank that ended before its start was known leaves an intent open, which starts all unstarted ranks.
        intent = txn.intent(token) or Intent(token=token, kind=IntentKind.START, subject=job.id, created_at=txn.now)
        if txn.intent(token) is None:
            txn.open_intent(intent)
        return intent

    def drive_starts(self, intents: Sequence[Intent], lease: LeaderLease | None) -> None:
        """Start every unit that is not known to have started; the engine ignores units that run already.

        A unit that was certainly never sent, as its instance does not respond, is taken back.
        """
        live = {job.id: job for job in self.store.live().jobs}
        jobs = [live.get(each.subject) or self.store.job(each.subject) for each in intents]
        units = {spec.id: spec for job in jobs for spec in self._unstarted(job)}
        results = self.runner.start(list(units.values())) if units else {}
        with self.store.transaction(self.clock.now(), lease) as txn:
            for intent in intents:
                self._record_started(txn, intent, results, lease.epoch if lease is not None else 0)

    def _unstarted(self, job: Job) -> list[UnitSpec]:
        attempt = job.attempt
        if attempt is None or attempt.stop_requested_at is not None or job.state not in JOB_ON_INSTANCE:
            return []
        waiting = [a for a in attempt.allocations if a.started_at is None and not a.released]
        units = [self.unit_spec(job, attempt, allocation) for allocation in waiting]
        if job.spec.framework is not None and (why := self._why_out_of_reach(attempt)):
            return [replace(each, refusal=why) for each in units]
        if units and job.spec.inputs and self.inputs is not None:
            units = _with_inputs(units, self.inputs.prepared(attempt.id, job.spec))
        return self._with_secrets(job, units) if units and job.spec.secrets else units

    def _with_secrets(self, job: Job, units: Sequence[UnitSpec]) -> list[UnitSpec]:
        """Return the units with the job's secrets in their environment, or refused if these cannot be read; none while
        they are being read."""
        try:
            secrets = self.references.resolved(job.spec.user, self.secrets_of(job))
        except SecretUnreadable as error:
            return [replace(each, refusal=str(error)) for each in units]
        if secrets is None:  # they are being read; the intent asks again soon
            return []
        return [replace(each, env={**secrets, **each.env}, secrets=job.spec.secrets) for each in units]

    def secrets_of(self, job: Job) -> Mapping[str, str]:
        """Return a job's secrets by name, some as references. Raises SecretUnreadable: one cannot be decrypted now."""
        # A profiling run uses those of the job that it measures.
        owner = job.spec.profile.job_id if job.spec.profile is not None and job.spec.profile.job_id else job.id
        sealed = self.store.job_secrets(owner)
        if absent := [name for name in job.spec.secrets if name not in sealed]:
            raise SecretUnreadable(f"secret {absent[0]} of {owner} is not in the database; submit the job again")
        return self.unseal(job.spec.user, {name: sealed[name] for name in job.spec.secrets})

    def unit_spec(self, job: Job, attempt: Attempt, allocation: Allocation) -> UnitSpec:
        """Return what the engine needs to start one rank; the unit id is the same in every repetition."""
        spec = job.spec
        workdir = str(self.uploads_dir / f"{spec.workdir_sha256}.tar.gz") if spec.workdir_sha256 else None
        own = {
            "HCLOUD_JOB_ID": job.id,
            "HCLOUD_ATTEMPT": str(attempt.number),
            "HCLOUD_RANK": str(allocation.rank),
            "HCLOUD_NODES": str(spec.nodes.count),
        }
        if job.array and spec.tasks is not None:
            own |= {**spec.tasks.environment(job.task_position), "HCLOUD_ARRAY_ID": job.array}
        restore = None
        if spec.checkpoint is not None and self.checkpoints_dir is not None:
            kept = kept_checkpoint(self.checkpoints_dir, job.id, allocation.rank)
            if kept is not None:
                restore = str(archive_of(self.checkpoints_dir, kept.unit, kept.number))
            own["HCLOUD_RESTORED"] = str(kept.attempt if kept is not None else 0)
        return UnitSpec(
            id=attempt.unit_id(allocation.rank),
            instance_id=allocation.instance_id,
            rank=allocation.rank,
            command=spec.command,
            resources=allocation.resources,
            image=spec.image,
            setup=spec.setup,
            workdir=workdir,
            env={**spec.env, **own},
            network=spec.network,
            peers=tuple(a.instance_id for a in sorted(attempt.allocations, key=lambda a: a.rank)),
            max_runtime_s=spec.max_runtime_s,
            stop_grace_s=spec.stop_grace_s,
            progress=spec.progress,
            metrics=spec.metrics,
            profile=spec.profile,
            outputs=spec.outputs,
            bucket_outputs=tuple(each.pattern for each in spec.bucket_outputs),
            checkpoint=spec.checkpoint,
            restore=restore,
            tasks=unit_tasks(job),
            cpus=allocation.cpus,
            gpus=allocation.gpus,
            framework=spec.framework,
            addresses=self._addresses(attempt) if spec.framework is not None else (),
        )

    def _addresses(self, attempt: Attempt) -> tuple[str, ...]:
        """Return where the ranks of a gang reach each other: by private addresses, if their providers name any."""
        ranks = sorted(attempt.allocations, key=lambda a: a.rank)
        machines = {name: self.store.instance(name) for name in {each.instance_id for each in ranks}}
        return tuple(gang_address(machines[each.instance_id].addresses or ()) for each in ranks)

    def _why_out_of_reach(self, attempt: Attempt) -> str:
        """Return why the nodes of a gang can never reach each other; empty if they may."""
        machines = [self.store.instance(name) for name in sorted({each.instance_id for each in attempt.allocations})]
        unnamed = [each for each in machines if each.addresses == () and not self.is_on_one_host(each.offer.provider)]
        if len(machines) < 2 or not unnamed:
            return ""
        return (
            f"its nodes cannot reach each other: provider {unnamed[0].offer.provider} names no address of "
            f"{', '.join(each.id for each in unnamed[:3])}; set placement.labels to another provider, or nodes to 1"
        )

    def _record_started(self, txn: Transaction, intent: Intent, results: Mapping[str, StartResult], epoch: int) -> None:
        job = txn.job(intent.subject)
        attempt, not_sent = job.attempt, list[Allocation]()
        units = {attempt.unit_id(a.rank): a for a in attempt.allocations} if attempt is not None else {}
        for unit, allocation in units.items() if job.state in JOB_ON_INSTANCE else ():
            result = results.get(unit)
            if result is not None and result.outcome == "started":
                restored_at = restored_checkpoint_at(self.checkpoints_dir, job, allocation.rank)
                job = record_started(txn, job, allocation.rank, txn.now, restored_at)
            elif result is not None and result.outcome == "refused":
                job = release_allocation(
                    txn, job, allocation.rank, ended_at=txn.now, cause=result.cause, detail=result.detail
                )
            elif result is not None and result.outcome == "not_sent" and self._unsent.get(unit) == epoch:
                not_sent.append(allocation)
            if result is not None and result.outcome not in ("pending", "not_sent"):
                self._unsent.pop(unit, None)  # it may have arrived
        if not_sent:
            job = _take_back(txn, job, not_sent)
        if _start_pending(job):
            is_prepared = job.spec.inputs or job.spec.secrets
            wait_s = INPUTS_LOOK_S if is_prepared and not results.keys() & units.keys() else START_RETRY_S
            txn.put_intent(replace(intent, tries=intent.tries + 1, retry_at=txn.now + wait_s))
        else:
            txn.close_intent(intent.token)
            for unit in units:
                self._unsent.pop(unit, None)
            if self.inputs is not None:
                self.inputs.drop(intent.token.split(":")[1])

    # -------------------------------------------------------------------------------------------------------- stopping
    def record_stop(self, txn: Transaction, action: StopAttempt) -> Intent | None:
        """Write why an attempt is to stop, and the intent; None if it is stopping already. Raises Refused."""
        job = txn.job(action.job_id)
        attempt = job.attempt
        if attempt is None or attempt.over or job.state not in JOB_ON_INSTANCE:
            raise Refused(f"{job.id} is not running")
        if attempt.stop_requested_at is not None:
            return None
        stopping = replace(attempt, stop_cause=action.cause, stop_requested_at=txn.now)
        transition_job(txn, job, job.state, action.reason, attempt=stopping)
        intent = Intent(token=f"stop:{attempt.id}", kind=IntentKind.STOP, subject=job.id, created_at=txn.now)
        txn.open_intent(intent)
        return intent

    def record_stop_rank(self, txn: Transaction, action: StopRank) -> Intent:
        """Write the intent to evict one rank. Raises Refused if it has ended or is stopping."""
        job = txn.job(action.job_id)
        attempt, held = job.attempt, job.attempt.held(action.rank) if job.attempt is not None else None
        if attempt is None or held is None or held.released or job.state not in JOB_ON_INSTANCE:
            raise Refused(f"rank {action.rank} of {job.id} is not running")
        if attempt.stop_requested_at is not None:
            raise Refused(f"{attempt.id} is stopping")
        token = f"stop:{attempt.unit_id(action.rank)}"
        if txn.intent(token) is not None:
            raise Refused(f"rank {action.rank} of {attempt.id} is stopping")
        if action.yields:
            kept = [a for a in attempt.allocations if not a.released and a.yielded_at is None and a is not held]
            if len(kept) < job.spec.nodes.needed:
                raise Refused(f"rank {action.rank} of {attempt.id} is not optional")
            ranks = tuple(replace(a, yielded_at=txn.now) if a is held else a for a in attempt.allocations)
            transition_job(txn, job, job.state, action.reason, attempt=replace(attempt, allocations=ranks))
        intent = Intent(token=token, kind=IntentKind.STOP, subject=job.id, created_at=txn.now)
        txn.open_intent(intent)
        return intent

    def drive_stops(self, intents: Sequence[Intent], lease: LeaderLease | None) -> None:
        """Ask the engine to stop units; repeated until the observer has recorded the end of each."""
        wanted: dict[FailureCause | None, dict[str, str]] = {}
        tasks: dict[str, tuple[Interval, ...]] = {}
        done: set[str] = set()
        for intent in intents:
            job = self.store.job(intent.subject)
            cause, units = _to_stop(job, intent)
            if job.run is not None and (some := self._cancelled_tasks(job)):
                tasks |= dict.fromkeys(units, some)
            if not units:
                done.add(intent.token)
            wanted.setdefault(cause, {}).update(units)
        for cause, units in wanted.items():
            if units:
                self.runner.stop(units, cause=cause, tasks={each: tasks[each] for each in units if each in tasks})
        with self.store.transaction(self.clock.now(), lease) as txn:
            for intent in intents:
                if intent.token in done:
                    txn.close_intent(intent.token)
                else:
                    txn.put_intent(replace(intent, tries=intent.tries + 1, retry_at=txn.now + STOP_RETRY_S))

    def _cancelled_tasks(self, job: Job) -> tuple[Interval, ...]:
        """Return which tasks of a unit it is stopped for, while another one that runs may still end; none: for all."""
        attempt, run = job.attempt, job.run
        assert run is not None
        asked_at = attempt.stop_requested_at if attempt is not None else None
        if asked_at is None or self.clock.now() > asked_at + TASK_MAY_END_S:
            return ()
        if self.store.job(job.array).cancelled_by is not None:
            return ()
        return with_positions(run.cancelled, [job.task_position] if job.cancelled_by is not None else [])

    # -------------------------------------------------------------------------------------------------------- resizing
    def record_resize(self, txn: Transaction, action: Resize, free: dict[str, Resources]) -> list[Intent]:
        """Write new resources for ranks, all or none, and the intents to apply them. ``free`` is kept up to date.

        Raises Refused if a rank is not running there or is being resized, or its instance has not enough left.
        """
        job, left = txn.job(action.job_id), dict(free)
        attempt = job.attempt
        if attempt is None or job.state not in JOB_ON_INSTANCE or attempt.stop_requested_at is not None:
            raise Refused(f"{job.id} is not running, or is stopping")
        tokens = [f"resize:{attempt.unit_id(rank.rank)}" for rank in action.ranks]
        if any(txn.intent(token) is not None for token in tokens):
            raise Refused(f"an earlier resize of {attempt.id} is not complete")
        others = []
        for rank in action.ranks:
            held = _running_rank(attempt, rank.rank, rank.instance_id)
            more, room = rank.resources.minus(held.resources), left.get(held.instance_id)
            if room is None or not more.fits(room):
                raise Refused(f"{held.instance_id} has only {room} left; {more} more requested")
            left[held.instance_id] = room.minus(more)
            grown = replace(held, resources=rank.resources, resized_from=held.resources)
            if rank.cpus is not None:
                _refuse_absent(txn.instance(held.instance_id), rank.cpus)
                grown = replace(grown, cpus=rank.cpus, pinned_from=held.cpus)
            others.append(grown)
        free.update(left)
        _put_ranks(txn, job, others)
        intents = [_resize_intent(txn, job, attempt.unit_id(held.rank)) for held in others]
        for intent in intents:
            txn.open_intent(intent)
        return intents

    def drive_resizes(self, intents: Sequence[Intent], lease: LeaderLease | None) -> None:
        """Send workers the new resources of their units until they take them. If one refuses, all ranks revert."""
        wanted: dict[str, tuple[str, Resources]] = {}
        cpus: dict[str, tuple[int, ...]] = {}
        for intent in intents:
            held = _resized(self.store.job(intent.subject), intent)
            if held is not None:
                unit = intent.token.removeprefix("resize:")
                wanted[unit] = (held.instance_id, held.resources)
                if held.pinned_from is not None:
                    cpus[unit] = held.cpus
        epoch = lease.epoch if lease is not None else 0
        results = self.runner.resize(wanted, cpus=cpus, epoch=epoch) if wanted else {}
        with self.store.transaction(self.clock.now(), lease) as txn:
            outcomes = [(intent, results.get(intent.token.removeprefix("resize:"))) for intent in intents]
            # Refusals last: workers that took their new resources by then are reverted.
            for intent, result in sorted(
                outcomes, key=lambda each: each[1] is not None and each[1].outcome == "refused"
            ):
                _, bounds = wanted.get(intent.token.removeprefix("resize:"), ("", None))
                self._record_resized(txn, intent, result, bounds)

    def _record_resized(
        self, txn: Transaction, intent: Intent, result: ResizeResult | None, bounds: Resources | None
    ) -> None:
        """Settle a resize, or retry it later.

        ``result``: None if the unit has ended. ``bounds``: the resources that were sent.
        """
        job, outcome = txn.job(intent.subject), result.outcome if result is not None else "ended"
        held = _resized(job, intent)
        # The worker keeps more than the row says and refuses to revert; retried as long as the unit runs.
        stays = held is not None and held.resized_from is None and held.resources == bounds
        if outcome == "unknown" or (outcome == "refused" and stays):
            txn.put_intent(replace(intent, tries=intent.tries + 1, retry_at=txn.now + STOP_RETRY_S))
            return
        txn.close_intent(intent.token)
        if result is not None and outcome == "refused" and held is not None:
            _revert_resizes(txn, job, held, result.detail, sure=intent.tries == 0)
        else:
            _settle_resizes(txn, job)


def gang_address(addresses: Sequence[str]) -> str:
    """Return the address at which other instances reach one: a private one first; loopback if none is named, as
    those of ``local`` are all on one host."""
    private = (each for each in addresses if ip_address(each).is_private)
    return next(private, addresses[0] if addresses else LOOPBACK)


def _running_rank(attempt: Attempt, rank: int, instance_id: str) -> Allocation:
    """Return a rank that runs on an instance and is not being resized. Raises Refused."""
    held = attempt.held(rank)
    if held is None or held.released or held.started_at is None or held.instance_id != instance_id:
        raise Refused(f"rank {rank} of {attempt.id} is not running on {instance_id}")
    if held.resized_from is not None or held.pinned_from is not None:
        raise Refused(f"rank {rank} of {attempt.id} is being resized already")
    return held


def _refuse_absent(instance: Instance, cpus: Sequence[int]) -> None:
    """Raise Refused if an instance is not known to have these CPUs."""
    known = instance.cpu_topology.numbers if instance.cpu_topology is not None else ()
    if absent := cpu_list(set(cpus).difference(known)):
        raise Refused(f"{instance.id} has no CPUs {absent}")


def _resize_intent(txn: Transaction, job: Job, unit: str) -> Intent:
    return Intent(token=f"resize:{unit}", kind=IntentKind.RESIZE, subject=job.id, created_at=txn.now)


def _resizing(job: Job) -> list[Allocation]:
    """Return the running ranks whose resize is not settled."""
    held = job.attempt.allocations if job.attempt is not None else ()
    return [each for each in held if (each.resized_from or each.pinned_from) is not None and not each.released]


def _revert_resizes(txn: Transaction, job: Job, refused: Allocation, detail: str, *, sure: bool) -> None:
    """Restore the earlier resources of all ranks that were resized with ``refused``, and open intents to send them.

    ``sure``: the refusing worker certainly applied nothing, so nothing is sent to it.
    """
    attempt, resizing = job.attempt, _resizing(job)
    assert attempt is not None
    back = [_reverted(each, is_sent=each.rank != refused.rank or not sure) for each in resizing]
    _put_ranks(txn, job, back, detail)
    for each in back:
        intent = _resize_intent(txn, job, attempt.unit_id(each.rank))
        if (each.rank != refused.rank or not sure) and txn.intent(intent.token) is None:
            txn.open_intent(intent)


def _reverted(held: Allocation, *, is_sent: bool) -> Allocation:
    """Return a rank with what it held before. ``is_sent``: its worker is sent that, so its CPUs are not settled."""
    cpus = held.cpus if held.pinned_from is None else held.pinned_from
    pinned_from = held.cpus if held.pinned_from is not None and is_sent else None
    resources = held.resized_from or held.resources
    return replace(held, resources=resources, resized_from=None, cpus=cpus, pinned_from=pinned_from)


def _settle_resizes(txn: Transaction, job: Job) -> None:
    """Forget earlier resources once no resize intent of the job is open."""
    attempt, resizing = job.attempt, _resizing(job)
    if attempt is None or any(txn.intent(f"resize:{attempt.unit_id(each.rank)}") for each in resizing):
        return
    if resizing:
        _put_allocations(txn, job, [replace(each, resized_from=None, pinned_from=None) for each in resizing])


def _to_stop(job: Job, intent: Intent) -> tuple[FailureCause | None, dict[str, str]]:
    """Return the stop cause, and the instance of each unit that an intent is to stop; no unit if they have ended."""
    attempt = job.attempt
    if attempt is None:
        return None, {}
    units = {attempt.unit_id(a.rank): a.instance_id for a in attempt.allocations if not a.released}
    if intent.token == f"stop:{attempt.id}":
        return attempt.stop_cause, units
    return FailureCause.EVICTED, {unit: name for unit, name in units.items() if intent.token == f"stop:{unit}"}


def _resized(job: Job, intent: Intent) -> Allocation | None:
    """Return the running rank that a resize intent is about; None if it has ended."""
    attempt = job.attempt
    for held in attempt.allocations if attempt is not None and job.state in JOB_ON_INSTANCE else ():
        if attempt is not None and f"resize:{attempt.unit_id(held.rank)}" == intent.token and not held.released:
            return held
    return None


def _put_allocations(txn: Transaction, job: Job, changed: Sequence[Allocation]) -> None:
    attempt, by_rank = job.attempt, {each.rank: each for each in changed}
    assert attempt is not None
    ranks = tuple(by_rank.get(each.rank, each) for each in attempt.allocations)
    txn.put_job(replace(job, attempt=replace(attempt, allocations=ranks)))


def _put_ranks(txn: Transaction, job: Job, changed: Sequence[Allocation], detail: str = "") -> None:
    """Change the resources of ranks, with the UNIT_RESIZED events that costs are computed from."""
    _put_allocations(txn, job, changed)
    for held in changed:
        pinned: dict[str, Any] = {} if held.pinned_from is None else {"cpus": cpu_list(held.cpus)}
        txn.emit(
            EventKind.UNIT_RESIZED,
            job_id=job.id,
            instance_id=held.instance_id,
            user=job.spec.user,
            attempt=job.attempt.id if job.attempt is not None else "",
            rank=held.rank,
            vcpus=held.resources.vcpus,
            memory_mib=held.resources.memory_mib,
            **_gpu_share(txn.instance(held.instance_id), held),
            **pinned,
            detail=detail,
        )


def record_started(txn: Transaction, job: Job, rank: int, started_at: float, restored_at: float | None = None) -> Job:
    """Record once that a rank's unit runs, with a UNIT_STARTED event; a PLACED job becomes RUNNING.

    ``restored_at``: from when the checkpoint is that it goes on from (Unix seconds); None: from none.
    """
    attempt = job.attempt
    held = next((a for a in attempt.allocations if a.rank == rank), None) if attempt else None
    if attempt is None or held is None or held.started_at is not None:
        return job
    ranks = tuple(replace_fields(a, started_at=started_at) if a.rank == rank else a for a in attempt.allocations)
    reason = Reason(code="started", text=f"rank {rank} runs on {held.instance_id}")
    restored: dict[str, Any] = {} if restored_at is None else {"restored_at": restored_at}
    running = replace_fields(attempt, allocations=ranks)
    if job.state is JobState.PLACED:
        job = transition_job(txn, job, JobState.RUNNING, reason, attempt=running)
    else:
        job = txn.put_job(replace_fields(job, attempt=running))
    txn.emit(
        EventKind.UNIT_STARTED,
        job_id=job.id,
        instance_id=held.instance_id,
        user=job.spec.user,
        at=started_at,
        attempt=attempt.id,
        rank=rank,
        vcpus=held.resources.vcpus,
        memory_mib=held.resources.memory_mib,
        **_gpu_share(txn.instance(held.instance_id), held),
        **restored,
    )
    return job


def _take_back(txn: Transaction, job: Job, not_sent: Sequence[Allocation]) -> Job:
    """Release ranks whose instances do not respond, and queue the job again if nothing of its attempt was sent."""
    names = ", ".join(dict.fromkeys(each.instance_id for each in not_sent))
    detail = f"never sent: {names} does not respond"
    for each in not_sent:
        job = release_allocation(txn, job, each.rank, ended_at=txn.now, cause=FailureCause.EVICTED, detail=detail)
    attempt = job.attempt
    if job.state is not JobState.PLACED or attempt is None or len(not_sent) < len(attempt.allocations):
        return job
    text = f"{names} does not respond; nothing was sent there, so the job is placed again"
    return transition_job(txn, job, JobState.QUEUED, Reason(code="not_sent", text=text, numbers={"instance": names}))


def _start_pending(job: Job) -> bool:
    """Return whether some rank has neither started nor been released."""
    attempt = job.attempt
    if attempt is None or job.state not in JOB_ON_INSTANCE or attempt.stop_requested_at is not None:
        return False
    return any(a.started_at is None and not a.released for a in attempt.allocations)


def _refuse_unready(txn: Transaction, job: Job, action: Place, free: Mapping[str, Resources]) -> None:
    if job.cancelled_by:
        raise Refused(f"{job.id} has been cancelled by {job.cancelled_by}")
    if job.is_array:
        raise Refused(f"{job.id} is an array; its tasks run instead of it")
    if job.state not in JOB_WAITING and not _can_grow(job):
        raise Refused(f"{job.id} is {job.state}, not waiting")
    attempt = job.attempt if job.state in JOB_ON_INSTANCE else None
    for rank in action.ranks:
        held = attempt.held(rank.rank) if attempt is not None else None
        if held is not None and not (held.released and held.cause is FailureCause.EVICTED):
            raise Refused(f"rank {rank.rank} of {job.id} is already running, or has ended")
    wanted: dict[str, Resources] = {}
    for rank in action.ranks:
        before = wanted.get(rank.instance_id)
        wanted[rank.instance_id] = before.plus(rank.resources) if before else rank.resources
    for instance_id, amount in wanted.items():
        if txn.instance(instance_id).state is not InstanceState.READY or instance_id not in free:
            raise Refused(f"{instance_id} is not ready")
        if not amount.fits(free[instance_id]):
            raise Refused(f"{instance_id} has only {free[instance_id]} left; {amount} requested")


def _can_grow(job: Job) -> bool:
    """Return whether a running attempt may get more ranks."""
    attempt = job.attempt
    if job.state not in JOB_ON_INSTANCE or job.spec.nodes.gang or attempt is None:
        return False
    return not attempt.over and attempt.stop_requested_at is None


def _with_ranks(job: Job, held: tuple[Allocation, ...], now: float) -> Attempt:
    if job.state in JOB_ON_INSTANCE and job.attempt is not None:
        new = {a.rank: a for a in held}
        before = tuple(a for a in job.attempt.allocations if a.rank not in new)
        again = {a.rank: a.relaunch + 1 for a in job.attempt.allocations if a.rank in new}
        started = tuple(replace(a, relaunch=again.get(a.rank, 0)) for a in held)
        return replace(job.attempt, allocations=tuple(sorted((*before, *started), key=lambda a: a.rank)))
    number = job.attempts_made + 1
    return Attempt(
        id=f"{job.id}.{number}", number=number, placed_at=now, allocations=held, mark=f"{round(now * 1000):x}"
    )


def _allocation(txn: Transaction, rank: RankPlacement, gpus_in_use: Mapping[str, set[int]]) -> Allocation:
    """Return what a rank gets, the lowest free GPUs of its instance included, which count as in use from now on."""
    gpus: tuple[int, ...] = ()
    if rank.resources.gpus is not None:
        taken = gpus_in_use[rank.instance_id]
        count, wanted = txn.instance(rank.instance_id).capacity.gpu_count, rank.resources.gpu_count
        gpus = free_gpus(count, taken, wanted)
        if len(gpus) < wanted:
            raise Refused(f"{rank.instance_id} has only {len(gpus)} GPUs left; {wanted} requested")
        taken.update(gpus)
    return Allocation(
        rank=rank.rank, instance_id=rank.instance_id, resources=rank.resources, cpus=rank.cpus or (), gpus=gpus
    )


def gpu_fields(held: Sequence[Allocation]) -> Mapping[str, list[str]]:
    """Return which GPUs ranks got, as ``inst:rank:0,1``, under the key of the event; nothing if none got any."""
    given = [f"{a.instance_id}:{a.rank}:{cpu_list(a.gpus)}" for a in held if a.gpus]
    return {"gpus": given} if given else {}


def _gpu_share(instance: Instance, held: Allocation) -> Mapping[str, Any]:
    """Return the part of its instance's GPUs that a rank holds, under the key of the event; nothing without GPUs."""
    count = held.resources.gpu_count
    return {"gpu_share": round(count / instance.capacity.gpu_count, 6)} if count else {}


def _candidate_text(each: Candidate) -> str:
    figures = (f"{value:.6g}" if value is not None else "" for value in (each.predicted, each.low, each.high))
    return "|".join((f"{each.column} {each.market}", f"{each.usd_per_h:.8g}", *figures, each.rejected))


def _with_inputs(units: Sequence[UnitSpec], prepared: PreparedInputs) -> list[UnitSpec]:
    """Return the units with the list of their inputs, or refused where there can be none; none while it is made."""
    if prepared.is_pending:
        return []
    if prepared.problem:
        return [replace(each, refusal=prepared.problem, refusal_cause=FailureCause.INPUTS) for each in units]
    return [replace(each, inputs=str(prepared.path)) for each in units]
