"""Policies tried with several seeds: means, how sure they are, and how each differs from the first, seed by seed.

With every seed chance deals anew: boots, stockouts, spot machines taken back, and where the workload is a scenario its
jobs. Two policies that met the same chance are compared with each other, so that a good or bad hour counts for neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev

from scipy.special import stdtrit

from hcloud.report.table import Column, ReportTable, Row, Unit, Value, share_pct
from hcloud.simulator.bound import Bound
from hcloud.simulator.optimality import peer_notes, times_bound, unused_commitment_usd
from hcloud.simulator.outcome import NOTES, SimulationResult, defects_of, failures_of, wait_notes
from hcloud.simulator.performance import kept_pct, mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean over seeds and how far its 95 % limits are from it (None: there was only one seed)."""

    value: float
    half_width: float | None

    def text(self) -> str:
        """Return it as people write it."""
        return f"{self.rounded:.3g}" + ("" if self.half_width is None else f" ±{self.half_width:.2g}")

    @property
    def rounded(self) -> float:
        """The value; 0 where it differs from that by what adding up floats leaves behind only."""
        return round(self.value, 9) + 0.0


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean with its 95 % limits (Student's t). Raises ValueError without values."""
    if not values:
        raise ValueError("no values, no mean")
    if len(values) == 1:
        return Mean(value=values[0], half_width=None)
    reach = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / len(values) ** 0.5
    return Mean(value=fmean(values), half_width=reach)


NEGLIGIBLE = 0.005
"""Differences, in percent and points, that nobody would call one."""
LIMIT = "_limit"
"""What is behind a column's name, before its unit, where it says how far the 95 % limits are from the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """What came of one policy with each seed; ``bounds``: the least it can cost with each, where that is wanted."""

    name: str
    outcomes: tuple[SimulationResult, ...]
    bounds: tuple[Bound, ...] = ()


def repeated_table(policies: Sequence[Repeated], seeds: Sequence[int]) -> ReportTable:
    """Return one row per policy: means over ``seeds`` and their limits. The notes say how each differs from the first.

    A number that is not there with every seed (of targets, without any) is not there at all.
    """
    unasked = _ONLY_WITH_BOUNDS if not policies[0].bounds else _NAMES - _WITH_BOUNDS
    asked = [each for each in _MEASURES if each.name not in unasked]
    measures = [each for each in asked if any(_values(policy, policies[0], each) for policy in policies)]
    columns = [Column(name="policy")]
    for each in measures:
        columns += [
            Column(name=f"{each.name}{each.ending}", unit=each.unit),
            Column(name=f"{each.name}{LIMIT}{each.ending}", unit=each.unit),
        ]
    rows = tuple((policy.name, *_numbers(policy, policies[0], measures)) for policy in policies)
    columns += [Column(name="succeeded"), Column(name="jobs")]
    counts = [(sum(each.succeeded for each in of.outcomes), sum(each.jobs for each in of.outcomes)) for of in policies]
    whole: tuple[Row, ...] = tuple((*row, *count) for row, count in zip(rows, counts, strict=True))
    notes = (*_notes(policies, seeds), *_single_seed_notes(policies, seeds))
    return ReportTable(title="Simulated with several seeds", columns=tuple(columns), rows=whole, notes=notes)


def paired(table: ReportTable, shown: Callable[[Value, Value, str], str]) -> ReportTable:
    """Return a table for people: each number with its limits behind it, as ``shown`` writes both with their unit."""
    names = [column.name for column in table.columns]
    limits = {at: at + 1 for at, name in enumerate(names[:-1]) if LIMIT in names[at + 1] and LIMIT not in name}
    kept = [at for at, name in enumerate(names) if LIMIT not in name]

    def together(row: Row, at: int) -> Value:
        """Return a cell as it is, or with its limits."""
        limit = row[limits[at]] if at in limits else None
        return row[at] if limit is None else shown(row[at], limit, table.columns[at].unit)

    rows = tuple(tuple(together(row, at) for at in kept) for row in table.rows)
    return ReportTable(title=table.title, columns=tuple(table.columns[at] for at in kept), rows=rows, notes=table.notes)


# ------------------------------------------------------------------------------------------------------------- numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class _Measure:
    """A column: its name, its unit, and what it is with one seed (``of``: outcome, that of the first, and bound)."""

    name: str
    unit: Unit
    of: Callable[[SimulationResult, SimulationResult, Bound | None], float | None]

    @property
    def ending(self) -> str:
        """What the unit adds to the name."""
        return {"usd": "_usd", "s": "_s", "%": "_pct"}.get(self.unit, "")


def _percent(part: float | None) -> float | None:
    return None if part is None else 100.0 * part


_MEASURES: tuple[_Measure, ...] = (
    _Measure(name="cost", unit="usd", of=lambda each, _, __: each.cost_usd),
    _Measure(name="cost", unit="%", of=lambda each, first, _: share_pct(each.cost_usd, first.cost_usd)),
    _Measure(name="times_bound", unit="", of=lambda each, _, bound: times_bound(each, bound) if bound else None),
    _Measure(name="target_met", unit="%", of=lambda each, _, __: each.target_met_pct),
    _Measure(name="batch_met", unit="%", of=lambda each, _, __: each.batch_met_pct),
    _Measure(name="service_met", unit="%", of=lambda each, _, __: each.service_met_pct),
    _Measure(name="qos_kept", unit="%", of=lambda each, _, __: kept_pct(each.performance)),
    _Measure(name="performance", unit="%", of=lambda each, _, __: _percent(mean(each.performance))),
    _Measure(name="wait_p95", unit="s", of=lambda each, _, __: each.wait_quantile_s(0.95)),
    _Measure(name="used", unit="%", of=lambda each, _, __: share_pct(each.held_vcpu_h, each.up_vcpu_h)),
    _Measure(name="launches", unit="", of=lambda each, _, __: float(each.launches)),
    _Measure(name="used_once", unit="%", of=lambda each, _, __: share_pct(each.used_once, each.launches)),
    _Measure(name="unused_commitment", unit="usd", of=lambda each, _, __: unused_commitment_usd(each)),
)
_WITH_BOUNDS = {"cost", "times_bound", "target_met", "wait_p95", "launches", "used_once", "unused_commitment"}
"""What is told where several tools' rules are held against the least that could be paid."""
_ONLY_WITH_BOUNDS = {"used_once", "unused_commitment"}
_NAMES = {each.name for each in _MEASURES}


def _values(policy: Repeated, first: Repeated, measure: _Measure) -> list[float]:
    """Return a number with each seed; nothing where one of them lacks it."""
    bounds = policy.bounds or (None,) * len(policy.outcomes)
    found = [measure.of(*each) for each in zip(policy.outcomes, first.outcomes, bounds, strict=True)]
    return [each for each in found if each is not None] if None not in found else []


def _numbers(policy: Repeated, first: Repeated, measures: Sequence[_Measure]) -> Iterator[Value]:
    for each in measures:
        values = _values(policy, first, each)
        known = mean_of(values) if values else None
        yield known.value if known is not None else None
        yield known.half_width if known is not None else None


# --------------------------------------------------------------------------------------------------------------- words
def _notes(policies: Sequence[Repeated], seeds: Sequence[int]) -> Iterator[str]:
    yield (
        f"means of {len(seeds)} seeds ({seeds[0]} to {seeds[-1]}) with their 95 % limits (Student's t); cost %: of "
        f"what {policies[0].name} cost with the same seed; succeeded, jobs: of all seeds"
    )
    for each in policies[1:]:
        yield verdict(policies[0], each)
    yield from peer_notes([each.name for each in policies]) if policies[0].bounds else NOTES[1:3]


def verdict(first: Repeated, other: Repeated) -> str:
    """Return in words how a policy differs from the first one, and whether that may be chance."""
    pairs = list(zip(first.outcomes, other.outcomes, strict=True))
    usd = [(ours.cost_usd, theirs.cost_usd) for ours, theirs in pairs]
    said = [_more("cost", mean_of([100.0 * (b / a - 1.0) for a, b in usd]), "%")] if all(a for a, _ in usd) else []
    met = [
        b.target_met_pct - a.target_met_pct
        for a, b in pairs
        if a.target_met_pct is not None and b.target_met_pct is not None
    ]
    if len(met) == len(pairs):
        said.append(_more("targets met", mean_of(met), "points"))
    return f"{other.name}, beside {first.name}: " + ("; ".join(said) or "nothing to compare")


def _more(what: str, by: Mean, unit: str) -> str:
    half = by.half_width or 0.0
    if abs(by.value) < NEGLIGIBLE and half < NEGLIGIBLE:
        return f"{what} the same"
    most = max(abs(by.value), half)
    digits = 0 if most >= 100 else 1 if most >= 1 else 2
    words = f"{what} {abs(by.value):.{digits}f} ±{half:.{digits}f} {unit} {'more' if by.value > 0 else 'less'}"
    return words if abs(by.value) > half else f"{words}, which may be chance"


def _single_seed_notes(policies: Sequence[Repeated], seeds: Sequence[int]) -> Iterator[str]:
    """Yield what jobs waited for with the first seed; failures and defects with the first seed that has any of them."""
    for note in wait_notes([each.outcomes[0] for each in policies]):
        yield f"seed {seeds[0]}, {note}"
    for policy, what in product(policies, (failures_of, defects_of)):
        told = [(seed, what(each)) for seed, each in zip(seeds, policy.outcomes, strict=True) if what(each)]
        more = f" (so with {len(told)} of {len(seeds)} seeds)" if len(told) > 1 else ""
        yield from [f"seed {seed}, {note}{more}" for seed, note in told[:1]]


def mean_costs(policies: Sequence[Repeated]) -> Mapping[str, Mean]:
    """Return by policy what it costs (USD), for a picture."""
    return {each.name: mean_of([outcome.cost_usd for outcome in each.outcomes]) for each in policies}


def mean_targets(policies: Sequence[Repeated]) -> Mapping[str, Mean]:
    """Return by policy how many of its promises it keeps (%), for a picture; those that made none are left out."""
    found = {each.name: [outcome.target_met_pct for outcome in each.outcomes] for each in policies}
    return {name: mean_of([v for v in values if v is not None]) for name, values in found.items() if None not in values}
