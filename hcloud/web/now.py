"""The first page: money against budgets, the fleet, the queue with its reasons, and what is being bought and why."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from hcloud.core.model import Event, EventKind
from hcloud.planner.text import offer_words
from hcloud.web.fleet import COMING_SHOWN, FleetNow, fleet_of
from hcloud.web.site import page_router, pages_of

router = page_router()
_TITLES = {
    EventKind.INSTANCE_REQUESTED: "buy",
    EventKind.INSTANCE_TERMINATED: "release",
    EventKind.CORRECTION: "correct",
    EventKind.TARGET_MISSED: "target",
    EventKind.BUDGET: "budget",
    EventKind.OFFER_BACKOFF: "back off",
    EventKind.PROVIDER_TROUBLE: "trouble",
}


@router.get("/")
def show_now(request: Request) -> Response:
    """Show the fleet as it is now."""
    return pages_of(request).render(request, "now.html", **now_values(fleet_of(request)))


def now_values(fleet: FleetNow) -> dict[str, Any]:
    """Return what the template of the page shows."""
    coming = fleet.coming
    return {
        "fleet": fleet,
        "spend": fleet.spend,
        "budgets": _budgets(fleet),
        "coming": coming[:COMING_SHOWN],
        "more_coming": max(0, len(coming) - COMING_SHOWN),
        "offer_words": offer_words,
        "decisions": [(_TITLES[each.kind], each, decision_text(each)) for each in fleet.decisions],
        "warnings": _warnings(fleet),
    }


def decision_text(event: Event) -> str:
    """Return an event's own words, or the words of what it names."""
    fields = event.fields
    if fields.get("text"):
        return str(fields["text"])
    if event.kind is EventKind.OFFER_BACKOFF:
        named = [str(fields[key]) for key in ("provider", "zone", "type", "market", "quota") if fields.get(key)]
        return f"{' '.join(named)}: {fields.get('error') or 'not tried for a while'}"
    return str(fields.get("error") or fields.get("code") or event.kind)


def _budgets(fleet: FleetNow) -> list[dict[str, Any]]:
    """Return each budget that has a limit, with what is used of it."""
    spend = fleet.spend
    rows: list[tuple[str, float, float | None]] = [
        ("per hour, now", fleet.usd_per_h, spend.get("per_hour_limit_usd")),
        ("today (UTC)", spend.get("day_usd", 0.0), spend.get("per_day_limit_usd")),
        ("this month (UTC)", spend.get("month_usd", 0.0), spend.get("per_month_limit_usd")),
    ]
    for each in spend.get("by_tag", ()):
        rows.append((f"{each['tag']} today", each["day_usd"], each["per_day_limit_usd"]))
        rows.append((f"{each['tag']} this month", each["month_usd"], each["per_month_limit_usd"]))
    return [
        {"name": name, "used": used, "limit": limit, "part": min(1.0, used / limit) if limit else 1.0}
        for name, used, limit in rows
        if limit is not None
    ]


def _warnings(fleet: FleetNow) -> list[str]:
    """Return what an operator should know: pauses, errors, and what waits to be accepted."""
    status = fleet.status
    found = [f"paused: {fleet.paused}"] if fleet.paused else []
    if status.get("leader") is False:
        found.append(f"another daemon leads ({status.get('holder', 'unknown')}); this one only shows what it reads")
    if error := status.get("policy", {}).get("error"):
        found.append(f"the policy file was not accepted: {error}")
    if error := status.get("cycle", {}).get("error"):
        found.append(f"the last cycle failed: {error}")
    for name, provider in status.get("providers", {}).items():
        if stopped := provider.get("stopped"):
            found.append(f"nothing is launched at {name}: {stopped}")
        if error := provider.get("error"):
            found.append(f"{name} does not answer: {error}")
    if changes := status.get("unaccepted_changes"):
        found.append(f"{len(changes)} changes wait for an admin ('hcloud policy accept'): {changes[0]}")
    return found
