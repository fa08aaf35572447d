"""What a database forgets, in pieces: events and samples, then the rows of jobs and machines of which none tells."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Connection, Table, delete, exists, func, insert, select

from hcloud.core.model import EventKind, InstanceState
from hcloud.store import schema
from hcloud.store.documents import instance_number, job_number
from hcloud.store.live import ENDED_STATES, LiveView

PIECE = 5000
"""So many rows are deleted in one transaction, so that other writers get their turn."""


def whole_stories(before: float) -> ColumnElement[bool]:
    """Choose the events of jobs and instances that were over before then, and those about neither."""
    log = schema.event_log
    kept_jobs = select(schema.job.c.number).where(~_job_was_over(before))
    kept_instances = select(schema.instance.c.number).where(~_instance_was_over(before))
    about_none_kept = log.c.job_number.is_(None) | log.c.job_number.not_in(kept_jobs)
    return about_none_kept & (log.c.instance_number.is_(None) | log.c.instance_number.not_in(kept_instances))


def _job_was_over(before: float) -> ColumnElement[bool]:
    jobs = schema.job.c
    return jobs.state.in_(ENDED_STATES) & jobs.finished_at.is_not(None) & (jobs.finished_at < before)


def _instance_was_over(before: float) -> ColumnElement[bool]:
    machines = schema.instance.c
    gone = machines.state == InstanceState.TERMINATED.value
    return gone & machines.terminated_at.is_not(None) & (machines.terminated_at < before)


def forget_events(connection: Connection, before: float, which: ColumnElement[bool]) -> int:
    """Delete the first piece of the events ``which`` that are older than ``before``; return how many they were."""
    log = schema.event_log
    old = select(log.c.seq).where(log.c.at < before, which).order_by(log.c.seq).limit(PIECE)
    connection.execute(insert(schema.event_pruning), {"before_at": before})
    count = connection.execute(delete(log).where(log.c.seq.in_(old))).rowcount
    connection.execute(delete(schema.event_pruning))
    return count


def referred_to(view: LiveView) -> tuple[set[int], set[int]]:
    """Return the numbers of jobs and of instances that rows of what lives name: they stay."""
    jobs = [run for job in view.jobs for run in job.profile_runs]
    jobs += [job.spec.profile.job_id for job in view.jobs if job.spec.profile is not None and job.spec.profile.job_id]
    machines = [name for job in view.jobs for name in job.awaiting]
    machines += [name for job in view.jobs for correction in job.corrections for name in correction.instances]
    machines += [each.instance_id for job in view.jobs if job.attempt for each in job.attempt.allocations]
    return {job_number(each) for each in jobs}, {instance_number(each) for each in machines}


def untold(connection: Connection, table: Table, before: float, after: int) -> Sequence[int]:
    """Return the first piece of numbers above ``after`` of jobs, or instances, that were over before then and that no
    event is about any more."""
    log, is_job = schema.event_log.c, table is schema.job
    over = _job_was_over(before) if is_job else _instance_was_over(before)
    about = log.job_number if is_job else log.instance_number
    first = EventKind.JOB_SUBMITTED if is_job else EventKind.INSTANCE_REQUESTED
    # Whatever came later has a higher number: most of a large table need not be looked at.
    later = select(about).where(log.at >= before, log.kind == first.value).order_by(log.at).limit(1).scalar_subquery()
    among = (table.c.number > after) & (table.c.number < func.coalesce(later, sys.maxsize))
    query = select(table.c.number).where(over, among, ~exists().where(about == table.c.number))
    return connection.execute(query.order_by(table.c.number).limit(PIECE)).scalars().all()


def forget_rows(connection: Connection, table: Table, numbers: Collection[int]) -> None:
    """Delete the rows of jobs, with what they asked for, or of instances."""
    parts = (schema.job_tag, schema.job_spec) if table is schema.job else ()
    for each in (*parts, table):
        connection.execute(delete(each).where(each.c.number.in_(numbers)))
