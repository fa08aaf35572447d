"""Operators' directives (drain, destroy, pause): recorded here, obeyed by ``hcloud.planner``."""

from __future__ import annotations

from collections.abc import Sequence

from hcloud.apply.transitions import transition_instance
from hcloud.core.errors import Refused
from hcloud.core.model import EventKind, Instance, InstanceState, Offer, Reason
from hcloud.planner.snapshot import Directive, DirectiveScope
from hcloud.store import Transaction

PAUSED = "paused"
"""Key in the store's meta table: why launching and placing are paused; "" or absent if they are not."""


def set_paused(txn: Transaction, actor: str, reason: str) -> bool:
    """Pause launching and placing for ``reason``, or resume if that is ""; return whether that changed anything."""
    if (txn.meta(PAUSED) or "") == reason:
        return False
    txn.put_meta(PAUSED, reason)
    txn.emit(EventKind.DAEMON, actor=actor, what="paused" if reason else "resumed", text=reason)
    return True


def record_directive(txn: Transaction, directive: Directive) -> None:
    """Write a directive and its event."""
    txn.put_directive(directive)
    what = "destroy" if directive.destroy else "drain"
    emit_order(txn, what, directive.scope, directive.name, directive.by, directive.deadline_at)


def withdraw_directive(
    txn: Transaction, scope: DirectiveScope, name: str, actor: str, live: Sequence[Instance]
) -> bool:
    """Drop a drain directive; return whether there was one. Its draining instances become READY again.

    The next plan drains them again if another directive, a notice or misbehaviour still asks for it.
    """
    if not txn.drop_directive(scope, name):
        return False
    directive = Directive(scope=scope, name=name, by=actor, ordered_at=txn.now)
    emit_order(txn, "undo", scope, name, actor, None)
    reason = Reason(code="drain_undone", text=f"undrained by {actor}")
    for instance in live:
        if directive.covers(instance) and instance.state is InstanceState.DRAINING:
            transition_instance(txn, txn.instance(instance.id), InstanceState.READY, reason)
    return True


def refuse_drained(txn: Transaction, offer: Offer, directives: Sequence[Directive]) -> None:
    """Raise Refused for a launch that an operator has forbidden since it was planned."""
    closing = next((each for each in directives if each.closes(offer)), None)
    if closing is not None:
        raise Refused(f"{offer.instance_type.name} at {offer.provider} is drained by {closing.by}")
    if why := txn.meta(PAUSED):
        raise Refused(f"paused: {why}")


def emit_order(
    txn: Transaction, what: str, scope: DirectiveScope, name: str, actor: str, deadline_at: float | None
) -> None:
    """Write the event of an operator's order."""
    instance_id = name if scope is DirectiveScope.INSTANCE else None
    kind = EventKind.OPERATOR_ORDER
    txn.emit(
        kind, instance_id=instance_id, actor=actor, what=what, deadline_at=deadline_at, scope=scope.value, name=name
    )
