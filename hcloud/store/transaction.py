"""A write transaction: reads of current rows, validated changes, and events; committed as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, insert, select, update

from hcloud.core.arrays import ENDINGS, TaskRecord, with_positions
from hcloud.core.co_runs import MOST_CO_RUNS, CoRun
from hcloud.core.dependencies import DEPENDENCY, Dependency, Ending, Upstream, holds, shown, wait_words
from hcloud.core.errors import BadInput, InvalidTransition, NotFound, Refused, StaleWrite
from hcloud.core.estimates import Application
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
    JobSpec,
    JobState,
    Reason,
    check_instance_move,
    check_job_move,
    move_job,
    with_memory,
)
from hcloud.core.rows import replace_fields
from hcloud.core.schedules import Schedule, ScheduleId
from hcloud.core.task_runs import TaskRun
from hcloud.planner.snapshot import Directive, DirectiveScope, OfferBackoff, RefusedQuota
from hcloud.store import schema
from hcloud.store.array_rows import EndedTask
from hcloud.store.batch import delete_keys, insert_rows, update_rows
from hcloud.store.chain import PRUNED, folded_links, link_events
from hcloud.store.documents import (
    backoff_key,
    checked_text,
    co_run_key,
    dump,
    dump_application,
    dump_instance,
    dump_job,
    dump_schedule,
    instance_number,
    job_number,
    load_application,
    load_backoff,
    load_co_run,
    load_instance,
    load_intent,
    load_job,
    load_refused_quota,
    load_schedule,
    load_spec,
    read_back,
    schedule_number,
)
from hcloud.store.event_fields import submitted_fields, task_fields
from hcloud.store.event_folds import FOLDED_LEAST, delete_folded_samples, delete_folds, fold_events
from hcloud.store.forgetting import delete_events, ended_folds, keep_anchors
from hcloud.store.live import ENDED_STATES, CommittedRows, LiveCache
from hcloud.store.recent import NewEvent

_TERMINATED = InstanceState.TERMINATED
_HEAD = select(schema.head).with_for_update()
_SAVE_HEAD = update(schema.head)
_JOB = (
    select(
        schema.job.c.number, schema.job.c.revision, schema.job.c.state, schema.job.c.document, schema.job.c.array_number
    )
    .where(schema.job.c.number == bindparam("n"))
    .with_for_update()
)
_SPEC = select(schema.job_spec.c.document).where(schema.job_spec.c.number == bindparam("n"))
_INSTANCE = select(schema.instance).where(schema.instance.c.number == bindparam("n")).with_for_update()
_INSTANCE_TOKEN = select(schema.instance.c.number).where(schema.instance.c.token == bindparam("t"))
_APPLICATION = select(schema.application).where(schema.application.c.name == bindparam("name")).with_for_update()
_APPLICATIONS = (
    select(schema.application)
    .where(schema.application.c.program == bindparam("program"))
    .order_by(schema.application.c.name)
)
_UPDATE_APPLICATION = update(schema.application).where(schema.application.c.name == bindparam("the_name"))
_INTENT = select(schema.intent.c.document).where(schema.intent.c.token == bindparam("t"))
_BACKOFF_COLUMNS = ("provider", "zone", "instance_type", "market")
_DELETE_BACKOFF = delete(schema.offer_backoff).where(
    *(schema.offer_backoff.c[name] == bindparam(f"the_{name}") for name in _BACKOFF_COLUMNS)
)
_BACKOFF = select(schema.offer_backoff.c.document).where(
    *(schema.offer_backoff.c[name] == bindparam(name) for name in _BACKOFF_COLUMNS)
)
_CLEAR_BACKOFFS = delete(schema.offer_backoff).where(schema.offer_backoff.c.until_at < bindparam("limit"))
_QUOTA_COLUMNS = ("provider", "region", "quota")
_DELETE_QUOTA = delete(schema.refused_quota).where(
    *(schema.refused_quota.c[name] == bindparam(f"the_{name}") for name in _QUOTA_COLUMNS)
)
_QUOTA = select(schema.refused_quota.c.document).where(
    *(schema.refused_quota.c[name] == bindparam(name) for name in _QUOTA_COLUMNS)
)
_CLEAR_QUOTAS = delete(schema.refused_quota).where(schema.refused_quota.c.until_at < bindparam("limit"))
_DELETE_DIRECTIVE = delete(schema.machine_order).where(
    schema.machine_order.c.scope == bindparam("the_scope"), schema.machine_order.c.name == bindparam("the_name")
)
_META = select(schema.meta.c.value).where(schema.meta.c.key == bindparam("the_key"))
_DELETE_META = delete(schema.meta).where(schema.meta.c.key == bindparam("the_key"))
_DELETE_RUN_TIMES = delete(schema.run_times)
_CO_RUN = select(schema.co_run.c.document).where(schema.co_run.c.key == bindparam("the_key")).with_for_update()
_UPDATE_CO_RUN = update(schema.co_run).where(schema.co_run.c.key == bindparam("the_key"))
_SURPLUS_CO_RUNS = (
    select(schema.co_run.c.key)
    .order_by(schema.co_run.c.observed_at.desc(), schema.co_run.c.key.desc())
    .offset(MOST_CO_RUNS)
)
_DEPENDENTS = (
    select(schema.job_dependency.c.number)
    .where(schema.job_dependency.c.upstream == bindparam("n"))
    .order_by(schema.job_dependency.c.number)
)
_DELETE_DEPENDENTS = delete(schema.job_dependency).where(schema.job_dependency.c.upstream == bindparam("n"))
_SCHEDULE = select(schema.schedule.c.document).where(schema.schedule.c.number == bindparam("n"))
_SCHEDULE_NAMED = select(schema.schedule.c.number, schema.schedule.c.document).where(
    schema.schedule.c.user_name == bindparam("user"), schema.schedule.c.name == bindparam("name")
)
_DELETE_SCHEDULE = delete(schema.schedule).where(schema.schedule.c.number == bindparam("n"))
_SCHEDULE_NUMBERS = "schedule_numbers"
"""Metadata key of the highest number of a schedule: none is used again."""
_ENDED_WORDS = {JobState.SUCCEEDED: "succeeded", JobState.FAILED: "failed", JobState.CANCELLED: "been cancelled"}
_EARLIER_JOB = select(schema.job.c.number).where(
    schema.job.c.user_name == bindparam("u"), schema.job.c.token == bindparam("t")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job to add."""

    spec: JobSpec
    actor: str
    """User who submits it."""
    token: str | None = None
    """Idempotency key of the client: one user and token always mean the same job."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Encrypted values of its secret environment variables, each beginning with the id of its key and a dot."""
    after: Mapping[Upstream, Ending] = field(default_factory=dict)
    """How others must end before it starts: by their place in the same submission, or their id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLease:
    """The right of one daemon to lead."""

    holder: str
    epoch: int
    """Increases with every acquisition, and fences earlier holders."""
    until: float
    """Unix time of its expiry."""


TIMED_MOST, TIMED_AT_ONCE = 1_000, 16
"""So many run times of tasks with rows are counted of one array, and of the tasks that are recorded together."""


class Transaction:
    """The operations inside ``Store.transaction``. Reads see the transaction's own writes.

    Discard everything that was read or returned if the transaction does not commit.
    """

    def __init__(self, connection: Connection, now: float, first_revision: int, live: LiveCache) -> None:
        self.now = now
        self._connection = connection
        self._live = live
        # Locks the row of `head`: no other process writes until the commit.
        self.head: dict[str, Any] = dict(connection.execute(_HEAD).one()._mapping)
        self._head_before = dict(self.head)
        self.revision: int = max(self.head["revision"] + 1, first_revision)
        self._events: list[dict[str, object]] = []
        self.new_events: list[NewEvent] = []
        # Valid caches, as no other process writes meanwhile.
        self._cached_instances: dict[int, Instance] = {}
        self._cached_jobs: dict[int, Job] = {}
        self._cached_intents: dict[str, Intent | None] = {}
        # Columns of rows to be written together at the end, by number or token.
        self._written_jobs: dict[int, dict[str, object]] = {}
        self._new_instances: dict[int, dict[str, object]] = {}
        self._written_instances: dict[int, dict[str, object]] = {}
        self._written_intents: dict[str, dict[str, object] | None] = {}
        self._stored_intents: dict[str, bool] = {}
        """Whether an intent was open before, by token."""
        self._added_jobs: dict[int, Job] = {}
        self._deleted_jobs: set[int] = set()
        self._written_applications: dict[str, Application] = {}
        self._may_follow = True
        """Whether ``committed_rows`` has all that was written."""

    # ------------------------------------------------------------------------------------------------------------ jobs
    def job(self, job_id: JobId) -> Job:
        """Return the current job. Raises NotFound."""
        number = job_number(job_id)
        if number not in self._cached_jobs:
            known = self._live.known_job(number, self._head_before["revision"])
            if known is None:
                row = self._row(job_id, _JOB, number)
                known = load_job(number, row.revision, row.document, self._spec(row.array_number or number))
            self._cached_jobs[number] = known
        return self._cached_jobs[number]

    def put_job(self, job: Job) -> Job:
        """Write a changed job and return it with its new revision.

        Raises:
            StaleWrite: the job was written after ``job`` was read.
            InvalidTransition: the change of state is not allowed.
            BadInput: the spec was changed.
            NotFound: there is no such job.
        """
        number, stored = job_number(job.id), self.job(job.id)
        check_revision(job.id, job.revision, stored.revision)
        if stored.state is not job.state:
            check_job_move(stored, job.state)
        if job.spec is not stored.spec and job.spec != stored.spec:
            raise BadInput(f"{job.id}: a job's spec never changes after submission; submit a new job")
        self._written_jobs[number] = {"number": number} | self._job_columns(job)
        self.head["revision"] = self.revision
        after = self._cached_jobs[number] = replace_fields(
            job, spec=with_memory(stored.spec, job.memory_mib), revision=self.revision
        )
        return after

    def add_jobs(self, submissions: Sequence[Submission]) -> tuple[Job, ...]:
        """Add jobs, each with its JOB_SUBMITTED event. A known (user, token) returns the earlier job instead.

        Raises:
            BadInput: a text cannot be stored.
            Refused: one would wait for a job that has ended otherwise.
            NotFound: one would wait for a job that does not exist.
        """
        added: dict[tuple[str, str | None], Job] = {}
        jobs, fresh = [], []
        for submission in submissions:
            key = (submission.spec.user, submission.token)
            job = added.get(key) or self._earlier_job(submission)
            if job is None:
                job = self._build_job(submission)
                fresh.append((submission, job))
                if submission.token is not None:
                    added[key] = job
            jobs.append(job)
        held = {job.id: self._held_job(job, each.after, jobs) for each, job in fresh if each.after}
        if held:
            jobs = [held.get(job.id, job) for job in jobs]
            fresh = [(each, held.get(job.id, job)) for each, job in fresh]
        if fresh:
            self._insert_jobs([job for _, job in fresh])
            self._insert_secrets({job.id: submission.secrets for submission, job in fresh if submission.secrets})
            self._insert_dependencies(held.values())
        for submission, job in fresh:
            self.emit(
                EventKind.JOB_SUBMITTED,
                job_id=job.id,
                user=job.spec.user,
                actor=submission.actor,
                **submitted_fields(job),
            )
        return tuple(jobs)

    def _earlier_job(self, submission: Submission) -> Job | None:
        if submission.token is None:
            return None
        key = {"u": submission.spec.user, "t": submission.token}
        number = self._connection.execute(_EARLIER_JOB, key).scalar()
        return None if number is None else self.job(f"job-{number}")

    def _build_job(self, submission: Submission) -> Job:
        number, tasks = self.head["jobs"] + 1, submission.spec.tasks
        self.head["jobs"] = number + (len(tasks) if tasks is not None else 0)  # the tasks have the numbers that follow
        return Job(
            id=f"job-{number}",
            spec=submission.spec,
            state=JobState.SUBMITTED,
            submitted_at=self.now,
            submission_token=submission.token,
            task_record=TaskRecord() if tasks is not None else None,
            revision=self.revision,
        )

    # ---------------------------------------------------------------------------------------------------- dependencies
    def _held_job(self, job: Job, after: Mapping[Upstream, Ending], jobs: Sequence[Job]) -> Job:
        """Return a new job with what it waits for; ``jobs``: the whole submission."""
        waits_for = []
        for upstream, ending in after.items():
            other = jobs[upstream] if isinstance(upstream, int) else self.job(upstream)
            if other.state not in JOB_ENDED:
                waits_for.append(Dependency(job_id=other.id, ending=ending, name=other.spec.name))
            elif not holds(ending, other.state):
                ended = f"{shown(other.id, other.spec.name)} has {_ENDED_WORDS[other.state]} already"
                raise Refused(f"{job.spec.name} could never start: it waits for {ending}, but {ended}")
        if not waits_for:
            return job
        changes = {"wait_code": DEPENDENCY, "wait_text": wait_words(waits_for)}
        return replace_fields(job, waits_for=tuple(waits_for), **changes)

    def _insert_dependencies(self, jobs: Iterable[Job]) -> None:
        pairs = {(job_number(each.job_id), job_number(job.id)): None for job in jobs for each in job.waits_for}
        rows: list[dict[str, object]] = [{"upstream": upstream, "number": number} for upstream, number in pairs]
        insert_rows(self._connection, schema.job_dependency, rows)

    def take_dependents(self, job_id: JobId) -> tuple[Job, ...]:
        """Return the jobs that are held for the end of ``job_id``, by number, and forget that they are: the caller
        decides what becomes of them, in this transaction."""
        number = job_number(job_id)
        numbers = self._connection.execute(_DEPENDENTS, {"n": number}).scalars().all()
        if not numbers:
            return ()
        self._connection.execute(_DELETE_DEPENDENTS, {"n": number})
        # Those that were cancelled have ended, and may be pruned by now.
        return tuple(job for each in numbers if (job := self._held_by_number(each)) is not None and job.is_held)

    def _held_by_number(self, number: int) -> Job | None:
        with suppress(NotFound):
            return self.job(f"job-{number}")
        return None

    # ------------------------------------------------------------------------------------------------------- schedules
    def schedule(self, schedule_id: ScheduleId) -> Schedule | None:
        """Return a schedule; None: it was deleted."""
        number = schedule_number(schedule_id)
        document = self._connection.execute(_SCHEDULE, {"n": number}).scalar()
        return None if document is None else load_schedule(number, document)

    def schedule_named(self, user: str, name: str) -> Schedule | None:
        """Return a user's schedule by the name of its job, or None."""
        row = self._connection.execute(_SCHEDULE_NAMED, {"user": user, "name": name}).first()
        return None if row is None else load_schedule(row.number, row.document)

    def put_schedule(self, schedule: Schedule) -> Schedule:
        """Add a schedule, if its id is empty, or replace it; return it with its id. Raises BadInput."""
        if not schedule.id:
            number = int(self.meta(_SCHEDULE_NUMBERS) or 0) + 1
            self.put_meta(_SCHEDULE_NUMBERS, str(number))
            schedule = replace(schedule, id=f"sched-{number}")
        self._write_schedule(schedule_number(schedule.id), schedule)
        return schedule

    def _write_schedule(self, number: int, schedule: Schedule) -> None:
        self._connection.execute(_DELETE_SCHEDULE, {"n": number})
        columns = {
            "number": number,
            "user_name": checked_text(schedule.spec.user, "user"),
            "name": checked_text(schedule.spec.name, "job name"),
            "next_at": schedule.next_at,
            "document": dump_schedule(schedule),
        }
        self._connection.execute(insert(schema.schedule), columns)

    def delete_schedule(self, schedule_id: ScheduleId) -> None:
        """Delete a schedule; its jobs are not touched."""
        self._connection.execute(_DELETE_SCHEDULE, {"n": schedule_number(schedule_id)})

    # ----------------------------------------------------------------------------------------------------------- tasks
    def make_tasks(
        self,
        array: Job,
        positions: Sequence[int],
        reason: Reason,
        *,
        per_unit: int = 1,
        begin_within_s: float | None = None,
    ) -> tuple[Job, ...]:
        """Add the rows of these tasks of an array, which are queued, and write which were made; return those with rows.

        Of ``per_unit`` tasks in a row the first one has a row, and leads a run of them (:class:`TaskRun`).
        Raises Refused: one was made before, or has ended.
        """
        record, tasks = array.task_record, array.spec.tasks
        assert record is not None and tasks is not None, "only arrays have tasks"
        again = [each for each in positions if record.is_made(each) or record.state_of(each) is not None]
        if again or not all(each < len(tasks) for each in positions):
            raise Refused(f"{array.id}: its tasks at {again or positions} were made before, or do not exist")
        first = job_number(array.id) + 1
        made = tuple(
            Job(
                id=f"job-{first + each}",
                spec=array.spec,
                state=JobState.QUEUED,
                submitted_at=array.submitted_at,
                queued_at=self.now,
                application=array.application,
                array=array.id,
                released_at=array.released_at,
                revision=self.revision,
                run=_run_of(positions[at + 1 : at + per_unit], begin_within_s),
            )
            for at, each in list(enumerate(positions))[::per_unit]
        )
        self._insert_job_rows(made)
        self.put_job(move_job(array, JobState.RUNNING, task_record=record.with_made(positions)))
        for each in made:
            fields = submitted_fields(each) | task_fields(each) | {"code": reason.code}
            if each.run is not None:
                fields["in_one_unit"] = each.run.count
            self.emit(EventKind.JOB_SUBMITTED, job_id=each.id, user=each.spec.user, **fields)
        return made

    def return_tasks(self, array: Job, task_ids: Sequence[JobId]) -> Job:
        """Delete the rows of tasks that wait, which count as not made from now on; return the array."""
        numbers, first, record = [job_number(each) for each in task_ids], job_number(array.id) + 1, array.task_record
        assert record is not None, "only arrays have tasks"
        self._delete_job_rows(numbers)
        return self.put_job(replace_fields(array, task_record=record.with_returned([each - first for each in numbers])))

    def add_task_rows(self, tasks: Sequence[Job]) -> None:
        """Give tasks that were made, and have no row, one."""
        self._insert_job_rows([replace_fields(each, revision=self.revision) for each in tasks])

    def tasks(self, array_id: JobId) -> tuple[Job, ...]:
        """Return the tasks of an array that have rows and have not ended, by number."""
        query = select(schema.job.c.number).where(
            schema.job.c.array_number == job_number(array_id), schema.job.c.state.not_in(ENDED_STATES)
        )
        numbers = self._connection.execute(query.order_by(schema.job.c.number)).scalars().all()
        jobs = [self.job(f"job-{number}") for number in numbers]
        return tuple(job for job in jobs if job.state not in JOB_ENDED)

    def fold_tasks(self, array: Job, ended: Sequence[EndedTask]) -> Job:
        """Record ended tasks with their array and delete their rows, in one step; return the array.

        Events of many such tasks, or of all that are left, are folded in the same step.
        """
        record, first = array.task_record, job_number(array.id) + 1
        assert record is not None
        ended_before = record.ended
        record = self._with_run_times(record, ended)
        for state in ENDINGS:
            record = record.with_ended(state, [each.number - first for each in ended if each.state == state])
        self._delete_job_rows([each.number for each in ended])
        tasks = array.spec.tasks
        if tasks is not None and record.ended == len(tasks):
            self._fold_events(array, 1)
        elif ended_before // FOLDED_LEAST < record.ended // FOLDED_LEAST:  # not each time: it reads all their numbers
            self._fold_events(array, FOLDED_LEAST)
        return self.put_job(replace_fields(array, task_record=record))

    def _with_run_times(self, record: TaskRecord, ended: Sequence[EndedTask]) -> TaskRecord:
        """Return the record with the run times of the first few of these tasks: a mean needs no more."""
        some = [each for each in ended if each.state is JobState.SUCCEEDED][: max(0, TIMED_MOST - record.timed)]
        for each in some[:TIMED_AT_ONCE]:
            job = self.job(f"job-{each.number}")
            own = job.run.own if job.run is not None else None
            held = job.attempt.held(0) if job.attempt is not None else None
            if own is not None:
                record = record.with_times(1, own.ended_at - own.started_at)
            elif held is not None and held.started_at is not None and held.ended_at is not None:
                record = record.with_times(1, max(0.0, held.ended_at - held.started_at))
        return record

    def _fold_events(self, array: Job, at_least: int) -> None:
        number, tasks = job_number(array.id), array.spec.tasks
        fold_events(self._connection, number, number + len(tasks or ()), at_least=at_least)

    def _delete_job_rows(self, numbers: Sequence[int]) -> None:
        delete_keys(self._connection, schema.job, "number", numbers)
        self._deleted_jobs.update(numbers)
        for number in numbers:
            self._cached_jobs.pop(number, None)
            self._written_jobs.pop(number, None)

    # ------------------------------------------------------------------------------------------------------- inserting
    def _insert_job_rows(self, jobs: Sequence[Job]) -> None:
        numbers = [job_number(job.id) for job in jobs]
        rows = [
            {"number": n} | indexed_columns(job) | self._job_columns(job) for n, job in zip(numbers, jobs, strict=True)
        ]
        insert_rows(self._connection, schema.job, rows)
        self._deleted_jobs.difference_update(numbers)
        self._cached_jobs.update(zip(numbers, jobs, strict=True))
        self._added_jobs.update(zip(numbers, jobs, strict=True))
        self.head["revision"] = self.revision

    def _insert_jobs(self, jobs: Sequence[Job]) -> None:
        self._insert_job_rows(jobs)
        numbers = [job_number(job.id) for job in jobs]
        specs = [{"number": n, "document": dump(job.spec)} for n, job in zip(numbers, jobs, strict=True)]
        insert_rows(self._connection, schema.job_spec, specs)
        tags = [
            {"number": n, "tag": checked_text(tag, "tag"), "tag_value": checked_text(value, f"value of tag {tag}")}
            for n, job in zip(numbers, jobs, strict=True)
            for tag, value in job.spec.tags.items()
        ]
        insert_rows(self._connection, schema.job_tag, tags)

    def _insert_secrets(self, secrets: Mapping[JobId, Mapping[str, str]]) -> None:
        rows = [
            {"number": job_number(job_id), "name": name, "key_id": sealed.partition(".")[0], "sealed": sealed}
            for job_id, each in secrets.items()
            for name, sealed in each.items()
        ]
        insert_rows(self._connection, schema.job_secret, rows)

    def _job_columns(self, job: Job) -> dict[str, object]:
        return {
            "state": job.state.value,
            "finished_at": job.finished_at,
            "revision": self.revision,
            "document": dump_job(job),
        }

    def _spec(self, number: int) -> JobSpec:
        spec = self._live.known_spec(number)
        if spec is None:
            spec = load_spec(self._connection.execute(_SPEC, {"n": number}).scalar_one())
        return spec

    # ------------------------------------------------------------------------------------------------------- instances
    def instance(self, instance_id: InstanceId) -> Instance:
        """Return the current instance. Raises NotFound."""
        number = instance_number(instance_id)
        if number not in self._cached_instances:
            known = self._live.known_instance(number, self._head_before["revision"])
            if known is None:
                row = self._row(instance_id, _INSTANCE, number)
                known = load_instance(number, row.revision, row.document)
            self._cached_instances[number] = known
        return self._cached_instances[number]

    def new_instance(self, build: Callable[[InstanceId], Instance]) -> Instance:
        """Add the instance that ``build`` returns for the next free id; return it with its revision.

        Raises:
            StaleWrite: its launch token was used before.
        """
        number = self.head["instances"] + 1
        built = build(f"inst-{number}")
        assert built.id == f"inst-{number}", "an instance must be built with the given id"
        made = (n for n, columns in self._new_instances.items() if columns["token"] == built.token)
        earlier = next(made, None) or self._connection.execute(_INSTANCE_TOKEN, {"t": built.token}).scalar()
        if earlier is not None:
            raise StaleWrite(f"launch token {built.token} was already used for inst-{earlier}")
        self.head["instances"] = number
        columns = {"number": number, "token": checked_text(built.token, "launch token")}
        self._new_instances[number] = columns | self._instance_columns(built)
        self.head["revision"] = self.revision
        after = self._cached_instances[number] = replace_fields(built, revision=self.revision)
        return after

    def reserve_number(self, instance_id: InstanceId) -> None:
        """Never assign the number of ``instance_id``, nor a lower one, again: an instance without a record uses it.

        Names of another form are ignored.
        """
        with suppress(NotFound):
            self.head["instances"] = max(self.head["instances"], instance_number(instance_id))

    def put_instance(self, instance: Instance) -> Instance:
        """Write a changed instance and return it with its new revision. Raises like ``put_job``."""
        stored = self.instance(instance.id)
        check_revision(instance.id, instance.revision, stored.revision)
        if stored.state is not instance.state:
            check_instance_move(stored, instance.state)
        if stored.token != instance.token:
            raise InvalidTransition(
                f"{instance.id} was launched with token {stored.token}; it cannot become {instance.token}"
            )
        number, columns = instance_number(instance.id), self._instance_columns(instance)
        if number in self._new_instances:
            self._new_instances[number] |= columns
        else:
            self._written_instances[number] = {"number": number} | columns
        self.head["revision"] = self.revision
        after = self._cached_instances[number] = replace_fields(instance, revision=self.revision)
        return after

    def _instance_columns(self, instance: Instance) -> dict[str, object]:
        return {
            "state": instance.state.value,
            "terminated_at": instance.terminated_at,
            "revision": self.revision,
            "document": dump_instance(instance),
        }

    # ---------------------------------------------------------------------------------------------------- applications
    def application(self, name: str) -> Application | None:
        """Return an application, or None."""
        row = self._connection.execute(_APPLICATION, {"name": name}).first()
        return None if row is None else load_application(row.revision, row.document)

    def applications(self, program: str) -> tuple[Application, ...]:
        """Return the applications of a program, by name."""
        rows = self._connection.execute(_APPLICATIONS, {"program": program}).all()
        return tuple(load_application(row.revision, row.document) for row in rows)

    def put_application(self, application: Application) -> Application:
        """Add or replace an application and return it with its new revision.

        Raises:
            StaleWrite: it was written after it was read.
        """
        stored = self._connection.execute(_APPLICATION, {"name": application.name}).first()
        check_revision(application.name, application.revision, 0 if stored is None else stored.revision)
        columns = {"program": application.program, "revision": self.revision, "document": dump_application(application)}
        if stored is None:
            name = checked_text(application.name, "application")
            self._connection.execute(insert(schema.application), {"name": name} | columns)
        else:
            self._connection.execute(_UPDATE_APPLICATION, {"the_name": application.name} | columns)
        self.head["revision"] = self.revision
        after = self._written_applications[application.name] = replace(application, revision=self.revision)
        return after

    def add_co_run(self, observed: CoRun) -> CoRun:
        """Add what was observed in a period to the record of the same programs on the same type, and return it.

        Of more than MOST_CO_RUNS records, those that were observed longest ago are deleted.
        """
        key = checked_text(co_run_key(observed), "application")
        stored = self._connection.execute(_CO_RUN, {"the_key": key}).scalar()
        after = observed if stored is None else load_co_run(stored).then(observed)
        columns = {"revision": self.revision, "observed_at": after.observed_at, "document": dump(after)}
        if stored is None:
            self._connection.execute(insert(schema.co_run), {"key": key} | columns)
            surplus = self._connection.execute(_SURPLUS_CO_RUNS).scalars().all()
            delete_keys(self._connection, schema.co_run, "key", surplus)
        else:
            self._connection.execute(_UPDATE_CO_RUN, {"the_key": key} | columns)
        self.head["revision"] = self.revision
        return after

    # --------------------------------------------------------------------------------------------- intents, back-offs
    def intent(self, token: str) -> Intent | None:
        """Return the open intent of that token, or None."""
        if token not in self._cached_intents:
            known = self._read_intent(token)
            self._cached_intents[token], self._stored_intents[token] = known, known is not None
        return self._cached_intents[token]

    def _read_intent(self, token: str) -> Intent | None:
        if self._live.knows_intents(self._head_before["revision"]):
            return self._live.known_intent(token)
        document = self._connection.execute(_INTENT, {"t": token}).scalar()
        return None if document is None else load_intent(document)

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
        columns = None if intent is None else {"revision": self.revision, "document": dump(intent)}
        self._written_intents[token], self._cached_intents[token] = columns, intent
        self.head["revision"] = self.head["intents_revision"] = self.revision

    def backoff(self, provider: str, zone: str, instance_type: str, market: str) -> OfferBackoff | None:
        """Return the current or last back-off of an offer, or None."""
        key = dict(zip(_BACKOFF_COLUMNS, (provider, zone, instance_type, market), strict=True))
        document = self._connection.execute(_BACKOFF, key).scalar()
        return None if document is None else load_backoff(document)

    def put_backoff(self, backoff: OfferBackoff) -> None:
        """Record the back-off of an offer, replacing an earlier one."""
        key = dict(zip(_BACKOFF_COLUMNS, backoff_key(backoff), strict=True))
        self._connection.execute(_DELETE_BACKOFF, {f"the_{name}": value for name, value in key.items()})
        columns = {"until_at": backoff.until_at, "document": dump(backoff)}
        self._connection.execute(insert(schema.offer_backoff), key | columns)
        self._changed_backoffs()

    def clear_backoffs(self, before: float) -> None:
        """Delete the back-offs and refused quotas that ended before ``before``."""
        cleared = [self._connection.execute(each, {"limit": before}) for each in (_CLEAR_BACKOFFS, _CLEAR_QUOTAS)]
        if any(each.rowcount for each in cleared):
            self._changed_backoffs()

    def refused_quota(self, provider: str, region: str, quota: str) -> RefusedQuota | None:
        """Return what refusals showed of an account limit, also if it is forgotten by now, or None."""
        key = dict(zip(_QUOTA_COLUMNS, (provider, region, quota), strict=True))
        document = self._connection.execute(_QUOTA, key).scalar()
        return None if document is None else load_refused_quota(document)

    def put_refused_quota(self, quota: RefusedQuota) -> None:
        """Record what a refusal showed of an account limit, replacing what was known."""
        key = dict(zip(_QUOTA_COLUMNS, quota.key, strict=True))
        self._connection.execute(_DELETE_QUOTA, {f"the_{name}": value for name, value in key.items()})
        columns = {"until_at": max(quota.until_at, quota.retry_at), "document": dump(quota)}
        self._connection.execute(insert(schema.refused_quota), key | columns)
        self._changed_backoffs()

    def _changed_backoffs(self) -> None:
        self.head["revision"] = self.head["backoffs_revision"] = self.revision
        self._may_follow = False

    # ------------------------------------------------------------------------------------------------------ directives
    def put_directive(self, directive: Directive) -> None:
        """Record an operator's directive, replacing an earlier one of the same scope and name."""
        self.drop_directive(directive.scope, directive.name)
        columns = {
            "scope": directive.scope.value,
            "name": checked_text(directive.name, "name"),
            "document": dump(directive),
        }
        self._connection.execute(insert(schema.machine_order), columns)
        self.head["revision"], self._may_follow = self.revision, False

    def drop_directive(self, scope: DirectiveScope, name: str) -> bool:
        """Delete a directive; return whether there was one."""
        if not self._connection.execute(_DELETE_DIRECTIVE, {"the_scope": scope.value, "the_name": name}).rowcount:
            return False
        self.head["revision"], self._may_follow = self.revision, False
        return True

    def meta(self, key: str) -> str | None:
        """Return the text stored under a key, or None."""
        value: str | None = self._connection.execute(_META, {"the_key": key}).scalar()
        return value

    def put_meta(self, key: str, value: str) -> None:
        """Store a text under a key. Raises BadInput if it cannot be stored."""
        row = {"key": checked_text(key, "key"), "value": checked_text(value, "value")}
        self._connection.execute(_DELETE_META, {"the_key": key})
        self._connection.execute(insert(schema.meta), row)

    def put_run_times(self, state: bytes) -> None:
        """Store what was learnt of run times, replacing what was stored."""
        self._connection.execute(_DELETE_RUN_TIMES)
        self._connection.execute(insert(schema.run_times), {"only_row": 1, "state": state})

    def _row(self, row_id: str, statement: Select[Any], number: int) -> Any:
        row = self._connection.execute(statement, {"n": number}).first()
        if row is None:
            raise NotFound(f"there is no {row_id}")
        return row

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
        """Append an event at ``at``, by default the transaction's ``now``."""
        self.head["events"] += 1
        seq, at = self.head["events"], self.now if at is None else at
        row = {
            "seq": seq,
            "at": at,
            "kind": kind.value,
            "job_number": None if job_id is None else job_number(job_id),
            "instance_number": None if instance_id is None else instance_number(instance_id),
            "user_name": None if user is None else checked_text(user, "user"),
            "actor": checked_text(actor, "actor"),
            "fields": dump(fields),
        }
        self._events.append(row)

        def build() -> Event:
            return Event(
                seq=seq,
                at=at,
                kind=kind,
                job_id=job_id,
                instance_id=instance_id,
                user=user,
                actor=actor,
                fields=read_back(fields),
            )

        self.new_events.append((seq, build))

    def delete_events(self, before: float, condition: ColumnElement[bool]) -> int:
        """Delete a batch of old events and record that; return their number. See ``Store.prune_events``."""
        deleted = delete_events(self._connection, before, condition)
        links = [each for each in deleted if each[0]]
        if links:
            digest = keep_anchors(self._connection, links)
            self.emit(EventKind.DAEMON, what=PRUNED, records=len(links), before=before, anchors=digest)
        return len(deleted)

    def delete_folds(self, before: float) -> int:
        """Delete a batch of old folds and record that; return the number of their events. See ``prune_events``."""
        chosen = ended_folds(self._connection, before)
        if not chosen:
            return 0
        links = folded_links(self._connection, chosen)
        count = delete_folds(self._connection, chosen)
        digest = keep_anchors(self._connection, links)
        self.emit(EventKind.DAEMON, what=PRUNED, records=len(links), before=before, anchors=digest)
        return count

    def delete_folded_samples(self, before: float) -> int:
        """Delete old samples of folds; return their number."""
        return delete_folded_samples(self._connection, before)

    def finish(self, connection: Connection) -> None:
        """Write changed rows, events and the head row; called once, before the commit."""
        update_rows(connection, schema.job, "number", list(self._written_jobs.values()))
        insert_rows(connection, schema.instance, list(self._new_instances.values()))
        update_rows(connection, schema.instance, "number", list(self._written_instances.values()))
        self._finish_intents(connection)
        if self._events:
            links = link_events(self._events, self.head["links"], self.head["digest"])
            self.head["links"], self.head["digest"] = links
            insert_rows(connection, schema.event_log, self._events)
        changed = {name: value for name, value in self.head.items() if value != self._head_before[name]}
        if changed:
            connection.execute(_SAVE_HEAD, changed)

    def _finish_intents(self, connection: Connection) -> None:
        opened, changed, closed = list[dict[str, object]](), list[dict[str, object]](), list[str]()
        for token, columns in self._written_intents.items():
            if not self._stored_intents[token]:
                if columns is not None:
                    opened.append({"token": token} | columns)
            elif columns is None:
                closed.append(token)
            else:
                changed.append({"token": token} | columns)
        delete_keys(connection, schema.intent, "token", closed)
        update_rows(connection, schema.intent, "token", changed)
        insert_rows(connection, schema.intent, opened)

    def follow(self) -> None:
        """Let the cache of live rows take over what was written; called once, after the commit."""
        if not self._may_follow:
            return
        jobs = self._added_jobs | {number: self._cached_jobs[number] for number in self._written_jobs}
        instances = {n: self._cached_instances[n] for n in (*self._new_instances, *self._written_instances)}
        self._live.follow(
            self._head_before["revision"],
            CommittedRows(
                revision=self.head["revision"],
                intents_revision=self.head["intents_revision"],
                jobs={n: None if job.state in JOB_ENDED else job for n, job in jobs.items()}
                | dict.fromkeys(self._deleted_jobs),
                instances={n: None if each.state is _TERMINATED else each for n, each in instances.items()},
                intents={token: self._cached_intents[token] for token in self._written_intents},
                applications=self._written_applications,
            ),
        )


def check_revision(row_id: str, read_revision: int, stored: int) -> None:
    """Raise StaleWrite if a row was written after it was read."""
    if read_revision != stored:
        raise StaleWrite(f"{row_id} was read at revision {read_revision} and is now at {stored}; read it again")


def _run_of(others: Sequence[int], begin_within_s: float | None) -> TaskRun | None:
    return TaskRun(others=with_positions((), others), begin_within_s=begin_within_s) if others else None


def indexed_columns(job: Job) -> dict[str, object]:
    """Return the columns of a job that queries use. Raises BadInput for a text that cannot be stored."""
    token = job.submission_token
    tasks = job.spec.tasks if job.is_array else None
    return {
        "user_name": checked_text(job.spec.user, "user"),
        "name": checked_text(job.spec.name, "job name"),
        "token": None if token is None else checked_text(token, "submission token"),
        "array_number": job_number(job.array) if job.array else None,
        "last_number": None if tasks is None else job_number(job.id) + len(tasks),
    }
