"""Profiling in progress within one plan, the idle instances left for more, and why no more can begin now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hcloud.classifier.applications import Identity, identify
from hcloud.core.model import (
    Constraints,
    InstanceState,
    Job,
    JobId,
    JobSpec,
    JobState,
    Market,
    Offer,
    Reason,
    Resources,
)
from hcloud.planner.budget import job_scopes
from hcloud.planner.context import PlanContext
from hcloud.planner.text import offer_words
from hcloud.spec.policy import ProfilingPolicy

_YET_TO_START = frozenset({JobState.SUBMITTED, JobState.QUEUED})


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
        """Return for how long a job has waited since it could be planned, in seconds."""
        return self.context.now - job.eligible_at


def open_profiling(context: PlanContext) -> ProfilingState:
    """Return the profiling in progress."""
    state, rows = ProfilingState(context), context.snapshot.plan_cache.occupancy.rows
    for job in [rows[run] for run in sorted(context.measuring)]:
        if job.spec.profile is not None and job.spec.profile.job_id and job.cancelled_by is None:
            state.runs.setdefault(job.spec.profile.job_id, []).append(job)
            state.programs.add(identify(job.spec).program)
    return state


def _idle(context: PlanContext) -> Counter[tuple[str, str]]:
    """Count idle instances by provider and type, less those that profiling runs wait for."""
    spot_ok = may_use_spot(context)
    instances, rows = context.fleet.instances, context.snapshot.plan_cache.occupancy.rows
    empty = [instances[at] for at, held in enumerate(context.fleet.holdings) if not held]
    idle = Counter(
        type_of(each.offer)
        for each in empty
        if each.state is InstanceState.READY and (spot_ok or each.offer.market is not Market.SPOT)
    )
    if not idle:
        return idle
    runs = [rows[run].spec for run in context.measuring if rows[run].state in _YET_TO_START]
    awaited = Counter(name for run in runs for name in run.instance_types[:1])
    return Counter({key: count - awaited[key[1]] for key, count in idle.items() if count > awaited[key[1]]})


def may_use_spot(context: PlanContext) -> bool:
    """Return whether profiling runs may use spot instances; not if jobs wait for them, as they may be preempted."""
    return context.policy.profiles_when == "beside" and "best_effort" in context.policy.spot.for_targets


def type_of(offer: Offer) -> tuple[str, str]:
    """Return provider and type of an offer, as :attr:`ProfilingState.idle` counts them."""
    return offer.provider, offer.instance_type.name


def why_not_now(state: ProfilingState, job: Job, identity: Identity, offers: Sequence[Offer]) -> Reason | None:
    """Return why no run of ``job`` can begin now on the first of ``offers``, or None."""
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
    if state.idle[type_of(offers[0])] > 0:
        return None
    refusal = context.ledger.refusal(offers[0], dict.fromkeys(job_scopes(job), 1.0))
    if refusal is None:
        return None
    return Reason(
        code=f"profiling_{refusal.code}",
        text=f"{refusal.text} ({offer_words(offers[0])})",
        numbers=refusal.numbers,
    )


def begin_runs(
    state: ProfilingState, job: Job, identity: Identity, runs: Sequence[JobSpec], offers: Sequence[Offer]
) -> None:
    """Count the runs as in progress for the rest of this plan."""
    state.programs.add(identity.program)
    state.runs[job.id] = []
    types = {offer.instance_type.name: type_of(offer) for offer in offers}
    for run in runs:
        state.idle[types[run.instance_types[0]]] -= run.nodes.count
    state.offers.clear()
