"""Feedback: what profiling runs and finished jobs show is recorded with their application, with an event."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hcloud.apply.transitions import record_correction, run_time_s
from hcloud.classifier.applications import (
    MOST_LOST,
    NOTHING_LOST,
    OwnRun,
    alike,
    comparable,
    feed,
    identify,
    learn,
    learn_own_run,
    of_one_run,
    ran,
    recognise,
    row_name,
    scale_of,
    with_readings,
)
from hcloud.classifier.interference import NeighbourLoss
from hcloud.classifier.phases import departures, describe_departures
from hcloud.core.co_runs import CoRun, bounded_log_speed
from hcloud.core.cpu_window import TAKEN_MAX, share_taken
from hcloud.core.estimates import WHOLE_JOBS, Application, Classification, Estimate, Findings, Measure, per_rank
from hcloud.core.model import JOB_ENDED, EventKind, Instance, InstanceId, Job, Reason, ServiceTarget
from hcloud.planner.fit.expected_performance import ExpectedPerformance, expected
from hcloud.store import Transaction

LEAST_RUN_S = 1.0
"""Shorter runs say little about performance: most of such a run is start-up."""


# ------------------------------------------------------------------------------------------------------------ profiling
def record_findings(txn: Transaction, run: Job, findings: Findings) -> None:
    """Record what one profiling run found, useful or not, with a JOB_PROFILED event of the profiled job.

    A run without a job to profile (``measure`` in a job file) changes no application; its event holds all it found.
    """
    request = run.spec.profile
    assert request is not None
    if not request.job_id:
        _emit_profiled(txn, run, run, findings, "", _measurement_summary(findings))
        return
    job = txn.job(request.job_id)
    if request.unit_id:
        _record_in_place(txn, job, run, findings)
        return
    identity = identify(job.spec)
    rows = txn.applications(identity.program)
    own = next((row for row in rows if row.name == identity.name), None)
    same = next((row for row in rows if request.look and alike(row, request, findings)), None)
    if same is not None:
        known = txn.put_application(recognise(same, identity, request, findings, run.id))
        text = f"behaves like {same.name}"
    else:
        known = txn.put_application(learn(own, identity, request, findings, run.id, txn.now))
        text = "does not behave like its known program" if request.look else _measurement_summary(findings)
        if own is not None and not comparable(own, findings):
            text += f"; not comparable with earlier numbers by {own.measure}, stored apart"
        if job.state not in JOB_ENDED and findings.readings and row_name(job.application) != known.name:
            txn.put_job(replace(job, application=known.name))
            text += f"; now classified as {known.name}, before as {job.application or 'a typical application'}"
    _emit_profiled(txn, job, run, findings, known.name, text)


def _record_in_place(txn: Transaction, job: Job, run: Job, findings: Findings) -> None:
    """Record what a running unit showed in place; if that surely differs from what was expected, it is in another
    phase, which is recorded as a correction and replaces the estimates."""
    request = run.spec.profile
    assert request is not None
    row = txn.application(row_name(job.application)) if job.application else None
    changed = departures(request.expected, findings.readings)
    text = describe_departures(request.expected, changed) if changed else _measurement_summary(findings)
    where = {"in_place": True, "changed": [f"{each.question}:{each.column}" for each in changed]}
    _emit_profiled(txn, job, run, findings, row.name if row is not None else "", text, **where)
    if row is None or not changed or job.attempt is None or job.state in JOB_ENDED:
        return
    txn.put_application(with_readings(row, changed))
    record_correction(txn, job, "sampled", Reason(code="phase_changed", text=text))


def _emit_profiled(
    txn: Transaction, job: Job, run: Job, findings: Findings, application: str, text: str, **where: Any
) -> None:
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
        **where,
        text=f"{run.id} ({run.spec.name.rpartition(':')[2]}, {findings.duration_s:.1f} s): {text}"
        + (f"; {notes}" if notes else ""),
    )


def _measurement_summary(findings: Findings) -> str:
    if not findings.readings:
        return "nothing could be measured"
    questions = dict.fromkeys(each.question for each in findings.readings)
    counts = ", ".join(f"{sum(each.question == name for each in findings.readings)} x {name}" for name in questions)
    return f"measured {counts}, by {findings.measure}"


# ------------------------------------------------------------------------------------------------------------- feedback
class UnitTotals(NamedTuple):
    """What a job's unit had done by its last samples."""

    progress: float | None = None
    read_mib: float | None = None
    memory_mib: float | None = None
    """The most it held."""
    written_mib: float | None = None
    requests_per_s: float | None = None
    """Moving average."""
    cpu_s: float | None = None
    taken_s: float = 0.0
    """CPU time that the host gave to others although the unit wanted and was promised it."""
    best_window_per_s: float | None = None
    """The best mean request rate of a recorded window; None if none was recorded."""
    beside: NeighbourLoss | None = None
    """What its neighbours may have cost it; None if it had none."""

    @property
    def lost(self) -> NeighbourLoss | None:
        """What neighbours and the host may have cost it; None if neither did."""
        taken = share_taken(self.taken_s, self.cpu_s or 0.0)
        if taken <= TAKEN_MAX:
            return self.beside
        beside = self.beside.worst if self.beside is not None else NOTHING_LOST
        value, low, high = (1.0 - (1.0 - each) * (1.0 - taken) for each in beside[:3])
        return NeighbourLoss(worst=Estimate(value, low, high), is_steady=False)


def record_performance(
    txn: Transaction, job: Job, instance: Instance, totals: UnitTotals, believed: Classification | None
) -> None:
    """Compare a job with what was expected, once its attempt is over, and add the run to its application.

    ``instance``: where rank 0 ran.
    """
    row = txn.application(row_name(job.application)) if job.application else None
    run_s, done = run_time_s(job), job.attempt is not None and job.attempt.over and job.attempt.failure is None
    if row is None or run_s < LEAST_RUN_S or job.attempt is None or not job.attempt.over:
        return
    whole = done and job.attempt.stop_requested_at is None
    row = ran(row, run_s) if whole else row
    measured = _performance(row, totals, run_s, whole)
    if measured is not None and believed is not None:
        run = _job_run(job, instance, measured, totals.lost, totals.best_window_per_s)
        row = _compare(txn, job, row, believed, run)
    txn.put_application(row)


def record_own_run(txn: Transaction, job: Job, instance: Instance, totals: UnitTotals) -> None:
    """Add the successful run of a job that is not classified to what is known of its program.

    Batch and best-effort jobs of one rank only: the request rate of a service shows its load, not what it could bear.
    ``instance``: where it ran.
    """
    attempt, run_s = job.attempt, run_time_s(job)
    if attempt is None or not attempt.over or attempt.failure is not None or attempt.stop_requested_at is not None:
        return
    if run_s < LEAST_RUN_S or len(attempt.allocations) != 1 or isinstance(job.spec.target, ServiceTarget):
        return
    identity, use = identify(job.spec), tuple[float, ...]()
    if totals.cpu_s is not None and totals.memory_mib is not None:
        read, written = totals.read_mib or 0.0, totals.written_mib or 0.0
        use = (totals.cpu_s / run_s, totals.memory_mib, read / run_s, written / run_s)
    run = OwnRun(
        measure=Measure.PROGRESS if job.spec.progress is not None else Measure.COMPLETION,
        type_column=f"{instance.offer.provider}/{instance.offer.instance_type.name}",
        vcpus=attempt.allocations[0].resources.vcpus,
        performance=1.0 / run_s,
        use=use,
        run_s=run_s,
        lost=NOTHING_LOST if (lost := totals.lost) is None else lost.on_average,
    )
    row = learn_own_run(txn.applications(identity.program), identity, run)
    if row is not None:
        txn.put_application(row)


def record_window(
    txn: Transaction, job: Job, instance: Instance, requests_per_s: float, believed: Classification | None, *,
    beside: NeighbourLoss | None = None, best_before: float | None = None,
) -> None:  # fmt: skip
    """Compare the mean request rate of one window of a running service with what was expected.

    Only for applications measured in requests. ``beside``: what neighbours may have cost it. ``best_before``: the best
    of this start's earlier windows, None if none.
    """
    row = txn.application(row_name(job.application)) if job.application else None
    if row is None or believed is None or row.measure is not Measure.REQUESTS or requests_per_s <= 0:
        return
    run = _job_run(job, instance, requests_per_s, beside, best_before)
    txn.put_application(_compare(txn, job, row, believed, run))


class CoRunPeriod(NamedTuple):
    """What a unit did while its neighbours were the same."""

    neighbours: tuple[str, ...]
    """Applications of the units beside it, sorted; empty: it was alone."""
    shared_cpus: float | None
    """Share (0..1) of its CPUs on which these may run, too; None: it was alone."""
    seconds: float
    progress: float | None
    """Part of the whole job that was done (0..1); None: unknown."""
    written_mib: float | None
    ended_at: float


def record_co_run(
    txn: Transaction, job: Job, instance: Instance, period: CoRunPeriod, believed: Classification | None
) -> None:
    """Record how fast a job of one rank was in a period, compared with what was expected of it alone.

    Only applications measured in progress or output: the request rate of a service shows its load, and CPU time passes
    however little it achieves.
    """
    held = job.attempt.allocations if job.attempt is not None else ()
    done = {Measure.PROGRESS: period.progress, Measure.OUTPUT: period.written_mib}
    amount = done.get(believed.measure) if believed is not None and believed.measure is not None else None
    if believed is None or not amount or len(held) != 1:
        return
    column, vcpus = f"{instance.offer.provider}/{instance.offer.instance_type.name}", held[0].resources.vcpus
    alone = expected(believed, column, vcpus=vcpus, asked_vcpus=believed.reference_vcpus or vcpus)
    if alone is None:
        return
    txn.add_co_run(
        CoRun(
            application=row_name(job.application),
            neighbours=tuple(sorted(row_name(each) for each in period.neighbours)),
            type_column=column,
            log_speed=bounded_log_speed(amount / period.seconds / alone.value),
            doubt=alone.deviation,
            shared_cpus=period.shared_cpus,
            seconds=period.seconds,
            # The instance's clock may be wrong.
            observed_at=min(txn.now, period.ended_at),
        )
    )


def _performance(row: Application, totals: UnitTotals, run_s: float, whole: bool) -> float | None:
    """Return performance per second by the application's measure; None if this run does not show it."""
    if row.measure in WHOLE_JOBS:
        part = 1.0 if whole else totals.progress if row.measure is Measure.PROGRESS else None
    elif row.measure is Measure.REQUESTS:
        return totals.requests_per_s
    else:
        part = {Measure.OUTPUT: totals.written_mib, Measure.CPU: totals.cpu_s}.get(row.measure or Measure.COMPLETION)
    return part / run_s if part else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobRun:
    """How a job performed where it ran."""

    instance_id: InstanceId
    column: str
    """``provider/type`` of the instance."""
    vcpus: float
    """What the job held per node."""
    nodes: int
    measured: float
    """Performance by the application's measure."""
    beside: NeighbourLoss | None
    """What its neighbours may have cost it; None if it had none."""
    best_before: float | None
    """The best earlier window of the same start; None if there was none."""


def _job_run(
    job: Job, instance: Instance, measured: float, beside: NeighbourLoss | None, best_before: float | None
) -> _JobRun:
    held = job.attempt.allocations if job.attempt is not None else ()
    return _JobRun(
        instance_id=instance.id,
        column=f"{instance.offer.provider}/{instance.offer.instance_type.name}",
        vcpus=(held[0].resources if held else job.spec.resources_on(instance.capacity)).vcpus,
        nodes=max(1, len(held)),
        measured=measured,
        beside=beside,
        best_before=best_before,
    )


def _compare(txn: Transaction, job: Job, row: Application, believed: Classification, run: _JobRun) -> Application:
    """Write the PREDICTION events; return the application with the run added."""
    lost = run.beside.worst if run.beside is not None else NOTHING_LOST
    on_average = run.beside.on_average if run.beside is not None else NOTHING_LOST
    asked_vcpus = row.reference_vcpus or run.vcpus
    own = expected(believed, run.column, vcpus=run.vcpus, asked_vcpus=asked_vcpus, nodes=run.nodes)
    own = own and own.times(per_rank(row.measure, run.nodes))
    base = expected(believed, run.column, vcpus=asked_vcpus, asked_vcpus=asked_vcpus)
    scale = scale_of(row, job.application)
    if own is None or base is None:
        as_asked = scale and run.nodes == 1 and run.vcpus == asked_vcpus
        return feed(row, run.column, run.measured / scale, None, lost=on_average) if as_asked else row
    if scale == 0.0:  # the first run with this input shows its scale
        alone = run.measured / (1.0 - min(lost.value, MOST_LOST))
        return replace(row, inputs={**row.inputs, identify(job.spec).input: alone / own.value})
    there = _beside(own, lost, steady=run.beside is None or run.beside.is_steady)
    _emit_prediction(txn, job, row, run, "run", there, run.measured)
    if run.beside is not None and run.beside.is_steady:
        most, value, least = (100.0 * (1.0 - each / own.value) for each in (there.low, there.value, there.high))
        _emit_prediction(
            txn, job, row, run, "loss", Estimate(value, least, most), 100.0 * (1.0 - run.measured / own.value)
        )
    return _with_run(row, own, base, scale, run, on_average)


def _beside(own: ExpectedPerformance, lost: Estimate, *, steady: bool) -> Estimate:
    """Return the performance to expect of one run beside neighbours; its limits hold the doubt of both.

    Not ``steady``: they were there for an unknown part of it, so the loss only lowers the lower limit.
    """
    shares = (lost.value if steady else 0.0, lost.low if steady else 0.0, lost.high)
    kept, best, least = (math.log(1.0 - min(each, MOST_LOST)) for each in shares)
    alone = of_one_run(Estimate(own.value, *own.limits()))
    mean, doubt = own.mean + kept, math.log(alone.high / alone.value)
    low, high = mean - math.hypot(doubt, kept - least), mean + math.hypot(doubt, best - kept)
    return Estimate(math.exp(mean), math.exp(low), math.exp(high))


def _emit_prediction(
    txn: Transaction, job: Job, row: Application, run: _JobRun, question: str, predicted: Estimate, measured: float
) -> None:
    txn.emit(
        EventKind.PREDICTION,
        job_id=job.id,
        instance_id=run.instance_id,
        user=job.spec.user,
        application=row.name,
        question=question,
        measure=None if row.measure is None else row.measure.value,
        instance_type=run.column,
        nodes=run.nodes,
        vcpus=run.vcpus,
        predicted=predicted.value,
        low=predicted.low,
        high=predicted.high,
        measured=measured,
        alone=run.beside is None,
    )


def _with_run(
    row: Application,
    own: ExpectedPerformance,
    base: ExpectedPerformance,
    scale: float,
    run: _JobRun,
    lost: Estimate,
) -> Application:
    """Return the application with the run added, converted to one node of the requested size."""
    factor, (low, high) = own.value / base.value * scale, own.limits()
    relative = Estimate(value=base.value / scale, low=low / factor, high=high / factor)
    before = None if run.best_before is None else run.best_before / factor
    return feed(row, run.column, run.measured / factor, relative, lost=lost, best_before=before)
