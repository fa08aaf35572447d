"""Which machines are let go: idle ones after a multiple of their spin-up time, misbehaving ones at once (HCloud §8.3).

A machine misbehaves when it delivered clearly less than machines of its type usually do, by what its jobs achieved of
what was predicted for them, or when no unit could ever be started on it (``Recent.delivered``). It is drained, so that
no more jobs are put there, and ended when those it has are done.
"""

from __future__ import annotations

from hcloud.model import InstanceState, Market, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.fleet import SLACK
from hcloud.planner.leases import idle_for_s, idle_too_long
from hcloud.planner.plan import Drain
from hcloud.planner.wording import seconds


def is_idle(context: PlanContext, at: int) -> bool:
    """Return whether machine ``at`` answers, stays, and this plan has no use for it."""
    return bool(
        context.fleet.instances[at].state is InstanceState.READY
        and context.fleet.placeable[at]
        and not context.fleet.holdings[at]
        and context.fleet.load[at] <= SLACK  # this plan may have just placed something there
        and at not in context.used
    )


def release_degraded(context: PlanContext) -> None:
    """Drain or end machines that delivered too little; reserved ones stay, they are paid for in any case."""
    limit = context.policy.retention.release_below_quality
    index, below = (
        context.fleet.index,
        [name for name, part in context.snapshot.fleet_stats.delivered.items() if part < limit],
    )
    for at in sorted([index[name] for name in below if name in index]):
        if not context.fleet.placeable[at] or not is_degraded(context, at):
            continue
        instance, delivered = (
            context.fleet.instances[at],
            context.snapshot.fleet_stats.delivered[context.fleet.instances[at].id],
        )
        text = f"{instance.id} delivered {delivered:.0%} of what its type usually does; at least {limit:.0%} is wanted"
        reason = Reason(
            code="misbehaved", text=text, numbers={"delivered": round(delivered, 4), "release_below": limit}
        )
        if not context.fleet.holdings[at]:
            context.terminate(at, reason)
        elif instance.state is InstanceState.READY:
            context.fleet.placeable[at] = context.fleet.hopeful[at] = False
            context.add(Drain(instance_id=instance.id, reason=reason))


def is_degraded(context: PlanContext, at: int) -> bool:
    """Return whether machine ``at`` is rented and delivered less than the policy wants."""
    instance = context.fleet.instances[at]
    delivered = context.snapshot.fleet_stats.delivered.get(instance.id, 1.0)
    rented = instance.offer.market is not Market.RESERVED
    return rented and delivered < context.policy.retention.release_below_quality


def release_idle(context: PlanContext) -> None:
    """End machines idle beyond their retention, longest idle first; reserved ones are paid anyway, and kept."""
    unused = context.fleet.placeable & (context.fleet.load <= SLACK) & ~context.fleet.reserved
    idle = [at for at in unused.nonzero()[0].tolist() if is_idle(context, at)]
    for at in sorted(idle, key=lambda at: -idle_for_s(context, context.fleet.instances[at])):
        instance = context.fleet.instances[at]
        if not idle_too_long(context, instance):
            continue
        idle_s = idle_for_s(context, instance)
        keep_s = context.policy.retention.keep_idle_s(instance.retention_s)
        text = f"{instance.id} has been idle for {seconds(idle_s)}; such machines are kept {seconds(keep_s)}"
        numbers = {"idle_s": round(idle_s, 3), "keep_s": keep_s, "spin_up_s": instance.retention_s}
        context.terminate(at, Reason(code="idle", text=text, numbers=numbers))
