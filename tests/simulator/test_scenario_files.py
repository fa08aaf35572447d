"""Scenario files: the described load, made of the described kinds of jobs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hcloud.core.errors import BadInput, ConfigError, NoJobs
from hcloud.core.model import BatchTarget, BestEffortTarget, ServiceTarget
from hcloud.simulator.scenario_files import FileScenario, read_scenario

JOBS = """
jobs:
  - {name: etl, weight: 3, vcpus: 2, run_s: 300, within_s: 3600}
  - {name: web, vcpus: 4, run_s: 600, run_spread: 0, requests_per_s: 100, latency_ms: 20, interruptible: false}
"""


def scenario(tmp_path: Path, text: str) -> FileScenario:
    """Return the scenario of a file with this text."""
    path = tmp_path / "evenings.yaml"
    path.write_text(text)
    return read_scenario(path)


def test_load_follows_its_description_from_start_to_end(tmp_path: Path) -> None:
    made = scenario(tmp_path, "load: [[0, 400], [1, 400], [2, 1200], [4, 400]]" + JOBS).make(0, 1.0)
    used = np.array(made.cores())
    assert made.name == "evenings" and 3.9 * 3600 < made.span_s <= 4 * 3600
    for minute, wanted in ((1, 400), (30, 400), (90, 800), (120, 1200), (180, 800)):
        assert used[minute - 1 : minute + 5].mean() == pytest.approx(wanted, rel=0.2), minute


@pytest.mark.parametrize("spread", [0, 0.5, 1.5])
def test_load_rises_to_its_peaks_and_falls_again_though_jobs_run_for_long(tmp_path: Path, spread: float) -> None:
    jobs = f"\njobs: [{{vcpus: 2, run_s: 7200, run_spread: {spread}}}]\n"
    used = np.array(scenario(tmp_path, "load: [[0, 40], [2, 400], [6, 40]]" + jobs).make(0, 1.0).cores())
    for minute, wanted in ((1, 43), (30, 130), (60, 220), (119, 397), (180, 310), (240, 220)):
        assert used[minute] == pytest.approx(wanted, abs=6), minute


def test_jobs_too_large_for_the_load_arrive_occasionally(tmp_path: Path) -> None:
    made = scenario(tmp_path, "load: [[0, 1], [20, 1]]\njobs: [{vcpus: 8, run_s: 900, run_spread: 0}]\n")
    counts = [len(made.make(seed, 1.0).arrivals) for seed in range(5)]
    assert np.mean(counts) == pytest.approx(made.expected_jobs(), rel=0.15)


def test_kinds_with_the_same_name_are_different_programs(tmp_path: Path) -> None:
    jobs = "\njobs: [{vcpus: 1, run_s: 60}, {vcpus: 2, run_s: 60}, {name: web, vcpus: 4, run_s: 60}]\n"
    made = scenario(tmp_path, "load: [[0, 50], [0.2, 50]]" + jobs).make(0, 1.0)
    programs = {each.spec.resources.vcpus: each.spec.command for each in made.arrivals}
    assert len(set(programs.values())) == 3 and programs[4] == ("simulated", "web")


def test_kinds_follow_their_weights_and_run_times(tmp_path: Path) -> None:
    made = scenario(tmp_path, "load: [[0, 0], [0.01, 600], [3, 600]]" + JOBS).make(1, 1.0)
    kinds = Counter(each.spec.name.partition("-")[0] for each in made.arrivals)
    assert kinds["etl"] / kinds["web"] == pytest.approx(3.0, rel=0.15)
    etl = [each.run_s for each in made.arrivals if each.spec.name.startswith("etl")]
    assert np.mean(etl) == pytest.approx(300, rel=0.1) and np.std(np.log(etl)) == pytest.approx(0.5, rel=0.1)
    web = [each for each in made.arrivals if each.spec.name.startswith("web")]
    assert {each.run_s for each in web} == {600.0}
    assert len({each.spec.name for each in made.arrivals}) == len(made.arrivals)
    assert isinstance(web[0].spec.target, ServiceTarget) and not web[0].spec.interruptible
    assert {each.spec.command for each in made.arrivals} == {("simulated", "etl"), ("simulated", "web")}
    assert all(isinstance(e.spec.target, BatchTarget) for e in made.arrivals if e.spec.name.startswith("etl"))


def test_same_seed_makes_the_same_jobs_and_another_others(tmp_path: Path) -> None:
    made = scenario(tmp_path, "load: [[0, 40], [0.5, 80]]" + JOBS)
    assert made.make(3, 1.0) == made.make(3, 1.0) != made.make(4, 1.0)
    assert made.make(3, 0.5).name == "evenings x 0.5"
    assert len(made.make(3, 0.5).arrivals) == pytest.approx(len(made.make(3, 1.0).arrivals) / 2, rel=0.3)


def test_kinds_without_a_target_are_best_effort(tmp_path: Path) -> None:
    made = scenario(tmp_path, "name: any\nload: [[0, 8], [0.1, 8]]\njobs: [{vcpus: 1, run_s: 60, nodes: 2}]\n").make(
        0, 1
    )
    assert made.name == "any"
    assert all(isinstance(each.spec.target, BestEffortTarget) for each in made.arrivals)
    assert {each.spec.nodes.count for each in made.arrivals} == {2}
    assert len({each.spec.name for each in made.arrivals}) == len(made.arrivals)


def test_load_too_small_for_any_job_is_refused(tmp_path: Path) -> None:
    tiny = scenario(tmp_path, "load: [[0, 1], [0.25, 1]]\njobs: [{vcpus: 4096, run_s: 600}]\n")
    with pytest.raises(NoJobs) as told:
        tiny.make(0, 0.5)
    assert str(told.value) == (
        f"{tmp_path}/evenings.yaml:1: load: contains no job: at most 0.5 vCPUs for 0.25 h (--share 0.5), but "
        "the smallest kind of job holds 4096 for 600 s; make the load larger or longer, or jobs smaller"
    )


def test_load_too_short_for_any_job_is_refused_with_its_seconds(tmp_path: Path) -> None:
    short = scenario(tmp_path, "name: short\nload: [[0, 0], [0.0001, 8]]" + JOBS)
    with pytest.raises(NoJobs, match=r"evenings.yaml:2: load: .* at most 8 vCPUs for 0.36 s, but the smallest kind"):
        short.make(0, 1.0)


def test_randomly_too_long_jobs_are_refused_by_kind(tmp_path: Path) -> None:
    made = scenario(tmp_path, "load: [[0, 90], [1, 90]]\njobs:\n- {vcpus: 1, run_s: 3e8, run_spread: 2}\n")
    with pytest.raises(BadInput, match=r"evenings.yaml:3: jobs\[0\]: run_s 3e\+08 with run_spread 2 makes a job of"):
        made.make(0, 1.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "evenings.yaml:1: must have the keys name, load, jobs"),
        ("load: [[0, 1], [1, 1]]\njbos: []", "evenings.yaml:2: jbos: unknown key; did you mean 'jobs'?"),
        ("jobs: [{vcpus: 1, run_s: 1}]", "evenings.yaml:1: load is missing; it must be a list of 2 to 1000 points"),
        ("load: [[0, 1]]" + JOBS, "evenings.yaml:1: load: must be a list of 2 to"),
        ("load: [[0, 1], [1]]" + JOBS, "load[1]: must be two numbers"),
        ("load: [[0, 1], [1, many]]" + JOBS, "load[1]: vCPUs in use must be a number from 0 to 1000000, not 'many'"),
        (
            f"load: [[0, 1{'0' * 400}], [1, 1]]" + JOBS,
            "load[0]: vCPUs in use must be a number from 0 to 1000000, not '1000",
        ),
        ("load: [[1, 1], [2, 1]]" + JOBS, "load[0]: starts at hour 1; it must start at 0"),
        ("load: [[0, 1], [2, 1], [2, 3]]" + JOBS, "load[2]: hour 2 is not after hour 2"),
        ("load: [[0, 0], [2, 0]]" + JOBS, "load: is always 0"),
        ("load: [[0, 1], [1, 1]]\njobs: []", "jobs: must be a list of 1 to"),
        ("load: [[0, 1], [1, 1]]\njobs: [{vcpus: 1}]", "jobs[0]: a kind of job needs run_s"),
        ("load: [[0, 1], [1, 1]]\njobs: [{vcpus: 0, run_s: 1}]", "jobs[0]: vcpus: 0 must be from 0.001"),
        ("load: [[0, 1], [1, 1]]\njobs: [{vcpus: 1, run_s: 1, at_s: 4}]", "at_s: unknown key"),
        ("load: [[0, 1], [1, 1]]\njobs: [{vcpus: 1, run_s: 1, weight: 0}]", "weight: it must be a number from 1e-06"),
        ("load: [[0, 1], [1, 1]]\njobs: [{vcpus: 1, run_s: [1]}]", "run_s: must be a number or a word"),
        (
            "load: [[0, 1], [1, 1]]\njobs:\n- vcpus: 1\n  run_s: 1e9",
            "yaml:4: jobs[0].run_s: is 1.16e+04 days; it must be at most 3650, and times are in seconds",
        ),
        ("load: [[0, 1e6], [700, 1e6]]\njobs: [{vcpus: 1, run_s: 1}]", "load: makes 2.52e+12 jobs; at most 1000000"),
        ('name: "a\\nb"\nload: [[0, 1], [1, 1]]' + JOBS, "name: must have 1 to 100 printable characters"),
    ],
)
def test_invalid_scenario_file_is_refused_with_file_line_and_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises((ConfigError, BadInput)) as told:
        scenario(tmp_path, text)
    assert words in str(told.value) and "evenings.yaml:" in str(told.value)
