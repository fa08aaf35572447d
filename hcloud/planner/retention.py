"""The last stage: machines idle for long enough are ended (HCloud §8.3: a multiple of the spin-up time)."""

from __future__ import annotations

from hcloud.model import InstanceState, Reason
from hcloud.planner.draft import Draft
from hcloud.planner.leases import idle_for_s, idle_too_long
from hcloud.planner.wording import seconds


def is_idle(draft: Draft, at: int) -> bool:
    """Return whether machine ``at`` answers, stays, and this plan has no use for it."""
    return bool(
        draft.fleet.instances[at].state is InstanceState.READY
        and draft.fleet.placeable[at]
        and not draft.fleet.holdings[at]
        and draft.fleet.load[at] <= 0.0  # this plan may have just placed something there
        and at not in draft.used
    )


def release_idle(draft: Draft) -> None:
    """End machines idle beyond their retention, longest idle first."""
    idle = [at for at in draft.fleet.staying if is_idle(draft, at)]
    for at in sorted(idle, key=lambda at: -idle_for_s(draft, draft.fleet.instances[at])):
        instance = draft.fleet.instances[at]
        if not idle_too_long(draft, instance):
            continue
        idle_s = idle_for_s(draft, instance)
        keep_s = draft.policy.retention.keep_idle_s(instance.retention_s)
        text = f"{instance.id} has been idle for {seconds(idle_s)}; such machines are kept {seconds(keep_s)}"
        numbers = {"idle_s": round(idle_s, 3), "keep_s": keep_s, "spin_up_s": instance.retention_s}
        draft.terminate(at, Reason(code="idle", text=text, numbers=numbers))
