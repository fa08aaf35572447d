"""Tables and charts of simulations, from outcomes with distinct numbers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hcloud.cli.compare import ComparisonOptions, compare
from hcloud.cli.seeds import Seeds
from hcloud.core.errors import BadInput, HCloudError
from hcloud.plots import label, require_matplotlib, to_svg, write
from hcloud.report.spending_accounts import Account, Spending
from hcloud.simulator.charts import (
    allocation_figure,
    cost_figure,
    fullness_figure,
    means_figure,
    performance_figure,
    waits_figure,
)
from hcloud.simulator.outcome import FailureReason, Series, SimulationResult, WaitReason, comparison
from hcloud.simulator.performance import JobPerformance
from hcloud.simulator.seeds import Mean
from hcloud.simulator.utilisation import COLUMNS, ROWS, Hold, MachineLifetime, utilisation_of
from lab.papers.study import numbers_of

SEEN = SimulationResult(
    name="seen",
    span_s=7200.0,
    jobs=11,
    succeeded=9,
    metered_usd=3.0,
    committed_usd=1.0,
    target_met_pct=81.0,
    batch_met_pct=82.0,
    service_met_pct=83.0,
    wait_s=(0.0, 10.0, 100.0),
    launches=8,
    used_once=2,
    misbehaved=1,
    up_vcpu_h=40.0,
    held_vcpu_h=30.0,
    committed_vcpu_h=20.0,
    committed_held_vcpu_h=5.0,
    series=Series(
        at_s=(0.0, 3600.0, 7200.0),
        up_vcpus={"reserved": (2.0, 2.0, 2.0), "spot": (0.0, 6.0, 0.0)},
        held_vcpus=(0.0, 4.0, 2.0),
    ),
    performance=tuple(
        JobPerformance(job_id=f"job-{at}", kind="batch", running=running, turnaround=0.5, kept=at == 0)
        for at, running in enumerate((0.5, 0.7, 0.9, 1.1))
    ),
    waited_for=(
        WaitReason(code="launched_for_jobs", text="a machine", job_s=5400.0),
        WaitReason(code="cap_instances", text="no more than 4", job_s=1440.0),
        WaitReason(code="budget", text="no money", job_s=360.0),
    ),
)
DEAR = replace(SEEN, name="<dear>", metered_usd=7.0, target_met_pct=None, span_s=3600.0, waited_for=())


def test_comparison_columns_match_their_names() -> None:
    spent = Spending(usd={each: float(at) for at, each in enumerate(Account)}, known_need_usd=1.0)
    accounts = {f"spent_{each}_usd": usd for each, usd in spent.usd.items()}
    accounts |= {f"spent_{each}_pct": 100.0 * usd / 36.0 for each, usd in spent.usd.items()}
    table = comparison([replace(SEEN, spending=spent), DEAR])
    first, second = (dict(zip((each.name for each in table.columns), row, strict=True)) for row in table.rows)
    assert first == pytest.approx(
        {
            "policy": "seen", "cost_usd": 4.0, "cost_pct": 100.0, "metered_usd": 3.0, "committed_usd": 1.0,
            "target_met_pct": 81.0, "batch_met_pct": 82.0, "service_met_pct": 83.0, "qos_kept_pct": 25.0,
            "performance_pct": 80.0, "performance_p5_pct": 53.0, "performance_p95_pct": 107.0, "wait_p50_s": 10.0,
            "wait_p95_s": 91.0, "used_pct": 75.0, "reserved_used_pct": 25.0, "launches": 8, "used_once_pct": 25.0,
            "succeeded": 9, "jobs": 11, **accounts,
        }
    )  # fmt: skip
    assert (second["cost_pct"], second["target_met_pct"]) == (200.0, None)


def test_wait_note_shows_the_two_longest_reasons_with_shares() -> None:
    (told,) = [note for note in comparison([SEEN, DEAR]).notes if "waited" in note]
    assert told == (
        "seen: jobs waited 2.00 h in total: 75% launched_for_jobs (a machine); 20% cap_instances (no more than 4)"
    )
    rare = replace(SEEN, waited_for=(SEEN.waited_for[0], replace(SEEN.waited_for[1], job_s=500.0)))
    assert "cap_instances" not in " ".join(comparison([rare]).notes)


def test_failure_note_quotes_one_job() -> None:
    failed = replace(SEEN, failed_by=(FailureReason(code="impossible", text="no offer fits 64 vCPU", jobs=2),))
    (told,) = [note for note in comparison([failed, DEAR]).notes if "failed" in note]
    assert told == "seen: 2 of 11 jobs failed: 2 impossible (no offer fits 64 vCPU)"


def test_results_with_failed_planning_are_flagged_and_refused_as_a_figure() -> None:
    failed = replace(SEEN, planning_failed=("job-3 (KeyError: 3 in ladders.py, of)", "growth (x)", "job-9 (y)"))
    (told,) = [note for note in comparison([failed, DEAR]).notes if "planning" in note]
    assert told == (
        "seen: planning failed (a bug in HCloud) and skipped job-3 (KeyError: 3 in ladders.py, of); growth (x); "
        "do not trust these numbers"
    )
    with pytest.raises(HCloudError, match="planning failed on job-3"):
        numbers_of(failed)


def texts(figure: Figure) -> list[str]:
    """Return what can be read in a picture, as its SVG has it."""
    drawn = ElementTree.fromstring(to_svg(figure))
    return [each.text or "" for each in drawn.iter() if each.tag.endswith("text")]


def bars(axes: Axes) -> list[tuple[float, float, float]]:
    """Return row, start and length of each bar."""
    found = [each for each in axes.patches if isinstance(each, Rectangle)]
    return [(round(each.get_y() + 0.3, 6), each.get_x(), each.get_width()) for each in found]


def test_bars_are_as_long_as_costs_and_targets_stand_beside_them() -> None:
    figure = cost_figure([SEEN, DEAR])
    costs, targets = figure.axes
    assert bars(costs) == [(0.0, 0.0, 1.0), (1.0, 0.0, 1.0), (0.0, 1.0, 3.0), (1.0, 1.0, 7.0)]
    assert (costs.get_xlabel(), targets.get_xlabel()) == ("cost, USD", "targets met, %")
    assert [line.get_xdata()[0] for line in targets.lines if line.get_marker() == "o"] == [81.0]
    assert {"seen", "<dear>", "$4.00", "$8.00", "81.0 %", "no job has a target", "metered"} <= set(texts(figure))


def test_costs_without_any_target_stand_alone() -> None:
    assert len(cost_figure([replace(SEEN, target_met_pct=None)]).axes) == 1


def test_areas_stand_on_each_other_and_all_outcomes_on_one_scale() -> None:
    figure = allocation_figure([SEEN, DEAR])
    first, second = figure.axes
    reserved, spot = (area.get_paths()[0].vertices for area in first.collections)
    assert {(x, y) for x, y in reserved.tolist()} == {(0.0, 0.0), (60.0, 0.0), (120.0, 0.0), (0.0, 2.0), (60.0, 2.0),
                                                      (120.0, 2.0)}  # fmt: skip
    assert max(y for _, y in spot.tolist()) == 8.0
    assert list(first.lines[0].get_ydata()) == [0.0, 4.0, 2.0]
    assert first.get_ylim() == second.get_ylim() and first.get_xlim() == second.get_xlim()
    assert {"reserved", "spot", "<dear>", "vCPUs", "time, minutes"} <= set(texts(figure))


def test_waits_grow_to_the_right_by_their_logarithm() -> None:
    figure = waits_figure([SEEN])
    [axes] = figure.axes
    waits, shares = axes.lines[0].get_data()
    found = {round(float(share)): float(wait) for wait, share in zip(waits, shares, strict=True)}
    assert (found[0], found[50], found[100]) == (1.0, 10.0, 100.0)  # half a second, or none, stands at one second
    assert axes.get_xscale() == "log"
    assert [each for each in texts(figure) if each in ("1 s", "10 s", "1 min", "10 min")] == ["1 s", "10 s", "1 min"]


def test_performance_chart_without_targets_says_so() -> None:
    assert "no job has a target" in texts(performance_figure([replace(SEEN, performance=())]))


def life(since_s: float, until_s: float, market: str = "on_demand", vcpus: float = 4.0) -> MachineLifetime:
    return MachineLifetime(market=market, vcpus=vcpus, since_s=since_s, until_s=until_s)


def test_utilisation_is_the_held_share_while_a_machine_is_up() -> None:
    span_s = float(COLUMNS)
    lives = {"spot": life(0, 2, "spot"), "late": life(3, 120), "early": life(1, 2.5), "ours": life(2, 9, "reserved")}
    holds = [
        Hold(machine="early", vcpus=2.0, since_s=1.5, until_s=2.25),
        Hold(machine="early", vcpus=1.0, since_s=0.0, until_s=1e9),
    ]
    full = utilisation_of(lives, holds, span_s)
    assert (full.machines, full.markets) == (4, ("reserved", "on_demand", "on_demand", "spot"))
    ours, early, late, spot = full.shares
    assert early[:4] == (None, pytest.approx(0.5), pytest.approx(0.5), None)  # 1 + 2 for half of it; of half a second
    assert ours[:3] == (None, None, 0.0)
    assert ours[9] is None
    assert late[2:4] == (None, 0.0)
    assert (spot[1], spot[2]) == (0.0, None)


def test_thousands_of_machines_share_rows_in_launch_order() -> None:
    lives = {f"m{at:04}": life(0, 10, vcpus=1.0 + at % 2) for at in range(1000)}
    holds = [Hold(machine=f"m{at:04}", vcpus=1.0, since_s=0, until_s=10) for at in range(0, 1000, 2)]
    full = utilisation_of(lives, holds, 10.0)
    assert full.machines == 1000
    assert ROWS - 2 <= len(full.shares) <= ROWS
    found = [part for row in full.shares[:-1] for part in row]  # 17 machines: 9 of one vCPU, all held, or 9 of two
    assert all(part == pytest.approx(9 / 25) or part == pytest.approx(8 / 26) for part in found)


def test_fuller_machines_are_drawn_darker() -> None:
    half = [Hold(machine="a", vcpus=2.0, since_s=0, until_s=60), Hold(machine="a", vcpus=4.0, since_s=60, until_s=90)]
    seen = replace(SEEN, fullness=utilisation_of({"a": life(0, 100)}, half, 120.0))
    figure = fullness_figure([seen, DEAR])
    [image] = figure.axes[0].images
    row = image.get_array()[0]
    shares = {float(part) for part in row.compressed()}
    assert shares == {0.5, 1.0, 0.0} and row.mask.any()  # white where it was not up
    assert int((row.filled(-1.0) == 0.5).sum()) == pytest.approx(COLUMNS / 2, abs=1)
    assert {"seen: 1 machine", "<dear>: 0 machines", "on-demand", "100 %"} <= set(texts(figure))


def test_boxes_span_half_of_the_jobs_and_whiskers_nine_tenths() -> None:
    figure = performance_figure([SEEN, replace(DEAR, performance=())])
    [axes] = figure.axes
    whiskers, median, dot, _ideal = ([round(float(x), 6) for x in line.get_xdata()] for line in axes.lines)
    assert (whiskers, median, dot) == ([53.0, 107.0], [80.0, 80.0], [80.0])
    assert bars(axes) == [(0.0, pytest.approx(65.0), pytest.approx(30.0))]
    assert "seen, batch" in texts(figure)


ALL = [allocation_figure, cost_figure, fullness_figure, performance_figure, waits_figure]


@pytest.mark.parametrize("draw", ALL)
def test_long_names_leave_room_for_what_is_drawn_and_keep_their_ends(
    draw: Callable[[Sequence[SimulationResult]], Figure],
) -> None:
    names = [f"{'<long> ' * 20}(nightly/{end}.yaml)" for end in ("one", "two")]
    told = [text for text in texts(draw([replace(SEEN, name=name) for name in names])) if "<long>" in text]
    assert len(told) == 2 and all(each.startswith("<long> ") for each in told)
    assert "one.yaml)" in told[0] and "two.yaml)" in told[1]
    assert max(len(each) for each in told) < 135 and (draw in (allocation_figure, fullness_figure) or len(told[0]) < 48)


def test_names_are_cut_by_their_width_and_hold_nothing_that_changes_the_text_around() -> None:
    assert label("\u590f" * 22) == "\u590f" * 22
    assert label("\u590f" * 23) == "\u590f" * 10 + "\u2026" + "\u590f" * 11
    assert label("a\u202eb\x1b[1m") == "a?b?[1m"
    assert "$x^2$ & <b>" in texts(cost_figure([replace(SEEN, name="$x^2$ & <b>")]))


def test_cost_labels_have_the_digits_of_tables() -> None:
    cheap = replace(SEEN, committed_usd=0.0, metered_usd=0.00102, target_met_pct=None)
    told = texts(cost_figure([SEEN, cheap, replace(cheap, metered_usd=0.0)]))
    assert [text for text in told if text.startswith("$")] == ["$4.00", "$0.0010", "$0.00"]


def test_means_are_drawn_with_their_limits_and_said() -> None:
    means = {"a": Mean(value=2.0, half_width=0.5), "b": Mean(value=3.0, half_width=None)}
    figure = means_figure(means, {"a": Mean(value=98.0, half_width=4.0)})
    costs, targets = figure.axes
    assert [length for _, _, length in bars(costs)] == [2.0, 3.0]
    [limits] = [each.get_segments() for each in costs.collections]
    assert limits[0][:, 0].tolist() == [1.5, 2.5]
    assert targets.collections[0].get_segments()[0][:, 0].tolist() == [94.0, 100.0]  # no share is above 100 %
    assert {"$2 ±0.5", "$3", "98.0 %"} <= set(texts(figure))


def test_equal_pictures_are_equal_files_and_the_name_says_which_format(tmp_path: Path) -> None:
    for name, begin in {"a.svg": b"<?xml", "a.png": b"\x89PNG", "a.pdf": b"%PDF"}.items():
        for folder in (tmp_path / "one", tmp_path / "two"):
            folder.mkdir(exist_ok=True)
            write(cost_figure([SEEN]), folder / name)
        one, two = ((tmp_path / each / name).read_bytes() for each in ("one", "two"))
        assert one == two and one.startswith(begin)
    with pytest.raises(BadInput, match=r"a.gif: a picture's name must end with .svg, .png or .pdf"):
        write(cost_figure([SEEN]), tmp_path / "a.gif")


def test_without_matplotlib_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hcloud.plots.find_spec", lambda name: None)
    with pytest.raises(
        BadInput, match=r"^pictures need matplotlib; install it with: pip install 'hcloud-daemon\[plots\]'$"
    ):
        require_matplotlib()
    with pytest.raises(BadInput, match="pictures need matplotlib"):
        compare(
            Seeds(every=range(1, 2), processes=1),
            lambda seed: [],
            ComparisonOptions(form="table", out=Path("pictures")),
        )
