"""Simulated programs as the shipped library measured real ones."""

import math
from statistics import fmean, stdev

import pytest
from scipy.stats import t as student_t

from hcloud.classifier.library import Question
from hcloud.config import package_data
from hcloud.config.profiles import library_profiles
from hcloud.simulator.measured_programs import OWN_CORE_SOURCES, SERVICE_GROUPS, MeasuredPrograms
from hcloud.simulator.program_models import SOURCES, seeded_random


def test_programs_are_drawn_from_one_half_of_the_library_and_the_other_is_known() -> None:
    halves = [MeasuredPrograms.split(seed) for seed in range(4)]
    for each in halves:
        drawn, known = {row.profile for row in each.drawn_from}, {row.profile for row in each.known}
        assert not drawn & known
        assert len(drawn) == len(known) == 10
        assert known == set(each.library().known)
        for rows in (each.drawn_from, each.known):
            assert 0 < sum(row.group in SERVICE_GROUPS for row in rows) < len(rows)
    assert len({tuple(row.profile for row in each.drawn_from) for each in halves}) > 1
    assert MeasuredPrograms.split(2) == halves[2]


@pytest.mark.parametrize("kind", ["service", "analytics", "single"])
def test_a_program_is_like_its_row_and_always_the_same(kind: str) -> None:
    measured = MeasuredPrograms.split(3)
    rows = {row.profile: row for row in measured.drawn_from}
    for number in range(20):
        model = measured.draw(f"program-{number}", kind, phased=0.0)
        assert model == measured.draw(f"program-{number}", kind, phased=0.0)
        row = rows[model.drawn_from]
        assert (row.group in SERVICE_GROUPS) == (kind == "service")
        for source in (*SOURCES, *OWN_CORE_SOURCES):
            tolerated, caused = model.pressures(source)
            assert 1.0 <= tolerated <= 300.0 and 0.0 <= caused <= 100.0
            cell = row.cells.of(Question.CAUSED).get(source)
            assert (caused > 0.0) == (cell is not None and cell.value > 0.0)


def test_programs_bear_hardly_any_pressure_on_their_own_core_but_much_from_others() -> None:
    measured = MeasuredPrograms.split(3)
    models = [measured.draw(f"program-{number}", "single", phased=0.0) for number in range(50)]
    on_core = fmean(model.pressures("integer")[0] for model in models)
    from_others = fmean(min(100.0, each) for model in models for each in model.tolerated)
    assert on_core < 20.0 < 60.0 < from_others


def test_an_extreme_reading_with_wide_limits_is_mostly_an_error() -> None:
    truths: dict[str, list[float]] = {"sqlite-insert": [], "disk-write": []}
    for seed in range(10):
        measured = MeasuredPrograms.split(seed)
        for kind in ("service", "single"):
            for number in range(40):
                model = measured.draw(f"program-{number}", kind, phased=0.0)
                truths.setdefault(model.drawn_from, []).append(model.pressures("storage-bandwidth")[0])
    # Both were read as less than 6: the first with limits of 0 and 67, the second of 0 and 19.
    assert len(truths["sqlite-insert"]) > 10 < len(truths["disk-write"])
    assert fmean(truths["disk-write"]) < 10.0 < fmean(truths["sqlite-insert"]) < 60.0


def repeated(question: Question, source: str) -> float:
    """Root mean square of how far repeated readings of the library's programs are from their mean, as logarithms: what
    their 95 % limits say by Student's t."""
    programs = [profile for _, profile in library_profiles([package_data.path("profiles")])]
    cells = [cell for each in programs if (cell := each.cells.of(question).get(source)) and cell.runs > 1 < cell.value]
    return (
        fmean(
            (
                max(math.log(cell.value / max(cell.low, cell.value / 10)), math.log(cell.high / cell.value))
                / student_t.ppf(0.975, cell.runs - 1)
            )
            ** 2
            for cell in cells
        )
        ** 0.5
    )


def test_readings_are_as_far_off_as_repeated_ones_were_with_limits_as_wide_as_stated() -> None:
    measured, chances = MeasuredPrograms.split(3), seeded_random("readings")
    found = [measured.reading(Question.TOLERATED, "llc-capacity", 40.0, chances) for _ in range(400)]
    errors = [math.log(each.value / 40.0) for each in found]
    assert (
        0.6 * repeated(Question.TOLERATED, "llc-capacity")
        < stdev(errors)
        < 1.3 * repeated(Question.TOLERATED, "llc-capacity")
    )
    assert abs(fmean(errors)) < 0.05
    assert fmean(each.high - each.low for each in found) > 50.0
    assert all(each.low <= each.value <= each.high <= 100.0 for each in found)
    speeds = [measured.reading(Question.TYPE, "mock/m.large", 2.0, chances) for _ in range(400)]
    assert 0.005 < stdev(math.log(each.value / 2.0) for each in speeds) < 0.1
    assert measured.reading(Question.CAUSED, "storage-bandwidth", 0.0, chances).value == 0.0
