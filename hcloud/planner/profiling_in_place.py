"""Measure a running job where it runs, to see whether it has entered another phase (Paragon §3.4: live classification;
Quasar §4.4).

A copy starts at the beginning of a program, so it cannot show what the program does now. Instead two sources of
interference press beside the running unit, no harder than it is expected to bear, and its own pressure is felt by a
probe. The run is a small job of its own on the same instance, if that has room. Nothing is launched for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hcloud.classifier.applications import TO_80, identify
from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED
from hcloud.core.estimates import SOURCES, Classification, Estimate, Reading
from hcloud.core.model import (
    PROFILE_TAG,
    Allocation,
    BestEffortTarget,
    Constraints,
    Instance,
    Job,
    JobSpec,
    JobState,
    Nodes,
    Number,
    ProfileRequest,
    Reason,
    Resources,
    Retries,
    ServiceTarget,
)
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import vector
from hcloud.planner.plan import Profile
from hcloud.planner.profiling_runs import STOP_MARGIN_S, affordable
from hcloud.planner.profiling_state import open_profiling
from hcloud.planner.text import size_share

COUNT = 2
"""Sources that press beside a running job, as in Paragon §3.4."""
NOT_PRESSED = CORE_SOURCES | NOT_COUNTED | {"memory-capacity", "storage-capacity", "network-bandwidth"}
"""Sources that do not press beside a running job: full memory or a full disk would end it, its network cannot be
joined, and sources of one core only take turns with it."""
ROOM = Resources(vcpus=1.0, memory_mib=512, disk_gib=1.0)
"""What a run in place takes of the instance."""
LASTS_S = 60.0
"""Longest duration of a run in place, unless ``profiling.total_s`` is shorter."""
PATIENCE_S = 60.0
"""A run in place that found no room for so long is given up."""


def measure_in_place(context: PlanContext, job: Job, held: Allocation) -> Profile | None:
    """Return a run that measures rank ``held`` of a running job in place; None if that is not possible now."""
    policy, known = context.policy, context.snapshot.applications.get(job.application)
    spec, attempt = job.spec, job.attempt
    if known is None or attempt is None or not policy.profiles_jobs or context.snapshot.paused:
        return None
    if held.paused_at is not None or spec.profiling == "never" or spec.target.kind not in policy.profiling.for_targets:
        return None
    at, state = context.fleet.index.get(held.instance_id), open_profiling(context)
    if at is None or job.id in state.runs or len(state.runs) >= policy.profiling.max_concurrent:
        return None
    expected = tuple(_expected(known, pauses=not isinstance(spec.target, ServiceTarget)))
    instance = context.fleet.instances[at]
    if not expected or not _has_room(context, at):
        return None
    total_s = min(LASTS_S, policy.profiling.total_s)
    run = _run(job, held, attempt.unit_id(held.rank), instance, expected, total_s)
    price_usd_per_h = instance.offer.price_usd_per_h * size_share(ROOM, instance)
    runs, cost_usd = affordable(state, [(run, price_usd_per_h * (total_s + STOP_MARGIN_S) / 3600)])
    if not runs:
        return None
    sources = ", ".join(dict.fromkeys(each.column for each in expected))
    text = f"measured in place on {instance.id}, for at most {total_s:g} s: {sources}"
    numbers: dict[str, Number] = {"sources": sources, "instance": instance.id, "cost_usd": round(cost_usd, 6)}
    return Profile(
        job_id=job.id,
        application=identify(spec).name,
        runs=runs,
        reason=Reason(code="profiling_in_place", text=text, numbers=numbers),
    )


def _has_room(context: PlanContext, at: int) -> bool:
    return bool(context.fleet.placeable[at]) and context.fleet.has_room(at, vector(ROOM))


def _expected(known: Classification, *, pauses: bool) -> Iterator[Reading]:
    """Yield what is expected of the job under the sources it presses most or bears least, as far as it was measured: an
    estimate is too uncertain for a change to show.

    ``pauses``: it may be halted for parts of a second, without which what it causes cannot be measured.
    """
    measured: dict[str, list[tuple[float, Reading]]] = {}
    for source in SOURCES:
        if source in NOT_PRESSED:
            continue
        feels, presses = known.tolerated.get(source), known.caused.get(source)
        if feels is not None and feels.observed:
            measured.setdefault(source, []).append((100.0 - feels.value, _reading("tolerated", source, feels)))
        if pauses and presses is not None and presses.observed:
            measured.setdefault(source, []).append((presses.value, _reading("caused", source, presses)))
    # First the sources of which both sides are known: a change shows in either.
    chosen = sorted(measured.values(), key=lambda each: (-len(each), -sum(felt for felt, _ in each)))
    for readings in chosen[:COUNT]:
        yield from (reading for _, reading in readings)


def _reading(question: str, source: str, estimate: Estimate) -> Reading:
    low, high = (estimate.value + (limit - estimate.value) / TO_80 for limit in (estimate.low, estimate.high))
    return Reading(question=question, column=source, value=estimate.value, low=max(0.0, low), high=min(100.0, high))


def _run(
    job: Job, held: Allocation, unit_id: str, instance: Instance, expected: tuple[Reading, ...], total_s: float
) -> JobSpec:
    spec = job.spec
    request = ProfileRequest(
        job_id=job.id,
        type_column=f"{instance.offer.provider}/{instance.offer.instance_type.name}",
        steps_vcpus=(held.resources.vcpus,),
        sources=tuple(dict.fromkeys(each.column for each in expected)),
        total_s=total_s,
        unit_id=unit_id,
        expected=expected,
    )
    return replace(
        spec,
        name=f"{spec.name}:profile-in-place",
        resources=ROOM,
        target=BestEffortTarget(),
        nodes=Nodes(),
        image=None,
        setup=None,
        workdir_sha256=None,
        env={},
        secrets=(),
        tags={**spec.tags, PROFILE_TAG: job.id},
        priority=0,
        stateful=False,
        interruptible=True,
        network="none",
        retries=Retries(limits={}),
        max_runtime_s=total_s + STOP_MARGIN_S,
        stop_grace_s=5.0,
        budget_usd=None,
        instance_types=(),
        exclusive=False,
        profiling="never",
        profile=request,
        inputs=(),
        outputs=(),
        bucket_outputs=(),
        checkpoint=None,
        framework=None,
        placement=Constraints(instance_id=instance.id),
        vcpus_within=None,
    )


def is_pointless(context: PlanContext, run: Job) -> bool:
    """Return whether a queued profiling run is to be given up: it waited too long for room and no job waits for it, or
    what it was to measure beside, or in place, has ended."""
    request, waited_s = run.spec.profile, context.now - run.submitted_at
    if request is None or not request.job_id:
        return False
    occupancy = context.snapshot.plan_cache.occupancy
    subject = occupancy.rows.get(request.job_id)
    if not request.unit_id:
        if subject is not None and subject.state is JobState.SUBMITTED:
            return False
        return waited_s > context.policy.profiling.patience_s or identify(run.spec).program not in occupancy.unprofiled
    attempt = subject.attempt if subject is not None else None
    units = {attempt.unit_id(each.rank) for each in attempt.allocations if not each.released} if attempt else set()
    return request.unit_id not in units or waited_s > PATIENCE_S
