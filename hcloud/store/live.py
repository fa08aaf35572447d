"""The cache of live rows, from which every cycle starts; updated by revision numbers.

It holds committed rows only: those that this process wrote are taken over after their commit, all others are read, in
one transaction. Failed writes therefore leave no trace, and writes of other processes are included.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import Any

from sqlalchemy import Connection, bindparam, select

from hcloud.core.estimates import Application, LayeredRows
from hcloud.core.model import JOB_ENDED, Instance, InstanceState, Intent, Job, JobSpec, JobState
from hcloud.core.rows import RowJournal, number_of
from hcloud.planner.snapshot import Directive, OfferBackoff, RefusedQuota
from hcloud.store.database import Database
from hcloud.store.documents import (
    backoff_key,
    load_application,
    load_backoff,
    load_directive,
    load_instance,
    load_intent,
    load_job,
    load_refused_quota,
    load_spec,
)
from hcloud.store.schema import (
    application,
    head,
    instance,
    intent,
    job,
    job_spec,
    machine_order,
    offer_backoff,
    refused_quota,
)

ENDED_STATES = tuple(sorted(state.value for state in JOB_ENDED))
_TERMINATED = InstanceState.TERMINATED.value

_REVISION = select(head.c.revision)
_HEAD = select(head.c.revision, head.c.intents_revision, head.c.backoffs_revision)
_JOB_COLUMNS = (job.c.number, job.c.revision, job.c.document, job.c.state, job.c.array_number, job.c.last_number)
_FIRST_JOBS = select(*_JOB_COLUMNS).where(job.c.state.not_in(ENDED_STATES)).order_by(job.c.number)
# Not ordered: SQLite would then scan the whole table instead of using the index on revisions.
_CHANGED_JOBS = select(*_JOB_COLUMNS).where(job.c.revision > bindparam("seen"))
_INSTANCE_COLUMNS = (instance.c.number, instance.c.revision, instance.c.document, instance.c.state)
_FIRST_INSTANCES = select(*_INSTANCE_COLUMNS).where(instance.c.state != _TERMINATED).order_by(instance.c.number)
_CHANGED_INSTANCES = select(*_INSTANCE_COLUMNS).where(instance.c.revision > bindparam("seen"))
_SPECS = select(job_spec.c.number, job_spec.c.document).where(
    job_spec.c.number.in_(bindparam("numbers", expanding=True))
)
_CHANGED_INTENTS = select(intent.c.token, intent.c.document).where(intent.c.revision > bindparam("seen"))
_TOKENS = select(intent.c.token)
_BACKOFFS = select(offer_backoff.c.document)
_QUOTAS = select(refused_quota.c.document)
_DIRECTIVES = select(machine_order.c.document).order_by(machine_order.c.scope, machine_order.c.name)
_CHANGED_APPLICATIONS = select(application.c.revision, application.c.document).where(
    application.c.revision > bindparam("seen")
)
_TASKS = select(job.c.number).where(
    job.c.array_number.in_(bindparam("arrays", expanding=True)), job.c.state.not_in(ENDED_STATES)
)
_SPECS_PER_QUERY = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """A consistent snapshot of everything that has not ended."""

    jobs: tuple[Job, ...] = ()
    """Jobs that have not ended, by number; of arrays those tasks that have a row, and themselves until they are
    admitted."""
    arrays: tuple[Job, ...] = ()
    """Admitted arrays that have not ended, by number."""
    held: tuple[Job, ...] = ()
    """Jobs and arrays that wait for others to end (:attr:`Job.is_held`), by number; they are not among ``jobs``."""
    instances: tuple[Instance, ...] = ()
    """Instances that are not terminated, by number."""
    intents: tuple[Intent, ...] = ()
    """Open intents, by token."""
    backoffs: tuple[OfferBackoff, ...] = ()
    """Back-offs, by key."""
    refused_quotas: tuple[RefusedQuota, ...] = ()
    """Account limits that refusals showed, by key."""
    applications: Mapping[str, Application] = field(default_factory=LayeredRows[Application])
    """Known applications by name."""
    directives: tuple[Directive, ...] = ()
    """Operators' directives, by scope and name."""

    @property
    def submitted(self) -> tuple[Job, ...]:
        """What users submitted and has not ended: jobs and arrays, without the arrays' tasks."""
        return (*self.arrays, *self.held, *(each for each in self.jobs if not each.array))

    def newest_submitted(self) -> Iterator[Job]:
        """Yield the same jobs, the newest first, each when it is asked for."""
        single = (each for each in reversed(self.jobs) if not each.array)
        kinds = (reversed(self.arrays), reversed(self.held), single)
        return merge(*kinds, key=lambda job: number_of(job.id), reverse=True)


def is_active_array(job: Job) -> bool:
    """Return whether ``job`` is an admitted array: its tasks are planned, and it is not."""
    return job.is_array and job.state in (JobState.QUEUED, JobState.RUNNING)


class LiveJobs:
    """Jobs that have not ended, active arrays and held jobs, with the changes between snapshots of each."""

    def __init__(self) -> None:
        self.jobs: RowJournal[Job] = RowJournal()
        self.arrays: RowJournal[Job] = RowJournal()
        self.held: RowJournal[Job] = RowJournal()

    def write(self, rows: Mapping[int, Job | None]) -> None:
        """Insert or replace rows by number; None removes a row of whichever kind."""
        written: list[tuple[RowJournal[Job], dict[int, Job | None]]] = [
            (self.jobs, {}), (self.arrays, {}), (self.held, {}),
        ]  # fmt: skip
        for at, row in rows.items():
            home = None if row is None else self._home(row)
            for journal, of_kind in written:
                if journal is home:
                    of_kind[at] = row
                elif at in journal.rows:
                    of_kind[at] = None
        for journal, of_kind in written:
            if of_kind:
                journal.write(of_kind)

    def _home(self, job: Job) -> RowJournal[Job]:
        if job.is_held:
            return self.held
        return self.arrays if is_active_array(job) else self.jobs

    def get(self, number: int) -> Job | None:
        """Return a row of any kind, or None."""
        return self.jobs.rows.get(number) or self.arrays.rows.get(number) or self.held.rows.get(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedRows:
    """The rows that one transaction wrote, by number, token or name. None: ended, or closed."""

    revision: int
    intents_revision: int
    jobs: Mapping[int, Job | None]
    instances: Mapping[int, Instance | None]
    intents: Mapping[str, Intent | None]
    applications: Mapping[str, Application]


class LiveCache:
    """Holds the last view and updates it with the rows that changed since."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._jobs = LiveJobs()
        self._instances: RowJournal[Instance] = RowJournal()
        self._intents: dict[str, Intent] = {}
        self._applications: LayeredRows[Application] = LayeredRows()
        # Revisions of the last refresh that completed.
        self._seen = -1
        self._seen_intents = -1
        self._seen_backoffs = -1
        self._backoffs: tuple[OfferBackoff, ...] = ()
        self._quotas: tuple[RefusedQuota, ...] = ()
        self._directives: tuple[Directive, ...] = ()
        self._view: LiveView | None = None
        """None: to be built from what is cached."""

    def view(self) -> LiveView:
        """Return the current view: the same object while nothing changes. Raises StoreBusy."""
        with self._lock:
            known = self._database.read_row(_REVISION)
            if known is None or known[0] != self._seen:
                with self._database.reading() as connection:
                    self._refresh(connection, connection.execute(_HEAD).one())
            if self._view is None:
                self._view = self._new_view()
            return self._view

    def follow(self, before: int, written: CommittedRows) -> None:
        """Take over what a transaction of this process committed, if the cache is as it began, at revision ``before``.

        Call it after the commit. If it is not called, the next view reads the rows.
        """
        with self._lock:
            if self._seen != before or written.revision == before:
                return
            self._take(written.jobs, written.instances, written.applications)
            if written.intents:
                self._intents |= {token: each for token, each in written.intents.items() if each is not None}
                for token in [token for token, each in written.intents.items() if each is None]:
                    self._intents.pop(token, None)
            # Last: whoever finds its revision here finds its rows.
            self._seen, self._seen_intents = written.revision, written.intents_revision

    def known_spec(self, number: int) -> JobSpec | None:
        """Return a live job's spec if it is cached; specs never change."""
        job = self._jobs.get(number)
        return job.spec if job is not None else None

    def known_job(self, number: int, revision: int) -> Job | None:
        """Return a live job if it is cached as of this revision of the database."""
        return self._jobs.get(number) if self._seen == revision else None

    def known_instance(self, number: int, revision: int) -> Instance | None:
        """Return a live instance if it is cached as of this revision of the database."""
        return self._instances.rows.get(number) if self._seen == revision else None

    def knows_intents(self, revision: int) -> bool:
        """Return whether all open intents are cached as of this revision of the database."""
        return self._seen == revision

    def known_intent(self, token: str) -> Intent | None:
        """Return an open intent, or None; only if the cache knows all of them."""
        return self._intents.get(token)

    def _refresh(self, connection: Connection, now: Any) -> None:
        jobs = self._changed_jobs(connection)
        machines = self._changed_instances(connection)
        intents = self._intents if now.intents_revision == self._seen_intents else self._open_intents(connection)
        same_backoffs = now.backoffs_revision == self._seen_backoffs
        backoffs = self._backoffs if same_backoffs else _read_backoffs(connection)
        quotas = self._quotas if same_backoffs else _read_refused_quotas(connection)
        applications = self._changed_applications(connection)
        directives = tuple(load_directive(text) for text in connection.execute(_DIRECTIVES).scalars())
        # Nothing below can fail, and a failure above leaves the last view unchanged.
        self._take(jobs, machines, applications)
        self._intents, self._backoffs, self._quotas, self._directives = intents, backoffs, quotas, directives
        self._seen = now.revision
        self._seen_intents, self._seen_backoffs = now.intents_revision, now.backoffs_revision

    def _take(
        self,
        jobs: Mapping[int, Job | None],
        instances: Mapping[int, Instance | None],
        applications: Mapping[str, Application],
    ) -> None:
        self._view = None
        self._jobs.write(jobs)
        self._instances.write(instances)
        if applications:
            self._applications = self._applications.over(applications)

    def _new_view(self) -> LiveView:
        return LiveView(
            jobs=self._jobs.jobs.snapshot(),
            arrays=self._jobs.arrays.snapshot(),
            held=self._jobs.held.snapshot(),
            instances=self._instances.snapshot(),
            intents=tuple(self._intents[token] for token in sorted(self._intents)),
            backoffs=self._backoffs,
            refused_quotas=self._quotas,
            applications=self._applications,
            directives=self._directives,
        )

    def _rows(self, connection: Connection, first: Any, changed: Any) -> Sequence[Any]:
        if self._seen < 0:
            return connection.execute(first).all()
        return sorted(connection.execute(changed, {"seen": self._seen}), key=lambda row: row.number)

    def _changed_jobs(self, connection: Connection) -> dict[int, Job | None]:
        rows = self._rows(connection, _FIRST_JOBS, _CHANGED_JOBS)
        living = [row for row in rows if row.state not in ENDED_STATES]
        owners = {row.number: row.array_number or row.number for row in living}
        specs = {number: spec for number in owners.values() if (spec := self.known_spec(number)) is not None}
        missing = sorted(set(owners.values()) - specs.keys())
        for start in range(0, len(missing), _SPECS_PER_QUERY):
            batch = {"numbers": missing[start : start + _SPECS_PER_QUERY]}
            specs.update((row.number, load_spec(row.document)) for row in connection.execute(_SPECS, batch))
        changed: dict[int, Job | None] = dict.fromkeys(self._tasks_without_rows(connection, rows))
        changed.update(dict.fromkeys(row.number for row in rows))
        changed.update(
            (row.number, load_job(row.number, row.revision, row.document, specs[owners[row.number]])) for row in living
        )
        return changed

    def _tasks_without_rows(self, connection: Connection, rows: Sequence[Any]) -> list[int]:
        """Return the cached tasks that another process recorded with their array, of which it deleted the rows."""
        arrays = {f"job-{row.number}": row.number for row in rows if row.last_number is not None}
        known = [number_of(each.id) for each in self._jobs.jobs.rows.values() if each.array in arrays] if arrays else []
        if not known:
            return []
        left = set(connection.execute(_TASKS, {"arrays": list(arrays.values())}).scalars())
        return [number for number in known if number not in left]

    def _changed_instances(self, connection: Connection) -> dict[int, Instance | None]:
        rows = self._rows(connection, _FIRST_INSTANCES, _CHANGED_INSTANCES)
        return {
            row.number: None if row.state == _TERMINATED else load_instance(row.number, row.revision, row.document)
            for row in rows
        }

    def _changed_applications(self, connection: Connection) -> dict[str, Application]:
        rows = connection.execute(_CHANGED_APPLICATIONS, {"seen": self._seen})
        return {each.name: each for each in (load_application(row.revision, row.document) for row in rows)}

    def _open_intents(self, connection: Connection) -> dict[str, Intent]:
        changed = connection.execute(_CHANGED_INTENTS, {"seen": self._seen})
        fresh = {row.token: load_intent(row.document) for row in changed}
        # Closing an intent deletes its row.
        return {token: fresh.get(token) or self._intents[token] for token in connection.execute(_TOKENS).scalars()}


def _read_backoffs(connection: Connection) -> tuple[OfferBackoff, ...]:
    return tuple(sorted((load_backoff(text) for text in connection.execute(_BACKOFFS).scalars()), key=backoff_key))


def _read_refused_quotas(connection: Connection) -> tuple[RefusedQuota, ...]:
    # Sorted here: databases compare text differently.
    quotas = (load_refused_quota(text) for text in connection.execute(_QUOTAS).scalars())
    return tuple(sorted(quotas, key=lambda each: each.key))
