"""Accounts of the cost of real simulations: they are the whole cost, and each grows with what it is for."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.core.model import EventKind
from hcloud.report.spending_accounts import Account
from hcloud.simulator.outcome import SimulationResult, outcome_of
from hcloud.simulator.peers import PEERS
from hcloud.simulator.run import Setting, simulated
from hcloud.simulator.scenarios import make_scenario
from hcloud.simulator.workload import Workload, workload_of
from hcloud.simulator.world import Truth
from tests.simulator.test_run import CLOUD, arrival, policy

SPOT: Mapping[str, object] = {
    **CLOUD,
    "markets": ["reserved", "on_demand", "spot"],
    "reserved": {"m.one": 2},
    "billing_minimum_s": 600,
    "spot": {"price_factor": 0.35, "preemptions_per_h": 6.0, "shortages_per_h": 0.0},
}


def simulate(setting: Setting, folder: Path, paid_s: float | None = None) -> SimulationResult:
    """The result of a simulation, whose accounts are its cost."""
    folder.mkdir()
    with simulated(setting, folder) as simulation:
        commitments = simulation.commitments()
        simulation.run()
        outcome = outcome_of(
            "tried", simulation.events, commitments, paid_s=paid_s, needs_vcpus=simulation.needs_vcpus()
        )
    assert outcome.spending.total_usd == pytest.approx(outcome.cost_usd, rel=1e-9)
    assert min(outcome.spending.usd.values()) >= 0.0
    return outcome


def small(**changes: float) -> Workload:
    """Twelve jobs of one vCPU and two minutes, one every 40 s; ``changes`` are of their arrivals."""
    jobs = [replace(arrival(40.0 * at, 120.0, 1.0), **changes) for at in range(12)]  # type: ignore[arg-type]
    return workload_of("small", jobs)


@pytest.mark.parametrize("peer", [None, "karpenter-like"])
@pytest.mark.parametrize("paid_s", [None, 600.0])
def test_accounts_of_spot_and_reserved_machines_are_the_cost(
    tmp_path: Path, peer: str | None, paid_s: float | None
) -> None:
    work = make_scenario("static", 0, hours=0.2, share=0.02)
    setting = Setting(workload=work, policy=policy(), cloud=SPOT, truth=Truth(), seed=1)
    if peer is not None:
        setting = replace(setting, planner=PEERS[peer].plan)
    usd = simulate(setting, tmp_path / "a", paid_s).spending.usd
    seen = {Account.USED, Account.LOST_WORK, Account.BOOT, Account.RESERVED_UNUSED}
    assert {each for each in seen if usd[each] > 0.0} == seen


def test_machines_that_are_kept_longer_are_idle_longer(tmp_path: Path) -> None:
    brief = Setting(workload=small(), policy=policy(), cloud=CLOUD)
    kept = replace(brief, policy=policy(retention={"minimum_s": 900, "maximum_s": 900}))
    short, long = simulate(brief, tmp_path / "a"), simulate(kept, tmp_path / "b")
    assert long.spending.usd[Account.IDLE_KEPT] > short.spending.usd[Account.IDLE_KEPT] + 600 * 3.6 / 3600
    assert long.spending.usd[Account.LOST_WORK] == 0.0


def test_jobs_that_request_more_than_they_need_hold_beyond_their_need(tmp_path: Path) -> None:
    exact = Setting(workload=small(), policy=policy(), cloud=CLOUD, truth=Truth(heterogeneity=0.0))
    guessed = replace(exact, workload=small(needs_vcpus=0.25))
    known, guess = simulate(exact, tmp_path / "a").spending, simulate(guessed, tmp_path / "b").spending
    assert known.usd[Account.BEYOND_NEED] == 0.0
    held = guess.usd[Account.USED] + guess.usd[Account.BEYOND_NEED]
    assert guess.usd[Account.BEYOND_NEED] == pytest.approx(0.75 * held)


def test_cpu_time_shows_what_jobs_need_not_what_they_hold(tmp_path: Path) -> None:
    used_s = list[float]()
    for needs_vcpus in (1.0, 0.25):
        setting = Setting(workload=small(needs_vcpus=needs_vcpus), policy=policy(), cloud=CLOUD, truth=Truth())
        (folder := tmp_path / f"{needs_vcpus:g}").mkdir()
        with simulated(setting, folder) as simulation:
            simulation.run()
            ended = [each for each in simulation.events() if each.kind is EventKind.UNIT_ENDED]
            used_s.append(sum(each.fields["cpu_s"] for each in ended))
    assert used_s[1] == pytest.approx(used_s[0] / 4, rel=0.01)


def test_reserved_machines_without_jobs_are_unused(tmp_path: Path) -> None:
    setting = Setting(workload=small(), policy=policy(), cloud={**SPOT, "reserved": {"m.one": 20}})
    outcome = simulate(setting, tmp_path / "a")
    assert outcome.spending.usd[Account.RESERVED_UNUSED] > 0.7 * outcome.committed_usd > 0.0


def test_billing_minimum_beyond_the_end_is_an_account(tmp_path: Path) -> None:
    hourly = Setting(workload=small(), policy=policy(), cloud={**CLOUD, "billing_minimum_s": 3600})
    outcome = simulate(hourly, tmp_path / "a")
    assert outcome.spending.usd[Account.MINIMUM_BILLING] > 0.3 * outcome.cost_usd
