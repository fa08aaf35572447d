"""Needed quality: from what programs cannot bear, over sources that tell programs apart."""

import numpy as np
import pytest

from hcloud.classifier.classify import Classifier, FittedClassifier
from hcloud.classifier.estimator import Estimates
from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.classifier.needed_quality import RELIABLE, UNKNOWN, ToleranceScale
from hcloud.config import load_library, package_data
from hcloud.core.estimates import Classification
from hcloud.core.quality import QualityClasses


@pytest.fixture(scope="module")
def shipped() -> FittedClassifier:
    """Return the classifier of the shipped profiles."""
    return Classifier().fit(load_library([package_data.path("profiles")]))


@pytest.fixture(scope="module")
def answers(shipped: FittedClassifier) -> dict[str, Classification]:
    """Return what is known of each shipped program."""
    return {name: shipped.classify(row) for name, row in shipped.library.known.items()}


def test_needed_quality_spreads_over_the_shipped_programs(answers: dict[str, Classification]) -> None:
    needed = [each.quality_target.value for each in answers.values()]
    assert np.subtract(*np.percentile(needed, [75, 25])) >= 0.3
    assert all(each.quality_target.low <= each.quality_target.value <= each.quality_target.high
               for each in answers.values())  # fmt: skip


def test_shipped_programs_spread_over_the_classes(answers: dict[str, Classification]) -> None:
    needed = [each.quality_target.value for each in answers.values()]
    classes = QualityClasses.of(needed)
    found = np.bincount([classes.level(each) for each in needed], minlength=classes.count)
    assert np.count_nonzero(found) >= 7
    assert found.max() <= len(needed) // 2


def test_only_sources_that_tell_shipped_programs_apart_count(shipped: FittedClassifier) -> None:
    sources, all_of_them = shipped.scale.sources, sorted(shipped.scale.sources)
    counted = shipped.scale.counted(all_of_them)
    assert counted and set(counted) < set(all_of_them)
    assert all((sources[each].reliability >= RELIABLE) == (each in counted) for each in all_of_them)
    assert not set(all_of_them) & (CORE_SOURCES | NOT_COUNTED)


def programs(llc: list[float], spread: float, network: list[float] | None = None) -> Library:
    """Return programs that tolerate so much, read with these 95 % limits."""
    known = Library()
    for number, value in enumerate(llc):
        cells = {"llc-capacity": value} | ({} if network is None else {"network-bandwidth": network[number]})
        known = known.learn(
            MeasuredApplication(
                name=f"program{number}",
                cells={Question.TOLERATED: cells},
                spreads={Question.TOLERATED: dict.fromkeys(cells, spread)},
            )
        )
    return known


def test_precise_readings_are_believed_and_vague_ones_are_near_the_mean_of_programs() -> None:
    values = [20.0, 30.0, 40.0, 50.0, 60.0, 70.0]
    for spread, least, most in ((1.0, 0.78, 0.81), (35.0, 0.55, 0.75)):
        known = programs(values, spread)
        found = Classifier().fit(known).classify(known.known["program0"]).quality_target
        assert least <= found.value <= most  # the mean program tolerates 45
        assert found.low <= found.value <= found.high


def test_without_a_reliable_source_all_that_reach_a_job_count_but_differ_little() -> None:
    known = programs([48.0, 49.0, 50.0, 51.0, 52.0, 53.0], 40.0)
    fitted = Classifier().fit(known)
    assert fitted.scale.sources["llc-capacity"].reliability < RELIABLE
    needed = [fitted.classify(each).quality_target.value for each in known.known.values()]
    assert needed == pytest.approx([0.495] * 6, abs=0.01)


def test_a_program_with_an_unreliable_source_is_not_judged_by_it() -> None:
    known = programs([20.0, 35.0, 50.0, 65.0, 80.0, 95.0], 5.0, network=[50.0, 51.0, 52.0, 50.0, 51.0, 9.0])
    fitted = Classifier().fit(known)
    assert fitted.scale.counted(["llc-capacity", "network-bandwidth"]) == ["llc-capacity", "network-bandwidth"]
    vague = programs([20.0, 35.0, 50.0, 65.0, 80.0, 95.0], 5.0, network=[50.0, 51.0, 52.0, 50.0, 51.0, 49.0])
    assert Classifier().fit(vague).scale.counted(["llc-capacity", "network-bandwidth"]) == ["llc-capacity"]


def test_what_a_program_causes_does_not_raise_what_it_needs() -> None:
    known = programs([20.0, 30.0, 40.0, 50.0, 60.0, 70.0], 1.0)
    calm = known.known["program0"]
    loud = MeasuredApplication(
        name=calm.name, cells={**calm.cells, Question.CAUSED: {"llc-capacity": 99.0}}, spreads=calm.spreads
    )
    fitted = Classifier().fit(known)
    assert fitted.classify(loud).quality_target == fitted.classify(calm).quality_target


def test_a_job_of_which_no_tolerated_pressure_is_known_needs_any_quality() -> None:
    nothing = np.empty((1, 0))
    none = Estimates(columns=(), values=nothing, low=nothing, high=nothing, observed=nothing > 0)
    assert ToleranceScale().needed(none, nothing, nothing) == [UNKNOWN]
