"""Our rules compared with those of today's tools, on the same workload, cloud, clock and commitments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from hcloud.simulator.peers import PEERS, PREFIX
from hcloud.spec.policy import Policy, RetentionPolicy, simple_policy
from lab.papers.study import Case, Claim, Figure, Numbers

OURS = "ours"
COLUMNS = ("cost_usd", "bound_usd", "times_bound", "target_met_pct", "wait_p95_s", "used_once_pct", "reserved_used_pct")
CLOUD: Mapping[str, object] = {
    "zones": ["us-1a"],
    "markets": ["on_demand", "reserved", "spot"],
    "quality": {"spread": 0.05},
}
EQUALLY_POINTS = 0.5
"""Up to this many points fewer targets met count as equally many."""


def ours(idle_spin_ups: float) -> Policy:
    """Return the default policy with room for the whole load, keeping idle machines for this many spin-up times."""
    plain = simple_policy(name=OURS)
    return replace(
        plain,
        caps=replace(plain.caps, max_instances=20_000, max_vcpus=None, max_queued_jobs=1_000_000),
        retention=replace(plain.retention, spin_up_multiple=idle_spin_ups),
    )


def figures() -> Iterator[Figure]:
    """Yield the comparison on each load that varies."""
    for scenario in ("high-variability", "low-variability"):
        yield _beside_peers(scenario)


def _beside_peers(scenario: str) -> Figure:
    mine = {OURS: ours(RetentionPolicy().spin_up_multiple), f"{OURS}, idle machines kept longer": ours(10.0)}
    cases = [
        Case(label=label, experiment=scenario, policy=policy, cloud=CLOUD, commits="hf", plain=True)
        for label, policy in mine.items()
    ]
    cases += [
        Case(
            label=PREFIX + name, experiment=scenario, policy=mine[OURS], cloud=CLOUD, planner=peer.plan,
            commits=peer.commits, plain=True,
        )
        for name, peer in PEERS.items()
    ]  # fmt: skip
    return Figure(
        name=f"peers-{scenario}",
        title=f"Rules of today's tools, {scenario.replace('-', ' ')}",
        source='[simulation](simulation.md), "Other tools\' rules on the same trace"',
        cases=tuple(cases),
        columns=COLUMNS,
        claims=tuple(claim for name in PEERS for claim in (_cheaper(name), _as_kept(name))),
        drawn="cost_usd",
    )


def _cheaper(name: str) -> Claim:
    def saved(seed: Mapping[str, Numbers]) -> float:
        peer, mine = seed[PREFIX + name], seed[OURS]
        return 100 * (1 - mine["cost_usd"] / peer["cost_usd"])

    return Claim(
        text=f"ours is cheaper than {name}",
        published="-",
        ours=saved,
        holds=lambda value: value > 0,
        unit="% cheaper",
        why="it fills the cheapest machine that holds all who wait, and breaks more promises by that (next line)"
        if name == "karpenter-like"
        else "",
    )


def _as_kept(name: str) -> Claim:
    return Claim(
        text=f"ours keeps as many promises as {name}",
        published="-",
        ours=lambda seed: seed[OURS]["target_met_pct"] - seed[PREFIX + name]["target_met_pct"],
        holds=lambda value: value >= -EQUALLY_POINTS,
        unit="points more",
        why="it pays for more machines: each job has its own, or they are there beforehand",
    )
