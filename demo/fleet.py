"""Act 2 of the demo: half a simulated day of a hybrid fleet under the former simple rules and under HCloud's defaults.

The load is the high-variability one of the HCloud paper (table 8.2) at a share of its size. Users guess how many vCPUs
their jobs need, as measured at Twitter (Dissertation §4.1). Both policies have the same jobs and reserved servers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from hcloud.plots import to_svg
from hcloud.report.table import share_pct
from hcloud.simulator.charts import allocation_figure
from hcloud.simulator.clouds import reserved_for
from hcloud.simulator.clusters import make_experiment
from hcloud.simulator.outcome import SimulationResult, outcome_of
from hcloud.simulator.pool import in_order, open_pool
from hcloud.simulator.run import Setting, simulated
from hcloud.simulator.world import FULL_VCPUS
from hcloud.spec.policy import Policy, simple_policy
from lab.papers.user_requests import with_user_requests

SCENARIO = "high-variability"
NAMES = ("simple", "mission")


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """What is simulated."""

    hours: float = 12.0
    """Duration of the arrivals."""
    share: float = 0.05
    """Share of the scenario's load."""
    seed: int = 0
    cycle_s: float = 10.0
    """Seconds between planning cycles."""


def policies() -> tuple[Policy, Policy]:
    """Return the former simple rules and HCloud's defaults, without limits on the number of machines."""
    caps = replace(Policy().caps, max_instances=20_000, max_vcpus=None, max_queued_jobs=1_000_000)
    return replace(simple_policy(name=NAMES[0]), caps=caps), replace(Policy(), name=NAMES[1], caps=caps)


def setting_of(day: Day, policy: Policy) -> Setting:
    """Return the simulation of the day under one policy; the reserved servers are the same for every policy."""
    made = make_experiment(SCENARIO, day.seed, hours=day.hours, share=day.share)
    # Both policies get the servers that would be reserved for the real needs of these jobs.
    hybrid = replace(policy, provisioning=replace(policy.provisioning, strategy="hm"))
    cloud = {"keep_terminated_s": 600, **made.cloud}
    cloud["reserved"] = reserved_for(hybrid, made.workload, cloud)
    sized = policy.profiles_jobs and policy.placement.order == "quasar"
    guessed = with_user_requests(made.workload, day.seed, largest_vcpus=FULL_VCPUS, sized=sized)
    return Setting(workload=guessed, policy=policy, cloud=cloud, seed=day.seed, truth=made.truth, cycle_s=day.cycle_s)


def simulate(day: Day, policy: Policy) -> SimulationResult:
    """Return the outcome of the day under one policy; what runs after the last arrival is not paid."""
    setting = setting_of(day, policy)
    with tempfile.TemporaryDirectory() as folder, simulated(setting, Path(folder)) as simulation:
        commitments = simulation.commitments()
        simulation.run()
        return outcome_of(policy.name, simulation.events, commitments, simulation.ideals(), setting.workload.span_s)


def simulate_both(day: Day) -> list[SimulationResult]:
    """Return the outcomes of the day under the simple rules and under the mission, simulated in parallel."""
    with open_pool(len(NAMES)) as pool:
        return list(in_order(pool, partial(simulate, day), policies(), len(NAMES)))


def reserved(day: Day) -> str:
    """Return the reserved servers as words."""
    servers = cast(Mapping[str, int], setting_of(day, policies()[0]).cloud["reserved"])
    return ", ".join(f"{count} x {name}" for name, count in servers.items()) or "none"


def table(outcomes: Sequence[SimulationResult]) -> Iterator[str]:
    """Yield the lines that compare the outcomes, and what came out in one sentence."""
    yield (
        f"{'policy':9}{'cost':>10}{'reserved':>11}{'rented':>10}{'targets met':>13}{'batch':>9}{'services':>10}"
        f"{'reserved in use':>17}{'jobs done':>14}"
    )
    for each in outcomes:
        usd = f"{_usd(each.cost_usd):>10}{_usd(each.committed_usd):>11}{_usd(each.metered_usd):>10}"
        met = f"{_pct(each.target_met_pct):>13}{_pct(each.batch_met_pct):>9}{_pct(each.service_met_pct):>10}"
        used = _pct(share_pct(each.committed_held_vcpu_h, each.committed_vcpu_h))
        yield f"{each.name:9}{usd}{met}{used:>17}{f'{each.succeeded} of {each.jobs}':>14}"
    yield verdict(*outcomes)


def verdict(simple: SimulationResult, mission: SimulationResult) -> str:
    """Return in one sentence what the mission cost and met, compared with the simple rules."""
    change_pct = 100.0 * (mission.cost_usd / simple.cost_usd - 1.0)
    points = (mission.target_met_pct or 0.0) - (simple.target_met_pct or 0.0)
    cost = f"{abs(change_pct):.0f} % {'cheaper' if change_pct < 0 else 'more expensive'}"
    met = f"{abs(points):.1f} points {'more' if points >= 0 else 'fewer'} targets met"
    return f"the mission is {cost} than the simple rules, with {met} (one seed)"


def picture(outcomes: Sequence[SimulationResult]) -> str:
    """Return vCPUs paid and used over the day under each policy as SVG, with its cost and met targets."""
    named = [
        replace(each, name=f"{each.name}, {_usd(each.cost_usd)}, {_pct(each.target_met_pct)} of targets")
        for each in outcomes
    ]
    return to_svg(allocation_figure(named))


def _usd(usd: float) -> str:
    return f"${usd:.2f}"


def _pct(pct: float | None) -> str:
    return "-" if pct is None else f"{pct:.1f} %"
