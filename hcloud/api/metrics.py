"""Prometheus metrics of the daemon: gauges read at each scrape, beside the counters and histograms of its process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hcloud import __version__
from hcloud.api.context import DaemonStatus, SpendStatus
from hcloud.api.telemetry import Telemetry
from hcloud.core.model import InstanceState, JobState, Market

_Samples = Iterable[tuple[Mapping[str, str], float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The values at ``now``."""

    now: float
    jobs: Mapping[JobState, int]
    instances: Mapping[tuple[str, str], int]
    """Counts by state and market."""
    price_usd_per_h: float
    price_usd_per_h_by_market: Mapping[str, float]
    priced_at: float | None
    """When the oldest price among current offers was read; None without offers."""
    daemon: DaemonStatus


@dataclass(frozen=True, slots=True)
class _Scrape(Collector):
    """All metrics of one scrape."""

    gauges: Gauges
    telemetry: Telemetry

    def collect(self) -> Iterator[Metric]:
        yield from _families(self.gauges)
        yield from self.telemetry.registry.collect()


def exposition(gauges: Gauges, telemetry: Telemetry) -> str:
    """Return the metrics as text. Empty states and markets are 0, so that series do not appear and disappear."""
    return generate_latest(_Scrape(gauges, telemetry)).decode()


def _families(gauges: Gauges) -> Iterator[Metric]:
    daemon = gauges.daemon
    cycle, engine = daemon.get("cycle", {}), daemon.get("engine", {})
    yield from _gauge("build_info", "Version of HCloud.", [({"version": __version__}, 1)])
    yield from _gauge("up_since_seconds", "When the daemon started.", _plain(daemon.get("started_at")))
    yield from _gauge("leader", "1 when this daemon plans.", _plain(daemon.get("leader")))
    yield from _gauge("jobs", "Jobs by state.", [({"state": state}, gauges.jobs.get(state, 0)) for state in JobState])
    yield from _gauge("instances", "Instances by state and market.", _instances(gauges.instances))
    yield from _gauge(
        "price_usd_per_hour",
        "Cost of the billed instances per hour.",
        [({"market": market}, price) for market, price in gauges.price_usd_per_h_by_market.items()],
    )
    yield from _gauge("cycle_duration_seconds", "Duration of the last cycle.", _plain(cycle.get("duration_s")))
    yield from _gauge("cycle_failed", "1 when the last cycle ended with an error.", _plain(_flag(cycle.get("error"))))
    left_out = cycle.get("left_out")
    help_text = "Jobs, stages and calls in quarantine because HCloud fails on them with a defect."
    yield from _gauge("planning_left_out", help_text, _plain(None if left_out is None else len(left_out)))
    yield from _gauge("engine_reachable", "1 when the engine answered.", _plain(engine.get("reachable")))
    yield from _gauge("engine_workers", "Workers that answered.", _plain(engine.get("workers")))
    yield from _gauge("engine_workers_silent", "Known workers that did not answer.", _plain(engine.get("silent")))
    refused = engine.get("refused", {})
    help_text = "What the gateway refused since it started, by kind."
    yield from _gauge("gateway_refused", help_text, [({"kind": kind}, refused[kind]) for kind in sorted(refused)])
    yield from _gauge("event_seq", "Number of the newest event.", _plain(daemon.get("event_seq")))
    age = None if gauges.priced_at is None else max(0.0, gauges.now - gauges.priced_at)
    yield from _gauge("price_age_seconds", "Age of the oldest price among current offers.", _plain(age))
    spend = daemon.get("spend", {})
    yield from _gauge("spend_day_usd", "Money spent in this UTC day.", _plain(spend.get("day_usd")))
    yield from _gauge("spend_month_usd", "Money spent in this UTC month.", _plain(spend.get("month_usd")))
    yield from _budgets(spend, gauges.price_usd_per_h)


def _budgets(spend: SpendStatus, price_usd_per_h: float) -> Iterator[Metric]:
    """Yield the limits that are set, and what is left of each; less than 0 where one was lowered below the spending."""
    rows = list[tuple[dict[str, str], float, float]]()

    def add(limit_usd: float | None, used_usd: float, scope: str, name: str, period: str) -> None:
        if limit_usd is not None:
            rows.append(({"scope": scope, "name": name, "period": period}, limit_usd, limit_usd - used_usd))

    add(spend.get("per_hour_limit_usd"), price_usd_per_h, "total", "", "hour")
    add(spend.get("per_day_limit_usd"), spend.get("day_usd", 0.0), "total", "", "day")
    add(spend.get("per_month_limit_usd"), spend.get("month_usd", 0.0), "total", "", "month")
    for tag in spend.get("by_tag", ()):
        add(tag["per_day_limit_usd"], tag["day_usd"], "tag", tag["tag"], "day")
        add(tag["per_month_limit_usd"], tag["month_usd"], "tag", tag["tag"], "month")
    yield from _gauge(
        "budget_limit_usd", "Budgets that are set, by scope and period.", [(labels, limit) for labels, limit, _ in rows]
    )
    help_text = "Money left of each budget in its hour, UTC day or month."
    yield from _gauge("budget_left_usd", help_text, [(labels, left) for labels, _, left in rows])


def _instances(counts: Mapping[tuple[str, str], int]) -> list[tuple[dict[str, str], float]]:
    states = [state for state in InstanceState if state is not InstanceState.TERMINATED]
    return [
        ({"state": state.value, "market": market.value}, counts.get((state.value, market.value), 0))
        for state in states
        for market in Market
    ]


def _flag(error: str | None) -> bool | None:
    return None if error is None else bool(error)


def _plain(value: float | None) -> list[tuple[dict[str, str], float]]:
    return [] if value is None else [({}, value)]


def _gauge(name: str, meaning: str, samples: _Samples) -> Iterator[Metric]:
    """Yield a gauge; nothing if it has no samples."""
    family = GaugeMetricFamily(f"hcloud_{name}", meaning)
    for labels, value in samples:
        family.add_sample(family.name, dict(labels), float(value))
    if family.samples:
        yield family


_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


class RequestMetrics:
    """ASGI middleware that counts and times requests. Outermost, so that those without permission count too."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; record its status code and how long it took."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, code, waits = time.perf_counter(), 500, _waits(scope)

        async def noting(message: Message) -> None:
            nonlocal code, waits
            if message["type"] == "http.response.start":
                code = message["status"]
                waits = waits or _EVENT_STREAM in message.get("headers", ())
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            route = scope.get("route")
            template = str(getattr(route, "path", "")) or "(none)"
            duration_s = None if waits else time.perf_counter() - began_s
            self._telemetry.record_request(_method(scope), template, code, duration_s)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"


def _waits(scope: Scope) -> bool:
    """Return whether a request waits for news, which takes as long as nothing happens."""
    query = parse_qs(scope["query_string"].decode("latin-1"))
    return any(value.strip("0.") for value in query.get("wait_s", ()))
