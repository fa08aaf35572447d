"""What was spent: per day, month and user, as the event log tells it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.apply.directives import PAUSED
from hcloud.core.budget_scope import tag_scope, user_scope
from hcloud.core.clock import ManualClock
from hcloud.core.model import Event, EventKind, JobState
from hcloud.planner.snapshot import Spend
from hcloud.spec.policy import Budgets, ScopeBudget
from hcloud.spend_ledger import SHARES_MANY, SpendLedger
from lab.soak.reference_accounts import ReferenceAccounts
from tests.apply.conftest import MakeDeployment
from tests.apply.deployment import Deployment, deployment
from tests.scopes import by_user

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
NEXT_MONTH = datetime(2040, 2, 1, tzinfo=UTC).timestamp()
HOUR = 3600.0


def _machine(name: str, price: float, vcpus: float = 2.0) -> Event:
    fields = {"price_usd_per_h": price, "vcpus": vcpus, "memory_mib": 4096, "billing_minimum_s": 60.0}
    return Event(at=0.0, kind=EventKind.INSTANCE_REQUESTED, instance_id=name, fields=fields)


def _launched(name: str, at: float, price: float) -> Event:
    fields = {"launched_at": at, "price_usd_per_h": price}
    return Event(at=at, kind=EventKind.INSTANCE_LAUNCHED, instance_id=name, fields=fields)


def _ended(name: str, at: float) -> Event:
    return Event(at=at, kind=EventKind.INSTANCE_TERMINATED, instance_id=name, fields={"terminated_at": at})


def _unit(
    kind: EventKind, job: str, name: str, user: str, at: float, vcpus: float = 1.0, memory_mib: int = 64
) -> Event:
    fields = {"attempt": f"{job}.1", "rank": 0, "vcpus": vcpus, "memory_mib": memory_mib}
    return Event(at=at, kind=kind, job_id=job, instance_id=name, user=user, fields=fields)


def _book(*events: Event) -> SpendLedger:
    book = SpendLedger()
    book.follow(events)
    return book


def test_a_machine_over_midnight_is_split_between_the_days() -> None:
    book = _book(_machine("inst-1", 1.0), _launched("inst-1", NEW_YEAR - HOUR, 1.0))
    spend = book.spend(NEW_YEAR + 2 * HOUR)
    assert (spend.day_usd, spend.month_usd) == pytest.approx((2.0, 2.0))
    assert book.total_usd(NEW_YEAR + 2 * HOUR) == pytest.approx(3.0)
    assert spend.day_ends_at == NEW_YEAR + 24 * HOUR
    assert book.spend(NEW_YEAR - 1).day_usd == pytest.approx(1.0, abs=1e-3)


def test_a_short_machine_costs_the_billing_minimum() -> None:
    book = _book(_machine("inst-1", 60.0), _launched("inst-1", NEW_YEAR, 60.0), _ended("inst-1", NEW_YEAR + 5))
    assert book.spend(NEW_YEAR + HOUR).day_usd == pytest.approx(1.0)


def test_what_of_a_billing_minimum_lies_in_the_next_month_is_not_counted_in_this_one() -> None:
    at = NEW_YEAR - 20
    book = _book(_machine("inst-1", 60.0), _launched("inst-1", at, 60.0), _ended("inst-1", at + 5))
    assert book.spend(NEW_YEAR - 10).month_usd == pytest.approx(20 / 60)
    assert book.spend(NEW_YEAR + 10).month_usd == pytest.approx(40 / 60)


def test_a_spot_price_that_moves_counts_from_when_it_moved() -> None:
    moved = Event(
        at=NEW_YEAR + HOUR, kind=EventKind.INSTANCE_PRICE, instance_id="inst-1", fields={"price_usd_per_h": 3.0}
    )
    book = _book(
        _machine("inst-1", 1.0), _launched("inst-1", NEW_YEAR, 1.0), moved, _ended("inst-1", NEW_YEAR + 2 * HOUR)
    )
    assert book.spend(NEW_YEAR + 9 * HOUR).day_usd == pytest.approx(1.0 + 3.0)


def test_a_unit_that_ended_before_a_price_was_heard_of_is_paid_up_to_its_end_only() -> None:
    moved = Event(
        at=NEW_YEAR + 9 * HOUR, kind=EventKind.INSTANCE_PRICE, instance_id="inst-1", fields={"price_usd_per_h": 3.0}
    )
    book = _book(
        _machine("inst-1", 2.0),
        _launched("inst-1", NEW_YEAR, 2.0),
        _unit(EventKind.UNIT_STARTED, "job-1", "inst-1", "ada", NEW_YEAR),
        moved,  # a daemon that was away for long hears of it first
        _unit(EventKind.UNIT_ENDED, "job-1", "inst-1", "ada", NEW_YEAR + HOUR),
    )
    assert book.spend(NEW_YEAR + 9 * HOUR).by_scope_day_usd == pytest.approx(by_user({"ada": 1.0}))
    assert book.job_usd(NEW_YEAR + 9 * HOUR) == pytest.approx({"job-1": 1.0})


def test_a_unit_that_began_before_a_price_was_heard_of_is_paid_at_both() -> None:
    moved = Event(
        at=NEW_YEAR + 9 * HOUR, kind=EventKind.INSTANCE_PRICE, instance_id="inst-1", fields={"price_usd_per_h": 4.0}
    )
    book = _book(
        _machine("inst-1", 2.0),
        _launched("inst-1", NEW_YEAR, 2.0),
        moved,
        _unit(EventKind.UNIT_STARTED, "job-1", "inst-1", "ada", NEW_YEAR + 4 * HOUR),
    )
    assert book.spend(NEW_YEAR + 10 * HOUR).by_scope_day_usd == pytest.approx(by_user({"ada": 5.0 + 2.0}))
    assert book.job_usd(NEW_YEAR + 10 * HOUR) == pytest.approx({"job-1": 7.0})
    book.follow([_unit(EventKind.UNIT_ENDED, "job-1", "inst-1", "ada", NEW_YEAR + 5 * HOUR)])
    assert book.spend(NEW_YEAR + 10 * HOUR).by_scope_day_usd == pytest.approx(by_user({"ada": 1.0}))
    assert book.job_usd(NEW_YEAR + 10 * HOUR) == pytest.approx({"job-1": 1.0})


def test_users_pay_for_the_share_their_units_hold() -> None:
    book = _book(
        _machine("inst-1", 2.0),
        _launched("inst-1", NEW_YEAR, 2.0),
        _unit(EventKind.UNIT_STARTED, "job-1", "inst-1", "ada", NEW_YEAR),
        _unit(EventKind.UNIT_STARTED, "job-2", "inst-1", "eve", NEW_YEAR + HOUR, vcpus=0.5),
        _unit(EventKind.UNIT_ENDED, "job-1", "inst-1", "ada", NEW_YEAR + HOUR),
    )
    spend = book.spend(NEW_YEAR + 2 * HOUR)
    assert spend.by_scope_day_usd == pytest.approx(by_user({"ada": 1.0, "eve": 0.5}))
    assert book.job_usd(NEW_YEAR + 2 * HOUR) == pytest.approx({"job-1": 1.0, "job-2": 0.5})


def test_neighbours_whose_shares_are_more_than_their_machine_pay_it_in_proportion() -> None:
    """Ada has three quarters of the vCPUs, eve seven eighths of the memory; when ada is gone eve pays for hers."""
    book = _book(
        _machine("inst-1", 2.6, vcpus=4.0),
        _launched("inst-1", NEW_YEAR, 2.6),
        _unit(EventKind.UNIT_STARTED, "job-1", "inst-1", "ada", NEW_YEAR, vcpus=3.0),
        _unit(EventKind.UNIT_STARTED, "job-2", "inst-1", "eve", NEW_YEAR, vcpus=1.0, memory_mib=3584),
    )
    now = NEW_YEAR + HOUR
    assert book.spend(now).by_scope_day_usd == pytest.approx(by_user({"ada": 1.2, "eve": 1.4}))
    assert book.job_usd(now) == pytest.approx({"job-1": 1.2, "job-2": 1.4})
    book.follow([_unit(EventKind.UNIT_ENDED, "job-1", "inst-1", "ada", now)])
    assert book.spend(now + HOUR).by_scope_day_usd == pytest.approx(by_user({"ada": 1.2, "eve": 1.4 + 2.6 * 7 / 8}))
    book.follow([_ended("inst-1", now + HOUR)])
    assert book.spend(now + 9 * HOUR).by_scope_day_usd == pytest.approx(by_user({"ada": 1.2, "eve": 1.4 + 2.6 * 7 / 8}))


@pytest.mark.parametrize("memory_mib", [512, 2048, 3584])
def test_of_a_machine_that_many_share_for_days_all_is_paid_once(memory_mib: int) -> None:
    """What lies far back is settled; the plainest accounts say the same, and so does the machine's price."""
    log = [_machine("inst-1", 2.0, vcpus=4.0), _launched("inst-1", NEW_YEAR, 2.0)]
    for n in range(300):
        at, user = NEW_YEAR + n * 900.0, f"user{n % 3}"
        size: dict[str, Any] = {"vcpus": 3.0} if n % 2 else {"vcpus": 0.5, "memory_mib": memory_mib}
        log.append(_unit(EventKind.UNIT_STARTED, f"job-{n}", "inst-1", user, at, **size))
        if n > 1:
            log.append(_unit(EventKind.UNIT_ENDED, f"job-{n - 2}", "inst-1", f"user{(n - 2) % 3}", at))
            log.append(Event(at=at, kind=EventKind.JOB_FINISHED, job_id=f"job-{n - 2}"))
    now, book, accounts = NEW_YEAR + 300 * 900.0, _book(*log), ReferenceAccounts().follow(log[:2])
    accounts.follow(each for each in log[2:] if each.kind is not EventKind.JOB_FINISHED)
    assert book.spend(now).by_scope_month_usd == pytest.approx(by_user(accounts.user_usd(0.0, now)))
    due = accounts.job_usd(now)
    assert book.job_usd(now) == pytest.approx({name: due[name] for name in ("job-298", "job-299")})
    assert sum(book.spend(now).by_scope_month_usd.values()) <= book.total_usd(now) + 1e-6


def test_the_book_agrees_with_the_clouds_bill(site: Deployment) -> None:
    site.submit("sleep", "70", count=5)
    site.until(lambda: all(site.state(n) is JobState.SUCCEEDED for n in range(1, 6)), cycles=300)
    site.until(lambda: site.machines_up() == [])
    site.cycle(70)  # past the billing minimum of the last machine
    assert site.scene.controller.last_spend.day_usd == pytest.approx(site.scene.cloud.billed_usd(site.now), rel=1e-6)


def test_a_book_rebuilt_from_the_log_says_the_same(site: Deployment) -> None:
    site.submit("sleep", "30", count=3)
    site.cycle(20)
    before = site.scene.controller.last_spend
    site.restart()
    site.scene.clock.advance(-1.0)
    site.cycle()
    assert site.scene.controller.last_spend == before


def test_a_restart_forgets_nothing_of_a_machine_that_saw_the_month_begin_and_is_gone(
    tmp_path: Path,
) -> None:
    site = deployment(tmp_path, {"persist": True, "keep_terminated_s": 1e6}, {"lease": {"horizon_s": "3h"}})
    site.scene.clock.advance(NEXT_MONTH - 900.0 - site.now)
    site.submit("sleep", "2000", budget_usd=100.0)
    site.until(lambda: site.state() is JobState.SUCCEEDED and site.machines_up() == [], cycles=600, step_s=5.0)
    site.cycle(3)
    before = site.scene.controller.last_spend
    assert before.month_usd == pytest.approx(1100.0 * 0.3 / HOUR, rel=0.2)
    assert before.by_scope_month_usd[user_scope("ada")] == pytest.approx(1100.0 * 0.15 / HOUR, rel=0.2)
    site.restart()
    site.scene.clock.advance(-1.0)
    site.cycle()
    assert site.scene.controller.last_spend == before


def test_nobody_pays_for_a_machine_after_its_death_however_late_that_is_heard_of(site: Deployment) -> None:
    site.submit("sleep", "3000")
    site.until_state(JobState.RUNNING)
    site.cycle(100)
    (machine,) = site.machines_up()
    site.scene.cloud.kill(machine)
    site.scene.clock.advance(1000.0)
    site.cycle()
    spend = site.scene.controller.last_spend
    assert spend.by_scope_day_usd[user_scope("ada")] == pytest.approx(100.0 * 0.15 / HOUR, rel=0.1)
    (ended,) = site.events(EventKind.UNIT_ENDED)
    assert ended.at == pytest.approx(site.now - 1001.0)


def test_a_machine_that_ended_while_nobody_looked_costs_at_most_what_was_paid_ahead(make: MakeDeployment) -> None:
    site = make({"keep_terminated_s": 0}, {"lease": {"horizon_s": 600, "renew_before_s": 60}})
    site.submit("sleep", "30000")
    site.until_state(JobState.RUNNING)
    site.scene.clock.advance(36_000.0)  # the daemon's host sleeps; the machine ends itself at its expiry
    site.until(lambda: site.events(EventKind.INSTANCE_TERMINATED))
    site.scene.store.set_meta(PAUSED, "no further machine")
    site.cycle(60)
    spend = site.scene.controller.last_spend
    first_usd = 600.0 * 0.3 / HOUR
    assert site.scene.cloud.machines(site.now)[0].billed_usd == pytest.approx(first_usd)
    others_usd = sum(machine.billed_usd for machine in site.scene.cloud.machines(site.now)[1:])
    assert spend.month_usd == pytest.approx(first_usd + others_usd, rel=0.1)
    assert spend.by_scope_month_usd[user_scope("ada")] == pytest.approx(first_usd / 2, rel=0.1)


def test_jobs_of_a_tag_stop_starting_at_its_limit_and_what_they_cost_survives_a_restart(make: MakeDeployment) -> None:
    site = make({"persist": True}, {"lease": {"horizon_s": 600, "renew_before_s": 60}})
    controller = site.scene.controller
    unlimited = Budgets(per_tag={"team": ScopeBudget()})
    controller.policy = replace(controller.policy, budgets=unlimited)
    first = site.submit("sleep", "600", tags={"team": "ml"})[0]
    site.until_state(JobState.RUNNING)
    site.cycle(100)
    assert not [scope for scope in controller.last_spend.by_scope_day_usd if scope.kind == "tag"]
    spent_usd = 100.0 * 0.15 / HOUR
    limits = Budgets(per_tag={"team": ScopeBudget(per_day_usd=0.035)})
    controller.policy = replace(controller.policy, budgets=limits)  # as after an edit: the unit runs already
    site.cycle()
    assert controller.last_spend.by_scope_day_usd[tag_scope("team=ml")] == pytest.approx(spent_usd, rel=0.1)
    second, other = site.submit("sleep", "5", tags={"team": "ml"})[0], site.submit("sleep", "5")[0]
    site.until(lambda: site.scene.store.job(other.id).state is JobState.SUCCEEDED)
    waits = site.scene.store.job(second.id)
    assert waits.wait_code == "budget_tag_per_day" and "tag team=ml" in waits.wait_text
    assert site.scene.store.job(first.id).state is JobState.RUNNING
    before = controller.last_spend
    site.restart()
    site.scene.controller.policy = replace(site.scene.controller.policy, budgets=limits)
    site.scene.clock.advance(-1.0)
    site.cycle()
    assert site.scene.controller.last_spend.by_scope_day_usd == pytest.approx(before.by_scope_day_usd)


class Behind(ManualClock):
    """A machine's clock that is a minute slow."""

    def now(self) -> float:
        return super().now() - 60.0


@pytest.mark.parametrize("clock", [ManualClock, Behind])
def test_a_unit_costs_what_it_ran_whatever_its_machines_clock_says(
    site: Deployment, monkeypatch: pytest.MonkeyPatch, clock: type[ManualClock]
) -> None:
    slow = clock(site.now)
    monkeypatch.setattr(site.scene.engine, "_clock", slow)
    site.submit("sleep", "30")
    for _ in range(60):
        site.cycle()
        slow.advance(1.0)
    assert site.state() is JobState.SUCCEEDED
    assert site.scene.controller.last_spend.by_scope_day_usd[user_scope("ada")] == pytest.approx(
        30.0 * 0.15 / HOUR, rel=0.05
    )


def test_a_restart_forgets_nothing_that_a_job_with_a_budget_of_its_own_has_cost_in_an_earlier_month(
    tmp_path: Path,
) -> None:
    site = deployment(tmp_path, {"persist": True}, {"retention": {"maximum_s": 0}})
    site.scene.clock.advance(NEXT_MONTH - 900.0 - site.now)
    site.submit("sleep", "600", budget_usd=100.0)
    site.until_state(JobState.RUNNING)
    site.cycle(100)
    (machine,) = site.machines_up()
    site.scene.cloud.kill(machine)
    site.until(lambda: site.machines_up() == [])
    site.scene.store.set_meta(PAUSED, "till next month")  # so that nothing of the month before is left but the job
    site.cycle(3)
    site.scene.clock.advance(1000.0)
    site.cycle()
    (before,) = site.scene.controller.last_snapshot.jobs
    site.restart()
    site.scene.clock.advance(-1.0)
    site.cycle()
    (after,) = site.scene.controller.last_snapshot.jobs
    assert after.spent_usd == before.spent_usd == pytest.approx(100.0 * 0.15 / HOUR, rel=0.1)


Stretch = tuple[float, float, float]
stretches = st.lists(
    st.tuples(st.floats(0, 40 * 24 * HOUR), st.floats(0, 50 * HOUR), st.floats(0.01, 10.0)), min_size=1, max_size=8
)


def _day_total(stretches: list[Stretch], now: float) -> float:
    """Return what the machines cost in the day of ``now``, minute by hand: no book, no days, one interval at a time."""
    day = now - now % (24 * HOUR)
    total = 0.0
    for start, length, price in stretches:
        since, until = NEW_YEAR + start, min(now, NEW_YEAR + start + max(length, 60.0))
        total += max(0.0, until - max(since, day)) * price / HOUR
    return total


def _log(stretches: list[Stretch], now: float) -> list[Event]:
    events: list[Event] = []
    for number, (start, length, price) in zip(count(1), stretches, strict=False):
        name, since, until = f"inst-{number}", NEW_YEAR + start, NEW_YEAR + start + length
        if since <= now:
            events += [_machine(name, price), _launched(name, since, price)]
        if until <= now:
            events.append(_ended(name, until))
    return events


def _differs(book_of: type[SpendLedger], stretches: list[Stretch], now: float) -> bool:
    book = book_of()
    book.follow(_log(stretches, now))
    # A machine that ended is billed its minimum at once; one that runs, as it runs.
    wanted = _day_total([s for s in stretches if NEW_YEAR + s[0] <= now], now)
    return abs(book.spend(now).day_usd - wanted) > 1e-6 + 60 * 10.0 / HOUR * len(stretches)


@given(stretches, st.floats(0, 42 * 24 * HOUR))
def test_the_day_adds_up_whatever_the_machines_did(machines: list[Stretch], after: float) -> None:
    assert not _differs(SpendLedger, machines, NEW_YEAR + after)


class ForgetsRunning(SpendLedger):
    """A seeded fault: counts only machines that have ended."""

    def spend(self, now: float) -> Spend:
        running, self._meters = self._meters, {}
        try:
            return super().spend(now)
        finally:
            self._meters = running


def test_the_adding_up_sees_a_book_that_forgets_running_machines() -> None:
    assert _differs(ForgetsRunning, [(0.0, 30 * HOUR, 5.0)], NEW_YEAR + 20 * HOUR)


Deed = tuple[int, int, float]
"""What happens, to which machine or unit, and how long after what happened before."""


def _told(kind: int, one: int, at: float) -> Event:
    machine, job = f"inst-{one % 3}", f"job-{one}"
    if kind == 0:  # by its provider's clock a little later than we hear of it
        return _launched(machine, at + one, 1.0 + one)
    if kind == 1:
        return _ended(machine, at)
    if kind == 2:
        return Event(at=at, kind=EventKind.INSTANCE_PRICE, instance_id=machine, fields={"price_usd_per_h": 2.0 + one})
    units = (EventKind.UNIT_STARTED, EventKind.UNIT_STARTED, EventKind.UNIT_RESIZED, EventKind.UNIT_ENDED)
    return _unit(units[kind - 3], job, machine, "ab"[one % 2], at, vcpus=0.5 + one / 10 + kind / 20)


def _drifts(book_of: type[SpendLedger], deeds: list[Deed]) -> bool:
    """Whether a book that is asked after each event ever says something else than one that is asked only then."""
    book, log, now = book_of(), [_machine(f"inst-{n}", 1.0) for n in range(3)], NEW_YEAR + 20 * HOUR
    book.follow(log)
    for kind, one, after in deeds:
        now += after
        log.append(_told(kind, one, now))
        book.follow(log[-1:])
        said, anew = book.spend(now + after / 2), _book(*log).spend(now + after / 2)
        if (said.day_usd, said.month_usd) != pytest.approx((anew.day_usd, anew.month_usd), abs=1e-9):
            return True
        if dict(said.by_scope_day_usd) != pytest.approx(dict(anew.by_scope_day_usd), abs=1e-9):
            return True
    return False


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5), st.floats(0.0, 2 * HOUR)), max_size=12))
def test_sums_kept_from_answer_to_answer_are_those_made_anew(deeds: list[Deed]) -> None:
    assert not _drifts(SpendLedger, deeds)


class NeverStops(SpendLedger):
    """A seeded fault: what has ended goes on in the sums."""

    def _closed(self, user: str, since: float, usd_per_h: float) -> None:
        """Take nothing back."""


def test_the_comparison_sees_sums_in_which_ended_units_go_on() -> None:
    assert _drifts(NeverStops, [(0, 0, 1.0), (3, 0, 1.0), (6, 0, HOUR), (6, 0, HOUR)])


def test_a_price_heard_of_after_the_end_costs_nothing() -> None:
    moved = Event(
        at=NEW_YEAR + 3 * HOUR, kind=EventKind.INSTANCE_PRICE, instance_id="inst-1", fields={"price_usd_per_h": 3.0}
    )
    launched, ended = _launched("inst-1", NEW_YEAR, 1.0), _ended("inst-1", NEW_YEAR + 2 * HOUR)
    book = _book(_machine("inst-1", 1.0), launched, moved, ended)
    assert book.spend(NEW_YEAR + 4 * HOUR).day_usd == pytest.approx(2.0)
    assert book.total_usd(NEW_YEAR + 4 * HOUR) == pytest.approx(2.0)


@pytest.mark.parametrize(("count", "each_s"), [(200, 300.0), (4000, 0.25)])
def test_a_job_with_many_short_neighbours_is_charged_its_part_of_the_machine_for_all_of_its_time(
    count: int, each_s: float
) -> None:
    """What lies far back is settled while the job runs on: 3 of 4 vCPUs, scaled by 4/5 beside neighbours of 2."""
    log = [_machine("inst-1", 2.0, vcpus=4.0), _launched("inst-1", NEW_YEAR, 2.0)]
    log.append(_unit(EventKind.UNIT_STARTED, "long", "inst-1", "ada", NEW_YEAR, vcpus=3.0))
    for n in range(count):
        at = NEW_YEAR + n * each_s
        log.append(_unit(EventKind.UNIT_STARTED, f"job-{n}", "inst-1", "eve", at, vcpus=2.0))
        log.append(_unit(EventKind.UNIT_ENDED, f"job-{n}", "inst-1", "eve", at + each_s))
    now, hours = NEW_YEAR + count * each_s, count * each_s / HOUR
    book = _book(*log)
    assert len(book._sharers["inst-1"].parts) <= 2 * SHARES_MANY
    assert book.job_usd(now)["long"] == pytest.approx(2.0 * hours * 0.6)
    assert book.spend(now).by_scope_day_usd == pytest.approx(
        by_user({"ada": 2.0 * hours * 0.6, "eve": 2.0 * hours * 0.4})
    )


def test_a_machine_that_was_never_launched_or_is_not_known_costs_nothing() -> None:
    book = _book(_machine("inst-1", 9.0), _ended("inst-1", NEW_YEAR + HOUR), _ended("inst-2", NEW_YEAR + HOUR))
    assert book.spend(NEW_YEAR + 2 * HOUR).day_usd == book.total_usd(NEW_YEAR + 2 * HOUR) == 0.0


def test_a_unit_is_charged_from_its_start_though_the_clouds_clock_launched_its_machine_later() -> None:
    book = _book(
        _machine("inst-1", 1.0),
        _launched("inst-1", NEW_YEAR + 600.0, 1.0),
        _unit(EventKind.UNIT_STARTED, "job-1", "inst-1", "ada", NEW_YEAR),
        _unit(EventKind.UNIT_ENDED, "job-1", "inst-1", "ada", NEW_YEAR + HOUR),
    )
    assert book.spend(NEW_YEAR + HOUR).by_scope_day_usd == pytest.approx(by_user({"ada": 0.5}))
    assert book.job_usd(NEW_YEAR + HOUR) == pytest.approx({"job-1": 0.5})


def _running_at_different_times() -> SpendLedger:
    """A machine of $1/h from midnight on, and another of $1/h that its provider's clock launches at 9 h."""
    book = _book(_machine("inst-1", 1.0), _launched("inst-1", NEW_YEAR, 1.0), _machine("inst-2", 1.0))
    assert book.spend(NEW_YEAR + HOUR).day_usd == pytest.approx(1.0)
    book.follow([_launched("inst-2", NEW_YEAR + 9 * HOUR, 1.0)])
    return book


def test_a_machine_costs_nothing_before_the_clouds_clock_launches_it() -> None:
    book = _running_at_different_times()
    for hours, usd in ((7, 7.0), (8, 8.0), (9, 9.0), (10, 11.0)):
        assert book.spend(NEW_YEAR + hours * HOUR).day_usd == pytest.approx(usd)


def test_a_clock_that_is_set_back_within_the_day_sets_back_what_was_spent() -> None:
    book = _running_at_different_times()
    assert book.spend(NEW_YEAR + 10 * HOUR).day_usd == pytest.approx(11.0)
    assert book.spend(NEW_YEAR + 8 * HOUR).day_usd == pytest.approx(8.0)


def test_of_two_machines_that_are_launched_later_one_that_ends_leaves_the_other() -> None:
    book = _running_at_different_times()
    at = NEW_YEAR + 9 * HOUR
    book.follow([_machine("inst-3", 1.0), _launched("inst-3", at, 1.0), _ended("inst-3", at)])
    minimum_usd = 1.0 / 60.0
    assert book.spend(NEW_YEAR + 8 * HOUR).day_usd == pytest.approx(8.0 + minimum_usd)
    assert book.spend(NEW_YEAR + 10 * HOUR).day_usd == pytest.approx(11.0 + minimum_usd)


def test_a_price_that_moves_between_two_answers_of_a_day_counts_in_the_second() -> None:
    book = _book(_machine("inst-1", 1.0), _launched("inst-1", NEW_YEAR, 1.0))
    assert book.spend(NEW_YEAR + HOUR).day_usd == pytest.approx(1.0)
    fields = {"price_usd_per_h": 5.0}
    book.follow([Event(at=NEW_YEAR + 2 * HOUR, kind=EventKind.INSTANCE_PRICE, instance_id="inst-1", fields=fields)])
    assert book.spend(NEW_YEAR + 3 * HOUR).day_usd == pytest.approx(2.0 + 5.0)


def test_a_machine_that_is_launched_later_has_cost_nothing_in_total() -> None:
    book = _book(_machine("inst-1", 3600.0), _launched("inst-1", NEW_YEAR, 3600.0))
    assert book.total_usd(NEW_YEAR - HOUR) == 0.0


def test_a_unit_that_grows_pays_its_first_share_until_then() -> None:
    book = _book(
        _machine("inst-1", 2.0),
        _launched("inst-1", NEW_YEAR, 2.0),
        _unit(EventKind.UNIT_STARTED, "job-1", "inst-1", "ada", NEW_YEAR, vcpus=1.0),
        _unit(EventKind.UNIT_RESIZED, "job-1", "inst-1", "ada", NEW_YEAR + HOUR, vcpus=2.0),
    )
    now = NEW_YEAR + 2 * HOUR
    assert book.job_usd(now) == pytest.approx({"job-1": 1.0 + 2.0})
    assert book.spend(now).by_scope_day_usd == pytest.approx(by_user({"ada": 1.0 + 2.0}))


def test_on_a_machine_of_unknown_size_a_unit_of_one_vcpu_pays_for_the_whole() -> None:
    fields = {"price_usd_per_h": 2.0, "memory_mib": 4096}
    book = _book(
        Event(at=0.0, kind=EventKind.INSTANCE_REQUESTED, instance_id="inst-1", fields=fields),
        _launched("inst-1", NEW_YEAR, 2.0),
        _unit(EventKind.UNIT_STARTED, "job-1", "inst-1", "ada", NEW_YEAR),
    )
    assert book.job_usd(NEW_YEAR + HOUR) == pytest.approx({"job-1": 2.0})
