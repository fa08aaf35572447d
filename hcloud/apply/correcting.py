"""Corrections of running jobs: noted with the job, and what they teach written down as knowledge of its application."""

from __future__ import annotations

from dataclasses import replace

from hcloud.apply.records import reason_fields
from hcloud.classifier.applications import feed, row_name, scale_of
from hcloud.errors import Refused
from hcloud.known import Application
from hcloud.model import JOB_ON_INSTANCE, Correction, EventKind, Job
from hcloud.planner.plan import Correct, Learnt
from hcloud.store import Transaction

KEPT = 64
"""So many corrections are kept with a job, the latest."""


def correct(txn: Transaction, action: Correct) -> None:
    """Note a correction with its job, with a CORRECTION event. Refused where nothing of the job runs any more."""
    job = txn.job(action.job_id)
    attempt = job.attempt
    if attempt is None or attempt.over or job.state not in JOB_ON_INSTANCE:
        raise Refused(f"{job.id} has nothing running")
    made = Correction(at=txn.now, step=action.step, attempt=attempt.id, instances=action.instances)
    txn.put_job(replace(job, corrections=(*job.corrections, made)[-KEPT:]))
    txn.emit(
        EventKind.CORRECTION,
        job_id=job.id,
        user=job.spec.user,
        **{**reason_fields(action.reason), "attempt": attempt.id, "step": action.step},
    )
    if action.learnt is not None:
        _learn(txn, job, action.learnt)


def _learn(txn: Transaction, job: Job, learnt: Learnt) -> None:
    """Write down what a running job taught; nothing where its application is not known any more."""
    row = txn.application(row_name(job.application)) if job.application else None
    scale = scale_of(row, job.application) if row is not None else None
    if row is None or not scale:
        return
    known = _with_tolerated(row, learnt)
    asked = row.reference_vcpus or learnt.vcpus
    if learnt.performance is not None and learnt.vcpus == asked:
        known = feed(known, learnt.column, learnt.performance / scale, None, alone=True)
    if known != row:
        txn.put_application(known)


def _with_tolerated(row: Application, learnt: Learnt) -> Application:
    if not learnt.tolerated:
        return row
    cells = {**row.cells, "tolerated": {**row.cells.get("tolerated", {}), **learnt.tolerated}}
    return replace(row, cells=cells)
