"""Units that share a machine: at any observation, progress equals the sum over all speeds so far."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.clock import ManualClock
from hcloud.fake_runner.runner import FakeRunner, Work
from tests.simulator.test_world import Cloud, Halves, job, unit

Stay = tuple[int, int]
"""When a unit starts, and how much work it has; whole numbers of seconds."""
stays = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), min_size=1, max_size=6)
looks = st.lists(st.integers(0, 400), max_size=8)


def shared_evenly(given_stays: list[Stay]) -> list[float]:
    """Return when each unit ends, computed independently: each gets an equal share between any two starts or ends."""
    left = {number: float(work_s) for number, (_, work_s) in enumerate(given_stays)}
    ends, now = [0.0] * len(given_stays), 0.0
    while left:
        here = [number for number in left if given_stays[number][0] <= now + 1e-9]
        coming = [given_stays[number][0] for number in left if given_stays[number][0] > now + 1e-9]
        done_at = min((now + left[number] * len(here) for number in here), default=float("inf"))
        until = min([done_at, *coming])
        for number in here:
            left[number] -= (until - now) / len(here)
            if left[number] <= 1e-9:
                ends[number] = until
                del left[number]
        now = until
    return ends


def ends_on(kind: type[FakeRunner], given_stays: list[Stay], looked_at: list[int]) -> list[float]:
    """Return when each unit ended on the fake engine, observed at some times."""
    works = {f"job-{number}": float(work_s) for number, (_, work_s) in enumerate(given_stays)}
    clock = ManualClock(0.0)
    runner = kind(
        [Cloud()],
        clock,
        work=lambda spec: Work(duration_s=works[spec.id.partition(".")[0]]),
        surroundings=Halves(),
    )
    moments = sorted({at for at, _ in given_stays} | set(looked_at))
    for at in moments:
        clock.advance(at - clock.now())
        runner.observe()
        runner.start([unit(f"job-{n}", job(f"p{n}")) for n, (start, _) in enumerate(given_stays) if start == at])
    clock.advance(10_000.0)
    reports = {report.id: report for report in runner.observe().workers[0].units}
    exits = [reports[f"job-{number}.1.0"].exit for number in range(len(given_stays))]
    return [each.ended_at if each is not None else float("nan") for each in exits]


@given(stays, looks)
@settings(max_examples=60)
def test_end_times_do_not_depend_on_observations(given_stays: list[Stay], looked_at: list[int]) -> None:
    assert ends_on(FakeRunner, given_stays, looked_at) == pytest.approx(shared_evenly(given_stays))


class Forgetful(FakeRunner):
    """A faulty engine that updates the others when a unit starts, but not when one leaves."""

    def _pace(self, instance_id: str, at: float) -> None:
        if any(each.started_at == at for each in self._units.values()):
            super()._pace(instance_id, at)


def test_engine_that_forgets_departures_is_detected() -> None:
    given_stays = [(0, 10), (0, 50)]
    assert ends_on(Forgetful, given_stays, []) != pytest.approx(shared_evenly(given_stays))
    assert ends_on(FakeRunner, given_stays, []) == pytest.approx([20.0, 60.0])
