"""Utilisation of each machine over time, for the heat map of a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcloud.core.model import Market

ROWS, COLUMNS = 60, 120
"""Approximate number of rows and of time columns. With more machines several share a row, so that pictures stay
readable."""
_ORDER = tuple(market.value for market in (Market.RESERVED, Market.ON_DEMAND, Market.SPOT))


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLifetime:
    """A machine that was up from ``since_s`` to ``until_s`` (seconds from the start of the simulation)."""

    market: str
    """How it was paid for."""
    vcpus: float
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """vCPUs of a machine that one unit held; times are seconds from the start of the simulation."""

    machine: str
    vcpus: float
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Rows of one or more machines in launch order: reserved first, then on-demand, then spot."""

    machines: int = 0
    """The number of machines in all rows."""
    markets: tuple[str, ...] = ()
    """The market of each row."""
    shares: tuple[tuple[float | None, ...], ...] = ()
    """By row: the held share (0..1) of its vCPUs in each of COLUMNS equal intervals; None while no machine of it was
    up."""


def utilisation_of(lives: Mapping[str, MachineLifetime], holds: Iterable[Hold], span_s: float) -> Utilisation:
    """Return the utilisation of machines by their lifetimes and by what units held, over ``span_s`` seconds."""
    rows = _rows(lives)
    at = {name: row for row, (_, names) in enumerate(rows) for name in names}
    up, held = np.zeros((len(rows), COLUMNS)), np.zeros((len(rows), COLUMNS))
    for name, life in lives.items():
        up[at[name]] += life.vcpus * _seconds_in(life.since_s, life.until_s, span_s)
    for hold in holds:
        life = lives[hold.machine]
        since_s, until_s = max(hold.since_s, life.since_s), min(hold.until_s, life.until_s)
        held[at[hold.machine]] += hold.vcpus * _seconds_in(since_s, until_s, span_s)
    shares = np.where(up > 0, held / np.where(up > 0, up, 1.0), np.nan)
    return Utilisation(
        machines=len(lives),
        markets=tuple(market for market, _ in rows),
        shares=tuple(tuple(None if np.isnan(part) else float(part) for part in row) for row in shares),
    )


def _rows(lives: Mapping[str, MachineLifetime]) -> list[tuple[str, list[str]]]:
    """Return the market and the machine names of each row, in launch order."""
    together = -(-len(lives) // ROWS) or 1
    rows: list[tuple[str, list[str]]] = []
    for market in sorted({life.market for life in lives.values()}, key=_ORDER.index):
        names = sorted((n for n, life in lives.items() if life.market == market), key=lambda n: lives[n].since_s)
        rows += [(market, names[first : first + together]) for first in range(0, len(names), together)]
    return rows


def _seconds_in(since_s: float, until_s: float, span_s: float) -> NDArray[np.float64]:
    """Return the seconds of each interval between two times, shape ``(COLUMNS,)``."""
    edges = np.linspace(0.0, max(span_s, 1e-9), COLUMNS + 1)
    return np.asarray(np.maximum(0.0, np.minimum(until_s, edges[1:]) - np.maximum(since_s, edges[:-1])))
