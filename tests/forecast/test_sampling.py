"""Recording fewer samples does not noticeably delay detection or change counts and precision."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from hcloud.core.model import BatchTarget, Event, EventKind, ServiceTarget, Target
from hcloud.forecast.job_monitor import WATCHED_S, JobMonitor, Timed, pace_of_rate
from hcloud.observe import sampling
from hcloud.observe.sampling import DEPARTURE, Recorded, Sampling, gap_s, served_as_promised
from hcloud.provider import UnitSample
from hcloud.spec.policy import Policy, TimingPolicy
from tests.policies import simple

EVERY_S, READINGS, SURE, WANTED = 10.0, 6, 3.09, 1e-3
UNIT, POLICY = "job-1.1.0", simple(name="default")
MOST_S = POLICY.timing.steady_every_s


def at_paces(paces: Sequence[float], noise: random.Random) -> list[UnitSample]:
    """Samples of a unit with these paces between them, with half a percent of noise."""
    made, progress = [], 0.0
    for number, pace in enumerate(paces, 1):
        progress += EVERY_S * pace * WANTED * noise.uniform(0.995, 1.005)
        made.append(UnitSample(at=EVERY_S * number, cpu_s=9.0 * number, progress=progress))
    return made


def recorded_of(samples: Sequence[UnitSample], policy: Policy = POLICY) -> list[list[Recorded]]:
    """The samples recorded at each poll."""
    chosen = Sampling()
    return [list(chosen.select(UNIT, each, policy)) for each in samples]


def first_missed_at(looks: Sequence[Sequence[Recorded]]) -> float | None:
    """When the monitor first reports that the wanted pace is certainly missed by a tenth."""
    book = JobMonitor()
    for number, recorded in enumerate(looks, 1):
        book.follow(event_of(*each) for each in recorded)
        known = book.watched().get("job-1")
        pace = known.pace(0, "progress", 60.0, READINGS) if known is not None else None
        if pace is not None and pace.at_most(SURE) <= 0.9 * WANTED:
            return EVERY_S * number
    return None


def event_of(sample: UnitSample, looks: int) -> Event:
    fields: dict[str, object] = {"attempt": "job-1.1", "rank": 0, "looks": looks}
    fields |= {name: value for name in ("cpu_s", "progress") if (value := getattr(sample, name)) is not None}
    fields |= {f"latency_ms_p{name}": ms for name, ms in sample.latency_ms.items()}
    return Event(seq=0, at=sample.at, kind=EventKind.SAMPLE, job_id="job-1", fields=fields)


def check_seen_as_soon(seed: int) -> None:
    chances = random.Random(seed)
    falls_at = chances.randrange(8, 200)
    slow = chances.choice([0.0, 0.3, 0.6, 0.8])
    samples = at_paces([1.05] * falls_at + [slow] * 60, chances)
    full, thin = first_missed_at([[(each, 1)] for each in samples]), first_missed_at(recorded_of(samples))
    assert full is not None
    assert thin is not None and thin <= full + 5 * EVERY_S, (falls_at, slow, full, thin)


def check_totals(seed: int) -> None:
    chances = random.Random(seed)
    paces = [pace for _ in range(6) for pace in [chances.uniform(0.2, 2.0)] * chances.randrange(1, 80)]
    samples, chosen = at_paces(paces, chances), Sampling()
    recorded = [each for sample in samples for each in chosen.select(UNIT, sample, POLICY)] + [
        *chosen.finish(UNIT, None)
    ]
    assert sum(looks for _, looks in recorded) == len(samples)
    assert [each.at for each, _ in recorded] == sorted({each.at for each, _ in recorded})
    for (before, _), (after, looks) in pairwise(recorded):
        assert before.progress is not None and after.progress is not None
        assert after.at - before.at == EVERY_S * looks <= MOST_S
        for each in samples[int(before.at / EVERY_S) : int(after.at / EVERY_S)]:
            between = (each.at - before.at) / (after.at - before.at) * (after.progress - before.progress)
            assert each.progress == pytest.approx(before.progress + between, abs=3 * DEPARTURE * 2.0 * WANTED * MOST_S)


def check_promise(seed: int) -> None:
    chances, chosen = random.Random(seed), Sampling()
    slow = [chances.uniform(0.98, 1.02) if chances.random() < 0.3 else 0.99 for _ in range(300)]
    samples = [UnitSample(at=EVERY_S * n, latency_ms={"99": 10.0 * each}) for n, each in enumerate(slow)]
    recorded = [each for sample in samples for each in chosen.select(UNIT, sample, POLICY, promised_ms=10.0)]
    recorded += chosen.finish(UNIT, None)
    assert sum(looks for each, looks in recorded if each.latency_ms["99"] <= 10.0) == sum(each <= 1.0 for each in slow)


def check_all(check: Callable[[int], None]) -> None:
    for seed in range(12):
        check(seed)


@pytest.mark.parametrize("check", [check_seen_as_soon, check_totals, check_promise])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_recorded_tells_what_all_samples_tell(check: Callable[[int], None], seed: int) -> None:
    check(seed)


def test_it_is_noticed_where_news_are_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling._SampleTrend, "continues", lambda *_: True)
    with pytest.raises(AssertionError):
        check_all(check_seen_as_soon)


def test_it_is_noticed_where_a_broken_promise_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_latency_stays", lambda before, now, _: before.keys() == now.keys())
    with pytest.raises(AssertionError):
        check_all(check_promise)


def test_it_is_noticed_where_the_last_look_before_a_change_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling._SampleTrend, "record_held", lambda _: ())
    with pytest.raises(AssertionError):
        check_all(check_totals)


def test_what_goes_on_evenly_is_recorded_ever_more_seldom() -> None:
    samples = at_paces([1.0] * 360, random.Random(0))
    assert sum(map(len, recorded_of(samples))) < 40
    assert sum(map(len, recorded_of(samples, replace(POLICY, timing=TimingPolicy(steady_share=0.0))))) == 360


@pytest.mark.parametrize(
    ("many", "every_s", "wanted_s"),
    [(1, 120.0, 120.0), (2400, 120.0, 120.0), (3600, 120.0, 180.0), (100_000, 120.0, 300.0), (100_000, 600.0, 600.0)],
)
def test_of_a_large_fleet_what_goes_on_is_recorded_more_seldom_but_not_forgotten(
    many: int, every_s: float, wanted_s: float
) -> None:
    timing = TimingPolicy(steady_every_s=every_s)
    gaps = [gap_s(1e6, steady_s, False, many, replace(POLICY, timing=timing)) for steady_s in (1e4, 1e6)]
    assert gaps == [wanted_s, wanted_s]
    assert wanted_s <= WATCHED_S
    assert gap_s(1e6, 0.0, False, many, POLICY) == gap_s(1e6, 0.0, False, 1, POLICY)


def test_how_seldom_depends_on_all_that_run() -> None:
    chosen, crowd = Sampling(), replace(POLICY, timing=TimingPolicy(steady_per_s=1))
    others = [f"job-{number}.1.0" for number in range(2, 402)]
    samples = at_paces([1.0] * 360, random.Random(0))
    for other in others:
        chosen.select(other, samples[0], crowd)
    crowded = [each for sample in samples for each in chosen.select(UNIT, sample, crowd)]
    assert len(crowded) < len(recorded_of(samples, crowd)) / 2


@pytest.mark.parametrize("corrected_at", [0.0, 2000.0])
def test_of_what_began_or_was_corrected_enough_is_recorded_as_soon_as_it_can_be_judged(corrected_at: float) -> None:
    chosen, samples = Sampling(), at_paces([1.0] * 240, random.Random(0))
    looks = [chosen.select(UNIT, each, POLICY, changed_at=corrected_at) for each in samples]
    since = max(corrected_at, EVERY_S) + POLICY.correction.settle_s
    told = [sample.at - since for recorded in looks for sample, _ in recorded if sample.at >= since]
    assert told[:4] == [0.0, 30.0, 60.0, 90.0]
    book = JobMonitor()
    book.follow(event_of(*each) for recorded in looks for each in recorded if each[0].at <= since + 60.0)
    pace = book.watched()["job-1"].pace(0, "progress", since, READINGS)
    assert pace is not None and (pace.counted, pace.mean) == (READINGS, pytest.approx(WANTED, rel=0.01))


def test_a_rate_counts_for_the_looks_it_stands_for_but_for_those_before() -> None:
    told = [Timed(10.0, 1.0), Timed(60.0, 2.0, 5), Timed(90.0, 3.0, 3), Timed(120.0, 4.0, 3)]
    pace = pace_of_rate(told, 50.0, READINGS)
    assert pace is not None and (pace.counted, pace.mean) == (7, pytest.approx((2 + 3 * 3 + 3 * 4) / 7))
    assert pace_of_rate(told, 60.0, READINGS + 1) is None
    assert pace.best == pytest.approx(3.5)


def test_one_sample_does_not_tell_by_how_much_looks_differ() -> None:
    assert pace_of_rate([Timed(120.0, 1.0, 12)], 0.0, READINGS) is None


def test_a_total_that_cannot_be_read_once_is_no_new_beginning() -> None:
    book, samples = JobMonitor(), at_paces([1.0] * 20, random.Random(0))
    samples[12] = replace(samples[12], progress=None)
    book.follow(event_of(each, 1) for each in samples)
    assert len(book.watched()["job-1"].ranks[0]) == 20
    pace = book.watched()["job-1"].pace(0, "progress", 60.0, READINGS)
    assert pace is not None and pace.counted == 12 and pace.mean == pytest.approx(WANTED, rel=0.01)


def test_requests_that_come_too_late_count_for_less() -> None:
    promise = ServiceTarget(requests_per_s=100.0, latency_ms=20.0)

    def served(latency_ms: dict[str, float], target: Target = promise) -> float | None:
        return served_as_promised(UnitSample(at=0.0, requests_per_s=200.0, latency_ms=latency_ms), target)

    assert served({"50": 5.0, "99": 15.0}) == 200.0
    assert served({"50": 5.0, "99": 25.0}) == 160.0
    assert served({"50": 5.0, "99": 80.0}) == 50.0
    assert served({"50": 80.0}) == 200.0  # nothing is known of the percentile that was promised
    assert served({"99.9": 40.0, "99": 10.0}) == 200.0
    assert served({"99": 80.0}, BatchTarget()) == 200.0
