"""Properties of the cost report on random logs: every cent is charged exactly once, in every grouping."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hcloud.core import pricing
from hcloud.core.model import Event, EventKind
from hcloud.report import MoneyReport, build_money_reports, build_report, fleet
from hcloud.report.cost import CostTable
from hcloud.report.fleet import Stretch
from hcloud.report.stretches import read_stretches
from hcloud.report.table import ReportTable
from hcloud.spend_ledger import SpendLedger
from tests.report.log_builder import HOUR, LogBuilder

NOW = 40 * HOUR
moments = st.integers(0, 30 * 3600).map(float)
prices = st.integers(1, 1000).map(lambda cents: cents / 100)
units = st.lists(
    st.tuples(moments, moments, st.integers(1, 20).map(lambda n: n / 10), st.integers(1, 4096), st.booleans()),
    max_size=8,
)
machines = st.lists(
    st.tuples(moments, moments, st.none() | moments, prices, st.lists(st.tuples(moments, prices), max_size=3), units),
    min_size=1,
    max_size=3,
)


def history(drawn: list[Any]) -> tuple[LogBuilder, float]:
    """A log in the order of time, and the total cost of its machines, computed machine by machine."""
    log, total, job = LogBuilder(), 0.0, 0
    for number, (launched_at, boot_s, life_s, price, changes, held) in enumerate(drawn, 1):
        ended_at = None if life_s is None else launched_at + life_s
        log.machine(number, launched_at, min(launched_at + boot_s, ended_at or NOW), price)
        steps = [(launched_at, price)]
        for at, changed in sorted(changes, key=lambda change: change[0]):
            if launched_at <= at < (ended_at or NOW):
                log.price(number, at, changed)
                steps.append((at, changed))
        for start, length_s, vcpus, memory_mib, other in held:
            started_at = launched_at + start
            if started_at < (ended_at or NOW):
                job += 1
                log.submit(job, at=0.0, user="bob" if other else "ann")
                log.start(job, number, started_at, vcpus, memory_mib)
                if started_at + length_s < NOW:
                    log.end(job, number, min(started_at + length_s, ended_at or NOW))
        if ended_at is not None:
            log.terminate(number, ended_at)
        until = NOW if ended_at is None else min(NOW, max(ended_at, launched_at + 60.0))
        ends = [at for at, _ in steps[1:]] + [until]
        total += sum(p * max(0.0, end - at) / 3600 for (at, p), end in zip(steps, ends, strict=True))
    order = {EventKind.JOB_SUBMITTED: 0, EventKind.INSTANCE_REQUESTED: 1, EventKind.INSTANCE_LAUNCHED: 2}
    late = {EventKind.UNIT_ENDED: 8, EventKind.INSTANCE_TERMINATED: 9}
    log.events.sort(key=lambda event: (event.at, (order | late).get(event.kind, 5)))
    log.events = [replace(event, seq=seq) for seq, event in enumerate(log.events, 1) if event.at <= NOW]
    return log, total


def charged(table: ReportTable) -> float:
    """The sum of a report's rows in USD."""
    place = [column.name for column in table.columns].index("cost_usd")
    return sum(float(row[place] or 0.0) for row in table.rows)


def check_all_is_charged_once(build: Callable[..., ReportTable], **limits: Any) -> None:
    """Check the property for a function that builds the cost report."""

    @settings(**limits)
    @given(machines, moments)
    def holds(drawn: list[Any], cut: float) -> None:
        log, total = history(drawn)
        for by in ("job", "user", "tag:x", "pool", "market", "day"):
            table = build("cost", iter(log.events), NOW, by=by)
            assert charged(table) == pytest.approx(total)
            assert table.total is not None
            assert table.total[-2] == pytest.approx(total)
            before = build("cost", iter(log.events), NOW, by=by, until=cut)
            after = build("cost", iter(log.events), NOW, by=by, since=cut)
            # A machine that ended before the cut may be billed beyond it (its minimum); all else adds up.
            assert charged(before) + charged(after) == pytest.approx(total, abs=60 * 10.0 * 3 / 3600)

    holds()


def test_every_cent_is_charged_once_in_every_grouping() -> None:
    check_all_is_charged_once(build_report, max_examples=60)


@pytest.mark.parametrize("fault", ["idle time is forgotten", "the last stretch is forgotten", "shares are not scaled"])
def test_seeded_faults_are_detected(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    add, stretches = CostTable.add, fleet._stretches
    if fault == "idle time is forgotten":
        monkeypatch.setattr(CostTable, "add", lambda self, s: add(self, s) if s.holdings or s.booting else None)
    elif fault == "the last stretch is forgotten":
        monkeypatch.setattr(fleet, "_stretches", lambda *given: list[Stretch](stretches(*given))[:-1])
    else:
        monkeypatch.setattr("hcloud.report.cost.split", lambda shares: (tuple(shares), max(0.0, 1.0 - sum(shares))))
    with pytest.raises(AssertionError):
        check_all_is_charged_once(build_report, max_examples=200, phases=[Phase.generate], print_blob=False)


def test_one_pass_makes_the_reports_that_one_pass_each_makes() -> None:
    settings(max_examples=20)(given(machines, moments)(check_one_pass))()


def test_a_pass_that_only_one_report_follows_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hcloud.report.read_stretches", lambda log, sums, *period: read_stretches(log, sums[:1], *period)
    )
    some = settings(max_examples=20, phases=[Phase.generate], print_blob=False)
    with pytest.raises(AssertionError):
        some(given(machines, moments)(check_one_pass))()


def check_one_pass(drawn: list[Any], since: float) -> None:
    """Check that reports made together are those that are made one by one."""
    log, _ = history(drawn)
    about = {"provider": "aws", "commitment_kind": "type", "commitment": "r-a/small", "count": 2, "usd_per_h": 0.5}
    log.add(EventKind.COMMITMENT, 0.0, unused=2.0, **about)
    asked = [MoneyReport(name, by) for name in ("cost", "savings", "commitments") for by in ("user", "market", "day")]
    alone = [build_report(each.name, iter(log.events), NOW, by=each.by, since=since) for each in asked]
    assert build_money_reports(asked, iter(log.events), NOW, since=since) == alone
    assert all("unused" not in row[0] for row in alone[3].rows), "savings leave out what no machine used"


@given(machines)
@settings(max_examples=40)
def test_report_agrees_with_the_spend_ledger(drawn: list[Any]) -> None:
    log, _ = history(drawn)
    ledger = SpendLedger()
    ledger.follow(log.events)
    month = ledger.spend(NOW).month_usd
    assert charged(build_report("cost", iter(log.events), NOW)) == pytest.approx(month, abs=60 * 10.0 * 3 / 3600)


def busy_for_long(units: int) -> LogBuilder:
    """A log of one machine that runs one short unit after the other."""
    log = LogBuilder()
    log.machine(1, launched_at=0.0, ready_at=0.0)
    for number in range(1, units + 1):
        log.submit(number, at=number * 60.0)
        log.start(number, 1, number * 60.0)
        log.end(number, 1, number * 60.0 + 30.0)
        log.finish(number, number * 60.0 + 30.0)
    return log


def test_memory_does_not_grow_with_the_log() -> None:
    log = busy_for_long(5000)
    followed, most = fleet.FleetHistory(0.0, 1e9), 0
    seconds = 0.0
    for event in log.events:
        seconds += sum(stretch.seconds for stretch in followed.take(event))
        machine = followed.machines["inst-1"]
        most = max(most, len(machine.holdings) + len(followed.jobs) + len(followed.units))
    seconds += sum(stretch.seconds for stretch in followed.finish())
    assert most < 400
    assert seconds == 1e9


def test_settling_before_the_end_does_not_change_the_result() -> None:
    log = busy_for_long(2000)
    table = build_report("cost", iter(log.events), 2001 * 60.0)
    assert pricing.cost_usd(1.0, 2000 * 30.0 / 2) == pytest.approx(float(table.rows[0][2] or 0))
    assert charged(table) == pytest.approx(pricing.cost_usd(1.0, 2001 * 60.0))


def test_log_of_a_single_event_makes_a_report() -> None:
    log, _ = history([(0.0, 10.0, 600.0, 1.0, [(5.0, 2.0)], [(20.0, 30.0, 1.0, 512, False)])])
    bare = [Event(seq=1, at=1.0, kind=kind) for kind in EventKind]
    for events in ([event] for event in [*log.events, *bare]):
        for name in ("cost", "performance", "savings", "utilisation"):
            for by in ("job", "user", "tag:x", "pool", "market", "day"):
                build_report(name, iter(events), NOW, by=by)
