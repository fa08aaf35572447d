"""Corrections are noted with the job and carried out once, wherever the daemon dies; explain tells."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import cast

import pytest

from hcloud.core.budget_scope import user_scope
from hcloud.core.errors import StoreBusy
from hcloud.core.model import (
    BatchTarget,
    EventKind,
    Intent,
    IntentKind,
    JobState,
    Nodes,
    ProgressHook,
    Reason,
    Resources,
)
from hcloud.fake_runner.work import Resident, Work
from hcloud.forecast.job_monitor import JobMonitor
from hcloud.planner.explain import job_timeline
from hcloud.planner.plan import Action, Correct, Place, Plan, RankPlacement, Resize, StopRank
from hcloud.provider import ResizeResult, SimulatedMachine
from hcloud.report import build_report
from tests.apply.conftest import MakeDeployment
from tests.apply.deployment import SMALL, Deployment

WHY = Reason(code="test", text="because the test says so")
MORE = replace(SMALL, vcpus=1.5)


def apply(site: Deployment, *actions: Action) -> list[str]:
    """Apply a plan of ``actions``; return why those that were refused were."""
    controller = site.scene.controller
    plan = Plan(at=site.now, actions=actions)
    outcome = controller.applier.apply(plan, controller.policy, controller.offers.all, controller.lease)
    return [refusal.why for refusal in outcome.refused]


def resize(site: Deployment, to: Resources = MORE, number: int = 1) -> Resize:
    """All ranks of a job are to hold so much."""
    attempt = site.job(number).attempt
    assert attempt is not None
    held = [RankPlacement(rank=a.rank, instance_id=a.instance_id, resources=to) for a in attempt.allocations]
    return Resize(job_id=f"job-{number}", ranks=tuple(held), reason=WHY)


def resources(site: Deployment, number: int = 1) -> Resources:
    attempt = site.job(number).attempt
    assert attempt is not None
    return attempt.allocations[0].resources


def test_a_resize_is_held_by_row_engine_and_cost(site: Deployment) -> None:
    site.submit("sleep", "500")
    site.until_state(JobState.RUNNING)
    unit = site.unit()
    assert (
        apply(
            site,
            Correct(job_id="job-1", step="resize", reason=WHY),
            resize(site),
        )
        == []
    )
    assert resources(site) == MORE
    assert site.scene.engine._units[unit].spec.resources == MORE
    assert [(e.fields["vcpus"], e.fields["rank"]) for e in site.events(EventKind.UNIT_RESIZED)] == [(1.5, 0)]
    assert site.scene.store.live().intents == ()
    site.cycle()
    before = site.scene.controller.last_spend.by_scope_day_usd[user_scope("ada")]
    site.cycle(2, step_s=1000.0 / 2)
    site.cycle()
    per_s = (site.scene.controller.last_spend.by_scope_day_usd[user_scope("ada")] - before) / 1001.0
    assert per_s <= 0.3 * 0.75 / 3600 * 1.01


def test_a_resize_that_the_machine_has_no_room_for_is_refused(site: Deployment) -> None:
    site.submit("sleep", "500", count=2)
    site.until(lambda: site.state(1) is site.state(2) is JobState.RUNNING)
    [why] = apply(site, resize(site))
    assert "has only" in why
    assert resources(site) == SMALL


def test_a_resize_whose_reply_is_lost_is_told_again(site: Deployment) -> None:
    site.submit("sleep", "500")
    site.until_state(JobState.RUNNING)
    machine = site.scene.store.live().instances[0].id
    site.scene.engine.silence(machine)
    apply(
        site,
        Correct(job_id="job-1", step="resize", reason=WHY),
        resize(site),
    )
    assert [intent.token for intent in site.scene.store.live().intents] == [f"resize:{site.unit()}"]
    site.scene.engine.unsilence(machine)
    site.until(lambda: site.scene.store.live().intents == ())
    assert site.scene.engine._units[site.unit()].spec.resources == MORE


def test_a_straggler_is_started_anew_elsewhere_under_an_id_of_its_own(site: Deployment) -> None:
    site.submit("sleep", "500", nodes=Nodes(count=3, minimum=3, gang=False))
    site.submit("sleep", "500")
    site.until(lambda: len(site.starts("job-1")) == 3 and site.state(2) is JobState.RUNNING)
    attempt, other = site.job().attempt, site.job(2).attempt
    assert attempt is not None and other is not None
    slow = next(a for a in attempt.allocations if a.instance_id != other.allocations[0].instance_id)
    site.scene.store.request_cancel("job-2", "ada", site.now)
    made = Correct(job_id="job-1", step="relaunch", reason=WHY, instances=(slow.instance_id,))
    stop = StopRank(job_id="job-1", rank=slow.rank, reason=WHY)
    assert apply(site, made, stop) == []
    [again] = apply(site, stop)
    assert "is stopping" in again
    site.until(lambda: f"job-1.1.{slow.rank}-1" in site.starts("job-1"), cycles=20)
    after = site.job().attempt
    assert after is not None
    assert [a.instance_id for a in after.allocations if a.rank == slow.rank] == [other.allocations[0].instance_id]
    assert (after.id, after.number, len(after.allocations)) == (attempt.id, 1, 3), "the others go on"
    ends = site.events(EventKind.UNIT_ENDED)
    assert [e.fields["cause"] for e in ends if e.job_id == "job-1"] == ["evicted"]
    site.until(lambda: site.job().attempt.held(slow.rank).started_at is not None)  # type: ignore[union-attr]
    site.until(lambda: site.scene.store.live().intents == (), cycles=20)


def test_a_rank_is_placed_again_while_its_first_start_is_not_settled(site: Deployment) -> None:
    site.submit("sleep", "500", nodes=Nodes(count=2, minimum=2, gang=False))
    site.until(lambda: len(site.starts("job-1")) == 2)
    assert apply(site, StopRank(job_id="job-1", rank=1, reason=WHY)) == []
    unsettled = Intent(token="start:job-1.1:1", kind=IntentKind.START, subject="job-1", created_at=site.now)
    with site.scene.store.transaction(site.now) as txn:
        txn.open_intent(replace(unsettled, retry_at=site.now + 60.0))
    site.until(lambda: "job-1.1.1-1" in site.starts("job-1"), cycles=5)


def test_a_rank_that_runs_is_not_placed_twice(site: Deployment) -> None:
    site.submit("sleep", "500", nodes=Nodes(count=2, minimum=2, gang=False))
    site.until(lambda: len(site.starts("job-1")) == 2)
    machine = site.scene.store.live().instances[0].id
    twice = RankPlacement(rank=1, instance_id=machine, resources=SMALL)
    [why] = apply(site, Place(job_id="job-1", ranks=(twice,), reason=WHY))
    assert "already running" in why


def test_what_is_corrected_survives_a_new_daemon_and_is_told_by_explain(make: MakeDeployment) -> None:
    """A job too slow for its deadline beside room: it is resized once, and a new daemon does not begin anew."""
    site = make(cloud={"persist": True}, policy={"timing": {"sample_every_s": 5}})
    site.submit("sleep", "5000", target=BatchTarget(finish_within_s=1500.0), progress=ProgressHook(file="progress"))
    site.scene.engine._work = lambda spec: Work(duration_s=5000.0, cpu_share=1.0)
    site.until(lambda: site.job().corrections, cycles=200, step_s=2.0)
    [made] = site.job().corrections
    assert (made.step, resources(site).vcpus) == ("resize", 2.0)
    site.restart()
    site.scene.engine._work = lambda spec: Work(duration_s=5000.0, cpu_share=1.0)
    site.cycle(10, step_s=2.0)
    assert site.job().corrections == (made,)
    assert site.scene.controller.snapshot().job_samples["job-1"].ranks[0], "what was measured is known again"
    story = job_timeline(site.job(), site.scene.store.events(limit=10_000), site.scene.store.live().instances)
    told = [line for line in story if line.code == "correct_resize"]
    assert len(told) == 1
    assert "of the rate needed for its deadline" in told[0].text
    assert float(str(told[0].numbers["wanted"])) > float(str(told[0].numbers["measured"]))


class NoisyBesideHim:
    """Whoever runs beside best effort is slowed to a fifth."""

    def speeds(
        self, machine: SimulatedMachine, residents: Sequence[Resident], now: float
    ) -> tuple[Sequence[float], float]:
        noisy = any(each.unit.progress is None for each in residents)
        return [0.2 if noisy and each.unit.progress is not None else 1.0 for each in residents], inf


def test_a_job_slowed_by_a_noisy_neighbour_gets_rid_of_it_and_keeps_its_deadline(make: MakeDeployment) -> None:
    site = make(policy={"timing": {"sample_every_s": 5}, "caps": {"max_instances": 1}})
    site.scene.engine._surroundings = NoisyBesideHim()
    site.scene.engine._work = lambda spec: Work(duration_s=500.0)
    site.submit("work", target=BatchTarget(finish_within_s=720.0), progress=ProgressHook(file="progress"))
    site.until(lambda: site.now - site.job().submitted_at > 150, step_s=5.0)
    site.submit("noise")
    site.until(lambda: site.state(2) is JobState.RUNNING)
    site.until(lambda: site.job().corrections, cycles=100, step_s=4.0)
    assert [made.step for made in site.job().corrections] == ["evict"]
    site.until(lambda: site.state(1) is JobState.SUCCEEDED, cycles=400, step_s=4.0)
    [finished] = [e for e in site.events(EventKind.JOB_FINISHED) if e.job_id == "job-1"]
    assert finished.fields["target_met"] is True
    site.until(lambda: len(site.starts("job-2")) == 2, cycles=100, step_s=4.0)
    again = site.scene.engine.starts("job-2.2")[0]
    assert again.at >= finished.at, "it did not come back while the job ran"


@pytest.mark.parametrize("dies_at", range(1, 5))
def test_a_cycle_cut_short_anywhere_corrects_once(make: MakeDeployment, dies_at: int) -> None:
    site = make(policy={"timing": {"sample_every_s": 5, "steady_share": 0.0}})
    site.submit("sleep", "9000", target=BatchTarget(finish_within_s=1500.0), progress=ProgressHook(file="progress"))
    site.scene.engine._work = lambda spec: Work(duration_s=5000.0, cpu_share=1.0)
    site.until(lambda: site.now - site.job().submitted_at > 110, cycles=200, step_s=5.0)
    commits = [0]

    def die(moment: str) -> None:
        commits[0] += moment == "commit:before"
        if commits[0] == dies_at and moment == "commit:before":
            raise StoreBusy("the database is locked")

    for _ in range(40):
        commits[0] = 0
        site.scene.store.crash_point = die
        with suppress(StoreBusy):
            site.scene.controller.cycle()
        site.scene.store.crash_point = None
        site.cycle(step_s=4.0)
    assert {made.step for made in site.job().corrections} == {"resize"}
    site.until(lambda: resources(site).vcpus == 2.0, cycles=60, step_s=4.0)
    assert len(site.events(EventKind.UNIT_RESIZED)) == 1, "a deed that was noted and not done is done after all, once"
    assert site.scene.store.live().intents == ()


def test_the_book_of_samples_forgets_jobs_that_ended(site: Deployment) -> None:
    site.submit("sleep", "20")
    site.until_state(JobState.SUCCEEDED)
    book = JobMonitor()
    events = site.scene.store.events(limit=10_000)
    book.follow(event for event in events if event.kind is not EventKind.JOB_FINISHED)
    assert set(book.watched()) == {"job-1"}
    book.follow(event for event in events if event.kind is EventKind.JOB_FINISHED)
    assert not book.watched()


def test_what_there_was_to_choose_from_is_stored_with_a_placement(make: MakeDeployment) -> None:
    types = {
        "m.one": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 0.3},
        "m.two": {"vcpus": 4, "memory_mib": 8192, "usd_per_h": 0.8},
    }
    site = make(cloud={"types": types})
    site.submit("sleep", "3")
    site.until_state(JobState.SUCCEEDED)
    [placed] = site.events(EventKind.ATTEMPT_PLACED)
    chosen, other = cast(list[str], placed.fields["candidates"])
    assert chosen == "mock/m.one on_demand|0.15||||"
    assert other.startswith("mock/m.two on_demand|0.2||||would have to boot")
    table = build_report("decisions", site.scene.store.iter_events(), site.now)
    assert (table.rows, table.notes[-1][:15]) == ((), "1 job left out:")


def both(site: Deployment) -> list[float]:
    """The vCPUs that each rank of the first job holds by its row, which its engine has taken."""
    attempt = site.job().attempt
    assert attempt is not None
    units = site.scene.engine._units
    told = [units[attempt.unit_id(held.rank)].spec.resources.vcpus for held in attempt.allocations]
    assert told == [held.resources.vcpus for held in attempt.allocations]
    return told


def two_ranks(site: Deployment) -> list[str]:
    """Start a job with a rank on each of two machines; return them."""
    site.submit("sleep", "500", nodes=Nodes(count=2, minimum=2), resources=replace(SMALL, vcpus=1.2))
    site.until(lambda: len(site.starts("job-1")) == 2)
    site.until_state(JobState.RUNNING)
    site.cycle()
    attempt = site.job().attempt
    assert attempt is not None
    return [held.instance_id for held in attempt.allocations]


def test_all_ranks_of_a_job_are_resized(site: Deployment) -> None:
    two_ranks(site)
    assert apply(site, Correct(job_id="job-1", step="resize", reason=WHY), resize(site)) == []
    assert both(site) == [1.5, 1.5]
    attempt = site.job().attempt
    assert attempt is not None and [held.resized_from for held in attempt.allocations] == [None, None]


def test_no_rank_is_resized_where_one_machine_has_no_room(site: Deployment) -> None:
    _, second = two_ranks(site)
    more = resize(site)
    too_much = replace(more.ranks[1], resources=replace(MORE, vcpus=2.5))
    [why] = apply(site, replace(more, ranks=(more.ranks[0], too_much)))
    assert f"{second} has only" in why
    assert both(site) == [1.2, 1.2]


def test_a_worker_that_refuses_to_go_back_is_told_again_as_long_as_its_unit_runs(site: Deployment) -> None:
    _, second = two_ranks(site)
    engine = site.scene.engine
    bounded = type(engine)._bounded

    def refuses(self: object, unit: str, instance_id: str, wanted: Resources, *rest: object) -> object:
        if instance_id == second or wanted.vcpus == 1.2:
            return None, ResizeResult(outcome="refused", detail="no control groups")
        return bounded(engine, unit, instance_id, wanted, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(engine), "_bounded", refuses)
        apply(site, Correct(job_id="job-1", step="resize", reason=WHY), resize(site))
        site.cycle(30)
        assert resources(site).vcpus == 1.2
        assert [each.token for each in site.scene.store.live().intents] == [f"resize:{site.unit()}"]
        assert engine.bounds()[site.unit()].vcpus == 1.5
    site.until(lambda: site.scene.store.live().intents == (), cycles=30)
    assert both(site) == [1.2, 1.2]


def test_all_ranks_go_back_where_one_worker_refuses_also_after_a_restart(make: MakeDeployment) -> None:
    site = make(cloud={"persist": True})
    first, second = two_ranks(site)
    engine = site.scene.engine
    engine.silence(first)
    bounded = type(engine)._bounded

    def refuses(self: object, unit: str, instance_id: str, wanted: Resources, *rest: object) -> object:
        if instance_id == second and wanted.vcpus > 1.2:
            return None, ResizeResult(outcome="refused", detail="no control groups")
        return bounded(engine, unit, instance_id, wanted, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(engine), "_bounded", refuses)
        apply(site, Correct(job_id="job-1", step="resize", reason=WHY), resize(site))
        [why] = apply(site, resize(site))
        assert "an earlier resize of" in why
    site.restart()
    site.until(lambda: site.scene.store.live().intents == (), cycles=30)
    assert both(site) == [1.2, 1.2]
    site.scene.store.request_cancel("job-1", "ada", site.now)
