"""Applications: what is known of each program, and how sure that is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.concurrency import run_in_threadpool

from hcloud.api.auth import Caller
from hcloud.api.context import ApiContext, Context, CurrentCaller
from hcloud.classifier.applications import row_name
from hcloud.core.errors import NotFound
from hcloud.core.estimates import Application, Classification, Estimate
from hcloud.core.model import Event, EventKind
from hcloud.planner.fit.expected_performance import scale_up_curve
from hcloud.web.site import page_router, pages_of

router = page_router()
PAGE_ROWS = 50
HISTORY_SHOWN = 30
HISTORY_READ = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRow:
    """An estimate by the name of what it is for, with where it lies between zero and the largest of all."""

    name: str
    estimate: Estimate
    largest: float

    @property
    def doubt(self) -> float | None:
        """Half the width of the limits, as a share of the value; None: the value is zero."""
        value = self.estimate.value
        return (self.estimate.high - self.estimate.low) / 2.0 / value if value else None


@router.get("/applications")
def list_applications(
    request: Request,
    context: Context,
    caller: CurrentCaller,
    page: Annotated[int, Query(ge=0, le=10_000)] = 0,
) -> Response:
    """Show the applications whose jobs the caller may see, those that ran most first."""
    rows = [each for each in context.store.live().applications.values() if caller.may_see(owner_of(each))]
    rows.sort(key=lambda each: (-each.ended_runs, each.name))
    return pages_of(request).render(
        request,
        "applications.html",
        rows=[(each, owner_of(each), program_of(each)) for each in rows[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]],
        total=len(rows),
        page=page,
        pages=max(1, -(-len(rows) // PAGE_ROWS)),
    )


def owner_of(row: Application) -> str:
    """Return whose program it is."""
    return row.program.partition(":")[0]


def program_of(row: Application) -> str:
    """Return the program without its owner."""
    return row.program.partition(":")[2] or row.program


@router.get("/applications/{name}")
async def show_application(request: Request, context: Context, caller: CurrentCaller, name: str) -> Response:
    """Show one application: speed by type and size, pressures it tolerates and causes, doubt and history."""
    values = await context.long_work.result(partial(_values, context, caller, name), at_once=True)
    return await run_in_threadpool(partial(pages_of(request).render, request, "application.html", **values))


def _values(context: ApiContext, caller: Caller, name: str) -> dict[str, Any]:
    row = context.store.live().applications.get(row_name(name))
    if row is None or not caller.may_see(owner_of(row)):
        raise NotFound(f"no application {name!r} of yours is known; see the list of applications")
    known = context.classifications([row.name]).get(row.name)
    events = context.store.events(kinds=[EventKind.JOB_PROFILED, EventKind.PREDICTION], newest=True, limit=HISTORY_READ)
    mine = [each for each in reversed(events) if row_name(str(each.fields.get("application", ""))) == row.name]
    sources = sorted({*known.tolerated, *known.caused}) if known is not None else []
    return {
        "row": row,
        "owner": owner_of(row),
        "program": program_of(row),
        "known": known,
        "by_type": _rows(known.by_type if known is not None else {}),
        "by_nodes": _rows({str(key): each for key, each in known.by_nodes.items()} if known is not None else {}),
        "sources": sources,
        "scaling": _scaling_chart(known),
        "missed_share": sum(row.missed) / len(row.missed) if row.missed else None,
        "history": [(each, history_words(each)) for each in mine[:HISTORY_SHOWN]],
    }


def _rows(estimates: Mapping[str, Estimate]) -> Sequence[EstimateRow]:
    largest = max((each.high for each in estimates.values()), default=1.0) or 1.0
    ranked = sorted(estimates.items(), key=lambda each: -each[1].value)
    return [EstimateRow(name=name, estimate=each, largest=largest) for name, each in ranked]


def _scaling_chart(known: Classification | None) -> str:
    """Return performance by number of vCPUs, with its limits, for the page's script."""
    steps = [] if known is None else sorted(scale_up_curve(known).answers.items())
    if len(steps) < 2:
        return ""
    return json.dumps(
        {
            "names": ["expected", "lower limit", "upper limit"],
            "x": "vCPUs",
            "y": "work per second",
            "data": [
                [vcpus for vcpus, _ in steps],
                [each.value for _, each in steps],
                [each.low for _, each in steps],
                [each.high for _, each in steps],
            ],
        }
    )


def history_words(event: Event) -> str:
    """Return a profiling or a comparison of prediction and measurement as a sentence."""
    fields = event.fields
    if fields.get("text"):
        return str(fields["text"])
    if event.kind is EventKind.PREDICTION:
        numbers = [fields.get(key) for key in ("predicted", "low", "high", "measured")]
        if all(isinstance(each, int | float) for each in numbers):
            predicted, low, high, measured = (float(str(each)) for each in numbers)
            inside = "within" if low <= measured <= high else "outside of"
            what = f"{fields.get('question') or fields.get('measure') or 'speed'} {fields.get('column') or ''}".strip()
            return (
                f"{what} on {fields.get('instance_type')}: predicted {predicted:.4g} ({low:.4g} to {high:.4g}), "
                f"measured {measured:.4g}, {inside} its limits"
            )
    return f"profiled by {fields.get('runs')} runs, by {fields.get('measure')}"
