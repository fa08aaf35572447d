"""What neighbours cost is learnt from the store's records, kept over defects, and found again after a restart."""

import math
from collections.abc import Collection, Mapping

import pytest

from hcloud import slowdowns
from hcloud.core.clock import ManualClock
from hcloud.core.co_runs import CoRun
from hcloud.core.estimates import Classification
from hcloud.quarantine import QUARANTINE_S, Quarantine
from hcloud.slowdowns import READ_EVERY_S, SLOWDOWNS, LearntSlowdowns
from hcloud.store import MemoryStore, Store
from tests.store.samples import NOW

TYPE = "mock/small"


def nothing_known(_: Collection[str]) -> Mapping[str, Classification]:
    return {}


def record(store: Store, application: str, *neighbours: str, speed: float = 0.5, at: float = NOW) -> None:
    observed = CoRun(
        application=application,
        neighbours=neighbours,
        type_column=TYPE,
        log_speed=math.log(speed),
        doubt=0.02,
        seconds=600.0,
        observed_at=at,
    )
    with store.transaction(at) as txn:
        txn.add_co_run(observed)


@pytest.fixture
def learning() -> LearntSlowdowns:
    store, clock = MemoryStore(), ManualClock(NOW)
    return LearntSlowdowns(store, clock, Quarantine(store, clock))


def cycles(learning: LearntSlowdowns, count: int = 60, apart_s: float = 1.0) -> list[bool]:
    """Go on learning; return in which cycles `a` was known to have met `b`."""
    found = list[bool]()
    for _ in range(count):
        found.append(learning.update(nothing_known, None).has_met("a", ["b"]))
        learning.clock.advance(apart_s)  # type: ignore[attr-defined]
    return found


def test_records_are_learnt_over_several_cycles_and_new_ones_are_read_now_and_then(learning: LearntSlowdowns) -> None:
    record(learning.store, "c", "d")
    assert not any(cycles(learning, 10))
    assert learning.update(nothing_known, None).has_met("c", ["d"])
    record(learning.store, "a", "b")
    known = cycles(learning, round(READ_EVERY_S) + 10)
    assert not known[0] and known[-1]
    assert known.index(True) <= READ_EVERY_S + 3
    said = learning.update(nothing_known, None).slowdown("a", ["b"], TYPE, 0.0)
    assert 0.3 < math.exp(-said.mean) < 0.8


def test_a_daemon_that_starts_again_knows_as_much(learning: LearntSlowdowns) -> None:
    for name in "abcd":
        record(learning.store, name, *(each for each in "ab" if each != name))
    cycles(learning)
    again = LearntSlowdowns(learning.store, learning.clock, learning.quarantine)
    cycles(again)
    asked = ("a", ["b"], TYPE, 0.1)
    assert again.update(nothing_known, None).slowdown(*asked) == learning.update(nothing_known, None).slowdown(*asked)


def test_models_are_not_fitted_again_for_few_changes(learning: LearntSlowdowns) -> None:
    for number in range(10):
        record(learning.store, "a", "b", f"n{number}")
    cycles(learning)
    before = learning.update(nothing_known, None)
    record(learning.store, "a", "b", "other")
    cycles(learning, 200)
    assert learning.update(nothing_known, None) is before
    for number in range(10):
        record(learning.store, "a", "c", f"n{number}")
    cycles(learning, 200)
    assert learning.update(nothing_known, None) is not before


def test_no_more_is_remembered_than_the_store_keeps(learning: LearntSlowdowns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowdowns, "MOST_CO_RUNS", 3)
    for number in range(6):
        record(learning.store, "a", f"n{number}", at=NOW + number)
    cycles(learning)
    met = learning.update(nothing_known, None).companions["a"]
    assert met == {"n3", "n4", "n5"}


def test_a_defect_keeps_what_was_known_and_is_tried_again_later(learning: LearntSlowdowns) -> None:
    record(learning.store, "a", "b")
    assert cycles(learning)[-1]
    before = learning.update(nothing_known, None)

    def broken(_: Collection[str]) -> Mapping[str, Classification]:
        raise ZeroDivisionError("a defect")

    for number in range(5):
        record(learning.store, "a", f"n{number}")
    learning.clock.advance(READ_EVERY_S)  # type: ignore[attr-defined]
    assert learning.update(broken, None) is before
    assert "a defect" in learning.quarantine.left_out(learning.clock.now()).stages[SLOWDOWNS]
    assert learning.update(broken, None) is before
    cycles(learning, 100, apart_s=QUARANTINE_S / 50)
    assert learning.update(nothing_known, None).has_met("a", ["n4"])
