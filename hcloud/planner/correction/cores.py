"""Pin a job that misses its target to better CPUs of its machine (Mage §4.3): no work is lost, so it comes first.

Where its own move does not do, neighbours are kept off its CPUs, core, cache or socket; as a step of its own, best
effort is squeezed onto fewer CPUs than it holds. Nothing is done where a machine reports no topology.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from hcloud.classifier.interference import EXCESS
from hcloud.core.cpu_topology import CpuTopology, cpu_list
from hcloud.core.estimates import Estimate
from hcloud.core.model import Allocation, Job, Number, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.correction.monitor import Assessment, RankSamples, column_of
from hcloud.planner.correction.option import NoOption, Option
from hcloud.planner.fit.core_placement import CpuAssignment, CpuUnit, better_cpus
from hcloud.planner.fleet import SLACK
from hcloud.planner.plan import RankPlacement, Resize
from hcloud.spec.validation import counted

REPIN, SQUEEZE = "repin", "squeeze"
SAMPLES_READ = 12
"""Of so many samples the busiest interval shows how many CPUs a unit keeps busy where nothing slows it."""


def can_repin(context: PlanContext, view: RankSamples) -> bool:
    """Return whether other CPUs could help a job at all: its machine reports its CPUs, and others run there."""
    if REPIN not in context.policy.correction.steps or view.instance.cpu_topology is None:
        return False
    return _refusal(context, view, view.instance.cpu_topology) is None


def repin(context: PlanContext, view: RankSamples, assessment: Assessment) -> Iterator[Option | NoOption]:
    """Give the job better CPUs of its machine, and keep neighbours off them where that is needed."""
    yield from _other_cpus(context, view, REPIN)


def squeeze(context: PlanContext, view: RankSamples, assessment: Assessment) -> Iterator[Option | NoOption]:
    """Keep best-effort neighbours off the job's CPUs, also where they then have fewer than they hold."""
    yield from _other_cpus(context, view, SQUEEZE)


def _other_cpus(context: PlanContext, view: RankSamples, step: str) -> Iterator[Option | NoOption]:
    topology = view.instance.cpu_topology
    if topology is None:
        return
    if (why := _refusal(context, view, topology)) is not None:
        yield NoOption(step=step, code=why[0], text=why[1])
        return
    least = 1.0 + context.policy.correction.margin / 2
    units = cpu_units(context, view, topology)
    found = better_cpus(topology, list(units.values()), view.job.id, least, squeeze=step == SQUEEZE)
    if found is None:
        text = f"no other CPUs of {view.instance.id} are expected to make it faster by {least - 1.0:.0%}"
        yield NoOption(step=step, code="no_better_core", text=text)
        return
    yield _option(context, view, step, found)


def _refusal(context: PlanContext, view: RankSamples, topology: CpuTopology) -> tuple[str, str] | None:
    """Return code and text of why the job's CPUs cannot be chosen now; None: they can."""
    held, attempt = view.held, view.job.attempt
    others = [each for each in _holdings(context, view) if each[0].id != view.job.id]
    reasons = (
        (
            view.job.spec.exclusive or held.resources.vcpus > len(topology.cpus) - 1 + SLACK,
            ("whole_machine", "it holds its whole machine"),
        ),
        (not others, ("no_neighbour", "no other job shares its machine")),
        (
            attempt is None or len({each.rank for each in attempt.allocations if not each.released}) > 1,
            ("many_nodes", "it runs on several nodes"),
        ),
        (not _is_settled(held), ("not_now", "it is resized or pinned already")),
    )
    return next((why for holds, why in reasons if holds), None)


def _is_settled(held: Allocation) -> bool:
    return held.started_at is not None and held.resized_from is None and held.pinned_from is None


def _holdings(context: PlanContext, view: RankSamples) -> Sequence[tuple[Job, Allocation]]:
    return context.fleet.holdings[context.fleet.index[view.held.instance_id]]


def cpu_units(context: PlanContext, view: RankSamples, topology: CpuTopology) -> dict[str, CpuUnit]:
    """Return the units on the job's machine as the choice of CPUs sees them, by job."""
    applications, found = context.snapshot.applications, dict[str, CpuUnit]()
    holdings = [(job, held) for job, held in _holdings(context, view) if job.id not in context.decisions.stopping]
    for job, held in holdings:
        known = applications.get(job.application)
        others = [each for each, _ in holdings if each is not job]
        cpus = tuple(number for number in held.cpus if number in topology.numbers)
        found[job.id] = CpuUnit(
            name=job.id,
            vcpus=held.resources.vcpus,
            use=_busy_vcpus(context, job, held),
            cpus=cpus or topology.numbers,
            has_target=job.spec.target.kind != "best_effort",
            may_move=_is_settled(held) and job.spec.profile is None and job.id not in found,
            caused=_values(known.caused) if known is not None else {},
            tolerated=_values(known.tolerated) if known is not None else {},
            observed=_observed(context, job, others, column_of(view.instance)),
        )
    return found


def _values(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    return {source: each.value for source, each in estimates.items()}


def _observed(context: PlanContext, job: Job, others: Sequence[Job], column: str) -> dict[str, float]:
    """Return by other job the additional run time that its program was observed to cost this one."""
    slowdowns = context.snapshot.slowdowns
    return {
        other.id: max(0.0, math.expm1(slowdowns.slowdown(job.application, [other.application], column, EXCESS).mean))
        for other in others
        if job.application and slowdowns.has_met(job.application, [other.application])
    }


def _busy_vcpus(context: PlanContext, job: Job, held: Allocation) -> float:
    """Return how many CPUs a unit keeps busy where nothing slows it: in its busiest interval, or else all it may."""
    watched, most = context.snapshot.job_samples.get(job.id), held.resources.vcpus
    if watched is None or job.attempt is None or watched.attempt != job.attempt.id:
        return most
    samples = [each for each in watched.ranks.get(held.rank, ())[-SAMPLES_READ:] if "cpu_s" in each.values]
    rates = [
        (after.values["cpu_s"] - before.values["cpu_s"]) / (after.at - before.at)
        for before, after in pairwise(samples)
        if after.at > before.at
    ]
    return min(most, max(max(rates), 0.0)) if rates else most


def _option(context: PlanContext, view: RankSamples, step: str, found: CpuAssignment) -> Option:
    own, others = found.cpus.get(view.job.id), [name for name in found.cpus if name != view.job.id]
    parts = [f"pinning it to CPUs {cpu_list(own)} of {view.instance.id}"] if own is not None else []
    if others:
        verb = "squeezing" if step == SQUEEZE else "keeping"
        text = f"{verb} {', '.join(others[:3])}" if len(others) <= 3 else f"{verb} {counted(len(others), 'job')}"
        parts.append(f"{text} off its CPUs" if own is not None else f"{text} off its CPUs of {view.instance.id}")
    numbers: dict[str, Number] = {
        "cpus": cpu_list(own if own is not None else view.held.cpus),
        "pinned": len(found.cpus),
        "slowdown_before": round(found.before, 4),
        "slowdown_after": round(found.slowdown, 4),
    }

    def act(reason: Reason) -> None:
        held_by = {job.id: (job, held) for job, held in _holdings(context, view)}
        for name in (*others, *([view.job.id] if own is not None else [])):
            _, held = held_by[name]
            why = reason
            if name != view.job.id:
                text = f"kept off CPUs of {view.job.id}, which {reason.text}"
                why = Reason(code="repinned_for_target", text=text, numbers={"for_job": view.job.id, **reason.numbers})
            rank = RankPlacement(
                rank=held.rank, instance_id=held.instance_id, resources=held.resources, cpus=found.cpus[name]
            )
            context.decisions.add(Resize(job_id=name, ranks=(rank,), reason=why))

    return Option(
        step=step,
        text=" and ".join(parts),
        factor=found.speedup,
        cost_s=0.0,
        act=act,
        instances=(),
        numbers=numbers,
    )
