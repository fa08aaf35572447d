"""A commitment that ends while a machine runs, through the real cycle: what it costs before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from hcloud.core.model import BestEffortTarget, EventKind, JobSpec, Market, Resources
from hcloud.report import build_report
from hcloud.store import Submission
from tests.chaos.scene import START_AT, Scene

ENDS_AT = START_AT + 900.0
"""Beyond the first lease, so that the machine is rented at all."""
STEP_S = 80.0
POLICY: Mapping[str, object] = {"boot": {"timeout_s": 600}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of one machine, in USD per hour."""

    reserved_usd_per_h: float
    on_demand_usd_per_h: float


def play_the_end(scene: Scene, prices: Prices, job_s: float = 2000.0) -> None:
    """Run one job beyond the end of the commitment and check price, ledger, report and event on both sides."""
    submit(scene, 1, job_s)
    while scene.clock.now() < ENDS_AT - STEP_S:
        cycle(scene)
    [machine] = scene.store.live().instances
    assert (machine.offer.market, machine.offer.ends_at) == (Market.RESERVED, ENDS_AT)
    assert machine.offer.price_usd_per_h == pytest.approx(prices.reserved_usd_per_h)
    launched_at = machine.launched_at or 0.0
    while scene.clock.now() < ENDS_AT + 3 * STEP_S:
        cycle(scene)
        [machine] = scene.store.live().instances
        if scene.clock.now() > ENDS_AT + STEP_S:
            assert machine.offer.market is Market.ON_DEMAND
            assert machine.offer.price_usd_per_h == pytest.approx(prices.on_demand_usd_per_h)
    [event] = scene.store.events(kinds=[EventKind.INSTANCE_PRICE], limit=100)
    assert (event.at, event.fields["market"]) == (ENDS_AT, "on_demand")
    assert event.fields["price_usd_per_h"] == pytest.approx(prices.on_demand_usd_per_h)
    now = scene.clock.now()
    before_usd = (ENDS_AT - launched_at) / 3600.0 * prices.reserved_usd_per_h
    after_usd = (now - ENDS_AT) / 3600.0 * prices.on_demand_usd_per_h
    scene.controller.cycle()
    assert scene.controller.last_spend.month_usd == pytest.approx(before_usd + after_usd)
    by_market = {str(row["market"]): float(row["cost_usd"]) - float(row["unused_usd"]) for row in cost_rows(scene)}
    assert by_market == pytest.approx({"reserved": before_usd, "on_demand": after_usd}, abs=0.0005)


def submit(scene: Scene, count: int, job_s: float) -> None:
    """Submit jobs that each fill a machine."""
    spec = JobSpec(
        name="job",
        user="ada",
        command=("sleep", f"{job_s:g}"),
        target=BestEffortTarget(),
        resources=Resources(vcpus=2.0, memory_mib=512, disk_gib=1.0),
    )
    scene.store.submit([Submission(spec=spec, actor="ada")] * count, scene.clock.now())


def cycle(scene: Scene) -> None:
    """Run a cycle and move the clock on: by less at first, while machines boot."""
    scene.controller.cycle()
    scene.clock.advance(20.0 if scene.clock.now() < START_AT + 100.0 else STEP_S)


def cost_rows(scene: Scene) -> list[dict[str, Any]]:
    """Return the rows of ``report cost`` by market."""
    table = build_report("cost", scene.store.iter_events(), scene.clock.now(), by="market")
    names = [each.name for each in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]
