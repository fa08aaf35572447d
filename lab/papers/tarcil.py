"""The chapter of Tarcil (Dissertation ch. 7): how good the best of a few sampled machines is, and what buckets hold.
Paragon's selection by sample (§3.3.3) stands here, too.

Servers, their residents and jobs are drawn; the sampler is that of ``placement.order: sampled``. What is a job's best
machine is the quality of the print (eqs. 7.1 to 7.5) times the preference for its type, so that who tolerates little
gets a quiet machine and who tolerates more leaves it to others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hcloud.planner.placement.orders.paragon_sampled import candidates_needed, colocation_quality
from hcloud.planner.placement.orders.sampled import drawn, sample_size
from hcloud.spec.policy import Policy
from lab.papers.clusters import scheduler
from lab.papers.study import (
    Case,
    Claim,
    ComputedCase,
    Effect,
    Figure,
    Numbers,
    computed_cases,
)

Floats = NDArray[np.float64]
SERVERS, UNITS, SOURCES, TYPES, JOBS = 10_000, 8, 10, 4, 400
LOADS = (0.5, 0.8, 0.95)
"""Shares of the servers' units in use."""
SAMPLES = (2, 8, 16, 32, 64)
WANTED = 0.8
"""The share of machines that the sample's best should be better than."""
QUANTILES = 5
"""Buckets of quality for each type: 20 in all, as in §7.4.1."""
LOAD = "paragon-small-medium"
FEW = 0.68
"""The quantile for which 8 are drawn: the default's 29 are nearly all of 40 servers, and would show nothing."""
WITH_WAITS, STATISTICAL = "best of 8 that match, or a wait", f"Paragon's rule, best of {candidates_needed(FEW)}"


def figures() -> Iterator[Figure]:
    """Yield the figures."""
    yield _sampling()
    yield _statistical()
    yield _buckets()
    yield _orders()


# -------------------------------------------------------------------------------------------------------- drawn servers
def encoded(pressures: Floats) -> Floats:
    """Return pressures 0..99 by source as one number in [0, 1), largest first (eqs. 7.1, 7.2)."""
    digits = -np.sort(-np.floor(pressures), axis=-1)
    return np.asarray(digits @ 100.0 ** -(np.arange(SOURCES) + 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnServers:
    """Servers with room, at a load."""

    pressures: Floats
    """Shape ``(servers, sources)``, 0..99 (eq. 7.3)."""
    quality: Floats
    """1: nobody presses (eq. 7.4)."""
    types: NDArray[np.int64]

    @staticmethod
    def at(load: float, rng: np.random.Generator) -> DrawnServers:
        """Return servers of which a share of the units is in use, by jobs with one dominant source each."""
        busy = int(load * SERVERS * UNITS)
        server = rng.permutation(np.repeat(np.arange(SERVERS), UNITS))[:busy]
        pressures = np.zeros((SERVERS, SOURCES))
        np.add.at(pressures, server, _caused(busy, rng) / (UNITS - 1))
        types, free = rng.integers(0, TYPES, SERVERS), np.bincount(server, minlength=SERVERS) < UNITS
        pressures = np.minimum(pressures[free], 99.0)
        return DrawnServers(pressures=pressures, quality=1.0 - encoded(pressures), types=types[free])

    def values(self, target: float, preference: Floats) -> Floats:
        """Return by server how good it is for a job (eq. 7.5, all that satisfy above all that do not)."""
        match = np.where(self.quality >= target, 2.0 - (self.quality - target), self.quality)
        return np.asarray(match * preference[self.types])


def _caused(count: int, rng: np.random.Generator) -> Floats:
    caused = 99.0 * rng.beta(1.2, 4.0, (count, SOURCES))
    caused[np.arange(count), rng.integers(0, SOURCES, count)] = rng.uniform(20.0, 99.0, count)
    return caused


def _jobs(rng: np.random.Generator) -> Iterator[tuple[float, Floats]]:
    """Yield targets (eq. 7.2) and preferences for types, 1 for the best."""
    targets = encoded(_caused(JOBS, rng))
    for target, preference in zip(targets.tolist(), rng.dirichlet(np.ones(TYPES), JOBS), strict=True):
        yield target, preference / preference.max()


# ------------------------------------------------------------------------------------------------------------- sampling
def sampling_numbers(count: int, _: Path | None, seed: int) -> Numbers:
    """Return how good the best of ``count`` machines is, drawn as the planner does."""
    ranks, values = list[float](), list[float]()
    for load in LOADS:
        rng = np.random.default_rng((seed, round(100 * load)))
        servers = DrawnServers.at(load, rng)
        everywhere = np.ones(len(servers.types), dtype=np.bool_)
        for target, preference in _jobs(rng):
            value = servers.values(target, preference)
            best = float(value[drawn(rng, everywhere, count)].max())
            # Ties in quality are broken by a fair coin (§7.3.3).
            below, equal = float((value < best).mean()), float((value == best).mean())
            ranks.append(below + float(rng.random()) * equal)
            values.append(best / float(value.max()))
    rank = np.array(ranks)
    return {
        "mean_rank_pct": 100.0 * float(rank.mean()),
        "expected_rank_pct": 100.0 * count / (count + 1),
        "below_80_pct": 100.0 * float((rank < WANTED).mean()),
        "expected_below_80_pct": 100.0 * WANTED**count,
        "of_best_pct": 100.0 * float(np.mean(values)),
    }


def _sampling() -> Figure:
    def off(name: str, expected: str) -> Claim:
        what = (
            "mean rank lies by R / (R + 1)" if name == "mean_rank_pct" else "share below the 80th percentile by 0.8^R"
        )
        return Claim(
            text=f"the best of R sampled machines: {what}, off by at most",
            published="minimal deviation (fig. 7.4)",
            ours=lambda seed: max(abs(each[name] - each[expected]) for each in seed.values()),
            holds=lambda value: value <= 2.0,
            unit="points",
        )

    return Figure(
        name="tarcil-sampling",
        title=f"The best of R among {SERVERS:,} servers of which half to 95 % are busy",
        source="Dissertation §7.3.3, figs. 7.3 and 7.4",
        cases=tuple(ComputedCase(label=f"R = {count}", numbers=partial(sampling_numbers, count)) for count in SAMPLES),
        columns=("mean_rank_pct", "expected_rank_pct", "below_80_pct", "expected_below_80_pct", "of_best_pct"),
        claims=(
            off("mean_rank_pct", "expected_rank_pct"),
            off("below_80_pct", "expected_below_80_pct"),
            Claim(
                text="R = 32 hardly ever finds only machines below the 80th percentile",
                published="0.1 % of the jobs",
                ours=lambda seed: seed["R = 32"]["below_80_pct"],
                holds=lambda value: value <= 0.2,
                unit="% of the jobs",
            ),
        ),
        drawn="mean_rank_pct",
        published={f"R = {count}": 100.0 * count / (count + 1) for count in SAMPLES},
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ statistical selection
ANY_VIOLATED, SIGN_OF_SUM = "any violated source decides", "sign of the sum (as printed)"
CANDIDATES = 64
"""Candidates of the print's example, among which none has a quality of 0.9 with probability 0.001."""


def selection_numbers(rule: str, _: Path | None, seed: int) -> Numbers:
    """Return how good the best of 64 candidates is by Paragon's colocation quality, and how often the chosen one
    violates a source, though one that does not was among them."""
    ranks, violated, needless = list[float](), list[bool](), list[bool]()
    for load in LOADS:
        rng = np.random.default_rng((seed, round(100 * load)))
        servers = DrawnServers.at(load, rng)
        tolerated = np.maximum(99.0 * rng.beta(4.0, 1.5, servers.pressures.shape) - servers.pressures, 0.0).T
        everywhere = np.ones(len(servers.types), dtype=np.bool_)
        for caused in _caused(JOBS, rng):
            left = tolerated - caused[:, None]
            quality = colocation_quality(left)
            if rule == SIGN_OF_SUM:
                quality = np.sign(left.sum(axis=0)) * (1.0 - np.abs(left).mean(axis=0) / 100.0)
            sample = drawn(rng, everywhere, CANDIDATES).nonzero()[0]
            chosen = int(sample[quality[sample].argmax()])
            ranks.append(float((quality < quality[chosen]).mean()))
            violated.append(bool(left[:, chosen].min() < 0.0))
            needless.append(violated[-1] and bool((left[:, sample].min(axis=0) >= 0.0).any()))
    return {
        "mean_rank_pct": 100.0 * float(np.mean(ranks)),
        "below_90_pct": 100.0 * float(np.mean(np.array(ranks) < 0.9)),
        "violated_pct": 100.0 * float(np.mean(violated)),
        "violated_needlessly_pct": 100.0 * float(np.mean(needless)),
    }


def _statistical() -> Figure:
    return Figure(
        name="paragon-statistical",
        title=f"Paragon's selection from {CANDIDATES} of {SERVERS:,} servers, by two readings of its quality",
        source="Dissertation §3.3.3, fig. 3.3",
        cases=computed_cases(selection_numbers, (ANY_VIOLATED, SIGN_OF_SUM)),
        columns=("mean_rank_pct", "below_90_pct", "violated_pct", "violated_needlessly_pct"),
        claims=(
            Claim(
                text=f"with {CANDIDATES} candidates none lies above the 90th percentile",
                published="0.1 % of the jobs",
                ours=lambda seed: seed[ANY_VIOLATED]["below_90_pct"],
                holds=lambda value: value <= 0.5,
                unit="% of the jobs",
            ),
            Claim(
                text="any violated source decides: jobs that violate one though a candidate does not",
                published="negative when they violate QoS in one or more SoIs (text)",
                ours=lambda seed: seed[ANY_VIOLATED]["violated_needlessly_pct"],
                holds=lambda value: value == 0.0,
                unit="% of the jobs",
            ),
            Claim(
                text="sign of the sum: jobs that violate a source though a candidate does not",
                published="sign of the sum of t - c (formula)",
                ours=lambda seed: seed[SIGN_OF_SUM]["violated_needlessly_pct"],
                holds=lambda value: value <= 1.0,
                unit="% of the jobs",
                why="a sum hides one violated source behind those with room, and a tight fit is what violates soonest",
            ),
        ),
        drawn="violated_pct",
    )


# -------------------------------------------------------------------------------------------------------------- buckets
UNIFORM, BUCKETS, COSINE = "uniform", "type x quality buckets", "type x cosine buckets (as printed)"


def bucket_numbers(kind: str, _: Path | None, seed: int) -> Numbers:
    """Return how good the best of 32 is by where they are drawn, and the variance of quality inside buckets."""
    values, left = list[float](), list[float]()
    for load in LOADS:
        rng = np.random.default_rng((seed, round(100 * load)))
        servers = DrawnServers.at(load, rng)
        level = _levels(kind, servers, rng)
        parts = [servers.quality[level == each] for each in np.unique(level)]
        inside = sum(float(part.var()) * len(part) for part in parts)
        left.append(100.0 * inside / (float(servers.quality.var()) * len(level)))
        bucket = level * TYPES + servers.types
        for target, preference in _jobs(rng):
            value = servers.values(target, preference)
            among = np.ones(len(value), dtype=np.bool_)
            if kind != UNIFORM:
                # What a bucket promises: its mean quality, for this job.
                counts = np.bincount(bucket)
                promises = np.bincount(bucket, weights=value) / np.maximum(counts, 1)
                among = bucket == int(promises.argmax())
            values.append(float(value[drawn(rng, among, 32)].max()) / float(value.max()))
    return {"of_best_pct": 100.0 * float(np.mean(values)), "variance_left_pct": float(np.mean(left))}


def _levels(kind: str, servers: DrawnServers, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return by server the number of its bucket, without its type."""
    if kind == UNIFORM:
        return np.zeros(len(servers.types), dtype=np.int64)
    if kind == BUCKETS:
        cuts = np.quantile(servers.quality, np.arange(1, QUANTILES) / QUANTILES)
        return np.searchsorted(cuts, servers.quality).astype(np.int64)
    planes = rng.normal(size=(SOURCES, 3))
    return np.asarray((servers.pressures @ planes > 0.0) @ (2 ** np.arange(3)), dtype=np.int64)


def _buckets() -> Figure:
    return Figure(
        name="tarcil-buckets",
        title="32 machines drawn at large, or from the bucket that promises most",
        source="Dissertation §7.4.1",
        cases=computed_cases(bucket_numbers, (UNIFORM, BUCKETS, COSINE)),
        columns=("of_best_pct", "variance_left_pct"),
        claims=(
            Claim(
                text="buckets by cosine hold machines of like quality: variance of quality that is left inside them",
                published="buckets tell quality",
                ours=lambda seed: seed[COSINE]["variance_left_pct"],
                holds=lambda value: value <= 50.0,
                unit="% of the variance",
                why="a cosine tells which source is pressed, not how hard",
            ),
            Claim(
                text="the best of 32 from a bucket by type and quality comes near the best of all",
                published="-",
                ours=lambda seed: seed[BUCKETS]["of_best_pct"],
                holds=lambda value: value >= 90.0,
                unit="% of the best",
            ),
            Claim(
                text="buckets by type and quality find better machines than drawing at large",
                published="-",
                ours=lambda seed: seed[BUCKETS]["of_best_pct"] - seed[UNIFORM]["of_best_pct"],
                holds=lambda value: value > 0.0,
                unit="points",
            ),
        ),
        drawn="of_best_pct",
    )


# --------------------------------------------------------------------------------------------------------------- orders
def _sampled(quantile: float, order: str = "sampled") -> Policy:
    plain = scheduler(order)
    return replace(plain, placement=replace(plain.placement, sampled_quantile=quantile))


def _orders() -> Figure:
    # The default draws 29, which is nearly all of 40 servers: that would compare greedy placement with itself.
    policies = {"random": scheduler("random"), "greedy": scheduler("least_loss")}
    policies |= {f"best of {sample_size(quantile)}": _sampled(quantile) for quantile in (0.5, FEW)}
    policies |= {
        WITH_WAITS: _sampled(FEW, "tarcil"),
        STATISTICAL: _sampled(FEW, "paragon_sampled"),
        "Paragon": scheduler("paragon"),
    }
    return Figure(
        name="tarcil-orders",
        title="Sampled and greedy placement: 178 jobs on 40 servers of ten types",
        source="Dissertation §7.6.2, fig. 7.14",
        cases=tuple(Case(label=label, experiment=LOAD, policy=policy) for label, policy in policies.items()),
        columns=("performance_pct", "p5_pct", "turnaround_pct", "qos_kept_pct", "wait_p95_s"),
        claims=(
            Claim(
                text="the best of 8 sampled machines comes near the best performance",
                published="97 % (400 servers)",
                ours=lambda seed: seed["best of 8"]["performance_pct"],
                holds=lambda value: value >= 92.0,
                unit="% of the best",
                why="servers of ten types differ more than a cloud's, and a few of 40 do not hold the best type",
            ),
            Claim(
                text="the best of 8 beside greedy placement, which takes no time in a simulation",
                published="97 % beside 82 %, as greedy decisions took up to two seconds",
                ours=lambda seed: seed["best of 8"]["performance_pct"] - seed["greedy"]["performance_pct"],
                effect=Effect(15.0),
                unit="points",
                why="no time passes here while a plan is made; what is left is what samples miss",
            ),
            Claim(
                text="the best of 8 that match, or a bounded wait, does better than the best of 8",
                published="-",
                ours=lambda seed: seed[WITH_WAITS]["performance_pct"] - seed["best of 8"]["performance_pct"],
                holds=lambda value: value > 0.0,
                unit="points",
            ),
            Claim(
                text="Paragon's rule on a sample comes near Paragon's rule on all servers",
                published="-",
                ours=lambda seed: seed[STATISTICAL]["performance_pct"] - seed["Paragon"]["performance_pct"],
                holds=lambda value: value >= -1.0,
                unit="points",
            ),
            Claim(
                text="the best of 8 does better than placement at random",
                published="more than 75 % of the jobs suffer",
                ours=lambda seed: seed["best of 8"]["performance_pct"] - seed["random"]["performance_pct"],
                holds=lambda value: value > 0.0,
                unit="points",
            ),
        ),
        drawn="performance_pct",
        published={"best of 8": 97.0},
    )
