"""The cache of live rows, from which every cycle starts; updated by revision numbers.

It reads committed rows only, in one transaction. Failed writes therefore leave no trace, and writes of other processes
are included.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, select

from hcloud.core.estimates import Application, LayeredRows
from hcloud.core.model import JOB_ENDED, Instance, InstanceState, Intent, Job, JobSpec
from hcloud.core.rows import RowJournal
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

_HEAD = select(head.c.revision, head.c.intents_revision, head.c.backoffs_revision)
_JOB_COLUMNS = (job.c.number, job.c.revision, job.c.document, job.c.state)
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
_SPECS_PER_QUERY = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """A consistent snapshot of everything that has not ended."""

    jobs: tuple[Job, ...] = ()
    """Jobs that have not ended, by number."""
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


class LiveCache:
    """Holds the last view and updates it with the rows that changed since."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._jobs: RowJournal[Job] = RowJournal()
        self._instances: RowJournal[Instance] = RowJournal()
        self._intents: dict[str, Intent] = {}
        self._applications: LayeredRows[Application] = LayeredRows()
        # Revisions of the last refresh that completed.
        self._seen = -1
        self._seen_intents = -1
        self._seen_backoffs = -1
        self._view = LiveView()

    def view(self) -> LiveView:
        """Return the current view: the same object while nothing changes. Raises StoreBusy."""
        with self._lock, self._database.reading() as connection:
            now = connection.execute(_HEAD).one()
            if now.revision != self._seen:
                self._refresh(connection, now)
            return self._view

    def known_spec(self, number: int) -> JobSpec | None:
        """Return a live job's spec if it is cached; specs never change."""
        job = self._jobs.rows.get(number)
        return job.spec if job is not None else None

    def known_job(self, number: int, revision: int) -> Job | None:
        """Return a live job if it is cached as of this revision of the database."""
        return self._jobs.rows.get(number) if self._seen == revision else None

    def _refresh(self, connection: Connection, now: Any) -> None:
        jobs = self._changed_jobs(connection)
        machines = self._changed_instances(connection)
        intents = self._intents if now.intents_revision == self._seen_intents else self._open_intents(connection)
        same_backoffs = now.backoffs_revision == self._seen_backoffs
        backoffs = self._view.backoffs if same_backoffs else _read_backoffs(connection)
        quotas = self._view.refused_quotas if same_backoffs else _read_refused_quotas(connection)
        applications = self._changed_applications(connection)
        directives = tuple(load_directive(text) for text in connection.execute(_DIRECTIVES).scalars())
        # Nothing below can fail, and a failure above leaves the last view unchanged.
        self._jobs.write(jobs)
        self._instances.write(machines)
        self._intents = intents
        if applications:
            self._applications = self._applications.over(applications)
        self._view = LiveView(
            jobs=self._jobs.snapshot(),
            instances=self._instances.snapshot(),
            intents=tuple(intents[token] for token in sorted(intents)),
            backoffs=backoffs,
            refused_quotas=quotas,
            applications=self._applications,
            directives=directives,
        )
        self._seen = now.revision
        self._seen_intents, self._seen_backoffs = now.intents_revision, now.backoffs_revision

    def _rows(self, connection: Connection, first: Any, changed: Any) -> Sequence[Any]:
        if self._seen < 0:
            return connection.execute(first).all()
        return sorted(connection.execute(changed, {"seen": self._seen}), key=lambda row: row.number)

    def _changed_jobs(self, connection: Connection) -> dict[int, Job | None]:
        rows = self._rows(connection, _FIRST_JOBS, _CHANGED_JOBS)
        living = [row for row in rows if row.state not in ENDED_STATES]
        specs = {row.number: spec for row in living if (spec := self.known_spec(row.number)) is not None}
        missing = [row.number for row in living if row.number not in specs]
        for start in range(0, len(missing), _SPECS_PER_QUERY):
            batch = {"numbers": missing[start : start + _SPECS_PER_QUERY]}
            specs.update((row.number, load_spec(row.document)) for row in connection.execute(_SPECS, batch))
        changed: dict[int, Job | None] = dict.fromkeys(row.number for row in rows)
        changed.update(
            (row.number, load_job(row.number, row.revision, row.document, specs[row.number])) for row in living
        )
        return changed

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
