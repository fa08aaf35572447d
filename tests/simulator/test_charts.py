"""Tables and charts of simulations, from outcomes with distinct numbers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from hcloud.core.errors import HCloudError
from hcloud.report.spending_accounts import Account, Spending
from hcloud.simulator.charts import (
    BOX_LEFT,
    HEAT_COLOURS,
    PLOT_HEIGHT,
    PLOT_LEFT,
    PLOT_WIDTH,
    WIDTH,
    allocation_svg,
    cost_svg,
    fullness_svg,
    limits_svg,
    performance_svg,
    waits_svg,
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


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("text")]


def points(svg: str, tag: str) -> list[list[tuple[float, float]]]:
    found = re.findall(rf'<{tag} points="([^"]+)"', svg)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in each.split())] for each in found]


def test_bars_are_as_long_as_costs_and_say_them() -> None:
    drawn = cost_svg([SEEN, DEAR])
    bars = [tuple(map(float, each)) for each in re.findall(r'<rect x="([\d.]+)" y="(\d+)" width="([\d.]+)"', drawn)]
    assert bars == [(220.0, 34.0, 50.0), (270.0, 34.0, 150.0), (220.0, 64.0, 50.0), (270.0, 64.0, 350.0)]
    assert texts(drawn)[1:] == ["seen", "$4.00, 81.0 %", "<dear>", "$8.00"]


def test_areas_stand_on_each_other_and_all_outcomes_on_one_scale() -> None:
    drawn = allocation_svg([SEEN, DEAR])
    reserved, spot, *_ = points(drawn, "polygon")
    left, middle, right = PLOT_LEFT, PLOT_LEFT + PLOT_WIDTH / 2, PLOT_LEFT + PLOT_WIDTH
    bottom = max(y for _, y in reserved)
    two = bottom - PLOT_HEIGHT * 2 / 8
    assert reserved == [(left, two), (middle, two), (right, two), (right, bottom), (middle, bottom), (left, bottom)]
    assert spot == [
        (left, two), (middle, bottom - PLOT_HEIGHT), (right, two), (right, two), (middle, two), (left, two),
    ]  # fmt: skip
    held = points(drawn, "polyline")[0]
    assert held == [(left, bottom), (middle, bottom - PLOT_HEIGHT / 2), (right, two)]
    assert {"8", "0", "2.0 h", "reserved", "spot", "<dear>: vCPUs up (areas) and held by jobs (line)"} <= set(
        texts(drawn)
    )


def test_waits_grow_to_the_right_by_their_logarithm() -> None:
    drawn = waits_svg([SEEN])
    line, _legend = points(drawn, "polyline")
    places = {round(254 - y): x for x, y in line}
    assert places[0] == PLOT_LEFT  # half a second, or none, stands at one second
    assert places[110] == pytest.approx(PLOT_LEFT + PLOT_WIDTH / 2)  # the median, 10 s of at most 100 s
    assert places[220] == PLOT_LEFT + PLOT_WIDTH
    assert [each for each in texts(drawn) if each.endswith(" s")] == ["1 s", "10 s", "60 s"]


def test_labels_of_waits_do_not_run_into_each_other() -> None:
    at = {text: float(y) for y, text in re.findall(r'<text x="8" y="([\d.]+)">(\d+%)<', waits_svg([SEEN]))}
    assert list(at) == ["0%", "50%", "95%", "100%"]
    assert min(upper - lower for upper, lower in pairwise(at.values())) >= 12  # the size of the letters


def test_performance_chart_without_targets_says_so() -> None:
    assert "no job has a target" in texts(performance_svg([replace(SEEN, performance=())]))


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
    drawn = fullness_svg([seen, DEAR])
    cells = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="150.00" fill="(#\w+)" shape', drawn)
    wide = PLOT_WIDTH / COLUMNS
    places = [(float(x), float(width), HEAT_COLOURS.index(colour)) for x, width, colour in cells]
    assert places == [
        (pytest.approx(PLOT_LEFT, abs=0.1), pytest.approx(60 * wide, abs=0.1), 5),
        (pytest.approx(PLOT_LEFT + 60 * wide, abs=0.1), pytest.approx(30 * wide, abs=0.1), 9),
        (pytest.approx(PLOT_LEFT + 90 * wide, abs=0.1), pytest.approx(10 * wide, abs=0.1), 0),
    ]
    assert {"seen: 1 machine, in launch order", "<dear>: 0 machines, in launch order", "on-demand"} <= set(texts(drawn))


def test_boxes_span_half_of_the_jobs_and_whiskers_nine_tenths() -> None:
    drawn = performance_svg([SEEN, replace(DEAR, performance=())])
    assert [each for each in texts(drawn) if "," in each][1:] == ["seen, batch"]
    wide, most = WIDTH - BOX_LEFT - 60, 1.07

    def at(performance: float) -> str:
        return f"{BOX_LEFT + wide * performance / most:.1f}"

    (whiskers,) = re.findall(r'<line x1="([\d.]+)" y1="50" x2="([\d.]+)" y2="50"', drawn)
    assert whiskers == (at(0.53), at(1.07))
    ((left, width),) = re.findall(r'<rect x="([\d.]+)" y="40" width="([\d.]+)"', drawn)
    assert (left, width) == (at(0.65), f"{wide * 0.3 / most:.1f}")
    assert f'<line x1="{at(0.8)}" y1="40"' in drawn
    assert f'<circle cx="{at(0.8)}"' in drawn


@pytest.mark.parametrize("draw", [allocation_svg, cost_svg, fullness_svg, performance_svg, waits_svg])
def test_long_names_leave_room_for_what_is_drawn_and_keep_their_ends(
    draw: Callable[[Sequence[SimulationResult]], str],
) -> None:
    names = [f"{'<long> ' * 20}(nightly/{end}.yaml)" for end in ("one", "two")]
    told = [text for text in texts(draw([replace(SEEN, name=name) for name in names])) if "<long>" in text]
    assert len(told) == 2 and all(each.startswith("<long> ") for each in told)
    assert "one.yaml)" in told[0] and "two.yaml)" in told[1]
    assert max(len(each) for each in told) < 135 and (draw in (allocation_svg, fullness_svg) or len(told[0]) < 40)


@pytest.mark.parametrize("draw", [allocation_svg, cost_svg, fullness_svg, performance_svg, waits_svg])
def test_names_of_wide_letters_take_no_more_room_than_others(draw: Callable[[Sequence[SimulationResult]], str]) -> None:
    plain, wide = ("ab" * 200 + "yz", "\u590f\uff21" * 200 + "yz")
    kept, told = (
        next(text for text in texts(draw([replace(SEEN, name=name)])) if "yz" in text) for name in (plain, wide)
    )
    letters = sum(letter in wide[:2] for letter in told)
    assert letters > 2 and told.startswith(wide[0])
    assert len(kept) - 2 <= len(told) + letters <= len(kept)


def test_name_of_wide_letters_that_fits_is_kept() -> None:
    fits, longer = ("\u590f" * count for count in (15, 16))  # 31 characters of 6.5 fit before a bar of costs
    assert fits in texts(cost_svg([replace(SEEN, name=fits)]))
    assert longer not in texts(cost_svg([replace(SEEN, name=longer)]))


def test_cost_labels_have_the_digits_of_tables_and_no_dash_without_targets() -> None:
    cheap = replace(SEEN, committed_usd=0.0, metered_usd=0.00102, target_met_pct=None)
    told = texts(cost_svg([SEEN, cheap, replace(cheap, metered_usd=0.0)]))
    assert [text for text in told if text.startswith("$")] == ["$4.00, 81.0 %", "$0.0010", "$0.00"]


def test_bars_of_long_names_begin_behind_them() -> None:
    (label,) = (text for text in texts(limits_svg("cost", {"n" * 200: Mean(value=1.0, half_width=0.1)})) if "n" in text)
    assert len(label) == 38


def test_short_simulations_are_labelled_in_seconds() -> None:
    short = replace(SEEN, span_s=85.0)
    for draw in (allocation_svg, fullness_svg):
        assert "85 s" in texts(draw([short])) and "2.0 h" in texts(draw([SEEN]))
