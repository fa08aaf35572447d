"""How fast simulations are: whole experiments, profiling and classification included, and what a decision costs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.rows import Row
from hcloud.policy import parse_policy
from hcloud.simulator.clusters import Experiment, make_experiment
from hcloud.simulator.run import Setting, simulated

FULL_SERVERS = {"sr": 85, "hf": 14, "hm": 14, "odf": 0, "odm": 0}
"""Reserved machines of 16 vCPUs: peak and 15 %, or the steady part of the high-variability scenario."""
PROFILING = {"max_share_of_slack": 1.0, "max_concurrent": 16, "max_usd_per_job": None}
KEPT = {"retention": {"minimum_s": 3600.0}, "caps": {"max_instances": 20_000}}
"""Servers of a cluster are not let go."""
SHARES = (0.1, 0.3, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """One simulation: seconds of processor time, jobs and cycles."""

    took_s: float
    jobs: int
    cycles: int

    @property
    def per_decision_ms(self) -> float:
        """Return what one job cost, from its submission to its end."""
        return 1e3 * self.took_s / self.jobs


def run() -> list[Row]:
    """Measure HCloud's high variability under each strategy, Paragon's largest run, and how cost grows with size."""
    rows = [_strategy(name) for name in FULL_SERVERS]
    cluster: Mapping[str, object] = {
        "name": "paragon",
        "placement": {"order": "paragon"},
        "profiling": PROFILING,
        **KEPT,
    }
    rows.append(_paragon("paragon-large-oversubscribed", cluster, 1.0, target=60.0))
    rows += [_paragon("paragon-large-low", cluster, share) for share in SHARES]
    return rows


def _strategy(name: str) -> Row:
    made = make_experiment("high-variability", 0)
    count = FULL_SERVERS[name]
    policy = {"name": name, "provisioning": {"strategy": name}, "spot": {"for_targets": []}, "profiling": PROFILING}
    timed = _timed(made, policy, {**made.cloud, "reserved": {"n1.16": count} if count else {}})
    return _row(f"high variability, 2 h, {name}", timed, target=15.0)


def _paragon(name: str, policy: Mapping[str, object], share: float, target: float | None = None) -> Row:
    made = make_experiment(name, 0, share=share)
    return _row(f"{name} x {share:g}", _timed(made, policy, made.cloud), target)


def _timed(made: Experiment, policy: Mapping[str, object], cloud: Mapping[str, object]) -> _Timed:
    limits = {"caps": {"max_instances": 20_000}}
    setting = Setting(
        workload=made.workload, policy=parse_policy({**limits, **policy}), cloud=cloud, seed=0, truth=made.truth
    )
    with tempfile.TemporaryDirectory() as folder, simulated(setting, Path(folder)) as simulation:
        began = time.process_time()
        simulation.run()
        took_s = time.process_time() - began
        return _Timed(took_s=took_s, jobs=simulation.progress.submitted, cycles=simulation.progress.cycles)


def _row(name: str, timed: _Timed, target: float | None = None) -> Row:
    note = f"{timed.jobs} jobs, {timed.cycles} cycles, {timed.per_decision_ms:.2f} ms each"
    return Row(name=name, value=timed.took_s, unit="s", target=target, note=note)
