"""Why a job was placed where it was, in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence

from hcloud.model import Job, Number, Reason
from hcloud.planner.context import JobGroup, PlanContext
from hcloud.planner.exclusion import excluded
from hcloud.planner.wording import amount, deadline_numbers


def placement_reason(context: PlanContext, job: Job, group: JobGroup, places: Sequence[int]) -> Reason:
    """Return why ``job`` of ``group`` was placed on the machines ``places``, of which the first speaks for all."""
    first, load = context.fleet.instances[places[0]], float(context.fleet.load[places[0]])
    more = f" and {len(places) - 1} more rank(s)" if len(places) > 1 else ""
    waited_s = context.now - job.submitted_at
    numbers: dict[str, Number] = {
        "instance": first.id,
        "vcpu_share_after": round(load, 4),
        "ranks": len(places),
        "waited_s": round(waited_s, 3),
        **deadline_numbers(job, context.now),
    }
    chosen = _chosen_size(context, group, places[0])
    numbers |= chosen
    if bound := excluded(context, group, places):
        numbers["bound"] = "; ".join(f"{key}: not {', '.join(names[:3])}" for key, names in bound.items())
    code, why = _preference_words(context, group)
    if context.suit is not None and group.application:
        decided = context.suit.numbers(group.application)
        numbers |= decided
        if "relaxed" in decided:
            code, why = "least_disturbed", f"suits it least badly (beyond what is tolerated: {decided['relaxed']})"
    room = amount(context.granted(group, places[0]))
    text = f"{first.id} {'is all its own' if group.exclusive else why}, with room for {room}"
    text += f": {load:.0%} of its vCPUs in use then{more}"
    if "probability" in chosen:
        text += f"; {chosen['vcpus']:g} vCPU of {chosen['vcpus_within']}, which meets its target with"
        text += f" {float(chosen['probability'] or 0):.0%} probability"
    text += f"; kept from other machines with room by {', '.join(bound)}" if bound else ""
    return Reason(code=code, text=text, numbers=numbers)


def _chosen_size(context: PlanContext, group: JobGroup, at: int) -> dict[str, Number]:
    """Return the numbers behind the size of a rank on machine ``at``, where that was the planner's choice."""
    if group.portions is None or context.suit is None:
        return {}
    return context.suit.sized(group.portions, at, float(group.asks_on(at)[0]))


def _preference_words(context: PlanContext, group: JobGroup) -> tuple[str, str]:
    """Return the code and the words of why a machine was taken, where nothing had to be relaxed."""
    order = context.policy.placement.order
    if context.suit is not None and group.application:
        if context.suit.who(group.application) is None:
            return "best_type", "is of the best type for it and the least loaded of these"
        if order == "least_loss":
            return order, "is where it and its neighbours lose the least, to its type and to each other"
        return "suits", "suits it: nobody is disturbed there, its type is the best of these and the fit is the tightest"
    found = {"first_fit": "is the first", "random": "was drawn by lot"}.get(order)
    return (order, found) if found is not None else ("least_loaded", "is the least loaded")
