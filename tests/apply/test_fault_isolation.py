"""What a daemon does where a defect hits one report, one row or one call: the others are served all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hcloud.apply.machines import confirm_launch
from hcloud.apply.units import record_started
from hcloud.core.errors import OutcomeUnknown, ProviderUnavailable, StaleWrite, StoreBusy, Throttled
from hcloud.core.model import EventKind, Instance, IntentKind, Job, JobState, Resources
from hcloud.observe import facts
from hcloud.observe.facts import Change, UnitEnd
from hcloud.provider import (
    CloudInstance,
    LaunchRequest,
    Listing,
    RunnerView,
    UnitReport,
    UnitSample,
    WorkerReport,
    is_listing,
    is_machine,
    is_offer_list,
)
from hcloud.quarantine import QUARANTINE_S, Failure, bisect_failures, call_provider, registry, run_batch
from hcloud.quarantine.batches import BATCH_FAILURES_MAX, SINGLE_FAILURES_MAX
from hcloud.quarantine.registry import REPORTED_MAX
from hcloud.store import Transaction
from lab.soak.planted_defects import DEFECT, Planted, with_defects
from tests.apply.deployment import Deployment
from tests.assembled import changed_by

Make = Callable[..., Deployment]


def plant(site: Deployment) -> list[bool]:
    """Let what jobs' tags say fail; return what may be emptied to fix it."""
    broken = [True]
    with_defects(site.scene.controller, "", lambda: bool(broken), lambda _: None)
    return broken


def told(site: Deployment) -> list[tuple[str | None, str]]:
    """Return what HCloud is said to fail on, with the job, in order."""
    return [(each.job_id, str(each.fields["left_out"])) for each in site.events(EventKind.PLANNING_TROUBLE)]


# ------------------------------------------------------------------------------------------------------ whole daemons
@pytest.mark.parametrize(("deed", "what"), [("observing", "reading"), ("ending", "recording")])
def test_a_unit_whose_end_cannot_be_recorded_hides_no_other_and_loses_nothing(
    site: Deployment, deed: str, what: str
) -> None:
    site.submit(count=2)
    site.submit(tags={DEFECT: deed})
    broken = plant(site)
    site.until(lambda: site.state(1) is site.state(2) is JobState.SUCCEEDED)
    site.cycle(times=10)
    assert site.state(3) is JobState.RUNNING
    assert told(site) == [("job-3", f"{what} the report of {site.unit(3)}")]
    broken.clear()
    site.until_state(JobState.SUCCEEDED, number=3)
    assert site.job(3).attempts_made == 1


def test_it_is_told_again_while_it_lasts(site: Deployment) -> None:
    site.submit(tags={DEFECT: "observing"})
    plant(site)
    site.until(lambda: told(site))
    site.scene.clock.advance(QUARANTINE_S)
    site.cycle(times=2)
    assert len(told(site)) == 2


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
    assert told(site) == [(None, "stop of job-1, job-2, job-3")]  # all were asked; nobody failed alone


def test_no_end_is_lost_however_many_cannot_teach(make: Make) -> None:
    site = make({"types": {"m.one": {"vcpus": 64, "memory_mib": 131_072, "usd_per_h": 0.3}}})
    jobs = site.submit("sleep", "20", count=BATCH_FAILURES_MAX + 10, tags={DEFECT: "learning"})
    plant(site)
    site.until(lambda: all(site.scene.store.job(job.id).state is JobState.SUCCEEDED for job in jobs))
    assert {site.scene.store.job(job.id).attempts_made for job in jobs} == {1}
    assert len(told(site)) == REPORTED_MAX + 1
    assert told(site)[-1] == (None, f"{BATCH_FAILURES_MAX + 10 - REPORTED_MAX} more")


def test_what_one_unit_tells_stands_or_falls_together(site: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end without its start would cost nothing."""
    honest, broken = record_started, [True]

    def note(*given: Any) -> Job:
        if broken:
            raise Planted("its start")
        return honest(*given)

    for module in ("apply.units", "observe.facts"):
        monkeypatch.setattr(f"hcloud.{module}.record_started", note)
    site.submit("sleep", "20")
    site.cycle(times=60)
    assert site.state() is JobState.PLACED
    broken.clear()
    site.until_state(JobState.SUCCEEDED)
    assert float(str(site.events(EventKind.JOB_FINISHED)[0].fields["run_s"])) == 20.0


def test_the_last_sample_of_a_unit_is_recorded_once_though_its_end_comes_late(site: Deployment) -> None:
    site.submit("sleep", "20", tags={DEFECT: "ending"})
    broken, honest = plant(site), site.scene.engine

    def with_last_sample(unit: UnitReport) -> UnitReport:
        if unit.exit is None:
            return unit
        return replace(unit, sample=UnitSample(at=unit.exit.ended_at, cpu_s=16.0, memory_mib=16.0))

    def observe() -> RunnerView:
        """Tell a last sample of each ended unit, as real workers do."""
        view = honest.observe()
        units = {worker.instance_id: tuple(map(with_last_sample, worker.units)) for worker in view.workers}
        return replace(view, workers=tuple(replace(each, units=units[each.instance_id]) for each in view.workers))

    site.scene.controller.observer.units.runner = changed_by(honest, observe=observe)
    site.until(lambda: told(site))
    site.cycle(times=30)
    broken.clear()
    site.until_state(JobState.SUCCEEDED)
    ats = [each.at for each in site.events(EventKind.SAMPLE)]
    assert len(ats) == len(set(ats))


def test_a_full_disk_is_no_defect_of_who_is_written_down_then(
    site: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, full, learnt = UnitEnd._learn, [True], list[str]()

    def learn(self: UnitEnd, txn: Transaction, job: Job) -> None:
        if full:
            full.clear()
            pages = txn._connection.exec_driver_sql("PRAGMA page_count").scalar()
            txn._connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
            try:
                txn.put_meta("large", "x" * 5_000_000)
            finally:
                txn._connection.exec_driver_sql("PRAGMA max_page_count = 1073741823")
        learnt.append(job.id)
        honest(self, txn, job)

    monkeypatch.setattr(UnitEnd, "_learn", learn)
    site.submit()
    with pytest.raises(StoreBusy, match="full"):
        site.cycle(times=30)
    site.until_state(JobState.SUCCEEDED)
    assert (learnt, told(site)) == (["job-1"], [])


def test_who_was_put_off_by_a_cloud_is_not_asked_again_for_the_sake_of_another(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make({}, {"caps": {"max_instances": 20}})
    site.submit("sleep", "50", count=16, resources=Resources(vcpus=2.0, memory_mib=2000, disk_gib=1.0))
    machines, calls = site.scene.controller.applier.machines, Counter[str]()
    honest = machines.providers["mock"]

    def launch(request: LaunchRequest) -> CloudInstance:
        calls[request.instance_id] += 1
        if request.instance_id == "inst-16":
            return honest.launch(request)
        raise Throttled("slow down", retry_after_s=8.0)

    machines.providers = {"mock": changed_by(honest, launch=launch)}
    honest_adopt = confirm_launch

    def failing(txn: Transaction, instance_id: str, cloud: CloudInstance) -> object:
        if instance_id == "inst-16":
            raise Planted("adopt")
        return honest_adopt(txn, instance_id, cloud)

    monkeypatch.setattr("hcloud.apply.machines.confirm_launch", failing)
    site.cycle()
    assert {calls[f"inst-{number}"] for number in range(1, 16)} == {1}
    assert len(site.events(EventKind.PROVIDER_TROUBLE)) == 15
    assert told(site) == [(None, "launch of inst-16")]


def test_however_many_machines_cannot_be_told_to_live_on_the_others_are(make: Make) -> None:
    site = make({}, {"caps": {"max_instances": 14}, "lease": {"horizon_s": 600, "renew_before_s": 120}})
    site.submit("sleep", "5000", count=12, resources=Resources(vcpus=2.0, memory_mib=2000, disk_gib=1.0))
    site.until(lambda: all(site.state(number) is JobState.RUNNING for number in range(1, 13)))
    bad, honest = {f"inst-{number}" for number in range(1, SINGLE_FAILURES_MAX + 2)}, site.scene.controller.runner

    def renew(expiries: Mapping[str, float]) -> frozenset[str]:
        if bad & set(expiries):
            raise KeyError("renew")
        return honest.renew(expiries)

    site.scene.controller.runner = changed_by(honest, renew=renew)
    for _ in range(150):
        site.cycle(step_s=5.0)
    assert {each.instance_id for each in site.events(EventKind.INSTANCE_TERMINATED)} == bad


def test_what_a_worker_could_not_be_told_to_forget_is_told_again(make: Make) -> None:
    site = make({}, {"retention": {"spin_up_multiple": 1000, "maximum_s": 3600}})
    site.submit()
    observer, left = site.scene.controller.observer.units, [3]
    honest = observer.runner

    def forget(units: Mapping[str, str]) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise KeyError("forget")
        honest.forget(units)

    observer.runner = changed_by(honest, forget=forget)
    site.until_state(JobState.RUNNING)
    unit = site.unit()
    site.until(lambda: site.scene.engine.has_forgotten(unit))


def test_a_worker_whose_registration_fails_hides_no_other(site: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = facts.instance_registered

    def registered(instance: Instance, worker: WorkerReport, now: float) -> Iterator[Change]:
        if instance.id == "inst-1":
            raise Planted("registered")
        yield from honest(instance, worker, now)

    monkeypatch.setattr(facts, "instance_registered", registered)
    site.submit(count=2, resources=Resources(vcpus=2.0, memory_mib=2000, disk_gib=1.0))
    site.until(lambda: site.state(2) is JobState.SUCCEEDED)
    assert told(site) == [(None, "reading the report of inst-1")]


def test_what_could_not_be_told_is_told_later(site: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, busy = registry._emit_failure, [True]

    def emit(txn: Transaction, what: str, trouble: Failure) -> None:
        if busy:
            busy.clear()
            raise StoreBusy("locked")
        honest(txn, what, trouble)

    monkeypatch.setattr(registry, "_emit_failure", emit)
    site.submit(tags={DEFECT: "observing"})
    plant(site)
    with pytest.raises(StoreBusy):
        site.cycle(times=60)
    site.cycle()
    assert told(site) == [("job-1", f"reading the report of {site.unit()}")]


def fail(*_: object, **__: object) -> object:
    """Fail in a way that no port ever should."""
    raise KeyError("zone")


def nothing(*_: object, **__: object) -> object:
    """Answer what no port ever should."""
    return None


def broken_at(port: object, call: str) -> Any:
    """Return a port of which one call fails in a way that it never should."""
    return changed_by(port, **{call: fail})


@pytest.mark.parametrize("call", ["instances", "offers"])
def test_a_provider_that_answers_with_a_defect_is_one_that_does_not_answer(site: Deployment, call: str) -> None:
    site.submit()
    site.until_state(JobState.RUNNING)
    providers = dict(site.scene.controller.offers.providers)
    broken: Mapping[str, Any] = {name: broken_at(provider, call) for name, provider in providers.items()}
    site.scene.controller.offers.providers = broken
    site.scene.controller.observer.instances.providers = broken
    site.until_state(JobState.SUCCEEDED)
    site.scene.clock.advance(40)
    site.cycle()
    trouble = site.events(EventKind.PROVIDER_TROUBLE)[0]
    assert (trouble.fields["call"], trouble.fields["error"]) == (call, "OutcomeUnknown")
    assert "mock." + call + " failed with an unexpected error: KeyError: 'zone'" in str(trouble.fields["text"])


@pytest.mark.parametrize("answer", [fail, nothing])
def test_a_launch_that_fails_by_a_defect_may_have_happened_and_is_repeated_with_its_token(
    site: Deployment, answer: Callable[..., object]
) -> None:
    machines = site.scene.controller.applier.machines
    honest = machines.providers
    broken: dict[str, Any] = {name: changed_by(provider, launch=answer) for name, provider in honest.items()}
    machines.providers = broken  # type: ignore[misc]
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
    broken: Any = broken_at(honest, call)
    controller.runner = controller.observer.units.runner = broken
    site.scene.clock.advance(30)
    site.cycle(times=60)
    assert [what.split()[0] for _, what in told(site)] == [
        {"observe": "polling", "renew": "renewal", "forget": "cleaning"}[call]
    ]
    controller.runner = controller.observer.units.runner = honest
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

    def fails(item: int, trouble: Failure) -> None:
        failed.append(item)
        assert trouble.error.startswith("Planted: a defect in ")

    bisect_failures(range(40), serve, fails)
    assert (sorted(failed), len(served)) == ([7, 30], 38)


def test_by_halves_does_not_try_everything_where_everything_fails() -> None:
    calls: list[int] = []

    def serve(some: Sequence[int]) -> None:
        calls.append(len(some))
        raise Planted("a defect")

    failed: list[int] = []
    bisect_failures(range(1000), serve, lambda item, _: failed.append(item))
    assert (failed, len(calls) < 40) == (list(range(SINGLE_FAILURES_MAX + 1)), True)


def test_by_halves_a_lost_lead_is_no_defect() -> None:
    def serve(_: Sequence[int]) -> None:
        raise StaleWrite("another daemon leads")

    with pytest.raises(StaleWrite):
        bisect_failures(range(4), serve, lambda *_: None)


@pytest.mark.parametrize("count", [1, BATCH_FAILURES_MAX + 5])
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
    done = run_batch(store, site.scene.clock, None, items, lambda: carry_out, instead)
    assert done == [("other", "OTHER"), ("fine 1", "FINE 1"), ("fine 2", "FINE 2")]
    assert set(failed) == poison
    assert [store.get_meta(key) for key in items] == [None] * count + ["written", "written"]


def test_a_row_that_the_database_refuses_is_the_fault_of_who_writes_it(site: Deployment) -> None:
    store, failed = site.scene.store, list[str]()

    def carry_out(txn: Transaction, key: str) -> None:
        txn.put_meta("before " + key, "written")
        if key == "poison":
            txn._connection.exec_driver_sql("INSERT INTO meta (key, value) VALUES ('before poison', 'twice')")

    def instead(key: str, defect: Exception) -> None:
        failed.append(f"{key}: {type(defect).__name__}")

    run_batch(store, site.scene.clock, None, ["poison", "fine"], lambda: carry_out, instead)
    assert failed == ["poison: StoreError"]
    assert [store.get_meta(f"before {key}") for key in ("poison", "fine")] == [None, "written"]


def test_what_a_provider_may_raise_is_passed_on() -> None:
    def away() -> None:
        raise ProviderUnavailable("no answer")

    with pytest.raises(ProviderUnavailable):
        call_provider(away, "mock.launch")
    with pytest.raises(OutcomeUnknown, match=r"mock\.launch failed with an unexpected error: ZeroDivisionError"):
        call_provider(lambda: 1 / 0, "mock.launch")


@pytest.mark.parametrize("nonsense", [None, "t", [], (None,), Listing(instances=(None,))])  # type: ignore[arg-type]
@pytest.mark.parametrize("answers", [is_offer_list, is_listing, is_machine])
def test_an_answer_of_another_kind_is_none(nonsense: object, answers: Callable[[object], bool]) -> None:
    with pytest.raises(OutcomeUnknown, match=r"mock\.call returned a \w+, not what the port defines"):
        call_provider(lambda: nonsense, "mock.call", answers)


@pytest.mark.parametrize("call", ["instances", "offers"])
def test_a_provider_that_answers_nonsense_is_told_of_and_stops_nobody(site: Deployment, call: str) -> None:
    site.submit()
    site.until_state(JobState.RUNNING)
    controller = site.scene.controller
    providers = controller.offers.providers
    broken: Mapping[str, Any] = {name: changed_by(each, **{call: nothing}) for name, each in providers.items()}
    controller.offers.providers = controller.observer.instances.providers = broken
    site.submit(user="eve")
    site.until_state(JobState.SUCCEEDED)
    site.scene.clock.advance(40)
    site.cycle()
    trouble = site.events(EventKind.PROVIDER_TROUBLE)[0]
    assert trouble.fields["call"] == call
    assert "returned a NoneType, not what the port defines" in str(trouble.fields["text"])
