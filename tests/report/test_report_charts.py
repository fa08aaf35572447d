"""Reports as pictures: bars are as long as the numbers, targets stand beside the cost, long tables are cut."""

import pytest

from hcloud.core.errors import BadInput
from hcloud.report import build_report
from hcloud.report.charts import ROWS_MOST, report_figure
from hcloud.report.table import ReportTable, Row, columns
from tests.report.log_builder import HOUR, LogBuilder


@pytest.fixture
def log() -> LogBuilder:
    """Two users' jobs on one machine; one had a deadline and met it."""
    log = LogBuilder()
    log.submit(1, user="ann", target_kind="batch", deadline_at=3 * HOUR)
    log.submit(2, user="bob")
    log.machine(1, 0.0, 0.0)
    for job, at in ((1, 0.0), (2, 1.0)):
        log.start(job, 1, at * HOUR)
        log.end(job, 1, (at + 1) * HOUR)
        log.finish(job, (at + 1) * HOUR, target_met=True if job == 1 else None)
    log.terminate(1, 2 * HOUR)
    return log


def test_cost_and_targets_are_in_one_picture(log: LogBuilder) -> None:
    cost, performance = (build_report(name, iter(log.events), 4 * HOUR) for name in ("cost", "performance"))
    money, targets = report_figure("cost", cost, performance).axes
    names = [each.get_text() for each in money.get_yticklabels()]
    assert names[:2] == [row[0] for row in cost.rows[:2]]
    assert [bar.get_width() for bar in money.patches] == [row[2] for row in cost.rows]
    assert (money.get_xlabel(), targets.get_xlabel()) == ("cost, USD", "targets met, %")
    [met] = [line for line in targets.lines if line.get_marker() == "o"]
    assert list(zip(met.get_ydata(), met.get_xdata(), strict=True)) == [(names.index("ann"), 100.0)]


@pytest.mark.parametrize("by", ["day", "market"])
def test_idle_and_boot_cost_stand_on_the_cost_of_jobs(log: LogBuilder, by: str) -> None:
    [axes] = report_figure("cost", build_report("cost", iter(log.events), 4 * HOUR, by=by)).axes
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches[:2]] == [(0.0, 1.0), (1.0, 1.0)]
    assert [each.get_text() for each in axes.get_legend().get_texts()][:2] == ["held by jobs", "idle"]


@pytest.mark.parametrize("name", ["performance", "savings", "utilisation", "right-sizing"])
def test_other_reports_are_drawn_with_their_units(log: LogBuilder, name: str) -> None:
    figure = report_figure(name, build_report(name, iter(log.events), 4 * HOUR))
    assert all(axes.get_xlabel() for axes in figure.axes)


def test_charges_are_drawn_by_day_and_add_up_to_the_cost(log: LogBuilder) -> None:
    charges, cost = (build_report(name, iter(log.events), 4 * HOUR) for name in ("focus", "cost"))
    [axes] = report_figure("focus", charges).axes
    assert [each.get_text() for each in axes.get_yticklabels()] == ["1970-01-01"]
    total = cost.total
    assert total is not None
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(total[2])
    assert axes.get_xlabel() == "cost by pricing category, USD"


def test_predicted_run_times_stand_beside_what_their_limits_say() -> None:
    names = columns("history", "runs", "within_factor_2_pct", "within_80_pct", "within_90_pct", "log_pinball")
    table = ReportTable(title="Run times", columns=names, rows=(("2 to 4", 9, 88.9, 77.8, None, 0.1),))
    within_80, within_factor = report_figure("run-times", table).axes  # nothing is known of the 90 % limit
    labels = [each.get_xlabel() for each in (within_80, within_factor)]
    assert labels == ["runs within the 80 % limit, %", "runs within a factor of 2, %"]
    assert [list(line.get_xdata()) for line in within_80.lines] == [[77.8], [80.0, 80.0]]


def test_a_cost_without_targets_is_drawn_alone(log: LogBuilder) -> None:
    events = [each for each in log.events if each.job_id != "job-1"]
    cost, performance = (build_report(name, iter(events), 4 * HOUR) for name in ("cost", "performance"))
    assert [each.get_xlabel() for each in report_figure("cost", cost, performance).axes] == ["cost, USD"]


def test_long_tables_are_cut_and_say_so_and_of_days_the_last_are_drawn() -> None:
    def table(first: str) -> ReportTable:
        rows: tuple[Row, ...] = tuple((f"{first}-{at}", float(at)) for at in range(ROWS_MOST + 10))
        return ReportTable(title="Cost", columns=columns(first, "cost_usd"), rows=rows)

    for first, names in (("user", ("user-0", "user-39")), ("day", ("day-10", "day-49"))):
        figure = report_figure("cost", table(first))
        shown = [each.get_text() for each in figure.axes[0].get_yticklabels()]
        assert (shown[0], shown[-1], len(shown)) == (*names, ROWS_MOST)
        assert "(40 of 50 rows)" in figure.subfigs[0].get_suptitle()


def test_a_report_without_rows_is_refused() -> None:
    with pytest.raises(BadInput, match="there is nothing to draw"):
        report_figure("cost", build_report("cost", iter(()), HOUR))
