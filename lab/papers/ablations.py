"""Ablations: single parts of the simulated world, and of our caution about neighbours, switched off or varied.

Not from a paper. High variability; users request what they need; the same seeds for all cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from hcloud.spec.policy import Policy
from lab.papers.hybrid import HIGH, strategy
from lab.papers.study import Case, Figure

AS_IT_IS = "as it is"
PARTS: Mapping[str, Mapping[str, float]] = {
    AS_IT_IS: {},
    "no outside load": {"external_load": 0.0, "external_swing": 0.0},
    "twice the outside load": {"external_load": 0.5, "external_swing": 0.2},
    "no interference": {"sensitivity": 0.0, "external_load": 0.0, "external_swing": 0.0},
    "no stragglers": {"stragglers": 0.0},
    "stragglers 5 %": {"stragglers": 0.05},
    "no phases": {"phased": 0.0},
    "no drift": {"drift": 0.0},
    "exact readings": {"noise": 0.0},
}
"""By name: the changed parameters of the world."""
CONFIDENCES = (0.5, 0.7, 0.9)
"""Required probability that neighbours leave each other what they tolerate."""
LOUD = (0.0, 2.0)
"""Limits of ``keep_for_quiet``: pressure relative to a job's share of vCPUs above which it gets no reserved room (0: no
limit); ``hm`` uses 1.3."""
COLUMNS = (
    "performance_pct", "p5_pct", "service_pct", "target_met_pct", "cost_usd", "metered_usd", "reserved_used_pct",
)  # fmt: skip


def figures() -> Iterator[Figure]:
    """Yield the figures."""
    yield _world()
    yield _caution()


def _world() -> Figure:
    return Figure(
        name="parts-of-the-world",
        title="HM with single parts of the world switched off or up, high variability",
        source='[simulation](simulation.md), "What the virtual world knows"',
        cases=tuple(
            Case(label=f"HM, {name}", experiment=HIGH, policy=strategy("hm"), truth=truth)
            for name, truth in PARTS.items()
        ),
        columns=COLUMNS,
        drawn="cost_usd",
    )


def _caution() -> Figure:
    cases = [
        Case(label=f"{name.upper()}, confidence {sure:g}", experiment=HIGH, policy=_sure(strategy(name), sure))
        for name in ("hf", "hm")
        for sure in CONFIDENCES
    ]
    cases += [
        Case(label=f"HM, keep_for_quiet {loud:g}", experiment=HIGH, policy=_quiet(strategy("hm"), loud))
        for loud in LOUD
    ]
    return Figure(
        name="caution-beside-neighbours",
        title="neighbour_confidence and keep_for_quiet, high variability",
        source='[policies](policies.md), "Reference"',
        cases=tuple(cases),
        columns=COLUMNS,
        drawn="cost_usd",
    )


def _sure(policy: Policy, confidence: float) -> Policy:
    return replace(policy, placement=replace(policy.placement, neighbour_confidence=confidence))


def _quiet(policy: Policy, most: float) -> Policy:
    return replace(policy, provisioning=replace(policy.provisioning, keep_for_quiet=most))
