"""What is concluded from what providers and the engine say, and what is not."""

import itertools
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest

from hcloud.apply.unit_index import UnitIndex
from hcloud.core.errors import StoreBusy
from hcloud.core.model import Event, EventKind, FailureCause, InstanceState, IntentKind, JobState, Resources
from hcloud.observe import instances
from hcloud.observe.instances import InstanceObserver
from hcloud.observe.observer import FORGET_EVERY_S, Observer
from hcloud.observe.sampling import Sampling
from hcloud.observe.units import UnitObserver
from hcloud.provider import LaunchRequest, Listing
from providers.mock import Fault, FaultKind
from tests.apply.conftest import MakeDeployment
from tests.apply.deployment import Deployment
from tests.assembled import changed_by
from tests.chaos.scene import START_AT

PATIENT = {"unreachable": {"terminate_after_s": 30}}


def _running(site: Deployment, *command: str) -> str:
    """Submit a job and cycle until it runs; return its machine's id at the provider."""
    site.submit(*command)
    site.until_state(JobState.RUNNING)
    return site.machines_up()[0]


def test_failed_and_partial_listings_end_and_requeue_nothing(site: Deployment) -> None:
    _running(site, "sleep", "200")
    site.scene.controller.observer.instances.poll_s = {"mock": 0.0}
    for kind in (FaultKind.BE_AWAY, FaultKind.THROTTLE, FaultKind.LIST_PARTLY):
        site.scene.cloud.inject(Fault(kind=kind, call="instances", times=40))
        site.cycle(40)
    assert site.state() is JobState.RUNNING
    assert len(site.machines_up()) == 1
    assert site.starts("job-1") == ["job-1.1.0"]


def test_engine_that_is_away_says_nothing_about_jobs(site: Deployment) -> None:
    _running(site, "sleep", "60")
    site.scene.engine.disconnect()
    site.cycle(300)
    assert site.state() is JobState.RUNNING
    site.scene.engine.reconnect()
    site.until_state(JobState.SUCCEEDED)
    assert site.starts("job-1") == ["job-1.1.0"]


def test_silent_machine_is_ended_and_its_job_runs_again_only_once_it_is_gone(make: MakeDeployment) -> None:
    site = make(cloud={"stop_s": 25}, policy=PATIENT)
    _running(site, "sleep", "90")
    machine = site.job().attempt.allocations[0].instance_id  # type: ignore[union-attr]
    site.scene.engine.silence(machine)
    site.until(lambda: site.scene.store.instance(machine).state is InstanceState.TERMINATING)
    while site.scene.store.instance(machine).state is InstanceState.TERMINATING:
        assert site.starts("job-1") == ["job-1.1.0"]
        site.cycle()
    site.until_state(JobState.SUCCEEDED)
    assert site.job().failures == (FailureCause.INSTANCE_LOST,)
    assert site.starts("job-1") == ["job-1.1.0", "job-1.2.0"]


def test_worker_that_answers_again_in_time_keeps_its_job(make: MakeDeployment) -> None:
    site = make(policy=PATIENT)
    _running(site, "sleep", "60")
    machine = site.job().attempt.allocations[0].instance_id  # type: ignore[union-attr]
    site.scene.engine.silence(machine)
    site.cycle(20)
    site.scene.engine.unsilence(machine)
    site.until_state(JobState.SUCCEEDED)
    assert site.starts("job-1") == ["job-1.1.0"]


def test_dead_machine_is_noticed_and_its_job_runs_elsewhere(site: Deployment) -> None:
    machine = _running(site, "sleep", "30")
    site.scene.cloud.kill(machine)
    site.until_state(JobState.SUCCEEDED)
    assert site.job().failures == (FailureCause.INSTANCE_LOST,)
    assert site.machines_up() != [machine]


def test_preempted_job_is_told_so_and_runs_again(make: MakeDeployment) -> None:
    site = make(cloud={"markets": ["spot"]})
    machine = _running(site, "sleep", "90")
    site.scene.cloud.preempt(machine, notice_s=30)
    site.until_state(JobState.SUCCEEDED)
    assert site.job().failures == (FailureCause.PREEMPTED,)
    assert len(site.events(EventKind.INSTANCE_NOTICE)) == 1


@pytest.mark.parametrize("failing", range(3))
def test_history_that_could_not_be_read_whole_is_read_again(
    site: Deployment, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    _running(site, "sleep", "5")
    site.until_state(JobState.SUCCEEDED)
    controller, honest, reads = site.scene.controller, site.scene.store.iter_events, itertools.count()

    def read(**wanted: Any) -> Iterator[Event]:
        if next(reads) == failing:
            raise StoreBusy("the database is away")
        return honest(**wanted)

    before = controller.snapshot()
    controller.release()
    with monkeypatch.context() as patch:
        patch.setattr(site.scene.store, "iter_events", read)
        with pytest.raises(StoreBusy):
            controller.cycle()
    site.cycle()
    after = controller.snapshot()
    assert before.fleet_stats.busy_s
    assert after.fleet_stats.busy_s == before.fleet_stats.busy_s
    assert after.spend.day_usd >= before.spend.day_usd > 0


def test_machine_that_no_listing_names_is_there_as_long_as_its_worker_answers(site: Deployment) -> None:
    machine = _running(site, "sleep", "1000")
    honest = site.scene.controller.observer.instances.providers
    blind = {name: changed_by(each, instances=lambda owner: Listing(instances=())) for name, each in honest.items()}
    site.scene.controller.observer.instances.providers = blind
    site.scene.controller.observer.instances.poll_s = {"mock": 0.0}
    site.cycle(300)
    assert site.starts("job-1") == ["job-1.1.0"]
    [told] = site.events(EventKind.PROVIDER_TROUBLE)
    assert "but its worker answers" in str(told.fields["text"])
    site.scene.cloud.kill(machine)
    site.until(lambda: site.state() is not JobState.RUNNING)


def test_machine_of_a_provider_that_is_no_longer_configured_is_gone_once_its_time_is_over(site: Deployment) -> None:
    machine = _running(site, "sleep", "1000")
    site.scene.controller.observer.instances.providers = {}
    site.cycle(300, step_s=5.0)
    assert site.state() in (JobState.RUNNING, JobState.SUCCEEDED)  # its worker answers
    site.submit("sleep", "1000")
    site.scene.cloud.kill(machine)
    (row,) = site.scene.store.live().instances
    site.cycle(int((row.expires_at - site.now) / 60) + 5, step_s=60.0)
    assert row.id in {each.id for each in site.scene.store.live().instances}
    site.cycle(20, step_s=60.0)
    assert row.id not in {each.id for each in site.scene.store.live().instances}
    assert "not configured" in str(site.events(EventKind.INSTANCE_TERMINATED)[-1].fields["text"])


def test_machine_nobody_recorded_is_ended_and_reported(site: Deployment) -> None:
    _running(site, "sleep", "100")
    [offer] = [o for o in site.scene.controller.offers.all if o.zone == "east-1a"][:1]
    stray = site.scene.cloud.launch(
        LaunchRequest(
            token="stray", instance_id="inst-99", owner="hcloud-chaos", offer=offer, expires_at=site.now + 900
        )
    )
    site.until(lambda: stray.provider_id not in site.machines_up())
    assert site.events(EventKind.ORPHAN)[0].fields["provider_id"] == stray.provider_id
    assert site.state() is JobState.RUNNING


def test_unknown_machine_whose_end_fails_is_asked_for_less_and_less_often_and_told_of_as_often(
    site: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "SLOW_POLL_S", 1.0)
    site.cycle()
    offer = site.scene.controller.offers.all[0]
    request = LaunchRequest(
        token="s", instance_id="inst-99", owner="hcloud-chaos", offer=offer, expires_at=site.now + 900
    )
    site.scene.cloud.launch(request)
    site.scene.cloud.inject(Fault(kind=FaultKind.BE_AWAY, call="terminate", times=8))
    site.until(lambda: site.machines_up() == [], cycles=600)
    failed = [event.at for event in site.events(EventKind.PROVIDER_TROUBLE)]
    assert [after - before for before, after in pairwise(failed)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert len(site.events(EventKind.ORPHAN)) == len(failed) + 1


def test_machine_of_another_owner_is_never_touched(site: Deployment) -> None:
    site.cycle()
    offer = site.scene.controller.offers.all[0]
    other = site.scene.cloud.launch(
        LaunchRequest(token="t", instance_id="inst-1", owner="somebody", offer=offer, expires_at=site.now + 10_000)
    )
    _running(site, "sleep", "20")
    site.cycle(60)
    assert other.provider_id in site.machines_up()
    assert site.events(EventKind.ORPHAN) == []


def test_provider_that_is_no_longer_configured_holds_nothing_up_and_may_be_put_back(site: Deployment) -> None:
    machine = _running(site, "sleep", "20")
    site.scene.cloud.inject(Fault(kind=FaultKind.BE_AWAY, call="launch", times=1))
    site.submit("sleep", "5", resources=Resources(vcpus=2.0, memory_mib=512, disk_gib=1.0))
    site.until(lambda: any(each.kind is IntentKind.LAUNCH for each in site.scene.store.live().intents))
    configured = site.scene.controller.applier.machines.providers
    assert isinstance(configured, dict)
    mock = configured.pop("mock")
    site.until_state(JobState.SUCCEEDED)
    site.cycle(12, step_s=10)
    assert machine in site.machines_up()
    told = [event.fields["call"] for event in site.events(EventKind.PROVIDER_TROUBLE) if "not configured" in str(event)]
    assert {"launch", "terminate"} == set(told)
    assert len(told) < 15
    configured["mock"] = mock
    site.until_state(JobState.SUCCEEDED, number=2)
    site.until(lambda: machine not in site.machines_up())


def test_unit_that_vanished_from_its_machine_is_run_again(site: Deployment) -> None:
    _running(site, "sleep", "500")
    attempt = site.job().attempt
    assert attempt is not None
    site.scene.engine.stop({attempt.unit_id(0): attempt.allocations[0].instance_id}, cause=None)
    site.scene.clock.advance(20)
    site.scene.engine.forget({attempt.unit_id(0): attempt.allocations[0].instance_id})
    site.until(lambda: FailureCause.INSTANCE_LOST in site.job().failures)
    assert "missing" in site.events(EventKind.UNIT_ENDED)[0].fields["detail"]  # type: ignore[operator]


def test_nothing_is_remembered_for_ever_of_machines_and_units_that_vanished(site: Deployment) -> None:
    observer = site.scene.controller.observer
    machine = _running(site, "sleep", "2000")
    site.cycle(20)
    unit = site.unit()
    assert {"inst-1", unit} <= _names_in(observer)
    site.scene.cloud.kill(machine)
    site.until(lambda: FailureCause.INSTANCE_LOST in site.job().failures and site.state() is JobState.RUNNING)
    site.cycle(20, step_s=FORGET_EVERY_S / 10)
    left = _names_in(observer)
    assert not {"inst-1", unit} & left
    assert {"inst-2", site.unit()} <= left


def _names_in(thing: object) -> set[str]:
    """Return all keys of the dictionaries and members of the sets that a thing of the observer's remembers."""
    if isinstance(thing, Observer | InstanceObserver | UnitObserver | Sampling | UnitIndex):
        return set[str]().union(*(_names_in(getattr(thing, each.name)) for each in fields(thing)))
    if isinstance(thing, dict):
        return {name for name in thing if isinstance(name, str)}.union(*map(_names_in, thing.values()))
    return set(thing) if isinstance(thing, set | frozenset) else set()


def _story(site: Deployment, *, forgets: bool) -> list[Event]:
    """Let jobs come and go, and a machine die; ``forgets``: no conclusion about anything outlasts a cycle."""
    observer = site.scene.controller.observer
    site.submit("sleep", "4", count=2)
    site.submit("sleep", "25")
    for cycle in range(60):
        if cycle == 20:
            site.scene.cloud.kill(site.machines_up()[0])
        if forgets:
            observer.units._settled.clear()
            observer.instances._settled.clear()
            observer._maybe_idle |= observer.unit_index.machines.keys()
        site.cycle()
    return list(site.scene.store.iter_events())


def test_what_is_not_looked_at_again_would_have_taught_nothing(make: MakeDeployment) -> None:
    told = _story(make(), forgets=False)
    assert {EventKind.UNIT_ENDED, EventKind.INSTANCE_TERMINATED} <= {event.kind for event in told}
    assert told == _story(make(), forgets=True)


def test_the_comparison_sees_changes_that_are_not_noticed(make: MakeDeployment, monkeypatch: Any) -> None:
    told = _story(make(), forgets=False)
    monkeypatch.setattr(UnitIndex, "take_changed_machines", lambda _: set[str]())
    assert told != _story(make(), forgets=False)


def test_output_is_archived_before_the_end_is_recorded(site: Deployment) -> None:
    site.submit("/bin/sh", "-c", "echo done")
    site.until_state(JobState.SUCCEEDED)
    assert (site.scene.home / "logs" / f"{site.unit()}.stdout").read_text() == "done\n"


def test_idle_machine_is_kept_by_its_spin_up_and_then_let_go(make: MakeDeployment) -> None:
    site = make(policy={"retention": {"spin_up_multiple": 10, "maximum_s": 1000}})
    _running(site, "sleep", "5")
    site.until_state(JobState.SUCCEEDED)
    ended_at = site.now
    site.until(lambda: site.machines_up() == [])
    [instance] = site.scene.store.instances(live_only=False)
    keep_s = 10 * instance.offer.instance_type.boot_delay_s
    assert keep_s - 2 <= site.now - ended_at <= keep_s + 10


def test_expiry_is_renewed_while_the_job_runs(make: MakeDeployment) -> None:
    site = make(policy={"lease": {"horizon_s": 600, "renew_before_s": 300}})
    _running(site, "sleep", "2000")
    site.cycle(210, step_s=10.0)
    assert site.state() is JobState.SUCCEEDED
    assert site.starts("job-1") == ["job-1.1.0"]
    assert len(site.events(EventKind.INSTANCE_RENEWED)) >= 4


def test_clock_that_jumps_loses_nothing(site: Deployment) -> None:
    _running(site, "sleep", "100")
    site.scene.clock.advance(-3600)
    site.cycle(5)
    assert site.state() is JobState.RUNNING
    site.scene.clock.advance(3600 + 200)
    site.until_state(JobState.SUCCEEDED)
    assert site.starts("job-1") == ["job-1.1.0"]


def test_engine_back_after_a_long_absence_gives_its_workers_time_to_answer(make: MakeDeployment) -> None:
    site = make(policy=PATIENT)
    _running(site, "sleep", "400")
    machine = site.job().attempt.allocations[0].instance_id  # type: ignore[union-attr]
    site.scene.engine.disconnect()
    site.cycle(100)
    site.scene.engine.silence(machine)
    site.scene.engine.reconnect()
    site.cycle(20)
    assert site.scene.store.instance(machine).state is InstanceState.READY
    site.scene.engine.unsilence(machine)
    site.until(lambda: site.state() is JobState.SUCCEEDED, cycles=400)
    assert site.starts("job-1") == ["job-1.1.0"]


def test_whose_host_slept_gives_workers_time_to_answer_before_they_are_taken_for_silent(make: MakeDeployment) -> None:
    site = make(policy=PATIENT)
    _running(site, "sleep", "400")
    machine = site.job().attempt.allocations[0].instance_id  # type: ignore[union-attr]
    site.scene.clock.advance(100)
    site.scene.engine.silence(machine)
    site.cycle(20)
    assert site.scene.store.instance(machine).state is InstanceState.READY
    site.cycle(20)
    assert site.scene.store.instance(machine).state is not InstanceState.READY


def test_a_price_change_that_the_provider_knows_of_is_recorded_in_its_second(make: MakeDeployment) -> None:
    # The changes are not whole listing intervals apart.
    later = ((71.0, 0.2), (74.0, 0.15), (143.0, 0.1))
    steps = [(START_AT, 0.1), *((START_AT + after_s, usd) for after_s, usd in later)]
    site = make(cloud={"markets": ["spot"], "spot": {"history": {"prices": {"east-1a/m.one": steps}}}})
    _running(site, "sleep", "300")
    site.cycle(200)
    changes = [(each.at, each.fields["price_usd_per_h"]) for each in site.events(EventKind.INSTANCE_PRICE)]
    assert changes == steps[1:]


def test_a_provider_that_fails_to_say_when_prices_changed_is_listed_as_usual(
    site: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(site.scene.cloud), "price_changed_at", lambda _: "now")
    _running(site, "sleep", "20")
    site.until_state(JobState.SUCCEEDED)
