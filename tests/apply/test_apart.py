"""What a daemon does where a defect hits one report, one row or one call: the others are served all the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hcloud.apply.apart import ALONE, TOGETHER, Trouble, asked, by_halves, in_one_go
from hcloud.errors import OutcomeUnknown, ProviderUnavailable, StaleWrite
from hcloud.model import EventKind, IntentKind, JobState
from hcloud.setbacks import TRIED_AGAIN_S
from hcloud.simulator.defects import DEFECT, Planted, with_defects
from hcloud.store import Transaction
from tests.apply.deployment import Deployment


def plant(site: Deployment) -> list[bool]:
    """Let what jobs' tags say fail; return what may be emptied to mend it."""
    broken = [True]
    with_defects(site.scene.controller, "", lambda: bool(broken), lambda _: None)
    return broken


def told(site: Deployment) -> list[tuple[str | None, str]]:
    """Return what HCloud is said to fail on, with the job, in order."""
    return [(each.job_id, str(each.fields["left_out"])) for each in site.events(EventKind.PLANNING_TROUBLE)]


# ------------------------------------------------------------------------------------------------------ whole daemons
def test_a_unit_whose_reports_cannot_be_taken_in_hides_no_other_and_its_end_is_not_lost(site: Deployment) -> None:
    site.submit(count=2, tags={})
    site.submit(tags={DEFECT: "hearing"})
    broken = plant(site)
    site.until(lambda: site.state(1) is site.state(2) is JobState.SUCCEEDED)
    site.cycle(times=10)
    assert site.state(3) is JobState.RUNNING
    assert told(site) == [("job-3", "taking in what job-3.1.0 tells")]
    broken.clear()
    site.until_state(JobState.SUCCEEDED, number=3)
    assert site.job(3).attempts_made == 1


def test_it_is_told_again_while_it_lasts(site: Deployment) -> None:
    site.submit(tags={DEFECT: "hearing"})
    plant(site)
    site.until(lambda: told(site))
    site.scene.clock.advance(TRIED_AGAIN_S)
    site.cycle(times=2)
    assert len(told(site)) == 2


def test_an_end_that_cannot_be_written_down_is_kept_by_the_worker_until_it_can(site: Deployment) -> None:
    site.submit(count=2)
    site.submit(tags={DEFECT: "ending"})
    broken = plant(site)
    site.until(lambda: site.state(1) is site.state(2) is JobState.SUCCEEDED)
    site.cycle(times=10)
    assert site.state(3) is JobState.RUNNING
    ((job_id, what),) = told(site)
    assert (job_id, what.partition(" inst-")[0]) == ("job-3", "writing down what")
    broken.clear()
    site.until_state(JobState.SUCCEEDED, number=3)
    assert site.job(3).attempts_made == 1


def test_an_end_is_worth_more_than_what_it_teaches(site: Deployment) -> None:
    site.submit(tags={DEFECT: "learning"})
    plant(site)
    site.until_state(JobState.SUCCEEDED)
    assert len(told(site)) == 1


def test_a_job_that_cannot_be_started_keeps_no_other_from_it(site: Deployment) -> None:
    site.submit(count=3)
    site.submit(tags={DEFECT: "starting"})
    broken = plant(site)
    site.until(lambda: all(site.state(number) is JobState.SUCCEEDED for number in (1, 2, 3)))
    assert site.state(4) is JobState.PLACED
    assert told(site) == [("job-4", "start of job-4")]
    broken.clear()
    site.until_state(JobState.SUCCEEDED, number=4)
    assert site.job(4).attempts_made == 1


def test_who_cannot_be_stopped_keeps_no_other_from_it(site: Deployment) -> None:
    site.submit("sleep", "500", count=2)
    site.submit("sleep", "500", tags={DEFECT: "stopping"})
    plant(site)
    site.until(lambda: all(site.state(number) is JobState.RUNNING for number in (1, 2, 3)))
    for number in (1, 2, 3):
        site.scene.store.request_cancel(f"job-{number}", "ada", site.now)
    site.until(lambda: all(site.state(number) is JobState.CANCELLED for number in (1, 2, 3)))
    assert told(site) == [("job-3", "stop of job-3")]


class Broken:
    """A port of which one call fails in a way that it never should."""

    def __init__(self, port: object, call: str) -> None:
        self._port, self._call = port, call

    def __getattr__(self, name: str) -> Any:
        if name == self._call:
            return self.fail
        return getattr(self._port, name)

    def fail(self, *_: object, **__: object) -> Any:
        raise KeyError("zone")


@pytest.mark.parametrize("call", ["instances", "offers"])
def test_a_provider_that_answers_with_a_defect_is_one_that_does_not_answer(site: Deployment, call: str) -> None:
    site.submit()
    site.until_state(JobState.RUNNING)
    providers = dict(site.scene.controller.offers.providers)
    broken: Mapping[str, Any] = {name: Broken(provider, call) for name, provider in providers.items()}
    site.scene.controller.offers.providers = broken
    site.scene.controller.observer.providers = broken
    site.until_state(JobState.SUCCEEDED)
    site.scene.clock.advance(40)
    site.cycle()
    trouble = site.events(EventKind.PROVIDER_TROUBLE)[0]
    assert (trouble.fields["call"], trouble.fields["error"]) == (call, "OutcomeUnknown")
    assert "mock." + call + " fails in a way that it never should: KeyError: 'zone'" in str(trouble.fields["text"])


def test_a_launch_that_fails_by_a_defect_may_have_happened_and_is_repeated_with_its_token(site: Deployment) -> None:
    machines = site.scene.controller.applier.machines
    honest = machines.providers
    machines.providers = {name: Broken(provider, "launch") for name, provider in honest.items()}  # type: ignore[misc]
    site.submit()
    site.cycle(times=3)
    (intent,) = site.scene.store.live().intents
    assert (intent.kind, intent.tries > 0) == (IntentKind.LAUNCH, True)
    machines.providers = honest
    site.until_state(JobState.SUCCEEDED)
    assert len(site.events(EventKind.INSTANCE_REQUESTED)) == 1


@pytest.mark.parametrize("call", ["observe", "renew", "forget"])
def test_an_engine_that_fails_is_told_of_and_ends_no_machine(site: Deployment, call: str) -> None:
    site.submit("sleep", "60")
    site.until_state(JobState.RUNNING)
    controller = site.scene.controller
    honest = controller.runner
    broken: Any = Broken(honest, call)
    controller.runner = controller.observer.runner = broken
    site.scene.clock.advance(30)
    site.cycle(times=60)
    assert [what.split()[0] for _, what in told(site)] == [
        {"observe": "asking", "renew": "renewal", "forget": "cleaning"}[call]
    ]
    controller.runner = controller.observer.runner = honest
    site.until_state(JobState.SUCCEEDED)
    assert site.job(1).attempts_made == 1


# -------------------------------------------------------------------------------------------------------------- parts
def test_by_halves_only_those_are_left_that_fail_alone() -> None:
    served: set[int] = set()
    failed: list[int] = []

    def serve(some: Sequence[int]) -> None:
        if {7, 30} & set(some):
            raise Planted("a defect")
        served.update(some)

    def fails(item: int, trouble: Trouble) -> None:
        failed.append(item)
        assert trouble.error.startswith("Planted: a defect in ")

    by_halves(range(40), serve, fails)
    assert (sorted(failed), len(served)) == ([7, 30], 38)


def test_by_halves_does_not_try_everything_where_everything_fails() -> None:
    calls: list[int] = []

    def serve(some: Sequence[int]) -> None:
        calls.append(len(some))
        raise Planted("a defect")

    failed: list[int] = []
    by_halves(range(1000), serve, lambda item, _: failed.append(item))
    assert (failed, len(calls) < 40) == (list(range(ALONE + 1)), True)


def test_by_halves_a_lost_lead_is_no_defect() -> None:
    def serve(_: Sequence[int]) -> None:
        raise StaleWrite("another daemon leads")

    with pytest.raises(StaleWrite):
        by_halves(range(4), serve, lambda *_: None)


@pytest.mark.parametrize("count", [1, TOGETHER + 5])
def test_of_what_fails_in_one_go_nothing_is_kept_and_the_others_are_written(site: Deployment, count: int) -> None:
    poison = {f"key {n}" for n in range(count)}
    failed: list[str] = []

    def carry_out(txn: Transaction, key: str) -> str:
        txn.put_meta(key, "written")
        if key in poison:
            raise Planted(key)
        return key.upper()

    def instead(key: str, _: Exception) -> str | None:
        failed.append(key)
        return "other" if key == "key 0" else None

    items = [*sorted(poison), "fine 1", "fine 2"]
    store = site.scene.store
    done = in_one_go(store, site.scene.clock, None, items, lambda: carry_out, instead)
    assert done == [("other", "OTHER"), ("fine 1", "FINE 1"), ("fine 2", "FINE 2")]
    assert set(failed) == poison
    assert [store.get_meta(key) for key in items] == [None] * count + ["written", "written"]


def test_what_a_provider_may_raise_is_passed_on() -> None:
    def away() -> None:
        raise ProviderUnavailable("no answer")

    with pytest.raises(ProviderUnavailable):
        asked(away, "mock.launch")
    with pytest.raises(OutcomeUnknown, match=r"mock\.launch fails in a way that it never should: ZeroDivisionError"):
        asked(lambda: 1 / 0, "mock.launch")
