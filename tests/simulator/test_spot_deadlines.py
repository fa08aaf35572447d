"""Deadlines hold on a cloud that takes spot machines back, since runs that could not begin anew in time avoid them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hcloud.config import load_policy
from hcloud.config.package_data import path
from hcloud.core.model import BatchTarget, EventKind, JobSpec, Resources
from hcloud.planner.spot_preemption import SpotDeadlines
from hcloud.simulator.clusters import gce
from hcloud.simulator.outcome import outcome_of
from hcloud.simulator.run import Setting, simulated
from hcloud.simulator.workload import Arrival, workload_of

RUN_S = 2400.0
CLOUD = {
    **gce(),
    "markets": ["on_demand", "spot"],
    "spot": {"preemptions_per_h": 0.5},
    "boot": {"p50_s": 20.0, "p95_s": 20.0},
}


@contextmanager
def off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(SpotDeadlines, "avoids_spot", lambda *_: False)
        yield


def met_pct_and_spot(folder: Path, seed: int = 0) -> tuple[float, int]:
    """Return the percentage of deadlines met, and how many spot machines were used: 40 jobs of one program, the first
    ten of which tell how long it runs."""
    jobs = [
        Arrival(
            at_s=600.0 * n,
            run_s=RUN_S,
            spec=JobSpec(
                name="render",
                user="ann",
                command=("render",),
                target=BatchTarget(finish_within_s=RUN_S * (1.5 if n >= 10 else 20)),
                resources=Resources(vcpus=1, memory_mib=512),
            ),
        )
        for n in range(40)
    ]
    policy = load_policy(path("policies") / "default.yaml")
    setting = Setting(workload=workload_of("renders", jobs), policy=policy, cloud=CLOUD, seed=seed, cycle_s=10.0)
    folder.mkdir()
    with simulated(setting, folder) as simulation:
        commitments = simulation.commitments()
        simulation.run()
        outcome = outcome_of("renders", simulation.events, commitments, simulation.ideals(), setting.workload.span_s)
        requested = (e for e in simulation.events() if e.kind is EventKind.INSTANCE_REQUESTED)
        spot = sum(event.fields["market"] == "spot" for event in requested)
    assert outcome.target_met_pct is not None
    return outcome.target_met_pct, spot


def test_deadlines_hold_where_spot_is_lost_and_broke_without_the_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met_pct, spot = met_pct_and_spot(tmp_path / "with")
    assert met_pct >= 95.0 and spot >= 5  # the first ten jobs have time enough, and use it
    with off(monkeypatch):
        broken_pct, _ = met_pct_and_spot(tmp_path / "without")
    assert broken_pct <= met_pct - 10.0
