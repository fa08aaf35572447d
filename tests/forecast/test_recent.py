"""What recent events tell of machines: judged type by type as events come, as if all were judged at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.forecast.recent import RecentBook, _Machine
from hcloud.model import Event, EventKind

Told = tuple[int, int, float]
"""What happened, on which machine, and how well that did."""
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


def _differs(book: RecentBook, deeds: list[Told]) -> bool:
    """Whether a book asked after each event ever says something else than one that is asked only then."""
    log = [_event(at, 0, at, 0.0) for at in range(6)]
    book.follow(log)
    for at, (kind, one, value) in enumerate(deeds, 10):
        log.append(_event(at, kind, one, value))
        book.follow(log[-1:])
        anew = RecentBook()
        anew.follow(log)
        now, then = book.recent(at), anew.recent(at)
        if now.delivered != pytest.approx(then.delivered) or now.quality.by_key != then.quality.by_key:
            return True
    return False


@settings(max_examples=40)
@given(told)
def test_machines_are_judged_as_events_come_as_if_all_were_judged_at_once(deeds: list[Told]) -> None:
    assert not _differs(RecentBook(), deeds)


class OnlyTheFirst(RecentBook):
    """A seeded fault: what was judged once is not judged again."""

    def _forget(self, name: str) -> _Machine | None:
        judged = set(self._unjudged)
        machine = super()._forget(name)
        self._unjudged = judged
        return machine


def test_the_comparison_sees_a_machine_that_is_gone_and_still_judged_by() -> None:
    reads = [(4, one, 1.0 - one / 10) for one in (0, 2, 4) for _ in range(3)]
    assert _differs(OnlyTheFirst(), [*reads, (1, 0, 0.0)]) or _differs(OnlyTheFirst(), [*reads, (0, 0, 0.0)])
