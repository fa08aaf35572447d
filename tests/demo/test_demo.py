"""The demo's table of two rounds, its simulated fleet, its picture, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from demo import fleet, rounds, run
from hcloud.config import load_job, load_policy
from hcloud.core.errors import BadInput
from hcloud.simulator.outcome import SimulationResult

DEMO = Path(run.__file__).parent
HOUR = fleet.Day(hours=1.0)


def job(number: int, name: str, began_s: float, ended_s: float, **tags: str) -> dict[str, Any]:
    held = {"started_at": began_s, "ended_at": ended_s, "resources": {"vcpus": 0.5}, "instance_id": "inst-1"}
    spec = {"name": name, "command": ["sort", "5"], "tags": tags}
    return {"id": f"job-{number}", "submitted_at": 0.0, "spec": spec, "attempt": {"allocations": [held]}}


def event(job_id: str, **fields: Any) -> dict[str, Any]:
    return {"job_id": job_id, "fields": fields}


def learnt(predictions: Sequence[dict[str, Any]]) -> rounds.Learnt:
    jobs = [
        job(1, "sort-1", 1.0, 5.0),
        job(2, "sort-2", 1.0, 7.0),
        job(3, "sort-1:profile-base", 2.0, 4.0, **{"hcloud.profile": "job-1"}),
        job(4, "sort-again", 10.0, 15.0),
    ]
    profiled = [
        event("job-1", runs=["job-3"], readings=["type:local/small:1:1:1:1"]),
        event("job-2", runs=["job-9"], readings=[]),
    ]
    (found,) = rounds.rounds(
        rounds.Facts(
            jobs=jobs,
            predictions=predictions,
            profiled=profiled,
            classified=[event("job-4", source="known")],
            types={"inst-1": "small"},
            cost_usd={"job-4": 0.00002},
        )
    )
    return found


def test_round_1_is_averaged_without_profiling_runs_and_only_useful_ones_count() -> None:
    found = learnt([])
    assert (found.program, found.first_s, found.runs, found.profiles, found.source) == ("sort", 5.0, 2, 1, "known")
    assert (found.waited_s, found.measured_s, found.machine, found.predicted_s) == (10.0, 5.0, "small", None)
    assert not found.is_within


def test_predicted_performance_becomes_seconds_with_its_limits_turned_round() -> None:
    fields = {"predicted": 0.25, "low": 0.2, "high": 0.5, "measured": 0.2}
    found = learnt([event("job-4", question="loss", **fields), event("job-4", question="run", **fields)])
    assert found.predicted_s == pytest.approx((2.0, 4.0, 5.0))
    assert found.is_within
    assert not replace(found, measured_s=6.0).is_within
    lines = list(rounds.table([found]))
    assert "2 own runs, 1 beside" in lines[-1]
    assert "4.0 s (2.0 to 5.0)" in lines[-1]


def test_every_program_of_round_2_has_the_same_command_in_round_1() -> None:
    first = {tuple(each.command) for each in load_job(DEMO / "batch.yaml")}
    again = load_job(DEMO / "again.yaml")
    assert len(again) == run.SECOND
    assert {tuple(each.command) for each in again} == first
    assert all(each.name is not None and each.name.endswith(rounds.AGAIN) for each in again)
    assert len(load_job(DEMO / "batch.yaml")) + 1 == run.FIRST


def test_the_policy_of_the_demo_profiles_beside() -> None:
    assert load_policy(DEMO / "policy.yaml").profiles_when == "beside"


def test_both_policies_have_the_same_reserved_servers_and_jobs_in_the_simulated_fleet() -> None:
    simple, mission = (fleet.setting_of(HOUR, policy) for policy in fleet.policies())
    assert simple.cloud["reserved"] == mission.cloud["reserved"] == {"n1.16": 1}
    pairs = list(zip(simple.workload.arrivals, mission.workload.arrivals, strict=True))
    assert all(one.spec.resources == other.spec.resources for one, other in pairs)
    assert all(one.spec.vcpus_within is None and other.spec.vcpus_within is not None for one, other in pairs)


@pytest.fixture(scope="module")
def outcomes() -> list[SimulationResult]:
    return [fleet.simulate(HOUR, policy) for policy in fleet.policies()]


def test_the_comparison_and_the_picture_state_what_came_out(outcomes: list[SimulationResult]) -> None:
    assert all(each.succeeded == each.jobs > 100 for each in outcomes)
    header, simple, mission, sentence = fleet.table(outcomes)
    assert "reserved in use" in header
    for line, each in ((simple, outcomes[0]), (mission, outcomes[1])):
        assert f"${each.cost_usd:.2f}" in line
        assert f"{each.target_met_pct:.1f} %" in line
    assert "the mission is" in sentence
    drawn = "".join(ElementTree.fromstring(fleet.picture(outcomes)).itertext())
    assert all(f"{each.name}, ${each.cost_usd:.2f}" in drawn for each in outcomes)


def test_a_dearer_mission_is_called_more_expensive(outcomes: list[SimulationResult]) -> None:
    simple, mission = outcomes
    dearer = replace(mission, metered_usd=2 * simple.cost_usd - mission.committed_usd, target_met_pct=50.0)
    met = f"{(simple.target_met_pct or 0.0) - 50.0:.1f} points fewer targets met"
    assert fleet.verdict(simple, dearer).startswith(
        f"the mission is 100 % more expensive than the simple rules, with {met}"
    )


def test_a_second_demo_at_the_same_time_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with run.only_demo(lock), pytest.raises(BadInput, match="another demo runs"), run.only_demo(lock):
        pass
    with run.only_demo(lock):
        pass


def test_a_machine_without_stress_ng_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="stress-ng, which is not installed"):
        run.require_programs()
