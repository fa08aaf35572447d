"""Decide how a submitted job is classified: as a known application, by profiling it, or as a typical one.

An unknown job is run for seconds on one or two small instances (Paragon §2.2, Quasar: Dissertation §4.3.2). The same
program with new input gets a single short run. Profiling must not delay the job: it may take a limited part of the time
to the deadline, of the budget and of the job slots. A job that has waited for ``profiling.patience_s`` goes on without
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from hcloud.classifier.applications import Identity, identify, is_profiled, key_of, known_as
from hcloud.classifier.source_selection import Pressing, choose_sources
from hcloud.core.estimates import Application, Classification
from hcloud.core.model import (
    PROFILE_TAG,
    BatchTarget,
    BestEffortTarget,
    Constraints,
    InstanceState,
    Job,
    JobId,
    JobSpec,
    JobState,
    Market,
    Nodes,
    Number,
    Offer,
    ProfileRequest,
    Reason,
    Resources,
    Retries,
    ServiceTarget,
    matches,
)
from hcloud.core.rows import number_of
from hcloud.planner.budget import job_scopes
from hcloud.planner.context import PlanContext
from hcloud.planner.decisions import MOST_RECORDED
from hcloud.planner.fit.interference import quality_classes, quality_needed
from hcloud.planner.fit.sizing import expected
from hcloud.planner.plan import Classify, Profile, Wait
from hcloud.planner.provisioning.offer_rules import forbidden
from hcloud.planner.provisioning.strategies import Rented
from hcloud.planner.text import as_wait, deadline_numbers, offer_words, seconds, usd
from hcloud.spec.policy import ProfilingPolicy
from hcloud.spec.validation import counted

MOST_TIMES_REQUESTED = 4.0
"""If the planner chooses the size of a job, it is measured with up to this many times the vCPUs it requests."""
STOP_MARGIN_S = 30.0
"""A profiling run that exceeds its time limit by this much is stopped."""
ROOM_FOR_SOURCE_MIB = 160
"""With less memory than this next to the job, no source that occupies memory fits (the profiler needs 64 MiB, and 96 in
reserve)."""
_YET_TO_START = frozenset({JobState.SUBMITTED, JobState.QUEUED})


def most_vcpus(job: Job) -> float:
    """Return with how many vCPUs a job should be measured at least, where it may get so many."""
    vcpus, within = job.spec.resources.vcpus, job.spec.vcpus_within
    return vcpus if within is None else max(vcpus, min(within[1], MOST_TIMES_REQUESTED * vcpus))


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
        look=look,
        knees=spec.vcpus_within is not None and len(steps_vcpus) > 1,
    )
    name, only = f"{spec.name}:profile-{what}", (offer.instance_type.name,)
    run_spec = replace(_run_spec(spec, request, policy), name=name, instance_types=only)
    if beside:  # nobody waits for it: it makes way for other jobs, and may use spot instances
        run_spec = replace(run_spec, target=BestEffortTarget(), interruptible=True)
    return run_spec, nodes * run_usd(policy, offer)


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
        vcpus_within=None,
        placement=spec.placement and replace(spec.placement, apart_from=(), spread="none"),
    )


def run_usd(policy: ProfilingPolicy, offer: Offer) -> float:
    """Return what a run on one instance may cost in USD."""
    held_s = max(offer.billing_minimum_s, offer.instance_type.boot_delay_s + policy.total_s)
    return offer.price_usd_per_h * held_s / 3600


@dataclass(slots=True)
class ProfilingState:
    """Profiling in progress, and what is available for more."""

    context: PlanContext
    runs: dict[JobId, list[Job]] = field(default_factory=dict)
    """Unfinished profiling runs, by the job they are for."""
    programs: set[str] = field(default_factory=set)
    """Programs being profiled."""
    offers: dict[tuple[Resources, tuple[str, ...], Constraints | None], list[Offer]] = field(default_factory=dict)
    """Cache of the offers to profile on, by requirements of a job."""
    _idle: Counter[tuple[str, str]] | None = None

    @property
    def idle(self) -> Counter[tuple[str, str]]:
        """Idle instances by provider and type, less those that runs wait for."""
        if self._idle is None:
            context = self.context
            self._idle = Counter(
                context.snapshot.plan_cache.get(
                    "idle types", (context.fleet, context.measuring), lambda: _idle(context)
                )
            )
        return self._idle

    @property
    def policy(self) -> ProfilingPolicy:
        """The policy's section."""
        return self.context.policy.profiling

    def waited_s(self, job: Job) -> float:
        """Return for how long a job has waited since its submission, in seconds."""
        return self.context.now - job.submitted_at


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
    if queued:
        context.waiting.add_sorted(queued)


def _admission_order(job: Job) -> tuple[int, float, int]:
    return (-job.spec.priority, job.submitted_at, number_of(job.id))


def open_profiling(context: PlanContext) -> ProfilingState:
    """Return the profiling in progress."""
    state, rows = ProfilingState(context), context.snapshot.plan_cache.occupancy.rows
    for job in [rows[run] for run in sorted(context.measuring)]:
        if job.spec.profile is not None and job.spec.profile.job_id and job.cancelled_by is None:
            state.runs.setdefault(job.spec.profile.job_id, []).append(job)
            state.programs.add(identify(job.spec).program)
    return state


def _admission_reason(context: PlanContext, job: Job) -> Reason:
    waited_s = context.now - job.submitted_at
    numbers: dict[str, Number] = {"priority": job.spec.priority, "waited_s": round(waited_s, 3)}
    text = f"admitted {seconds(waited_s)} after submission with priority {job.spec.priority}"
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
    """Return until when profiling may delay a job: a part of the time from submission to deadline."""
    deadline_at = job.deadline_at
    if deadline_at is None:
        return inf
    return job.submitted_at + state.policy.max_share_of_slack * max(0.0, deadline_at - job.submitted_at)


def why_never(state: ProfilingState, job: Job, identity: Identity, rows: Sequence[Application]) -> Reason | None:
    """Return why this job is not to be profiled, no matter what is available; None: it may be."""
    spec, policy = job.spec, state.policy
    if not state.context.policy.profiles_jobs:
        return Reason(code="profiling_off", text="profiling is off in the policy")
    if spec.profiling == "never":
        return Reason(code="profiling_never", text="its job file says profiling: never")
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
        "quality_class": classes.level(quality_needed(known, policy.placement.neighbour_tolerance)),
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
    offers = _offers_for(state, job)
    boot_s = max((offer.instance_type.boot_delay_s for offer in offers[:1]), default=0.0)
    needs_s, left_s = boot_s + policy.total_s, _slack_ends_at(state, job) - context.now
    if needs_s > left_s:
        text = f"it takes up to {seconds(needs_s)}, but may use only {seconds(max(0.0, left_s))} before its deadline"
        numbers: dict[str, Number] = {"needs_s": needs_s, "left_s": round(left_s, 3)}
        return _classify_unknown(state, job, "profiling_no_time", text, numbers)
    blocked = _why_not_now(state, job, identity, offers)
    if blocked is None:
        sources = [] if look else _sources_per_run(state, job, identity, offers)
        runs, cost_usd = affordable(state, _runs(state, job, offers, sources, look=look))
        if not runs:
            text = f"one run on {offer_words(offers[0])} would cost more than the limit of {usd(cost_usd)}"
            return _classify_unknown(state, job, "profiling_too_dear", text, {"limit_usd": cost_usd})
        _begin(state, job, identity, runs, offers)
        reason = _profiling_reason(runs, cost_usd, needs_s, sources)
        context.decisions.add(Profile(job_id=job.id, application=identity.name, runs=runs, reason=reason))
        return None
    if state.waited_s(job) >= policy.patience_s:
        text = f"{blocked.text}; gave up after {seconds(state.waited_s(job))}"
        return _classify_unknown(
            state, job, "profiling_no_room", text, {**blocked.numbers, "waited_s": state.waited_s(job)}
        )
    _keep_waiting(state, job, blocked.code, blocked.text, blocked.numbers)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRuns:
    """Profiling runs that can be made now."""

    runs: tuple[JobSpec, ...]
    reason: Reason


def choose_runs(
    state: ProfilingState, job: Job, identity: Identity, *, look: bool, most_usd: float
) -> ChosenRuns | None:
    """Return runs that measure a running ``job`` for at most ``most_usd``, the most informative ones; None: none can be
    made now. ``state`` counts them as begun."""
    offers = _offers_for(state, job)
    if not offers or run_usd(state.policy, offers[0]) > min(most_usd, _limit_usd(state)):
        return None  # not even the first run; this is asked in each cycle, of each unknown program
    if _why_not_now(state, job, identity, offers) is not None:
        return None
    pressing = [] if look else _sources_per_run(state, job, identity, offers)
    runs, cost_usd = affordable(state, _runs(state, job, offers, pressing, look=look), most_usd)
    if not runs:
        return None
    _begin(state, job, identity, runs, offers)
    return ChosenRuns(runs=runs, reason=_profiling_reason(runs, cost_usd, state.policy.total_s, pressing))


def _begin(
    state: ProfilingState, job: Job, identity: Identity, runs: Sequence[JobSpec], offers: Sequence[Offer]
) -> None:
    """Count the runs as in progress for the rest of this plan."""
    state.programs.add(identity.program)
    state.runs[job.id] = []
    types = {offer.instance_type.name: _type_of(offer) for offer in offers}
    for run in runs:
        state.idle[types[run.instance_types[0]]] -= run.nodes.count
    state.offers.clear()


def profile_again(context: PlanContext, job: Job) -> Profile | None:
    """Return a run that measures a running ``job`` again on an idle instance, or None.

    None is returned if no instance is idle, or if the policy, the job or limits forbid it. Nothing is launched for it.
    It is a base run: the application is classified again from its result.
    """
    state, identity = open_profiling(context), identify(job.spec)
    rows = context.snapshot.programs.get(identity.program, ())
    if job.id in state.runs or why_never(state, job, identity, rows) is not None or not state.idle:
        return None
    offers = _offers_for(state, job)
    if not offers or state.idle[_type_of(offers[0])] <= 0:
        return None
    sources = _sources_on(state, job, identity, offers[0])
    steps = steps_of(job, offers[0].instance_type.capacity.vcpus)
    run = run_for(state.policy, job, offers[0], "again", steps_vcpus=steps, sources=sources.sources)
    runs, cost_usd = affordable(state, [run])
    if not runs or len(state.runs) >= state.policy.max_concurrent or context.snapshot.paused:
        return None
    reason = _profiling_reason(runs, cost_usd, state.policy.total_s, [sources])
    return Profile(job_id=job.id, application=identity.name, runs=runs, reason=reason)


def _why_not_now(state: ProfilingState, job: Job, identity: Identity, offers: Sequence[Offer]) -> Reason | None:
    context, busy, limit = state.context, len(state.runs), state.policy.max_concurrent
    if context.snapshot.paused:
        return Reason(code="paused", text=f"launches and placements are paused ({context.snapshot.paused})")
    if identity.program in state.programs:
        text = f"another job of {identity.program} is being profiled"
        return Reason(code="profiling_same_program", text=text)
    if busy >= limit:
        text = f"{busy} jobs are being profiled, the most allowed at one time"
        return Reason(code="profiling_slots", text=text, numbers={"busy": busy, "limit": limit})
    if not offers:
        text = "no machine available to profile it on"
        return Reason(code="profiling_no_offer", text=text)
    if state.idle[_type_of(offers[0])] > 0:
        return None
    refusal = context.ledger.refusal(offers[0], dict.fromkeys(job_scopes(job), 1.0))
    if refusal is None:
        return None
    return Reason(
        code=f"profiling_{refusal.code}",
        text=f"{refusal.text} ({offer_words(offers[0])})",
        numbers=refusal.numbers,
    )


def _type_of(offer: Offer) -> tuple[str, str]:
    return offer.provider, offer.instance_type.name


def _idle(context: PlanContext) -> Counter[tuple[str, str]]:
    """Count idle instances by provider and type, less those that profiling runs wait for."""
    spot_ok = _may_use_spot(context)
    instances, rows = context.fleet.instances, context.snapshot.plan_cache.occupancy.rows
    empty = [instances[at] for at, held in enumerate(context.fleet.holdings) if not held]
    idle = Counter(
        _type_of(each.offer)
        for each in empty
        if each.state is InstanceState.READY and (spot_ok or each.offer.market is not Market.SPOT)
    )
    if not idle:
        return idle
    runs = [rows[run].spec for run in context.measuring if rows[run].state in _YET_TO_START]
    awaited = Counter(name for run in runs for name in run.instance_types[:1])
    return Counter({key: count - awaited[key[1]] for key, count in idle.items() if count > awaited[key[1]]})


def _offers_for(state: ProfilingState, job: Job) -> list[Offer]:
    """Return one offer per type to profile on; the first one, if possible, with a vCPU to spare for a neighbour.

    Idle instances come first, of the types that together say most about all others (Paragon §2.2 takes random ones);
    then the cheapest offers.
    """
    key = (job.spec.resources, job.spec.instance_types, job.spec.placement)
    known = state.offers.get(key)
    if known is None:
        known = state.offers[key] = _search_offers(state, job)
    return known


def _search_offers(state: ProfilingState, job: Job) -> list[Offer]:
    context, cheapest = state.context, dict[tuple[str, str], Offer]()
    made_of = (context.snapshot.offers, context.policy)
    for offer in context.snapshot.plan_cache.get("to profile on", made_of, lambda: _permitted_offers(context)):
        kind = _type_of(offer)
        fits = kind not in cheapest and job.spec.resources.fits(offer.instance_type.capacity)
        if fits and job.spec.may_use(offer) and _is_available(state, offer):
            cheapest[kind] = offer
    offers = sorted(cheapest.values(), key=lambda each: state.idle[_type_of(each)] <= 0)
    return _most_informative(state, offers, _roomy(state, job, offers) or offers)


def _roomy(state: ProfilingState, job: Job, offers: Sequence[Offer]) -> list[Offer]:
    """Return the ``offers`` with vCPUs to spare for a neighbour and, if any is within the cost limit, for the sizes
    above the requested one."""
    roomy = [offer for offer in offers if _has_spare_vcpus(state, job, offer)]
    limit_usd, most = _limit_usd(state), most_vcpus(job)
    wide = [o for o in roomy if o.instance_type.capacity.vcpus >= most and run_usd(state.policy, o) <= limit_usd]
    return wide or roomy


def _most_informative(state: ProfilingState, found: Sequence[Offer], roomy: Sequence[Offer]) -> list[Offer]:
    """Return ``found`` in the order to profile on, at most ``profiling.types`` of them; the first is ``roomy``.

    Of the idle types those that say most together come first, then the others in the given order.
    """
    prior, types, by_column = state.context.snapshot.type_prior, state.policy.types, {_column_of(o): o for o in found}
    idle = [column for column, offer in by_column.items() if state.idle[_type_of(offer)] > 0]
    suitable = [_column_of(offer) for offer in roomy]
    if prior is None or not idle:
        informative: tuple[str, ...] = ()
    elif suitable[0] in idle:
        informative = prior.most_telling(idle, types, one_of=suitable)
    else:
        informative = prior.most_telling(idle, types - 1, one_of=idle, already=suitable[:1])
    head = [column for column in (*informative, *suitable) if column in suitable][:1]
    order = [by_column[column] for column in dict.fromkeys((*head, *informative, *by_column))]
    return _within_pools(state, order)[:types]


def _within_pools(state: ProfilingState, offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers, in order, of which one instance each can exist at the same time: a host has limited room."""
    left, kept = dict[tuple[str, str], Resources](), list[Offer]()
    for offer in offers:
        size, pool = offer.instance_type.capacity, (offer.provider, offer.pool)
        if offer.pool and offer.pool_free is not None and state.idle[_type_of(offer)] <= 0:
            free = left.get(pool, offer.pool_free)
            if not size.fits(free):
                continue
            left[pool] = free.minus(size)
        kept.append(offer)
    return kept


def _column_of(offer: Offer) -> str:
    return "/".join(_type_of(offer))


def _permitted_offers(context: PlanContext) -> list[Offer]:
    """Return the offers that policy and strategy allow for profiling, cheapest first."""
    spot_ok = _may_use_spot(context)
    policy, types = context.policy, context.policy.profiling.instance_types
    offers = list[Offer]()
    for offer in sorted(context.snapshot.offers, key=lambda each: (each.price_usd_per_h, each.key)):
        refused = forbidden(policy, offer) is not None or context.strategy.refusal(offer) is not None
        named = not types or matches(offer.instance_type.name, types)
        if named and not refused and (spot_ok or offer.market is not Market.SPOT):
            offers.append(offer)
    return offers


def _may_use_spot(context: PlanContext) -> bool:
    """Return whether profiling runs may use spot instances; not if jobs wait for them, as they may be preempted."""
    return context.policy.profiles_when == "beside" and "best_effort" in context.policy.spot.for_targets


def _is_available(state: ProfilingState, offer: Offer) -> bool:
    """Return whether an instance of ``offer`` can be launched now or is idle; all reserved ones may be running
    already."""
    if state.idle[_type_of(offer)] > 0:
        return True
    backoffs, now = state.context.snapshot.backoffs, state.context.now
    return offer.available != 0 and not any(b.covers(offer) and b.until_at > now for b in backoffs)


def _sources_on(
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


def _sources_per_run(state: ProfilingState, job: Job, identity: Identity, offers: Sequence[Offer]) -> list[Pressing]:
    """Return the sources for each run that applies some, the base run first.

    A second instance with a spare vCPU gets a set of its own; its run ends no later than the base run, which measures
    more sizes. Under a strategy that never rents there is no second set, because jobs wait for the instance it would
    hold.
    """
    sources = [_sources_on(state, job, identity, offers[0])]
    rents = state.context.strategy.rules.rented is not Rented.NONE
    second = _second_offer(state, offers) if rents else None
    if second is not None and sources[0].sources and _has_spare_vcpus(state, job, second):
        sources.append(_sources_on(state, job, identity, second, besides=sources[0].sources))
    return sources


def _second_offer(state: ProfilingState, offers: Sequence[Offer]) -> Offer | None:
    """Return the offer for the second instance of a profile: another type, else the same one if two are available; None
    if the policy wants one type only, or there is no second instance."""
    if len(offers) > 1 or state.policy.types == 1:
        return offers[1] if len(offers) > 1 else None
    first = offers[0]
    two = state.idle[_type_of(first)] > 1 or first.available is None or first.available > 1
    return first if two else None


def _has_spare_vcpus(state: ProfilingState, job: Job, offer: Offer) -> bool:
    return offer.instance_type.capacity.vcpus >= job.spec.resources.vcpus + state.policy.spare_vcpus


def _runs(
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


def _limit_usd(state: ProfilingState) -> float:
    """Return what all runs of one job may cost together in USD; inf if there is no limit."""
    per_day_usd, policy = state.context.policy.budgets.per_day_usd, state.policy
    return min(
        policy.max_usd_per_job if policy.max_usd_per_job is not None else inf,
        policy.max_share_of_budget * per_day_usd if per_day_usd is not None else inf,
    )


def affordable(
    state: ProfilingState, runs: Sequence[tuple[JobSpec, float]], most_usd: float = inf
) -> tuple[tuple[JobSpec, ...], float]:
    """Return as many of ``runs``, in order, as the cost limit and ``most_usd`` allow, and their cost; if none, the
    limit."""
    limit_usd, taken, cost_usd = min(most_usd, _limit_usd(state)), list[JobSpec](), 0.0
    for spec, price_usd in runs:
        if cost_usd + price_usd <= limit_usd:
            taken.append(spec)
            cost_usd += price_usd
        elif not taken:
            return (), limit_usd
    return tuple(taken), cost_usd


def _profiling_reason(runs: Sequence[JobSpec], cost_usd: float, lasts_s: float, pressing: Sequence[Pressing]) -> Reason:
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
