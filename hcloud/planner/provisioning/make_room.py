"""Terminate idle instances that fill caps or budgets, so that others can be launched for waiting jobs."""

from __future__ import annotations

from hcloud.core.model import Job, Market, Offer, Reason
from hcloud.planner.budget import BudgetLedger
from hcloud.planner.context import PlanContext
from hcloud.planner.instance_lifecycle import idle_for_s, is_idle
from hcloud.planner.provisioning.state import ProvisioningState, future_of


def make_room(state: ProvisioningState, job: Job, missing: int, refusal: Reason) -> Reason:
    """Terminate idle instances that fill caps or budgets and that fit no waiting job; return why ``job`` waits."""
    offer = state.refused
    if offer is None or not refusal.code.startswith(("cap_", "budget_")):
        return refusal
    instances, idle = state.context.fleet.instances, idle_instances(state)
    future, ended = future_of(state).copy(), list[int]()
    while not _book_all(future, offer, job, missing):
        if len(ended) == len(idle):
            return refusal
        ended.append(idle[len(ended)])
        future = future_of(state).copy()
        for at in ended:
            future.release(instances[at])
    if not ended and not _some_are_ending(state.context):
        return refusal
    if (
        len(ended) + len(state.context.decisions.terminating)
        > state.context.policy.disruption.max_terminations_per_cycle
    ):
        return refusal
    state.future, state.idle = future, idle[len(ended) :]
    text = f"idle while {job.id} waits for a machine: {refusal.text}"
    for at in ended:
        state.context.terminate(at, Reason(code="make_room", text=text, numbers=refusal.numbers))
    return Reason(
        code="making_room",
        text=f"machines are being terminated to make room: {refusal.text}",
        numbers=refusal.numbers,
    )


def _some_are_ending(context: PlanContext) -> bool:
    return bool(context.decisions.terminating) or len(context.fleet.staying) < len(context.fleet.instances)


def _book_all(ledger: BudgetLedger, offer: Offer, job: Job, count: int) -> bool:
    """Book ``count`` instances of ``offer`` for ``job``; return False as soon as one is refused."""
    shares = ledger.shares([job], offer.instance_type.capacity)
    for _ in range(count):
        if ledger.refusal(offer, shares) is not None:
            return False
        ledger.book_launch(offer, shares)
    return True


def idle_instances(state: ProvisioningState) -> list[int]:
    """Return unused instances, longest idle first; reserved ones cost the same and stay."""
    if state.idle is None:
        context, instances = state.context, state.context.fleet.instances
        idle = [at for at in context.fleet.staying if is_idle(context, at)]
        idle = [at for at in idle if instances[at].offer.market is not Market.RESERVED]
        state.idle = sorted(idle, key=lambda at: -idle_for_s(context, instances[at]))
    return [
        at
        for at in state.idle
        if at not in state.context.reservations.awaited and at not in state.context.reservations.used
    ]
