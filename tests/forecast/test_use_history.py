"""How busy machines were, from the events of their units."""

import random
from collections.abc import Callable

import pytest

from hcloud.core.model import Event, EventKind
from hcloud.forecast import use_history
from hcloud.forecast.use_history import SILENT_S, SLOT_S, SLOTS, USE_KINDS, UseHistory

MACHINE = "inst-1"
BEGIN = 1_000_000 * SLOT_S


def event(kind: EventKind, at: float, cpu_s: float | None = None, *, rank: int = 0, machine: str = MACHINE) -> Event:
    fields: dict[str, object] = {"attempt": "job-1.1", "rank": rank}
    return Event(at=at, kind=kind, instance_id=machine, fields=fields if cpu_s is None else {**fields, "cpu_s": cpu_s})


REQUESTED = event(EventKind.INSTANCE_REQUESTED, BEGIN)


def units(rng: random.Random) -> tuple[list[Event], float]:
    """Return the events of a few units, some of which end, and all their CPU time."""
    found, total = list[Event](), 0.0
    for rank in range(4):
        at, cpu_s = BEGIN + rng.uniform(0, 3 * SLOT_S), 0.0
        found.append(event(EventKind.UNIT_STARTED, at, rank=rank))
        for _ in range(rng.randint(1, 30)):
            at, cpu_s = at + rng.uniform(1.0, 900.0), cpu_s + rng.uniform(0.0, 500.0)
            found.append(event(EventKind.SAMPLE, at, cpu_s, rank=rank))
        if rank:
            found.append(event(EventKind.UNIT_ENDED, at + 1.0, cpu_s, rank=rank))
        total += cpu_s
    found.sort(key=lambda each: each.at)
    return found, total


def followed(events: list[Event], split: int) -> UseHistory:
    """What is known by a history that follows from ``split`` on, and has read back what was before."""
    history = UseHistory()
    history.begin((), (), 0)
    history.follow([REQUESTED, *events[split:]])
    history.read_back([each for each in events[:split] if each.kind in USE_KINDS], 0)
    history.join(BEGIN, 0)
    return history


def same_however_it_is_read(seed: int) -> None:
    rng = random.Random(seed)
    events, total = units(rng)
    last = events[-1].at
    live = next(each for each in reversed(events) if each.fields["rank"] == 0)
    whole = followed(events, 0).cpu_s(MACHINE, last)
    goes_on = sum(whole) - total
    assert -0.1 <= goes_on <= SILENT_S * 500.0
    assert live.at == last or goes_on >= 0.0
    for split in range(1, len(events) + 1):
        assert followed(events, split).cpu_s(MACHINE, last) == pytest.approx(whole, abs=0.1), split


@pytest.mark.parametrize("seed", range(5))
def test_use_is_the_same_whether_it_was_followed_or_read_back(seed: int) -> None:
    same_however_it_is_read(seed)


def test_the_check_notices_units_that_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: Callable[..., None] = use_history._MachineSlots.take

    def forgetful(self: use_history._MachineSlots, *arguments: object) -> None:
        plain(self, *arguments)
        self.joined.clear()

    monkeypatch.setattr(use_history._MachineSlots, "take", forgetful)
    with pytest.raises(AssertionError):
        same_however_it_is_read(0)


def test_cpu_time_is_spread_over_the_slots_between_two_readings() -> None:
    history = UseHistory()
    history.begin((), (), 0)
    readings = [event(EventKind.UNIT_STARTED, BEGIN), event(EventKind.SAMPLE, BEGIN + 1.5 * SLOT_S, 1.5 * SLOT_S)]
    history.follow([REQUESTED, *readings])
    assert history.known_since == BEGIN
    assert history.cpu_s(MACHINE, BEGIN + 1.5 * SLOT_S)[-2:] == [600.0, 300.0]
    # It goes on as it did, for a while.
    assert history.cpu_s(MACHINE, BEGIN + 4 * SLOT_S)[-5:] == [600.0, 600.0, 300.0, 0.0, 0.0]
    history.follow([event(EventKind.UNIT_ENDED, BEGIN + 1.5 * SLOT_S, 1.5 * SLOT_S)])
    assert history.cpu_s(MACHINE, BEGIN + 4 * SLOT_S)[-5:] == [600.0, 300.0, 0.0, 0.0, 0.0]


def test_a_day_is_kept_and_ended_machines_are_forgotten() -> None:
    history = UseHistory()
    history.begin((), (), 0)
    history.follow([REQUESTED, event(EventKind.UNIT_STARTED, BEGIN), event(EventKind.SAMPLE, BEGIN + 60.0, 30.0)])
    history.follow([event(EventKind.UNIT_ENDED, BEGIN + 60.0, 30.0)])
    end = BEGIN + (SLOTS - 1) * SLOT_S
    assert history.cpu_s(MACHINE, end)[0] == 30.0
    assert sum(history.cpu_s(MACHINE, end + SLOT_S)) == 0.0
    history.follow([event(EventKind.INSTANCE_TERMINATED, end)])
    history.follow([event(EventKind.SAMPLE, end, 60.0), event(EventKind.UNIT_ENDED, end, 90.0)])
    assert history.cpu_s(MACHINE, end) == [0.0] * SLOTS


def test_readings_that_cannot_be_are_left_out() -> None:
    history = UseHistory()
    history.begin((), (), 0)
    history.follow([REQUESTED, event(EventKind.UNIT_STARTED, BEGIN)])
    for at, cpu_s in ((float("inf"), 1.0), (float("nan"), 1.0), (BEGIN + 1, float("nan")), (BEGIN + 1, -1.0)):
        history.follow([event(EventKind.SAMPLE, at, cpu_s)])
    history.follow([event(EventKind.SAMPLE, BEGIN + 10.0, 5.0), event(EventKind.SAMPLE, BEGIN + 20.0, 1.0)])
    assert history.cpu_s(MACHINE, BEGIN + 10.0)[-1] == 5.0


def test_a_history_that_begins_anew_takes_nothing_of_an_older_reader() -> None:
    history = UseHistory()
    history.begin((), (), 0)
    history.begin((), (), 7)
    history.follow([REQUESTED])
    history.read_back([event(EventKind.UNIT_STARTED, BEGIN), event(EventKind.SAMPLE, BEGIN + 60.0, 30.0)], 0)
    history.join(0.0, 0)
    assert (sum(history.cpu_s(MACHINE, BEGIN + 60.0)), history.known_since) == (0.0, BEGIN)
