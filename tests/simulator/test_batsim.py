"""Workloads of Batsim: which jobs they become, and how wrong ones are refused."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core.errors import BadInput, NoJobs
from hcloud.core.model import BatchTarget
from hcloud.simulator.batsim import read_batsim
from hcloud.simulator.workload import LogReading, Workload

PROFILES: dict[str, Any] = {
    "delay": {"type": "delay", "delay": 20.25},
    "new delay": {"type": "DelayProfile", "delay": 20.25},
    "each": {"type": "parallel_homogeneous", "cpu": 10e6, "com": 0},
    "talking": {"type": "ParallelTaskHomogeneousProfile", "cpu": 10e6, "com": 1e6},
    "total": {"type": "parallel_homogeneous_total", "cpu": 10e6, "com": 0},
    "spread": {
        "type": "ParallelTaskHomogeneousProfile", "cpu": 10e6, "generation_strategy": "DefinedAmountsSpreadUniformly",
    },
    "matrix": {"type": "parallel", "cpu": [5e6, 0, 1e6, 0], "com": [0.0] * 16},
    "four times": {"type": "composed", "repeat": 4, "seq": ["delay", "each", "delay"]},
    "old repeat": {"type": "composed", "nb": 2, "seq": ["delay"]},
    "nested": {"type": "SequentialCompositionProfile", "seq": ["four times", "old repeat"]},
    "silent": {"type": "parallel_homogeneous", "cpu": 0, "com": 1e6},
    "replay": {"type": "smpi", "trace": "traces.txt"},
    "loop": {"type": "composed", "seq": ["loop"]},
    "broken": {"type": "composed", "seq": ["replay"]},
    "negative": {"type": "delay", "delay": -1},
    "list": [],
}  # fmt: skip


def job(profile: str, res: int = 4, number: int = 0, **more: object) -> dict[str, object]:
    return {"id": f"job {number}", "subtime": 10.0 * number, "res": res, "profile": profile, **more}


def read(folder: Path, jobs: object, reading: LogReading | None = None, profiles: object = PROFILES) -> Workload:
    path = folder / "w.json"
    path.write_text(json.dumps({"nb_res": 4, "jobs": jobs, "profiles": profiles}))
    return read_batsim(path, reading or LogReading(flops_per_s=1e6))


@pytest.mark.parametrize(
    ("profile", "run_s"),
    [
        ("delay", 20.25),
        ("new delay", 20.25),
        ("each", 10.0),
        ("talking", 10.0),
        ("total", 2.5),
        ("spread", 2.5),
        ("matrix", 5.0),  # the host with the most to compute decides
        ("four times", 4 * (20.25 + 10.0 + 20.25)),
        ("old repeat", 40.5),
        ("nested", 4 * 50.5 + 40.5),
    ],
)
def test_a_job_runs_as_long_as_its_profile_says(tmp_path: Path, profile: str, run_s: float) -> None:
    (made,) = read(tmp_path, [job(profile)]).arrivals
    assert made.run_s == pytest.approx(run_s)
    assert made.spec.target == BatchTarget(finish_within_s=made.run_s * 2 + 600)
    assert (made.spec.name, made.spec.resources.vcpus, made.spec.nodes.count) == ("job 0", 4, 1)


def test_resources_become_vcpus_and_wide_jobs_get_nodes(tmp_path: Path) -> None:
    (made,) = read(tmp_path, [job("delay", 40)], LogReading(node_vcpus=16)).arrivals
    assert (made.spec.nodes.count, made.spec.resources.vcpus) == (3, 14)


def test_what_is_left_out_or_cut_is_counted(tmp_path: Path) -> None:
    jobs = [job("silent"), job("talking", walltime=4), job("delay", walltime=-1), job("delay", walltime=30)]
    made = read(tmp_path, jobs)
    assert sorted(each.run_s for each in made.arrivals) == [4.0, 20.25, 20.25]
    assert made.notes == (
        "1 job without computation or delay left out",
        "1 job longer than its walltime, at which Batsim stops it; cut there",
        "of 1 communicating job only the computation is simulated",
    )


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (
            "replay",
            "profile replay: job job 7: its type 'smpi' cannot be simulated; types that can are delay, parallel",
        ),
        ("broken", "profile broken: job job 7: its part replay: its type 'smpi' cannot be simulated"),
        ("loop", "profile loop: job job 7: its part loop: has more than 50 sequences within each other, or contains"),
        ("negative", "profile negative: job job 7: its delay is -1; it must be a number from 0 to"),
        ("list", "profile list: job job 7: must be an object, not a list"),
        ("none", "profile none: job job 7: is not among the profiles"),
    ],
)
def test_a_profile_without_a_run_time_is_refused_with_job_and_profile(tmp_path: Path, profile: str, words: str) -> None:
    with pytest.raises(BadInput) as error:
        read(tmp_path, [job("delay"), job(profile, number=7)])
    assert words in str(error.value)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    jobs = [
        job("replay", number=1), job("replay", number=2), job("replay", number=3), job("delay", res=0, number=4),
        {"id": "five"}, "six", job("matrix", res=3, number=7),
    ]  # fmt: skip
    with pytest.raises(BadInput) as error:
        read(tmp_path, jobs)
    text = str(error.value).removeprefix(f"{tmp_path}/")
    for words in (
        "w.json: profile replay: job job 1: its type 'smpi' cannot be",
        " (1 more)",
        "key res: job 4: 0 must be from 1 to 1000000000; job 5: missing",
        "key subtime: job 5: missing",
        "key profile: job 5: missing",
        "job 6: 'six' is not an object",
        "profile matrix: job job 7: has 4 values of cpu, but the job has 3 resources",
    ):
        assert words in text


def test_operations_need_a_speed_of_hosts(tmp_path: Path) -> None:
    assert read(tmp_path, [job("delay")], LogReading()).arrivals
    words = "--host-flops is needed: job job 0: profile four times counts floating-point operations$"
    with pytest.raises(BadInput, match=words):
        read(tmp_path, [job("four times")], LogReading())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "is not a Batsim workload; jobs must be a list of jobs, not nothing"),
        ('{"jobs": [], "profiles": 3}', "is not a Batsim workload; profiles must be an object of profiles, not 3"),
        ('{"jobs": [', "is not valid JSON"),
        ('{"jobs": ' + "[" * 200_000, "is nested too deeply"),
        ('{"jobs": [{"id": 1, "subtime": Infinity}]}', "is not valid JSON (Infinity is not a number of JSON)"),
        ('{"jobs": [{"id": 1, "subtime": 1e999, "res": 1, "profile": "p"}], "profiles": {}}', "'inf' is not a number"),
        (
            '{"jobs": [{"id": "\\u0000", "subtime": [1], "res": 1, "profile": "p"}], "profiles": {}}',
            "must be text or a",
        ),
    ],
)
def test_a_file_that_is_no_workload_is_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "w.json"
    path.write_text(text)
    with pytest.raises(BadInput) as error:
        read_batsim(path, LogReading())
    assert words in str(error.value) and str(error.value).isprintable()


def test_a_workload_without_a_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoJobs, match="there is no job to simulate; 1 job without computation"):
        read(tmp_path, [job("silent")])


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 64), st.integers(1, 10**5)), min_size=1, max_size=20),
    st.randoms(),
)
def test_generated_jobs_are_read_as_they_were_written_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]], chance: random.Random
) -> None:
    profiles = {f"d{run_s}": {"type": "delay", "delay": run_s} for _, _, run_s in rows}
    jobs = [
        {"id": at, "subtime": at_s, "res": res, "profile": f"d{run_s}"} for at, (at_s, res, run_s) in enumerate(rows)
    ]
    chance.shuffle(jobs)
    path = tmp_path_factory.getbasetemp() / "w.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"jobs": jobs, "profiles": profiles}).encode()))
    made = read_batsim(path, LogReading(node_vcpus=64))
    first_s = min(at_s for at_s, _, _ in rows)
    found = sorted((each.at_s, each.spec.resources.vcpus, each.run_s) for each in made.arrivals)
    assert found == sorted((at_s - first_s, res, run_s) for at_s, res, run_s in rows)
