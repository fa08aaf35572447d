"""The papers' experiments run again: what is read off runs, what is claimed, and the page that tells it."""

from dataclasses import replace

import pytest

from hcloud.simulator.outcome import Series
from hcloud.simulator.reproduce import CHAPTERS, Size, sensitivities
from hcloud.simulator.reproduce.clusters import scheduler
from hcloud.simulator.reproduce.discounts import SUSTAINED, sustained_part
from hcloud.simulator.reproduce.page import bars_svg, markdown
from hcloud.simulator.reproduce.study import Case, Claim, Done, Figure, found_in, judged, mean_of, run_case, run_figure

SMALL = Size(share=0.06, hours=0.1, seeds=2)
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
    with pytest.raises(ValueError, match="no values"):
        mean_of([])


def test_a_figure_is_run_for_every_case_and_seed_and_told_as_a_page() -> None:
    told: list[str] = []
    done: Done = {"paragon": {0: run_case(CASES[1], 0, SMALL)}}
    run_figure(FIGURE, SMALL, 1, done, told.append)
    assert told == ["least_loaded", "least_loaded", "paragon"]  # what was done before is not done again
    found = found_in(FIGURE, done)
    assert {label: len(runs) for label, runs in found.items()} == {"least_loaded": 2, "paragon": 2}
    assert all(0 < run["performance_pct"] <= 110 for runs in found.values() for run in runs)
    (yes, holds), (_, departs) = (judged(claim, found) for claim in FIGURE.claims)
    assert (yes.half_width, holds, departs) == (pytest.approx(0.0), True, False)
    page = markdown({"Little": [(FIGURE, found, SMALL)]}, "hcloud reproduce")
    assert "| more | 1 | " in page
    assert "**departs**: for a reason" in page
    assert "0.06 of the jobs and machines, 2 seed(s)" in page
    doubtful = replace(FIGURE.claims[0], holds=lambda v: v == 5.0)
    spread = {label: [{"jobs": 4.0}, {"jobs": 6.0}] for label in found}
    told_page = markdown({"Little": [(replace(FIGURE, claims=(doubtful,)), spread, SMALL)]}, "hcloud reproduce")
    assert "holds on average, but not within the limits" in told_page
    picture = bars_svg(FIGURE, found)
    assert "few jobs" in picture
    assert picture.count("<rect") == 1 + len(CASES)
    assert found_in(FIGURE, {**done, "paragon": {1: found["paragon"][1]}})["paragon"] == [found["paragon"][1]]


def test_every_published_figure_has_cases_of_its_own_and_claims_that_can_be_read() -> None:
    figures = [figure for _, made in CHAPTERS.values() for figure in made()]
    assert len({figure.name for figure in figures}) == len(figures)
    for figure in figures:
        labels = [case.label for case in figure.cases]
        assert len(set(labels)) == len(labels) > 1
        some = {label: dict.fromkeys(_NUMBERS, 1.0 + at) for at, label in enumerate(labels)}
        for claim in figure.claims:
            assert isinstance(claim.ours(some), float)
            assert isinstance(claim.holds(claim.ours(some)), bool)


_NUMBERS = ("performance_pct", "p5_pct", "qos_kept_pct", "cost_usd", "target_met_pct", "committed_usd", "metered_usd",
            "reserved_used_pct", "metered_sustained_usd", "turnaround_pct", "service_pct", "batch_pct")  # fmt: skip


@pytest.mark.parametrize(
    ("up", "part"),
    [
        ((4.0, 4.0, 4.0, 4.0), SUSTAINED),  # all of the month: a quarter at each of 100, 80, 60, 40 %
        ((4.0, 4.0, 0.0, 0.0), (0.25 + 0.25 * 0.8) / 0.5),  # half of it
        ((2.0, 2.0, 2.0, 8.0), (SUSTAINED * 2 + 6 * 0.25) / (2 + 6 * 0.25)),  # two all the time, six for a quarter
        ((0.0, 0.0, 0.0, 0.0), 1.0),
    ],
)
def test_what_is_up_for_more_of_a_month_costs_less_whichever_machines_it_is(up: tuple[float, ...], part: float) -> None:
    halves = {"on_demand": tuple(0.5 * each for each in up), "spot": tuple(0.5 * each for each in up)}
    series = Series(at_s=(0.0, 1.0, 2.0, 3.0), up_vcpus={**halves, "reserved": (9.0,) * 4})
    assert sustained_part(series) == pytest.approx(part, rel=1e-9)


def test_weeks_from_which_on_a_reserved_year_repays() -> None:
    figure = next(each for each in sensitivities.figures() if each.name == "duration")
    rents, both = {"committed_usd": 0.0, "metered_usd": 3.0}, {"committed_usd": 0.5, "metered_usd": 2.0}
    reserves = {"committed_usd": 2.0, "metered_usd": 0.0}
    first, second = (claim.ours({"ODM": rents, "HM": both, "SR": reserves}) for claim in figure.claims)
    assert first == pytest.approx(26.0)  # 52 weeks of 0.5 reserved are 26 weeks of 1 less rented
    assert second == pytest.approx(39.0)  # 52 weeks of 1.5 more reserved are 39 weeks of 2 less rented
    assert figure.claims[0].ours({"ODM": both, "HM": {**both, "metered_usd": 2.5}, "SR": reserves}) == 104.0  # never
