"""Every joint between two stages, met in one simulation of measured programs; each, broken, is noticed.

Programs, errors of readings and what the planner knows at first are those of the shipped library
(``Truth(measured=True)``); all stages from profiling to placement run as in a daemon.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from hcloud import beliefs
from hcloud.apply import feedback
from hcloud.classifier import applications, needed_quality
from hcloud.classifier.library import Library
from hcloud.classifier.profiles import library_of
from hcloud.config import load_policy, package_data
from hcloud.core import quality
from hcloud.core.estimates import Classification
from hcloud.core.model import (
    BatchTarget,
    EventKind,
    JobSpec,
    JobState,
    MetricsHook,
    ProgressHook,
    Resources,
    ServiceTarget,
)
from hcloud.planner import profiling_beside
from hcloud.planner.fit import interference, suitability
from hcloud.planner.placement.room_reservation import PLANNED
from hcloud.simulator.clusters import gce
from hcloud.simulator.measured_programs import MeasuredPrograms
from hcloud.simulator.program_models import SOURCES, ProgramModel
from hcloud.simulator.run import Setting, simulated
from hcloud.simulator.workload import Arrival, Workload, workload_of
from hcloud.simulator.world import Truth

POLICY = load_policy(package_data.path("policies") / "default.yaml")
PROGRAMS, RUNS, RUN_S = 20, 3, 1500.0
SEED = 18
CYCLE_S = 10.0
"""Seconds between plans: a third less to compute than with the daemon's second."""


def jobs() -> Workload:
    """Return runs of many programs, one after the other; every fourth program is a service."""
    made = []
    for number in range(PROGRAMS):
        serves, vcpus = number % 4 == 0, (0.5, 2.0, 3.0)[number % 3]
        target = (
            ServiceTarget(requests_per_s=100.0, latency_ms=20.0, percentile=99.0)
            if serves
            else BatchTarget(finish_within_s=4.0 * RUN_S)
        )
        for run in range(RUNS):
            spec = JobSpec(
                name=f"p{number}-{run}",
                user=f"user{number % 5}",
                command=(f"program-{number}", "--input", "1"),
                target=target,
                resources=Resources(vcpus=vcpus, memory_mib=1024),
                progress=None if serves else ProgressHook(file="progress"),
                metrics=MetricsHook(url="http://127.0.0.1/") if serves else None,
                tags={"program_kind": "service" if serves else "single"},
            )
            made.append(Arrival(at_s=20.0 * number + 1.4 * RUN_S * run, run_s=RUN_S * (1 + number % 2), spec=spec))
    return workload_of("joints", made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one simulation showed."""

    truth: Sequence[ProgramModel]
    """Programs that were profiled."""
    beliefs: Sequence[Classification]
    """What was believed of each at the end."""
    known_at_first: Library
    run_errors: Sequence[float]
    """By run, the error of the performance that was predicted for it, as a natural logarithm."""
    runs_within: float
    """Share of runs within the 80 % limits of their prediction."""
    classes: Sequence[int]
    """Classes of placed jobs."""
    waits_s: Sequence[float]
    """Of jobs that were not planned to start later."""
    profiled_under: Sequence[str]
    """By profiling run beside a job, which sources it presses, and why."""


def simulate(folder: Path) -> Seen:
    cloud = {**gce(), "reserved": {"n1.16": 1}}
    setting = Setting(
        workload=jobs(), policy=POLICY, cloud=cloud, seed=SEED, truth=Truth(measured=True), cycle_s=CYCLE_S
    )
    with simulated(setting, folder) as simulation:
        world = simulation._world
        assert world is not None
        known_at_first = world.library()
        simulation.run()
        events, rows = list(simulation.events()), simulation.store.live().applications
        measured = {row.program: row.name for row in rows.values() if "tolerated" in row.cells}
        believed = simulation.controller.beliefs.belief_store.believe(dict.fromkeys(measured.values()))
    programs = {program: model for program in measured if (model := world.known_program(program)) is not None}
    runs = [e.fields for e in events if e.kind is EventKind.PREDICTION and e.fields["question"] == "run"]
    placed = [e.fields for e in events if e.kind is EventKind.ATTEMPT_PLACED]
    planned = {e.job_id for e in events if e.fields.get("code") == PLANNED}
    return Seen(
        truth=list(programs.values()),
        beliefs=[believed[measured[program]] for program in programs],
        known_at_first=known_at_first,
        run_errors=[math.log(each["predicted"] / each["measured"]) for each in runs],
        runs_within=float(np.mean([each["low"] <= each["measured"] <= each["high"] for each in runs])),
        classes=[each["quality_class"] for each in placed if "quality_class" in each],
        waits_s=[
            e.fields["waited_s"] for e in events if e.kind is EventKind.ATTEMPT_PLACED and e.job_id not in planned
        ],
        profiled_under=[
            text[text.index("; under ") :]
            for event in events
            if event.kind is EventKind.JOB_STATE and "; under " in (text := event.fields.get("text", ""))
        ],
    )


# -------------------------------------------------------------------------------------------------------------- checks
def programs_are_not_known_before(seen: Seen) -> bool:
    """No program was drawn from a row that the planner began with."""
    return not {model.drawn_from for model in seen.truth} & set(seen.known_at_first.known)


def programs_are_profiled(seen: Seen) -> bool:
    """Most programs that ran for an hour were profiled beside their runs."""
    return len(seen.truth) >= PROGRAMS / 2


def sources_are_chosen(seen: Seen) -> bool:
    """No profiling run fell back to the default sources, as enough programs are known."""
    return bool(seen.profiled_under) and not any("defaults" in why for why in seen.profiled_under)


def speeds_are_predicted(seen: Seen) -> bool:
    """Most runs, on whatever type and size, perform as predicted, and within the limits that were stated."""
    errors = np.abs(seen.run_errors)
    return len(errors) >= 20 and float(np.quantile(errors, 0.75)) <= 0.15 and seen.runs_within >= 0.75


def tolerances_are_within_limits(seen: Seen) -> bool:
    """What programs really tolerate of a source they were measured with is within the 80 % limits of the belief."""
    within = [
        believed.low <= min(100.0, tolerated) <= believed.high
        for model, each in zip(seen.truth, seen.beliefs, strict=True)
        for source, tolerated in zip(SOURCES, model.tolerated, strict=True)
        if (believed := each.tolerated[source]).observed
    ]
    return len(within) >= 20 and float(np.mean(within)) >= 0.75


def needed_quality_tells_programs_apart(seen: Seen) -> bool:
    """Needed qualities differ, and those are high that belong to programs that bear little."""
    needed = [each.quality_target.value for each in seen.beliefs]
    true = [quality.encode([100.0 - min(100.0, each) for each in model.tolerated]) for model in seen.truth]
    return float(np.subtract(*np.quantile(needed, (0.75, 0.25)))) >= 0.1 and spearmanr(needed, true)[0] >= 0.3


def classes_are_used(seen: Seen) -> bool:
    """Jobs spread over the classes; none holds most of them."""
    return len(set(seen.classes)) >= 5 and max(map(seen.classes.count, seen.classes)) <= 0.5 * len(seen.classes)


def profiling_costs_nobody(seen: Seen) -> bool:
    """Jobs do not wait longer than for a boot, though their programs are unknown."""
    return float(np.quantile(seen.waits_s, 0.9)) <= 60.0


CHECKS = (
    programs_are_not_known_before,
    programs_are_profiled,
    sources_are_chosen,
    speeds_are_predicted,
    tolerances_are_within_limits,
    needed_quality_tells_programs_apart,
    classes_are_used,
    profiling_costs_nobody,
)


def test_all_joints_hold(tmp_path: Path) -> None:
    seen = simulate(tmp_path)
    assert [check.__name__ for check in CHECKS if not check(seen)] == []


# -------------------------------------------------------------------------------------------------------------- faults
Patch = pytest.MonkeyPatch


def trained_on_its_own_test(patch: Patch) -> None:
    """The planner begins with the rows that programs are drawn from."""
    patch.setattr(MeasuredPrograms, "library", lambda self: library_of(self.drawn_from))


def never_worth_profiling(patch: Patch) -> None:
    """No run of a program seems to last long enough."""
    patch.setattr(profiling_beside, "_worth", lambda *_: None)


def priors_for_new_jobs_only(patch: Patch) -> None:
    """What is known of sources and types is at hand only in cycles in which a job is new."""
    needs = beliefs._needs_type_prior
    patch.setattr(
        beliefs,
        "_needs_type_prior",
        lambda policy, jobs: needs(policy, [job for job in jobs if job.state is JobState.SUBMITTED]),
    )


def rates_of_whole_machines(patch: Patch) -> None:
    """What a run did with its vCPUs is taken for what it does with all of the machine's."""
    of_run = feedback._job_run
    patch.setattr(
        feedback,
        "_job_run",
        lambda job, instance, *rest: replace(of_run(job, instance, *rest), vcpus=instance.capacity.vcpus),
    )


def readings_believed_at_the_point(patch: Patch) -> None:
    """The limits of readings are ignored."""
    patch.setattr(applications, "half_width", lambda *_: 0.0)


def sources_of_the_own_core(patch: Patch) -> None:
    """Needed quality includes what a job cannot bear on its own core."""
    patch.setattr(needed_quality, "CORE_SOURCES", frozenset())
    patch.setattr(needed_quality, "RELIABLE", 0.0)


def quality_of_what_jobs_bear(patch: Patch) -> None:
    """Needed quality rises with what a job tolerates."""
    codes = needed_quality._codes
    patch.setattr(needed_quality, "_codes", lambda pressures: codes(100.0 - pressures))


def classes_of_what_little_is_left(patch: Patch) -> None:
    """Needed quality is divided by the loss that is accepted before it is classed."""
    needed = interference.quality_needed
    for module in (interference, suitability):
        patch.setattr(module, "quality_needed", lambda known: max(0.0, 1.0 - 4.0 * (1.0 - needed(known))))


def jobs_wait_for_their_profile(patch: Patch) -> None:
    """Unknown jobs are profiled before they run."""
    first = replace(POLICY, profiling=replace(POLICY.profiling, when="before"))
    patch.setattr(sys.modules[__name__], "POLICY", first)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (trained_on_its_own_test, programs_are_not_known_before),
        (never_worth_profiling, programs_are_profiled),
        (priors_for_new_jobs_only, sources_are_chosen),
        (rates_of_whole_machines, speeds_are_predicted),
        (readings_believed_at_the_point, tolerances_are_within_limits),
        (sources_of_the_own_core, needed_quality_tells_programs_apart),
        (quality_of_what_jobs_bear, needed_quality_tells_programs_apart),
        (classes_of_what_little_is_left, classes_are_used),
        (jobs_wait_for_their_profile, profiling_costs_nobody),
    ],
    ids=lambda each: each.__name__,
)
def test_a_broken_joint_is_noticed(
    fault: Callable[[Patch], None], check: Callable[[Seen], bool], tmp_path: Path, monkeypatch: Patch
) -> None:
    fault(monkeypatch)
    assert not check(simulate(tmp_path))
