"""What is remembered from plan to plan saves time and decides nothing: with and without it, the same plans."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hcloud.config import load_policy
from hcloud.planner import make_plan
from hcloud.planner.memo import Memo
from hcloud.planner.plan import Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.policy import Policy
from hcloud.shipped import path as shipped_path
from hcloud.simulator.run import Setting, simulated
from hcloud.simulator.scenarios import make_scenario
from hcloud.simulator.world import Truth

CLOUD: dict[str, object] = {"zones": ["east-1a"], "reserved": {"m.2xlarge": 2}, "keep_terminated_s": 60}


def plans_that_differ(folder: Path, strategy: str, memo: Memo) -> int:
    """Simulate with one memo all along, and count the plans that would have been others with an empty one."""
    differing = 0

    def plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        nonlocal differing
        chances = copy.deepcopy(rng)
        made = make_plan(replace(snapshot, memo=memo), policy, rng)
        differing += made != make_plan(replace(snapshot, memo=Memo()), policy, chances)
        return made

    work = make_scenario("high-variability", 1, hours=0.05, share=0.03)
    policy = load_policy(shipped_path(f"policies/{strategy}.yaml"))
    with simulated(Setting(workload=work, policy=policy, cloud=CLOUD, truth=Truth(), planner=plan), folder) as run:
        run.run()
    return differing


@pytest.mark.parametrize("strategy", ["hm", "sr"])
def test_a_plan_is_the_same_whatever_is_remembered(tmp_path: Path, strategy: str) -> None:
    assert plans_that_differ(tmp_path, strategy, Memo()) == 0


class Careless(Memo):
    """Takes what was ever worked out for true."""

    def of(self, name: str, made_of: tuple[object, ...], work_out: Callable[[], Any]) -> Any:
        return super().of(name, (), work_out)


def test_a_memo_that_does_not_look_at_what_its_answers_were_made_of_is_found_out(tmp_path: Path) -> None:
    assert plans_that_differ(tmp_path, "hm", Careless()) > 0
