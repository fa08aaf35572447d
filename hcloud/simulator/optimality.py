"""Compares the cost of policies and of other tools' rules on one workload with a lower bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path

from hcloud.core.errors import BadInput, ProviderError
from hcloud.core.model import PROFILE_TAG, Event, EventKind, Market, Offer
from hcloud.report.spending_accounts import ACCOUNT_COLUMNS, account_values
from hcloud.report.table import ReportTable, Row, columns, share_pct
from hcloud.simulator.bound import Bound, lower_bound, lowest_prices
from hcloud.simulator.outcome import SimulationResult, notes_on
from hcloud.simulator.peers import PEERS, PREFIX
from hcloud.simulator.run import Setting, simulated
from hcloud.simulator.workload import Workload

PRICE_STEP_S = 300.0
"""How often spot prices may change if a cloud's settings do not say."""


def run_times_s(workload: Workload, events: Iterable[Event]) -> tuple[float, ...]:
    """Return how long each arrival's job really ran (seconds), in order of arrival; infinite if it did not succeed.

    Of several ranks the shortest counts, since a rank releases its machine when it ends.
    """
    ids: list[str] = []
    ran_s: dict[str, float] = {}
    ranks_s: dict[str, tuple[object, float]] = {}
    for event in events:
        job_id, tags = event.job_id or "", event.fields.get("tags")
        if event.kind is EventKind.JOB_SUBMITTED and not (isinstance(tags, dict) and PROFILE_TAG in tags):
            ids.append(job_id)
        elif event.kind is EventKind.UNIT_ENDED and isinstance(started_at := event.fields.get("started_at"), float):
            attempt, known = event.fields.get("attempt"), ranks_s.get(job_id)
            took_s = event.at - started_at
            ranks_s[job_id] = (attempt, min(took_s, known[1]) if known and known[0] == attempt else took_s)
        elif event.kind is EventKind.JOB_FINISHED and event.fields.get("state") == "succeeded":
            ran_s[job_id] = min(float(str(event.fields["run_s"])), ranks_s.get(job_id, (None, inf))[1])
    return tuple(ran_s.get(job_id, inf) for job_id in ids[: len(workload.arrivals)])


def with_shortest_runs(workload: Workload, runs: Sequence[Sequence[float]]) -> Workload:
    """Return the workload with each job as short as it ran in any of ``runs``, or as stated if that is shorter.

    A bound on this workload holds for each of those runs, however fast their machines were.
    """
    shortest = [min(times) for times in zip(*runs, strict=True)] if runs else []
    arrivals = tuple(
        replace(each, run_s=max(1e-3, min(each.run_s, shortest[at] if at < len(shortest) else inf)))
        for at, each in enumerate(workload.arrivals)
    )
    return replace(workload, arrivals=arrivals)


def lowest_offers(setting: Setting, folder: Path, span_s: float) -> tuple[Offer, ...]:
    """Return the offers of the setting's cloud, each at its lowest price of the first ``span_s`` seconds."""
    spot_settings = [cloud.get("spot") for cloud in setting.providers.values()]
    step_s = min(
        float(each.get("step_s", PRICE_STEP_S)) if isinstance(each, dict) else PRICE_STEP_S for each in spot_settings
    )
    catalogues: list[Sequence[Offer]] = []
    with simulated(setting, folder) as simulation:
        for _ in range(int(span_s / step_s) + 2):
            for provider in simulation.controller.offers.providers.values():
                try:
                    catalogues.append(provider.offers())
                except ProviderError:
                    continue  # the simulated provider is unavailable at this step
            simulation.clock.advance(step_s)
    offers = lowest_prices(catalogues)
    return lowest_prices([offers, _recorded_lows(setting, offers, span_s)])


def _recorded_lows(setting: Setting, offers: Sequence[Offer], span_s: float) -> list[Offer]:
    """Return the spot offers whose prices are recorded, each at the lowest price of the first ``span_s`` seconds."""
    found, ends_at = [], setting.starts_at + span_s
    for offer in offers:
        spot = setting.providers.get(offer.provider, {}).get("spot")
        history = spot.get("history") if isinstance(spot, Mapping) and offer.market is Market.SPOT else None
        prices = history.get("prices", {}) if isinstance(history, Mapping) else {}
        steps = prices.get(f"{offer.zone}/{offer.instance_type.name}", ())
        lows = [usd for at, usd in steps if at <= ends_at]
        found += [replace(offer, price_usd_per_h=min(lows))] if lows else []
    return found


def distance(
    setting: Setting,
    folder: Path,
    outcomes: Sequence[SimulationResult],
    runs: Sequence[Sequence[float]],
    *,
    in_time: bool = True,
) -> Bound:
    """Return a lower bound that holds for all of these outcomes of the setting's workload on its cloud; ``in_time``:
    and one that holds for those of them that keep all deadlines."""
    span_s = max(each.span_s for each in outcomes)
    offers, workload = lowest_offers(setting, folder, span_s), with_shortest_runs(setting.workload, runs)
    bound = lower_bound(workload, offers, keep_deadlines=False)
    if in_time:
        with suppress(BadInput):  # reserved machines alone may not suffice
            bound = replace(bound, in_time_usd=lower_bound(workload, offers).usd)
    return bound


def peer_comparison(outcomes: Sequence[SimulationResult], bounds: Sequence[Bound]) -> ReportTable:
    """Return one row per outcome: cost, targets, waits, churn, commitments, and the ratio to its bound."""
    names = columns(
        "policy", "cost_usd", "bound_usd", "times_bound", "times_bound_in_time", "target_met_pct", "wait_p95_s",
        "launches", "used_once_pct", "unused_commitment_usd", "succeeded", "jobs",
    )  # fmt: skip
    names += ACCOUNT_COLUMNS
    rows = tuple(_row(outcome, bound) for outcome, bound in zip(outcomes, bounds, strict=True))
    notes = (*peer_notes([each.name for each in outcomes]), *notes_on(outcomes))
    return ReportTable(title="Compared", columns=names, rows=rows, notes=notes)


def peer_notes(names: Sequence[str]) -> Iterator[str]:
    """Yield notes on what the bound is and which rules each peer among ``names`` follows."""
    yield f"{PREFIX}NAME: a tool's placement and purchasing rules, re-implemented; everything else is HCloud's"
    yield "bound: no planner can cost less, even with perfect knowledge (same commitments, deadlines ignored)"
    yield "times_bound: cost / bound, if every job succeeded; times_bound_in_time: the same with all deadlines kept"
    for peer in [PEERS[name.removeprefix(PREFIX)] for name in names if name.startswith(PREFIX)]:
        yield f"{PREFIX}{peer.name} (like {peer.like}): {peer.rule}"


def unused_commitment_usd(outcome: SimulationResult) -> float:
    """Return what was paid for reserved machines while no job held them."""
    whole = outcome.committed_vcpu_h
    return outcome.committed_usd * (1.0 - outcome.committed_held_vcpu_h / whole) if whole else 0.0


def times_bound(outcome: SimulationResult, bound: Bound) -> float | None:
    """Return cost / bound; None if a job did not succeed, since leaving jobs undone may cost less than the bound."""
    return outcome.cost_usd / bound.usd if bound.usd and outcome.succeeded == outcome.jobs else None


def times_bound_in_time(outcome: SimulationResult, bound: Bound) -> float | None:
    """Return cost / the bound of schedules that keep all deadlines, which one that misses some may go below; None as
    for :func:`times_bound`, or if none can keep them."""
    return outcome.cost_usd / bound.in_time_usd if bound.in_time_usd and outcome.succeeded == outcome.jobs else None


def _row(each: SimulationResult, bound: Bound) -> Row:
    return (
        each.name,
        each.cost_usd,
        bound.usd,
        times_bound(each, bound),
        times_bound_in_time(each, bound),
        each.target_met_pct,
        each.wait_quantile_s(0.95),
        each.launches,
        share_pct(each.used_once, each.launches),
        unused_commitment_usd(each),
        each.succeeded,
        each.jobs,
        *account_values(each.spending),
    )
