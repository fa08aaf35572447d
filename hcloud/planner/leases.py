"""What becomes of machines: renewed, drained, given up. Says of each whether units may be placed on it.

Nothing is concluded from a failed look: silence counts only while the engine answers, and a silent machine is asked to
end but its jobs run again only when the provider confirms it gone. A machine whose renewal no budget has room for is
drained, its units are stopped in time to end within their grace, and it is ended before it expires by itself.

What operators ordered comes first: machines to be destroyed end now, drained ones when nothing runs there any more.

These drains and stops are forced: the machine goes away in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from hcloud.model import FailureCause, Instance, InstanceState, Job, Market, Number, Reason
from hcloud.planner.draft import Draft
from hcloud.planner.ledger import launch_shares
from hcloud.planner.plan import Drain
from hcloud.planner.snapshot import Order
from hcloud.planner.wording import seconds, size_share

STOP_MARGIN_S = 30.0
"""A unit is asked to end this long, plus its own grace, before its machine goes away."""
END_MARGIN_S = 5.0
"""A machine is ended this long before it would power itself off."""


def tend_machines(draft: Draft) -> None:
    """Decide about every live machine; fills in ``fleet.placeable``, ``coming`` and ``hopeful``."""
    for job in draft.waiting:
        for at in (draft.fleet.index[i] for i in job.awaiting if i in draft.fleet.index):
            draft.kept.setdefault(at, []).append(job)
    instances = draft.fleet.instances
    for at in sorted(_not_just_serving(draft), key=lambda at: instances[at].expires_at):
        instance = instances[at]
        order = order_about(draft.snapshot.orders, instance)
        if order is not None and order.destroy:
            _destroy(draft, at, instance, order)
        elif draft.now >= instance.expires_at - END_MARGIN_S:
            _end(draft, at, "lease_ended", f"{instance.id} reaches the end of what is paid for")
        elif instance.state in (InstanceState.REQUESTED, InstanceState.BOOTING):
            if order is None:
                _tend_booting(draft, at, instance)
            else:
                _end(draft, at, "drained", f"{instance.id} is drained by {order.by} before it was ready")
        elif instance.id not in draft.snapshot.reachable:
            _tend_silent(draft, at, instance)
        elif instance.preempt_at is not None:
            _tend_noticed(draft, at, instance, instance.preempt_at)
        else:
            _tend_serving(draft, at, instance, order)


def _not_just_serving(draft: Draft) -> list[int]:
    """Return the machines that something may be to be done about; the others serve on (nearly all do)."""
    if draft.snapshot.orders:
        return draft.fleet.staying
    instances, reachable, others = draft.fleet.instances, draft.snapshot.reachable, list[int]()
    now, renew_before_s, ready = draft.now, draft.policy.lease.renew_before_s, InstanceState.READY
    for at in draft.fleet.staying:
        each = instances[at]
        serves = each.state is ready and each.preempt_at is None and each.id in reachable
        far = each.expires_at - now > renew_before_s and now < each.expires_at - END_MARGIN_S
        if not (serves and far):
            others.append(at)
    for mask in (draft.fleet.placeable, draft.fleet.hopeful):
        mask[draft.fleet.staying] = True
        mask[others] = False
    return others


def order_about(orders: Sequence[Order], instance: Instance) -> Order | None:
    """Return the strictest order that covers ``instance``: to end it, else the one with the earliest deadline."""
    if not orders:
        return None
    covering = (order for order in orders if order.covers(instance))
    return min(covering, key=lambda each: (not each.destroy, each.deadline_at or inf, each.ordered_at), default=None)


def _destroy(draft: Draft, at: int, instance: Instance, order: Order) -> None:
    text = f"{order.by} ordered {instance.id} to end at once"
    reason = Reason(code="destroyed", text=text, numbers={"units": len(draft.fleet.holdings[at])})
    for job in draft.running_on(at):  # so that their end is read as what it was, and they run again elsewhere
        draft.stop(job, FailureCause.EVICTED, reason)
    draft.ledger.let_go(instance)
    draft.terminate(at, reason, ordered=True)


def _end(draft: Draft, at: int, code: str, text: str, **numbers: Number) -> None:
    draft.terminate(at, Reason(code=code, text=text, numbers=numbers))


def _answering_since(draft: Draft, at: float) -> float:
    return max(at, draft.snapshot.engine_reachable_since)


def _tend_booting(draft: Draft, at: int, instance: Instance) -> None:
    limit_s = draft.policy.boot.timeout_s
    # The provider's clock may be behind ours: no machine is older than our wish for it.
    waited_s = draft.now - _answering_since(draft, max(instance.requested_at, instance.launched_at or 0.0))
    booting = instance.state is InstanceState.BOOTING
    if booting and instance.preempt_at is not None:
        _end(draft, at, "preempt_notice", f"{instance.id} is to be taken back before it was ready")
    elif booting and draft.snapshot.engine_reachable and waited_s > limit_s:
        text = (
            f"the worker of {instance.id} has not registered {seconds(waited_s)} after launch; limit {seconds(limit_s)}"
        )
        _end(draft, at, "never_registered", text, waited_s=round(waited_s, 3), limit_s=limit_s)
    else:
        draft.fleet.coming[at] = draft.fleet.hopeful[at] = True


def _tend_silent(draft: Draft, at: int, instance: Instance) -> None:
    draft.fleet.hopeful[at] = instance.state is InstanceState.READY and instance.preempt_at is None
    if not draft.snapshot.engine_reachable:
        return
    last_at = instance.seen_at or instance.ready_at or instance.launched_at or instance.requested_at
    silent_s, limit_s = draft.now - _answering_since(draft, last_at), draft.policy.unreachable.terminate_after_s
    if silent_s > limit_s:
        units = len(draft.fleet.holdings[at])
        text = f"{instance.id} has been silent for {seconds(silent_s)}; limit {seconds(limit_s)}; {units} unit(s) on it"
        _end(draft, at, "unreachable", text, silent_s=round(silent_s, 3), limit_s=limit_s, units=units)


def _tend_noticed(draft: Draft, at: int, instance: Instance, preempt_at: float) -> None:
    left_s = preempt_at - draft.now
    text = f"{instance.id} is to be taken back in {seconds(max(0.0, left_s))}"
    if not draft.fleet.holdings[at]:
        _end(draft, at, "preempt_notice", f"{text}; nothing runs there", left_s=round(left_s, 3))
        return
    reason = Reason(code="preempt_notice", text=text, numbers={"left_s": round(left_s, 3)})
    _drain(draft, instance, reason)
    for job in draft.running_on(at):
        if job.spec.interruptible:
            _stop_in_time(draft, job, preempt_at, FailureCause.PREEMPTED, reason)


def _drain(draft: Draft, instance: Instance, reason: Reason) -> None:
    if instance.state is InstanceState.READY:
        draft.add(Drain(instance_id=instance.id, reason=reason))


def _stop_in_time(draft: Draft, job: Job, ends_at: float, cause: FailureCause, why: Reason) -> None:
    if ends_at - draft.now <= job.spec.stop_grace_s + STOP_MARGIN_S:
        numbers: dict[str, Number] = {**why.numbers, "grace_s": job.spec.stop_grace_s}
        text = f"{why.text}; stopped now to end within its grace of {seconds(job.spec.stop_grace_s)}"
        draft.stop(job, cause, Reason(code=why.code, text=text, numbers=numbers))


def _obey_drain(draft: Draft, at: int, instance: Instance, order: Order) -> None:
    """Place nothing more on ``instance``; stop what runs there in time for the order's deadline."""
    ends_at = order.deadline_at
    text = f"{instance.id} is drained by {order.by}"
    text += f", until in {seconds(max(0.0, ends_at - draft.now))}" if ends_at is not None else "; what runs may end"
    reason = Reason(code="drained_by_order", text=text, numbers={"by": order.by, "deadline_at": ends_at})
    _drain(draft, instance, reason)
    for job in draft.running_on(at) if ends_at is not None else ():
        _stop_in_time(draft, job, ends_at or draft.now, FailureCause.EVICTED, reason)


def _tend_serving(draft: Draft, at: int, instance: Instance, order: Order | None) -> None:
    draining, left_s = instance.state is InstanceState.DRAINING, instance.expires_at - draft.now
    if order is not None and draft.fleet.holdings[at]:
        _obey_drain(draft, at, instance, order)
    draining = draining or order is not None
    if draining and not draft.fleet.holdings[at]:
        _end(draft, at, "drained", f"{instance.id} was drained and nothing runs there any more")
    elif left_s > draft.policy.lease.renew_before_s:
        draft.fleet.placeable[at] = draft.fleet.hopeful[at] = not draining
    elif draining and not draft.running_on(at):
        draft.ledger.let_go(instance)
    elif (overdue := _only_overdue(draft, at)) is not None:
        draft.ledger.let_go(instance)
        _drain(draft, instance, overdue)
    else:
        _tend_lease(draft, at, instance, draining, ordered=order is not None)


def _only_overdue(draft: Draft, at: int) -> Reason | None:
    """Return why a machine is not to be renewed on which nothing is but units that were asked to end, and should have
    long ago: nobody is to pay for them without an end."""
    held, instance = draft.fleet.holdings[at], draft.fleet.instances[at]
    if not held or at in draft.kept or draft.running_on(at) or instance.offer.market is Market.RESERVED:
        return None
    # While the engine was away nobody was told to end: their grace begins when it is back.
    late_s = draft.now - max(_gone_at(draft, job, draft.snapshot.engine_reachable_since) for job, _ in held)
    if late_s < 0.0:
        return None
    text = f"{instance.id} is not renewed: what is on it was asked to end, and is late by {seconds(late_s)}"
    return Reason(code="will_not_end", text=text, numbers={"late_s": round(late_s, 3), "units": len(held)})


def _gone_at(draft: Draft, job: Job, since: float = 0.0) -> float:
    """Return when the units of a job that was asked to end should be gone, if they were told ``since`` then at the
    earliest."""
    asked_at = job.attempt.stop_requested_at if job.attempt is not None else None
    return max(asked_at or draft.now, since) + job.spec.stop_grace_s + END_MARGIN_S


def _tend_lease(draft: Draft, at: int, instance: Instance, draining: bool, *, ordered: bool) -> None:
    """Renew ``instance`` for those who can pay, or let it go."""
    if not draft.fleet.holdings[at] and not _wanted_idle(draft, at, instance):
        draft.lazy.add(at)
        draft.fleet.placeable[at] = draft.fleet.hopeful[at] = True
        return
    refusal = renew_for_payers(draft, at)
    if refusal is not None:
        if draft.fleet.holdings[at]:
            _let_go(draft, at, instance, refusal)
        else:
            let_idle_go(draft, at, refusal)
        return
    if draining and not ordered and not _misbehaved(draft, instance):
        reason = Reason(code="renewed", text=f"the budget has room for {instance.id} again")
        draft.add(Drain(instance_id=instance.id, reason=reason, undo=True))
        draining = False
    draft.fleet.placeable[at] = draft.fleet.hopeful[at] = not draining


def _misbehaved(draft: Draft, instance: Instance) -> bool:
    """Whether it was drained for good: it delivered too little."""
    delivered = draft.snapshot.recent.delivered.get(instance.id, 1.0)
    return delivered < draft.policy.retention.release_below_quality


def _wanted_idle(draft: Draft, at: int, instance: Instance) -> bool:
    return at in draft.kept or not idle_too_long(draft, instance)


def renew_for_payers(draft: Draft, at: int) -> Reason | None:
    """Renew machine ``at``; return why not. Units of users whose own limit has no room are stopped, the others stay: it
    is renewed when those are gone."""
    instance, shares = draft.fleet.instances[at], _holders_shares(draft, at)
    waiters = draft.kept.get(at, [])
    awaited = launch_shares(waiters, instance.capacity) if waiters and not shares else {}
    unfunded: dict[str, Reason] = {}
    while True:
        refusal = draft.ledger.renewal_refusal(instance, draft.renewed_until_at, shares or awaited)
        if refusal is None:
            break
        reason, user = refusal
        if not user or len(shares) <= 1:
            return reason
        unfunded[user] = reason
        del shares[user]
    for job in draft.running_on(at):
        if job.spec.user in unfunded:
            draft.stop(job, FailureCause.EVICTED, unfunded[job.spec.user])
    if _who_cannot_pay_is_leaving(draft, at):
        return None
    # Who was asked to end holds it as well until that is known: their users' other jobs do not spend that money.
    ending, _ = _ending_shares(draft, at)
    held = {user: shares.get(user, 0.0) + ending.get(user, 0.0) for user in [*shares, *ending]}
    draft.ledger.book_renewal(instance, draft.renewed_until_at, held, waiters if awaited else ())
    draft.renew(at)
    return None


def _ending_shares(draft: Draft, at: int) -> tuple[dict[str, float], float]:
    """Return the parts of a machine that units hold which were asked to end, by user, and when all should be gone."""
    instance, shares, gone_at = draft.fleet.instances[at], dict[str, float](), draft.now
    for job, held in draft.fleet.holdings[at]:
        if job.id in draft.stopping:
            gone_at = max(gone_at, _gone_at(draft, job, draft.snapshot.engine_reachable_since))
            part = size_share(held.resources, instance)
            shares[job.spec.user] = shares.get(job.spec.user, 0.0) + part
    return shares, gone_at


def _who_cannot_pay_is_leaving(draft: Draft, at: int) -> bool:
    """Return whether users of units that were asked to end could not pay for the renewal, and there is time to wait for
    these ends: if this daemon dies, who is on a renewed machine holds it until it expires."""
    instance, (shares, gone_at) = draft.fleet.instances[at], _ending_shares(draft, at)
    if draft.now >= gone_at or instance.expires_at - draft.now <= 2.0 * END_MARGIN_S:
        return False
    return draft.ledger.stay_refusal(instance, draft.renewed_until_at, shares) is not None


def _holders_shares(draft: Draft, at: int) -> dict[str, float]:
    shares: dict[str, float] = {}
    for job, held in draft.fleet.holdings[at]:
        if job.id not in draft.stopping:
            part = size_share(held.resources, draft.fleet.instances[at])
            shares[job.spec.user] = shares.get(job.spec.user, 0.0) + part
    return shares


def let_idle_go(draft: Draft, at: int, refusal: Reason) -> None:
    """End an idle machine that cannot be renewed."""
    instance = draft.fleet.instances[at]
    draft.ledger.let_go(instance)
    draft.terminate(at, _not_renewed(draft, instance, refusal))


def _not_renewed(draft: Draft, instance: Instance, refusal: Reason) -> Reason:
    left_s = instance.expires_at - draft.now
    text = f"{instance.id} expires in {seconds(left_s)} and cannot be renewed: {refusal.text}"
    return Reason(code="not_renewed", text=text, numbers={**refusal.numbers, "left_s": round(left_s, 3)})


def _let_go(draft: Draft, at: int, instance: Instance, refusal: Reason) -> None:
    """Drain a busy machine that cannot be renewed, and stop its units in time."""
    draft.ledger.let_go(instance)
    reason = _not_renewed(draft, instance, refusal)
    _drain(draft, instance, reason)
    for job in draft.running_on(at):
        _stop_in_time(draft, job, instance.expires_at, FailureCause.EVICTED, reason)


def idle_too_long(draft: Draft, instance: Instance) -> bool:
    """Return whether an idle machine has been kept as long as the policy says. Reserved ones are paid anyway: kept."""
    return idle_as_long_as(draft, instance, draft.policy.retention.keep_idle_s(instance.retention_s))


def idle_as_long_as(draft: Draft, instance: Instance, keep_s: float) -> bool:
    """Return whether an idle machine that is paid for by use has been so for ``keep_s``; if not, note when it will."""
    if instance.offer.market is Market.RESERVED:
        return False
    left_s = keep_s - idle_for_s(draft, instance)
    if left_s > 0.0:
        draft.next_release_at = min(draft.next_release_at, draft.now + left_s)
    return left_s <= 0.0


def idle_for_s(draft: Draft, instance: Instance) -> float:
    """Return how long ``instance`` has had nothing to do."""
    since = instance.idle_since or instance.ready_at or instance.launched_at or draft.now
    return max(0.0, draft.now - since)
