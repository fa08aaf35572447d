"""A simulated working day under the default policy: every stage of the mission acts, on the same jobs, in one run."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.config import load_policy, package_data
from hcloud.core.model import Event, EventKind
from hcloud.simulator.outcome import SimulationResult, outcome_of
from hcloud.simulator.run import simulated
from lab.papers.study import Case, RunSize, setting_of

SIZE = RunSize(share=0.005, hours=8.0)
STAGES: dict[str, Callable[[Event], bool]] = {
    "profiled beside": lambda e: e.kind is EventKind.JOB_PROFILED,
    "started unknown": lambda e: e.kind is EventKind.JOB_CLASSIFIED and e.fields["source"] == "prior",
    "known again": lambda e: e.kind is EventKind.JOB_CLASSIFIED and e.fields["source"] == "known",
    "queued in a lower class": lambda e: e.fields.get("quality_class", 9) < 5,
    "queued in a higher class": lambda e: e.fields.get("quality_class", 0) >= 5,
    "placed by what is known": lambda e: e.kind is EventKind.ATTEMPT_PLACED and e.fields["code"] == "suits",
    "sized for its target": lambda e: e.kind is EventKind.ATTEMPT_PLACED and "probability" in e.fields,
    "mapped to reserved room": lambda e: e.fields.get("mapped_to") == "reserved",
    "mapped to rented room": lambda e: e.fields.get("mapped_to") == "rented",
    "predicted and measured": lambda e: e.kind is EventKind.PREDICTION,
    "corrected": lambda e: e.kind is EventKind.CORRECTION,
}


def idle_stages(events: Sequence[Event]) -> list[str]:
    """Return the stages of which the log shows no action."""
    return [name for name, shows in STAGES.items() if not any(map(shows, events))]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sequence[Event], SimulationResult]:
    """The log of a day whose users guess the sizes of their jobs, and its outcome."""
    policy = load_policy(package_data.path("policies") / "default.yaml")
    case = Case(label="day", experiment="high-variability", policy=policy, guessed=True)
    setting = setting_of(replace(case, cloud={**case.cloud, "reserved": {"n1.16": 1}}), 1, SIZE)
    folder: Path = tmp_path_factory.mktemp("day")
    with simulated(setting, folder) as simulation:
        commitments = simulation.commitments()
        simulation.run()
        ideals = simulation.ideals()
        result = outcome_of("day", simulation.events, commitments, ideals, setting.workload.span_s)
        return list(simulation.events()), result


def test_every_stage_of_the_mission_acts_in_one_day(day: tuple[Sequence[Event], SimulationResult]) -> None:
    events, result = day
    assert idle_stages(events) == []
    assert (result.planning_failed, result.failed_by) == ((), ())
    assert result.succeeded == result.jobs == 101
    assert result.target_met_pct is not None and result.target_met_pct > 90


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_does_nothing_is_named(day: tuple[Sequence[Event], SimulationResult], stage: str) -> None:
    assert stage in idle_stages([event for event in day[0] if not STAGES[stage](event)])
