"""What a daemon does while its planner fails on something: a defect that nobody has met before."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from hcloud.apply.machines import MachineActions
from hcloud.classifier.belief_store import BeliefStore
from hcloud.core.errors import StaleWrite
from hcloud.core.estimates import Application, Classification
from hcloud.core.model import BestEffortTarget, EventKind, Intent, JobSpec, JobState
from hcloud.planner import make_plan
from hcloud.planner.plan import Plan, Terminate
from hcloud.planner.snapshot import Snapshot
from hcloud.preview import describe_preview
from hcloud.quarantine import QUARANTINE_S
from hcloud.spec.policy import Policy
from hcloud.store import Transaction
from lab.soak.planted_defects import DEFECT, Planted, with_defects
from tests.apply.deployment import SMALL, Deployment

Fails = Callable[[Snapshot], bool]


def fail(site: Deployment, fails: Fails) -> list[int]:
    """Let the deployment's planner fail where ``fails`` says so; return what counts its plans."""
    plans: list[int] = []

    def plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        plans.append(len(snapshot.jobs))
        if fails(snapshot):
            raise Planted("a defect")
        return make_plan(snapshot, policy, rng)

    site.scene.controller.planner = plan
    return plans


def without(name: str) -> Fails:
    """Fail with a job."""
    return lambda seen: name not in seen.left_out.jobs and any(each.id == name for each in seen.jobs)


def test_the_others_run_and_the_one_at_fault_is_told_and_tried_again(site: Deployment) -> None:
    site.submit(count=3)
    fail(site, without("job-2"))
    site.until(lambda: site.state(1) is site.state(3) is JobState.SUCCEEDED)
    waits = site.job(2)
    assert waits.wait_code == "planning_fails"
    assert "Planted: a defect" in waits.wait_text
    (event,) = site.events(EventKind.PLANNING_TROUBLE)
    assert (event.job_id, event.fields["left_out"]) == ("job-2", "job-2")
    assert set(site.scene.controller.quarantine.left_out(site.now).jobs) == {"job-2"}
    fail(site, lambda _: False)
    site.scene.clock.advance(QUARANTINE_S)
    site.until_state(JobState.SUCCEEDED, number=2)
    site.until(lambda: not site.scene.controller.quarantine)


def test_it_is_looked_for_once_and_then_suspected_first(site: Deployment) -> None:
    site.submit(count=40)
    plans = fail(site, without("job-7"))
    site.cycle()
    searched = len(plans)
    site.cycle(times=10)
    assert (searched > 4, len(plans) - searched) == (True, 10)
    site.scene.clock.advance(QUARANTINE_S)
    before = len(plans)
    site.cycle()
    assert len(plans) - before == 2
    assert len(site.events(EventKind.PLANNING_TROUBLE)) == 2


def test_what_draws_lots_draws_as_if_nothing_had_failed(site: Deployment) -> None:
    site.submit(count=3)
    before = site.scene.controller.rng.bit_generator.state
    fail(site, without("job-2"))
    site.cycle()
    assert site.scene.controller.rng.bit_generator.state == before


def test_a_stage_that_fails_is_passed_over_and_told(site: Deployment) -> None:
    site.submit()
    fail(site, lambda seen: "optional_ranks" not in seen.left_out.stages)
    site.until_state(JobState.SUCCEEDED)
    (event,) = site.events(EventKind.PLANNING_TROUBLE)
    assert (event.job_id, event.fields["left_out"]) == (None, "optional_ranks")


def test_a_job_that_has_ended_is_not_remembered(site: Deployment) -> None:
    (poison,) = site.submit()
    fail(site, without(poison.id))
    site.cycle()
    site.scene.store.request_cancel(poison.id, "ada", site.now)
    site.until_state(JobState.CANCELLED)
    site.scene.clock.advance(QUARANTINE_S)
    site.cycle()
    assert not site.scene.controller.quarantine


def test_where_nothing_helps_the_cycle_fails_as_it_did_and_nothing_is_done(site: Deployment) -> None:
    site.submit()
    fail(site, lambda _: True)
    with pytest.raises(Planted):
        site.scene.controller.cycle()
    assert site.events(EventKind.PLANNING_TROUBLE) == []
    assert site.state() is JobState.SUBMITTED


class Unbelieving(BeliefStore):
    """Fails as soon as it is to learn anything."""

    def follow(self, rows: Mapping[str, Application]) -> None:
        raise Planted("singular matrix")


def test_where_classification_fails_plans_go_on_with_what_was_believed(site: Deployment) -> None:
    site.submit()
    site.until_state(JobState.SUCCEEDED)
    controller = site.scene.controller
    controller.beliefs.belief_store = Unbelieving()
    site.submit(count=2)
    site.until_state(JobState.SUCCEEDED, number=3)
    (event,) = site.events(EventKind.PLANNING_TROUBLE)
    assert (event.job_id, event.fields["left_out"]) == (None, "classification")
    assert controller.quarantine.left_out(site.now)
    site.scene.clock.advance(QUARANTINE_S)
    site.cycle(times=2)
    assert not isinstance(controller.beliefs.belief_store, Unbelieving)
    assert not controller.quarantine


def test_what_cannot_be_carried_out_is_undone_and_the_job_left_out_while_the_others_go_on(site: Deployment) -> None:
    jobs = site.submit(count=2) + site.submit(tags={DEFECT: "placing"})
    broken = [True]
    with_defects(site.scene.controller, "", lambda: broken[0], lambda _: None)
    site.until(lambda: site.state(1) is site.state(2) is JobState.SUCCEEDED)
    waits = site.job(3)
    assert (waits.attempts_made, waits.attempt, waits.wait_code) == (0, None, "planning_fails")
    (event,) = site.events(EventKind.PLANNING_TROUBLE)
    assert event.job_id == jobs[2].id
    assert str(event.fields["error"]).startswith("Place: Planted: planted in placing job-3")
    assert not [each for each in site.events(EventKind.ATTEMPT_PLACED) if each.job_id == "job-3"]
    broken[0] = False
    site.scene.clock.advance(QUARANTINE_S)
    site.until_state(JobState.SUCCEEDED, number=3)
    assert site.job(3).attempts_made == 1


def test_a_machine_of_which_nothing_can_be_written_does_not_keep_others_from_being_used(
    site: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = MachineActions.record_terminate

    def record_terminate(self: MachineActions, txn: Transaction, action: Terminate, policy: Policy) -> Intent | None:
        if action.instance_id == "inst-1":
            raise Planted("no such column")
        return honest(self, txn, action, policy)

    monkeypatch.setattr(MachineActions, "record_terminate", record_terminate)
    site.submit()
    site.until(lambda: site.events(EventKind.PLANNING_TROUBLE))
    (event,) = site.events(EventKind.PLANNING_TROUBLE)
    assert (event.job_id, event.fields["left_out"]) == (None, "Terminate of inst-1")
    site.submit()
    site.until_state(JobState.SUCCEEDED, number=2)
    site.cycle(times=20)
    assert len(site.events(EventKind.PLANNING_TROUBLE)) == 1


def test_a_daemon_that_lost_the_lead_while_it_searched_does_nothing(site: Deployment) -> None:
    site.submit(count=3)
    site.cycle()
    taken = []

    def takes_long_and_fails(seen: Snapshot) -> bool:
        if not taken:
            site.scene.clock.advance(60.0)
            taken.append(site.scene.store.acquire_lease("another", site.now, 15.0))
        return without("job-2")(seen)

    fail(site, takes_long_and_fails)
    with pytest.raises(StaleWrite, match="became leader"):
        site.scene.controller.cycle()
    assert taken[0] is not None
    assert site.events(EventKind.PLANNING_TROUBLE) == []


def asked(name: str) -> JobSpec:
    return JobSpec(name=name, user="ada", command=("true",), target=BestEffortTarget(), resources=SMALL)


def test_a_preview_tells_that_planning_fails_with_a_job_and_plans_the_others(site: Deployment) -> None:
    specs = [asked(name) for name in ("fine", "poison")]

    def plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        if any(job.spec.name == "poison" and job.id not in snapshot.left_out.jobs for job in snapshot.jobs):
            raise Planted("a defect")
        return make_plan(snapshot, policy, rng)

    site.scene.controller.planner = plan
    site.cycle()
    preview = site.scene.controller.preview(specs)
    told = [(each["action"], each["code"]) for each in describe_preview(preview, site.scene.controller.policy)]
    assert told == [("launch", "launched_for_jobs"), ("wait", "planning_fails")]
    assert site.events(EventKind.PLANNING_TROUBLE) == []


def test_a_preview_of_what_cannot_be_classified_goes_by_what_was_believed_and_writes_nothing(site: Deployment) -> None:
    class Failing(BeliefStore):
        def believe(self, wanted: Mapping[str, None]) -> Mapping[str, Classification]:
            raise Planted("singular matrix")

    site.cycle()
    controller = site.scene.controller
    controller.beliefs.belief_store = Failing()
    preview = controller.preview([asked("new")])
    assert [each["action"] for each in describe_preview(preview, controller.policy)] == ["launch"]
    assert site.events(EventKind.PLANNING_TROUBLE) == []
    site.submit()
    site.until_state(JobState.SUCCEEDED)  # by a new belief store
    assert type(controller.beliefs.belief_store) is BeliefStore
