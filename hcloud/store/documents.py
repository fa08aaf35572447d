"""Conversion between the model's classes and rows: numbers in ids, and JSON documents that restore equal values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, from_json, to_json

from hcloud.core.co_runs import CoRun
from hcloud.core.errors import BadInput, NotFound, StoreError
from hcloud.core.estimates import Application
from hcloud.core.model import Event, EventKind, Instance, InstanceId, Intent, Job, JobId, JobSpec, with_memory
from hcloud.core.rows import replace_fields
from hcloud.core.schedules import Schedule, ScheduleId
from hcloud.planner.snapshot import Directive, OfferBackoff, RefusedQuota

_JOB_COLUMNS = {"id", "spec", "revision"}
_INSTANCE_COLUMNS = {"id", "revision"}


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    # Built on first use: it takes 0.1 s, which `hcloud submit` saves.
    return TypeAdapter(kind)


def numbered(prefix: str, thing_id: str) -> int:
    """Return n of ``<prefix>-<n>``.

    Raises:
        NotFound: the text is not an id of this kind; the message shows one.
    """
    head, _, digits = thing_id.partition("-")
    if head != prefix or not digits.isascii() or not digits.isdigit() or len(digits) > 18 or digits != str(int(digits)):
        raise NotFound(f"{thing_id!r} is not the id of {_LONG_NAMES[prefix]}; one looks like {prefix}-7")
    return int(digits)


_LONG_NAMES = {"job": "a job", "inst": "a machine", "sched": "a schedule"}


@lru_cache(maxsize=8192)
def job_number(job_id: JobId) -> int:
    """Return n of ``job-<n>``. Raises NotFound."""
    return numbered("job", job_id)


@lru_cache(maxsize=8192)
def instance_number(instance_id: InstanceId) -> int:
    """Return n of ``inst-<n>``. Raises NotFound."""
    return numbered("inst", instance_id)


def dump(value: object, *, without: set[str] | None = None) -> str:
    """Return ``value`` as JSON; infinite floats are preserved.

    Raises:
        BadInput: it contains text that is not valid Unicode.
    """
    try:
        return to_json(value, exclude=without, inf_nan_mode="constants").decode()
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        raise BadInput(f"this cannot be stored as text: {error}") from error


def checked_text(text: str, what: str) -> str:
    """Return ``text`` if both databases can store it in a column.

    Raises:
        BadInput: it contains a NUL character or is not valid Unicode.
    """
    if not storable(text):
        raise BadInput(f"{what} {text!r} contains a NUL character or is not valid Unicode; use printable text")
    return text


def storable(text: str) -> bool:
    """Return whether both databases can store ``text`` in a column; no row can match other text."""
    if text.isascii():
        return "\x00" not in text
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in text


def _load(kind: type, name: str, document: str, **columns: object) -> Any:
    """Build an object from its document and its columns. Raises StoreError if they are damaged."""
    try:
        if not columns:
            return _adapter(kind).validate_json(document)
        return _adapter(kind).validate_python(from_json(document) | columns)
    except ValueError as error:  # pydantic's errors are ValueErrors too
        first = str(error).splitlines()[:3]
        raise StoreError(f"a {name} in the database is damaged ({' '.join(first)}): {columns.get('id', '')}") from error


@lru_cache(maxsize=256)
def load_spec(document: str) -> JobSpec:
    """Return the spec of a document. Equal specs share one object, as they never change."""
    spec: JobSpec = _load(JobSpec, "job's spec", document)
    return spec


def dump_job(job: Job) -> str:
    """Return a job's document, without its spec and the fields with their own columns."""
    return dump(job, without=_JOB_COLUMNS)


def load_job(number: int, revision: int, document: str, spec: JobSpec) -> Job:
    """Return the job of a row, with ``spec`` itself, not a copy, unless it got more memory since."""
    job: Job = _load(Job, "job", document, id=f"job-{number}", revision=revision, spec=spec)
    return job if job.memory_mib is None else replace_fields(job, spec=with_memory(spec, job.memory_mib))


def dump_instance(instance: Instance) -> str:
    """Return an instance's document."""
    return dump(instance, without=_INSTANCE_COLUMNS)


def load_instance(number: int, revision: int, document: str) -> Instance:
    """Return the instance of a row."""
    instance: Instance = _load(Instance, "instance", document, id=f"inst-{number}", revision=revision)
    return instance


def dump_application(application: Application) -> str:
    """Return an application's document, without its revision."""
    return dump(application, without={"revision"})


def load_application(revision: int, document: str) -> Application:
    """Return the application of a row."""
    application: Application = _load(Application, "known application", document, revision=revision)
    return application


def co_run_key(record: CoRun) -> str:
    """Return the text that identifies a co-run record."""
    return dump(record.key)


def load_co_run(document: str) -> CoRun:
    """Return the co-run record of a document."""
    record: CoRun = _load(CoRun, "co-run record", document)
    return record


def load_intent(document: str) -> Intent:
    """Return the intent of a document."""
    intent: Intent = _load(Intent, "intent", document)
    return intent


def load_backoff(document: str) -> OfferBackoff:
    """Return the back-off of a document."""
    backoff: OfferBackoff = _load(OfferBackoff, "offer back-off", document)
    return backoff


def load_refused_quota(document: str) -> RefusedQuota:
    """Return the refused quota of a document."""
    quota: RefusedQuota = _load(RefusedQuota, "refused quota", document)
    return quota


def load_directive(document: str) -> Directive:
    """Return the operator's directive of a document."""
    directive: Directive = _load(Directive, "operator's directive", document)
    return directive


def backoff_key(backoff: OfferBackoff) -> tuple[str, str, str, str]:
    """Return what a back-off applies to: provider, zone, type name, market (empty: any)."""
    return (backoff.provider, backoff.zone, backoff.instance_type, backoff.market)


def schedule_number(schedule_id: ScheduleId) -> int:
    """Return n of ``sched-<n>``. Raises NotFound."""
    return numbered("sched", schedule_id)


def dump_schedule(schedule: Schedule) -> str:
    """Return a schedule's document, without its id."""
    return dump(schedule, without={"id"})


def load_schedule(number: int, document: str) -> Schedule:
    """Return the schedule of a row."""
    schedule: Schedule = _load(Schedule, "schedule", document, id=f"sched-{number}")
    return schedule


def load_event(row: Any) -> Event:
    """Return the event of a row of the event table."""
    fields: Mapping[str, object] = from_json(row.fields)
    return Event(
        seq=row.seq,
        at=row.at,
        kind=EventKind(row.kind),
        job_id=None if row.job_number is None else f"job-{row.job_number}",
        instance_id=None if row.instance_number is None else f"inst-{row.instance_number}",
        user=row.user_name,
        actor=row.actor,
        fields=fields,
    )


_PLAIN = frozenset({float, int, bool, type(None)})


def read_back(fields: dict[str, object]) -> dict[str, object]:
    """Return an event's fields as a database would return them; the same object if nothing changes."""
    lists: dict[str, object] = {}
    for name, each in fields.items():
        if type(each) in _PLAIN or (type(each) is str and each.isascii()):
            continue
        if not isinstance(each, (list, tuple)) or not all(type(part) is str and part.isascii() for part in each):
            return dict[str, object](from_json(dump(fields)))
        lists[name] = list(each)
    return {**fields, **lists} if lists else fields
