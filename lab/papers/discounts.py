"""The cost of rented machines under discounts for sustained use over a month (Dissertation §8.5.3: Google's)."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcloud.simulator.outcome import Series

TIERS = ((0.25, 1.0), (0.5, 0.8), (0.75, 0.6), (1.0, 0.4))
"""Google's sustained use discounts at the time: up to which share of a month, which share of the price."""
LEVELS = 400
"""Resolution in vCPUs."""
SUSTAINED = 0.7
"""The mean share of the list price for a machine that is up for a whole month."""


def sustained_part(series: Series, until_s: float = inf) -> float:
    """Return the share (0..1] of the list price that rented vCPUs cost with sustained use discounts.

    The run up to ``until_s`` stands for a whole month. Machines of one type are pooled (Dissertation §8.5.3): of ``n``
    vCPUs the first is up while any is, the last while all are.
    """
    moments = slice(None) if until_s == inf else np.array(series.at_s) <= until_s
    each = [_listed_and_paid(np.array(up)[moments]) for up in series.rented_vcpus.values()]
    listed, paid = (sum(amounts) for amounts in zip(*each, strict=True)) if each else (0.0, 0.0)
    return paid / listed if listed > 0 else 1.0


def _listed_and_paid(up: NDArray[Any]) -> tuple[float, float]:
    """Return the cost of vCPUs of one type, ``up`` at each time, at the list price and with discounts."""
    most = float(up.max(initial=0.0))
    levels = (np.arange(LEVELS) + 0.5) / LEVELS * most
    used = (up[None, :] > levels[:, None]).mean(axis=1)
    return float(used.sum()) * most, float((used * _paid_part(used)).sum()) * most


def _paid_part(used: NDArray[Any]) -> NDArray[Any]:
    """Return the mean share of the list price for vCPUs up for shares (0..1] of a month; 1 if never up."""
    paid, before = np.zeros_like(used), 0.0
    for until, part in TIERS:
        paid += part * np.clip(used - before, 0.0, until - before)
        before = until
    return np.where(used > 0, paid / np.where(used > 0, used, 1.0), 1.0)
