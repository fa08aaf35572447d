"""The commitments report: use of reserved machines, and whether they paid off."""

import pytest

from hcloud.report import ReportTable, build_report
from tests.report.log_builder import HOUR, LogBuilder


@pytest.fixture
def log() -> LogBuilder:
    """A reserved machine of two vCPUs, half of it held for one of two hours, and an on-demand machine."""
    log = LogBuilder()
    log.machine(1, 0.0, 0.0, price=0.6, market="reserved", on_demand_usd_per_h=1.0)
    log.machine(2, 0.0, 0.0, price=1.0)
    log.submit(1)
    log.start(1, 1, 0.0, vcpus=1.0, memory_mib=512)
    log.end(1, 1, HOUR)
    log.terminate(1, 2 * HOUR)
    log.terminate(2, 2 * HOUR)
    return log


def by(log: LogBuilder, grouping: str) -> ReportTable:
    return build_report("commitments", iter(log.events), 3 * HOUR, by=grouping)


def test_use_of_a_reserved_machine_with_its_break_even(log: LogBuilder) -> None:
    table = by(log, "pool")
    row = dict(zip([column.name for column in table.columns], table.rows[0], strict=True))
    assert row["pool"] == "mock/r-a/small"
    assert row["machine_h"] == pytest.approx(2.0)
    assert row["held_pct"] == pytest.approx(25.0)
    assert row["break_even_pct"] == pytest.approx(60.0)
    assert row["cost_usd"] == pytest.approx(1.2)
    assert row["unused_usd"] == pytest.approx(0.9)
    assert row["saved_usd"] == pytest.approx(0.5 - 1.2)
    assert [column.label for column in table.columns if column.label] == ["paid off"]  # not what savings calls saved
    assert type(table).from_json(table.to_json()) == table
    assert len(table.rows) == 1


@pytest.mark.parametrize("grouping", ["pool", "market", "day", "user", "job", "tag:team"])
def test_total_is_the_same_in_every_grouping(log: LogBuilder, grouping: str) -> None:
    table, whole = by(log, grouping), by(log, "pool")
    assert table.total is not None and whole.total is not None
    assert table.total[-6:] == pytest.approx(whole.total[-6:])
    costs = [row[-3] for row in table.rows]
    assert sum(each for each in costs if isinstance(each, float)) == pytest.approx(1.2)


def test_old_prices_of_reserved_machines_are_warned_of(log: LogBuilder) -> None:
    for days, is_old in ((29, False), (31, True)):
        note = build_report("commitments", iter(log.events), days * 86_400.0).notes[-1]
        assert note.startswith("prices of reserved machines: read between 1970-01-01 00:00 and ")
        assert note.endswith(f"the newest is {days} days old" if not is_old else "`hcloud catalog refresh`)")


def test_without_reserved_machines_the_report_is_empty() -> None:
    assert by(LogBuilder(), "pool").rows == ()
