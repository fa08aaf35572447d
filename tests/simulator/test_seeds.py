"""Policies over several seeds: means, limits, and paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hcloud.report.table import ReportTable, Value
from hcloud.simulator.bound import Bound
from hcloud.simulator.outcome import FailureReason, outcome_of
from hcloud.simulator.seeds import Repeated, paired, repeated_table, verdict

NOTHING = outcome_of("nobody", list)


def policy(name: str, costs_usd: Sequence[float], met: Sequence[float | None] = ()) -> Repeated:
    """Return a policy with these costs and percentages of targets met by seed."""
    targets = met or [100.0] * len(costs_usd)
    return Repeated(
        name=name,
        outcomes=tuple(
            replace(NOTHING, name=name, metered_usd=usd, jobs=4, succeeded=4, target_met_pct=part)
            for usd, part in zip(costs_usd, targets, strict=True)
        ),
    )


def row_of(table: ReportTable, name: str) -> dict[str, Value]:
    """Return a policy's row by column."""
    return next(row for row in table.to_json()["rows"] if row["policy"] == name)


def test_means_have_their_limits_beside_them() -> None:
    table = repeated_table([policy("a", [1.0, 2.0, 3.0])], [0, 1, 2])
    row = row_of(table, "a")
    assert row["cost_usd"] == pytest.approx(2.0)
    assert row["cost_limit_usd"] == pytest.approx(4.303 * 1.0 / 3**0.5, rel=1e-3)  # t of two degrees of freedom
    assert (row["cost_pct"], row["cost_limit_pct"], row["jobs"]) == (100.0, 0.0, 12)


def test_seeds_are_compared_one_by_one_so_that_an_expensive_hour_counts_for_neither() -> None:
    table = repeated_table([policy("a", [1.0, 10.0, 100.0]), policy("b", [0.9, 9.0, 90.0])], [0, 1, 2])
    row = row_of(table, "b")
    assert row["cost_pct"] == pytest.approx(90.0) and row["cost_limit_pct"] == pytest.approx(0.0, abs=1e-9)
    assert row["cost_limit_usd"] > 100.0  # type: ignore[operator]
    assert "b compared with a: cost 10.0 ±" in " ".join(table.notes) and "% lower" in " ".join(table.notes)


@pytest.mark.parametrize(
    ("costs", "met", "words"),
    [
        (
            [1.1, 1.2, 1.3],
            [90.0, 91.0, 92.0],
            "cost 20.0 ±24.8 % higher (not significant); targets met 9.0 ±2.5 points lower",
        ),
        ([1.2, 1.2, 1.2], [100.0] * 3, "cost 20.0 ±0.0 % higher; targets met unchanged"),
        ([0.9, 1.0, 1.1], [None, 100.0, 100.0], "not significant"),
    ],
)
def test_insignificant_difference_is_marked(costs: Sequence[float], met: Sequence[float | None], words: str) -> None:
    said = verdict(policy("a", [1.0] * 3), policy("b", costs, met))
    assert words in said
    assert ("targets" in said) == (None not in met)


def test_zero_cost_has_no_percentages() -> None:
    assert verdict(policy("a", [0.0, 1.0]), policy("b", [1.0, 1.0])) == "b compared with a: targets met unchanged"


def test_a_number_that_one_seed_lacks_is_not_there_and_one_that_all_lack_has_no_column() -> None:
    promised, partly = policy("a", [1.0, 1.0]), policy("b", [1.0, 1.0], [None, 100.0])
    row = row_of(repeated_table([promised, partly], [0, 1]), "b")
    assert row["target_met_pct"] is None and row["target_met_limit_pct"] is None
    nobody = repeated_table([policy("c", [1.0, 1.0], [None, None])], [0, 1])
    assert "target_met_pct" not in {column.name for column in nobody.columns}


def test_policy_with_undone_jobs_has_no_times_bound() -> None:
    bound = Bound(usd=0.5, committed_usd=0.0, deadlines_kept=False, slots=1)
    done = replace(policy("a", [1.0, 2.0]), bounds=(bound, bound))
    undone = replace(done, name="b", outcomes=(replace(done.outcomes[0], succeeded=3), done.outcomes[1]))
    table = repeated_table([done, undone], [0, 1])
    assert row_of(table, "a")["times_bound"] == pytest.approx(3.0)
    assert row_of(table, "b")["times_bound"] is None


def test_people_read_each_number_with_its_limits() -> None:
    def shown(value: Value, limit: Value, unit: str) -> str:
        return f"{value:.1f} ±{limit:.1f}{unit}"

    table = paired(repeated_table([policy("a", [1.0, 2.0])], [0, 1]), shown)
    names = [column.name for column in table.columns]
    assert not any("limit" in name for name in names)
    assert table.rows[0][names.index("cost_usd")] == "1.5 ±6.4usd"
    assert table.rows[0][names.index("jobs")] == 8


def test_failures_and_bugs_are_noted_with_their_first_seed() -> None:
    bad = replace(NOTHING, jobs=3, failed_by=(FailureReason(code="impossible", text="too large", jobs=2),))
    worse = replace(bad, planning_failed=("job-1 (KeyError)",))
    notes = repeated_table([Repeated(name="ours", outcomes=(NOTHING, bad, worse), bounds=())], range(5, 8)).notes
    assert "seed 6, nobody: 2 of 3 jobs failed: 2 impossible (too large) (with 2 of 3 seeds)" in notes
    assert any(note.startswith("seed 7, nobody: planning failed") and "with" not in note[7:] for note in notes)
