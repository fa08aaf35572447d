"""Which machines are let go: idle ones after a multiple of their spin-up time, misbehaving ones at once (HCloud §8.3).

A machine misbehaves when it delivered clearly less than machines of its type usually do, by what its jobs achieved of
what was predicted for them, or when no unit could ever be started on it (``Recent.delivered``). It is drained, so that
no more jobs are put there, and ended when those it has are done.
"""

from __future__ import annotations

from hcloud.model import InstanceState, Market, Reason
from hcloud.planner.draft import Draft
from hcloud.planner.fleet import SLACK
from hcloud.planner.leases import idle_for_s, idle_too_long
from hcloud.planner.plan import Drain
from hcloud.planner.wording import seconds


def is_idle(draft: Draft, at: int) -> bool:
    """Return whether machine ``at`` answers, stays, and this plan has no use for it."""
    return bool(
        draft.fleet.instances[at].state is InstanceState.READY
        and draft.fleet.placeable[at]
        and not draft.fleet.holdings[at]
        and draft.fleet.load[at] <= SLACK  # this plan may have just placed something there
        and at not in draft.used
    )


def let_misbehaving_go(draft: Draft) -> None:
    """Drain or end machines that delivered too little; reserved ones stay, they are paid for in any case."""
    limit = draft.policy.retention.release_below_quality
    index, below = draft.fleet.index, [name for name, part in draft.snapshot.recent.delivered.items() if part < limit]
    for at in sorted([index[name] for name in below if name in index]):
        if not draft.fleet.placeable[at] or not misbehaves(draft, at):
            continue
        instance, delivered = draft.fleet.instances[at], draft.snapshot.recent.delivered[draft.fleet.instances[at].id]
        text = f"{instance.id} delivered {delivered:.0%} of what its type usually does; at least {limit:.0%} is wanted"
        reason = Reason(
            code="misbehaved", text=text, numbers={"delivered": round(delivered, 4), "release_below": limit}
        )
        if not draft.fleet.holdings[at]:
            draft.terminate(at, reason)
        elif instance.state is InstanceState.READY:
            draft.fleet.placeable[at] = draft.fleet.hopeful[at] = False
            draft.add(Drain(instance_id=instance.id, reason=reason))


def misbehaves(draft: Draft, at: int) -> bool:
    """Return whether machine ``at`` is rented and delivered less than the policy wants."""
    instance = draft.fleet.instances[at]
    delivered = draft.snapshot.recent.delivered.get(instance.id, 1.0)
    rented = instance.offer.market is not Market.RESERVED
    return rented and delivered < draft.policy.retention.release_below_quality


def release_idle(draft: Draft) -> None:
    """End machines idle beyond their retention, longest idle first; reserved ones are paid anyway, and kept."""
    unused = draft.fleet.placeable & (draft.fleet.load <= SLACK) & ~draft.fleet.reserved
    idle = [at for at in unused.nonzero()[0].tolist() if is_idle(draft, at)]
    for at in sorted(idle, key=lambda at: -idle_for_s(draft, draft.fleet.instances[at])):
        instance = draft.fleet.instances[at]
        if not idle_too_long(draft, instance):
            continue
        idle_s = idle_for_s(draft, instance)
        keep_s = draft.policy.retention.keep_idle_s(instance.retention_s)
        text = f"{instance.id} has been idle for {seconds(idle_s)}; such machines are kept {seconds(keep_s)}"
        numbers = {"idle_s": round(idle_s, 3), "keep_s": keep_s, "spin_up_s": instance.retention_s}
        draft.terminate(at, Reason(code="idle", text=text, numbers=numbers))
