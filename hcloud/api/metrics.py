"""Prometheus metrics of the daemon, in the text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hcloud import __version__
from hcloud.api.context import DaemonStatus
from hcloud.core.model import InstanceState, JobState, Market


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


def exposition(gauges: Gauges) -> str:
    """Return the metrics as text. Empty states and markets are 0, so that series do not appear and disappear."""
    return "".join(f"{line}\n" for line in _lines(gauges))


def _lines(gauges: Gauges) -> Iterator[str]:
    daemon = gauges.daemon
    cycle, engine = daemon.get("cycle", {}), daemon.get("engine", {})
    yield from _metric("build_info", "Version of HCloud.", [({"version": __version__}, 1)])
    yield from _metric("up_since_seconds", "When the daemon started.", _plain(daemon.get("started_at")))
    yield from _metric("leader", "1 when this daemon plans.", _plain(daemon.get("leader")))
    yield from _metric("jobs", "Jobs by state.", [({"state": state}, gauges.jobs.get(state, 0)) for state in JobState])
    yield from _metric("instances", "Instances by state and market.", _instances(gauges.instances))
    yield from _metric(
        "price_usd_per_hour",
        "Cost of the billed instances per hour.",
        [({"market": market}, price) for market, price in gauges.price_usd_per_h_by_market.items()],
    )
    yield from _metric("cycle_duration_seconds", "Duration of the last cycle.", _plain(cycle.get("duration_s")))
    yield from _metric("cycle_failed", "1 when the last cycle ended with an error.", _plain(_flag(cycle.get("error"))))
    left_out = cycle.get("left_out")
    help_text = "Jobs, stages and calls in quarantine because HCloud fails on them with a defect."
    yield from _metric("planning_left_out", help_text, _plain(None if left_out is None else len(left_out)))
    yield from _metric("engine_reachable", "1 when the engine answered.", _plain(engine.get("reachable")))
    yield from _metric("engine_workers", "Workers that answered.", _plain(engine.get("workers")))
    yield from _metric("engine_workers_silent", "Known workers that did not answer.", _plain(engine.get("silent")))
    refused = engine.get("refused", {})
    help_text = "What the gateway refused since it started, by kind."
    yield from _metric("gateway_refused", help_text, [({"kind": kind}, refused[kind]) for kind in sorted(refused)])
    yield from _metric("event_seq", "Number of the newest event.", _plain(daemon.get("event_seq")))
    age = None if gauges.priced_at is None else max(0.0, gauges.now - gauges.priced_at)
    yield from _metric("price_age_seconds", "Age of the oldest price among current offers.", _plain(age))
    spend = daemon.get("spend", {})
    yield from _metric("spend_day_usd", "Money spent in this UTC day.", _plain(spend.get("day_usd")))
    yield from _metric("spend_month_usd", "Money spent in this UTC month.", _plain(spend.get("month_usd")))


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


def _metric(name: str, meaning: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> Iterator[str]:
    lines = [f"hcloud_{name}{_labels(labels)} {float(value):.15g}" for labels, value in samples]
    if lines:
        yield f"# HELP hcloud_{name} {meaning}"
        yield f"# TYPE hcloud_{name} gauge"
        yield from lines


def _labels(labels: Mapping[str, str]) -> str:
    escaped = (f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return "{" + ",".join(escaped) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
