"""Profile copies of running jobs, and classify jobs that wait by what was learnt since they were submitted.

With ``profiling.when: beside`` an unknown job starts at once. Its own run is a measurement. Copies of it are profiled
while it runs, once a part of what its program is expected to cost from now on (``profiling.expected_saving``) exceeds
the cost of the profiling. A program is expected to go on for as long as it has run, and to be started again as often as
it was (Lindy's rule), so that profiling costs at most that part of what the program has cost already. A job that
performs unlike its estimate may be measured again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import merge
from math import inf

from hcloud.classifier.applications import identify, is_profiled, key_of, known_as
from hcloud.core.estimates import Application
from hcloud.core.model import Job, Market, Number, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.instance_lifecycle import is_idle
from hcloud.planner.occupancy import ProgramJobs, held_by
from hcloud.planner.plan import Classify, Profile, Unprofiled
from hcloud.planner.profiling import why_never
from hcloud.planner.profiling_offers import least_run_usd, offers_for
from hcloud.planner.profiling_runs import affordable, choose_runs, profiling_reason, run_for, sources_on, steps_of
from hcloud.planner.profiling_state import ProfilingState, open_profiling, type_of
from hcloud.planner.text import size_share, usd

LEFT_TO_LEARN = 0.5
"""Part of what a profile may save that is left once an own run has shown what the program uses (docs/policy-costs.md).
"""


def classify_unknown(context: PlanContext) -> None:
    """Classify the jobs without a classification whose program has become known since they were submitted."""
    snapshot, cache = context.snapshot, context.snapshot.plan_cache
    if context.policy.profiles_when != "beside" or not snapshot.programs:
        return
    seen: dict[str, tuple[Application, ...]] = cache.latest("programs of unclassified jobs") or {}
    rows_now = {program: snapshot.programs.get(program, ()) for program in cache.occupancy.unclassified}
    cache.keep("programs of unclassified jobs", rows_now)
    for program, jobs in cache.occupancy.unclassified.items():
        rows = rows_now[program]
        if not rows or seen.get(program) is rows:
            continue
        for _, job_id in merge(jobs.running, jobs.waiting):
            job = cache.occupancy.rows[job_id]
            identity = identify(job.spec)
            known = known_as(identity, rows, own_runs=True)
            if known is not None and job.cancelled_by is None:
                reason = Reason(code="classified_known", text=f"recognised as {known.name}, measured since")
                context.decisions.add(
                    Classify(job_id=job_id, application=key_of(known, identity), source="known", reason=reason)
                )


def profile_beside(context: PlanContext) -> None:
    """Start profiling runs of the running programs for which that is worth its price now."""
    occupancy = context.snapshot.plan_cache.occupancy
    if context.policy.profiles_when != "beside" or context.snapshot.paused or not occupancy.unprofiled:
        return
    state, least_usd = open_profiling(context), least_run_usd(context)
    worths = list[_Worth]()
    for program, jobs in occupancy.unprofiled.items():
        worth = _worth(context, jobs) if jobs.running and program not in state.programs else None
        if worth is None:
            continue
        if worth.saving_usd >= least_usd:
            worths.append(worth)
        else:
            why = Unprofiled(saving_usd=worth.saving_usd, least_usd=least_usd)
            context.decisions.leave_unprofiled(program, why)
    for worth in sorted(worths, key=lambda each: (-each.saving_usd, each.job.submitted_at, each.job.id)):
        if len(state.runs) >= context.policy.profiling.max_concurrent:
            profile: Profile | str = "as many profiling runs as allowed are under way (profiling.max_concurrent)"
        else:
            profile = _profile(state, worth)
        if isinstance(profile, Profile):
            context.decisions.add(profile)
        else:
            why = Unprofiled(saving_usd=worth.saving_usd, least_usd=least_usd, obstacle=profile)
            context.decisions.leave_unprofiled(identify(worth.job.spec).program, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worth:
    """A running job of which copies may be profiled."""

    job: Job
    rows: tuple[Application, ...]
    saving_usd: float
    """What knowing the program is expected to save."""
    future_s: float
    """For how long the program is expected to run from now on, over all its jobs."""


def _worth(context: PlanContext, jobs: ProgramJobs) -> _Worth | None:
    """Return what profiling a program is worth; None if it is profiled already or not to be profiled."""
    rows_by_id = context.snapshot.plan_cache.occupancy.rows
    job = next((each for _, name in jobs.running if not (each := rows_by_id[name]).profile_runs), None)
    if job is None or job.id in context.decisions.stopping or job.cancelled_by is not None:
        return None
    if job.id in context.snapshot.unreadable_secrets:  # its copies could not start either
        return None
    identity = identify(job.spec)
    rows = context.snapshot.programs.get(identity.program, ())
    if known_as(identity, rows) is not None:
        return None
    held = held_by(job)
    started_at = min([each.started_at for each in held if each.started_at is not None], default=context.now)
    ran_s, own = context.now - started_at, [row for row in rows if identity.input in row.inputs and row.run_s]
    limit_s = inf if job.spec.max_runtime_s is None else job.spec.max_runtime_s
    run_s = min(limit_s, (own[0].run_s or 0.0) if own else 2.0 * ran_s)
    left_s = max(run_s - ran_s, 0.0 if own else ran_s)
    again = len(jobs.waiting) + sum(row.ended_runs for row in rows)
    future_s = len(jobs.running) * min(left_s, max(0.0, limit_s - ran_s)) + again * run_s
    usd_per_h = 0.0
    for part in held:
        instance = context.fleet.instances[context.fleet.index[part.instance_id]]
        usd_per_h += instance.offer.price_usd_per_h * size_share(part.resources, instance)
    policy = context.policy.profiling
    share = policy.expected_saving if job.spec.vcpus_within is None else policy.expected_saving_sized
    if known_as(identity, rows, own_runs=True) is not None:
        share *= LEFT_TO_LEARN
    saving_usd = share * usd_per_h * future_s / 3600
    return _Worth(job=job, rows=rows, saving_usd=saving_usd, future_s=future_s) if saving_usd > 0 else None


def _profile(state: ProfilingState, worth: _Worth) -> Profile | str:
    """Return the profiling runs of a job, as far as they are worth their price, or why there are none."""
    context, job, identity = state.context, worth.job, identify(worth.job.spec)
    why = why_never(state, job, identity, worth.rows)
    if why is not None:
        return why.text
    look = any(is_profiled(row) for row in worth.rows)
    chosen = choose_runs(state, job, identity, look=look, most_usd=worth.saving_usd)
    if isinstance(chosen, str):
        return chosen
    for at in _idle_machines(context, [run.instance_types[0] for run in chosen.runs]):
        context.reservations.keep(at)
    text = f"{chosen.reason.text}; knowing it may save {usd(worth.saving_usd)} of what it costs from now on"
    numbers: dict[str, Number] = {**chosen.reason.numbers, "saving_usd": round(worth.saving_usd, 6)}
    reason = Reason(code="profiling", text=text, numbers=numbers)
    return Profile(job_id=job.id, application=identity.name, runs=chosen.runs, reason=reason)


def _idle_machines(context: PlanContext, types: Sequence[str]) -> list[int]:
    """Return idle machines of these types, one for each, so that they are not released before the runs get there."""
    found: list[int] = []
    for name in types:
        for at, instance in enumerate(context.fleet.instances):
            same = instance.offer.instance_type.name == name and instance.offer.market is not Market.RESERVED
            if same and at not in found and is_idle(context, at):
                found.append(at)
                break
    return found


def profile_again(context: PlanContext, job: Job) -> Profile | None:
    """Return a run that measures a running ``job`` again on an idle instance, or None.

    None is returned if no instance is idle, or if the policy, the job or limits forbid it. Nothing is launched for it.
    It is a base run: the application is classified again from its result.
    """
    state, identity = open_profiling(context), identify(job.spec)
    rows = context.snapshot.programs.get(identity.program, ())
    if job.id in state.runs or why_never(state, job, identity, rows) is not None or not state.idle:
        return None
    offers = offers_for(state, job)
    if not offers or state.idle[type_of(offers[0])] <= 0:
        return None
    sources = sources_on(state, job, identity, offers[0])
    steps = steps_of(job, offers[0].instance_type.capacity.vcpus)
    run = run_for(state.policy, job, offers[0], "again", steps_vcpus=steps, sources=sources.sources)
    runs, cost_usd = affordable(state, [run])
    if not runs or len(state.runs) >= state.policy.max_concurrent or context.snapshot.paused:
        return None
    reason = profiling_reason(runs, cost_usd, state.policy.total_s, [sources])
    return Profile(job_id=job.id, application=identity.name, runs=runs, reason=reason)
