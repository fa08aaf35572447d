"""What other placements would have meant, by what is known once jobs have ended."""

import pytest

from hcloud.api.operations import ReportName
from hcloud.core.errors import BadInput
from hcloud.core.model import EventKind
from hcloud.report import REPORT_NAMES, ReportTable, build_report
from tests.report.story import Story

DAY = 86_400.0


def placed(story: Story, job: int, at: float, *candidates: str, attempt: int = 1, ranks: int = 1) -> None:
    held = [f"inst-1:{rank}:1.0:512" for rank in range(ranks)]
    story.add(
        EventKind.ATTEMPT_PLACED,
        at,
        job_id=f"job-{job}",
        user="ann",
        attempt=f"job-{job}.{attempt}",
        allocations=held,
        candidates=list(candidates),
    )


def measured(story: Story, job: int, at: float, column: str, value: float, application: str = "app") -> None:
    story.add(
        EventKind.PREDICTION,
        at,
        job_id=f"job-{job}",
        user="ann",
        application=application,
        question="run",
        instance_type=column,
        nodes=1,
        vcpus=1.0,
        predicted=1.0,
        low=1.0,
        high=1.0,
        measured=value,
    )


@pytest.fixture
def story() -> Story:
    """job-1 ran an hour on a small machine, half as fast as expected, past its deadline; job-2, of the same program,
    on a large one, where it is five times as fast; of job-3 nothing is known."""
    told = Story()
    for job in (1, 2, 3):
        told.submit(job, 0.0, **({"deadline_at": 3000.0} if job == 1 else {}))
    placed(
        told,
        1,
        0.0,
        "mock/small|0.1|1.0|0.9|1.1|",
        "mock/large|0.4|3.0|2.0|4.0|no room",
        "mock/new|0.05|0.5|0.4|0.6|still booting, 30 s",
    )
    placed(told, 2, 0.0, "mock/large|0.4|3.0|2.0|4.0|", "mock/small|0.1|1.0|0.9|1.1|ranked after")
    placed(told, 3, 0.0, "mock/small|0.1||||")
    for job in (1, 2, 3):
        told.start(job, 1, 0.0)
    measured(told, 2, 720.0, "mock/large", 2.5)
    told.finish(2, 720.0, run_s=720.0)
    measured(told, 1, 3600.0, "mock/small", 0.5)
    told.finish(1, 3600.0, run_s=3600.0)
    told.finish(3, DAY + 10.0, run_s=10.0)
    told.submit(4, DAY, tags={"hcloud.profile": "job-3"})
    placed(told, 4, DAY, "mock/small|0.1||||")
    told.finish(4, DAY + 10.0, run_s=10.0)
    return told


def report(story: Story, by: str | None = None, **span: float) -> ReportTable:
    return build_report("decisions", iter(story.events), 3 * DAY, by=by, **span)


def test_regret_is_told_by_the_now_known_numbers(story: Story) -> None:
    first, second = (dict(zip((c.name for c in report(story).columns), row, strict=True)) for row in report(story).rows)
    assert (first["taken"], first["best"], first["why_not"]) == ("mock/small", "mock/large", "no room")
    assert first["best_run_s"] == pytest.approx(3600 * 0.5 / 2.5)  # as job-2 was measured there, not as expected
    assert first["regret_s"] == pytest.approx(3600 - 720)
    assert first["regret_usd"] == pytest.approx(0.1 - 0.4 * 720 / 3600)
    assert first["target"] == "missed; the best keeps it"
    assert (second["best"], second["regret_usd"], second["target"]) == ("mock/large", 0.0, "")


def test_what_was_never_measured_is_as_far_off_as_the_expectation_was_here(story: Story) -> None:
    story.events = [e for e in story.events if e.job_id != "job-2"]
    row = dict(zip((c.name for c in report(story).columns), report(story).rows[0], strict=True))
    assert row["best_run_s"] == pytest.approx(3600 * 0.5 / 1.5)


def test_jobs_are_added_up_and_those_nothing_is_known_of_are_named(story: Story) -> None:
    table = report(story, "constraint")
    assert [row[0] for row in table.rows] == ["(best taken)", "no room"]
    assert table.total is not None
    assert table.total[:4] == ("total", 2, 1, 1)
    assert table.total[5] == pytest.approx(0.02)
    assert "1 jobs are left out" in " | ".join(table.notes)
    assert [row[0] for row in report(story, "type").rows] == ["mock/large", "mock/small"]
    assert [row[0] for row in report(story, "user").rows] == ["ann"]
    assert [row[0] for row in report(story, "day").rows] == ["1970-01-01"]


def test_only_the_last_attempt_and_jobs_of_the_time_asked_for_count(story: Story) -> None:
    assert [row[0] for row in report(story, since=1000.0).rows] == ["job-1"]
    again = Story()
    again.submit(1)
    placed(again, 1, 0.0, "mock/small|0.1|1.0|0.9|1.1|", "mock/large|0.4|9.0|8.0|10|no room")
    placed(again, 1, 50.0, "mock/large|0.4|9.0|8.0|10|", attempt=2)
    again.start(1, 1, 50.0, attempt=2)
    again.finish(1, 60.0, run_s=10.0)
    [row] = report(again).rows
    assert (row[3], row[6]) == ("mock/large", "mock/large")


def test_a_rank_that_was_placed_again_is_paid_for_once() -> None:
    told = Story()
    told.submit(1, 0.0)
    placed(told, 1, 0.0, "mock/small|0.1|1.0|0.9|1.1|", ranks=2)
    placed(told, 1, 60.0, "mock/small|0.1|1.0|0.9|1.1|")  # rank 0 anew, elsewhere
    told.finish(1, 3600.0, run_s=3600.0)
    found = report(told)
    cost = [column.name for column in found.columns].index("cost_usd")
    assert [row[cost] for row in found.rows] == [pytest.approx(0.2)]


def test_other_groupings_are_refused() -> None:
    with pytest.raises(BadInput, match="job, user, type, constraint or day, not by 'pool'"):
        report(Story(), "pool")
    assert report(Story()).total is None
    table = report(Story())
    assert ReportTable.from_json(table.to_json()) == table
    assert table.to_csv().startswith("job,name,user,taken,run_s")


def test_every_report_can_be_had_over_the_api() -> None:
    assert tuple(ReportName) == REPORT_NAMES


def test_a_type_in_another_market_is_another_choice_measured_on_the_same_machines() -> None:
    told = Story()
    told.submit(1, 0.0)
    other = "mock/small spot|0.03|1.0|0.9|1.1|still booting, 30 s"
    placed(told, 1, 0.0, "mock/small on_demand|0.1|1.0|0.9|1.1|", other)
    told.start(1, 1, 0.0)
    measured(told, 1, 3600.0, "mock/small", 0.5)
    told.finish(1, 3600.0, run_s=3600.0)
    row = dict(zip((c.name for c in report(told).columns), report(told).rows[0], strict=True))
    assert (row["taken"], row["best"]) == ("mock/small on_demand", "mock/small spot")
    assert (row["best_run_s"], row["regret_usd"]) == (3600.0, pytest.approx(0.07))
    assert [each[0] for each in report(told, "type").rows] == ["mock/small"]
