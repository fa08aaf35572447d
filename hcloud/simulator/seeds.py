"""Policies compared over several seeds: means, confidence limits, and paired differences from the first policy.

Each seed draws new boot times, stockouts, preemptions and, for scenarios, new jobs. Differences are taken seed by seed,
so that a good or bad hour does not favour a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev

from hcloud.report.spending_accounts import SPENT, Account
from hcloud.report.table import Column, ReportTable, Row, Unit, Value, share_pct
from hcloud.simulator.bound import Bound
from hcloud.simulator.optimality import peer_notes, times_bound, times_bound_in_time, unused_commitment_usd
from hcloud.simulator.outcome import NOTES, SimulationResult, defects_of, failures_of, wait_notes
from hcloud.simulator.performance import kept_pct, mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean over seeds with its 95 % limits."""

    value: float
    half_width: float | None
    """Distance of the limits from the mean; None with one seed."""

    def text(self) -> str:
        """Return the rounded mean and limits as text."""
        return f"{self.rounded:.3g}" + ("" if self.half_width is None else f" ±{self.half_width:.2g}")

    @property
    def rounded(self) -> float:
        """The value without floating-point residue."""
        return round(self.value, 9) + 0.0


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean with its 95 % limits (Student's t). Raises ValueError without values."""
    if not values:
        raise ValueError("no values, no mean")
    if len(values) == 1:
        return Mean(value=values[0], half_width=None)
    from scipy.special import stdtrit  # slow to import, and not needed for one seed

    reach = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / len(values) ** 0.5
    return Mean(value=fmean(values), half_width=reach)


NEGLIGIBLE = 0.005
"""Differences below this, in percent or points, count as none."""
LIMIT = "_limit"
"""Suffix of a column's name, before its unit, for the distance of the 95 % limits from the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The results of one policy with each seed."""

    name: str
    outcomes: tuple[SimulationResult, ...]
    bounds: tuple[Bound, ...] = ()
    """The lower bound on its cost with each seed; empty if not computed."""


def repeated_table(policies: Sequence[Repeated], seeds: Sequence[int]) -> ReportTable:
    """Return one row per policy: means over ``seeds`` with limits. The notes compare each policy with the first.

    A number that is missing with any seed (for instance targets, if no job has one) is left out.
    """
    hidden = _ONLY_WITH_BOUNDS if not policies[0].bounds else _NAMES - _WITH_BOUNDS
    visible = [each for each in _MEASURES if each.name not in hidden]
    measures = [each for each in visible if any(_values(policy, policies[0], each) for policy in policies)]
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
    """Return a table for people: each number together with its limits, formatted by ``shown(value, limit, unit)``."""
    names = [column.name for column in table.columns]
    limits = {at: at + 1 for at, name in enumerate(names[:-1]) if LIMIT in names[at + 1] and LIMIT not in name}
    kept = [at for at, name in enumerate(names) if LIMIT not in name]

    def together(row: Row, at: int) -> Value:
        limit = row[limits[at]] if at in limits else None
        return row[at] if limit is None else shown(row[at], limit, table.columns[at].unit)

    rows = tuple(tuple(together(row, at) for at in kept) for row in table.rows)
    return ReportTable(title=table.title, columns=tuple(table.columns[at] for at in kept), rows=rows, notes=table.notes)


# ------------------------------------------------------------------------------------------------------------- numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class _Measure:
    """A column of the table."""

    name: str
    unit: Unit
    of: Callable[[SimulationResult, SimulationResult, Bound | None], float | None]
    """Its value with one seed, from the outcome, the first policy's outcome, and the bound."""

    @property
    def ending(self) -> str:
        """The suffix that the unit adds to the column's name."""
        return {"usd": "_usd", "s": "_s", "%": "_pct"}.get(self.unit, "")


def _percent(part: float | None) -> float | None:
    return None if part is None else 100.0 * part


def _account_measures(account: Account) -> tuple[_Measure, _Measure]:
    name = f"{SPENT}{account}"
    return (
        _Measure(name=name, unit="usd", of=lambda each, _, __: each.spending.amount_usd(account)),
        _Measure(name=name, unit="%", of=lambda each, _, __: each.spending.share_pct(account)),
    )


def _times_in_time(outcome: SimulationResult, bound: Bound | None) -> float | None:
    return None if bound is None else times_bound_in_time(outcome, bound)


_ACCOUNTS = tuple(measure for account in Account for measure in _account_measures(account))
_MEASURES: tuple[_Measure, ...] = (
    _Measure(name="cost", unit="usd", of=lambda each, _, __: each.cost_usd),
    _Measure(name="cost", unit="%", of=lambda each, first, _: share_pct(each.cost_usd, first.cost_usd)),
    _Measure(name="times_bound", unit="", of=lambda each, _, bound: times_bound(each, bound) if bound else None),
    _Measure(name="times_bound_in_time", unit="", of=lambda each, _, bound: _times_in_time(each, bound)),
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
    *_ACCOUNTS,
)
_WITH_BOUNDS = {"cost", "times_bound", "times_bound_in_time", "target_met", "wait_p95", "launches", "used_once"}
_WITH_BOUNDS |= {"unused_commitment", *(each.name for each in _ACCOUNTS)}
"""Measures shown if bounds were computed."""
_ONLY_WITH_BOUNDS = {"used_once", "unused_commitment"}
"""Measures shown only then."""
_NAMES = {each.name for each in _MEASURES}


def _values(policy: Repeated, first: Repeated, measure: _Measure) -> list[float]:
    """Return the measure with each seed; empty if any seed lacks it."""
    bounds = policy.bounds or (None,) * len(policy.outcomes)
    values = [measure.of(*each) for each in zip(policy.outcomes, first.outcomes, bounds, strict=True)]
    return [each for each in values if each is not None] if None not in values else []


def _numbers(policy: Repeated, first: Repeated, measures: Sequence[_Measure]) -> Iterator[Value]:
    for each in measures:
        values = _values(policy, first, each)
        known = mean_of(values) if values else None
        yield known.value if known is not None else None
        yield known.half_width if known is not None else None


# --------------------------------------------------------------------------------------------------------------- words
def _notes(policies: Sequence[Repeated], seeds: Sequence[int]) -> Iterator[str]:
    yield (
        f"means over {len(seeds)} seeds ({seeds[0]} to {seeds[-1]}) with 95 % limits (Student's t); cost %: relative "
        f"to {policies[0].name} with the same seed; succeeded, jobs: sums over all seeds"
    )
    for each in policies[1:]:
        yield verdict(policies[0], each)
    yield from peer_notes([each.name for each in policies]) if policies[0].bounds else NOTES[1:3]


def verdict(first: Repeated, other: Repeated) -> str:
    """Return a sentence on how a policy differs from the first one, and whether the difference is significant."""
    pairs = list(zip(first.outcomes, other.outcomes, strict=True))
    usd = [(ours.cost_usd, theirs.cost_usd) for ours, theirs in pairs]
    parts = [_more("cost", mean_of([100.0 * (b / a - 1.0) for a, b in usd]), "%")] if all(a for a, _ in usd) else []
    met = [
        b.target_met_pct - a.target_met_pct
        for a, b in pairs
        if a.target_met_pct is not None and b.target_met_pct is not None
    ]
    if len(met) == len(pairs):
        parts.append(_more("targets met", mean_of(met), "points"))
    return f"{other.name} compared with {first.name}: " + ("; ".join(parts) or "nothing to compare")


def _more(what: str, by: Mean, unit: str) -> str:
    half = by.half_width or 0.0
    if abs(by.value) < NEGLIGIBLE and half < NEGLIGIBLE:
        return f"{what} unchanged"
    most = max(abs(by.value), half)
    digits = 0 if most >= 100 else 1 if most >= 1 else 2
    text = f"{what} {abs(by.value):.{digits}f} ±{half:.{digits}f} {unit} {'higher' if by.value > 0 else 'lower'}"
    return text if abs(by.value) > half else f"{text} (not significant)"


def _single_seed_notes(policies: Sequence[Repeated], seeds: Sequence[int]) -> Iterator[str]:
    """Yield what jobs waited for with the first seed, and failures and bugs with the first seed that has any."""
    for note in wait_notes([each.outcomes[0] for each in policies]):
        yield f"seed {seeds[0]}, {note}"
    for policy, note_on in product(policies, (failures_of, defects_of)):
        noted = [(seed, text) for seed, each in zip(seeds, policy.outcomes, strict=True) if (text := note_on(each))]
        more = f" (with {len(noted)} of {len(seeds)} seeds)" if len(noted) > 1 else ""
        yield from [f"seed {seed}, {text}{more}" for seed, text in noted[:1]]


def mean_costs(policies: Sequence[Repeated]) -> Mapping[str, Mean]:
    """Return the mean cost (USD) by policy, for a chart."""
    return {each.name: mean_of([outcome.cost_usd for outcome in each.outcomes]) for each in policies}


def mean_targets(policies: Sequence[Repeated]) -> Mapping[str, Mean]:
    """Return the mean percentage of targets met by policy, for a chart; policies without targets are left out."""
    by_name = {each.name: [outcome.target_met_pct for outcome in each.outcomes] for each in policies}
    known = {name: [pct for pct in values if pct is not None] for name, values in by_name.items() if None not in values}
    return {name: mean_of(values) for name, values in known.items()}
