"""Pruning of old rows in batches: events and samples, then jobs and instances without events."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import ColumnElement, Connection, Table, delete, exists, func, insert, select

from hcloud.core.model import EventKind, InstanceState
from hcloud.store import schema
from hcloud.store.array_rows import of_kept_array
from hcloud.store.chain import anchors_digest, read_anchors, with_pruned
from hcloud.store.documents import instance_number, job_number
from hcloud.store.event_folds import has_folds, prunable_folds
from hcloud.store.live import ENDED_STATES, LiveView

FOLDS = 10
BATCH = 5000
"""Rows deleted in one transaction, so that other writers get their turn."""


def of_ended_subjects(before: float) -> ColumnElement[bool]:
    """Return a condition for the events of jobs and instances that ended before ``before``, and those of neither."""
    log = schema.event_log
    kept_jobs = select(schema.job.c.number).where(~_job_ended(before))
    kept_instances = select(schema.instance.c.number).where(~_instance_ended(before))
    # Tasks that were recorded with their array have no row: their events are kept as long as the array.
    of_task = of_kept_array(log.c.job_number, ~_job_ended(before))
    no_kept_job = log.c.job_number.is_(None) | (log.c.job_number.not_in(kept_jobs) & ~of_task)
    return no_kept_job & (log.c.instance_number.is_(None) | log.c.instance_number.not_in(kept_instances))


def _job_ended(before: float) -> ColumnElement[bool]:
    jobs = schema.job.c
    return jobs.state.in_(ENDED_STATES) & jobs.finished_at.is_not(None) & (jobs.finished_at < before)


def _instance_ended(before: float) -> ColumnElement[bool]:
    machines = schema.instance.c
    gone = machines.state == InstanceState.TERMINATED.value
    return gone & machines.terminated_at.is_not(None) & (machines.terminated_at < before)


def delete_events(connection: Connection, before: float, condition: ColumnElement[bool]) -> list[tuple[int, str]]:
    """Delete the first batch of events before ``before`` that meet ``condition``; return link and digest of each.

    Those of samples, and of events of before the chain, are 0 and "".
    """
    log = schema.event_log
    old = select(log.c.seq, log.c.link, log.c.digest).where(log.c.at < before, condition)
    rows = connection.execute(old.order_by(log.c.seq).limit(BATCH)).all()
    if rows:
        connection.execute(insert(schema.event_pruning), {"before_at": before})
        connection.execute(delete(log).where(log.c.seq.in_([row.seq for row in rows])))
        connection.execute(delete(schema.event_pruning))
    return [(row.link or 0, row.digest or "") for row in rows]


def ended_folds(connection: Connection, before: float) -> list[int]:
    """Return the first events of a batch of folds of which array and instances ended before ``before``."""
    kept_arrays = select(schema.job.c.number).where(~_job_ended(before))
    kept_instances = select(schema.instance.c.number).where(~_instance_ended(before))
    return prunable_folds(connection, before, kept_arrays, kept_instances, FOLDS)


def keep_anchors(connection: Connection, links: Iterable[tuple[int, str]]) -> str:
    """Keep what the chain needs of deleted links, given as number and digest; return the digest of all anchors."""
    table, before = schema.event_anchor, read_anchors(connection)
    after = with_pruned(before, links)
    changed = [each for each in before if each not in set(after)]
    fresh = [each for each in after if each not in set(before)]
    if changed:
        connection.execute(delete(table).where(table.c.first_link.in_([each.first for each in changed])))
    if fresh:
        rows = [{"first_link": each.first, "last_link": each.last, "digest": each.digest} for each in fresh]
        connection.execute(insert(table), rows)
    return anchors_digest(after)


def referenced_numbers(view: LiveView) -> tuple[set[int], set[int]]:
    """Return the numbers of the jobs and of the instances that live jobs refer to."""
    jobs = [run for job in view.jobs for run in job.profile_runs]
    jobs += [job.spec.profile.job_id for job in view.jobs if job.spec.profile is not None and job.spec.profile.job_id]
    machines = [name for job in view.jobs for name in job.awaiting]
    machines += [name for job in view.jobs for correction in job.corrections for name in correction.instances]
    machines += [each.instance_id for job in view.jobs if job.attempt for each in job.attempt.allocations]
    return {job_number(each) for each in jobs}, {instance_number(each) for each in machines}


def without_events(connection: Connection, table: Table, before: float, after: int) -> Sequence[int]:
    """Return the first batch of numbers above ``after`` of jobs or instances that ended before ``before`` and have no
    events any more."""
    log, is_job = schema.event_log.c, table is schema.job
    ended = _job_ended(before) if is_job else _instance_ended(before)
    subject = log.job_number if is_job else log.instance_number
    first = EventKind.JOB_SUBMITTED if is_job else EventKind.INSTANCE_REQUESTED
    # Later rows have higher numbers, so that most of a large table need not be read.
    later = select(subject).where(log.at >= before, log.kind == first.value).order_by(log.at).limit(1).scalar_subquery()
    candidates = (table.c.number > after) & (table.c.number < func.coalesce(later, sys.maxsize))
    query = select(table.c.number).where(ended, candidates, ~exists().where(subject == table.c.number))
    if is_job:
        query = query.where(~has_folds(table.c.number))
    return connection.execute(query.order_by(table.c.number).limit(BATCH)).scalars().all()


def delete_rows(connection: Connection, table: Table, numbers: Collection[int]) -> None:
    """Delete rows of jobs, with their specs, tags, secrets and dependencies, or of instances."""
    of_jobs = (schema.job_dependency, schema.job_secret, schema.job_tag, schema.job_spec)
    parts = of_jobs if table is schema.job else ()
    for each in (*parts, table):
        connection.execute(delete(each).where(each.c.number.in_(numbers)))
