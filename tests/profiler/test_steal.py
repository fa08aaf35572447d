"""Readings of a program from which the host took CPU time are discarded, or their limits are wider."""

import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hcloud.core.cpu_window import CpuWindow
from hcloud.core.estimates import Measure
from hcloud.engine.host import EngineHost
from hcloud.engine.usage import cpu_times
from hcloud.profiler.first_look import FirstLook
from hcloud.profiler.measure import Bench
from hcloud.profiler.steal import undisturbed
from hcloud.profiler.subject import Stage, Subject
from tests.waiting import wait_until

ALONE = CpuWindow(took_s=1.0, cpu_s=0.5, waited_s=0.5, throttled_s=0.5, busy_s=0.5, stolen_s=0.0)
"""A busy program on half a CPU that it was granted."""


@pytest.mark.parametrize(
    ("changes", "vcpus", "taken"),
    [
        ({}, 0.5, 0.0),
        # Measured on a busy host: 0.16 to 0.33 of 0.5 vCPU, its quota not reached.
        ({"cpu_s": 0.33, "waited_s": 0.67, "throttled_s": 0.0, "busy_s": 1.0}, 0.5, 0.34),
        ({"cpu_s": 0.16, "waited_s": 0.84, "throttled_s": 0.0, "busy_s": 1.0}, 0.5, 0.68),
        # Others used what its own quota left.
        ({"busy_s": 1.0}, 0.5, 0.0),
        # More threads than CPUs wait for each other, not for others.
        ({"cpu_s": 1.0, "waited_s": 1.0, "throttled_s": 0.0, "busy_s": 1.0}, 2.0, 0.0),
        # A program that does not want more than it gets.
        ({"cpu_s": 0.1, "waited_s": 0.0, "throttled_s": 0.0, "busy_s": 1.0}, 1.0, 0.0),
        # A hypervisor's theft is no waiting that the program could see.
        ({"cpu_s": 0.6, "waited_s": 0.0, "throttled_s": 0.0, "busy_s": 0.6, "stolen_s": 0.4}, 1.0, 0.4),
        # Our own source is there on purpose.
        ({"cpu_s": 0.5, "waited_s": 0.5, "throttled_s": 0.0, "busy_s": 1.0, "own_s": 0.5}, 1.0, 0.0),
    ],
)
def test_what_others_had_of_the_promised_cpu_time_is_taken(
    changes: dict[str, float], vcpus: float, taken: float
) -> None:
    assert replace(ALONE, **changes).taken(vcpus) == pytest.approx(taken, abs=0.01)


def test_disturbed_windows_are_discarded_where_enough_others_are_left() -> None:
    kept = undisturbed([10.0, 4.0, 10.0, 10.0], [0.0, 0.6, 0.02, 0.05])
    assert (kept.values, kept.discarded, kept.taken) == ((10.0, 10.0, 10.0), 1, 0.0)
    assert kept.note is not None and "discarded" in kept.note


def test_limits_are_wider_where_every_window_was_disturbed() -> None:
    kept = undisturbed([6.0, 5.0, 6.0, 2.0], [0.4, 0.5, 0.4, 0.8])
    assert kept.values == (6.0, 5.0, 6.0)
    rate, ratio = kept.widened(both=False), kept.widened(both=True)
    assert rate.low <= rate.value and rate.high >= rate.value / 0.5
    assert ratio.low <= ratio.value * 0.5
    assert kept.note is not None and "50%" in kept.note


def test_undisturbed_windows_all_count_and_nothing_is_noted() -> None:
    kept = undisturbed([1.0, 1.1], [0.0, 0.1])
    assert (kept.values, kept.note) == ((1.0, 1.1), None)


class Robbed(Bench):
    """A bench whose host takes CPU time away in some windows, and the performance with it."""

    def __init__(self, subject: Subject, taken: Iterator[float]) -> None:
        super().__init__(subject, EngineHost(), run_s=1.0, deadline_s=60.0)
        self._stage = _Taken(subject, EngineHost(), run_s=1.0, deadline=time.monotonic() + 60.0)
        self._stage.shares = taken

    def look(self, vcpus: float) -> FirstLook:
        return FirstLook(measure=Measure.CPU, duration_s=None)


class _Taken(Stage):
    shares: Iterator[float]

    def sample(self, measure: Measure, vcpus: float) -> float:
        self.taken = next(self.shares)
        return 100 * (1 - self.taken)


@pytest.mark.parametrize(
    ("taken", "value", "words"),
    [([0.5, 0.0, 0.0], 100.0, "discarded"), ([0.5], 50.0, "took up to 50%"), ([0.0], 100.0, "")],
)
def test_rate_is_that_of_the_undisturbed_windows(tmp_path: Path, taken: list[float], value: float, words: str) -> None:
    with Robbed(Subject(name="any", command=("any",), workdir=tmp_path), itertools.cycle(taken)) as bench:
        rate = bench.rate(1.0, within_s=0.5)
    assert rate.value == pytest.approx(value)
    assert rate.high >= 99.9  # whatever was taken away, the limits hold what the program can do
    assert bool(words) == bool(bench.notes) and all(words in note for note in bench.notes)


def test_times_of_cpus_are_read_with_what_the_hypervisor_took(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu 9 9 9 9\ncpu0 100 0 50 900 7 0 50 300 0 0\ncpu1 100 100 0 0 0\nintr 5\n")
    ticks = os.sysconf("SC_CLK_TCK")
    both = cpu_times([0, 1], str(stat))
    assert (both.busy_s, both.stolen_s) == (400 / ticks, 300 / ticks)
    assert cpu_times([0], str(tmp_path / "none")).busy_s == 0.0


def test_real_program_beside_other_work_on_its_cpu_is_seen_to_be_robbed(tmp_path: Path) -> None:
    """Two real programs on one CPU, neither of them a source: about half is taken from the one measured."""
    tmp_path.chmod(0o755)
    script = ("/bin/sh", "-c", "while :; do :; done")
    stage: Any = Stage(
        Subject(name="any", command=script, workdir=tmp_path),
        EngineHost(),
        run_s=4.0,
        deadline=time.monotonic() + 60.0,
    )
    first = min(os.sched_getaffinity(0))
    others = [subprocess.Popen(script, preexec_fn=lambda: os.sched_setaffinity(0, {first})) for _ in range(2)]
    try:
        stage.sample(Measure.CPU, 1.0)
        assert wait_until(lambda: stage.sample(Measure.CPU, 1.0) and stage.taken > 0.3, timeout_s=30)
    finally:
        stage.clear()
        for other in others:
            other.kill()
            other.wait()
