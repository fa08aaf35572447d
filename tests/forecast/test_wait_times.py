"""Time until free: a probability, growing with time and with the number of servers, learned from busy times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core.errors import BadInput
from hcloud.core.model import Event, EventKind
from hcloud.forecast.fleet_tracker import FleetTracker
from hcloud.forecast.wait_times import BusyTimes

durations = st.lists(st.floats(0, 1e5), max_size=30)
ages = st.lists(st.floats(0, 1e5), min_size=1, max_size=6)
TIMES = np.linspace(0.0, 1000.0, 20)


def test_server_is_freed_as_those_that_lived_as_long_were() -> None:
    times = BusyTimes.of([10.0] * 500 + [1000.0] * 500)
    young, old = times.freed_within([1.0, 20.0], [15.0])[:, 0]
    assert young == pytest.approx(0.5, abs=0.05)
    assert old < 0.05


def test_beyond_all_experience_what_lasted_long_lasts_long() -> None:
    """Without usable observations, half are free within another period as long as their age."""
    for times in (BusyTimes.of([]), BusyTimes.of([5.0, 6.0])):
        assert times.freed_within([100.0], [100.0])[0, 0] == pytest.approx(0.5)


def test_few_observations_are_believed_more_than_nothing() -> None:
    """Of ten servers none was free before 300 s, so a new one is hardly free after 150."""
    assert BusyTimes.of([300.0] * 10).freed_within([1.0], [150.0])[0, 0] < 0.4
    assert BusyTimes.of([300.0] * 10).freed_within([1.0], [300.0])[0, 0] > 0.9


@given(durations, ages)
def test_chance_is_a_growing_probability_from_zero(observed: list[float], busy: list[float]) -> None:
    chance = BusyTimes.of(observed).freed_within(busy, TIMES)
    assert chance[:, 0].tolist() == [0.0] * len(busy)
    assert (np.diff(chance, axis=1) >= -1e-12).all()
    assert (chance <= 1.0).all()


@given(durations, ages, st.floats(0, 1e5))
def test_more_servers_are_free_sooner(observed: list[float], busy: list[float], another: float) -> None:
    times = BusyTimes.of(observed)
    assert (times.some_free([*busy, another], TIMES) >= times.some_free(busy, TIMES) - 1e-9).all()


def test_no_server_is_never_free_and_the_wait_is_the_limit() -> None:
    assert BusyTimes.of([1.0]).some_free([], [10.0]).tolist() == [0.0]
    assert BusyTimes.of([1.0]).wait_s([], 0.5, limit_s=30.0) == 30.0
    assert BusyTimes.of([10.0] * 900).wait_s([9.0] * 9, 0.9, limit_s=256.0) == pytest.approx(1.0, abs=1.0)


def test_nonsense_is_refused() -> None:
    with pytest.raises(BadInput, match="negative or not finite"):
        BusyTimes.of([-1.0])


def test_busy_times_are_followed_from_the_ends_of_units() -> None:
    book = FleetTracker()
    ends = [
        Event(seq=n, at=100.0 * n, kind=EventKind.UNIT_ENDED, instance_id="inst-1", fields={"started_at": started})
        for n, started in ((1, 90.0), (2, None), (3, 250.0))
    ]
    book.follow(ends)
    stats = book.recent(300.0)
    assert (stats.busy_s, stats.busy_ended_at, stats.busy_since) == ((10.0, 50.0), (100.0, 300.0), 100.0)


def test_from_when_on_all_ends_are_known_follows_what_is_forgotten() -> None:
    book = FleetTracker()
    book.follow(
        Event(seq=n, at=float(n), kind=EventKind.UNIT_ENDED, instance_id="i", fields={"started_at": n - 0.5})
        for n in range(1, 2001)
    )
    stats = book.recent(2000.0)
    assert stats.busy_since == min(stats.busy_ended_at) - 1.0 > 1.0


@given(durations, durations, ages)
def test_what_is_busy_makes_servers_free_later(observed: list[float], running: list[float], busy: list[float]) -> None:
    ended, both = BusyTimes.of(observed), BusyTimes.of(observed, running)
    assert (both.freed_within(busy, TIMES) <= ended.freed_within(busy, TIMES) + 1e-9).all()


def _runs(until: float, since: float, count: int = 4000) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return durations of runs that ended between two times, ages of those that run then, and from which age on each
    was seen. Runs last 100 s or 1000 s with the same probability, and start evenly from time 0 on."""
    rng = np.random.default_rng(0)
    began, runs = rng.uniform(0.0, until, count), rng.choice([100.0, 1000.0], count)
    ended, running = (began + runs > since) & (began + runs <= until), began + runs > until
    first = np.maximum(0.0, since - began)
    return runs[ended].tolist(), (until - began)[running].tolist(), first[ended].tolist(), first[running].tolist()


@pytest.mark.parametrize(
    ("until", "since"), [pytest.param(1100.0, 0.0, id="young"), pytest.param(5000.0, 4800.0, id="short memory")]
)
def test_busy_times_are_right_although_long_ones_end_late(until: float, since: float) -> None:
    """Half of the servers are free after 100 s, also if hardly a long one ended yet, or only the last ends are known.

    Fails if only what ended counts (young), or if running ones count from their start (short memory).
    """
    ended, running, ended_from, running_from = _runs(until, since)
    times = BusyTimes.of(ended, running, ended_from_s=ended_from, running_from_s=running_from)
    assert times.freed_within([1.0], [150.0])[0, 0] == pytest.approx(0.5, abs=0.04)
    assert times.freed_within([200.0], [700.0])[0, 0] < 0.1
