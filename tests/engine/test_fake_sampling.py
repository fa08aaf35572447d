"""Skipped samples of simulated workers carry no information: the recorded history is the same."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from hcloud.core.model import ProgressHook
from hcloud.fake_runner.sampling import FakeSamplePolicy
from hcloud.fake_runner.unit import FakeUnit, SimulatedUnit
from hcloud.fake_runner.work import Work
from hcloud.observe.sampling import DEPARTURE, Sampling, gap_s
from hcloud.provider import UnitSample
from tests.policies import simple
from tests.providers.clouds import unit_on

UNIT, POLICY, EVERY_S, LASTS_S = "job-1.1.0", simple(name="default"), 10.0, 3000
WORK, LASTING = Work(duration_s=1e6), Work(duration_s=155.0)


def life_at(speed: float, at: float, before: SimulatedUnit | None) -> SimulatedUnit:
    """The unit from ``at`` on."""
    spec = unit_on("inst-0", "work", UNIT, progress=ProgressHook(file="p"))
    done_s = 0.0 if before is None else before.done_s(at)
    unit = FakeUnit(id=UNIT, instance_id="inst-0", spec=spec, started_at=0.0, speed=speed, since_at=at, done_s=done_s)
    return SimulatedUnit(unit=unit, work=WORK)


def told_of(speeds: Mapping[int, float], *, quietly: bool) -> list[UnitSample]:
    """The samples of a unit with changing speed, polled every other second."""
    tellings = FakeSamplePolicy(EVERY_S, partial(gap_s, policy=POLICY) if quietly else None)
    life, told = life_at(1.0, 0.0, None), list[UnitSample]()
    for now in range(2, LASTS_S, 2):
        if (speed := speeds.get(now)) is not None:
            life = life_at(speed, now - 1.0, life)
            tellings.changed(UNIT, now - 1.0)
        sample = tellings.report(life, "inst-0", now)[0].sample
        if sample is not None and (not told or sample is not told[-1]):
            told.append(sample)
    return told


def changes(seed: int) -> dict[int, float]:
    chances = random.Random(seed)
    return {2 * chances.randrange(2, LASTS_S // 2): chances.choice([0.3, 0.6, 0.99, 1.01, 1.5]) for _ in range(5)}


def check_told(seed: int) -> None:
    every, few = told_of(changes(seed), quietly=False), told_of(changes(seed), quietly=True)
    assert len(few) < 0.6 * len(every)
    known, looks = {sample.at: sample for sample in every}, 0
    for sample in few:
        looks += sample.looks
        assert replace(sample, looks=1) == known[sample.at]
        assert looks == round((sample.at - every[0].at) / EVERY_S) + 1
    # Between what is told everything lay on a line, but for what is no news to the daemon either.
    for before, after in pairwise(few):
        assert before.progress is not None and after.progress is not None
        rate = (after.progress - before.progress) / (after.at - before.at)
        for at in (at for at in known if before.at < at < after.at):
            expected = before.progress + rate * (at - before.at)
            assert known[at].progress == pytest.approx(expected, abs=DEPARTURE * rate * 120.0)


def check_all() -> None:
    for seed in range(6):
        check_told(seed)


@pytest.mark.parametrize("seed", range(6))
def test_few_samples_tell_what_all_do(seed: int) -> None:
    check_told(seed)


def test_it_is_noticed_where_looks_around_a_change_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeSamplePolicy, "_go_on", lambda _, known, life, *__: setattr(known, "life", life))
    with pytest.raises(AssertionError):
        check_all()


def test_the_daemon_counts_all_looks_of_a_worker_that_tells_few() -> None:
    chosen, samples = Sampling(), told_of({}, quietly=True)
    recorded = [each for sample in samples for each in chosen.select(UNIT, sample, POLICY)] + [
        *chosen.finish(UNIT, None)
    ]
    assert sum(looks for _, looks in recorded) == round((samples[-1].at - samples[0].at) / EVERY_S) + 1
    assert len(recorded) == len(samples)


@pytest.mark.parametrize("stopped", [False, True])
def test_of_what_was_stopped_the_last_look_is_told_with_its_end(stopped: bool) -> None:
    tellings = FakeSamplePolicy(EVERY_S, partial(gap_s, policy=POLICY))
    life = SimulatedUnit(
        unit=replace(life_at(1.0, 0.0, None).unit, stop_at=155.0 if stopped else math.inf), work=LASTING
    )
    told = [tellings.report(life, "inst-0", now)[0].sample for now in range(2, 154, 2)]
    report = tellings.end(life, "inst-0", 200.0)
    before, last = told[-1], report.sample
    assert report.exit is not None and before is not None
    assert last == (life.sample(before.at + 2 * EVERY_S, looks=2) if stopped else None)
