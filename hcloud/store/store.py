"""The store's face: see `hcloud.store`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, delete, func, insert, select, tuple_

from hcloud.core.errors import NotFound, StaleWrite
from hcloud.core.model import JOB_ENDED, Event, EventKind, Instance, InstanceId, InstanceState, Job, JobId, JobState
from hcloud.store import schema
from hcloud.store.database import Database
from hcloud.store.documents import (
    checked_text,
    instance_number,
    job_number,
    load_event,
    load_instance,
    load_job,
    load_spec,
    storable,
)
from hcloud.store.forgetting import PIECE, forget_events, forget_rows, referred_to, untold, whole_stories
from hcloud.store.live import LiveCache, LiveView
from hcloud.store.opening import prepare
from hcloud.store.transaction import LeaderLease, Submission, Transaction

_JOBS = select(
    schema.job.c.number, schema.job.c.revision, schema.job.c.document, schema.job_spec.c.document.label("spec")
).join(schema.job_spec, schema.job_spec.c.number == schema.job.c.number)
_STREAM_CHUNK = 2000
_KEYS_PER_QUERY = 500


class Store:
    """Jobs, instances, intents, back-offs and the event log. Safe to use from several threads and several processes.

    Every method may raise StoreBusy (locked, full or gone for now: nothing was written, try again) and, for a fault
    that does not pass, StoreError.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._live = LiveCache(database)
        self._highest_revision = 0

    @classmethod
    def open(cls, url: str, *, busy_timeout_s: float = 5.0) -> Store:
        """Open a database, creating or migrating its tables. A write waits ``busy_timeout_s`` for other writers.

        Raises:
            ConfigError: a URL, path or file that cannot be right, or a schema of a newer HCloud.
            StoreBusy: locked, or not answering for now.
        """
        database = Database(url, busy_timeout_s)
        with ExitStack() as undo:
            undo.callback(database.close)  # whatever ends this early, no connection may stay open behind it
            prepare(database)
            undo.pop_all()
        return cls(database)

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    @property
    def crash_point(self) -> Callable[[str], None] | None:
        """Called with ``commit:before`` and ``commit:after`` around every commit, where set (crash tests)."""
        return self._database.crash_point

    @crash_point.setter
    def crash_point(self, called: Callable[[str], None] | None) -> None:
        """Set or remove what is called around commits."""
        self._database.crash_point = called

    # --------------------------------------------------------------------------------------------------------- writing
    @contextmanager
    def transaction(self, now: float, lease: LeaderLease | None = None) -> Iterator[Transaction]:
        """Yield a transaction: committed on exit, rolled back on an exception. Never hold it across an outside call.

        Raises:
            StaleWrite: the lease is no longer ours.
        """
        opened: list[Transaction] = []
        with self._database.writing(lambda connection: opened[0].finish(connection)) as connection:
            opened.append(Transaction(connection, now, self._highest_revision + 1, self._live.known_spec))
            # Also when this one fails: a revision given out by a failed write must never come to mean another one.
            self._highest_revision = opened[0].revision
            check_lease(opened[0], lease)
            yield opened[0]

    def submit(self, submissions: Sequence[Submission], now: float) -> tuple[Job, ...]:
        """Take in jobs, all or none, in the order given; a known (user, token) gives the earlier job.

        Raises BadInput where a text cannot be stored.
        """
        with self.transaction(now) as tx:
            return tx.add_jobs(submissions)

    def request_cancel(self, job_id: JobId, actor: str, now: float) -> Job:
        """Note that ``actor`` wants the job ended; the next cycle sees to it. Ended or asked before: returned as it is.

        Raises NotFound.
        """
        self.job(job_id)  # for the helpful NotFound
        with self.transaction(now) as tx:
            job = tx.job(job_id)
            if job.state in JOB_ENDED or job.cancelled_by is not None:
                return job
            tx.emit(
                EventKind.JOB_STATE,
                job_id=job_id,
                user=job.spec.user,
                actor=actor,
                **_no_move(job, "cancel_requested", f"{actor} asked to cancel it"),
            )
            return tx.put_job(replace(job, cancelled_by=actor))

    def set_meta(self, key: str, value: str) -> None:
        """Keep a text under a key."""
        row = {"key": checked_text(key, "key"), "value": checked_text(value, "value")}
        with self._writing() as connection:
            connection.execute(delete(schema.meta).where(schema.meta.c.key == key))
            connection.execute(insert(schema.meta), row)

    def get_meta(self, key: str) -> str | None:
        """Return the text kept under a key, or None."""
        if not storable(key):
            return None
        with self._database.reading() as connection:
            return connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == key)).scalar()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._database.writing() as connection:
            connection.execute(select(schema.head.c.revision).with_for_update())
            yield connection

    def prune_events(self, before: float) -> int:
        """Forget events older than ``before`` and return how many.

        All events of a job or instance that lives, or ended later than that, stay: a report needs a story whole.
        Deletes in pieces, so that other writers get their turn.
        """
        return self._prune(before, whole_stories(before))

    def prune_samples(self, before: float) -> int:
        """Forget samples older than ``before``, also those of jobs that live, and return how many.

        Decisions, costs and outcomes stay; a service that runs for a year would else fill the database by itself.
        """
        return self._prune(before, schema.event_log.c.kind == EventKind.SAMPLE.value)

    def _prune(self, before: float, which: ColumnElement[bool]) -> int:
        pruned = 0
        while True:
            with self._writing() as connection:
                count = forget_events(connection, before, which)
            pruned += count
            if count < PIECE:
                return pruned

    def prune_rows(self, before: float) -> int:
        """Forget jobs and instances that were over before ``before`` and of which no event tells any more, but those
        that what lives refers to; return how many.

        Numbers are not given again; a job may be submitted again under the token of one that is forgotten.
        """
        jobs, machines = referred_to(self.live())
        return self._prune_table(schema.job, before, jobs) + self._prune_table(schema.instance, before, machines)

    def _prune_table(self, table: Table, before: float, kept: Set[int]) -> int:
        pruned, last = 0, 0
        while True:
            with self._writing() as connection:
                found = untold(connection, table, before, last)
                gone = [number for number in found if number not in kept]
                forget_rows(connection, table, gone)
            pruned += len(gone)
            if len(found) < PIECE:
                return pruned
            last = found[-1]

    # ----------------------------------------------------------------------------------------------------------- lease
    def acquire_lease(self, holder: str, now: float, ttl_s: float) -> LeaderLease | None:
        """Become leader for ``ttl_s``, if nobody else leads at ``now``.

        The same holder gets it at once under a new epoch: a restarted daemon fences off its former self. Epochs are
        Unix seconds where those have grown, so that they do so over a restored database, too: workers remember them.
        """
        with self.transaction(now) as tx:
            other = tx.head["lease_holder"]
            if other not in (None, holder) and tx.head["lease_until"] > now:
                return None
            epoch = max(tx.head["lease_epoch"] + 1, int(now))
            lease = LeaderLease(holder=checked_text(holder, "holder"), epoch=epoch, until=now + ttl_s)
            tx.head.update(lease_holder=lease.holder, lease_epoch=lease.epoch, lease_until=lease.until)
            return lease

    def renew_lease(self, lease: LeaderLease, now: float, ttl_s: float) -> LeaderLease | None:
        """Lead on until ``now + ttl_s``; None when somebody else has led meanwhile."""
        with self.transaction(now) as tx:
            if not _holds(tx, lease):
                return None
            tx.head["lease_until"] = now + ttl_s
            return replace(lease, until=now + ttl_s)

    def release_lease(self, lease: LeaderLease) -> None:
        """Let others lead at once; without effect when the lease is lost already."""
        with self.transaction(0.0) as tx:
            if _holds(tx, lease):
                tx.head.update(lease_holder=None, lease_until=0.0)

    # --------------------------------------------------------------------------------------------------------- reading
    def live(self) -> LiveView:
        """Return everything that has not ended, as last committed by anybody; costs little where little changed."""
        return self._live.view()

    def job(self, job_id: JobId) -> Job:
        """Return a job. Raises NotFound, which names the nearest there is."""
        with self._database.reading() as connection:
            try:
                row = connection.execute(_JOBS.where(schema.job.c.number == job_number(job_id))).first()
            except NotFound as error:
                raise NotFound(f"{error}; {_nearest_job(connection, job_id)}") from error
            if row is None:
                raise NotFound(f"there is no {job_id}; {_nearest_job(connection, job_id)}")
            return load_job(row.number, row.revision, row.document, load_spec(row.spec))

    def instance(self, instance_id: InstanceId) -> Instance:
        """Return an instance. Raises NotFound, which names the nearest there is."""
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
        """Return jobs, newest first, at most ``limit``, older than ``before``. ``tag`` is ``KEY`` or ``KEY=VALUE``."""
        query = _JOBS.order_by(schema.job.c.number.desc()).limit(limit)
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
        if not all(storable(wanted) for wanted in (user, name, tag) if wanted is not None):
            return ()
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(load_job(row.number, row.revision, row.document, load_spec(row.spec)) for row in rows)

    def instances(self, *, live_only: bool = True, limit: int = 1000) -> tuple[Instance, ...]:
        """Return instances, newest first, at most ``limit``."""
        query = select(schema.instance).order_by(schema.instance.c.number.desc()).limit(limit)
        if live_only:
            query = query.where(schema.instance.c.state != InstanceState.TERMINATED.value)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(load_instance(row.number, row.revision, row.document) for row in rows)

    def counts(self) -> Mapping[JobState, int]:
        """Return how many jobs there are in each state, ended ones included."""
        query = select(schema.job.c.state, func.count().label("number")).group_by(schema.job.c.state)
        with self._database.reading() as connection:
            found = {row.state: row.number for row in connection.execute(query)}
        return {state: found.get(state.value, 0) for state in JobState}

    def newest_event_seq(self) -> int:
        """Return the number of the newest event, 0 where there is none."""
        with self._database.reading() as connection:
            return int(connection.execute(select(schema.head.c.events)).scalar_one())

    def taken_in(self, submissions: Sequence[Submission]) -> frozenset[tuple[str, str]]:
        """Return the (user, token) of those that were taken in before: submitting them again adds nothing."""
        keys = [(each.spec.user, each.token) for each in submissions if each.token is not None]
        known: set[tuple[str, str]] = set()
        with self._database.reading() as connection:
            for start in range(0, len(keys), _KEYS_PER_QUERY):
                wanted = tuple_(schema.job.c.user_name, schema.job.c.token).in_(keys[start : start + _KEYS_PER_QUERY])
                rows = connection.execute(select(schema.job.c.user_name, schema.job.c.token).where(wanted))
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
        """Return events between ``after_seq`` and ``before_seq`` with ``since <= at < until``, in order: the first
        ``limit``, or the last (``newest``).
        """
        seq = schema.event_log.c.seq
        query = _event_query(since, until, kinds).where(seq > after_seq).limit(limit)
        if before_seq is not None:
            query = query.where(seq < before_seq)
        if newest:
            query = query.order_by(None).order_by(seq.desc())
        if job_id is not None:
            query = query.where(schema.event_log.c.job_number == job_number(job_id))
        if instance_id is not None:
            query = query.where(schema.event_log.c.instance_number == instance_number(instance_id))
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(load_event(row) for row in (reversed(rows) if newest else rows))

    def iter_events(
        self, *, since: float | None = None, until: float | None = None, kinds: Collection[EventKind] | None = None
    ) -> Iterator[Event]:
        """Yield events with ``since <= at < until`` in order, up to the newest when it began; memory stays constant.

        Read in pieces, each in its own short transaction (the log only grows, so the pieces fit together).
        """
        query = _event_query(since, until, kinds)
        seq = schema.event_log.c.seq
        with self._database.reading() as connection:
            last = connection.execute(select(schema.head.c.events)).scalar_one()
            position = connection.execute(_first_seq(since)).scalar() if since is not None else 1
        while position is not None and position <= last:
            piece = query.where(seq >= position, seq <= last).limit(_STREAM_CHUNK)
            with self._database.reading() as connection:
                rows = connection.execute(piece).all()
            yield from (load_event(row) for row in rows)
            position = rows[-1].seq + 1 if len(rows) == _STREAM_CHUNK else None


def _event_query(since: float | None, until: float | None, kinds: Collection[EventKind] | None) -> Select[Any]:
    query = select(schema.event_log).order_by(schema.event_log.c.seq)
    if since is not None:
        query = query.where(schema.event_log.c.at >= since)
    if until is not None:
        query = query.where(schema.event_log.c.at < until)
    if kinds is not None:
        query = query.where(schema.event_log.c.kind.in_([kind.value for kind in kinds]))
    return query


def _first_seq(since: float) -> Select[Any]:
    return select(func.min(schema.event_log.c.seq)).where(schema.event_log.c.at >= since)


def _tagged(tag: str) -> Select[Any]:
    key, equals, value = tag.partition("=")
    query = select(schema.job_tag.c.number).where(schema.job_tag.c.tag == key)
    return query.where(schema.job_tag.c.tag_value == value) if equals else query


def _no_move(job: Job, code: str, text: str) -> dict[str, Any]:
    """Fields of a JOB_STATE event that tells of a job without moving it."""
    return {"from": job.state.value, "to": job.state.value, "code": code, "text": text}


def _holds(tx: Transaction, lease: LeaderLease) -> bool:
    return (tx.head["lease_holder"], tx.head["lease_epoch"]) == (lease.holder, lease.epoch)


def check_lease(tx: Transaction, lease: LeaderLease | None) -> None:
    """Raise StaleWrite unless ``lease`` (None: anybody) still leads."""
    if lease is not None and not _holds(tx, lease):
        leader = tx.head["lease_holder"] or "nobody"
        raise StaleWrite(
            f"{lease.holder} no longer leads (its epoch {lease.epoch}; now {tx.head['lease_epoch']}, led by {leader})"
        )


def _nearest_job(connection: Connection, job_id: str) -> str:
    """Say what was probably meant: the number in the text, a job of that name, or the newest one."""
    digits = job_id.removeprefix("job").lstrip("-_# ").split(".")[0]
    named = select(func.max(schema.job.c.number)).where(schema.job.c.name == job_id)
    if digits.isascii() and digits.isdigit() and len(digits) <= 18:
        near = select(schema.job.c.number).where(schema.job.c.number == int(digits))
        found = connection.execute(near).scalar()
        if found is not None:
            return f"did you mean job-{found}?"
    found = connection.execute(named).scalar() if storable(job_id) else None
    if found is not None:
        return f"the newest job of that name is job-{found}"
    newest = connection.execute(select(schema.head.c.jobs)).scalar_one()
    return nearest_number(digits, newest)


def nearest_number(digits: str, newest: int) -> str:
    """Say of a job that is not there whether it was, once, and which is the newest."""
    if digits.isascii() and digits.isdigit() and 0 < int(digits) <= newest:
        return f"it ended longer ago than the past is kept; the newest is job-{newest}"
    return f"the newest is job-{newest}" if newest else "no job was submitted yet"
