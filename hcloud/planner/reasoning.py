"""Why a job was placed where it was, in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence

from hcloud.model import Job, Number, Reason
from hcloud.planner.draft import Draft, Group
from hcloud.planner.exclusion import excluded
from hcloud.planner.wording import amount, deadline_numbers


def why_placed(draft: Draft, job: Job, group: Group, places: Sequence[int]) -> Reason:
    """Return why ``job`` of ``group`` was placed on the machines ``places``, of which the first speaks for all."""
    first, load = draft.fleet.instances[places[0]], float(draft.fleet.load[places[0]])
    more = f" and {len(places) - 1} more rank(s)" if len(places) > 1 else ""
    waited_s = draft.now - job.submitted_at
    numbers: dict[str, Number] = {
        "instance": first.id,
        "vcpu_share_after": round(load, 4),
        "ranks": len(places),
        "waited_s": round(waited_s, 3),
        **deadline_numbers(job, draft.now),
    }
    chosen = _chosen_size(draft, group, places[0])
    numbers |= chosen
    if bound := excluded(draft, group, places):
        numbers["bound"] = "; ".join(f"{key}: not {', '.join(names[:3])}" for key, names in bound.items())
    code, why = _preference_words(draft, group)
    if draft.suit is not None and group.application:
        decided = draft.suit.numbers(group.application)
        numbers |= decided
        if "relaxed" in decided:
            code, why = "least_disturbed", f"suits it least badly (beyond what is tolerated: {decided['relaxed']})"
    room = amount(draft.granted(group, places[0]))
    text = f"{first.id} {'is all its own' if group.exclusive else why}, with room for {room}"
    text += f": {load:.0%} of its vCPUs in use then{more}"
    if "probability" in chosen:
        text += f"; {chosen['vcpus']:g} vCPU of {chosen['vcpus_within']}, which meets its target with"
        text += f" {float(chosen['probability'] or 0):.0%} probability"
    text += f"; kept from other machines with room by {', '.join(bound)}" if bound else ""
    return Reason(code=code, text=text, numbers=numbers)


def _chosen_size(draft: Draft, group: Group, at: int) -> dict[str, Number]:
    """Return the numbers behind the size of a rank on machine ``at``, where that was the planner's choice."""
    if group.portions is None or draft.suit is None:
        return {}
    return draft.suit.sized(group.portions, at, float(group.asks_on(at)[0]))


def _preference_words(draft: Draft, group: Group) -> tuple[str, str]:
    """Return the code and the words of why a machine was taken, where nothing had to be relaxed."""
    order = draft.policy.placement.order
    if draft.suit is not None and group.application:
        if draft.suit.who(group.application) is None:
            return "best_type", "is of the best type for it and the least loaded of these"
        if order == "least_loss":
            return order, "is where it and its neighbours lose the least, to its type and to each other"
        return "suits", "suits it: nobody is disturbed there, its type is the best of these and the fit is the tightest"
    found = {"first_fit": "is the first", "random": "was drawn by lot"}.get(order)
    return (order, found) if found is not None else ("least_loaded", "is the least loaded")
