"""The papers' experiments: numbers read from runs, claims, and the results page."""

from dataclasses import replace

import pytest

from hcloud.simulator.outcome import Series
from hcloud.simulator.peers import PEERS
from hcloud.simulator.seeds import mean_of
from lab.papers import CHAPTERS, RunSize, ablations, fuller_servers, sensitivities
from lab.papers.clusters import scheduler
from lab.papers.discounts import SUSTAINED, sustained_part
from lab.papers.hybrid import strategy
from lab.papers.measures import AXES, NAMES, axis_of, head_of
from lab.papers.page import PICTURED, details, markdown, picture_svg
from lab.papers.pictures import figure_picture
from lab.papers.study import (
    Case,
    Claim,
    Effect,
    Figure,
    FinishedRuns,
    Verdict,
    complete_results,
    judge,
    run_case,
    run_figure,
    setting_of,
)
from tests.policies import simple

SMALL = RunSize(share=0.06, hours=0.1, seeds=2)
CASES = tuple(
    Case(label=order, experiment="paragon-small-low", policy=scheduler(order)) for order in ("least_loaded", "paragon")
)
FIGURE = Figure(
    name="little",
    title="Two schedulers & few jobs",
    source="nowhere",
    cases=CASES,
    columns=("qos_kept_pct", "performance_pct", "wait_p95_s"),
    claims=(
        Claim(text="more", published="1", ours=lambda s: s["paragon"]["jobs"], holds=lambda v: v > 1, unit="jobs"),
        Claim(
            text="none", published="0", ours=lambda s: s["paragon"]["jobs"], holds=lambda v: v == 0, why="for a reason"
        ),
    ),
    drawn="performance_pct",
)


def test_a_mean_comes_with_limits_that_one_seed_cannot_give() -> None:
    several = mean_of([1.0, 2.0, 3.0])
    assert several.value == 2.0
    assert several.half_width == pytest.approx(2.484, abs=1e-3)
    assert several.text() == "2 ±2.5"
    assert mean_of([5.0]).text() == "5"
    as_much = mean_of([0.1, 0.2, -0.3])
    assert as_much.value > 0.0 and (as_much.rounded, as_much.text()) == (0.0, "0 ±0.66")
    with pytest.raises(ValueError, match="no values"):
        mean_of([])


def test_figure_is_run_for_every_case_and_seed_and_written_as_a_page() -> None:
    told: list[str] = []
    done: FinishedRuns = {"paragon": {0: run_case(CASES[1], 0, SMALL)}}
    run_figure(FIGURE, SMALL, 1, done, told.append)
    for runs in done.values():
        for run in runs.values():
            assert sum(run[name] for name in run if name.startswith("spent_")) == pytest.approx(run["cost_usd"])
    assert told == ["least_loaded", "least_loaded", "paragon"]  # what was done before is not done again
    found = complete_results(FIGURE, done)
    assert {label: len(runs) for label, runs in found.items()} == {"least_loaded": 2, "paragon": 2}
    assert all(0 < run["performance_pct"] <= 110 for runs in found.values() for run in runs)
    (yes, holds), (_, departs) = (judge(claim, found) for claim in FIGURE.claims)
    assert (yes.half_width, holds, departs) == (pytest.approx(0.0), Verdict.HOLDS, Verdict.DEPARTS)
    page = markdown({"Little": [(FIGURE, found, SMALL)]}, "python -m lab.papers")
    assert "| more | 1 | " in page and "| **departs** |" in page and "Of 2 claims 1 hold, 1 depart." in page
    assert "**[Two schedulers & few jobs](results/little.md)**" in page
    own_page = details((FIGURE, found, SMALL))
    assert "**departs**: for a reason" in own_page and "| paragon | " in own_page
    assert "0.06 of the jobs and machines, 2 seed(s)" in own_page
    spread = {label: [{"jobs": 4.0}, {"jobs": 6.0}] for label in found}
    reached = replace(FIGURE.claims[1], holds=lambda v: v < 4.0)
    assert judge(reached, spread)[1] is Verdict.HOLDS_WITHIN_LIMITS
    picture = picture_svg(FIGURE, found)
    assert "few jobs" in picture and all(f">{case.label}<" in picture for case in CASES)
    assert complete_results(FIGURE, {**done, "paragon": {1: found["paragon"][1]}})["paragon"] == [found["paragon"][1]]


@pytest.mark.parametrize(
    ("effect", "values", "verdict"),
    [
        (Effect(2.2, none=1.0), (1.85, 1.85), Verdict.HOLDS),  # 71 % of "2.2 times"
        (Effect(2.2, none=1.0), (1.8, 1.8), Verdict.SAME_SIGN),
        (Effect(2.2, none=1.0), (0.9, 0.9), Verdict.DEPARTS),
        (Effect(46.0), (10.0, 50.0), Verdict.HOLDS_WITHIN_LIMITS),
        (Effect(46.0), (5.0, 6.0), Verdict.DEPARTS),  # two seeds: limits of 13 times their distance
        (Effect(46.0), (5.0, 5.1), Verdict.SAME_SIGN),
        (Effect(46.0), (-0.5, 0.7), Verdict.DEPARTS),
        (Effect(-46.0), (-40.0, -40.0), Verdict.HOLDS),
    ],
)
def test_effect_is_judged_by_its_size(effect: Effect, values: tuple[float, ...], verdict: Verdict) -> None:
    claim = Claim(text="", published="", ours=lambda s: s["one"]["n"], effect=effect)
    assert judge(claim, {"one": [{"n": value} for value in values]})[1] is verdict


def test_page_shows_ten_pictures_at_most_and_each_is_of_a_figure() -> None:
    named = [figure for _, made in CHAPTERS.values() for figure in made() if figure.name in PICTURED]
    assert len(named) == len(PICTURED) <= 10 and all(figure.drawn for figure in named)


def test_page_marks_missing_numbers_and_partial_seeds() -> None:
    found = {label: [{"jobs": 4.0, "times_bound": 2.0}, {"jobs": 6.0}] for label in ("least_loaded", "paragon")}
    newer = replace(FIGURE.claims[0], ours=lambda s: s["paragon"]["not_read_then"])
    page = markdown(
        {"Little": [(replace(FIGURE, claims=(newer,), columns=("times_bound",)), found, SMALL)]}, "python -m lab.papers"
    )
    assert "| more | 1 | - | not read off these runs: run them again |" in page
    partial = replace(FIGURE, claims=(newer,), columns=("times_bound",))
    assert "| paragon | 2 (1 of 2 seeds) |" in details((partial, found, SMALL))
    assert ">2</text>" in picture_svg(replace(FIGURE, drawn="times_bound"), found)


def test_picture_has_each_published_effect_beside_ours_with_limits() -> None:
    def claim(text: str, effect: Effect | None) -> Claim:
        return Claim(text=text, published="", ours=lambda s: s["one"]["n"], effect=effect, unit="% cheaper")

    claims = (claim("half", Effect(46.0)), claim("opposite", Effect(-4.0)), claim("unsized", None))
    figure = replace(FIGURE, claims=claims, drawn="n", published={"two": 4.0})
    drawn = figure_picture(figure, {"one": [{"n": 22.0}, {"n": 24.0}], "two": [{"n": 1.0}, {"n": 1.0}]})
    cases, effects = drawn.axes
    assert [bar.get_width() for bar in cases.patches] == [23.0, 1.0]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in cases.lines if line.get_marker() == "^"] == [
        ([4.0], [1.3])
    ]
    ours = [line for line in effects.lines if len(line.get_xdata()) == 1 and line.get_marker() in "o<>"]
    assert [(float(line.get_xdata()[0]), line.get_marker()) for line in ours] == [(0.5, "o"), (-1.5, "<")]
    published = [line for line in effects.lines if line.get_marker() == "D"]
    assert [float(line.get_xdata()[0]) for line in published] == [1.0, 1.0]
    words = " ".join(each.get_text() for each in effects.texts)
    assert "published 46\n(% cheaper)" in words and "published -4" in words
    assert [each.get_text() for each in effects.get_yticklabels()] == ["half", "opposite"]


def test_axes_say_what_is_measured_of_what() -> None:
    drawn = {figure.drawn for _, made in CHAPTERS.values() for figure in made() if figure.drawn}
    assert {name for name in drawn if name not in {**NAMES, **AXES}} == set()
    assert axis_of("k3_error_pct") == head_of("k3_error_pct") == "mean error of predicted speeds, groups of three, %"
    assert (head_of("performance_pct"), head_of("wait_p95_s")) == ("performance, %", "wait p95, s")


def test_case_without_the_main_number_is_left_out_of_the_picture() -> None:
    """Drawn as 0, it would be taken for a perfect one where less is better."""
    drawn = figure_picture(replace(FIGURE, claims=(), drawn="n"), {"one": [{"n": 22.0}], "two": [{"m": 1.0}]})
    (cases,) = drawn.axes
    assert [bar.get_width() for bar in cases.patches] == [22.0]


def test_case_with_undone_jobs_has_no_times_bound() -> None:
    alike = Case(label="all", experiment="static", policy=simple(name="all"), plain=True, commits="hf")
    size = RunSize(share=0.02, hours=0.1, seeds=1)
    assert run_case(alike, 0, size)["times_bound"] >= 1.0
    # Reserved machines alone, and none of them: nothing can ever run.
    none = replace(alike, planner=PEERS["reserved-only"].plan, cloud={"reserved": {"n1.1": 1}})
    undone = run_case(none, 0, size)
    assert "times_bound" not in undone
    assert undone["cost_usd"] >= 0.0


def test_tail_after_the_last_arrival_is_not_paid() -> None:
    case = Case(label="sr", experiment="static", policy=strategy("sr"))
    size = RunSize(share=0.02, hours=0.1, seeds=1)
    setting = setting_of(case, 0, size)
    ((name, count),) = setting.cloud["reserved"].items()  # type: ignore[attr-defined]
    price = setting.cloud["types"][name]["usd_per_h"] * setting.cloud["reserved_price_factor"]  # type: ignore[index]
    made = run_case(case, 0, size)
    assert made["metered_usd"] == 0.0
    assert made["committed_usd"] == pytest.approx(count * price * setting.workload.span_s / 3600)


def test_every_published_figure_has_cases_of_its_own_and_claims_that_can_be_read() -> None:
    figures = [figure for _, made in CHAPTERS.values() for figure in made()]
    assert len({figure.name for figure in figures}) == len(figures)
    for figure in figures:
        labels = [case.label for case in figure.cases]
        assert len(set(labels)) == len(labels) > 1
        some = {label: dict.fromkeys({*_NUMBERS, *figure.columns}, 1.0 + at) for at, label in enumerate(labels)}
        for claim in figure.claims:
            assert isinstance(claim.ours(some), float)
            assert isinstance(claim.holds(claim.ours(some)), bool)


_NUMBERS = ("performance_pct", "p5_pct", "qos_kept_pct", "cost_usd", "target_met_pct", "committed_usd", "metered_usd",
            "reserved_used_pct", "metered_sustained_usd", "service_p5_pct", "misbehaved_pct",
            "turnaround_pct", "service_pct", "batch_pct")  # fmt: skip


@pytest.mark.parametrize(
    ("up", "part"),
    [
        ((4.0, 4.0, 4.0, 4.0), SUSTAINED),  # all of the month: a quarter at each of 100, 80, 60, 40 %
        ((4.0, 4.0, 0.0, 0.0), (0.25 + 0.25 * 0.8) / 0.5),  # half of it
        ((2.0, 2.0, 2.0, 8.0), (SUSTAINED * 2 + 6 * 0.25) / (2 + 6 * 0.25)),  # two all the time, six for a quarter
        ((0.0, 0.0, 0.0, 0.0), 1.0),
    ],
)
def test_longer_use_earns_larger_discounts_across_machines(up: tuple[float, ...], part: float) -> None:
    series = Series(at_s=(0.0, 1.0, 2.0, 3.0), up_vcpus={"reserved": (9.0,) * 4}, rented_vcpus={"n1.4": up})
    assert sustained_part(series) == pytest.approx(part, rel=1e-9)
    longer = replace(series, at_s=(*series.at_s, 4.0, 5.0), rented_vcpus={"n1.4": (*up, 1.0, 0.0)})
    assert sustained_part(longer, 3.0) == pytest.approx(part, rel=1e-9)  # what is up later is not paid for


def test_machines_of_two_types_do_not_earn_each_others_discounts() -> None:
    one_after_the_other = {"n1.1": (4.0, 4.0, 0.0, 0.0), "n1.2": (0.0, 0.0, 4.0, 4.0)}
    # The seeded fault: all that is rented, taken together, would be up all of the month.
    assert sustained_part(Series(rented_vcpus={"n1.1": (4.0,) * 4})) == pytest.approx(SUSTAINED)
    assert sustained_part(Series(rented_vcpus=one_after_the_other)) == pytest.approx(0.9)


def test_weeks_from_which_on_a_reserved_year_repays() -> None:
    figure = next(each for each in sensitivities.figures() if each.name == "duration")
    rents, both = {"committed_usd": 0.0, "metered_usd": 3.0}, {"committed_usd": 0.5, "metered_usd": 2.0}
    reserves = {"committed_usd": 2.0, "metered_usd": 0.0}
    first, second = (claim.ours({"ODM": rents, "HM": both, "SR": reserves}) for claim in figure.claims)
    assert first == pytest.approx(26.0)  # 52 weeks of 0.5 reserved are 26 weeks of 1 less rented
    assert second == pytest.approx(39.0)  # 52 weeks of 1.5 more reserved are 39 weeks of 2 less rented
    assert figure.claims[0].ours({"ODM": both, "HM": {**both, "metered_usd": 2.5}, "SR": reserves}) == 104.0  # never


def test_fuller_servers_are_compared_with_the_usual_sr() -> None:
    usual = {"performance_pct": 80.0, "cost_usd": 10.0, "committed_usd": 10.0, "metered_usd": 0.0}
    filled = {"performance_pct": 76.0, "cost_usd": 9.0, "committed_usd": 1.0, "metered_usd": 8.0}
    seed = {"SR, 10%": usual, "HM, filled, 30%": filled}
    assert fuller_servers.short_of_sr_pct(seed, "HM, filled, 30%") == pytest.approx(5.0)
    assert fuller_servers.half_year_cheaper_pct(seed, "HM, filled, 30%") == pytest.approx(50.0)


def test_cases_of_fuller_servers_differ_by_tolerance_and_limits_only() -> None:
    cases = {case.label: case.policy for figure in fuller_servers.figures() for case in figure.cases}
    plain, filled = cases["HM, 10%"], cases["HM, filled, 50%"]
    assert plain == strategy("hm")
    assert (filled.placement.tolerance, filled.provisioning.soft_limit, filled.provisioning.hard_limit) == (
        0.5,
        0.9,
        0.95,
    )
    assert replace(filled, placement=plain.placement, provisioning=plain.provisioning) == plain


def test_each_part_of_the_world_and_each_caution_is_another_case_of_the_same_experiment() -> None:
    world, caution = ablations.figures()
    truths = {repr(setting_of(case, 0, RunSize(share=0.01, hours=0.05)).truth) for case in world.cases}
    assert len(truths) == len(world.cases)  # a number that is as it is anyway would show nothing
    assert len({repr(case.policy) for case in world.cases}) == 1
    assert len({repr(case.policy) for case in caution.cases}) == len(caution.cases)
    sure = [case.policy.placement.neighbour_confidence for case in caution.cases]
    assert {0.5, 0.9} <= set(sure)
    assert {case.policy.provisioning.keep_for_quiet for case in caution.cases} >= {0.0, 1.3, 2.0}


def test_negative_share_is_worded_as_its_amount_in_the_opposite_direction() -> None:
    claim = Claim(text="cheap", published="46 %", ours=lambda _: -129.0, holds=lambda _: False, unit="% cheaper")
    found = {label: [{"p": 1.0}] for label in ("less", "more")}
    page = markdown({"Little": [(replace(FIGURE, claims=(claim,)), found, SMALL)]}, "python -m lab.papers")
    assert "| 129 % more expensive |" in page
