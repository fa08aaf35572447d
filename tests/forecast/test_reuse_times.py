"""How long idle machines are kept follows from how soon others of their type were needed again."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core.model import Event, EventKind
from hcloud.forecast.fleet_tracker import FleetTracker
from hcloud.forecast.reuse_times import OF_OTHERS, PASSED_S, PRIOR, ReuseTimes, best_keep_s

BOOT_S = 40.0
KIND = ("mock", "m.small")
times_s = st.lists(st.one_of(st.floats(0.0, 500.0), st.just(inf)), max_size=30)


# --------------------------------------------------------------------------------------------------------- what is best
def test_while_nothing_was_seen_a_machine_is_kept_for_what_its_boot_is_worth() -> None:
    assert best_keep_s([], BOOT_S) == BOOT_S
    assert best_keep_s([], 0.0) == 0.0


def test_machines_that_are_never_needed_again_are_let_go_at_once() -> None:
    assert best_keep_s([inf] * 20, BOOT_S) == 0.0


def test_machines_are_kept_for_jobs_that_follow_soon_but_not_for_later_ones() -> None:
    assert best_keep_s([2.0] * 20 + [300.0] * 20, BOOT_S) == 2.0
    assert best_keep_s([70.0] * 40, 2 * BOOT_S) == 80.0  # what is assumed reaches so far, and nothing speaks against it


def _mean_cost_s(keep_s: float, needed_s: Sequence[float], boot_worth_s: float) -> float:
    return sum(each if each <= keep_s else keep_s + boot_worth_s for each in needed_s)


def _is_best(keep_s: float, seen_s: Sequence[float]) -> bool:
    assumed_s = [BOOT_S * (step + 1) / PRIOR for step in range(PRIOR)]
    needed_s = [*seen_s, *assumed_s]
    least_s = min(_mean_cost_s(each, needed_s, BOOT_S) for each in [0.0, *needed_s] if each < inf)
    return _mean_cost_s(keep_s, needed_s, BOOT_S) <= least_s * (1 + 1e-9)


@given(times_s)
def test_no_other_time_costs_less_on_average(seen_s: list[float]) -> None:
    assert _is_best(best_keep_s(seen_s, BOOT_S), seen_s)


def test_always_one_boot_is_not_the_best() -> None:
    """Seeded fault: what was seen is ignored."""
    assert not _is_best(BOOT_S, [inf] * 20)


# --------------------------------------------------------------------------------------------------------- what is seen
def _event(at: float, kind: EventKind, machine: int = 1, **fields: object) -> Event:
    usual = {"provider": "mock", "region": "r", "type": "m.small", "market": "on_demand"}
    unit = {"attempt": "job-1.1", "rank": 0}
    return Event(at=at, kind=kind, job_id="job-1", instance_id=f"inst-{machine}", fields={**usual, **unit, **fields})


def _seen(*events: Event, now: float) -> ReuseTimes:
    tracker = FleetTracker()
    tracker.follow(events)
    return tracker.recent(now).reuse


def _used(machine: int = 1, **fields: object) -> list[Event]:
    """A machine that is requested at 0 and runs a unit from 10 to 100."""
    return [
        _event(0, EventKind.INSTANCE_REQUESTED, machine, **fields),
        _event(10, EventKind.UNIT_STARTED, machine),
        _event(100, EventKind.UNIT_ENDED, machine),
    ]


def _let_go(at: float, code: str = "idle", machine: int = 1) -> Event:
    return _event(at, EventKind.INSTANCE_STATE, machine, to="terminating", code=code)


def test_a_unit_that_starts_on_an_idle_machine_shows_how_soon_it_was_needed() -> None:
    assert _seen(*_used(), _event(107, EventKind.UNIT_STARTED), now=110).of(KIND) == [7.0]


def test_a_machine_with_another_unit_was_not_idle() -> None:
    beside = _event(50, EventKind.UNIT_STARTED, attempt="job-2.1")
    assert not _seen(*_used()[:2], beside, *_used()[2:], _event(107, EventKind.UNIT_STARTED), now=110).of(KIND)


def test_a_launch_shows_how_soon_a_terminated_machine_of_the_type_was_needed() -> None:
    again = _event(130, EventKind.INSTANCE_REQUESTED, 2)
    assert _seen(*_used(), _let_go(105), again, now=140).of(KIND) == [30.0]
    other = _event(130, EventKind.INSTANCE_REQUESTED, 2, type="m.large")
    assert not _seen(*_used(), _let_go(105), other, now=140).of(KIND)


def test_each_terminated_machine_is_needed_once() -> None:
    events = sorted([*_used(1), *_used(2)], key=lambda event: event.at)
    again = [_event(at, EventKind.INSTANCE_REQUESTED, machine) for at, machine in ((130, 3), (150, 4), (170, 5))]
    assert _seen(*events, _let_go(105, machine=1), _let_go(106, machine=2), *again, now=180).of(KIND) == [30.0, 50.0]


def test_a_terminated_machine_that_nothing_was_launched_for_was_not_needed() -> None:
    tracker = FleetTracker()
    tracker.follow([*_used(), _let_go(105)])
    assert not tracker.recent(100 + PASSED_S - 1).reuse.of(KIND)
    assert tracker.recent(100 + PASSED_S + 1).reuse.of(KIND) == [inf]


@pytest.mark.parametrize("code", ["preempt_notice", "drained", "unreachable"])
def test_a_machine_that_went_for_another_reason_says_nothing(code: str) -> None:
    assert not _seen(*_used(), _let_go(105, code), now=1000).of(KIND)


def test_reserved_machines_say_nothing_as_they_stay() -> None:
    events = [*_used(market="reserved"), _event(107, EventKind.UNIT_STARTED)]
    assert not _seen(*events, now=110).of(KIND)


def test_other_types_of_the_provider_fill_up_the_number_while_few_were_seen() -> None:
    many = ReuseTimes(
        by_kind={KIND: (1.0, 2.0)},
        by_provider={"mock": (*((("m.large", float(at))) for at in range(40)), ("m.small", 1.0), ("m.small", 2.0))},
    )
    assert list(many.of(KIND))[:4] == [1.0, 2.0, 39.0, 38.0] and len(many.of(KIND)) == OF_OTHERS
    assert not many.of(("gce", "m.small"))


def test_an_unchanged_history_gives_the_same_object() -> None:
    tracker = FleetTracker()
    tracker.follow([*_used(), _event(107, EventKind.UNIT_STARTED)])
    assert tracker.recent(110).reuse is tracker.recent(111).reuse


def test_machines_that_are_gone_are_forgotten() -> None:
    tracker = FleetTracker()
    tracker.follow([*_used(), _event(120, EventKind.INSTANCE_TERMINATED, code="preempted")])
    tracker.follow([_event(130, EventKind.UNIT_STARTED), _event(140, EventKind.INSTANCE_REQUESTED, 2)])
    assert not tracker.recent(1000).reuse.of(KIND) and not tracker._reuse._units and not tracker._reuse._idle_since
