"""``admission.queues: planned``: jobs with time to spare wait for room that is paid already, but not too long."""

import re
from dataclasses import replace

import pytest

from hcloud.core.model import BatchTarget, BestEffortTarget, Instance, Job, JobState, Market, ServiceTarget, Target
from hcloud.planner.plan import Launch, Place, Plan, StopAttempt, Wait
from hcloud.planner.run_times import NO_RUN_TIMES, RunTimeForecasts
from hcloud.spec.policy import AdmissionPolicy, Policy
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec
from tests.planner.test_run_times import after_runs
from tests.policies import simple

PAID = offer("paid", 2.0, 0.03, market=Market.RESERVED, available=0)
RENT = offer("small", 2.0, 0.1)
SORT = spec(target=BatchTarget(finish_within_s=5000.0), resources=need(2.0))
RUN_S = 300.0


def policy(queues: str = "planned", **changes: object) -> Policy:
    """Return a policy with this kind of queue."""
    return simple(admission=AdmissionPolicy(queues=queues, **changes))  # type: ignore[arg-type]


def known() -> RunTimeForecasts:
    """Return that programs like ``SORT`` run for five minutes."""
    return after_runs(RUN_S, 60, SORT)


def due(number: int, within_s: float, **changes: object) -> Job:
    """Return a job queued just now, whose deadline is that far away."""
    asks = replace(SORT, target=BatchTarget(finish_within_s=within_s), **changes)
    return replace(job(number, asks=asks), submitted_at=NOW, queued_at=NOW)


def planned(
    *waiting: Job, rules: Policy | None = None, run_times: RunTimeForecasts | None = None, busy: bool = True
) -> Plan:
    """Return the plan where one paid machine is busy for 200 s more, and others can be rented."""
    paid: Instance = machine(1, PAID)
    held = [running(90, paid, asks=SORT, submitted_at=NOW - 150)] if busy else []
    world = scene(paid, *held, *waiting, PAID, RENT, run_times=known() if run_times is None else run_times)
    return decide(world, rules or policy())


def test_a_job_with_time_to_spare_waits_for_paid_room_and_says_until_when() -> None:
    plan = planned(due(1, 5000.0))
    (wait,) = of(plan, Wait)
    assert (wait.job_id, wait.reason.code, of(plan, Launch)) == ("job-1", "planned", [])
    assert wait.reason.text == "waiting: planned to start later, on room that is paid already"
    assert 15.0 <= float(wait.reason.numbers["starts_in_s"]) <= 600.0
    assert float(wait.reason.numbers["chance"]) >= 0.95
    assert NOW < plan.due_at <= NOW + 600.0


def test_each_plan_says_when_a_job_starts_though_its_wait_is_recorded_once() -> None:
    first = planned(due(1, 5000.0))
    recorded = replace(due(1, 5000.0), wait_code="planned")
    later = planned(recorded, due(2, 2000.0))
    assert [each.job_id for each in of(later, Wait)] == ["job-2"]
    assert set(later.planned_starts) == {"job-1", "job-2"}
    assert later.planned_starts["job-1"].at > first.planned_starts["job-1"].at
    said = first.planned_starts["job-1"].sentence(NOW)
    assert re.fullmatch(
        r"planned to start in about 5.\d+ min, on room that is paid already; probability to meet the deadline "
        r"then 0.99 \(0.99 if it started now\)",
        said,
    )
    assert "planned to start now, on" in first.planned_starts["job-1"].sentence(NOW + 5000.0)


def test_without_a_plan_a_machine_is_rented_for_it() -> None:
    assert len(of(planned(due(1, 5000.0), rules=policy("by_quality")), Launch)) == 1


@pytest.mark.parametrize("within_s", [450.0, 330.0])
def test_a_machine_is_rented_for_a_job_that_would_be_late(within_s: float) -> None:
    assert len(of(planned(due(1, within_s)), Launch)) == 1


def test_free_paid_room_is_taken_at_once() -> None:
    assert [each.job_id for each in of(planned(due(1, 5000.0), busy=False), Place)] == ["job-1"]


def test_of_two_jobs_the_one_in_a_hurry_gets_the_free_room() -> None:
    plan = planned(due(1, 5000.0), due(2, 450.0), busy=False)
    assert [each.job_id for each in of(plan, Place)] == ["job-2"]
    assert [each.job_id for each in of(plan, Wait)] == ["job-1"]


def test_no_more_jobs_wait_for_paid_room_than_it_will_serve_in_time() -> None:
    # One machine serves one job after the other: of six jobs that must be done in half an hour, not all can wait.
    plan = planned(*(due(number, 1800.0) for number in range(1, 9)))
    waiting, rented = len(of(plan, Wait)), len(of(plan, Launch))
    assert 2 <= waiting <= 5
    assert waiting + rented == 8


@pytest.mark.parametrize("target", [BatchTarget(), ServiceTarget(requests_per_s=1.0, latency_ms=5.0)])
def test_jobs_without_a_deadline_do_not_wait(target: Target) -> None:
    waiting = replace(due(1, 1.0), spec=replace(SORT, target=target))
    assert len(of(planned(waiting), Launch)) == 1


def test_a_job_of_which_no_run_is_known_does_not_wait() -> None:
    assert len(of(planned(due(1, 5000.0), run_times=NO_RUN_TIMES), Launch)) == 1


def test_best_effort_waits_for_paid_room_but_not_for_ever() -> None:
    asks = replace(SORT, target=BestEffortTarget())
    fresh = replace(job(1, asks=asks), submitted_at=NOW, queued_at=NOW)
    assert [each.reason.code for each in of(planned(fresh), Wait)] == ["planned"]


def test_what_a_deadline_is_worth_decides_how_much_risk_waiting_may_bear() -> None:
    def waits(within_s: float, worth: float) -> bool:
        return bool(of(planned(due(1, within_s), rules=policy(deadline_worth=worth)), Wait))

    bold = max(within_s for within_s in range(400, 2000, 50) if not waits(within_s, 2.0))
    careful = max(within_s for within_s in range(400, 2000, 50) if not waits(within_s, 500.0))
    assert bold < careful


def test_a_reserved_machine_that_is_not_launched_yet_is_launched_rather_than_waited_for() -> None:
    paid, more = machine(1, PAID), offer("paid", 2.0, 0.03, market=Market.RESERVED, available=1)
    held = running(90, paid, asks=SORT, submitted_at=NOW - 150)
    plan = decide(scene(paid, held, due(1, 5000.0), more, RENT, run_times=known()), policy())
    assert [each.offer.market for each in of(plan, Launch)] == [Market.RESERVED]


def test_jobs_wait_in_order_of_priority() -> None:
    plan = planned(due(1, 5000.0), due(2, 5000.0, priority=5), busy=False)
    assert [each.job_id for each in of(plan, Place)] == ["job-2"]
    assert [each.job_id for each in of(plan, Wait)] == ["job-1"]


def test_where_no_machine_may_be_rented_the_job_in_a_hurry_goes_first_and_the_other_waits() -> None:
    world = scene(machine(1, PAID), due(1, 5000.0), due(2, 450.0), PAID, run_times=known())
    for rules, first in ((policy(), "job-2"), (policy("by_quality"), "job-1")):
        assert [each.job_id for each in of(decide(world, rules), Place)] == [first]
    assert [each.reason.code for each in of(decide(world, policy()), Wait)] == ["planned"]


@pytest.mark.parametrize(("within_s", "evicts", "stopped"), [(450.0, True, 1), (5000.0, True, 0), (450.0, False, 0)])
def test_where_no_machine_may_be_rented_best_effort_makes_room_for_a_deadline(
    within_s: float, evicts: bool, stopped: int
) -> None:
    rules = replace(policy(), disruption=replace(policy().disruption, evict_best_effort=evicts))
    held = running(90, machine(1, PAID), asks=replace(SORT, target=BestEffortTarget()))
    plan = decide(scene(machine(1, PAID), held, due(1, within_s), PAID, run_times=known()), rules)
    assert [each.job_id for each in of(plan, StopAttempt)] == ["job-90"] * stopped
    assert not of(plan, Place)


def test_a_job_whose_machine_boots_keeps_it() -> None:
    booting = machine(2, RENT, state="booting", ready_at=None)
    waiting = replace(due(1, 5000.0), state=JobState.AWAITING_INSTANCE, awaiting=("inst-2",))
    paid = machine(1, PAID)
    world = scene(paid, booting, running(90, paid, asks=SORT), waiting, PAID, RENT, run_times=known())
    assert not [each for each in decide(world, policy()).actions if getattr(each, "job_id", "") == "job-1"]


FAST, SLOW = (offer(name, 2.0, 0.03, market=Market.RESERVED, available=0) for name in ("fast", "slow"))


@pytest.mark.parametrize(("slower", "places"), [(6.0, []), (1.5, ["inst-2"])])
def test_a_job_waits_for_the_type_it_prefers_if_it_would_be_late_elsewhere(slower: float, places: list[str]) -> None:
    # It runs for 300 s on the busy machine, free in 150 s, and longer on the free one, or on one that is rented.
    fast, slow = machine(1, FAST), machine(2, SLOW)
    busy = running(90, fast, asks=SORT, submitted_at=NOW - 150)
    waiting = due(1, 900.0, preferred_types=("fa*",), slower_elsewhere=slower)
    plan = decide(scene(fast, slow, busy, waiting, FAST, SLOW, RENT, run_times=known()), policy())
    assert [each.ranks[0].instance_id for each in of(plan, Place)] == places
    assert [each.reason.code for each in of(plan, Wait)] == ([] if places else ["planned"])
    assert not of(plan, Launch)


def test_what_runs_on_machines_it_does_not_prefer_holds_them_longer() -> None:
    # Another job can wait for the rest of 300 s, not of three times as long.
    paid = machine(1, PAID)
    for slower, launches in ((1.0, 0), (3.0, 1)):
        held = replace(SORT, preferred_types=("other",), slower_elsewhere=slower)
        world = scene(paid, running(90, paid, asks=held, submitted_at=NOW - 150), due(1, 1200.0), PAID, RENT)
        assert len(of(decide(replace(world, run_times=known()), policy()), Launch)) == launches


def test_free_room_of_the_preferred_type_is_taken_first() -> None:
    fast, slow = machine(2, FAST), machine(1, SLOW)
    waiting = job(1, asks=replace(SORT, preferred_types=("fast",), slower_elsewhere=1.5))
    for rules in (policy(), policy("by_quality")):
        (place,) = of(decide(scene(fast, slow, waiting, FAST, SLOW, RENT), rules), Place)
        assert place.ranks[0].instance_id == "inst-2"


def test_a_machine_on_which_a_job_is_slower_counts_as_that_much_dearer() -> None:
    cheap, fast = offer("cheap", 2.0, 0.08), offer("fast", 2.0, 0.1)
    for preferred, expected in (((), "cheap"), (("fast",), "fast")):
        waiting = job(1, asks=replace(SORT, preferred_types=preferred, slower_elsewhere=1.5))
        assert [each.offer for each in of(decide(scene(waiting, cheap, fast), policy()), Launch)] == [
            {"cheap": cheap, "fast": fast}[expected]
        ]
