"""Which machines with room are not for a job because of what it demands of them, in words that name its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hcloud.model import Number, Reason
from hcloud.planner.context import JobGroup, PlanContext


def kept_away(context: PlanContext, group: JobGroup, refusal: Reason | None) -> Reason | None:
    """Return that the demands of ``group`` keep it from machines with room, where they do; else ``refusal``."""
    if refusal is None or not (bound := excluded(context, group)):
        return refusal
    named = "; ".join(f"{key} keeps it from {', '.join(names[:3])}" for key, names in bound.items())
    numbers: dict[str, Number] = {"bound": ", ".join(bound), "refused": refusal.code, **refusal.numbers}
    text = f"{named}, where there is room; elsewhere: {refusal.text}"
    code = refusal.code if refusal.code == "impossible" else "placement_demands"
    return Reason(code=code, text=text, numbers=numbers)


def excluded(context: PlanContext, group: JobGroup, but: Sequence[int] = ()) -> dict[str, list[str]]:
    """Return, by key of the job file, which machines with room (``but`` these) are not for ``group`` because of it."""
    fleet, where = context.fleet, group.constraints
    if where is None and group.company is None:
        return {}
    roomy = fleet.fitting_now(group.asks, fleet.placeable if group.spot_ok else fleet.placeable & fleet.steady)
    roomy = roomy & fleet.of_types(group.instance_types) if group.instance_types else roomy
    roomy[list(but)] = False
    by_zone = replace(where, labels=()) if where is not None else None
    by_label = replace(where, zones=()) if where is not None else None
    allowed = {
        "placement.zones": context.topology.admitted(by_zone) if by_zone is not None else roomy,
        "placement.labels": context.topology.admitted(by_label) if by_label is not None else roomy,
        "placement.apart_from": context.topology.apart(group.company) if group.company is not None else roomy,
    }
    found = {key: np.flatnonzero(roomy & ~mask).tolist() for key, mask in allowed.items()}
    return {key: [fleet.instances[at].id for at in places] for key, places in found.items() if places}
