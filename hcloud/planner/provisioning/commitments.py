"""How many instances to reserve, under which terms, for the least cost over the recorded load.

The first reserved instance is used most, each further one less. One more pays as long as its utilisation exceeds the
ratio of committed to on-demand price. The minimum cost over the distribution of load is where the last instance just
reaches this break-even (the newsvendor rule). All values are per instance of one type; prices are given by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hcloud.core.errors import BadInput
from hcloud.core.pricing import HOUR_S, amortised_usd_per_h
from hcloud.forecast.load import LoadCurve
from hcloud.planner.provisioning.strategies import Reserves, strategies_that_reserve

MONTH_H = 730.0
"""Hours of a month, as cloud providers count them."""
MONTH_S = MONTH_H * HOUR_S
WEEK_S = 7 * 86_400.0
SR_MARGIN = 0.15
"""SR reserves the peak plus 10 to 15 % (HCloud §8.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The price of committing to one instance."""

    name: str
    term_months: float
    upfront_usd: float
    """Paid once per instance."""
    usd_per_h: float
    """Paid per hour, used or not."""

    @property
    def amortised_usd_per_h(self) -> float:
        """The price per hour of the term, including the upfront part."""
        term_s = self.term_months * MONTH_S
        return amortised_usd_per_h(upfront_usd=self.upfront_usd, usd_per_h=self.usd_per_h, term_s=term_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """How many instances to commit to under one option, and the consequences. Costs are averages in USD per hour."""

    terms: Terms
    count: int
    usd_per_h: float
    on_demand_usd_per_h: float
    break_even_use: float
    """Utilisation (0..1) from which a committed instance pays."""
    use: float
    """Utilisation (0..1) of the committed instances under the recorded load."""
    upfront_usd: float
    pays_after_months: float | None
    """Time until the upfront payment is recovered; None: nothing was paid upfront, or it never is."""
    least_load: float
    """Part (0..1) of the recorded load down to which the commitment costs no more than on demand alone."""
    if_load_halves_usd_per_h: float
    """Loss against on demand alone if the load halved at once; negative: a gain."""
    by_week: tuple[int, int] | None
    """Smallest and largest count that is best for a single week; None: less than two weeks of load."""

    @property
    def break_even_weeks(self) -> float | None:
        """Weeks of this load after which all that the commitment costs is earned back, also if no more is used then.

        None: nothing is committed, or it is not earned back within the term.
        """
        committed_usd_per_h = self.count * self.terms.amortised_usd_per_h
        replaced_usd_per_h = self.on_demand_usd_per_h - (self.usd_per_h - committed_usd_per_h)
        if not committed_usd_per_h or replaced_usd_per_h < committed_usd_per_h:
            return None
        return self.terms.term_months * MONTH_S / WEEK_S * committed_usd_per_h / replaced_usd_per_h

    @property
    def saving(self) -> float:
        """Part (0..1) of the on-demand cost that is saved."""
        return 1.0 - self.usd_per_h / self.on_demand_usd_per_h if self.on_demand_usd_per_h > 0 else 0.0


def advise(load: LoadCurve, on_demand_usd_per_h: float, options: Sequence[Terms]) -> list[Advice]:
    """Return for each option the number of instances with the least cost, the cheapest option first.

    Raises BadInput if the on-demand price is not positive, or if there is no option.
    """
    if not on_demand_usd_per_h > 0:
        raise BadInput(f"the on-demand price is ${on_demand_usd_per_h:g}/h; it must be above 0")
    if not options:
        raise BadInput("no option to commit to; name at least one with its term and price")
    advices = [_advise(load, on_demand_usd_per_h, terms) for terms in options]
    return sorted(advices, key=lambda advice: (advice.usd_per_h, advice.terms.term_months, advice.terms.name))


def cost_usd_per_h(load: LoadCurve, on_demand_usd_per_h: float, committed_usd_per_h: float, count: int) -> float:
    """Return the average cost per hour of ``load`` with ``count`` instances committed, and the rest on demand."""
    use = load.use_of_layers()
    return count * committed_usd_per_h + float(use[count:].sum()) * on_demand_usd_per_h


def best_count(load: LoadCurve, on_demand_usd_per_h: float, committed_usd_per_h: float) -> int:
    """Return the number of instances to commit to for the least cost; of equal ones the smallest."""
    return int((load.use_of_layers() * on_demand_usd_per_h > committed_usd_per_h + 1e-12).sum())


def sizes_by_strategy(load: LoadCurve) -> dict[str, int]:
    """Return how many instances the strategies reserve, by their names: for the peak plus a margin, for the steady
    load."""
    counts = {
        Reserves.PEAK: int(np.ceil(load.peak * (1 + SR_MARGIN) - 1e-9)),
        Reserves.STEADY: int(np.floor(load.steady + 1e-9)),
    }
    return {", ".join(strategies_that_reserve(part)): count for part, count in counts.items()}


def _advise(load: LoadCurve, on_demand: float, terms: Terms) -> Advice:
    price = terms.amortised_usd_per_h
    count = best_count(load, on_demand, price)
    used = float(load.use_of_layers()[:count].sum())
    weeks = [best_count(week, on_demand, price) for week in load.parts(WEEK_S)]
    halved = load.scaled(0.5)
    return Advice(
        terms=terms,
        count=count,
        usd_per_h=cost_usd_per_h(load, on_demand, price, count),
        on_demand_usd_per_h=load.mean * on_demand,
        break_even_use=price / on_demand,
        use=used / count if count else 0.0,
        upfront_usd=count * terms.upfront_usd,
        pays_after_months=_pays_after_months(terms, count, used * on_demand),
        least_load=_least_load(load, on_demand, price, count),
        if_load_halves_usd_per_h=cost_usd_per_h(halved, on_demand, price, count) - halved.mean * on_demand,
        by_week=(min(weeks), max(weeks)) if len(weeks) > 1 else None,
    )


def _pays_after_months(terms: Terms, count: int, replaced_usd_per_h: float) -> float | None:
    gained_usd_per_h = replaced_usd_per_h - count * terms.usd_per_h
    if count == 0 or terms.upfront_usd <= 0 or gained_usd_per_h <= 0:
        return None
    return count * terms.upfront_usd / gained_usd_per_h / MONTH_H


def _least_load(load: LoadCurve, on_demand: float, price: float, count: int) -> float:
    if count == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        scaled = load.scaled(middle)
        pays = cost_usd_per_h(scaled, on_demand, price, count) <= scaled.mean * on_demand
        low, high = (low, middle) if pays else (middle, high)
    return high
