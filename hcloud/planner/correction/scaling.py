"""Scale a job that misses its target up or out (Quasar, Dissertation §4.4).

Scale-up comes first, since no work is lost and nothing is launched. All ranks grow by the same factor or none does,
because the slowest rank sets the pace. Scale-out adds the nodes an incremental job still lacks, where there is room;
else on new instances, if the time saved is worth their cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from hcloud.core.model import Allocation, Job, Market, Number, Offer, Reason, Resources
from hcloud.planner.admission import queue_key
from hcloud.planner.context import NODES, NODES_LAUNCHED, PlanContext
from hcloud.planner.correction.monitor import Assessment, RankSamples
from hcloud.planner.correction.option import NoOption, Option, remaining_s, saved_s
from hcloud.planner.fleet import SLACK, vector
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.occupancy import missing_ranks
from hcloud.planner.placement.claims import claim
from hcloud.planner.placement.find_places import add_place, find_places
from hcloud.planner.placement.open_instances import usable
from hcloud.planner.placement.state import PlacementState
from hcloud.planner.plan import RankPlacement, Resize
from hcloud.planner.text import offer_words, seconds, size_share
from hcloud.spec.validation import counted

RESIZE = "resize"
MOST_UTILISATION = 0.95
"""Utilisation of a service is capped at this value, since the latency model diverges near 1."""
STEP_VCPUS = 0.01
"""Sizes are rounded down to a multiple of this, which control groups can represent."""


# ------------------------------------------------------------------------------------------------------------- scale-up
def resize(context: PlanContext, view: RankSamples, assessment: Assessment) -> Iterator[Option | NoOption]:
    """Give every rank more vCPUs of its instance, of those neither held nor awaited."""
    job, ranks = view.job, _ranks(view.job)
    if job.spec.exclusive:
        yield NoOption(step=RESIZE, code="whole_machine", text="it holds its whole machine")
        return
    if any(not _can_grow(context, held) for held in ranks):
        yield NoOption(step=RESIZE, code="not_now", text=f"{_names(ranks)} is leaving, or resizes it already")
        return
    factor = _growth(context, view, assessment, ranks)
    grown = []
    for held in ranks:
        vcpus = math.floor(held.resources.vcpus * factor / STEP_VCPUS + SLACK) * STEP_VCPUS
        grown.append(replace(held.resources, vcpus=round(vcpus, 2)))
    if any(after.vcpus <= held.resources.vcpus + SLACK for held, after in zip(ranks, grown, strict=True)):
        yield _full(context, job, ranks)
        return
    more = [after.minus(held.resources) for held, after in zip(ranks, grown, strict=True)]
    if (refusal := _growth_refusal(context, job, ranks, more)) is not None:
        yield NoOption(step=RESIZE, code=refusal.code, text=refusal.text)
        return
    vcpus = next(after.vcpus for held, after in zip(ranks, grown, strict=True) if held.rank == view.held.rank)
    each = f"each of its {len(ranks)} ranks" if len(ranks) > 1 else "it"
    text = f"resizing {each} from {view.held.resources.vcpus:g} to {vcpus:g} vCPU on {_names(ranks)}"
    yield Option(
        step=RESIZE,
        text=text,
        factor=_speedup_with(view, assessment, vcpus),
        cost_s=0.0,
        act=lambda reason: _resize(context, job, ranks, grown, reason),
        numbers={"vcpus": vcpus, "vcpus_before": view.held.resources.vcpus, "ranks": len(ranks)},
    )


def _full(context: PlanContext, job: Job, ranks: Sequence[Allocation]) -> NoOption:
    """Return why no rank can get more vCPUs: its limit, or the room on the instances."""
    limit, held = most_vcpus(context, job), max(each.resources.vcpus for each in ranks)
    if held + STEP_VCPUS > limit:
        key = "correction.resize_limit" if job.spec.vcpus_within is None else "vcpus_max"
        return NoOption(step=RESIZE, code="at_limit", text=f"it has {held:g} vCPU, as many as {key} allows")
    return NoOption(step=RESIZE, code="no_room", text=f"no more vCPUs are free on {_names(ranks)}")


def _ranks(job: Job) -> list[Allocation]:
    held = job.attempt.allocations if job.attempt is not None else ()
    return [each for each in held if not each.released]


def _names(ranks: Sequence[Allocation]) -> str:
    names = list(dict.fromkeys(held.instance_id for held in ranks))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _can_grow(context: PlanContext, held: Allocation) -> bool:
    at = context.fleet.index.get(held.instance_id)
    return (
        at is not None and bool(context.fleet.placeable[at]) and held.started_at is not None and not held.resized_from
    )


def most_vcpus(context: PlanContext, job: Job) -> float:
    """Return how many vCPUs a rank of ``job`` may get: the job's own limit, else a multiple of its request."""
    spec = job.spec
    if spec.vcpus_within is not None:
        return spec.vcpus_within[1]
    return context.policy.correction.resize_limit * spec.resources.vcpus


def _growth(context: PlanContext, view: RankSamples, assessment: Assessment, ranks: Sequence[Allocation]) -> float:
    """Return the factor by which all ranks may grow: limited by need, by policy and by the fullest instance."""
    policy, fleet = context.policy.correction, context.fleet
    short = assessment.wanted / assessment.pace.mean if assessment.pace.mean > 0 else policy.resize_limit
    held_vcpus: dict[int, float] = {}
    for held in ranks:
        at = fleet.index[held.instance_id]
        held_vcpus[at] = held_vcpus.get(at, 0.0) + held.resources.vcpus
    spare = {at: min(float(fleet.free[0, at]), float(fleet.room[0, at])) for at in held_vcpus}
    room = min(1.0 + max(0.0, spare[at]) / vcpus for at, vcpus in held_vcpus.items())
    limit = most_vcpus(context, view.job) / max(held.resources.vcpus for held in ranks)
    return min(short * (1.0 + policy.margin), room, limit)


def _growth_refusal(
    context: PlanContext, job: Job, ranks: Sequence[Allocation], more: Sequence[Resources]
) -> Reason | None:
    if not context.ledger.watches_scopes:
        return None
    trial, instances = context.ledger.copy(), context.fleet.instances
    for held, part in zip(ranks, more, strict=True):
        instance = instances[context.fleet.index[held.instance_id]]
        refusal = trial.placement_refusal(job, instance, part)
        if refusal is not None:
            return refusal
        trial.book_placement(job, instance, part)
    return None


def _resize(
    context: PlanContext, job: Job, ranks: Sequence[Allocation], grown: Sequence[Resources], reason: Reason
) -> None:
    for held, after in zip(ranks, grown, strict=True):
        at, more = context.fleet.index[held.instance_id], after.minus(held.resources)
        context.ledger.book_placement(job, context.fleet.instances[at], more)
        context.fleet.use(at, vector(more))
    placed = tuple(
        RankPlacement(rank=held.rank, instance_id=held.instance_id, resources=after)
        for held, after in zip(ranks, grown, strict=True)
    )
    context.decisions.add(Resize(job_id=job.id, ranks=placed, reason=reason))


def _speedup_with(view: RankSamples, assessment: Assessment, vcpus: float) -> float:
    """Return the speed-up with so many vCPUs: as measured, else in proportion if the rank uses all it has.

    The latency of a service follows ``1 / (1 - utilisation)`` (M/M/1, processor sharing).
    """
    known, now, then = view.known(), view.estimate(), view.estimate(vcpus=vcpus)
    if assessment.by == "latency":
        cpu = view.pace("cpu_s")
        if cpu is None:  # too few readings yet
            return vcpus / view.held.resources.vcpus
        use = min(MOST_UTILISATION, cpu.mean / view.held.resources.vcpus)
        return (1.0 - use * view.held.resources.vcpus / vcpus) / (1.0 - use)
    if known is not None and known.by_step and now is not None and then is not None:
        return float(np.exp(then.mean - now.mean))
    return vcpus / view.held.resources.vcpus if view.busy() else 1.0


# ------------------------------------------------------------------------------------------------------------ scale-out
def more_nodes(context: PlanContext, view: RankSamples, assessment: Assessment) -> Iterator[Option | NoOption]:
    """Add the nodes an incremental job still lacks: where there is room now, else once on new instances."""
    job, attempt = view.job, view.job.attempt
    missing = missing_ranks(job)
    if attempt is None:
        return
    if not missing:
        text = f"it runs on all its {counted(job.spec.nodes.count, 'node')}"
        yield NoOption(step=NODES, code="all_nodes", text=text)
        return
    if job.spec.nodes.gang:
        yield NoOption(step=NODES, code="gang", text="its nodes start together")
        return
    group, now, count = context.group_of(job), len(_ranks(job)), job.spec.nodes.count
    after, before = view.estimate(nodes=count), view.estimate(nodes=now)
    factor = (
        float(np.exp(after.mean - before.mean)) if after is not None and before is not None else count / max(now, 1)
    )
    numbers: dict[str, Number] = {"nodes": count, "nodes_before": now}
    soon = context.fleet.placeable | context.fleet.coming
    if context.fleet.fitting_now(group.asks, usable(context, group, soon)).any():
        # The cost is the increase in node-seconds.
        cost_s = max(0.0, remaining_s(context, assessment) * (count / max(now, 1) / factor - 1.0))
        cost_s /= context.policy.correction.promise_worth
        text = f"scaling out from {now} to {count} nodes"
        yield Option(
            step=NODES,
            text=text,
            factor=factor,
            cost_s=cost_s,
            act=lambda _: context.decisions.grow(job),
            numbers=numbers,
        )
    elif not any(each.step == NODES_LAUNCHED and each.attempt == attempt.id for each in job.corrections):
        yield from _launch_option(context, assessment, job, group, factor, numbers)
    else:
        yield NoOption(step=NODES, code="launched", text="machines were launched for its other nodes already")


def _launch_option(
    context: PlanContext, assessment: Assessment, job: Job, group: JobGroup, factor: float, numbers: dict[str, Number]
) -> Iterator[Option | NoOption]:
    """Yield a scale-out on new instances, if an offer is within limits.

    The cost is the boot time, in which nothing is saved, and the additional money, converted into seconds at the job's
    present price.
    """
    missing, now = len(missing_ranks(job)), len(_ranks(job))
    offer = cheapest_offer(context, job, group)
    if isinstance(offer, Reason):
        text = f"no other machine has room, and none can be launched: {offer.text}"
        yield NoOption(step=NODES, code=offer.code, text=text)
        return
    boot_s, held_s = offer.instance_type.boot_delay_s, remaining_s(context, assessment) / factor
    machines_usd = missing * offer.price_usd_per_h / 3600 * max(offer.billing_minimum_s, held_s)
    own_usd_per_s = sum(_usd_per_s(context, held) for held in _ranks(job))
    more_s = machines_usd / own_usd_per_s - saved_s(context, assessment, factor) if own_usd_per_s > 0 else 0.0
    cost_s = boot_s * (1.0 - 1.0 / factor) + max(0.0, more_s) / context.policy.correction.promise_worth
    text = f"scaling out from {now} to {missing + now} nodes, {missing} of them on new machines"
    text += f" ({offer_words(offer)}, ready in {seconds(boot_s)})"
    numbers |= {"launched_for": missing, "boot_delay_s": boot_s, "usd": round(machines_usd, 6)}

    def act(_: Reason) -> None:
        """Leave the launch to provisioning, later in this plan."""
        context.decisions.grow(job, on_new_instances=True)

    yield Option(step=NODES_LAUNCHED, text=text, factor=factor, cost_s=cost_s, act=act, numbers=numbers)


def _usd_per_s(context: PlanContext, held: Allocation) -> float:
    instance = context.fleet.instances[context.fleet.index[held.instance_id]]
    return instance.offer.price_usd_per_h * size_share(held.resources, instance.capacity) / 3600


def cheapest_offer(context: PlanContext, job: Job, group: JobGroup) -> Offer | Reason:
    """Return the cheapest available offer for a rank of ``job`` within caps and budgets, or why there is none."""
    refusal: Reason | None = None
    for offer in sorted(context.snapshot.offers, key=lambda each: (each.price_usd_per_h, each.key)):
        fits = bool((vector(offer.instance_type.capacity) + SLACK >= group.demand).all())
        backed_off = any(b.covers(offer) and b.until_at > context.now for b in context.snapshot.backoffs)
        if not fits or backed_off or offer.available == 0 or not job.spec.may_use(offer):
            continue
        if context.policy.allow.refusal(offer) is not None or context.strategy.refusal(offer) is not None:
            continue
        refused = context.ledger.refusal(offer, context.ledger.shares([job], offer.instance_type.capacity))
        if refused is None:
            return offer
        refusal = refusal or refused
    return refusal or Reason(code="no_offer", text="no suitable machine is offered and in stock")


def add_missing_ranks(state: PlacementState, *, behind: bool = False) -> None:
    """Add missing ranks of running incremental jobs where room is left; with ``behind``, only of jobs that miss their
    target, for which booting instances are claimed too."""
    context = state.context
    incomplete, behind_target = context.snapshot.plan_cache.occupancy.incomplete, context.decisions.growing
    growing = [job for job in context.running if job.id in incomplete] if incomplete else []
    excluded = context.decisions.stopping | context.snapshot.unreadable_secrets.keys()
    growing = [job for job in growing if job.id not in excluded and (not behind or job.id in behind_target)]
    for job in sorted(growing, key=queue_key):
        group = context.group_of(job)
        missing = missing_ranks(job)
        if context.suit is not None and job.id not in behind_target:
            present = job.spec.nodes.count - len(missing)
            missing = missing[: context.suit.ranks_wanted(job, max(1, present), job.spec.nodes.count) - present]
        with context.reservations.closed_to_all(_given_up(context, job)):
            places = find_places(state, job, group, 1, len(missing)) if group.state.stuck is None else []
        if places:
            add_place(state, job, group, missing[: len(places)], places)
        if behind:
            context.reservations.keep(*claim(context, group, context.fleet.coming, len(missing) - len(places)))


def _given_up(context: PlanContext, job: Job) -> list[int]:
    """Return the empty rented instances that optional ranks of ``job`` gave up, unless it misses its target: they are
    to be released."""
    fleet, held = context.fleet, job.attempt.allocations if job.attempt is not None else ()
    if job.id in context.decisions.growing:
        return []
    left = {fleet.index[each.instance_id] for each in held if each.yielded_at and each.instance_id in fleet.index}
    return [
        at
        for at in left
        if fleet.placeable[at] and not fleet.holdings[at] and fleet.instances[at].offer.market is not Market.RESERVED
    ]
