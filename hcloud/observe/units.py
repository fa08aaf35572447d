"""Workers' reports become facts about units. Concludes nothing from silence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeVar

from hcloud.apply.feedback import UnitTotals, record_co_run, record_window
from hcloud.apply.kept_checkpoints import restored_checkpoint_at
from hcloud.apply.task_runs import new_ends
from hcloud.apply.unit_index import UnitIndex, UnitOwner
from hcloud.classifier.interference import UNKNOWN_LOSS, NeighbourLoss, neighbour_loss
from hcloud.classifier.slowdown.forecasts import NOTHING_OBSERVED, SlowdownForecasts
from hcloud.core.co_runs import shared_cpus_of
from hcloud.core.estimates import Classification
from hcloud.core.model import Allocation, EventKind, FailureCause, Instance, InstanceId, Job, JobId, ServiceTarget
from hcloud.core.rows import number_of
from hcloud.observe import facts
from hcloud.observe.bucket_outputs import Delivery
from hcloud.observe.checkpoint_archive import CheckpointArchive
from hcloud.observe.co_runs import CoRunPeriods
from hcloud.observe.facts import Change, FactBatch, ObservationRound, UnitEnd, UnitHost
from hcloud.observe.log_archive import LogArchive
from hcloud.observe.output_archive import LeftUnit, OutputArchive
from hcloud.observe.sampling import SampleChange, Sampling, record_sample, sampled_every_s, served_as_promised
from hcloud.provider import ExitRecord, Runner, RunnerView, UnitReport, UnitSample, UnitState, WorkerReport
from hcloud.quarantine import CYCLE_ERRORS, Failure, bisect_failures
from hcloud.spec.policy import Policy

Memory = TypeVar("Memory")
FEED_EVERY_S = 600.0
"""The length of the windows in which a running service is compared with what was expected of it."""
RATE_WEIGHT = 0.1
"""The weight of a new sample in the moving average of the request rate."""
UNIT_MISSING_S = 60.0
"""How long a unit must be missing from its worker's reports to count as lost."""


@dataclass(slots=True)
class UnitObserver:
    """Reads the engine's view of workers and units. Its memory may be lost without harm."""

    runner: Runner
    logs: LogArchive
    unit_index: UnitIndex
    outputs: OutputArchive | None = None
    """Where outputs of jobs are kept; None: nowhere, as no programs run."""
    checkpoints: CheckpointArchive | None = None
    """Where checkpoints of running units are kept; None: nowhere, as no programs run."""
    believed: Mapping[str, Classification] = field(default_factory=dict)
    """What the last plan believed of applications: what jobs reach is compared with it."""
    slowdowns: SlowdownForecasts = NOTHING_OBSERVED
    """What neighbours cost by what was observed of these very programs, as the last plan knew it."""
    _settled: dict[InstanceId, WorkerReport] = field(default_factory=dict)
    """By instance, the report that added nothing to its present row and units: the same report adds nothing again."""
    _present: dict[InstanceId, tuple[Mapping[JobId, Job], frozenset[JobId]]] = field(default_factory=dict)
    """By instance, the jobs of its units that are not paused, as long as neither row nor units change."""
    _settled_under: Policy | None = None
    """The policy under which ``_settled`` holds."""
    _missing_since: dict[str, float] = field(default_factory=dict)
    _stopped_orphans: dict[str, InstanceId] = field(default_factory=dict)
    """By unit without an owner that was asked to stop, its instance."""
    _totals: dict[str, UnitTotals] = field(default_factory=dict)
    _neighbours: dict[str, frozenset[JobId]] = field(default_factory=dict)
    """By unit, its job and those beside it by the latest report."""
    _windows: dict[str, tuple[float, list[float]]] = field(default_factory=dict)
    """By service unit: when its present window began, and the request rates in it."""
    _sampling: Sampling = field(default_factory=Sampling)
    _co_runs: CoRunPeriods = field(default_factory=CoRunPeriods)
    _cpus_seen: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By unit, on which CPUs its last sample found it."""

    # ---------------------------------------------------------------------------------------------------------- engine
    def read(self, observed: ObservationRound) -> RunnerView:
        """Return the engine's view; an unreachable one if reading it fails because of a defect."""
        try:
            return self.runner.observe()
        except Exception as defect:  # noqa: BLE001 any defect: instances must still be renewed
            observed.failing["polling the engine"] = Failure.from_error(exc_info=defect)
            return RunnerView(workers=(), reachable=False)

    def note_changes(self, changed: Set[InstanceId]) -> None:
        """Drop conclusions about instances that changed, or their units."""
        for name in changed:
            self._settled.pop(name, None)
            self._present.pop(name, None)

    def unsettle(self, instance_id: InstanceId) -> None:
        """Process the next report of an instance even if it is the same: recording this one failed."""
        self._settled.pop(instance_id, None)

    def forget_samples(self, samples: Sequence[SampleChange]) -> None:
        """Take samples that were not recorded for new ones when they are read again."""
        for sample in samples:
            if sample.job.attempt is not None:
                self._sampling.forget(sample.job.attempt.unit_id(sample.fields["rank"]))

    def forget_ended(self, observed: ObservationRound) -> None:
        """Forget units with a recorded end, and let their workers forget them."""
        for unit in observed.ended:
            self._windows.pop(unit, None)
            self._neighbours.pop(unit, None)
            self._totals.pop(unit, None)
            self._sampling.forget(unit)
            self._co_runs.forget(unit)
            self._cpus_seen.pop(unit, None)
        try:
            if observed.ended:
                self.runner.forget(observed.ended)
        except Exception as defect:  # noqa: BLE001 any defect: their workers report them again, and this is repeated
            for name in observed.ended.values():
                self._settled.pop(name, None)
            observed.failing["cleaning up ended units"] = Failure.from_error(exc_info=defect)

    def forget_others(self, machines: Set[InstanceId]) -> None:
        """Forget all units but those held on live ``machines``: units that vanish with theirs are never reported."""
        units = {unit for held in self.unit_index.owners.values() for unit in held}
        self._stopped_orphans = {unit: name for unit, name in self._stopped_orphans.items() if name in machines}
        self._missing_since = _only(self._missing_since, units)
        self._totals = _only(self._totals, units)
        self._windows = _only(self._windows, units)
        self._neighbours = _only(self._neighbours, units)
        self._sampling.retain(units)
        self._co_runs.retain(units)
        self._cpus_seen = _only(self._cpus_seen, units)

    # --------------------------------------------------------------------------------------------------------- workers
    def report_facts(
        self, engine: RunnerView, now: float, policy: Policy, observed: ObservationRound
    ) -> list[FactBatch]:
        """Return what the workers' reports add to the rows of instances and jobs."""
        batches: list[FactBatch] = []
        settled, machines = self._settled, self.unit_index.machines
        if policy is not self._settled_under:
            settled.clear()
            self._settled_under = policy
        changed = [each for each in engine.workers if settled.get(each.instance_id) is not each]
        self._archive(changed, observed)
        if self.checkpoints is not None:
            self.checkpoints.copy_due(self._is_noticed)
        for worker in changed:
            name = worker.instance_id
            instance, before = machines.get(name), settled.pop(name, None)
            if instance is None:
                continue
            new = list(self._worker_facts(worker, instance, now, policy, before, observed))
            batches += new
            # A report with new samples only is settled, since it has no sample twice. Any other change may have to be
            # recorded again.
            only_samples = {type(change) for batch in new for change in batch.changes} <= {SampleChange}
            held = self.unit_index.owners.get(name, {}).keys()
            running = {report.id for report in worker.units if report.exit is None}
            if only_samples and name not in observed.unclear and held == running:
                settled[name] = worker
        return batches

    def _is_noticed(self, instance_id: InstanceId) -> bool:
        """Return whether the provider announced to take a machine back."""
        instance = self.unit_index.machines.get(instance_id)
        return instance is not None and instance.preempt_at is not None

    def _archive(self, workers: Sequence[WorkerReport], observed: ObservationRound) -> None:
        """Copy output of ended units, of all together: their ends are recorded once it is archived."""
        owners = self.unit_index.owners
        exits = {
            report.id: (worker.instance_id, report.exit)
            for worker in workers
            for report in worker.units
            if report.exit is not None and report.id in owners.get(worker.instance_id, ())
        }
        ended = {unit: instance_id for unit, (instance_id, _) in exits.items()}

        def collect(some: Sequence[str]) -> None:
            runs = frozenset(unit for unit in some if owners[ended[unit]][unit][0].run is not None)
            logged = self.logs.collect(self.runner, {unit: ended[unit] for unit in some}, runs)
            kept = [unit for unit in logged if self._has_kept(unit, *exits[unit])]
            observed.archived |= self._with_outputs({unit: ended[unit] for unit in kept})

        def on_failure(unit: str, failure: Failure) -> None:
            job, _ = owners[ended[unit]][unit]
            observed.failing[f"archiving the output of {unit}"] = failure._replace(job_id=job.id)

        failure = bisect_failures(list(ended), collect, on_failure)
        if failure is not None:
            observed.failing["archiving output"] = failure

    def _has_kept(self, unit: str, instance_id: InstanceId, record: ExitRecord) -> bool:
        """Return whether what an ended unit keeps for its next attempt is here, or it has done all its work."""
        job, allocation = self.unit_index.owners[instance_id][unit]
        if self.checkpoints is None or job.spec.checkpoint is None:
            return True
        if record.exit_code == 0 or job.cancelled_by is not None:
            return True
        return self.checkpoints.copy_last(unit, job, allocation.rank, instance_id)

    def _with_outputs(self, ended: Mapping[str, InstanceId]) -> Set[str]:
        """Return those of ended units that leave no outputs, or whose outputs are here; the others are being copied."""
        left = dict[str, LeftUnit]()
        for unit, instance_id in ended.items():
            job, allocation = self.unit_index.owners[instance_id][unit]
            if job.spec.outputs or job.spec.bucket_outputs:
                delivery = _delivery(job, allocation.rank, instance_id)
                left[unit] = LeftUnit(instance_id=instance_id, user=job.spec.user, delivery=delivery)
        if not left or self.outputs is None:
            return ended.keys()
        return ended.keys() - left.keys() | self.outputs.collect(left)

    def _worker_facts(
        self,
        worker: WorkerReport,
        instance: Instance,
        now: float,
        policy: Policy,
        settled: WorkerReport | None,
        observed: ObservationRound,
    ) -> Iterator[FactBatch]:
        """Yield what a worker's report adds. ``settled``: its last report, if all of that is recorded."""
        name, held = instance.id, self.unit_index.owners.get(instance.id, {})
        if settled is None or _of_machine(settled) != _of_machine(worker):
            yield from self._isolated(name, name, None, facts.instance_registered(instance, worker, now), observed)
        present = self._present.get(name)
        if present is None:
            jobs = {job.id: job for job, each in held.values() if each.paused_at is None}
            present = self._present[name] = jobs, frozenset(jobs)
        host = UnitHost(worker, instance, *present)
        known = {} if settled is None else {report.id: report for report in settled.units}
        for report in worker.units:
            if known.get(report.id) is not report:
                owner = held.get(report.id)
                changes = self._unit_changes(report, host, owner, policy, observed)
                yield from self._isolated(name, report.id, owner, changes, observed)
        if len(held) > len(worker.units) or held.keys() - {report.id for report in worker.units}:
            yield from self._isolated(name, name, None, self._missing_units(worker, held, now), observed)

    def _isolated(
        self, name: str, source: str, owner: UnitOwner | None, report: Iterator[Change], observed: ObservationRound
    ) -> Iterator[FactBatch]:
        """Yield the changes of one report as a batch; a defect in it hides no other report."""
        try:
            changes = tuple(report)
        except CYCLE_ERRORS:
            raise
        except Exception as defect:  # noqa: BLE001 any defect: it is reported, and retried in each round
            observed.ended.pop(source, None)  # its end is not recorded yet: the worker must keep it
            observed.unclear.add(name)
            job_id = owner[0].id if owner is not None else None
            observed.failing[f"reading the report of {source}"] = Failure.from_error(exc_info=defect, job_id=job_id)
            return
        if changes:
            yield FactBatch(name, source, changes)

    # ----------------------------------------------------------------------------------------------------------- units
    def _unit_changes(
        self, report: UnitReport, host: UnitHost, owner: UnitOwner | None, policy: Policy, observed: ObservationRound
    ) -> Iterator[Change]:
        self._missing_since.pop(report.id, None)
        if owner is None:
            yield from self._unowned(report, host.worker, observed)
            return
        job, allocation = owner
        instance_id = host.instance.id
        is_paused = allocation.paused_at is not None
        if not is_paused and self._neighbours.get(report.id) is not host.job_ids:
            self._note_neighbours(report.id, job, host)
        if report.started_at is not None and allocation.started_at is None:
            folder = self.checkpoints.folder if self.checkpoints is not None else None
            restored_at = restored_checkpoint_at(folder, job, allocation.rank)
            yield facts.unit_started(job.id, allocation.rank, report.started_at, restored_at)
        if self.checkpoints is not None and job.spec.checkpoint is not None:
            if report.exit is None and report.started_at is not None:
                self.checkpoints.follow(report.id, job, allocation.rank, instance_id)
            elif report.exit is not None and report.id in observed.archived:
                self.checkpoints.leave(report.id)
        if report.exit is None and report.tasks is not None and new_ends(job, report.tasks):
            yield facts.tasks_ended(job.id, report.tasks)
        sample = report.sample
        if is_paused and report.exit is None:
            yield from self._paused_changes(report.id, job, host)
            sample = None
        every_s = sampled_every_s(job.spec, policy)
        if report.exit is None and sample is not None and self._sampling.is_due(report.id, sample, every_s):
            yield from self._sample_changes(report.id, sample, job, allocation.rank, host, policy)
        if report.exit is None and sample is not None:
            yield from self._cpu_changes(report.id, sample, job, allocation)
            yield from self._co_run_changes(report.id, sample, job, host)
        if report.exit is not None and report.id in observed.archived:
            observed.ended[report.id] = instance_id
            if report.sample is not None:
                self._add_to_totals(report.id, report.sample, served_as_promised(report.sample, job.spec.target))
            for recorded in self._sampling.finish(report.id, report.sample):
                yield record_sample(job, allocation.rank, instance_id, recorded)
            memory_mib, cpu_s = report.exit.memory_mib_max, report.exit.cpu_s
            totals = self._totals.get(report.id, UnitTotals())._replace(cpu_s=cpu_s, memory_mib=memory_mib)
            believed = self.believed.get(job.application)
            yield UnitEnd(
                job.id,
                allocation.rank,
                report.exit,
                host,
                totals,
                believed,
                last_period=self._co_runs.last(report.id),
                learns=policy.profiles_jobs,
                tasks=report.tasks,
            )

    def _paused_changes(self, unit: str, job: Job, host: UnitHost) -> Iterator[Change]:
        """Yield the record of the period that ended with the pause; what is known of its pace begins anew after it."""
        period, believed, job_id = self._co_runs.last(unit), self.believed.get(job.application), job.id
        self._sampling.forget(unit)
        self._co_runs.forget(unit)
        if period is not None and believed is not None:
            yield lambda txn: record_co_run(txn, txn.job(job_id), host.instance, period, believed)

    def _sample_changes(
        self, unit: str, sample: UnitSample, job: Job, rank: int, host: UnitHost, policy: Policy
    ) -> Iterator[Change]:
        """Add a sample to the unit's totals; yield the samples that are to be recorded, and a window that is full."""
        rate = served_as_promised(sample, job.spec.target)
        self._add_to_totals(unit, sample, rate)
        changed_at = job.corrections[-1].at if job.corrections else 0.0
        if job.attempt is not None and len(job.attempt.allocations) > 1:  # judged from the last start on
            changed_at = max(changed_at, *(each.started_at or 0.0 for each in job.attempt.allocations))
        promised_ms = job.spec.target.latency_ms if isinstance(job.spec.target, ServiceTarget) else math.inf
        for recorded in self._sampling.select(unit, sample, policy, changed_at=changed_at, promised_ms=promised_ms):
            yield record_sample(job, rank, host.instance.id, recorded)
        if rate is not None:
            yield from self._window_changes(unit, job, host, sample, rate)

    def _cpu_changes(self, unit: str, sample: UnitSample, job: Job, held: Allocation) -> Iterator[Change]:
        """Yield where a unit runs if that is not as known: its program may have pinned itself.

        A unit that was pinned must be reported elsewhere twice: the first such report may be of before.
        """
        before = self._cpus_seen.get(unit)
        self._cpus_seen[unit] = sample.cpus
        is_settled = held.started_at is not None and held.pinned_from is None and held.resized_from is None
        if is_settled and sample.cpus != held.cpus and (not held.cpus or before == sample.cpus):
            yield facts.runs_on_cpus(job.id, held.rank, sample.cpus)

    def _co_run_changes(self, unit: str, sample: UnitSample, job: Job, host: UnitHost) -> Iterator[Change]:
        """Yield the record of a period that ends, of a job of which it is known how fast it is alone."""
        believed, job_id = self.believed.get(job.application), job.id
        if believed is None or job.spec.profile is not None:
            return
        others = [other for other in host.jobs.values() if other.id != job_id]
        beside = tuple(sorted([other.application for other in others]))
        shared = shared_cpus_of(
            sample.cpus, [_cpus_on(each, host.instance.id) for each in others], int(host.instance.capacity.vcpus)
        )
        period = self._co_runs.follow(unit, sample, beside, shared)
        if period is not None:
            yield lambda txn: record_co_run(txn, txn.job(job_id), host.instance, period, believed)

    def _note_neighbours(self, unit: str, job: Job, host: UnitHost) -> None:
        """Update what neighbours may have cost a unit: the worst of all it has had."""
        before = self._neighbours.get(unit)
        if before == host.job_ids or not job.application:
            return
        totals, known = self._totals.get(unit, UnitTotals()), self.believed.get(job.application)
        self._neighbours[unit] = host.job_ids
        others = [host.jobs[each].application for each in sorted(host.job_ids - {job.id})]
        loss = UNKNOWN_LOSS
        if known is not None:
            by_pressure = neighbour_loss(known, [self.believed.get(each) for each in others])
            column = f"{host.instance.offer.provider}/{host.instance.offer.instance_type.name}"
            loss = self.slowdowns.loss(job.application, others, column, by_pressure)
        worst = totals.beside.worst if totals.beside is not None else loss
        if others or totals.beside is not None:
            beside = NeighbourLoss(worst=max(worst, loss, key=lambda each: each.high), is_steady=before is None)
            self._totals[unit] = totals._replace(beside=beside)

    def _add_to_totals(self, unit: str, sample: UnitSample, rate: float | None) -> None:
        """Update what a unit has done so far; the request ``rate`` goes into an exponential moving average."""
        before = self._totals.get(unit, UnitTotals())
        if rate is not None and before.requests_per_s is not None:
            weight = RATE_WEIGHT if sample.looks == 1 else 1.0 - (1.0 - RATE_WEIGHT) ** sample.looks
            rate = before.requests_per_s + weight * (rate - before.requests_per_s)
        self._totals[unit] = before._replace(
            progress=sample.progress if sample.progress is not None else before.progress,
            read_mib=sample.read_mib if sample.read_mib is not None else before.read_mib,
            written_mib=sample.written_mib if sample.written_mib is not None else before.written_mib,
            cpu_s=sample.cpu_s if sample.cpu_s is not None else before.cpu_s,
            taken_s=sample.taken_s if sample.taken_s is not None else before.taken_s,
            requests_per_s=rate if rate is not None else before.requests_per_s,
        )

    def _window_changes(self, unit: str, job: Job, host: UnitHost, sample: UnitSample, rate: float) -> Iterator[Change]:
        """Yield the feedback of a full window of a service with one rank, which may run for months."""
        has_one_rank = job.attempt is not None and len(job.attempt.allocations) == 1
        if not job.application or not has_one_rank:
            return
        began_at, rates = self._windows.setdefault(unit, (sample.at, []))
        rates += [rate] * sample.looks
        if sample.at < began_at + FEED_EVERY_S:
            return
        self._windows[unit] = (sample.at, [])
        served, believed, job_id = sum(rates) / len(rates), self.believed.get(job.application), job.id
        before = self._totals[unit].best_window_per_s
        self._totals[unit] = self._totals[unit]._replace(best_window_per_s=max(served, before or 0.0))
        beside = self._totals[unit].beside
        yield lambda txn: record_window(
            txn, txn.job(job_id), host.instance, served, believed, beside=beside, best_before=before
        )

    def _unowned(self, report: UnitReport, worker: WorkerReport, observed: ObservationRound) -> Iterator[Change]:
        """Handle a unit that no live allocation owns: clean up if it has ended, else stop it and report it once."""
        if report.state is UnitState.ENDED:
            observed.ended[report.id] = worker.instance_id
            self._stopped_orphans.pop(report.id, None)
            return
        self.runner.stop({report.id: worker.instance_id}, cause=FailureCause.EVICTED)
        if report.id not in self._stopped_orphans:
            self._stopped_orphans[report.id] = worker.instance_id
            yield lambda txn: txn.emit(
                EventKind.ORPHAN, instance_id=worker.instance_id, provider_id=report.id, action="stop unit"
            )

    def _missing_units(self, worker: WorkerReport, held: Mapping[str, UnitOwner], now: float) -> Iterator[Change]:
        """Yield the loss of units that ran and that their worker has not reported for UNIT_MISSING_S: a lost disk."""
        present = {report.id for report in worker.units}
        in_order = sorted(held.items(), key=lambda each: (number_of(each[1][0].id), each[1][1].rank))
        for unit, (job, allocation) in in_order:
            if allocation.started_at is None or unit in present:
                continue
            since = self._missing_since.setdefault(unit, now)
            if now - since >= UNIT_MISSING_S:
                yield facts.unit_vanished(job.id, allocation.rank)


def _of_machine(report: WorkerReport) -> tuple[object, ...]:
    """Return the part of a report that is about the machine itself."""
    return (report.preempt_at, report.isolation, report.cpu_topology)


def _only(memory: Mapping[str, Memory], known: Set[str]) -> dict[str, Memory]:
    return {name: each for name, each in memory.items() if name in known}


def _cpus_on(job: Job, instance_id: InstanceId) -> tuple[int, ...]:
    """Return the CPUs of an instance on which units of ``job`` may run; empty: all."""
    held = job.attempt.allocations if job.attempt is not None else ()
    each = [allocation.cpus for allocation in held if allocation.instance_id == instance_id]
    return tuple(cpu for cpus in each for cpu in cpus) if all(each) else ()


def _delivery(job: Job, rank: int, instance_id: InstanceId) -> Delivery | None:
    """Return what of a unit goes to buckets. Several nodes, and tasks, have a folder each."""
    spec = job.spec
    if not spec.bucket_outputs:
        return None
    places = [str(spec.tasks.id_at(job.task_position))] if job.array and spec.tasks is not None else []
    places += [str(rank)] if spec.nodes.count > 1 else []
    return Delivery(instance_id=instance_id, user=spec.user, outputs=spec.bucket_outputs, place="/".join(places))
