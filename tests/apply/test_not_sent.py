"""A start that was never sent to its instance is placed elsewhere; one that may have arrived stays where it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hcloud.core.model import EventKind, FailureCause, JobState, Nodes
from hcloud.fake_runner.runner import StartFault
from tests.apply.conftest import MakeDeployment
from tests.apply.deployment import Deployment


def states(site: Deployment) -> list[tuple[str, str]]:
    """The jobs' changes of state that were recorded, as pairs of the new state and its code."""
    return [(str(each.fields["to"]), str(each.fields["code"])) for each in site.events(EventKind.JOB_STATE)]


def test_a_job_that_was_not_sent_is_placed_again_at_once_and_loses_no_retry(site: Deployment) -> None:
    site.scene.engine.inject(StartFault.NOT_SENT)
    site.submit("sleep", "3")
    site.until(lambda: ("queued", "not_sent") in states(site))
    queued_at = site.now
    site.until_state(JobState.RUNNING)
    assert site.now - queued_at <= 2.0
    site.until_state(JobState.SUCCEEDED)
    assert site.job().failures == ()
    assert site.starts("job-1") == ["job-1.2.0"]
    [why] = [each.fields["text"] for each in site.events(EventKind.JOB_STATE) if each.fields["code"] == "not_sent"]
    assert why == "inst-1 does not respond; nothing was sent there, so the job is placed again"


def test_nothing_is_placed_on_a_silent_instance_until_it_speaks_again(site: Deployment) -> None:
    site.submit("true")
    site.until_state(JobState.SUCCEEDED)
    [machine] = [each.id for each in site.scene.store.live().instances]
    site.scene.engine.silence(machine)
    site.cycle()
    site.submit("sleep", "3")
    site.until_state(JobState.RUNNING, number=2)
    assert [each.instance_id for each in site.job(2).attempt.allocations] != [machine]  # type: ignore[union-attr]


def _sent_before(site: Deployment, machine: str) -> None:
    """The first start arrived, and its answer was lost."""
    site.scene.engine.inject(StartFault.LOSE_REPLY)
    site.submit("sleep", "30")
    site.until(lambda: site.starts("job-2"))


def _sent_by_an_earlier_process(site: Deployment, machine: str) -> None:
    """The process that placed it ended before it knew the outcome."""
    _sent_before(site, machine)
    site.restart()


def _sent_by_another_leader(site: Deployment, machine: str) -> None:
    """Another daemon led in between, and took the answer that this one waited for."""
    site.scene.engine.hold_answers(machine)
    site.submit("sleep", "30")
    site.until_state(JobState.PLACED, number=2)
    site.scene.controller.release()
    other = site.scene.store.acquire_lease("another", site.now, 1.0)
    assert other is not None
    site.scene.engine.release_answers(machine)
    assert [each.outcome for each in site.scene.engine._late.values()] == ["started"]
    site.scene.engine._late.clear()
    site.scene.store.release_lease(other)


@pytest.mark.parametrize("begin", [_sent_before, _sent_by_an_earlier_process, _sent_by_another_leader])
@pytest.mark.parametrize("takes_back_blindly", [False, True], ids=["as it is", "seeded fault"])
def test_a_unit_that_may_have_arrived_never_runs_twice(
    make: MakeDeployment, begin: Callable[[Deployment, str], None], takes_back_blindly: bool
) -> None:
    site = make(cloud={"persist": True})
    site.submit("true")
    site.until_state(JobState.SUCCEEDED)
    [machine] = [each.id for each in site.scene.store.live().instances]
    begin(site, machine)
    if takes_back_blindly:
        site.scene.controller.applier.units._unsent = _Everything(site)
    site.scene.engine.silence(machine)
    site.cycle(10)
    site.scene.engine.unsilence(machine)
    site.until_state(JobState.SUCCEEDED, number=2)
    assert (site.starts("job-2") == ["job-2.1.0"]) is not takes_back_blindly


class _Everything(dict[str, int]):
    """Takes every unit for one that nobody can have sent."""

    def __init__(self, site: Deployment) -> None:
        super().__init__()
        self._site = site

    def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
        lease = self._site.scene.controller.lease
        return lease.epoch if lease is not None else default


def test_a_gang_of_which_one_rank_was_not_sent_is_stopped_and_retried_whole(site: Deployment) -> None:
    site.scene.engine.inject(StartFault.NOT_SENT)
    site.submit("sleep", "40", nodes=Nodes(count=3, minimum=3))
    site.until_state(JobState.SUCCEEDED)
    assert site.job().failures == (FailureCause.EVICTED,)
    assert len(site.starts("job-1.2")) == 3


def test_the_end_of_a_pending_start_is_recorded_when_its_answer_comes(site: Deployment) -> None:
    site.submit("true")
    site.until_state(JobState.SUCCEEDED)
    [machine] = [each.id for each in site.scene.store.live().instances]
    site.scene.engine.hold_answers(machine)
    site.submit("sleep", "9")
    site.until_state(JobState.PLACED, number=2)
    site.cycle(5)
    assert (site.state(2), site.starts("job-2")) == (JobState.PLACED, [])
    site.cycle(step_s=0.0)  # it has just been tried: the intent itself is due later
    site.scene.engine.inject(StartFault.REFUSE)
    site.scene.engine.release_answers(machine)
    site.cycle(step_s=0.0)
    [end] = [each for each in site.events(EventKind.UNIT_ENDED) if each.job_id == "job-2"]
    assert (end.fields["cause"], end.fields["detail"]) == ("start_refused", "refused")
