"""A store in memory, for simulations: the contract of :class:`Store` within one process, without persistence.

The same contract suite runs on it and on both databases.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from hcloud.core.co_runs import MOST_CO_RUNS, CoRun, CoRunKey
from hcloud.core.errors import BadInput, InvalidTransition, NotFound, StaleWrite
from hcloud.core.estimates import Application, LayeredRows
from hcloud.core.model import (
    JOB_ENDED,
    Event,
    EventKind,
    Instance,
    InstanceId,
    InstanceState,
    Intent,
    Job,
    JobId,
    JobState,
    check_instance_move,
    check_job_move,
    with_memory,
)
from hcloud.core.rows import RowJournal, replace_fields
from hcloud.core.schedules import Schedule, ScheduleId
from hcloud.planner.snapshot import Directive, DirectiveScope, OfferBackoff, RefusedQuota
from hcloud.store.array_rows import EVENTS_OF_A_TASK, EndedTask, RunEnd, ends_in_runs, task_without_row
from hcloud.store.chain import PRUNED, AuditHead
from hcloud.store.documents import (
    backoff_key,
    checked_text,
    co_run_key,
    dump,
    instance_number,
    job_number,
    read_back,
    schedule_number,
    storable,
)
from hcloud.store.forgetting import referenced_numbers
from hcloud.store.live import LiveJobs, LiveView
from hcloud.store.overlay import OverlayTable
from hcloud.store.store import Store, check_lease, nearest_number
from hcloud.store.transaction import LeaderLease, Submission, Transaction, check_revision, indexed_columns

Key = TypeVar("Key")
Value = TypeVar("Value")
Row = TypeVar("Row", covariant=True)
_BackoffKey = tuple[str, str, str, str]
_seq = attrgetter("seq")


class _CoRuns(NamedTuple):
    """The co-run records; a transaction changes a copy of its own."""

    rows: dict[CoRunKey, tuple[int, CoRun]]
    by_time: list[tuple[float, str, CoRunKey]]
    """When each was observed last, its key as text, its key; the oldest first."""

    def copy(self) -> _CoRuns:
        """Return the same records, to be changed."""
        return _CoRuns(self.rows.copy(), self.by_time.copy())


class MemoryTransaction(Transaction):
    """See :class:`Transaction`. Its writes are layered over the store's tables and merged by the commit."""

    def __init__(self, store: MemoryStore, now: float, first_revision: int) -> None:  # without a connection
        self.now = now
        self.head = dict(store.head)
        self.revision = max(self.head["revision"] + 1, first_revision)
        self._jobs = OverlayTable(store.all_jobs)
        self._instances = OverlayTable(store.all_instances)
        self._applications = OverlayTable(store.all_applications)
        self._by_program = store.by_program
        self._tokens = OverlayTable(store.tokens)
        self._launch_tokens = OverlayTable(store.launch_tokens)
        self._intents = store.intents
        self._fresh_intents: dict[str, Intent | None] = {}
        self._backoffs, self._quotas = store.backoffs, store.refused_quotas
        self._orders = store.orders
        self._meta = store.metas
        self._run_times = store.run_times_state
        self._committed_co_runs = self._co_runs = store.all_co_runs
        self._made: list[Event] = []
        self._secrets: dict[int, dict[str, str]] = {}
        self._dependents = store.dependents
        self._schedules = store.all_schedules
        self._new_dependents: dict[int, set[int]] = {}
        self._taken_dependents: set[int] = set()
        self._task_rows = store.task_rows
        self._deleted: list[Job] = []

    def merge(self, store: MemoryStore) -> None:
        """Commit the writes to the store."""
        for each in (self._jobs, self._instances, self._applications, self._tokens, self._launch_tokens):
            each.merge()
        stale = {"backoffs"} if self._backoffs is not store.backoffs else set()
        stale |= {"refused_quotas"} if self._quotas is not store.refused_quotas else set()
        stale |= {"orders"} if self._orders is not store.orders else set()
        store.backoffs, store.refused_quotas, store.head = self._backoffs, self._quotas, self.head
        store.orders, store.metas, store.run_times_state = self._orders, self._meta, self._run_times
        store.all_co_runs = self._co_runs
        store.log += self._made
        store.secrets |= self._secrets
        store.all_schedules = self._schedules
        for upstream in self._taken_dependents:
            store.dependents.pop(upstream, None)
        for upstream, numbers in self._new_dependents.items():
            store.dependents.setdefault(upstream, set()).update(numbers)
        for number, job in self._jobs.fresh.items():
            if job.array:
                store.task_rows.setdefault(job.array, set()).add(number)
        for job in self._deleted:
            store.task_rows[job.array].discard(job_number(job.id))
            del store.all_jobs[job_number(job.id)]
        store.drop_rows([job_number(job.id) for job in self._deleted])
        store.publish(self._jobs.fresh, self._instances.fresh, self._applications.fresh, self._fresh_intents, stale)

    # ------------------------------------------------------------------------------------------------------------ jobs
    def job(self, job_id: JobId) -> Job:
        """Return the current job. Raises NotFound."""
        return _row(self._jobs, job_number(job_id), job_id)

    def put_job(self, job: Job) -> Job:
        """See :meth:`Transaction.put_job`."""
        number = job_number(job.id)
        stored = _row(self._jobs, number, job.id)
        check_revision(job.id, job.revision, stored.revision)
        if stored.state is not job.state:
            check_job_move(stored, job.state)
        if job.spec is not stored.spec and job.spec != stored.spec:
            raise BadInput(f"{job.id}: a job's spec never changes after submission; submit a new job")
        written = self._jobs.fresh[number] = replace_fields(
            job, spec=with_memory(stored.spec, job.memory_mib), revision=self.revision
        )
        self.head["revision"] = self.revision
        return written

    def _earlier_job(self, submission: Submission) -> Job | None:
        token = submission.token
        number = None if token is None else self._tokens.get((submission.spec.user, token))
        return None if number is None else self._jobs.get(number)

    def _insert_jobs(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            indexed_columns(job)  # text that a database cannot store is refused here as well
            dump(job.spec)
            for tag, value in job.spec.tags.items():
                checked_text(tag, "tag")
                checked_text(value, f"value of tag {tag}")
            number = job_number(job.id)
            self._jobs.fresh[number] = job
            if job.submission_token is not None:
                self._tokens.fresh[job.spec.user, job.submission_token] = number
        self.head["revision"] = self.revision

    def _insert_job_rows(self, jobs: Sequence[Job]) -> None:
        made = {job_number(job.id): job for job in jobs}
        self._jobs.fresh |= made
        self._deleted = [each for each in self._deleted if job_number(each.id) not in made]
        self.head["revision"] = self.revision

    def tasks(self, array_id: JobId) -> tuple[Job, ...]:
        """See :meth:`Transaction.tasks`."""
        numbers = self._task_rows.get(array_id, set()) | {
            n for n, job in self._jobs.fresh.items() if job.array == array_id
        }
        jobs = [self.job(f"job-{number}") for number in sorted(numbers)]
        return tuple(job for job in jobs if job.state not in JOB_ENDED)

    def _delete_job_rows(self, numbers: Sequence[int]) -> None:
        self._deleted += [self.job(f"job-{number}") for number in numbers]

    def _insert_dependencies(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            for each in job.waits_for:
                self._new_dependents.setdefault(job_number(each.job_id), set()).add(job_number(job.id))

    def take_dependents(self, job_id: JobId) -> tuple[Job, ...]:
        """See :meth:`Transaction.take_dependents`."""
        number = job_number(job_id)
        known = set() if number in self._taken_dependents else self._dependents.get(number, set())
        numbers = sorted(known | self._new_dependents.pop(number, set()))
        self._taken_dependents.add(number)
        jobs = (self._jobs.get(each) for each in numbers)
        return tuple(job for job in jobs if job is not None and job.is_held)

    def _fold_events(self, array: Job, at_least: int) -> None:
        """Leave the events as they are: they take no space on a disk."""

    def schedule(self, schedule_id: ScheduleId) -> Schedule | None:
        """See :meth:`Transaction.schedule`."""
        return self._schedules.get(schedule_number(schedule_id))

    def schedule_named(self, user: str, name: str) -> Schedule | None:
        """See :meth:`Transaction.schedule_named`."""
        named = (each for each in self._schedules.values() if (each.spec.user, each.spec.name) == (user, name))
        return next(named, None)

    def _write_schedule(self, number: int, schedule: Schedule) -> None:
        checked_text(schedule.spec.user, "user")
        self._schedules = {**self._schedules, number: schedule}

    def delete_schedule(self, schedule_id: ScheduleId) -> None:
        """See :meth:`Transaction.delete_schedule`."""
        deleted = schedule_number(schedule_id)
        self._schedules = {number: each for number, each in self._schedules.items() if number != deleted}

    def _insert_secrets(self, secrets: Mapping[JobId, Mapping[str, str]]) -> None:
        self._secrets |= {job_number(job_id): dict(each) for job_id, each in secrets.items()}

    # ------------------------------------------------------------------------------------------------------- instances
    def instance(self, instance_id: InstanceId) -> Instance:
        """Return the current instance. Raises NotFound."""
        return _row(self._instances, instance_number(instance_id), instance_id)

    def new_instance(self, build: Callable[[InstanceId], Instance]) -> Instance:
        """See :meth:`Transaction.new_instance`."""
        number = self.head["instances"] + 1
        built = build(f"inst-{number}")
        assert built.id == f"inst-{number}", "an instance must be built with the given id"
        earlier = self._launch_tokens.get(checked_text(built.token, "launch token"))
        if earlier is not None:
            raise StaleWrite(f"launch token {built.token} was already used for inst-{earlier}")
        self._launch_tokens.fresh[built.token] = number
        self.head["instances"] = number
        return self._write_instance(number, built)

    def put_instance(self, instance: Instance) -> Instance:
        """See :meth:`Transaction.put_instance`."""
        number = instance_number(instance.id)
        stored = _row(self._instances, number, instance.id)
        check_revision(instance.id, instance.revision, stored.revision)
        if stored.state is not instance.state:
            check_instance_move(stored, instance.state)
        if stored.token != instance.token:
            raise InvalidTransition(
                f"{instance.id} was launched with token {stored.token}; it cannot become {instance.token}"
            )
        return self._write_instance(number, instance)

    def _write_instance(self, number: int, instance: Instance) -> Instance:
        written = self._instances.fresh[number] = replace_fields(instance, revision=self.revision)
        self.head["revision"] = self.revision
        return written

    # ---------------------------------------------------------------------------------------------------- applications
    def application(self, name: str) -> Application | None:
        """Return an application, or None."""
        return self._applications.get(name)

    def applications(self, program: str) -> tuple[Application, ...]:
        """Return the applications of a program, by name."""
        fresh = {name for name, row in self._applications.fresh.items() if row.program == program}
        rows = [self._applications.get(name) for name in sorted(fresh | self._by_program.get(program, set()))]
        return tuple(row for row in rows if row is not None and row.program == program)

    def put_application(self, application: Application) -> Application:
        """See :meth:`Transaction.put_application`."""
        stored = self._applications.get(checked_text(application.name, "application"))
        check_revision(application.name, application.revision, 0 if stored is None else stored.revision)
        written = self._applications.fresh[application.name] = replace_fields(application, revision=self.revision)
        self.head["revision"] = self.revision
        return written

    # --------------------------------------------------------------------------------------------- intents, back-offs
    def intent(self, token: str) -> Intent | None:
        """Return the open intent of that token, or None."""
        return self._fresh_intents[token] if token in self._fresh_intents else self._intents.get(token)

    def open_intent(self, intent: Intent) -> None:
        """Record an external effect before it is attempted. Raises StaleWrite if its token is open already."""
        if self.intent(intent.token) is not None:
            raise StaleWrite(f"intent {intent.token} is already open")
        self._write_intent(checked_text(intent.token, "intent token"), intent)

    def put_intent(self, intent: Intent) -> None:
        """Update an open intent, for another try. Raises StaleWrite if it is no longer open."""
        if self.intent(intent.token) is None:
            raise StaleWrite(f"intent {intent.token} is no longer open")
        self._write_intent(intent.token, intent)

    def close_intent(self, token: str) -> None:
        """Delete an intent after its outcome was recorded; idempotent."""
        if self.intent(token) is not None:
            self._write_intent(token, None)

    def _write_intent(self, token: str, intent: Intent | None) -> None:
        self._fresh_intents[token] = intent
        self.head["revision"] = self.head["intents_revision"] = self.revision

    def backoff(self, provider: str, zone: str, instance_type: str, market: str) -> OfferBackoff | None:
        """See :meth:`Transaction.backoff`."""
        return self._backoffs.get((provider, zone, instance_type, market))

    def put_backoff(self, backoff: OfferBackoff) -> None:
        """Record the back-off of an offer, replacing an earlier one."""
        self._backoffs = {**self._backoffs, backoff_key(backoff): backoff}
        self.head["revision"] = self.head["backoffs_revision"] = self.revision

    def clear_backoffs(self, before: float) -> None:
        """See :meth:`Transaction.clear_backoffs`."""
        left = {key: each for key, each in self._backoffs.items() if each.until_at >= before}
        quotas = {key: each for key, each in self._quotas.items() if max(each.until_at, each.retry_at) >= before}
        if len(left) < len(self._backoffs) or len(quotas) < len(self._quotas):
            self._backoffs, self._quotas = left, quotas
            self.head["revision"] = self.head["backoffs_revision"] = self.revision

    def refused_quota(self, provider: str, region: str, quota: str) -> RefusedQuota | None:
        """See :meth:`Transaction.refused_quota`."""
        return self._quotas.get((provider, region, quota))

    def put_refused_quota(self, quota: RefusedQuota) -> None:
        """See :meth:`Transaction.put_refused_quota`."""
        self._quotas = {**self._quotas, quota.key: quota}
        self.head["revision"] = self.head["backoffs_revision"] = self.revision

    # ------------------------------------------------------------------------------------------------------ directives
    def put_directive(self, directive: Directive) -> None:
        """Record an operator's directive, replacing an earlier one of the same scope and name."""
        self._orders = {**self._orders, (directive.scope.value, checked_text(directive.name, "name")): directive}
        self.head["revision"] = self.revision

    def drop_directive(self, scope: DirectiveScope, name: str) -> bool:
        """Delete a directive; return whether there was one."""
        if (scope.value, name) not in self._orders:
            return False
        self._orders = {key: each for key, each in self._orders.items() if key != (scope.value, name)}
        self.head["revision"] = self.revision
        return True

    def meta(self, key: str) -> str | None:
        """Return the text stored under a key, or None."""
        return self._meta.get(key)

    def put_meta(self, key: str, value: str) -> None:
        """Store a text under a key. Raises BadInput if it cannot be stored."""
        self._meta = {**self._meta, checked_text(key, "key"): checked_text(value, "value")}

    def add_co_run(self, observed: CoRun) -> CoRun:
        """See :meth:`Transaction.add_co_run`."""
        text = checked_text(co_run_key(observed), "application")
        if self._co_runs is self._committed_co_runs:
            self._co_runs = self._committed_co_runs.copy()
        rows, by_time = self._co_runs
        stored = rows.get(observed.key)
        after = observed if stored is None else stored[1].then(observed)
        if stored is not None:
            del by_time[bisect_left(by_time, (stored[1].observed_at, text, observed.key))]
        rows[observed.key] = (self.revision, after)
        insort(by_time, (after.observed_at, text, observed.key))
        while len(rows) > MOST_CO_RUNS:
            _, _, oldest = by_time.pop(0)
            del rows[oldest]
        self.head["revision"] = self.revision
        return after

    def put_run_times(self, state: bytes) -> None:
        """See :meth:`Transaction.put_run_times`."""
        self._run_times = state

    # ---------------------------------------------------------------------------------------------------------- events
    def emit(
        self,
        kind: EventKind,
        *,
        job_id: JobId | None = None,
        instance_id: InstanceId | None = None,
        user: str | None = None,
        actor: str = "hcloud",
        at: float | None = None,
        **fields: object,
    ) -> None:
        """See :meth:`Transaction.emit`. Fields are converted as a database would return them."""
        self.head["events"] += 1
        event = Event(
            seq=self.head["events"],
            at=self.now if at is None else at,
            kind=kind,
            job_id=job_id,
            instance_id=instance_id,
            user=None if user is None else checked_text(user, "user"),
            actor=actor if actor == "hcloud" else checked_text(actor, "actor"),
            fields=read_back(fields),
        )
        self._made.append(event)


class MemoryStore(Store):
    """See :class:`Store`. The public tables are for :class:`MemoryTransaction` only."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {
            "revision": 0, "intents_revision": 0, "backoffs_revision": 0, "jobs": 0, "instances": 0, "events": 0,
            "lease_holder": None, "lease_epoch": 0, "lease_until": 0.0,
        }  # fmt: skip
        self.all_jobs: dict[int, Job] = {}
        self.task_rows: dict[JobId, set[int]] = {}
        self.all_instances: dict[int, Instance] = {}
        self.all_applications: dict[str, Application] = {}
        self.by_program: dict[str, set[str]] = {}
        self.tokens: dict[tuple[str, str], int] = {}
        self.secrets: dict[int, dict[str, str]] = {}
        self.all_schedules: Mapping[int, Schedule] = {}
        self.dependents: dict[int, set[int]] = {}
        """Numbers of the jobs that wait for the end of a job, by its number."""
        self.launch_tokens: dict[str, int] = {}
        self.intents: dict[str, Intent] = {}
        self.backoffs: Mapping[_BackoffKey, OfferBackoff] = {}
        self.refused_quotas: Mapping[tuple[str, str, str], RefusedQuota] = {}
        self.log: list[Event] = []
        self.orders: Mapping[tuple[str, str], Directive] = {}
        self.metas: Mapping[str, str] = {}
        self.run_times_state: bytes | None = None
        self.all_co_runs = _CoRuns({}, [])
        self._live_jobs = LiveJobs()
        self._live_instances: RowJournal[Instance] = RowJournal()
        self._view = LiveView()
        self._viewing = threading.Lock()
        self._stale: set[str] = set()
        self._new_applications: dict[str, Application] = {}
        self._applications: LayeredRows[Application] = LayeredRows()
        self._highest_revision = 0
        self._lock = threading.RLock()
        self._writing_now = False
        self._crash_point: Callable[[str], None] | None = None

    def close(self) -> None:
        """Do nothing."""

    @property
    def crash_point(self) -> Callable[[str], None] | None:
        """See :attr:`Store.crash_point`."""
        return self._crash_point

    @crash_point.setter
    def crash_point(self, called: Callable[[str], None] | None) -> None:
        self._crash_point = called

    # --------------------------------------------------------------------------------------------------------- writing
    @contextmanager
    def transaction(self, now: float, lease: LeaderLease | None = None) -> Iterator[Transaction]:
        """See :meth:`Store.transaction`."""
        with self._lock:
            if self._writing_now:
                raise RuntimeError("a store transaction was started inside another one; it would deadlock")
            self._writing_now = True
            try:
                opened = MemoryTransaction(self, now, self._highest_revision + 1)
                self._highest_revision = opened.revision
                check_lease(opened, lease)
                yield opened
                if self._crash_point is not None:
                    self._crash_point("commit:before")
                opened.merge(self)
                if self._crash_point is not None:
                    self._crash_point("commit:after")
            finally:
                self._writing_now = False

    @contextmanager
    def _committing(self) -> Iterator[None]:
        if self._crash_point is not None:
            self._crash_point("commit:before")
        yield
        if self._crash_point is not None:
            self._crash_point("commit:after")

    def drop_rows(self, numbers: Sequence[int]) -> None:
        """Take rows of jobs that were deleted out of the view."""
        if numbers:
            with self._viewing:
                self._live_jobs.write(dict.fromkeys(numbers))
                self._stale |= {"jobs"}

    def publish(
        self,
        jobs: Mapping[int, Job],
        instances: Mapping[int, Instance],
        applications: Mapping[str, Application],
        intents: Mapping[str, Intent | None],
        stale: Set[str],
    ) -> None:
        """Add committed rows to the view; ``stale`` names its other parts that changed."""
        with self._viewing:
            if jobs:
                self._live_jobs.write({at: None if each.state in JOB_ENDED else each for at, each in jobs.items()})
            if instances:
                self._live_instances.write(
                    {at: None if each.state is InstanceState.TERMINATED else each for at, each in instances.items()}
                )
            for token, intent in intents.items():
                _keep(self.intents, token, intent)
            for name, row in applications.items():
                self.by_program.setdefault(row.program, set()).add(name)
            written = {"jobs": jobs, "instances": instances, "intents": intents}
            self._stale |= stale | {name for name, rows in written.items() if rows}
            self._new_applications |= applications

    def _next_view(self) -> LiveView:
        """Return the view with the writes of all commits since the last one."""
        view, stale = self._view, self._stale
        if self._new_applications:
            self._applications = self._applications.over(self._new_applications)
        self._stale, self._new_applications = set(), {}
        return LiveView(
            jobs=self._live_jobs.jobs.snapshot(),
            arrays=self._live_jobs.arrays.snapshot(),
            held=self._live_jobs.held.snapshot(),
            instances=self._live_instances.snapshot(),
            intents=tuple([self.intents[name] for name in sorted(self.intents)]) if "intents" in stale
            else view.intents,
            backoffs=tuple(sorted(self.backoffs.values(), key=backoff_key)) if "backoffs" in stale else view.backoffs,
            refused_quotas=tuple(self.refused_quotas[key] for key in sorted(self.refused_quotas))
            if "refused_quotas" in stale else view.refused_quotas,
            applications=self._applications,
            directives=tuple(self.orders[key] for key in sorted(self.orders)) if "orders" in stale else view.directives,
        )  # fmt: skip

    def set_meta(self, key: str, value: str) -> None:
        """Store a text under a key."""
        row = {checked_text(key, "key"): checked_text(value, "value")}
        with self._committing():
            self.metas = {**self.metas, **row}

    def get_meta(self, key: str) -> str | None:
        """Return the text stored under a key, or None."""
        return self.metas.get(key)

    def run_times(self) -> bytes | None:
        """See :meth:`Store.run_times`."""
        return self.run_times_state

    def co_runs(self, after_revision: int = -1) -> tuple[tuple[int, CoRun], ...]:
        """See :meth:`Store.co_runs`."""
        rows = [row for row in self.all_co_runs.rows.values() if row[0] > after_revision]
        return tuple(sorted(rows, key=lambda row: (row[0], co_run_key(row[1]))))

    def prune_events(self, before: float, now: float) -> int:
        """See :meth:`Store.prune_events`."""
        return self._drop_events(
            before, now, lambda event: event.at < before and not self._subject_is_kept(event, before)
        )

    def prune_samples(self, before: float, now: float) -> int:
        """See :meth:`Store.prune_samples`."""
        return self._drop_events(before, now, lambda event: event.at < before and event.kind is EventKind.SAMPLE)

    def _drop_events(self, before: float, now: float, is_old: Callable[[Event], bool]) -> int:
        with self.transaction(now) as tx:
            old = [event for event in self.log if is_old(event)]
            records = sum(event.kind is not EventKind.SAMPLE for event in old)
            if records:
                tx.emit(EventKind.DAEMON, what=PRUNED, records=records, before=before)
            numbers = {event.seq for event in old}
            self.log = [event for event in self.log if event.seq not in numbers]
        return len(old)

    def reencrypt_secrets(self, key_id: str, reseal: Callable[[str, str, str], str | None]) -> int:
        """See :meth:`Store.reencrypt_secrets`."""
        changed = 0
        with self._lock, self._committing():
            for number, each in self.secrets.items():
                for name, sealed in list(each.items()):
                    other = not sealed.startswith(f"{key_id}.")
                    again = reseal(self.all_jobs[number].spec.user, name, sealed) if other else None
                    if again is not None:
                        each[name] = again
                        changed += 1
        return changed + self._reencrypt_schedules(key_id, reseal)

    def job_secrets(self, job_id: JobId) -> Mapping[str, str]:
        """See :meth:`Store.job_secrets`."""
        number = job_number(job_id)
        job = self.all_jobs.get(number)
        return self.secrets.get(job_number(job.array) if job is not None and job.array else number, {})

    def secret_key_counts(self) -> Mapping[str, int]:
        """See :meth:`Store.secret_key_counts`."""
        owners = (*self.secrets.values(), *(each.secrets for each in self.all_schedules.values()))
        return Counter(sealed.partition(".")[0] for each in owners for sealed in each.values())

    def schedules(self, *, user: str | None = None) -> tuple[Schedule, ...]:
        """See :meth:`Store.schedules`."""
        return tuple(each for _, each in sorted(self.all_schedules.items()) if user in (None, each.spec.user))

    def due_schedules(self, now: float, limit: int) -> tuple[Schedule, ...]:
        """See :meth:`Store.due_schedules`."""
        due = [(each.next_at, at) for at, each in self.all_schedules.items() if each.next_at is not None]
        return tuple(self.all_schedules[at] for next_at, at in sorted(due) if next_at <= now)[:limit]

    def audit_head(self) -> AuditHead:
        """Return the number of events: nothing is persistent here that a chain could protect."""
        return AuditHead(link=self.newest_event_seq(), digest="")

    def prune_rows(self, before: float) -> int:
        """See :meth:`Store.prune_rows`."""
        (jobs, machines), log = referenced_numbers(self.live()), self.log
        jobs |= {job_number(event.job_id) for event in log if event.job_id}
        machines |= {instance_number(event.instance_id) for event in log if event.instance_id}
        with self._lock, self._committing():
            old_jobs = [n for n, job in self.all_jobs.items() if n not in jobs and _ended_at(job) < before]
            old_machines = [n for n, row in self.all_instances.items() if n not in machines and _ended_at(row) < before]
            self.all_jobs = {n: job for n, job in self.all_jobs.items() if n not in set(old_jobs)}
            self.all_instances = {n: row for n, row in self.all_instances.items() if n not in set(old_machines)}
            self.secrets = {n: each for n, each in self.secrets.items() if n in self.all_jobs}
            self.tokens = {token: n for token, n in self.tokens.items() if n in self.all_jobs}
        return len(old_jobs) + len(old_machines)

    def _subject_is_kept(self, event: Event, before: float) -> bool:
        job = (
            self.all_jobs.get(job_number(event.job_id)) or self._array_of(job_number(event.job_id))
            if event.job_id
            else None
        )
        machine = self.all_instances.get(instance_number(event.instance_id)) if event.instance_id else None
        return any(_ended_at(row) >= before for row in (job, machine) if row is not None)

    # --------------------------------------------------------------------------------------------------------- reading
    def live(self) -> LiveView:
        """Return everything that has not ended."""
        with self._viewing:
            if self._stale or self._new_applications:
                self._view = self._next_view()
            return self._view

    def job(self, job_id: JobId) -> Job:
        """Return a job. Raises NotFound with a hint."""
        try:
            number = job_number(job_id)
            array = self._array_of(number) if number not in self.all_jobs else None
            if array is not None:
                events = [each for each in self.log if each.job_id == job_id and each.kind in EVENTS_OF_A_TASK]
                position = number - job_number(array.id) - 1
                return task_without_row(position, array, events, partial(self._runs_of, array.id, position))
            return _row(self.all_jobs, number, job_id)
        except NotFound as error:
            raise NotFound(f"{error}; {self._nearest(job_id)}") from error

    def tasks_at(self, array: Job, positions: Sequence[int]) -> list[Job]:
        """See :meth:`Store.tasks_at`."""
        first = job_number(array.id) + 1
        return [self.job(f"job-{first + each}") for each in positions]

    def task_states(self, array_id: JobId) -> Mapping[int, JobState]:
        """See :meth:`Store.task_states`."""
        first = job_number(array_id) + 1
        return {n - first: self.all_jobs[n].state for n in self.task_rows.get(array_id, ())}

    def _runs_of(self, array_id: JobId, position: int) -> dict[int, RunEnd]:
        events = (each for each in self.log if each.job_id == array_id and each.kind is EventKind.TASKS_ENDED)
        return ends_in_runs(events, [position])

    def _array_of(self, number: int) -> Job | None:
        arrays = ((at, job) for at, job in self.all_jobs.items() if job.is_array and job.spec.tasks is not None)
        return next((job for at, job in arrays if at < number <= at + len(job.spec.tasks or ())), None)

    def ended_tasks(self, limit: int) -> Sequence[EndedTask]:
        """See :meth:`Store.ended_tasks`."""
        rows = (
            (array, n, self.all_jobs[n].state) for array, numbers in self.task_rows.items() for n in sorted(numbers)
        )
        return [EndedTask(*each) for each in islice((each for each in rows if each[2] in JOB_ENDED), limit)]

    def tasks(
        self, array_id: JobId, *, states: Collection[JobState] | None = None, limit: int = 1000
    ) -> tuple[Job, ...]:
        """See :meth:`Store.tasks`."""
        rows = (self.all_jobs[number] for number in sorted(self.task_rows.get(array_id, ())))
        return tuple(islice((job for job in rows if states is None or job.state in states), limit))

    def task_counts(self, array_ids: Collection[JobId]) -> Mapping[JobId, Mapping[JobState, int]]:
        """See :meth:`Store.task_counts`."""
        return {
            each: Counter(self.all_jobs[number].state for number in self.task_rows.get(each, ())) for each in array_ids
        }

    def newest_job_number(self) -> int:
        """See :meth:`Store.newest_job_number`."""
        return int(self.head["jobs"])

    def _nearest(self, job_id: str) -> str:
        digits = job_id.removeprefix("job").lstrip("-_# ").split(".")[0]
        if digits.isascii() and digits.isdigit() and len(digits) <= 18 and int(digits) in self.all_jobs:
            return f"did you mean job-{int(digits)}?"
        named = [number for number, job in self.all_jobs.items() if job.spec.name == job_id]
        if named:
            return f"the newest job of that name is job-{max(named)}"
        return nearest_number(digits, self.head["jobs"])

    def instance(self, instance_id: InstanceId) -> Instance:
        """Return an instance. Raises NotFound with a hint."""
        try:
            return _row(self.all_instances, instance_number(instance_id), instance_id)
        except NotFound as error:
            newest = self.head["instances"]
            hint = f"the newest is inst-{newest}" if newest else "none was launched yet"
            raise NotFound(f"{error}; {hint}") from error

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
        """See :meth:`Store.jobs`."""
        newest = self.head["jobs"] if before is None else job_number(before) - 1
        found: list[Job] = []
        for job in [job for number, job in reversed(self.all_jobs.items()) if number <= newest]:
            fits = (states is None or job.state in states) and user in (None, job.spec.user)
            if (
                fits
                and not job.array
                and name in (None, job.spec.name)
                and (tag is None or _tagged(job, tag))
                and len(found) < limit
            ):
                found.append(job)
        return tuple(found)

    def instances(self, *, live_only: bool = True, limit: int = 1000) -> tuple[Instance, ...]:
        """Return instances, newest first, at most ``limit``."""
        rows = list(reversed(self.all_instances.values()))
        fitting = (row for row in rows if not live_only or row.state is not InstanceState.TERMINATED)
        return tuple(islice(fitting, limit))

    def counts(self) -> Mapping[JobState, int]:
        """See :meth:`Store.counts`."""
        counted = dict.fromkeys(JobState, 0)
        for job in self.all_jobs.values():
            counted[job.state] += not job.array
        return counted

    def newest_event_seq(self) -> int:
        """Return the number of the newest event, or 0."""
        return int(self.head["events"])

    def known_submissions(self, submissions: Sequence[Submission]) -> frozenset[tuple[str, str]]:
        """See :meth:`Store.known_submissions`."""
        keys = ((each.spec.user, each.token) for each in submissions)
        return frozenset((user, token) for user, token in keys if token is not None and (user, token) in self.tokens)

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
        """See :meth:`Store.events`."""
        if job_id is not None:
            job_number(job_id)
        if instance_id is not None:
            instance_number(instance_id)
        end = len(self.log) if before_seq is None else bisect_left(self.log, before_seq, key=_seq)
        places = range(bisect_right(self.log, after_seq, key=_seq), end)
        events = (self.log[at] for at in (reversed(places) if newest else places))
        of_row = (each for each in events if job_id in (None, each.job_id) and instance_id in (None, each.instance_id))
        chosen = tuple(islice((each for each in of_row if _within(each, since, until, kinds)), limit))
        return chosen[::-1] if newest else chosen

    def new_events(self, after_seq: int, limit: int) -> tuple[Event, ...]:
        """See :meth:`Store.new_events`."""
        return self.events(after_seq=after_seq, limit=limit)

    def iter_events(
        self, *, since: float | None = None, until: float | None = None, kinds: Collection[EventKind] | None = None
    ) -> Iterator[Event]:
        """See :meth:`Store.iter_events`."""
        last, position = self.head["events"], 0
        while True:
            at = bisect_left(self.log, position + 1, key=_seq)
            if at >= len(self.log) or self.log[at].seq > last:
                return
            event = self.log[at]
            position = event.seq
            if _within(event, since, until, kinds):
                yield event


class _Table(Protocol[Row]):
    def get(self, key: int, /) -> Row | None: ...


def _keep(table: dict[Key, Value], key: Key, value: Value | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _row(table: _Table[Row], number: int, row_id: str) -> Row:
    row = table.get(number)
    if row is None:
        raise NotFound(f"there is no {row_id}")
    return row


def _within(event: Event, since: float | None, until: float | None, kinds: Collection[EventKind] | None) -> bool:
    return (
        (since is None or event.at >= since)
        and (until is None or event.at < until)
        and (kinds is None or event.kind in kinds)
    )


def _tagged(job: Job, tag: str) -> bool:
    key, equals, value = tag.partition("=")
    return key in job.spec.tags and (not equals or job.spec.tags[key] == value) and storable(tag)


def _ended_at(row: Job | Instance) -> float:
    """Return when a job or an instance ended (Unix seconds); inf: it is live."""
    if isinstance(row, Job):
        return row.finished_at if row.state in JOB_ENDED and row.finished_at is not None else math.inf
    gone = row.state is InstanceState.TERMINATED and row.terminated_at is not None
    return row.terminated_at if gone and row.terminated_at is not None else math.inf
