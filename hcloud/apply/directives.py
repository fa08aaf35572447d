"""Operators' directives about instances: recorded here, obeyed by ``hcloud.planner.instance_lifecycle``."""

from __future__ import annotations

from collections.abc import Sequence

from hcloud.apply.transitions import transition_instance
from hcloud.core.errors import Refused
from hcloud.core.model import EventKind, Instance, InstanceState, Offer, Reason
from hcloud.planner.snapshot import Directive, DirectiveScope
from hcloud.store import Transaction

PAUSED = "paused"
"""Key of the store's meta table: why launching and placing is paused ("" or absent: it is not)."""


def set_paused(txn: Transaction, actor: str, reason: str) -> bool:
    """Pause launching and placing, or with "" resume; return whether that changed anything."""
    if (txn.meta(PAUSED) or "") == reason:
        return False
    txn.put_meta(PAUSED, reason)
    txn.emit(EventKind.DAEMON, actor=actor, what="paused" if reason else "resumed", text=reason)
    return True


def record_directive(txn: Transaction, order: Directive) -> None:
    """Write down an order and the event that tells of it."""
    txn.put_directive(order)
    what = "destroy" if order.destroy else "drain"
    _tell(txn, what, order.scope, order.name, order.by, order.deadline_at)


def withdraw_directive(
    txn: Transaction, scope: DirectiveScope, name: str, actor: str, live: Sequence[Instance]
) -> bool:
    """Forget an order to drain; return whether there was one. Its machines may be used again, if the planner agrees.

    Orders that remain, a misbehaving machine or one the provider takes back are drained again by the next plan.
    """
    if not txn.drop_directive(scope, name):
        return False
    order = Directive(scope=scope, name=name, by=actor, ordered_at=txn.now)
    _tell(txn, "undo", scope, name, actor, None)
    reason = Reason(code="drain_undone", text=f"undrained by {actor}")
    for instance in live:
        if order.covers(instance) and instance.state is InstanceState.DRAINING:
            transition_instance(txn, txn.instance(instance.id), InstanceState.READY, reason)
    return True


def refuse_drained(txn: Transaction, offer: Offer, orders: Sequence[Directive]) -> None:
    """Refuse a launch that an operator has forbidden since it was planned. Raises Refused."""
    closing = next((order for order in orders if order.closes(offer)), None)
    if closing is not None:
        raise Refused(f"{offer.instance_type.name} at {offer.provider} is drained by {closing.by}")
    if why := txn.meta(PAUSED):
        raise Refused(f"paused: {why}")


def _tell(txn: Transaction, what: str, scope: DirectiveScope, name: str, actor: str, deadline_at: float | None) -> None:
    instance_id = name if scope is DirectiveScope.INSTANCE else None
    kind = EventKind.OPERATOR_ORDER
    txn.emit(
        kind, instance_id=instance_id, actor=actor, what=what, deadline_at=deadline_at, scope=scope.value, name=name
    )
