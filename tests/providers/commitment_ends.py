"""A commitment that ends while a machine runs, through the real cycle: what it costs before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from hcloud.core.model import BestEffortTarget, Constraints, EventKind, JobSpec, Market, Resources
from hcloud.report import build_report
from hcloud.store import Submission
from tests.chaos.scene import START_AT, Scene

ENDS_AT = START_AT + 820.0
"""Beyond the first lease, so that the machine is rented at all."""
LATER_AT = START_AT + 90_000.0
"""When the other commitment ends, where there are two."""
LAUNCHED_S, BOOTED_S, ENDED_S, GONE_S = 0.0, 30.0, 100.0, 400.0
"""Cycles that launch machines, find them booted, a short job ended and a killed machine gone; seconds from the start.
"""
BEFORE_S, AFTER_S = 700.0, (1000.0, 1020.0)
"""Cycles before and after the end, as seldom as leases allow: the first two extend a lease."""
POLICY: Mapping[str, object] = {"boot": {"timeout_s": 600}, "lease": {"horizon_s": 800, "renew_before_s": 700}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of one machine, in USD per hour."""

    reserved_usd_per_h: float
    on_demand_usd_per_h: float


def play_the_end(scene: Scene, prices: Prices, job_s: float = 2000.0) -> None:
    """Run one job beyond the end of the commitment and check price, ledger, report and event on both sides."""
    submit(scene, 1, job_s)
    cycle(scene, LAUNCHED_S, BOOTED_S, BEFORE_S)
    [machine] = scene.store.live().instances
    assert (machine.offer.market, machine.offer.ends_at) == (Market.RESERVED, ENDS_AT)
    assert machine.offer.price_usd_per_h == pytest.approx(prices.reserved_usd_per_h)
    launched_at = machine.launched_at or 0.0
    for at_s in AFTER_S:
        cycle(scene, at_s)
        [machine] = scene.store.live().instances
        assert machine.offer.market is Market.ON_DEMAND
        assert machine.offer.price_usd_per_h == pytest.approx(prices.on_demand_usd_per_h)
    [event] = scene.store.events(kinds=[EventKind.INSTANCE_PRICE], limit=100)
    assert (event.at, event.fields["market"]) == (ENDS_AT, "on_demand")
    assert event.fields["price_usd_per_h"] == pytest.approx(prices.on_demand_usd_per_h)
    now = scene.clock.now()
    before_usd = (ENDS_AT - launched_at) / 3600.0 * prices.reserved_usd_per_h
    after_usd = (now - ENDS_AT) / 3600.0 * prices.on_demand_usd_per_h
    assert scene.controller.last_spend.month_usd == pytest.approx(before_usd + after_usd)
    by_market = {str(row["market"]): float(row["cost_usd"]) - float(row["unused_usd"]) for row in cost_rows(scene)}
    assert by_market == pytest.approx({"reserved": before_usd, "on_demand": after_usd}, abs=0.0005)


def play_one_end_of_two(
    scene: Scene, prices: Prices, *, kill: Callable[[str], None] | None = None, zone: str = ""
) -> None:
    """Run three jobs on three committed machines, of which one commitment ends before the other, for two machines.

    ``kill``: ends a machine by its id; one with a short job is ended so before the end. Then two are left, which the
    other commitment has capacity for. None: all three run on, and exactly one becomes on demand. ``zone``: where all
    run, the first of them a cycle earlier.
    """
    if kill is not None:
        submit(scene, 1, 60.0)
    if zone:
        submit(scene, 1, 2000.0, zone)
        cycle(scene, LAUNCHED_S)
    submit(scene, 2 if zone or kill is not None else 3, 2000.0, zone)
    cycle(scene, *((BOOTED_S, 2 * BOOTED_S) if zone else (LAUNCHED_S, BOOTED_S)))
    if kill is not None:
        cycle(scene, ENDED_S)
        machines = {each.id: each.provider_id or "" for each in scene.store.live().instances}
        busy = {
            held.instance_id for each in scene.store.live().jobs if each.attempt for held in each.attempt.allocations
        }
        [idle] = machines.keys() - busy
        kill(machines[idle])
        cycle(scene, GONE_S)
    cycle(scene, BEFORE_S)
    machines = scene.store.live().instances
    assert {each.offer.market for each in machines} == {Market.RESERVED}
    first = sorted(each.offer.ends_at or 0.0 for each in machines)
    assert first == ([ENDS_AT, LATER_AT, LATER_AT] if kill is None else [LATER_AT, LATER_AT])
    cycle(scene, *AFTER_S)
    machines = scene.store.live().instances
    ended = [each for each in machines if each.offer.market is Market.ON_DEMAND]
    assert len(machines) - len(ended) == 2
    assert len(ended) == (1 if kill is None else 0)
    assert len(list(scene.store.events(kinds=[EventKind.INSTANCE_PRICE], limit=100))) == len(ended)
    for each in machines:
        usd_per_h = prices.on_demand_usd_per_h if each in ended else prices.reserved_usd_per_h
        assert each.offer.price_usd_per_h == pytest.approx(usd_per_h)
    if kill is None:
        now = scene.clock.now()
        usd = sum((now - (each.launched_at or 0.0)) / 3600.0 * prices.reserved_usd_per_h for each in machines)
        usd += (now - ENDS_AT) / 3600.0 * (prices.on_demand_usd_per_h - prices.reserved_usd_per_h)
        assert scene.controller.last_spend.month_usd == pytest.approx(usd)


def submit(scene: Scene, count: int, job_s: float, zone: str = "") -> None:
    """Submit jobs that each fill a machine, in a zone if one is named."""
    spec = JobSpec(
        name="job",
        user="ada",
        command=("sleep", f"{job_s:g}"),
        target=BestEffortTarget(),
        resources=Resources(vcpus=2.0, memory_mib=512, disk_gib=1.0),
        placement=Constraints(zones=(zone,) if zone else ()),
    )
    scene.store.submit([Submission(spec=spec, actor="ada")] * count, scene.clock.now())


def cycle(scene: Scene, *moments_s: float) -> None:
    """Run a cycle at each of these moments, in seconds from the start."""
    for at_s in moments_s:
        scene.clock.advance(max(0.0, START_AT + at_s - scene.clock.now()))
        scene.controller.cycle()


def cost_rows(scene: Scene) -> list[dict[str, Any]]:
    """Return the rows of ``report cost`` by market."""
    table = build_report("cost", scene.store.iter_events(), scene.clock.now(), by="market")
    names = [each.name for each in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]
