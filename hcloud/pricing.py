"""What an interval of use costs, and whose cost it is: pure arithmetic in seconds and USD.

A machine is billed from launch to its end, at least its billing minimum, at the price per hour of the moment (spot
prices move). A reserved machine's price is its amortised one. The cost of a stretch of time belongs to the units that
hold the machine then, each by its dominant share (the larger of its vCPU and memory fractions; Dominant Resource
Fairness, Ghodsi et al., NSDI 2011); what nobody holds is idle, or boot before the machine was ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

HOUR_S = 3600.0


def billed_until(launched_at: float, ended_at: float, billing_minimum_s: float) -> float:
    """Return the Unix time up to which a machine that ended is billed: at least the billing minimum after launch."""
    return max(ended_at, launched_at + max(0.0, billing_minimum_s))


def billed_s(used_s: float, billing_minimum_s: float) -> float:
    """Return for how many seconds a machine used for ``used_s`` (0 or more) is billed."""
    return billed_until(0.0, max(0.0, used_s), billing_minimum_s)


def cost_usd(price_usd_per_h: float, seconds: float) -> float:
    """Return what ``seconds`` cost at one price, in USD."""
    return price_usd_per_h * seconds / HOUR_S


def amortised_usd_per_h(*, upfront_usd: float, usd_per_h: float, term_s: float) -> float:
    """Return what an hour of a reservation costs: its hourly price plus the upfront payment spread over the term.

    Raises ValueError where the term is not positive.
    """
    if term_s <= 0:
        raise ValueError(f"a reservation needs a term of more than 0 s, not {term_s}")
    return usd_per_h + upfront_usd / (term_s / HOUR_S)


def dominant_share(vcpus: float, memory_mib: float, of_vcpus: float, of_memory_mib: float) -> float:
    """Return the part (0..1) of a machine that a unit holds: the larger of its vCPU and memory fractions."""
    of_cpu = vcpus / of_vcpus if of_vcpus > 0 else 0.0
    of_memory = memory_mib / of_memory_mib if of_memory_mib > 0 else 0.0
    return min(1.0, max(of_cpu, of_memory, 0.0))


def split(shares: Sequence[float]) -> tuple[tuple[float, ...], float]:
    """Return each unit's fraction of a machine's cost, and the fraction nobody holds; together they are 1.

    ``shares`` are dominant shares. One unit may be large in vCPUs and its neighbour in memory, so that they add up to
    more than 1: then the whole machine is theirs in proportion.
    """
    total = sum(shares)
    if total > 1.0:
        return tuple(share / total for share in shares), 0.0
    return tuple(shares), 1.0 - total


# --------------------------------------------------------------------------------------------------------- commitments
SUSTAINED_USE: tuple[tuple[float, float], ...] = ((0.25, 1.0), (0.25, 0.8), (0.25, 0.6), (0.25, 0.4))
"""Google's sustained-use discount on N1: parts of the month, and what part of the list price each costs."""


SUSTAINED_USE_SMALL: tuple[tuple[float, float], ...] = ((0.25, 1.0), (0.25, 0.8678), (0.25, 0.733), (0.25, 0.6))
"""The same on N2, N2D and C2: 20 % less for a whole month."""
_SUSTAINED: Mapping[str, tuple[tuple[float, float], ...]] = {
    **dict.fromkeys(("n1", "custom", "f1", "g1", "m1", "m2"), SUSTAINED_USE),
    **dict.fromkeys(("n2", "n2d", "c2"), SUSTAINED_USE_SMALL),
}


def sustained_use_tiers(series: str) -> tuple[tuple[float, float], ...]:
    """Return the tiers of a series of Google's machine types (``n1``, ``n2``); most have no such discount."""
    return _SUSTAINED.get(series, ((1.0, 1.0),))


def sustained_use_usd(
    price_usd_per_h: float, used_s: float, month_s: float, tiers: Sequence[tuple[float, float]] = SUSTAINED_USE
) -> float:
    """Return what one machine's worth of use costs in a month under a sustained-use discount.

    Each further part of the month costs less: ``tiers`` are pairs of a part of the month and the part of the list price
    it costs. Use beyond the month (0 or more machines at once) is another machine's: the provider adds up use of a type
    whoever runs it ("inferred instances"), so a total of 2.5 months is two whole ones and a half.

    Raises ValueError where the month is not positive or the tiers do not make up one.
    """
    if month_s <= 0 or abs(sum(part for part, _ in tiers) - 1.0) > 1e-9:
        raise ValueError(f"a month of {month_s} s in tiers {tiers}: the month must be positive, the parts add up to 1")
    whole, rest = divmod(max(0.0, used_s) / month_s, 1.0)
    full = sum(part * factor for part, factor in tiers)
    begun = 0.0
    for part, factor in tiers:
        taken = min(rest, part)
        begun, rest = begun + taken * factor, rest - taken
    return cost_usd(price_usd_per_h, month_s) * (whole * full + begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """``count`` machines of one type, paid for every hour of the term, used or not (also a zonal committed use)."""

    instance_type: str
    count: float
    usd_per_h: float
    """Amortised, for one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedUse:
    """So many vCPUs of a family of types, paid for every hour (Google's resource-based commitments). ``usd_per_h`` is
    for one vCPU with its share of memory."""

    family: str
    vcpus: float
    usd_per_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsPlan:
    """So much money per hour, used or not, which buys any type at its plan rate: the list price less ``discount``.

    ``families``: whose use it covers; empty: all (a compute savings plan).
    """

    usd_per_h: float
    discount: float
    families: tuple[str, ...] = ()


Commitment = Reserved | CommittedUse | SavingsPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Machines of one type in one hour: ``count`` machines (parts of an hour are parts of a machine) at list price."""

    instance_type: str
    family: str
    vcpus: float
    list_usd_per_h: float
    count: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HourBill:
    """One hour's cost: what is committed, whether used or not, and what was used beyond it; ``covered_list_usd`` is
    the list price of what commitments covered."""

    committed_usd: float
    beyond_usd: float
    covered_list_usd: float

    @property
    def usd(self) -> float:
        """Return all of it."""
        return self.committed_usd + self.beyond_usd


def bill_hour(uses: Sequence[Use], commitments: Sequence[Commitment]) -> HourBill:
    """Return what an hour of ``uses``, whoever they are by, costs under ``commitments``, which are used first.

    As the clouds apply them: reserved machines of the very type, then committed vCPUs of the family, then savings plans
    (the narrow before the wide, each where it saves most); the rest is on demand. Commitments are shared: the order of
    uses, and who they belong to, change nothing.
    """
    left: dict[Use, float] = {}
    for use in sorted(uses, key=_use_key):
        kind = replace(use, count=1.0)
        left[kind] = left.get(kind, 0.0) + use.count
    listed = sum(use.list_usd_per_h * count for use, count in left.items())
    for held in (each for each in commitments if isinstance(each, Reserved)):
        _cover(left, [u for u in left if u.instance_type == held.instance_type], held.count, lambda _: 1.0)
    for family in (each for each in commitments if isinstance(each, CommittedUse)):
        _cover(left, [u for u in left if u.family == family.family], family.vcpus, lambda use: use.vcpus)
    plans = (each for each in commitments if isinstance(each, SavingsPlan))
    for plan in sorted(plans, key=lambda plan: (not plan.families, -plan.discount)):
        fitting = [u for u in left if not plan.families or u.family in plan.families]
        _cover(left, fitting, plan.usd_per_h, _at_rate(1.0 - plan.discount))
    beyond = sum(use.list_usd_per_h * count for use, count in left.items())
    committed = sum(committed_usd_per_h(each) for each in commitments)
    return HourBill(committed_usd=committed, beyond_usd=beyond, covered_list_usd=listed - beyond)


def committed_usd_per_h(commitment: Commitment) -> float:
    """Return what a commitment costs per hour, used or not."""
    if isinstance(commitment, Reserved):
        return commitment.count * commitment.usd_per_h
    return commitment.vcpus * commitment.usd_per_h if isinstance(commitment, CommittedUse) else commitment.usd_per_h


def _use_key(use: Use) -> tuple[float, str, str]:
    """Dearest per vCPU first: there a commitment counted in vCPUs saves most."""
    return (-use.list_usd_per_h / max(use.vcpus, 1e-9), use.instance_type, use.family)


def _at_rate(part: float) -> Callable[[Use], float]:
    return lambda use: use.list_usd_per_h * part


def _cover(left: dict[Use, float], fitting: Sequence[Use], amount: float, each: Callable[[Use], float]) -> None:
    """Take from ``left`` what ``amount`` of a commitment covers; ``each``: how much of it one machine takes."""
    for use in fitting:
        taken = min(left[use], amount / max(each(use), 1e-12))
        left[use] -= taken
        amount = max(0.0, amount - taken * each(use))
