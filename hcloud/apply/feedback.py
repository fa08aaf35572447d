"""What profiling runs found and jobs reached, written down as knowledge of their application, with the event of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from hcloud.apply.transitions import run_time_s
from hcloud.classifier.applications import alike, comparable, feed, identify, learn, ran, recognise, row_name, scale_of
from hcloud.core.estimates import WHOLE_JOBS, Application, Classification, Estimate, Findings, Measure, per_rank
from hcloud.core.model import JOB_ON_INSTANCE, EventKind, Instance, InstanceId, Job
from hcloud.planner.fit.sizing import ExpectedPerformance, expected
from hcloud.store import Transaction

LEAST_RUN_S = 1.0
"""What ran shorter says little about performance: starting up is most of it."""


# ------------------------------------------------------------------------------------------------------------ profiling
def record_findings(txn: Transaction, run: Job, findings: Findings) -> None:
    """Record what one profiling run found, good for something or not, with a JOB_PROFILED event of the job profiled.

    A run that profiles nobody (``measure`` in a job file) teaches nothing of jobs: its event has all there is.
    """
    request = run.spec.profile
    assert request is not None
    if not request.job_id:
        _tell(txn, run, run, findings, "", _what_was_measured(findings))
        return
    job = txn.job(request.job_id)
    identity = identify(job.spec)
    rows = txn.applications(identity.program)
    own = next((row for row in rows if row.name == identity.name), None)
    same = next((row for row in rows if request.look and alike(row, request, findings)), None)
    if same is not None:
        known = txn.put_application(recognise(same, identity, request, findings, run.id))
        text = f"behaves like {same.name}"
    else:
        known = txn.put_application(learn(own, identity, request, findings, run.id, txn.now))
        text = "does not behave like its known program" if request.look else _what_was_measured(findings)
        if own is not None and not comparable(own, findings):
            text += f"; not comparable with earlier numbers by {own.measure}, stored apart"
        if job.state in JOB_ON_INSTANCE and findings.readings and row_name(job.application) != known.name:
            txn.put_job(replace(job, application=known.name))
            text += f"; now classified as {known.name}, before as {job.application or 'a typical application'}"
    _tell(txn, job, run, findings, known.name, text)


def _tell(txn: Transaction, job: Job, run: Job, findings: Findings, application: str, text: str) -> None:
    notes = ", ".join(findings.notes)
    txn.emit(
        EventKind.JOB_PROFILED,
        job_id=job.id,
        user=job.spec.user,
        application=application,
        runs=[run.id],
        measure=None if findings.measure is None else findings.measure.value,
        readings=[
            f"{each.question}:{each.column}:{each.value:.6g}:{each.low:.6g}:{each.high:.6g}:{each.runs}"
            for each in findings.readings
        ],
        use=[float(f"{each:.4g}") for each in findings.use],
        duration_s=round(findings.duration_s, 3),
        notes=list(findings.notes),
        text=f"{run.id} ({run.spec.name.rpartition(':')[2]}, {findings.duration_s:.1f} s): {text}"
        + (f"; {notes}" if notes else ""),
    )


def _what_was_measured(findings: Findings) -> str:
    if not findings.readings:
        return "nothing could be measured"
    questions = dict.fromkeys(each.question for each in findings.readings)
    counts = ", ".join(f"{sum(each.question == name for each in findings.readings)} x {name}" for name in questions)
    return f"measured {counts}, by {findings.measure}"


# ------------------------------------------------------------------------------------------------------------- feedback
class UnitTotals(NamedTuple):
    """What a job's last samples said it had done: totals since the start, its mean rate of requests, and the best rate
    of its windows that were recorded (None: none was)."""

    progress: float | None = None
    written_mib: float | None = None
    requests_per_s: float | None = None
    cpu_s: float | None = None
    best_window_per_s: float | None = None


def record_performance(
    txn: Transaction, job: Job, instance: Instance, reached: UnitTotals, believed: Classification | None, *, alone: bool
) -> None:
    """Record how a job of a known application did, beside what was expected, once its attempt is over.

    ``instance``: where it ran (rank 0). ``alone``: nobody else held part of the machine as it ended.
    """
    row = txn.application(row_name(job.application)) if job.application else None
    run_s, done = run_time_s(job), job.attempt is not None and job.attempt.over and job.attempt.failure is None
    if row is None or run_s < LEAST_RUN_S or job.attempt is None or not job.attempt.over:
        return
    whole = done and job.attempt.stop_requested_at is None
    row = ran(row, run_s) if whole else row
    measured = _performance(row, reached, run_s, whole)
    if measured is not None and believed is not None:
        run = _ran_as(job, instance, measured, alone, reached.best_window_per_s)
        row = _compare(txn, job, row, believed, run)
    txn.put_application(row)


def record_window(
    txn: Transaction, job: Job, instance: Instance, requests_per_s: float, believed: Classification | None, *,
    alone: bool, best_before: float | None = None,
) -> None:  # fmt: skip
    """Record what a running service of a known application served on average in one window, beside what was expected.

    Only a row whose performance is requests can be compared with that. ``best_before``: what this start of it served in
    the best of its earlier windows; None: this is the first.
    """
    row = txn.application(row_name(job.application)) if job.application else None
    if row is None or believed is None or row.measure is not Measure.REQUESTS or requests_per_s <= 0:
        return
    run = _ran_as(job, instance, requests_per_s, alone, best_before)
    txn.put_application(_compare(txn, job, row, believed, run))


def _performance(row: Application, reached: UnitTotals, run_s: float, whole: bool) -> float | None:
    """Return performance per second by the application's measure; None where this run cannot tell."""
    if row.measure in WHOLE_JOBS:
        part = 1.0 if whole else reached.progress if row.measure is Measure.PROGRESS else None
    elif row.measure is Measure.REQUESTS:
        return reached.requests_per_s
    else:
        part = {Measure.OUTPUT: reached.written_mib, Measure.CPU: reached.cpu_s}.get(row.measure or Measure.COMPLETION)
    return part / run_s if part else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobRun:
    """How a job did where it ran: on which type, with what of it, on how many nodes; its performance by the measure of
    its application, whether it was alone, and the best of its earlier windows (None: there was none)."""

    instance_id: InstanceId
    column: str
    vcpus: float
    nodes: int
    measured: float
    alone: bool
    best_before: float | None


def _ran_as(job: Job, instance: Instance, measured: float, alone: bool, best_before: float | None) -> _JobRun:
    held = job.attempt.allocations if job.attempt is not None else ()
    return _JobRun(
        instance_id=instance.id,
        column=f"{instance.offer.provider}/{instance.offer.instance_type.name}",
        vcpus=(held[0].resources if held else job.spec.held_of(instance.capacity)).vcpus,
        nodes=max(1, len(held)),
        measured=measured,
        alone=alone,
        best_before=best_before,
    )


def _compare(txn: Transaction, job: Job, row: Application, believed: Classification, run: _JobRun) -> Application:
    """Write the PREDICTION event, and return the application with what the run adds to it."""
    asked_vcpus = row.reference_vcpus or run.vcpus
    own = expected(believed, run.column, vcpus=run.vcpus, asked_vcpus=asked_vcpus, nodes=run.nodes)
    own = own and own.times(per_rank(row.measure, run.nodes))
    base = expected(believed, run.column, vcpus=asked_vcpus, asked_vcpus=asked_vcpus)
    scale = scale_of(row, job.application)
    if own is None or base is None:
        as_asked = scale and run.nodes == 1 and run.vcpus == asked_vcpus
        return feed(row, run.column, run.measured / scale, None, alone=run.alone) if as_asked else row
    if scale == 0.0:  # the first run under this input tells its scale
        return replace(row, inputs={**row.inputs, identify(job.spec).input: run.measured / own.value})
    _tell_prediction(txn, job, row, own, run)
    return _fed(row, own, base, scale, run)


def _tell_prediction(txn: Transaction, job: Job, row: Application, own: ExpectedPerformance, run: _JobRun) -> None:
    low, high = own.limits()
    txn.emit(
        EventKind.PREDICTION,
        job_id=job.id,
        instance_id=run.instance_id,
        user=job.spec.user,
        application=row.name,
        question="run",
        measure=None if row.measure is None else row.measure.value,
        instance_type=run.column,
        nodes=run.nodes,
        vcpus=run.vcpus,
        predicted=own.value,
        low=low,
        high=high,
        measured=run.measured,
        alone=run.alone,
    )


def _fed(
    row: Application, own: ExpectedPerformance, base: ExpectedPerformance, scale: float, run: _JobRun
) -> Application:
    """Return the application with the run, told as one that has on one node what is asked for."""
    factor, (low, high) = own.value / base.value * scale, own.limits()
    relative = Estimate(value=base.value / scale, low=low / factor, high=high / factor)
    before = None if run.best_before is None else run.best_before / factor
    return feed(row, run.column, run.measured / factor, relative, alone=run.alone, best_before=before)
