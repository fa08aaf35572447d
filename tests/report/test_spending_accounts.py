"""Accounts of the cost: each on a small log with an obvious result, and together they are the whole cost."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hcloud.core.errors import BadInput
from hcloud.core.model import PROFILE_TAG, Event, EventKind
from hcloud.report import build_report, spending_accounts
from hcloud.report.commitment_history import CommitmentHistory
from hcloud.report.fleet import FleetHistory
from hcloud.report.spending_accounts import (
    SPENDING_KINDS,
    Account,
    Spending,
    SpendingReader,
    accounts_table,
    with_accounts_below,
)
from hcloud.report.table import ReportTable, columns
from tests.report.log_builder import HOUR, LogBuilder
from tests.report.test_parts_sum_up import NOW, busy_for_long, charged, history, machines

TERMINATING = "terminating"


def spending(
    log: LogBuilder, until: float = NOW, since: float = 0.0, needs_vcpus: dict[str, float] | None = None
) -> Spending:
    """The accounts of a period."""
    reader, fleet, commitments = (
        SpendingReader(needs_vcpus),
        FleetHistory(since, until),
        CommitmentHistory(since, until),
    )
    for event in log.events:
        if event.at > until or event.kind not in SPENDING_KINDS:
            continue
        reader.measure(event, fleet)
        for stretch in fleet.take(event):
            reader.add(stretch)
        for unused in commitments.take(event):
            reader.add_unused(unused)
    for stretch in fleet.finish():
        reader.add(stretch)
    for unused in commitments.finish():
        reader.add_unused(unused)
    return reader.finish()


def paid(log: LogBuilder, until: float = NOW, **how: Any) -> dict[str, float]:
    """The accounts that are not 0, by name."""
    return {each.value: pytest.approx(usd) for each, usd in spending(log, until, **how).usd.items() if usd}


@pytest.fixture
def log() -> LogBuilder:
    """A machine of $1/h that is ready at once; its unit of job 1 holds half of it from 0 h on."""
    log = LogBuilder()
    log.submit(1)
    log.machine(1, launched_at=0.0, ready_at=0.0)
    log.start(1, 1, 0.0)
    return log


# ------------------------------------------------------------------------------------------------------ the free part
def test_machine_is_booting_idle_half_empty_and_shut_down_one_after_the_other() -> None:
    log = LogBuilder()
    log.submit(1)
    log.machine(1, launched_at=0.0, ready_at=HOUR)
    log.start(1, 1, 3 * HOUR, vcpus=0.5)
    log.end(1, 1, 7 * HOUR)
    log.finish(1, 7 * HOUR)
    log.add(EventKind.INSTANCE_STATE, 7 * HOUR, instance_id="inst-1", to="draining")
    log.add(EventKind.INSTANCE_STATE, 8 * HOUR, instance_id="inst-1", to=TERMINATING)
    log.terminate(1, 8.5 * HOUR)
    assert paid(log) == {"boot": 1.5, "idle_kept": 3.0, "used": 1.0, "half_empty": 3.0}


def test_machine_whose_memory_is_held_is_not_half_empty() -> None:
    log = LogBuilder()
    log.submit(1)
    log.machine(1, launched_at=0.0, ready_at=0.0)
    log.start(1, 1, 0.0, vcpus=0.5, memory_mib=4096)
    assert paid(log, HOUR) == {"used": 1.0}


def test_time_up_to_the_billing_minimum_has_an_account_of_its_own() -> None:
    log = LogBuilder()
    log.machine(1, launched_at=0.0, ready_at=600.0, billing_minimum_s=HOUR)
    log.terminate(1, 1800.0)
    log.request(2, billing_minimum_s=HOUR)
    log.launch(2, at=0.0)
    log.terminate(2, 900.0)  # it was never ready
    assert paid(log) == {"boot": 1500 / HOUR, "idle_kept": 1200 / HOUR, "minimum_billing": 0.5 + 0.75}


def test_free_part_of_reserved_machines_is_reserved_also_while_they_boot() -> None:
    log = LogBuilder()
    log.submit(1)
    log.machine(1, launched_at=0.0, ready_at=HOUR, market="reserved")
    log.start(1, 1, HOUR)
    log.end(1, 1, 2 * HOUR)
    log.finish(1, 2 * HOUR)
    about = {"provider": "mock", "commitment_kind": "instances", "commitment": "c", "usd_per_h": 2.0, "count": 3.0}
    log.add(EventKind.COMMITMENT, 0.0, unused=2.0, **about)
    assert paid(log, 3 * HOUR) == {"used": 0.5, "reserved_unused": 2.5 + 3 * 2 * 2.0}


def test_machine_that_ran_only_profiling_runs_was_rented_for_profiling() -> None:
    log = LogBuilder()
    log.submit(1, tags={PROFILE_TAG: "job-9"})
    for machine in (1, 2):
        log.machine(machine, launched_at=0.0, ready_at=HOUR)
        log.start(1, machine, HOUR, rank=machine)
        log.end(1, machine, 2 * HOUR, rank=machine)
    log.submit(2)
    log.start(2, 2, 2 * HOUR)
    log.end(2, 2, 3 * HOUR)
    log.finish(2, 3 * HOUR)
    assert paid(log, 3 * HOUR) == {"profiling": 3.0 + 0.5, "boot": 1.0, "half_empty": 1.0, "used": 0.5}


# ----------------------------------------------------------------------------------------------------------- lost work
def retried(log: LogBuilder) -> None:
    """The job's first attempt ends after an hour, its second one succeeds after another."""
    log.end(1, 1, HOUR, cause="preempted")
    log.start(1, 1, HOUR, attempt=2)
    log.end(1, 1, 2 * HOUR, attempt=2)
    log.finish(1, 2 * HOUR)


def test_attempt_that_was_followed_by_another_is_lost(log: LogBuilder) -> None:
    retried(log)
    assert paid(log, 2 * HOUR) == {"lost_work": 0.5, "used": 0.5, "half_empty": 1.0}


def test_service_keeps_what_it_served_before_it_was_preempted(log: LogBuilder) -> None:
    log.events[0] = replace(log.events[0], fields={**log.events[0].fields, "target_kind": "service"})
    retried(log)
    assert paid(log, 2 * HOUR) == {"used": 1.0, "half_empty": 1.0}


@pytest.mark.parametrize(
    ("cause", "state", "account"),
    [
        (None, "succeeded", "used"),
        (None, "cancelled", "used"),  # by its user: what it did so far is not HCloud's to judge
        (None, None, "used"),
        ("exit_code", "failed", "lost_work"),
        ("evicted", "cancelled", "lost_work"),
        ("evicted", None, "lost_work"),  # it waits for its next attempt
        ("evicted", "succeeded", "used"),  # an optional node gave way
    ],
)
def test_outcome_decides_whether_work_is_lost(
    log: LogBuilder, cause: str | None, state: str | None, account: str
) -> None:
    log.end(1, 1, HOUR, cause=cause)
    log.terminate(1, HOUR)
    if state is not None:
        log.finish(1, 2 * HOUR, state)
    assert paid(log) == {account: 0.5, "half_empty": 0.5}


def test_running_attempt_is_used_and_a_rank_that_succeeded_is_lost_with_its_attempt(log: LogBuilder) -> None:
    log.start(1, 1, 0.0, rank=1)
    assert paid(log, HOUR) == {"used": 1.0}
    log.end(1, 1, HOUR, rank=1)
    log.terminate(1, HOUR)
    log.end(1, 1, HOUR, cause="instance_lost")
    assert paid(log) == {"lost_work": 1.0}


def test_many_attempts_of_unknown_outcome_are_charged_when_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending_accounts, "_PENDING_MOST", 4)
    log = LogBuilder()
    for number in range(20):
        log.submit(number)
        log.machine(number, launched_at=0.0, ready_at=0.0)
        log.start(number, number, 0.0, vcpus=2.0)
        log.end(number, number, HOUR, cause="preempted")
        log.terminate(number, HOUR)
    for number in range(20):
        log.finish(number, 2 * HOUR, "failed" if number % 2 else "succeeded")
    assert paid(log) == {"used": 10.0, "lost_work": 10.0}


# --------------------------------------------------------------------------------------------------------- beyond need
@pytest.fixture
def wide() -> LogBuilder:
    """A machine of $1/h with 8 vCPUs; its unit of job 1 holds 4 of them from 0 h on."""
    log = LogBuilder()
    log.submit(1)
    log.machine(1, launched_at=0.0, ready_at=0.0, vcpus=8.0)
    log.start(1, 1, 0.0, vcpus=4.0)
    return log


@pytest.mark.parametrize(
    ("peak_vcpus", "needed"),
    [(0.2, 1), (1.04, 1), (1.2, 2), (2.9, 3), (5.0, 4)],
)
def test_measured_peak_in_whole_vcpus_is_the_need(wide: LogBuilder, peak_vcpus: float, needed: int) -> None:
    wide.sample(1, 1, 0.5 * HOUR, cpu_s=0.1 * 0.5 * HOUR, memory_mib=100.0)
    wide.end(1, 1, HOUR, cpu_s=(0.1 * 0.5 + peak_vcpus * 0.5) * HOUR, memory_mib_max=128.0)
    found = spending(wide, HOUR)
    assert found.amount_usd(Account.USED) == pytest.approx(needed / 8)
    assert found.amount_usd(Account.BEYOND_NEED) == pytest.approx((4 - needed) / 8)
    assert found.unknown_need_usd == 0.0


def test_measured_memory_can_be_the_larger_need(wide: LogBuilder) -> None:
    wide.start(1, 1, 0.0, vcpus=4.0, memory_mib=2048.0, rank=1)
    wide.end(1, 1, HOUR, cpu_s=0.1 * HOUR, memory_mib_max=1024.0, rank=1)
    wide.end(1, 1, HOUR, cpu_s=4.0 * HOUR)
    assert paid(wide, HOUR) == {"used": 0.5 + 0.25, "beyond_need": 0.25}


def test_peak_of_the_whole_unit_counts_before_and_after_it_was_resized(wide: LogBuilder) -> None:
    wide._unit(EventKind.UNIT_RESIZED, 1, 1, HOUR, 1, 0, vcpus=8.0, memory_mib=512)
    wide.sample(1, 1, 2 * HOUR, cpu_s=2 * 6 * HOUR)
    wide.end(1, 1, 2 * HOUR, cpu_s=2 * 6 * HOUR)
    assert paid(wide, 2 * HOUR) == {"used": 0.5 + 0.75, "beyond_need": 0.25, "half_empty": 0.5}


def test_unknown_need_is_not_0_but_unknown(log: LogBuilder) -> None:
    table = accounts_table(spending(log, HOUR))
    rows = {row[0]: row for row in table.rows}
    assert rows["beyond_need"][1:3] == (None, None) and str(rows["beyond_need"][3]).endswith("; not known")
    assert rows["used"][1] == 0.5 and table.total is not None and table.total[1] == 1.0
    assert "jobs of unknown need held $0.5" in table.notes[-1]
    log.submit(2, at=HOUR)
    log.start(2, 1, HOUR)
    log.end(2, 1, 2 * HOUR, cpu_s=HOUR)
    rows = {row[0]: row for row in accounts_table(spending(log, 2 * HOUR)).rows}
    assert rows["beyond_need"][1] == 0.0 and str(rows["beyond_need"][3]).endswith("; need known for 33%")


def test_cpu_time_of_a_service_does_not_show_its_need(log: LogBuilder) -> None:
    log.events[0] = replace(log.events[0], fields={**log.events[0].fields, "target_kind": "service"})
    log.end(1, 1, HOUR, cpu_s=0.25 * HOUR)
    assert spending(log, HOUR).amount_usd(Account.BEYOND_NEED) is None


def test_stated_needs_replace_measurements(log: LogBuilder) -> None:
    log.end(1, 1, HOUR, cpu_s=0.0)
    assert paid(log, HOUR, needs_vcpus={"job-1": 0.75}) == {"used": 0.375, "beyond_need": 0.125, "half_empty": 0.5}
    assert paid(log, HOUR, needs_vcpus={"job-1": 4.0}) == {"used": 0.5, "half_empty": 0.5}
    assert spending(log, HOUR, needs_vcpus={}).amount_usd(Account.BEYOND_NEED) == 0.0


def test_what_is_lost_is_not_beyond_need_as_well(wide: LogBuilder) -> None:
    wide.end(1, 1, HOUR, cpu_s=0.0, cause="exit_code")
    wide.finish(1, HOUR, "failed")
    assert paid(wide, HOUR) == {"lost_work": 0.5, "half_empty": 0.5}


# ----------------------------------------------------------------------------------------------------------- the report
def test_utilisation_report_shows_the_accounts_below_or_alone(log: LogBuilder) -> None:
    whole = build_report("utilisation", iter(log.events), 2 * HOUR, since=HOUR)
    (accounts,) = whole.further
    alone = build_report("utilisation", iter(log.events), 2 * HOUR, since=HOUR, by="account")
    assert alone.title == "Where the money went, 1970-01-01 01:00 to 1970-01-01 02:00 UTC"
    assert (alone.rows, alone.total) == (accounts.rows, accounts.total)
    assert ReportTable.from_json(whole.to_json()) == whole
    assert alone.to_csv().splitlines()[0] == "account,cost_usd,share_pct,paid_for"
    with pytest.raises(BadInput, match="pool, market, day or account, not by 'acount'; did you mean account"):
        build_report("utilisation", iter(log.events), HOUR, by="acount")
    with pytest.raises(BadInput, match="pool, market or day, not by 'account'"):
        build_report("cost", iter(log.events), HOUR, by="account")


def test_period_without_cost_has_no_accounts() -> None:
    assert build_report("utilisation", iter([]), HOUR, by="account").rows == ()
    assert build_report("utilisation", iter([]), HOUR).further == ()


def test_machines_launched_before_the_start_of_the_log_are_named(log: LogBuilder) -> None:
    log.launch(2, at=0.0)
    (accounts,) = build_report("utilisation", iter(log.events), HOUR).further
    assert accounts.notes[-1] == "1 machine left out: launched before the start of the log"


def test_policies_are_compared_account_by_account() -> None:
    names = (*columns("policy", "cost_usd"), *spending_accounts.ACCOUNT_COLUMNS)
    usd = dict.fromkeys(Account, 0.0) | {Account.USED: 3.0, Account.IDLE_KEPT: 1.0}
    values = spending_accounts.account_values(Spending(usd=usd))
    rows = (("a", 4.0, *values), ("stalled", *[None] * (len(names) - 1)))
    table = with_accounts_below(ReportTable(title="t", columns=names, rows=rows))
    assert [column.name for column in table.columns] == ["policy", "cost_usd"] and len(table.rows) == 2
    (accounts,) = table.further
    assert [column.label for column in accounts.columns] == ["", "a", "share"]
    assert accounts.rows[:2] == (("used", 3.0, 75.0), ("beyond_need", "not known", None))
    assert accounts.total == ("total", 4.0, None)
    assert not with_accounts_below(replace(table, rows=table.rows[1:], further=())).further


# ------------------------------------------------------------------------------------------------- the sum of all parts
def enriched(drawn: list[Any], seed: int) -> tuple[LogBuilder, float]:
    """A random log with other markets, kinds of jobs, outcomes and measurements, and its whole cost."""
    log, total = history(drawn)
    chances = random.Random(seed)
    events: list[Event] = []
    for event in log.events:
        fields = dict(event.fields)
        if event.kind is EventKind.INSTANCE_REQUESTED:
            fields["market"] = chances.choice(["on_demand", "spot", "reserved"])
        elif event.kind is EventKind.JOB_SUBMITTED:
            fields["target_kind"] = chances.choice(["batch", "service", "best_effort"])
            fields["tags"] = {PROFILE_TAG: "job-0"} if chances.random() < 0.2 else {}
        elif event.kind is EventKind.UNIT_ENDED:
            fields["cause"] = chances.choice([None, None, "preempted", "exit_code"])
            fields |= {"cpu_s": chances.uniform(0.0, 2.0 * HOUR)} if chances.random() < 0.7 else {}
        elif event.kind is EventKind.INSTANCE_TERMINATED and chances.random() < 0.7:
            asked_at = event.at - chances.uniform(0.0, HOUR)
            about = {"from": "ready", "to": TERMINATING}
            events.append(replace(event, at=asked_at, kind=EventKind.INSTANCE_STATE, fields=about))
        events.append(replace(event, fields=fields))
        if event.kind is EventKind.UNIT_ENDED and (state := chances.choice(["succeeded", "failed", "cancelled", None])):
            later = min(NOW, event.at + chances.choice([0.0, HOUR]))
            events.append(replace(event, at=later, kind=EventKind.JOB_FINISHED, fields={"state": state}))
    log.events = sorted(events, key=lambda event: event.at)
    if chances.random() < 0.5:
        about = {"provider": "mock", "commitment_kind": "i", "commitment": "c", "usd_per_h": 2.0, "count": 3.0}
        log.add(EventKind.COMMITMENT, NOW - 2 * HOUR, unused=1.5, **about)
        total += 2 * 1.5 * 2.0
    return log, total


def check_accounts_sum_to_the_cost(**limits: Any) -> None:
    """Check that the accounts of a random log are its whole cost, in a whole period and in two parts of it."""

    @settings(**limits)
    @given(machines, st.integers(0, 2**32), st.integers(0, 40).map(lambda hours: hours * HOUR))
    def holds(drawn: list[Any], seed: int, cut: float) -> None:
        log, total = enriched(drawn, seed)
        found = spending(log)
        assert found.total_usd == pytest.approx(total, rel=1e-9)
        assert min(found.usd.values()) >= 0.0
        by_market = build_report("cost", iter(log.events), NOW, by="market")
        place = [column.name for column in by_market.columns].index("jobs_usd")
        held = (Account.USED, Account.BEYOND_NEED, Account.LOST_WORK)
        profiling = sum(
            float(row[2] or 0.0)
            for row in build_report("cost", iter(log.events), NOW, by=f"tag:{PROFILE_TAG}").rows
            if row[0] == "job-0"
        )
        jobs_usd = sum(float(row[place] or 0.0) for row in by_market.rows)
        assert sum(found.usd[each] for each in held) == pytest.approx(jobs_usd - profiling, abs=1e-9)
        before = charged(build_report("cost", iter(log.events), NOW, until=cut))
        assert spending(log, cut).total_usd == pytest.approx(before, rel=1e-9)

    holds()


def test_accounts_sum_to_the_whole_cost() -> None:
    check_accounts_sum_to_the_cost(max_examples=60)


def _charge_twice(charge: Callable[..., None]) -> Callable[..., None]:
    def charged_twice(self: SpendingReader, held: Any, *, lost: bool) -> None:
        charge(self, held, lost=lost)
        if lost:
            charge(self, held, lost=False)

    return charged_twice


FAULTS: dict[str, tuple[object, str, object]] = {
    "shares are not scaled": (
        spending_accounts, "split", lambda shares: (tuple(shares), max(0.0, 1.0 - sum(shares)))
    ),
    "time before the request to terminate is forgotten": (
        spending_accounts, "pairwise", lambda moments: list(pairwise(moments))[-1:]
    ),
    "lost work counts as used, too": (SpendingReader, "_charge", _charge_twice(SpendingReader._charge)),
    "attempts of late outcome are forgotten": (SpendingReader, "_resolve", lambda self: None),
    "unused commitments are forgotten": (SpendingReader, "add_unused", lambda self, stretch: None),
    "needs are above what is held": (SpendingReader, "_needed_part", lambda self, machine, holding: 1.5),
}  # fmt: skip


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_seeded_faults_are_detected(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    with pytest.raises(AssertionError):
        check_accounts_sum_to_the_cost(max_examples=200, phases=[Phase.generate], print_blob=False)


def test_early_settlement_does_not_change_the_accounts() -> None:
    log = busy_for_long(2000)
    held = 2000 * 30.0 / 2 / HOUR
    free = {"half_empty": held, "idle_kept": 2001 * 60.0 / HOUR - 2 * held}
    assert paid(log, 2001 * 60.0) == {"used": held, **free}
