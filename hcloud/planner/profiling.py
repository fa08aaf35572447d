"""Decide how a submitted job is classified: as a known application, by profiling it, or as a typical one.

An unknown job is run for seconds on one or two small instances (Paragon §2.2, Quasar: Dissertation §4.3.2); see
:mod:`hcloud.planner.profiling_runs`. Profiling must not delay the job: it may take a limited part of the time to the
deadline, of the budget and of the job slots. A job that has waited for ``profiling.patience_s`` goes on without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from hcloud.classifier.applications import Identity, identify, is_profiled, key_of, known_as
from hcloud.core.estimates import Application, Classification
from hcloud.core.model import Job, JobSpec, Number, Reason, ServiceTarget
from hcloud.core.rows import number_of
from hcloud.planner.context import PlanContext
from hcloud.planner.decisions import MOST_RECORDED
from hcloud.planner.fit.expected_performance import expected
from hcloud.planner.fit.interference import quality_classes, quality_needed
from hcloud.planner.plan import Classify, Profile, Wait
from hcloud.planner.profiling_offers import offers_for
from hcloud.planner.profiling_runs import affordable, list_runs, profiling_reason, sources_per_run
from hcloud.planner.profiling_state import ProfilingState, begin_runs, open_profiling, why_not_now
from hcloud.planner.text import as_wait, deadline_numbers, offer_words, seconds, usd
from hcloud.spec.validation import counted


def decide_submitted(context: PlanContext, submitted: Sequence[Job]) -> None:
    """Decide about the submitted jobs, given by number; those that are queued are added to ``context.waiting``.

    At most ``MOST_RECORDED`` are queued, the first in order, so that a plan is carried out within a leader's lease.
    """
    if len(submitted) > MOST_RECORDED:
        submitted = sorted(submitted, key=_admission_order)
    nothing_known = not context.policy.profiles_jobs and not context.snapshot.programs
    state = None
    if not nothing_known or any(job.profile_runs for job in submitted):
        state = open_profiling(context)
        submitted = sorted(submitted, key=_admission_order)
    queued = list[Job]()
    for job in submitted:
        if len(queued) >= MOST_RECORDED:
            context.decisions.postpone()
            break
        if state is None or job.spec.profile is not None:
            queued.append(context.decisions.enqueue(job, _admission_reason(context, job)))
        elif (queued_job := _decide(state, job)) is not None:
            queued.append(queued_job)
    if queued:  # of an admitted array the tasks are placed, which the next plans make
        context.waiting.add_sorted(job for job in queued if not job.is_array)


def _admission_order(job: Job) -> tuple[int, float, int]:
    return (-job.spec.priority, job.submitted_at, number_of(job.id))


def _admission_reason(context: PlanContext, job: Job) -> Reason:
    waited_s = context.now - job.eligible_at
    numbers: dict[str, Number] = {"priority": job.spec.priority, "waited_s": round(waited_s, 3)}
    since = "submission" if job.released_at is None else "the end of what it waited for"
    text = f"admitted {seconds(waited_s)} after {since} with priority {job.spec.priority}"
    return Reason(code="admitted", text=text, numbers={**numbers, **deadline_numbers(job, context.now)})


# ------------------------------------------------------------------------------------------------------------- deciding
def _decide(state: ProfilingState, job: Job) -> Job | None:
    """Return the job as queued, or None if it is being profiled or waits for that."""
    identity = identify(job.spec)
    rows = state.context.snapshot.programs.get(identity.program, ())
    if state.context.policy.profiles_when == "beside":
        known = known_as(identity, rows, own_runs=True)
        if known is not None:
            return _classify_known(state, job, identity, known)
        refusal = why_never(state, job, identity, rows)
        refusal = refusal or Reason(code="profiling_beside", text="it starts at once; what it does is measured beside")
        return _classify_unknown(state, job, refusal.code, refusal.text, refusal.numbers)
    known = known_as(identity, rows)
    if job.id in state.runs:
        runs, policy = state.runs[job.id], state.policy
        limit_at = min(run.submitted_at for run in runs) + policy.total_s + policy.patience_s
        if state.context.now < min(limit_at, _slack_ends_at(state, job)):
            return None
        if known is None:
            text = f"{counted(len(runs), 'profiling run')} did not finish in time"
            numbers: dict[str, Number] = {"runs": len(runs), "waited_s": state.waited_s(job)}
            return _classify_unknown(state, job, "profiling_too_long", text, numbers)
    if known is not None:
        return _classify_known(state, job, identity, known)
    own = next((row for row in rows if row.name == identity.name), None)
    # A short run that differed from what is known of the program is followed by a full profile.
    differed = len(job.profile_runs) == 1 and own is not None and own.looked_at is not None
    if job.profile_runs and not differed:
        text = "its profiling runs measured nothing"
        return _classify_unknown(state, job, "profiling_failed", text, {"runs": len(job.profile_runs)})
    refusal = why_never(state, job, identity, rows)
    if refusal is not None:
        return _classify_unknown(state, job, refusal.code, refusal.text, refusal.numbers)
    return _start(state, job, identity, look=not job.profile_runs and any(is_profiled(row) for row in rows))


def _slack_ends_at(state: ProfilingState, job: Job) -> float:
    """Return until when profiling may delay a job: a part of the time until its deadline."""
    deadline_at = job.deadline_at
    if deadline_at is None:
        return inf
    return job.eligible_at + state.policy.max_share_of_slack * max(0.0, deadline_at - job.eligible_at)


def _why_never_profiled(spec: JobSpec) -> str:
    if spec.resources.gpus is not None:
        return "it uses GPUs, which copies of it would need as well"
    if spec.framework is not None:
        return "a profile of one node says nothing of its framework's cluster"
    return "its job file says profiling: never"


def why_never(state: ProfilingState, job: Job, identity: Identity, rows: Sequence[Application]) -> Reason | None:
    """Return why this job is not to be profiled, no matter what is available; None: it may be."""
    spec, policy = job.spec, state.policy
    if not state.context.policy.profiles_jobs:
        return Reason(code="profiling_off", text="profiling is off in the policy")
    if spec.profiling == "never":
        return Reason(code="profiling_never", text=_why_never_profiled(spec))
    if spec.target.kind not in policy.for_targets:
        text = f"profiling.for_targets excludes {spec.target.kind} jobs"
        return Reason(code="profiling_target", text=text)
    if spec.stateful and policy.warm_up_s == 0:
        text = "it is stateful, and the policy sets no warm-up for such jobs"
        return Reason(code="profiling_stateful", text=text)
    return _why_not_worthwhile(state, job, identity, rows)


def _why_not_worthwhile(
    state: ProfilingState, job: Job, identity: Identity, rows: Sequence[Application]
) -> Reason | None:
    """Return why profiling would probably cost more than it gains, or None."""
    beside = state.context.policy.profiles_when == "beside"  # then the expected saving decides
    limit_s, lasts_s = 0.0 if beside else state.policy.skip_if_shorter_than_s, job.spec.max_runtime_s
    lasts_s = inf if lasts_s is None else lasts_s
    if not isinstance(job.spec.target, ServiceTarget):  # earlier runs of a service do not bound this one
        lasts_s = min(lasts_s, max([row.run_s for row in rows if row.run_s is not None], default=inf))
    if lasts_s < limit_s:
        text = f"it runs for at most {seconds(lasts_s)}, below the minimum of {seconds(limit_s)}"
        return Reason(code="profiling_short", text=text, numbers={"run_s": lasts_s, "limit_s": limit_s})
    own = [row for row in rows if row.name == identity.name]
    failed_runs = sum(len(row.runs) for row in own if row.profiled_at is None and row.looked_at is None)
    if failed_runs >= state.policy.fruitless_runs:
        text = f"{counted(failed_runs, 'profiling run')} of this program measured nothing"
        return Reason(code="profiling_fruitless", text=text, numbers={"runs": failed_runs})
    return None


# ---------------------------------------------------------------------------------------------------------------- going
def _classify_known(state: ProfilingState, job: Job, identity: Identity, row: Application) -> Job | None:
    key = key_of(row, identity)
    estimates = state.context.snapshot.applications.get(key)
    if estimates is None and state.waited_s(job) < state.policy.patience_s:
        _keep_waiting(state, job, "classifying", f"{row.name} is being classified", {})
        return None
    source = "profiled" if set(job.profile_runs) & set(row.runs) and row.name == identity.name else "known"
    useful = len(set(job.profile_runs) & set(row.runs))
    text = f"profiled in {counted(useful, 'run')}" if source == "profiled" else f"recognised as {row.name}"
    if job.id in state.runs:
        text += ", with no time left for the others"
    if source == "known" and identity.input not in row.inputs:
        text += f", which behaved alike with {counted(len(row.inputs), 'input')}"
    elif source == "known" and job.profile_runs:
        text += ", confirmed by a short run"
    numbers = _estimate_numbers(state, row, job, estimates) if estimates is not None else {}
    if "predicted" in numbers:
        text += f"; expected alone on {row.type_column}: {numbers['predicted']:.4g} {row.measure}/s"
        text += f" ({numbers['predicted_low']:.4g} to {numbers['predicted_high']:.4g})"
    return _classify(state, job, key, source, Reason(code=f"classified_{source}", text=text, numbers=numbers))


def _estimate_numbers(state: ProfilingState, row: Application, job: Job, known: Classification) -> dict[str, Number]:
    """Return the estimates of a job as numbers of a reason."""
    policy, applications = state.context.policy, state.context.snapshot.applications
    classes = quality_classes(applications, policy.placement.neighbour_tolerance, policy.admission.classes)
    numbers: dict[str, Number] = {
        "quality_target": round(known.quality_target.value, 4),
        "quality_class": classes.level(quality_needed(known)),
        "nearest": ", ".join(f"{each.name} ({each.similarity:.0%})" for each in known.nearest[:3]),
        "measure": None if row.measure is None else row.measure.value,
    }
    vcpus = job.spec.resources.vcpus
    alone = expected(known, row.type_column, vcpus=vcpus, asked_vcpus=row.reference_vcpus or vcpus)
    if alone is not None:
        low, high = alone.limits()
        numbers |= {"predicted": alone.value, "predicted_low": low, "predicted_high": high}
    return numbers


def _classify_unknown(state: ProfilingState, job: Job, code: str, text: str, numbers: Mapping[str, Number]) -> Job:
    if not state.context.policy.profiles_jobs and not job.profile_runs:
        return state.context.decisions.enqueue(job, _admission_reason(state.context, job))
    return _classify(state, job, "", "prior", Reason(code=code, text=f"no profile: {text}", numbers=numbers))


def _classify(state: ProfilingState, job: Job, application: str, source: str, reason: Reason) -> Job:
    state.context.decisions.add(Classify(job_id=job.id, application=application, source=source, reason=reason))
    known = replace(job, application=application)
    return state.context.decisions.enqueue(known, _admission_reason(state.context, job))


def _keep_waiting(state: ProfilingState, job: Job, code: str, text: str, numbers: Mapping[str, Number]) -> None:
    """Record why a job keeps waiting, if the code is new."""
    if job.wait_code != code:
        state.context.decisions.add(Wait(job_id=job.id, reason=as_wait(Reason(code=code, text=text, numbers=numbers))))


# ------------------------------------------------------------------------------------------------------------- starting
def _start(state: ProfilingState, job: Job, identity: Identity, *, look: bool) -> Job | None:
    """Plan the profiling runs, or record what they wait for; a job that waited long enough is queued without."""
    policy, context = state.policy, state.context
    offers = offers_for(state, job)
    boot_s = max((offer.instance_type.boot_delay_s for offer in offers[:1]), default=0.0)
    needs_s, left_s = boot_s + policy.total_s, _slack_ends_at(state, job) - context.now
    if needs_s > left_s:
        text = f"it takes up to {seconds(needs_s)}, but may use only {seconds(max(0.0, left_s))} before its deadline"
        numbers: dict[str, Number] = {"needs_s": needs_s, "left_s": round(left_s, 3)}
        return _classify_unknown(state, job, "profiling_no_time", text, numbers)
    blocked = why_not_now(state, job, identity, offers)
    if blocked is None:
        sources = [] if look else sources_per_run(state, job, identity, offers)
        runs, cost_usd = affordable(state, list_runs(state, job, offers, sources, look=look))
        if not runs:
            text = f"one run on {offer_words(offers[0])} would cost more than the limit of {usd(cost_usd)}"
            return _classify_unknown(state, job, "profiling_too_dear", text, {"limit_usd": cost_usd})
        begin_runs(state, job, identity, runs, offers)
        reason = profiling_reason(runs, cost_usd, needs_s, sources)
        context.decisions.add(Profile(job_id=job.id, application=identity.name, runs=runs, reason=reason))
        return None
    if state.waited_s(job) >= policy.patience_s:
        text = f"{blocked.text}; gave up after {seconds(state.waited_s(job))}"
        return _classify_unknown(
            state, job, "profiling_no_room", text, {**blocked.numbers, "waited_s": state.waited_s(job)}
        )
    _keep_waiting(state, job, blocked.code, blocked.text, blocked.numbers)
    return None
