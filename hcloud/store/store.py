"""The store: the interface to the database; see `hcloud.store`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, bindparam, delete, func, insert, select, tuple_, update

from hcloud.core.arrays import positions_in, with_positions, without_positions
from hcloud.core.co_runs import CoRun
from hcloud.core.errors import NotFound, StaleWrite
from hcloud.core.model import (
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
from hcloud.core.schedules import Schedule
from hcloud.spec.validation import counted
from hcloud.store import schema
from hcloud.store.array_rows import (
    EVENTS_OF_A_TASK,
    JOBS,
    EndedTask,
    RunEnd,
    array_of,
    counts_of,
    ended_tasks,
    ends_in_runs,
    states_of,
    task_without_row,
    tasks_of,
)
from hcloud.store.chain import AuditHead, read_head
from hcloud.store.database import Database
from hcloud.store.documents import (
    checked_text,
    instance_number,
    job_number,
    load_co_run,
    load_event,
    load_instance,
    load_job,
    load_schedule,
    load_spec,
    storable,
)
from hcloud.store.event_folds import (
    KEPT_FOLDS,
    EventFilter,
    FoldCache,
    first_seq_since,
    folded_instances,
    read_events,
)
from hcloud.store.forgetting import (
    BATCH,
    delete_rows,
    of_ended_subjects,
    referenced_numbers,
    without_events,
)
from hcloud.store.live import LiveCache, LiveView
from hcloud.store.opening import count_secrets, prepare
from hcloud.store.recent import RecentEvents
from hcloud.store.transaction import LeaderLease, Submission, Transaction

_META = select(schema.meta.c.value).where(schema.meta.c.key == bindparam("wanted"))
_RUN_TIMES = select(schema.run_times.c.state)
_CO_RUNS = select(schema.co_run.c.revision, schema.co_run.c.key, schema.co_run.c.document).where(
    schema.co_run.c.revision > bindparam("seen")
)
_DUE_SCHEDULES = (
    select(schema.schedule.c.number, schema.schedule.c.document)
    .where(schema.schedule.c.next_at <= bindparam("now"))
    .order_by(schema.schedule.c.next_at, schema.schedule.c.number)
    .limit(bindparam("most"))
)
_EVENT_COUNT = select(schema.head.c.events)
BUSY_TIMEOUT_S = 5.0
"""How long a write waits for other writers."""
_STREAM_CHUNK = 2000
_EVENTS_MOST = 100_000
_KEYS_PER_QUERY = 500


class Store:
    """Jobs, instances, intents, back-offs and the event log. Safe for several threads and several processes.

    Every method may raise StoreBusy (locked, full or unavailable: nothing was written, try again) and StoreError.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._live = LiveCache(database)
        self._recent = RecentEvents()
        self._folds = FoldCache(most=KEPT_FOLDS)
        self._highest_revision = 0

    @classmethod
    def open(cls, url: str, *, busy_timeout_s: float | None = None) -> Store:
        """Open a database, creating or migrating its tables.

        A write waits up to ``busy_timeout_s`` for other writers; ``BUSY_TIMEOUT_S`` by default.

        Raises:
            ConfigError: the URL, path or file cannot be used, or its schema is newer.
            StoreBusy: the database is locked or does not answer.
        """
        database = Database(url, BUSY_TIMEOUT_S if busy_timeout_s is None else busy_timeout_s)
        with ExitStack() as undo:
            undo.callback(database.close)  # no connection may stay open after a failure
            prepare(database)
            undo.pop_all()
        return cls(database)

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    @property
    def crash_point(self) -> Callable[[str], None] | None:
        """Callback around every commit, with ``commit:before`` and ``commit:after``; for crash tests."""
        return self._database.crash_point

    @crash_point.setter
    def crash_point(self, called: Callable[[str], None] | None) -> None:
        self._database.crash_point = called

    # --------------------------------------------------------------------------------------------------------- writing
    @contextmanager
    def transaction(self, now: float, lease: LeaderLease | None = None) -> Iterator[Transaction]:
        """Yield a transaction: committed on exit, rolled back on an exception. Never hold it across an external call.

        Raises:
            StaleWrite: ``lease`` was lost to another daemon.
        """
        opened: list[Transaction] = []
        with self._database.writing(lambda connection: opened[0].finish(connection)) as connection:
            opened.append(Transaction(connection, now, self._highest_revision + 1, self._live))
            # Also if this write fails: its revision must never be assigned again.
            self._highest_revision = opened[0].revision
            check_lease(opened[0], lease)
            yield opened[0]
        opened[0].follow()
        self._recent.add(opened[0].new_events)

    def submit(self, submissions: Sequence[Submission], now: float) -> tuple[Job, ...]:
        """Add jobs, all or none, in the given order. A known (user, token) returns the earlier job instead.

        Raises:
            BadInput: a text cannot be stored.
        """
        with self.transaction(now) as tx:
            return tx.add_jobs(submissions)

    def request_cancel(self, job_id: JobId, actor: str, now: float) -> Job:
        """Record that ``actor`` cancelled the job, for the next cycle; no effect if it has ended or is cancelled.

        All tasks of an array are cancelled with it: those that have not begun end at once.

        Raises:
            NotFound: there is no such job.
        """
        return self.request_cancels([(self.job(job_id), None)], actor, now)[0]  # its NotFound has a hint

    def request_cancels(
        self, chosen: Sequence[tuple[Job, Sequence[int] | None]], actor: str, now: float
    ) -> tuple[Job, ...]:
        """Record that ``actor`` cancelled jobs and arrays, or only tasks at positions of an array: all or none.

        Tasks that have not begun end at once; no effect on what has ended. Returns each job; of tasks their array.

        Raises:
            NotFound: one of them is gone.
        """
        with self.transaction(now) as tx:
            return tuple(_cancel_in(tx, job, positions, actor) for job, positions in chosen)

    def set_meta(self, key: str, value: str) -> None:
        """Store a text under a key."""
        row = {"key": checked_text(key, "key"), "value": checked_text(value, "value")}
        with self._writing() as connection:
            connection.execute(delete(schema.meta).where(schema.meta.c.key == key))
            connection.execute(insert(schema.meta), row)

    def get_meta(self, key: str) -> str | None:
        """Return the text stored under a key, or None."""
        if not storable(key):
            return None
        row = self._database.read_row(_META, {"wanted": key})
        return None if row is None else str(row[0])

    def run_times(self) -> bytes | None:
        """Return what was learnt of run times, as last stored; None: nothing was."""
        with self._database.reading() as connection:
            state = connection.execute(_RUN_TIMES).scalar()
        return None if state is None else bytes(state)

    def co_runs(self, after_revision: int = -1) -> tuple[tuple[int, CoRun], ...]:
        """Return the co-run records written after a revision, each with its own, in order; -1: all."""
        with self._database.reading() as connection:
            rows = connection.execute(_CO_RUNS, {"seen": after_revision}).all()
        # Sorted here: databases compare text differently.
        return tuple((row.revision, load_co_run(row.document)) for row in sorted(rows, key=lambda row: row[:2]))

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._database.writing() as connection:
            connection.execute(select(schema.head.c.revision).with_for_update())
            yield connection

    def prune_events(self, before: float, now: float) -> int:
        """Delete events before ``before``, in batches, and record that at ``now``; return their number.

        Jobs and instances that are live, or ended later, keep all their events: reports need them complete.
        """
        return self._prune(before, now, of_ended_subjects(before), lambda tx: tx.delete_folds(before))

    def prune_samples(self, before: float, now: float) -> int:
        """Delete samples before ``before``, also those of live jobs; return their number.

        Otherwise a single service that runs for a year would fill the database.
        """
        is_sample = schema.event_log.c.kind == EventKind.SAMPLE.value
        return self._prune(before, now, is_sample, lambda tx: tx.delete_folded_samples(before))

    def _prune(
        self, before: float, now: float, condition: ColumnElement[bool], delete_folded: Callable[[Transaction], int]
    ) -> int:
        pruned = 0
        while True:
            with self.transaction(now) as tx:
                count, folded = tx.delete_events(before, condition), delete_folded(tx)
            pruned += count + folded
            if count < BATCH and not folded:
                return pruned

    def prune_rows(self, before: float) -> int:
        """Delete jobs and instances that ended before ``before`` and have no events any more; return their number.

        Rows that live jobs refer to are kept. Numbers are never assigned again, but submission tokens become free.
        """
        jobs, instances = referenced_numbers(self.live())
        with self._database.reading() as connection:
            instances |= folded_instances(connection)
        return self._prune_table(schema.job, before, jobs) + self._prune_table(schema.instance, before, instances)

    def _prune_table(self, table: Table, before: float, kept: Set[int]) -> int:
        pruned, last = 0, 0
        while True:
            with self._writing() as connection:
                numbers = without_events(connection, table, before, last)
                deleted = [number for number in numbers if number not in kept]
                delete_rows(connection, table, deleted)
            pruned += len(deleted)
            if len(numbers) < BATCH:
                return pruned
            last = numbers[-1]

    def reencrypt_secrets(self, key_id: str, reseal: Callable[[str, str, str], str | None]) -> int:
        """Encrypt secrets of other keys than ``key_id`` anew, in batches; return their number.

        ``reseal`` gets user, name and encrypted value, and returns the new value, or None to leave it as it is.
        """
        table, changed, last = schema.job_secret, 0, (0, "")
        query = (
            select(table, schema.job.c.user_name)
            .join(schema.job, schema.job.c.number == table.c.number)
            .where(table.c.key_id != key_id)
            .order_by(table.c.number, table.c.name)
            .limit(BATCH)
        )
        while True:
            with self._writing() as connection:
                rows = connection.execute(query.where(tuple_(table.c.number, table.c.name) > last)).all()
                for row in rows:
                    sealed = reseal(row.user_name, row.name, row.sealed)
                    if sealed is not None:
                        this = (table.c.number == row.number) & (table.c.name == row.name)
                        values = {"key_id": sealed.partition(".")[0], "sealed": sealed}
                        connection.execute(update(table).where(this).values(values))
                        changed += 1
            if len(rows) < BATCH:
                return changed + self._reencrypt_schedules(key_id, reseal)
            last = (rows[-1].number, rows[-1].name)

    def _reencrypt_schedules(self, key_id: str, reseal: Callable[[str, str, str], str | None]) -> int:
        changed = 0
        for each in self.schedules():
            if any(not sealed.startswith(f"{key_id}.") for sealed in each.secrets.values()):
                with self.transaction(0.0) as tx:
                    fresh = tx.schedule(each.id)
                    if fresh is not None:
                        again, count = resealed(fresh, key_id, reseal)
                        changed += count
                        tx.put_schedule(again)
        return changed

    # ----------------------------------------------------------------------------------------------------------- lease
    def acquire_lease(self, holder: str, now: float, ttl_s: float) -> LeaderLease | None:
        """Become leader for ``ttl_s``, or return None if another holder leads at ``now``.

        The same holder gets the lease at once under a new epoch, so that a restarted daemon fences its predecessor.
        """
        # Workers remember epochs: Unix seconds keep them increasing even after an old database is restored.
        with self.transaction(now) as tx:
            other = tx.head["lease_holder"]
            if other not in (None, holder) and tx.head["lease_until"] > now:
                return None
            epoch = max(tx.head["lease_epoch"] + 1, int(now))
            lease = LeaderLease(holder=checked_text(holder, "holder"), epoch=epoch, until=now + ttl_s)
            tx.head.update(lease_holder=lease.holder, lease_epoch=lease.epoch, lease_until=lease.until)
            return lease

    def renew_lease(self, lease: LeaderLease, now: float, ttl_s: float) -> LeaderLease | None:
        """Extend the lease to ``now + ttl_s``; return None if it was lost to another holder."""
        with self.transaction(now) as tx:
            if not _holds(tx, lease):
                return None
            tx.head["lease_until"] = now + ttl_s
            return replace(lease, until=now + ttl_s)

    def release_lease(self, lease: LeaderLease) -> None:
        """Give up the lease at once; no effect if it is already lost."""
        with self.transaction(0.0) as tx:
            if _holds(tx, lease):
                tx.head.update(lease_holder=None, lease_until=0.0)

    # --------------------------------------------------------------------------------------------------------- reading
    def live(self) -> LiveView:
        """Return everything that has not ended, as last committed by any process; fast if little changed."""
        return self._live.view()

    def job(self, job_id: JobId) -> Job:
        """Return a job. Raises NotFound with a hint."""
        with self._database.reading() as connection:
            try:
                row = connection.execute(JOBS.where(schema.job.c.number == job_number(job_id))).first()
            except NotFound as error:
                raise NotFound(f"{error}; {_nearest_job(connection, job_id)}") from error
            if row is not None:
                return _loaded(row)
            row = connection.execute(array_of(job_number(job_id))).first()
            if row is None:
                raise NotFound(f"there is no {job_id}; {_nearest_job(connection, job_id)}")
            return _tasks_at(connection, _loaded(row), [job_number(job_id) - row.number - 1], self._folds)[0]

    # -------------------------------------------------------------------------------------------------------- schedules
    def schedules(self, *, user: str | None = None) -> tuple[Schedule, ...]:
        """Return schedules, of one user or all, by number."""
        query = select(schema.schedule.c.number, schema.schedule.c.document).order_by(schema.schedule.c.number)
        if user is not None:
            if not storable(user):
                return ()
            query = query.where(schema.schedule.c.user_name == user)
        with self._database.reading() as connection:
            return tuple(load_schedule(row.number, row.document) for row in connection.execute(query))

    def due_schedules(self, now: float, limit: int) -> tuple[Schedule, ...]:
        """Return the schedules that are due at ``now``, the longest due first, at most ``limit``."""
        with self._database.reading() as connection:
            rows = connection.execute(_DUE_SCHEDULES, {"now": now, "most": limit}).all()
        return tuple(load_schedule(row.number, row.document) for row in rows)

    # ----------------------------------------------------------------------------------------------------------- arrays
    def ended_tasks(self, limit: int) -> Sequence[EndedTask]:
        """Return tasks of arrays that have ended and still have a row of their own, at most ``limit``, by array."""
        with self._database.reading() as connection:
            rows = connection.execute(ended_tasks(limit)).all()
        return [EndedTask(f"job-{row.array_number}", row.number, JobState(row.state)) for row in rows]

    def tasks(
        self, array_id: JobId, *, states: Collection[JobState] | None = None, limit: int = 1000
    ) -> tuple[Job, ...]:
        """Return the tasks of an array that have a row, in one of ``states``, by number; at most ``limit``."""
        with self._database.reading() as connection:
            return tuple(_loaded(row) for row in connection.execute(tasks_of(array_id, states, limit)))

    def tasks_at(self, array: Job, positions: Sequence[int]) -> list[Job]:
        """Return the tasks of an array at ascending positions, whether they have a row or not, all read at once."""
        with self._database.reading() as connection:
            return _tasks_at(connection, array, positions, self._folds)

    def task_states(self, array_id: JobId) -> Mapping[int, JobState]:
        """Return the states of the tasks of an array that have a row, by position."""
        with self._database.reading() as connection:
            rows = connection.execute(states_of(array_id)).all()
        first = job_number(array_id) + 1
        return {row.number - first: JobState(row.state) for row in rows}

    def task_counts(self, array_ids: Collection[JobId]) -> Mapping[JobId, Mapping[JobState, int]]:
        """Return how many tasks with a row are in each state, by array."""
        counts: dict[JobId, dict[JobState, int]] = {each: {} for each in array_ids}
        if counts:
            with self._database.reading() as connection:
                for row in connection.execute(counts_of([job_number(each) for each in array_ids])):
                    counts[f"job-{row.array_number}"][JobState(row.state)] = row.tasks
        return counts

    def newest_job_number(self) -> int:
        """Return the highest number that a job, or a task of an array, has or will have; 0: none was submitted."""
        with self._database.reading() as connection:
            return int(connection.execute(select(schema.head.c.jobs)).scalar_one())

    def instance(self, instance_id: InstanceId) -> Instance:
        """Return an instance. Raises NotFound with a hint."""
        number = instance_number(instance_id)
        with self._database.reading() as connection:
            row = connection.execute(select(schema.instance).where(schema.instance.c.number == number)).first()
            if row is None:
                newest = connection.execute(select(func.max(schema.instance.c.number))).scalar()
                hint = "none was launched yet" if newest is None else f"the newest is inst-{newest}"
                raise NotFound(f"there is no {instance_id}; {hint}")
            return load_instance(row.number, row.revision, row.document)

    def jobs(
        self,
        *,
        states: Collection[JobState] | None = None,
        user: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        limit: int = 100,
        before: JobId | None = None,
    ) -> tuple[Job, ...]:
        """Return jobs, newest first, at most ``limit``, older than ``before``. ``tag`` is ``KEY`` or ``KEY=VALUE``.

        An array is one of them, its tasks are not.
        """
        query = JOBS.where(schema.job.c.array_number.is_(None)).order_by(schema.job.c.number.desc()).limit(limit)
        if states is not None:
            query = query.where(schema.job.c.state.in_([state.value for state in states]))
        if user is not None:
            query = query.where(schema.job.c.user_name == user)
        if name is not None:
            query = query.where(schema.job.c.name == name)
        if tag is not None:
            query = query.where(schema.job.c.number.in_(_tagged(tag)))
        if before is not None:
            query = query.where(schema.job.c.number < job_number(before))
        if not all(storable(text) for text in (user, name, tag) if text is not None):
            return ()
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(_loaded(row) for row in rows)

    def instances(self, *, live_only: bool = True, limit: int = 1000) -> tuple[Instance, ...]:
        """Return instances, newest first, at most ``limit``."""
        query = select(schema.instance).order_by(schema.instance.c.number.desc()).limit(limit)
        if live_only:
            query = query.where(schema.instance.c.state != InstanceState.TERMINATED.value)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(load_instance(row.number, row.revision, row.document) for row in rows)

    def counts(self) -> Mapping[JobState, int]:
        """Return the number of jobs in each state, ended ones included. An array counts as one, its tasks do not."""
        query = select(schema.job.c.state, func.count().label("number")).group_by(schema.job.c.state)
        with self._database.reading() as connection:
            counts = Counter({row.state: row.number for row in connection.execute(query)})
            for row in connection.execute(counts_of(None)):
                counts[row.state] -= row.tasks
        return {state: counts[state.value] for state in JobState}

    def newest_event_seq(self) -> int:
        """Return the number of the newest event, or 0."""
        row = self._database.read_row(_EVENT_COUNT)
        return 0 if row is None else int(row[0])

    def audit_head(self) -> AuditHead:
        """Return the newest link of the event log's chain."""
        with self._database.reading() as connection:
            return read_head(connection)

    def job_secrets(self, job_id: JobId) -> Mapping[str, str]:
        """Return a job's encrypted secrets by name of the variable; empty also for a job that does not exist.

        Tasks have those of their array.
        """
        table, number = schema.job_secret, job_number(job_id)
        owner = select(schema.job.c.array_number).where(schema.job.c.number == number).scalar_subquery()
        query = select(table.c.name, table.c.sealed).where(table.c.number == func.coalesce(owner, number))
        with self._database.reading() as connection:
            return {row.name: row.sealed for row in connection.execute(query)}

    def secret_key_counts(self) -> Mapping[str, int]:
        """Return how many secrets each key has encrypted, by the key's id."""
        with self._database.reading() as connection:
            return count_secrets(connection)

    def known_submissions(self, submissions: Sequence[Submission]) -> frozenset[tuple[str, str]]:
        """Return the (user, token) of those that were submitted before: submitting them again adds no job."""
        keys = [(each.spec.user, each.token) for each in submissions if each.token is not None]
        known: set[tuple[str, str]] = set()
        with self._database.reading() as connection:
            for start in range(0, len(keys), _KEYS_PER_QUERY):
                matches = tuple_(schema.job.c.user_name, schema.job.c.token).in_(keys[start : start + _KEYS_PER_QUERY])
                rows = connection.execute(select(schema.job.c.user_name, schema.job.c.token).where(matches))
                known.update((row.user_name, row.token) for row in rows)
        return frozenset(known)

    def events(
        self,
        *,
        after_seq: int = 0,
        before_seq: int | None = None,
        since: float | None = None,
        until: float | None = None,
        job_id: JobId | None = None,
        instance_id: InstanceId | None = None,
        kinds: Collection[EventKind] | None = None,
        limit: int = 1000,
        newest: bool = False,
    ) -> tuple[Event, ...]:
        """Return events with ``after_seq < seq < before_seq`` and ``since <= at < until``, in order.

        Of more than ``limit``, the first ones are returned, or with ``newest`` the last ones.
        """
        wanted = EventFilter(
            after_seq=after_seq,
            before_seq=before_seq,
            since=since,
            until=until,
            job_numbers=None if job_id is None else frozenset({job_number(job_id)}),
            instance_number=None if instance_id is None else instance_number(instance_id),
            kinds=_names(kinds),
        )
        with self._database.reading() as connection:
            rows = read_events(connection, wanted, self._folds, limit=limit, newest=newest)
        return tuple(map(load_event, rows))

    def new_events(self, after_seq: int, limit: int) -> tuple[Event, ...]:
        """Return the first ``limit`` events after ``after_seq``, in order, for a follower of the log.

        Those that this process wrote are not read again.
        """
        recent = self._recent.between(after_seq, self.newest_event_seq(), limit)
        return self.events(after_seq=after_seq, limit=limit) if recent is None else recent

    def iter_events(
        self, *, since: float | None = None, until: float | None = None, kinds: Collection[EventKind] | None = None
    ) -> Iterator[Event]:
        """Yield events with ``since <= at < until`` in order, up to the newest one at the start, in constant memory.

        Each batch is read in its own short transaction; they are consistent, as the log only grows.
        """
        folds = FoldCache()
        with self._database.reading() as connection:
            last = connection.execute(select(schema.head.c.events)).scalar_one()
            first = 1 if since is None else first_seq_since(connection, since)
        wanted = EventFilter(before_seq=last + 1, since=since, until=until, kinds=_names(kinds))
        position = None if first is None else first - 1
        while position is not None and position < last:
            with self._database.reading() as connection:
                after = replace(wanted, after_seq=position)
                rows = read_events(connection, after, folds, limit=_STREAM_CHUNK)
            yield from map(load_event, rows)
            position = rows[-1].seq if len(rows) == _STREAM_CHUNK else None
            folds.drop_before(position or 0)


def resealed(schedule: Schedule, key_id: str, reseal: Callable[[str, str, str], str | None]) -> tuple[Schedule, int]:
    """Return a schedule with the secrets of other keys encrypted anew, and their number."""
    secrets, changed = dict(schedule.secrets), 0
    for name, sealed in schedule.secrets.items():
        other = not sealed.startswith(f"{key_id}.")
        again = reseal(schedule.spec.user, name, sealed) if other else None
        if again is not None:
            secrets[name] = again
            changed += 1
    return replace(schedule, secrets=secrets), changed


def cancel_in(tx: Transaction, job: Job, actor: str) -> Job:
    """Record, within a transaction, that ``actor`` cancelled a job or an array with its tasks."""
    if job.state in JOB_ENDED or job.cancelled_by is not None:
        return job
    if job.is_array and job.spec.tasks is not None:
        job = _cancel_tasks(tx, job, range(len(job.spec.tasks)), actor)
    return _cancel(tx, job, actor)


def _cancel_in(tx: Transaction, job: Job, positions: Sequence[int] | None, actor: str) -> Job:
    if job.array:
        job, positions = tx.job(job.array), [job.task_position]
    else:
        job = tx.job(job.id)
    if positions is None:
        return cancel_in(tx, job, actor)
    return job if job.state in JOB_ENDED else _cancel_tasks(tx, job, positions, actor)


def _cancel(tx: Transaction, job: Job, actor: str) -> Job:
    fields: dict[str, Any] = {
        "from": job.state.value,
        "to": job.state.value,
        "code": "cancel_requested",
        "text": f"cancellation requested by {actor}",
    }
    tx.emit(EventKind.JOB_STATE, job_id=job.id, user=job.spec.user, actor=actor, **fields)
    return tx.put_job(replace(job, cancelled_by=actor))


def _cancel_tasks(tx: Transaction, array: Job, positions: Sequence[int], actor: str) -> Job:
    """Cancel tasks of an array: those with a row like jobs; those that are not made are recorded as cancelled."""
    record, wanted = array.task_record, set(positions)
    assert record is not None
    for each in tx.tasks(array.id):
        if each.run is not None:
            each, array = _cancel_in_run(tx, each, wanted)
            record = array.task_record
            assert record is not None
        own_ended = each.run is not None and each.run.own is not None
        if each.task_position in wanted and each.cancelled_by is None and not own_ended:
            _cancel(tx, each, actor)
    unmade = [at for at in wanted if not record.is_made(at) and record.state_of(at) is None]
    if not unmade:
        return array
    array = tx.put_job(replace(array, task_record=record.with_ended("cancelled", unmade)))
    fields: dict[str, Any] = {"from": array.state.value, "to": array.state.value, "code": "tasks_cancelled"}
    text = f"{counted(len(unmade), 'task')} cancelled by {actor} before they began"
    tx.emit(EventKind.JOB_STATE, job_id=array.id, user=array.spec.user, actor=actor, text=text, **fields)
    return array


def _cancel_in_run(tx: Transaction, job: Job, wanted: Set[int]) -> tuple[Job, Job]:
    """Cancel tasks of a run: at once if it waits, else once its unit, which is stopped for it, is over.

    Return the row and its array.
    """
    array, run = tx.job(job.array), job.run
    assert run is not None and array.task_record is not None
    chosen = [each for each in positions_in(run.others) if each in wanted]
    if not chosen:
        return job, array
    if job.state in JOB_ON_INSTANCE:
        return tx.put_job(replace(job, run=replace(run, cancelled=with_positions(run.cancelled, chosen)))), array
    job = tx.put_job(replace(job, run=replace(run, others=without_positions(run.others, chosen))))
    return job, tx.put_job(replace(array, task_record=array.task_record.with_ended("cancelled", chosen)))


def _loaded(row: Any) -> Job:
    return load_job(row.number, row.revision, row.document, load_spec(row.spec))


def _tasks_at(connection: Connection, array: Job, positions: Sequence[int], folds: FoldCache) -> list[Job]:
    first = job_number(array.id) + 1
    numbers = [first + each for each in positions]
    rows = {row.number: _loaded(row) for row in connection.execute(JOBS.where(schema.job.c.number.in_(numbers)))}
    absent = frozenset(numbers) - rows.keys()
    events = defaultdict[int, list[Event]](list)
    if absent:
        wanted = EventFilter(job_numbers=absent, kinds=_names(EVENTS_OF_A_TASK))
        for row in read_events(connection, wanted, folds, limit=_EVENTS_MOST):
            events[row.job_number].append(load_event(row))

    @cache
    def runs() -> dict[int, RunEnd]:
        """Return how those tasks ended that were in units with others."""
        of_array = EventFilter(job_numbers=frozenset({first - 1}), kinds=_names((EventKind.TASKS_ENDED,)))
        found = read_events(connection, of_array, folds, limit=_EVENTS_MOST)
        return ends_in_runs(map(load_event, found), positions)

    return [
        rows[number] if number in rows else task_without_row(number - first, array, events[number], runs)
        for number in numbers
    ]


def _names(kinds: Collection[EventKind] | None) -> frozenset[str] | None:
    return None if kinds is None else frozenset(kind.value for kind in kinds)


def _tagged(tag: str) -> Select[Any]:
    key, equals, value = tag.partition("=")
    query = select(schema.job_tag.c.number).where(schema.job_tag.c.tag == key)
    return query.where(schema.job_tag.c.tag_value == value) if equals else query


def _holds(tx: Transaction, lease: LeaderLease) -> bool:
    return (tx.head["lease_holder"], tx.head["lease_epoch"]) == (lease.holder, lease.epoch)


def check_lease(tx: Transaction, lease: LeaderLease | None) -> None:
    """Raise StaleWrite if ``lease`` was lost; None passes."""
    if lease is not None and not _holds(tx, lease):
        leader = tx.head["lease_holder"] or "no daemon"
        raise StaleWrite(
            f"{lease.holder} no longer leads (its epoch {lease.epoch}; now {tx.head['lease_epoch']}, led by {leader})"
        )


def _nearest_job(connection: Connection, job_id: str) -> str:
    """Return a hint for an unknown id: the number in the text, a job of that name, or the newest one."""
    digits = job_id.removeprefix("job").lstrip("-_# ").split(".")[0]
    named = select(func.max(schema.job.c.number)).where(schema.job.c.name == job_id)
    if digits.isascii() and digits.isdigit() and len(digits) <= 18:
        same_number = select(schema.job.c.number).where(schema.job.c.number == int(digits))
        number = connection.execute(same_number).scalar()
        if number is not None:
            return f"did you mean job-{number}?"
    number = connection.execute(named).scalar() if storable(job_id) else None
    if number is not None:
        return f"the newest job of that name is job-{number}"
    newest = connection.execute(select(schema.head.c.jobs)).scalar_one()
    return nearest_number(digits, newest)


def nearest_number(digits: str, newest: int) -> str:
    """Return a hint for a number without a job: whether there was one, and the newest job."""
    if digits.isascii() and digits.isdigit() and 0 < int(digits) <= newest:
        return f"it ended before the retention period; the newest is job-{newest}"
    return f"the newest is job-{newest}" if newest else "no job was submitted yet"
