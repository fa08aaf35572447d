"""The cost of fuller servers: HM and SR with more tolerance of neighbours, and hybrids that fill reserved servers
further.

After Dissertation §8.4.2. High variability; users request what they need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lab.papers.hybrid import HIGH, TOLERANCE, cheaper_in_a_year_pct, strategy
from lab.papers.study import Case, Claim, Effect, Figure, Numbers

TOLERANCES = (TOLERANCE, 0.2, 0.3, 0.5)
"""Shares of a job's performance that neighbours may cost."""
SOFT, HARD = 0.9, 0.95
"""Limits up to which reserved servers are filled; the shipped policies use 0.65 and 0.9."""
FILLED, USED_OF_YEAR = ", filled", 0.5
FULL_HM, FULL_HF = f"HM{FILLED}", f"HF{FILLED}"
COLUMNS = (
    "performance_pct", "p5_pct", "service_pct", "target_met_pct", "cost_usd", "committed_usd", "metered_usd",
    "without_waste_usd", "reserved_used_pct",
)  # fmt: skip
WHOLE = (("SR", TOLERANCE), ("HM", TOLERANCE), (FULL_HM, 0.3), (FULL_HF, 0.5))
"""Cases that are run with the whole load: the strategies as shipped, and hybrids near their optimum on a part of it."""

WHY_WASTE = (
    "what is left of the waste is rented: machines that start, stand idle or are not full; and jobs that are disturbed "
    "hold their machines for longer"
)
WHY_PACKING = (
    ". Who knew beforehand how long each unit takes, and had no neighbours to mind, would rent 16 to 19 % fewer server "
    "hours for the same units (`python -m bench packing`), and so be about 40 % cheaper"
)
Seed = Mapping[str, Numbers]


def figures() -> Iterator[Figure]:
    """Yield the figure, for a part of the load and for the whole load."""
    every = tuple((kind, tolerance) for kind in ("SR", "HM", FULL_HM) for tolerance in TOLERANCES)
    yield _figure("fuller-servers", "What fuller servers cost", every)
    yield _figure("fuller-servers-whole", "All of this load", WHOLE)


def _figure(name: str, title: str, kinds: Sequence[tuple[str, float]]) -> Figure:
    return Figure(
        name=name,
        title=f"{title}: neighbours may cost a job so much, high variability",
        source="Dissertation §8.4.2 (the limits are P8's)",
        cases=tuple(case_of(kind, tolerance) for kind, tolerance in kinds),
        columns=COLUMNS,
        claims=tuple(_claims(kinds)),
        drawn="cost_usd",
    )


def case_of(kind: str, tolerance: float) -> Case:
    """Return a strategy, with reserved servers filled up to ``SOFT`` and ``HARD`` if the kind says so."""
    policy = strategy(kind.removesuffix(FILLED).lower())
    if kind.endswith(FILLED):
        policy = replace(policy, provisioning=replace(policy.provisioning, soft_limit=SOFT, hard_limit=HARD))
    policy = replace(policy, placement=replace(policy.placement, tolerance=tolerance, neighbour_tolerance=tolerance))
    return Case(label=_label(kind, tolerance), experiment=HIGH, policy=policy)


def _label(kind: str, tolerance: float) -> str:
    return f"{kind}, {tolerance:.0%}"


def _claims(kinds: Sequence[tuple[str, float]]) -> Iterator[Claim]:
    for kind, tolerance in kinds:
        if kind == "SR" or (kind == "HM" and tolerance != TOLERANCE):
            continue
        label = _label(kind, tolerance)
        yield Claim(
            text=f"{label}: performance beside SR at {TOLERANCE:.0%}",
            published="within 8 %",
            ours=lambda seed, label=label: short_of_sr_pct(seed, label),  # type: ignore[misc]
            holds=lambda value: value <= 10,
            unit="% below",
        )
        yield Claim(
            text=f"{label}: cost beside SR where the year that is reserved is used for half of it",
            published="46 % cheaper (both hybrids, on average)",
            ours=lambda seed, label=label: half_year_cheaper_pct(seed, label),  # type: ignore[misc]
            effect=Effect(46.0),
            unit="% cheaper",
            why=WHY_WASTE + (WHY_PACKING if kind == FULL_HF else ""),
        )


def short_of_sr_pct(seed: Seed, label: str) -> float:
    """Return how many percent worse a case performs than SR with the usual tolerance."""
    return 100 * (1 - seed[label]["performance_pct"] / seed[_label("SR", TOLERANCE)]["performance_pct"])


def half_year_cheaper_pct(seed: Seed, label: str) -> float:
    """Return how many percent less a case costs than SR if half of the reserved year is used."""
    return cheaper_in_a_year_pct(seed[label], seed[_label("SR", TOLERANCE)], USED_OF_YEAR)
