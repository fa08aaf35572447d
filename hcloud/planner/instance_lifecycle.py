"""Decide about live instances: renew, drain or terminate, and mark on which ones units may be placed.

Operators' directives come first: destroyed instances are terminated now, drained ones once they are empty. A failed
poll proves nothing: silence counts only while the engine answers. A silent instance is terminated, but its jobs run
again only when the provider confirms it is gone. An instance is drained if no budget can renew its lease; its units are
stopped in time for their grace, and it is terminated before it expires. These drains and stops are not limited by the
disruption policy, because the instance goes away in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from hcloud.core.budget_scope import TOTAL, BudgetScope
from hcloud.core.model import Allocation, FailureCause, Instance, InstanceState, Job, Market, Number, Reason
from hcloud.forecast.reuse_times import best_keep_s
from hcloud.planner.budget import job_scopes, launch_shares
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import SLACK
from hcloud.planner.plan import Drain
from hcloud.planner.scheduled_runs import kept_for_schedules
from hcloud.planner.snapshot import Directive
from hcloud.planner.text import seconds, size_share
from hcloud.spec.validation import counted

STOP_MARGIN_S = 30.0
"""Units are asked to stop this long, plus their own grace, before their instance goes away."""
END_MARGIN_S = 5.0
"""An instance is terminated this long before it would power itself off."""


def reconcile_instances(context: PlanContext) -> None:
    """Decide about every live instance; sets ``fleet.placeable``, ``coming`` and ``hopeful``."""
    for job in context.waiting.single:
        for at in (context.fleet.index[i] for i in job.awaiting if i in context.fleet.index):
            context.reservations.await_instance(at, job)
    instances = context.fleet.instances
    for at in sorted(_needing_attention(context), key=lambda at: instances[at].expires_at):
        instance = instances[at]
        directive = directive_for(context.snapshot.directives, instance)
        if directive is not None and directive.destroy:
            _destroy(context, at, instance, directive)
        elif context.now >= instance.expires_at - END_MARGIN_S:
            _terminate(context, at, "lease_ended", f"lease of {instance.id} expired")
        elif instance.state in (InstanceState.REQUESTED, InstanceState.BOOTING):
            if directive is None:
                _check_booting(context, at, instance)
            else:
                _terminate(context, at, "drained", f"{instance.id} drained by {directive.by} before it was ready")
        elif instance.id not in context.snapshot.reachable:
            _check_unreachable(context, at, instance)
        elif instance.preempt_at is not None:
            _drain_preempted(context, at, instance, instance.preempt_at)
        else:
            _check_serving(context, at, instance, directive)


def _needing_attention(context: PlanContext) -> list[int]:
    """Return the instances that may need an action. All others, which are nearly all, are marked placeable."""
    if context.snapshot.directives:
        return context.fleet.staying
    instances, reachable, others = context.fleet.instances, context.snapshot.reachable, list[int]()
    now, renew_before_s, ready = context.now, context.policy.lease.renew_before_s, InstanceState.READY
    for at in context.fleet.staying:
        each = instances[at]
        serves = each.state is ready and each.preempt_at is None and each.id in reachable
        far = each.expires_at - now > renew_before_s and now < each.expires_at - END_MARGIN_S
        if not (serves and far):
            others.append(at)
    context.fleet.set_placeable_but(others)
    return others


def directive_for(directives: Sequence[Directive], instance: Instance) -> Directive | None:
    """Return the strictest directive for ``instance``: one to destroy it, else the one with the earliest deadline."""
    if not directives:
        return None
    covering = (directive for directive in directives if directive.covers(instance))
    return min(covering, key=lambda each: (not each.destroy, each.deadline_at or inf, each.ordered_at), default=None)


def _destroy(context: PlanContext, at: int, instance: Instance, directive: Directive) -> None:
    text = f"{instance.id} destroyed by {directive.by}"
    reason = Reason(code="destroyed", text=text, numbers={"units": len(context.fleet.holdings[at])})
    for job in context.running_on(at):  # so that their end is recorded as an eviction, and they run again elsewhere
        context.decisions.stop(job, FailureCause.EVICTED, reason)
    context.ledger.exclude_from_renewal(instance)
    context.terminate(at, reason, ordered=True)


def _terminate(context: PlanContext, at: int, code: str, text: str, **numbers: Number) -> None:
    context.terminate(at, Reason(code=code, text=text, numbers=numbers))


def _answering_since(context: PlanContext, at: float) -> float:
    return max(at, context.snapshot.engine_reachable_since)


def _check_booting(context: PlanContext, at: int, instance: Instance) -> None:
    limit_s = context.policy.boot.timeout_s
    # The provider's clock may be behind ours: no instance is older than our request for it.
    waited_s = context.now - _answering_since(context, max(instance.requested_at, instance.launched_at or 0.0))
    booting = instance.state is InstanceState.BOOTING
    if booting and instance.preempt_at is not None:
        _terminate(context, at, "preempt_notice", f"{instance.id} preempted before it was ready")
    elif booting and context.snapshot.engine_reachable and waited_s > limit_s:
        text = f"{instance.id} failed to start: no worker after {seconds(waited_s)} (limit {seconds(limit_s)})"
        _terminate(context, at, "never_registered", text, waited_s=round(waited_s, 3), limit_s=limit_s)
    else:
        context.fleet.set_coming(at)


def _check_unreachable(context: PlanContext, at: int, instance: Instance) -> None:
    context.fleet.set_hopeful(at, instance.state is InstanceState.READY and instance.preempt_at is None)
    if not context.snapshot.engine_reachable:
        return
    last_at = instance.seen_at or instance.ready_at or instance.launched_at or instance.requested_at
    silent_s, limit_s = context.now - _answering_since(context, last_at), context.policy.unreachable.terminate_after_s
    if silent_s > limit_s:
        units = len(context.fleet.holdings[at])
        text = f"{instance.id} lost: no contact for {seconds(silent_s)} (limit {seconds(limit_s)})"
        text += f", {counted(units, 'unit')} on it"
        _terminate(context, at, "unreachable", text, silent_s=round(silent_s, 3), limit_s=limit_s, units=units)


def _drain_preempted(context: PlanContext, at: int, instance: Instance, preempt_at: float) -> None:
    left_s = preempt_at - context.now
    text = f"{instance.id} will be preempted in {seconds(max(0.0, left_s))}"
    if not context.fleet.holdings[at]:
        _terminate(context, at, "preempt_notice", f"{text}; no unit runs there", left_s=round(left_s, 3))
        return
    reason = Reason(code="preempt_notice", text=text, numbers={"left_s": round(left_s, 3)})
    _drain(context, instance, reason)
    for job in context.running_on(at):
        if job.spec.interruptible:
            _stop_in_time(context, job, preempt_at, FailureCause.PREEMPTED, reason)


def _drain(context: PlanContext, instance: Instance, reason: Reason) -> None:
    if instance.state is InstanceState.READY:
        context.decisions.add(Drain(instance_id=instance.id, reason=reason))


def _stop_in_time(context: PlanContext, job: Job, ends_at: float, cause: FailureCause, why: Reason) -> None:
    if ends_at - context.now <= job.spec.stop_grace_s + STOP_MARGIN_S:
        numbers: dict[str, Number] = {**why.numbers, "grace_s": job.spec.stop_grace_s}
        text = f"{why.text}; stopping with a grace of {seconds(job.spec.stop_grace_s)}"
        context.decisions.stop(job, cause, Reason(code=why.code, text=text, numbers=numbers))


def _drain_by_order(context: PlanContext, at: int, instance: Instance, directive: Directive) -> None:
    """Place nothing more on ``instance``; stop its units in time for the directive's deadline."""
    ends_at = directive.deadline_at
    text = f"{instance.id} drained by {directive.by}"
    text += (
        f"; units are stopped in {seconds(max(0.0, ends_at - context.now))}"
        if ends_at is not None
        else "; running units may finish"
    )
    reason = Reason(code="drained_by_order", text=text, numbers={"by": directive.by, "deadline_at": ends_at})
    _drain(context, instance, reason)
    for job in context.running_on(at) if ends_at is not None else ():
        _stop_in_time(context, job, ends_at or context.now, FailureCause.EVICTED, reason)


def _check_serving(context: PlanContext, at: int, instance: Instance, directive: Directive | None) -> None:
    draining, left_s = instance.state is InstanceState.DRAINING, instance.expires_at - context.now
    if directive is not None and context.fleet.holdings[at]:
        _drain_by_order(context, at, instance, directive)
    draining = draining or directive is not None
    if draining and not context.fleet.holdings[at]:
        _terminate(context, at, "drained", f"{instance.id} is drained and empty")
    elif left_s > context.policy.lease.renew_before_s:
        context.fleet.set_placeable(at, not draining)
    elif draining and not context.running_on(at):
        context.ledger.exclude_from_renewal(instance)
    elif (overdue := _overdue_reason(context, at)) is not None:
        context.ledger.exclude_from_renewal(instance)
        _drain(context, instance, overdue)
    else:
        _renew_or_drain(context, at, instance, draining, ordered=directive is not None)


def _overdue_reason(context: PlanContext, at: int) -> Reason | None:
    """Return why not to renew an instance if all its units should have stopped long ago, else None. Otherwise such
    units would be paid for without end."""
    held, instance = context.fleet.holdings[at], context.fleet.instances[at]
    if (
        not held
        or at in context.reservations.awaited
        or context.running_on(at)
        or instance.offer.market is Market.RESERVED
    ):
        return None
    # Units cannot receive a stop while the engine is away: their grace begins when it is back.
    late_s = context.now - max(_stopped_at(context, job, context.snapshot.engine_reachable_since) for job, _ in held)
    if late_s < 0.0:
        return None
    text = f"lease of {instance.id} not renewed: its units should have stopped {seconds(late_s)} ago"
    return Reason(code="will_not_end", text=text, numbers={"late_s": round(late_s, 3), "units": len(held)})


def _stopped_at(context: PlanContext, job: Job, since: float = 0.0) -> float:
    asked_at = job.attempt.stop_requested_at if job.attempt is not None else None
    return max(asked_at or context.now, since) + job.spec.stop_grace_s + END_MARGIN_S


def _renew_or_drain(context: PlanContext, at: int, instance: Instance, draining: bool, *, ordered: bool) -> None:
    """Renew the lease of ``instance`` for the users who can pay, or drain or terminate it."""
    is_unused = not context.fleet.holdings[at] and at not in context.reservations.awaited
    if is_unused and idle_too_long(context, instance) and at not in kept_for_schedules(context, _empty(context)):
        context.reservations.renew_if_used(at)
        context.fleet.set_placeable(at, True)
        return
    refusal = renew_for_payers(context, at)
    if refusal is not None and not context.fleet.holdings[at]:
        terminate_unrenewed(context, at, refusal)
        return
    if refusal is not None:
        context.ledger.exclude_from_renewal(instance)
        reason = _not_renewed(context, instance, refusal)
        _drain(context, instance, reason)
        for job in context.running_on(at):
            _stop_in_time(context, job, instance.expires_at, FailureCause.EVICTED, reason)
        return
    if draining and not ordered and instance.id not in context.snapshot.fleet_stats.broken:
        reason = Reason(code="renewed", text=f"{instance.id} undrained: the budget has room for its lease again")
        context.decisions.add(Drain(instance_id=instance.id, reason=reason, undo=True))
        draining = False
    context.fleet.set_placeable(at, not draining)


def renew_for_payers(context: PlanContext, at: int) -> Reason | None:
    """Renew instance ``at``, or return why not.

    Units of users and tags whose own limit is exhausted are stopped, and the others stay; the lease is renewed once
    those units are gone.
    """
    instance = context.fleet.instances[at]
    staying = [pair for pair in context.fleet.holdings[at] if pair[0].id not in context.decisions.stopping]
    awaiting = context.reservations.awaited.get(at, [])
    awaited = launch_shares(awaiting, instance.capacity) if awaiting and not staying else {}
    unfunded: dict[BudgetScope, Reason] = {}
    while True:
        shares = _shares_of(staying, instance)
        refusal = context.ledger.renewal_refusal(instance, context.renewed_until_at, shares or awaited)
        if refusal is None:
            break
        reason, scope = refusal
        staying = [pair for pair in staying if scope not in job_scopes(pair[0])]
        if scope == TOTAL or not staying:
            return reason
        unfunded[scope] = reason
    for job in context.running_on(at):
        why = next((unfunded[scope] for scope in job_scopes(job) if scope in unfunded), None)
        if why is not None:
            context.decisions.stop(job, FailureCause.EVICTED, why)
    if _unfunded_units_are_stopping(context, at):
        return None
    # A stopping unit is still charged to its scopes, so that their other jobs do not spend that money.
    ending, _ = _stopping_shares(context, at)
    held = {scope: shares.get(scope, 0.0) + ending.get(scope, 0.0) for scope in [*shares, *ending]}
    context.ledger.book_renewal(instance, context.renewed_until_at, held, awaiting if awaited else ())
    context.renew(at)
    return None


def _stopping_shares(context: PlanContext, at: int) -> tuple[dict[BudgetScope, float], float]:
    """Return by scope the shares of an instance held by stopping units, and when all of them should be gone."""
    stopping = [pair for pair in context.fleet.holdings[at] if pair[0].id in context.decisions.stopping]
    since = context.snapshot.engine_reachable_since
    gone_at = max([context.now, *(_stopped_at(context, job, since) for job, _ in stopping)])
    return _shares_of(stopping, context.fleet.instances[at]), gone_at


def _unfunded_units_are_stopping(context: PlanContext, at: int) -> bool:
    """Return whether to wait for stopping units whose scopes cannot pay for the renewal.

    If this daemon dies, units on a renewed instance hold it until it expires. So the lease is renewed only once they
    are gone, or when no time is left.
    """
    instance, (shares, gone_at) = context.fleet.instances[at], _stopping_shares(context, at)
    if context.now >= gone_at or instance.expires_at - context.now <= 2.0 * END_MARGIN_S:
        return False
    return context.ledger.stay_refusal(instance, context.renewed_until_at, shares) is not None


def _shares_of(units: Sequence[tuple[Job, Allocation]], instance: Instance) -> dict[BudgetScope, float]:
    """Return by scope the shares of an instance that units hold."""
    shares: dict[BudgetScope, float] = {}
    for job, held in units:
        part = size_share(held.resources, instance)
        for scope in job_scopes(job):
            shares[scope] = shares.get(scope, 0.0) + part
    return shares


def terminate_unrenewed(context: PlanContext, at: int, refusal: Reason) -> None:
    """Terminate an idle instance that cannot be renewed."""
    instance = context.fleet.instances[at]
    context.ledger.exclude_from_renewal(instance)
    context.terminate(at, _not_renewed(context, instance, refusal))


def _not_renewed(context: PlanContext, instance: Instance, refusal: Reason) -> Reason:
    left_s = instance.expires_at - context.now
    text = f"lease of {instance.id} ends in {seconds(left_s)} and cannot be renewed: {refusal.text}"
    return Reason(code="not_renewed", text=text, numbers={**refusal.numbers, "left_s": round(left_s, 3)})


def idle_too_long(context: PlanContext, instance: Instance) -> bool:
    """Return whether an idle instance is past its retention. Reserved instances are paid for anyway and kept."""
    return idle_as_long_as(context, instance, keep_idle_s(context, instance))


def keep_idle_s(context: PlanContext, instance: Instance) -> float:
    """Return for how many seconds to keep ``instance`` idle: for as long as it pays on average, by how soon others of
    its type were needed again, or else as the policy says."""
    retention, boot_s = context.policy.retention, instance.retention_s
    if not retention.learn:
        return retention.keep_idle_s(boot_s)
    pays_s = best_keep_s(_reused_s(context, instance), retention.spin_up_multiple * boot_s)
    return retention.within_limits_s(pays_s)


def _reused_s(context: PlanContext, instance: Instance) -> Sequence[float]:
    offer = instance.offer
    return context.snapshot.fleet_stats.reuse.of((offer.provider, offer.instance_type.name))


def idle_as_long_as(context: PlanContext, instance: Instance, keep_s: float) -> bool:
    """Return whether an idle instance, unless reserved, has been idle for ``keep_s``; if not, note when it will be."""
    if instance.offer.market is Market.RESERVED:
        return False
    left_s = keep_s - idle_for_s(context, instance)
    if left_s > 0.0:
        context.decisions.release_due(context.now + left_s)
    return left_s <= 0.0


def idle_for_s(context: PlanContext, instance: Instance) -> float:
    """Return for how many seconds ``instance`` has been idle."""
    since = instance.idle_since or instance.ready_at or instance.launched_at or context.now
    return max(0.0, context.now - since)


def is_idle(context: PlanContext, at: int) -> bool:
    """Return whether instance ``at`` is READY, empty, and unused by this plan."""
    return bool(
        context.fleet.instances[at].state is InstanceState.READY
        and context.fleet.placeable[at]
        and not context.fleet.holdings[at]
        and context.fleet.load[at] <= SLACK  # this plan may have placed a unit there just now
        and at not in context.reservations.used
    )


def release_broken(context: PlanContext) -> None:
    """Drain or terminate instances on which no unit starts. Reserved ones stay, because they are paid for anyway."""
    index = context.fleet.index
    for at in sorted([index[name] for name in context.snapshot.fleet_stats.broken if name in index]):
        instance = context.fleet.instances[at]
        if not context.fleet.placeable[at] or instance.offer.market is Market.RESERVED:
            continue
        reason = Reason(code="misbehaved", text=f"no unit could be started on {instance.id}")
        if not context.fleet.holdings[at]:
            context.terminate(at, reason)
        elif instance.state is InstanceState.READY:
            context.fleet.set_placeable(at, False)
            context.decisions.add(Drain(instance_id=instance.id, reason=reason))


def _empty(context: PlanContext) -> list[int]:
    """Return the instances that could take a job and hold nothing."""
    instances, holdings = context.fleet.instances, context.fleet.holdings
    return [at for at in context.fleet.staying if instances[at].state is InstanceState.READY and not holdings[at]]


def _empty_reserved(context: PlanContext) -> list[int]:
    return [at for at in _empty(context) if context.fleet.reserved[at]]


def release_idle(context: PlanContext) -> None:
    """Terminate instances idle beyond their retention, longest idle first. Reserved ones are kept."""
    unused = context.fleet.placeable & (context.fleet.load <= SLACK) & ~context.fleet.reserved
    idle = [at for at in unused.nonzero()[0].tolist() if is_idle(context, at)]
    kept = kept_for_schedules(context, [*idle, *_empty_reserved(context)]) if idle else {}
    for at in sorted(idle, key=lambda at: -idle_for_s(context, context.fleet.instances[at])):
        instance = context.fleet.instances[at]
        if not idle_too_long(context, instance):
            continue
        if at in kept:
            context.decisions.release_due(kept[at].due_at)
            continue
        idle_s = idle_for_s(context, instance)
        keep_s = keep_idle_s(context, instance)
        text = f"{instance.id} idle for {seconds(idle_s)}; retention is {seconds(keep_s)}"
        numbers = {"idle_s": round(idle_s, 3), "keep_s": round(keep_s, 3), "spin_up_s": instance.retention_s}
        reused_s = _reused_s(context, instance) if context.policy.retention.learn else ()
        if reused_s:
            soon = sum(each <= keep_s for each in reused_s)
            text += f", as {soon} of {len(reused_s)} idle machines were needed again by then"
            numbers |= {"seen": len(reused_s), "seen_by_then": soon}
        context.terminate(at, Reason(code="idle", text=text, numbers=numbers))
