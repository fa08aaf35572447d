"""The profiling runs of a job: their sizes and sources of interference, their specs, and how many are affordable.

The base run measures several sizes and some sources on one instance. Further runs measure the job on another type,
under other sources, and on two nodes. The same program with new input gets a single short run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from hcloud.classifier.applications import Identity
from hcloud.classifier.source_selection import Pressing, choose_sources
from hcloud.core.model import (
    PROFILE_TAG,
    BatchTarget,
    BestEffortTarget,
    Job,
    JobSpec,
    Nodes,
    Number,
    Offer,
    ProfileRequest,
    Reason,
    Retries,
    ServiceTarget,
)
from hcloud.planner.profiling_offers import cost_limit_usd, has_spare_vcpus, offers_for, run_usd, second_offer
from hcloud.planner.profiling_state import ProfilingState, begin_runs, why_not_now
from hcloud.planner.provisioning.strategies import Rented
from hcloud.planner.text import seconds, usd
from hcloud.spec.policy import ProfilingPolicy
from hcloud.spec.validation import counted

STOP_MARGIN_S = 30.0
"""A profiling run that exceeds its time limit by this much is stopped."""
ROOM_FOR_SOURCE_MIB = 160
"""With less memory than this next to the job, no source that occupies memory fits (the profiler needs 64 MiB, and 96 in
reserve)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRuns:
    """Profiling runs that can be made now."""

    runs: tuple[JobSpec, ...]
    reason: Reason


def choose_runs(
    state: ProfilingState, job: Job, identity: Identity, *, look: bool, most_usd: float
) -> ChosenRuns | str:
    """Return runs that measure a running ``job`` for at most ``most_usd``, the most informative ones, or why there are
    none now. ``state`` counts them as begun."""
    offers = offers_for(state, job)
    limit_usd = min(most_usd, cost_limit_usd(state))
    if offers and run_usd(state.policy, offers[0]) > limit_usd:  # asked in each cycle, of each unknown program
        return _too_dear(run_usd(state.policy, offers[0]), limit_usd)
    why = why_not_now(state, job, identity, offers)
    if why is not None:
        return why.text
    pressing = [] if look else sources_per_run(state, job, identity, offers)
    listed = list_runs(state, job, offers, pressing, look=look)
    runs, cost_usd = affordable(state, listed, most_usd)
    if not runs:
        return _too_dear(listed[0][1], limit_usd)
    begin_runs(state, job, identity, runs, offers)
    return ChosenRuns(runs=runs, reason=profiling_reason(runs, cost_usd, state.policy.total_s, pressing))


def _too_dear(run_usd: float, limit_usd: float) -> str:
    return f"a run costs up to {usd(run_usd)}, more than the {usd(limit_usd)} that it may cost"


def list_runs(
    state: ProfilingState, job: Job, offers: Sequence[Offer], pressing: Sequence[Pressing], *, look: bool
) -> list[tuple[JobSpec, float]]:
    """Return the runs to make, the most informative first, each with its cost limit in USD."""
    vcpus, first = job.spec.resources.vcpus, offers[0]
    make = partial(run_for, state.policy, job, beside=state.context.policy.profiles_when == "beside")
    if look:
        return [make(first, "look", steps_vcpus=(vcpus,), look=True)]
    steps, sources = steps_of(job, first.instance_type.capacity.vcpus), [each.sources for each in pressing]
    runs = [make(first, "base", steps_vcpus=steps, sources=sources[0])]
    for at, offer in enumerate(offers[1:], start=1):
        run_sources = sources[at] if at < len(sources) else ()
        runs.append(make(offer, "type", steps_vcpus=(vcpus,), sources=run_sources))
    if len(offers) == 1 and len(sources) > 1 and sources[1]:
        runs.append(make(first, "beside", steps_vcpus=(vcpus,), sources=sources[1]))
    if job.spec.nodes.count > 1:
        runs.append(make(first, "nodes", steps_vcpus=(vcpus,), nodes=2))
    return runs


def steps_of(job: Job, most_vcpus: float) -> tuple[float, ...]:
    """Return the vCPUs to measure a job with on an instance that has ``most_vcpus``.

    First the requested size, then half of it or, where the planner may choose, both ends of the permitted range,
    largest first. Requests may be far off in both directions: only the smallest size shows whether it suffices, and
    only a larger one whether it helps.
    """
    vcpus, within = job.spec.resources.vcpus, job.spec.vcpus_within
    if within is None:
        return vcpus, vcpus / 2
    others = {min(vcpus / 2, within[0]), max(vcpus, min(within[1], most_vcpus))}
    return (vcpus, *sorted(others - {vcpus}, reverse=True))


def run_for(
    policy: ProfilingPolicy,
    job: Job,
    offer: Offer,
    what: str,
    *,
    steps_vcpus: tuple[float, ...],
    sources: tuple[str, ...] = (),
    nodes: int = 1,
    look: bool = False,
    beside: bool = False,
) -> tuple[JobSpec, float]:
    """Return a profiling run of ``job`` on an instance of ``offer``, and what it may cost in USD. ``what`` ends its
    name; ``beside``: the job does not wait for it."""
    spec = job.spec
    request = ProfileRequest(
        job_id=job.id,
        type_column=f"{offer.provider}/{offer.instance_type.name}",
        steps_vcpus=steps_vcpus,
        sources=sources,
        nodes=nodes,
        run_s=policy.run_s,
        total_s=policy.total_s,
        warm_up_s=policy.warm_up_s if spec.stateful else 0.0,
        promised_ms=spec.target.latency_ms if isinstance(spec.target, ServiceTarget) else None,
        look=look,
        knees=spec.vcpus_within is not None and len(steps_vcpus) > 1,
    )
    name, only = f"{spec.name}:profile-{what}", (offer.instance_type.name,)
    run_spec = replace(_run_spec(_of_one_task(job), request, policy), name=name, instance_types=only)
    if beside:  # no job waits for it: it makes way for other jobs, and may use spot instances
        run_spec = replace(run_spec, target=BestEffortTarget(), interruptible=True)
    return run_spec, nodes * run_usd(policy, offer)


def _of_one_task(job: Job) -> JobSpec:
    """Return the spec of one run: of a task, or of the first one of an array, with its own environment."""
    spec, tasks = job.spec, job.spec.tasks
    if tasks is None:
        return spec
    return replace(spec, tasks=None, env={**spec.env, **tasks.environment(job.task_position if job.array else 0)})


def _run_spec(spec: JobSpec, request: ProfileRequest, policy: ProfilingPolicy) -> JobSpec:
    """Return the spec of a profiling run: an exclusive batch job without deadline, limited in time."""
    return replace(
        spec,
        resources=replace(spec.resources, vcpus=max(request.steps_vcpus)),
        target=BatchTarget(),
        nodes=Nodes(count=request.nodes, minimum=request.nodes),
        tags={**spec.tags, PROFILE_TAG: request.job_id},
        interruptible=False,
        retries=Retries(limits={"instance_lost": 1, "preempted": 1, "evicted": 1}),
        max_runtime_s=policy.total_s + STOP_MARGIN_S,
        stop_grace_s=min(spec.stop_grace_s, 5.0),
        budget_usd=None,
        exclusive=True,
        profiling="never",
        profile=request,
        outputs=(),
        bucket_outputs=(),
        checkpoint=None,
        framework=None,
        vcpus_within=None,
        placement=spec.placement and replace(spec.placement, apart_from=(), spread="none"),
    )


def sources_on(
    state: ProfilingState, job: Job, identity: Identity, offer: Offer, besides: Sequence[str] = ()
) -> Pressing:
    """Return the sources of interference to measure a job under on an instance, and why these.

    ``besides`` are the sources that another of its runs covers.
    """
    fixed, snapshot = state.policy.sources, state.context.snapshot
    if fixed is not None:
        sources = tuple(source for source in fixed if source not in besides)
        return Pressing(sources=sources, why="as set by profiling.sources")
    # Copies of networked jobs have a loopback network; others neither tolerate nor cause any load of it.
    left_out = {"network-bandwidth"} if job.spec.network == "none" else set[str]()
    if offer.instance_type.capacity.memory_mib - job.spec.resources.memory_mib < ROOM_FOR_SOURCE_MIB:
        left_out.add("memory-capacity")
    rows = snapshot.programs.get(identity.program, ())
    own = next((row for row in rows if row.name == identity.name), None)
    return choose_sources(snapshot.source_prior, left_out=left_out, row=own, besides=besides)


def sources_per_run(state: ProfilingState, job: Job, identity: Identity, offers: Sequence[Offer]) -> list[Pressing]:
    """Return the sources for each run that applies some, the base run first.

    A second instance with a spare vCPU gets a set of its own; its run ends no later than the base run, which measures
    more sizes. Under a strategy that never rents there is no second set, because jobs wait for the instance it would
    hold.
    """
    sources = [sources_on(state, job, identity, offers[0])]
    rents = state.context.strategy.rules.rented is not Rented.NONE
    second = second_offer(state, offers) if rents else None
    if second is not None and sources[0].sources and has_spare_vcpus(state, job, second):
        sources.append(sources_on(state, job, identity, second, besides=sources[0].sources))
    return sources


def affordable(
    state: ProfilingState, runs: Sequence[tuple[JobSpec, float]], most_usd: float = inf
) -> tuple[tuple[JobSpec, ...], float]:
    """Return as many of ``runs``, in order, as the cost limit and ``most_usd`` allow, and their cost; if none, the
    limit."""
    limit_usd, taken, cost_usd = min(most_usd, cost_limit_usd(state)), list[JobSpec](), 0.0
    for spec, price_usd in runs:
        if cost_usd + price_usd <= limit_usd:
            taken.append(spec)
            cost_usd += price_usd
        elif not taken:
            return (), limit_usd
    return tuple(taken), cost_usd


def profiling_reason(runs: Sequence[JobSpec], cost_usd: float, lasts_s: float, pressing: Sequence[Pressing]) -> Reason:
    """Return the reason of the runs of one job, which last up to ``lasts_s``; ``pressing``: why their sources."""
    looks = any(run.profile is not None and run.profile.look for run in runs)
    what = "profiled in one short run, as its program is known" if looks else f"profiled in {counted(len(runs), 'run')}"
    types = ", ".join(dict.fromkeys(run.instance_types[0] for run in runs))
    text = f"{what} on {types}, at most {usd(cost_usd)} and {seconds(lasts_s)}"
    numbers: dict[str, Number] = {"runs": len(runs), "cost_usd": round(cost_usd, 6), "types": types, "lasts_s": lasts_s}
    sources = [run.profile.sources for run in runs if run.profile is not None and run.profile.sources]
    if sources:
        text += f"; under {', then elsewhere '.join(' and '.join(each) for each in sources)}, "
        text += pressing[len(sources) - 1].why
        numbers["sources"] = ", ".join(name for each in sources for name in each)
    return Reason(code="profiling", text=text, numbers=numbers)
