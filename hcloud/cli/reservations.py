"""Advice on commitments for all types that the daemon launched: reservations of each, and savings plans over all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hcloud.catalog import PriceCatalogue, PricePlan
from hcloud.cli.output import console, table, usd, write_csv, write_json
from hcloud.core.errors import BadInput
from hcloud.core.units import parse_number, shown
from hcloud.forecast.load import LoadCurve
from hcloud.planner.provisioning.commitments import Advice, Terms, advise

PLANS_HEADER = ("cloud", "region", "type", "term_months", "usd_per_h")
NO_PRICE = "no price"
CONCURRENT_USE = ("gce",)
"""Clouds whose commitments apply to what runs at the same time: what is unused at one moment is lost."""
COMMITMENTS: Mapping[PricePlan, float] = {PricePlan.COMMIT_1Y: 12.0, PricePlan.COMMIT_3Y: 36.0}
"""Commitments in the catalogue, with their terms in months."""
PLAN_STEP_USD_PER_H = 0.01
"""Savings plans are advised in such steps."""
FIELDS = (
    "what", "mean_load", "peak_load", "option", "count", "commit_usd_per_h", "usd_per_h", "on_demand_usd_per_h",
    "saving", "break_even_weeks",
)  # fmt: skip
COLUMNS = ("what", ">mean", ">peak", "option", ">reserve", ">usd/h", ">on demand", ">saves %", ">weeks")
SAVINGS_PLAN = "savings plan"
Changes = Sequence[tuple[float, float]]
"""Times at which a machine was launched (1) or ended (-1), or a part of one was taken or given back."""


class PriceRegion(NamedTuple):
    """A type of a cloud's region, as in the price catalogue."""

    cloud: str
    region: str
    type: str

    @classmethod
    def named(cls, provider: str, region: str, kind: str, catalogue: PriceCatalogue) -> PriceRegion:
        """Return where a machine is priced. Events have the provider's name, which need not be that of its cloud."""
        clouds = [key.cloud for key in catalogue.quotes if (key.region, key.type) == (region, kind)]
        return cls(provider if provider in clouds or not clouds else clouds[0], region, kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeAdvice:
    """What to commit to for one type, or for all of a cloud."""

    what: str
    load: LoadCurve | None
    """Machines over time; None for a savings plan."""
    advice: Advice | None
    """The cheapest option; None: no price is known."""
    unit_usd_per_h: float = 0.0
    """What a savings plan commits to with each count; 0 for machines."""

    def values(self) -> tuple[object, ...]:
        """Return the values of FIELDS."""
        best, load = self.advice, self.load
        machines = (None, None) if load is None else (load.mean, load.peak)
        if best is None:
            return (self.what, *machines, NO_PRICE, None, None, None, None, None, None)
        committed = best.count * (self.unit_usd_per_h or best.terms.amortised_usd_per_h)
        costs = (committed, best.usd_per_h, best.on_demand_usd_per_h, best.saving, best.break_even_weeks)
        return (self.what, *machines, best.terms.name, None if self.unit_usd_per_h else best.count, *costs)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllTypes:
    """Advice on every type, the most to save first, with what should be known of it."""

    rows: tuple[TypeAdvice, ...]
    notes: tuple[str, ...]


def advise_all(
    changes: Mapping[PriceRegion, Changes],
    catalogue: PriceCatalogue,
    plan_prices: Mapping[tuple[PriceRegion, float], float],
    now: float,
) -> AllTypes:
    """Return the best commitment for each type, and the best savings plan of each cloud.

    ``plan_prices``: savings plan prices in USD per hour, by place and term in months.
    """
    loads = {place: load_curve(found, now) for place, found in changes.items()}
    rows = [_advise_type(place, load, catalogue) for place, load in loads.items()]
    clouds = sorted({place.cloud for place in loads})
    rows += [_advise_plan(cloud, changes, catalogue, plan_prices, now) for cloud in clouds]
    rows.sort(key=lambda row: (row.advice is None, -_saved_usd_per_h(row), row.what))
    seconds = max(float(load.seconds.sum()) for load in loads.values())
    notes = [
        "weeks: of this load until all that the commitment costs is earned back; empty: it is not within its term",
        f"{SAVINGS_PLAN}: over all types of a cloud with a known price, at their mean discount; reservations and a "
        "savings plan exclude each other for the same machines",
        f"{NO_PRICE}: the catalogue has no price of a commitment for it (savings plans: give --savings-plans)",
    ]
    if seconds < 28 * 86_400:
        notes.append(f"only {seconds / 86_400:.1f} days of load are known, too little to commit for a year")
    return AllTypes(rows=tuple(rows), notes=tuple(notes))


def _saved_usd_per_h(row: TypeAdvice) -> float:
    return 0.0 if row.advice is None else row.advice.on_demand_usd_per_h - row.advice.usd_per_h


def load_curve(changes: Iterable[tuple[float, float]], now: float) -> LoadCurve:
    """Return the number of machines over time: the sum of changes up to each time."""
    level, samples = 0.0, dict[float, float]()
    for at, change in sorted(changes):
        level += change
        samples[at] = max(0.0, level)
    return LoadCurve.of(samples.items(), until_at=max(now, max(samples) + 1.0))


def _advise_type(place: PriceRegion, load: LoadCurve, catalogue: PriceCatalogue) -> TypeAdvice:
    listed = catalogue.price(*place)
    options = [
        Terms(name=_option("reserved", months), term_months=months, upfront_usd=0.0, usd_per_h=quote.usd_per_h)
        for plan, months in COMMITMENTS.items()
        if (quote := catalogue.price(*place, plan)) is not None
    ]
    used = load if place.cloud in CONCURRENT_USE else load.per_clock_hour()
    known = listed is not None and listed.usd_per_h > 0 and bool(options)
    best = advise(used, listed.usd_per_h, options)[0] if listed is not None and known else None
    return TypeAdvice(what="/".join(place), load=load, advice=best)


def _advise_plan(
    cloud: str,
    changes: Mapping[PriceRegion, Changes],
    catalogue: PriceCatalogue,
    plan_prices: Mapping[tuple[PriceRegion, float], float],
    now: float,
) -> TypeAdvice:
    """Return the best savings plan of a cloud: it commits to an amount per hour, at the plan's price of each type."""
    found = list[Advice]()
    for months in sorted({months for place, months in plan_prices if place.cloud == cloud}):
        weighted, listed_usd, plan_usd = list[tuple[float, float]](), 0.0, 0.0
        for place, times in changes.items():
            quote, price = catalogue.price(*place), plan_prices.get((place, months))
            if place.cloud != cloud or quote is None or price is None:
                continue
            mean = load_curve(times, now).mean
            listed_usd, plan_usd = listed_usd + mean * quote.usd_per_h, plan_usd + mean * price
            weighted += [(at, change * price / PLAN_STEP_USD_PER_H) for at, change in times]
        if plan_usd > 0.0:
            terms = Terms(name=_option(SAVINGS_PLAN, months), term_months=months, upfront_usd=0.0,
                          usd_per_h=PLAN_STEP_USD_PER_H)  # fmt: skip
            spent = load_curve(weighted, now)
            used = spent if cloud in CONCURRENT_USE else spent.per_clock_hour()
            found += advise(used, PLAN_STEP_USD_PER_H * listed_usd / plan_usd, [terms])
    best = min(found, key=lambda each: each.usd_per_h, default=None)
    return TypeAdvice(what=f"{cloud} (all types)", load=None, advice=best, unit_usd_per_h=PLAN_STEP_USD_PER_H)


def _option(what: str, months: float) -> str:
    return f"{what}, {months / 12:g} year{'s' if months > 12 else ''}, no upfront"


def read_plan_prices(
    rows: Iterable[tuple[int, Mapping[str, str]]], file: Path
) -> dict[tuple[PriceRegion, float], float]:
    """Return the prices of a file with PLANS_HEADER. Raises BadInput, naming the line."""
    prices: dict[tuple[PriceRegion, float], float] = {}
    for line, row in rows:
        numbers = [parse_number((row[name] or "").strip()) for name in PLANS_HEADER[3:]]
        for name, value in zip(PLANS_HEADER[3:], numbers, strict=True):
            if value is None or not 0 < value <= 1e4:
                raise BadInput(f"{file}:{line}: {name} is {shown(row[name])}; it must be a number above 0")
        months, usd_per_h = (value or 0.0 for value in numbers)
        prices[PriceRegion(row["cloud"], row["region"], row["type"]), months] = usd_per_h
    return prices


def weeks_text(weeks: float | None) -> str:
    """Return a number of weeks as text; empty without."""
    return "" if weeks is None else f"{weeks:.1f}"


def show_all(found: AllTypes, form: str) -> None:
    """Print the advice on all types."""
    rows = [each.values() for each in found.rows]
    if form == "json":
        write_json({"advice": [dict(zip(FIELDS, row, strict=True)) for row in rows], "notes": list(found.notes)})
    elif form == "csv":
        write_csv(FIELDS, [list(row) for row in rows])
    else:
        out = console()
        out.print(table(COLUMNS, [_cells(each) for each in found.rows]))
        for note in found.notes:
            out.print(note, style="dim")


def _cells(row: TypeAdvice) -> list[str]:
    load, best = row.load, row.advice
    machines = ["", ""] if load is None else [f"{load.mean:.1f}", f"{load.peak:g}"]
    if best is None:
        return [row.what, *machines, NO_PRICE, "", "", "", "", ""]
    reserve = f"{usd(best.count * row.unit_usd_per_h)}/h" if row.unit_usd_per_h else str(best.count)
    costs = [f"{best.usd_per_h:.4f}", f"{best.on_demand_usd_per_h:.4f}", f"{100 * best.saving:.1f}"]
    return [row.what, *machines, best.terms.name, reserve, *costs, weeks_text(best.break_even_weeks)]
