"""Sensitivity of HCloud's strategies to their circumstances (Dissertation §8.5.1, 8.5.3, 8.5.6).

How long the load lasts, how long idle machines are kept, how clouds charge, and how many jobs are latency-critical.
High variability; users request what they need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from hcloud.simulator.clusters import ON_DEMAND_OVER_RESERVED
from lab.papers.discounts import SUSTAINED
from lab.papers.hybrid import HIGH, STRATEGIES, WEEKS_RESERVED, WHY_LATER, same_cost_weeks, strategy
from lab.papers.study import Case, Claim, Figure, Numbers

MULTIPLES = (0.0, 1.0, 10.0, 40.0)
"""How long an idle machine is kept, in spin-up times."""
SENSITIVE = (0.1, 0.5, 0.8, 0.9)
"""Shares of latency-critical jobs; table 8.2 has about 0.2."""
TAIL = "p5_pct"
"""Fig. 8.20 shows the worst 5 % of the jobs."""

WHY_ODF_COSTS_MORE = (
    "OdF's full servers are less than half full: jobs are kept from each other, and what a surge has rented stays "
    "until its last job ends. Where neighbours may cost 50 % instead of 10 %, HF costs 40 % less (two seeds)"
)

Seed = Mapping[str, Numbers]


def figures() -> Iterator[Figure]:
    """Yield the figures."""
    yield _duration()
    yield _retention()
    yield _pricing_model()
    yield _sensitive_jobs()


def _case(name: str) -> Case:
    return Case(label=name.upper(), experiment=HIGH, policy=strategy(name))


# ------------------------------------------------------------------------------------------------------------- duration
def _duration() -> Figure:
    return Figure(
        name="duration",
        title="How many weeks of a reserved year the load lasts, high variability",
        source="Dissertation fig. 8.13",
        cases=tuple(_case(name) for name in ("sr", "odm", "hm")),
        columns=("cost_usd", "committed_usd", "metered_usd", "reserved_used_pct", "performance_pct"),
        claims=(
            Claim(
                text="HM is cheaper than OdM from so many weeks on",
                published="18 weeks",
                ours=lambda seed: same_cost_weeks(seed["HM"], seed["ODM"]),
                holds=lambda weeks: weeks <= 27,
                unit="weeks",
                why=WHY_LATER,
            ),
            Claim(
                text="SR is cheaper than HM from so many weeks on",
                published="never (a second year is to be paid from 52 on)",
                ours=lambda seed: same_cost_weeks(seed["SR"], seed["HM"]),
                holds=lambda weeks: weeks >= WEEKS_RESERVED,
                unit="weeks",
                why="at a full year this is the question of the price ratio: HM rents what stays free on its reserved "
                "servers, which eats up what it need not reserve",
            ),
        ),
        drawn="cost_usd",
    )


# ------------------------------------------------------------------------------------------------------------ retention
def _retention() -> Figure:
    return Figure(
        name="retention",
        title="Times its spin-up that an idle machine is kept, high variability",
        source="Dissertation fig. 8.15",
        cases=tuple(_kept(name, multiple) for name in ("odm", "hm") for multiple in MULTIPLES),
        columns=("turnaround_pct", "performance_pct", "p5_pct", "cost_usd", "used_once_pct", "wait_p95_s"),
        claims=(
            Claim(
                text="keeping machines (10 times) costs OdM more than letting them go at once",
                published="more for on-demand strategies, hardly more for hybrids",
                ours=lambda seed: _dearer_pct(seed, "ODM", 10.0),
                holds=lambda value: value > 0,
                unit="% dearer",
            ),
            Claim(
                text="the same for HM",
                published="hardly more",
                ours=lambda seed: _dearer_pct(seed, "HM", 10.0),
                holds=lambda value: value < 15,
                unit="% dearer",
                why="most of what HM pays here is rented too",
            ),
            Claim(
                text="letting machines go at once makes OdM's jobs take longer",
                published="performance suffers",
                ours=lambda seed: seed["ODM, 10"]["turnaround_pct"] - seed["ODM, 0"]["turnaround_pct"],
                holds=lambda value: value > 0,
                unit="points of turnaround",
                why="jobs run for eight minutes, and a machine starts in a quarter of one: many wait for none",
            ),
            *(_kept_too_long(name) for name in ("ODM", "HM")),
        ),
        drawn="cost_usd",
    )


def _kept_too_long(name: str) -> Claim:
    return Claim(
        text=f"keeping machines for far too long (40 times) makes {name}'s jobs do worse than 10 times",
        published="slightly, as their quality falls meanwhile",
        ours=lambda seed: seed[f"{name}, 10"]["p5_pct"] - seed[f"{name}, 40"]["p5_pct"],
        holds=lambda value: value > 0,
        unit="points of the worst twentieth",
        why="machines do not become worse with time here: others' load on them goes up and down around the same mean",
    )


def _kept(name: str, multiple: float) -> Case:
    policy = strategy(name)
    policy = replace(policy, retention=replace(policy.retention, spin_up_multiple=multiple))
    return Case(label=f"{name.upper()}, {multiple:g}", experiment=HIGH, policy=policy)


def _dearer_pct(seed: Seed, name: str, multiple: float) -> float:
    return 100 * (seed[f"{name}, {multiple:g}"]["cost_usd"] / seed[f"{name}, 0"]["cost_usd"] - 1)


# -------------------------------------------------------------------------------------------------------- pricing model
def _pricing_model() -> Figure:
    return Figure(
        name="pricing-model",
        title="How clouds charge, high variability",
        source="Dissertation fig. 8.16",
        cases=tuple(_case(name) for name in STRATEGIES),
        columns=("cost_usd", "committed_usd", "metered_usd", "metered_sustained_usd", "performance_pct"),
        claims=(
            Claim(
                text="HM is cheaper than OdF where all is charged on demand",
                published="32 % cheaper (Azure)",
                ours=lambda seed: 100 * (1 - _on_demand_usd(seed["HM"]) / _on_demand_usd(seed["ODF"])),
                holds=lambda value: 25 <= value <= 45,
                unit="% cheaper",
                why=WHY_ODF_COSTS_MORE,
            ),
            Claim(
                text="HM is cheaper than OdF where machines in use for much of a month get a discount",
                published="30 % cheaper (Google)",
                ours=lambda seed: 100 * (1 - _sustained_usd(seed["HM"]) / _sustained_usd(seed["ODF"])),
                holds=lambda value: 25 <= value <= 45,
                unit="% cheaper",
                why=WHY_ODF_COSTS_MORE,
            ),
        ),
        drawn="cost_usd",
    )


def _on_demand_usd(numbers: Numbers) -> float:
    """Return the cost if nothing can be reserved: reserved machines are up all the time at the list price."""
    return ON_DEMAND_OVER_RESERVED * numbers["committed_usd"] + numbers["metered_usd"]


def _sustained_usd(numbers: Numbers) -> float:
    """Return the cost with sustained use discounts; reserved machines are up for the whole month."""
    kept = ON_DEMAND_OVER_RESERVED * numbers["committed_usd"] * SUSTAINED
    return kept + numbers["metered_sustained_usd"]


# ------------------------------------------------------------------------------------------------------- sensitive jobs
def _sensitive_jobs() -> Figure:
    return Figure(
        name="sensitive-jobs",
        title="Part of the jobs that are latency-critical, high variability",
        source="Dissertation fig. 8.20",
        cases=tuple(
            replace(_case(name), label=f"{name.upper()}, {part:.0%}", sensitive=part)
            for name in ("sr", "odm", "hm")
            for part in SENSITIVE
        ),
        columns=("performance_pct", "p5_pct", "batch_pct", "service_pct", "target_met_pct", "cost_usd", "wait_p95_s"),
        claims=(
            Claim(
                text="more sensitive jobs (10 to 90 %) cost OdM more performance than SR",
                published="on-demand strategies suffer most, SR not",
                ours=lambda seed: _lost_points(seed, "ODM") - _lost_points(seed, "SR"),
                holds=lambda value: value > 0,
                unit="points of the worst twentieth",
                why="reserved servers are shared by neighbours, which disturb services as much as strangers do",
            ),
            Claim(
                text="HM behaves well until 80 % are sensitive: at these it comes near SR's performance",
                published="behaves well",
                ours=lambda seed: 100 * (1 - seed["HM, 80%"][TAIL] / seed["SR, 80%"][TAIL]),
                holds=lambda value: value <= 8,
                unit="% below, of the worst twentieth",
                why="few of them find room on the reserved servers, the others get rented ones beside strangers",
            ),
            *(_dearer_by_sensitive(name) for name in ("ODM", "HM")),
        ),
        drawn="performance_pct",
    )


def _dearer_by_sensitive(name: str) -> Claim:
    return Claim(
        text=f"more sensitive jobs (10 to 90 %) make {name} dearer",
        published="a surge for on-demand strategies, from 30 % on for hybrids, nothing for SR",
        ours=lambda seed: 100 * (seed[f"{name}, 90%"]["cost_usd"] / seed[f"{name}, 10%"]["cost_usd"] - 1),
        holds=lambda value: value > 0,
        unit="% dearer",
        why="each job has a machine of its size here whether it is sensitive or not: there is little sharing to lose",
    )


def _lost_points(seed: Seed, name: str) -> float:
    least, most = (seed[f"{name}, {part:.0%}"][TAIL] for part in (SENSITIVE[0], SENSITIVE[-1]))
    return least - most
