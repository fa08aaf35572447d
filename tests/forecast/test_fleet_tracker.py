"""Machine quality from recent events: incremental evaluation equals evaluating everything at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.model import Event, EventKind
from hcloud.forecast.fleet_tracker import FleetStats, FleetTracker, _MachineRecord

Told = tuple[int, int, float]
"""Event, machine, and performance ratio."""
told = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5), st.floats(0.0, 1.5)), max_size=40)


def _event(at: int, kind: int, one: int, value: float) -> Event:
    kinds = (
        EventKind.INSTANCE_REQUESTED,
        EventKind.INSTANCE_TERMINATED,
        EventKind.UNIT_STARTED,
        EventKind.UNIT_ENDED,
        EventKind.PREDICTION,
        EventKind.PREDICTION,
        EventKind.PREDICTION,
    )
    fields = {"provider": "mock", "region": "r", "type": f"m.{one % 2}", "predicted": 1.0, "measured": value}
    cause = {"cause": "start_refused"} if kind == 3 else {}
    fields |= {"market": "spot" if one % 3 else "on_demand", "attempt": f"job-{at}.1", "rank": 0, **cause}
    return Event(at=float(at), kind=kinds[kind], job_id=f"job-{at}", instance_id=f"inst-{one}", fields=fields)


def _differs(book: FleetTracker, deeds: list[Told]) -> bool:
    """Return whether a tracker queried after each event ever differs from one queried only at that time."""
    log = [_event(at, 0, at, 0.0) for at in range(6)]
    book.follow(log)
    for at, (kind, one, value) in enumerate(deeds, 10):
        log.append(_event(at, kind, one, value))
        book.follow(log[-1:])
        anew = FleetTracker()
        anew.follow(log)
        now, then = book.recent(at), anew.recent(at)
        if now.broken != then.broken or now.quality.by_key != then.quality.by_key:
            return True
    return False


@settings(max_examples=40)
@given(told)
def test_machines_are_judged_as_events_come_as_if_all_were_judged_at_once(deeds: list[Told]) -> None:
    assert not _differs(FleetTracker(), deeds)


class OnlyTheFirst(FleetTracker):
    """Seeded fault: machines are judged only once."""

    def _forget(self, name: str) -> _MachineRecord | None:
        judged = set(self._unjudged)
        machine = super()._forget(name)
        self._unjudged = judged
        return machine


def test_the_comparison_sees_a_machine_that_is_gone_and_still_judged_by() -> None:
    reads = [(4, one, 1.0 - one / 10) for one in (0, 2, 4) for _ in range(3)]
    assert _differs(OnlyTheFirst(), [*reads, (1, 0, 0.0)]) or _differs(OnlyTheFirst(), [*reads, (0, 0, 0.0)])


def _life(number: int, at: float) -> list[Event]:
    """Events of a waiting job and of the reserved machine that boots for it."""
    job, machine, unit = f"job-{number}", f"inst-{number}", {"attempt": f"job-{number}.1", "rank": 0, "vcpus": 2.0}
    about: list[tuple[EventKind, dict[str, object]]] = [
        (EventKind.JOB_STATE, {"to": "queued"}),
        (EventKind.INSTANCE_REQUESTED, {"provider": "mock", "type": "m", "market": "reserved"}),
        (EventKind.INSTANCE_READY, {"boot_s": 3.0 + number}),
        (EventKind.JOB_STATE, {"to": "placed"}),
        (EventKind.UNIT_STARTED, unit),
        (EventKind.UNIT_ENDED, {**unit, "started_at": at + 4.0}),
        (EventKind.JOB_FINISHED, {}),
    ]
    return [
        Event(at=at + step, kind=kind, job_id=job, instance_id=machine, fields=fields)
        for step, (kind, fields) in enumerate(about)
    ]


def _handed_out() -> tuple[list[FleetStats], list[FleetStats]]:
    """Return the summaries after each event of one tracker, and of new trackers fed the same events."""
    book, ours, others = FleetTracker(), list[FleetStats](), list[FleetStats]()
    log = sorted([*_life(1, 10.0), *_life(2, 12.5), *_life(3, 4000.0)], key=lambda event: event.at)
    for count, event in enumerate(log, 1):
        book.follow([event])
        anew = FleetTracker()
        anew.follow(log[:count])
        ours.append(book.recent(event.at))
        others.append(anew.recent(event.at))
    return ours, others


def test_summaries_stay_as_they_were_handed_out_and_miss_nothing() -> None:
    ours, others = _handed_out()
    assert ours == others
    assert ours[-1].busy_s and ours[-1].releases and len(ours[-1].boots_s["mock"]) == 3
    assert len(ours[-1].releases) == 1, "what is older than an hour is forgotten"


def test_the_comparison_sees_a_part_that_is_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FleetTracker, "_invalidate", lambda _, __: None)
    ours, others = _handed_out()
    assert ours != others
