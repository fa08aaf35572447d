"""ExpectedSlowdown models: what each learns of programs that slow each other down by a known rule."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from hcloud.classifier.slowdown import pair_table
from hcloud.classifier.slowdown.esp import LEAST_ROWS, Esp
from hcloud.classifier.slowdown.forecasts import (
    LEAST_GROUPS,
    PAIR_TABLE,
    PRESSURES,
    BlendedSlowdown,
    ByPressure,
    fit_in_steps,
)
from hcloud.classifier.slowdown.pair_table import USUAL_PRESSURE, PairTable
from hcloud.classifier.slowdown.table import CoRunQuestion, CoRunTable, ExpectedSlowdown, FittedSlowdown, SlowdownModel
from tests.classifier.slowdown.worlds import PROGRAMS, CombinationWorld, CurvedWorld, PairWorld, question


def answer(fitted: FittedSlowdown, asked: CoRunQuestion) -> ExpectedSlowdown:
    found = fitted.slowdown(asked)
    assert found is not None
    return found


def errors(fitted: FittedSlowdown, world: PairWorld, size: int) -> list[float]:
    """Errors of the logarithm for each program of each group of a size."""
    return [
        answer(fitted, question(each, group)).mean - world.longer(each, (name for name in group if name != each))
        for group in world.groups(size)
        for each in group
    ]


def with_pressures(table: CoRunTable, longer: float) -> CoRunTable:
    questions = [each._replace(longer_by_pressure=longer) for each in table.questions]
    return replace(table, questions=questions)


def blended(table: CoRunTable, models: dict[str, SlowdownModel] | None = None) -> BlendedSlowdown:
    steps = fit_in_steps(table) if models is None else fit_in_steps(table, models)
    try:
        while True:
            next(steps)
    except StopIteration as done:
        result: BlendedSlowdown = done.value
        return result


# ----------------------------------------------------------------------------------------------------------- pair table
def test_pairs_tell_of_larger_groups() -> None:
    world = PairWorld()
    fitted = PairTable().fit(world.table(world.groups(2)))
    assert max(map(abs, errors(fitted, world, 3))) < 0.05
    assert max(map(abs, errors(fitted, world, 5))) < 0.1


def test_pairs_tell_of_whom_a_crowd_slows_more_than_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    world = CurvedWorld()
    pairs = world.table(world.groups(2))
    found = {size: errors(PairTable().fit(pairs), world, size) for size in (2, 3, 5)}
    assert max(map(abs, found[2])) < 0.03
    monkeypatch.setattr("hcloud.classifier.slowdown.pair_table.EXPONENTS", (1.0, 1.0))
    sums = {size: errors(PairTable().fit(pairs), world, size) for size in (3, 5)}
    for size in (3, 5):
        assert float(np.mean(np.abs(found[size]))) < 0.75 * float(np.mean(np.abs(sums[size]))), "as sums would be found"


def test_two_neighbours_that_cost_more_together_do_so_in_larger_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    world = CombinationWorld()
    table = world.table([*world.groups(2), *world.groups(3)])
    asked = [question(own, (own, "b", "c", other)) for own in "adefgh" for other in "adefgh" if own != other]
    truth = [world.longer(each.application, each.neighbours) for each in asked]

    def error() -> float:
        fitted = PairTable().fit(table)
        found = [answer(fitted, each).mean for each in asked]
        return float(np.mean(np.abs(np.array(found) - truth)))

    by_combinations = error()
    for name in ("UNPROFILED", "PROFILED"):
        prior = getattr(pair_table, name)._replace(combination=0.0)
        monkeypatch.setattr(pair_table, name, prior)
    assert by_combinations < 0.8 * error(), "one effect of all crowds says less"


def test_pressures_are_what_is_expected_of_a_crowd_that_nothing_was_observed_of() -> None:
    world = CurvedWorld()
    known = with_pressures(world.table([group for group in world.groups(2) if "a" not in group]), 0.3)
    fitted = PairTable().fit(known)
    assert answer(fitted, question("a", "abc", by_pressure=0.3)).mean == pytest.approx(math.log(1.3))


def test_two_strong_neighbours_tell_much_of_a_new_program() -> None:
    world, before, after = PairWorld(), list[float](), list[float]()
    for new in PROGRAMS:
        known = [group for group in world.groups(2) if new not in group]
        others = sorted((each for each in PROGRAMS if each != new), key=lambda each: -float(world.features[each][1]))
        for groups, found in ((known, before), ([*known, (new, others[0]), (new, others[1])], after)):
            fitted = PairTable().fit(world.table(groups))
            said = [answer(fitted, question(new, (new, each))).mean for each in others[2:]]
            found += [abs(mean - world.longer(new, (each,))) for mean, each in zip(said, others[2:], strict=True)]
    assert float(np.mean(after)) < 0.7 * float(np.mean(before))


def test_what_is_known_of_neither_is_not_answered_and_a_pressure_is_repeated() -> None:
    fitted = PairTable().fit(PairWorld().table([("a", "b")]))
    assert fitted.slowdown(question("x", "xy")) is None
    said = answer(fitted, question("x", "xy", by_pressure=0.5))
    assert said.mean == pytest.approx(math.log(1.5)) and said.deviation > 0.05
    known = answer(fitted, question("a", "ay"))
    assert known.mean == pytest.approx(math.log1p(USUAL_PRESSURE), abs=0.1)


def test_doubt_falls_with_what_was_observed() -> None:
    world = PairWorld()
    fitted = PairTable().fit(world.table([("a", "b"), ("a", "c"), ("c", "d")]))
    seen, unseen, new = (answer(fitted, question(each, each + "b")).deviation for each in "ach")
    assert seen < unseen < new


def test_another_type_tells_a_part() -> None:
    world = PairWorld()
    here = PairTable().fit(with_pressures(world.table([("a", "b")]), 0.01))
    asked = question("a", "ab", by_pressure=0.01)
    same, other = answer(here, asked), answer(here, asked._replace(type_column="mock/large"))
    assert 0.01 < other.mean < same.mean == pytest.approx(world.longer("a", "b"), rel=0.1)
    assert other.deviation > same.deviation


def test_surprises_are_added_to_what_they_were_relative_to() -> None:
    world = PairWorld()
    fitted = PairTable().fit(world.table([("a", "b")]))
    assert answer(fitted, question("a", "ab", by_pressure=5.0)).mean == pytest.approx(world.longer("a", "b"), rel=0.1)


def test_an_empty_table_is_fitted() -> None:
    fitted = PairTable().fit(PairWorld().table([]))
    assert fitted.slowdown(question("a", "ab")) is None


NAMES = st.sampled_from(PROGRAMS)
GROUPS = st.lists(st.lists(NAMES, min_size=2, max_size=4, unique=True).map(tuple), min_size=1, max_size=12)
Fit = Callable[[CoRunTable], FittedSlowdown]


def slowdowns_are_sane(fit: Fit, groups: list[tuple[str, ...]], asked: tuple[str, ...]) -> None:
    """Raise AssertionError if an order of rows or neighbours matters, or a run is shortened, or doubt is no number."""
    table = PairWorld(1).table(groups)
    turned = table.take(np.arange(len(table))[::-1])
    first, second = fit(table), fit(turned)
    one = first.slowdown(question(asked[0], asked))
    two = second.slowdown(question(asked[0], asked[::-1]))
    assert (one is None) is (two is None)
    if one is not None and two is not None:
        assert one.mean >= 0.0 and math.isfinite(one.mean) and 0.0 < one.deviation < math.inf
        assert one.mean == pytest.approx(two.mean, abs=1e-6)
        assert one.deviation == pytest.approx(two.deviation, rel=1e-4)


@given(GROUPS, st.lists(NAMES, min_size=2, max_size=4, unique=True).map(tuple))
@settings(max_examples=60)
def test_neighbours_never_speed_up_and_order_does_not_matter(
    groups: list[tuple[str, ...]], asked: tuple[str, ...]
) -> None:
    slowdowns_are_sane(PairTable().fit, groups, asked)


class ForgetsTheLast:
    """Seeded fault: the order of neighbours matters."""

    def __init__(self, table: CoRunTable) -> None:
        self.fitted = PairTable().fit(table)

    def slowdown(self, asked: CoRunQuestion) -> ExpectedSlowdown | None:
        return self.fitted.slowdown(asked._replace(neighbours=asked.neighbours[:-1]))


class Unbounded:
    """Seeded fault: what is learnt is not kept from falling below nothing."""

    def __init__(self, table: CoRunTable) -> None:
        self.fitted = PairTable().fit(table)

    def slowdown(self, asked: CoRunQuestion) -> ExpectedSlowdown | None:
        found = self.fitted.slowdown(asked)
        return None if found is None else found._replace(mean=found.mean - 0.2)


@pytest.mark.parametrize("fault", [ForgetsTheLast, Unbounded])
def test_seeded_faults_of_models_are_caught(fault: Fit) -> None:
    @seed(0)
    @settings(max_examples=100, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    @given(GROUPS, st.lists(NAMES, min_size=2, max_size=4, unique=True).map(tuple))
    def check(groups: list[tuple[str, ...]], asked: tuple[str, ...]) -> None:
        slowdowns_are_sane(fault, groups, asked)

    with pytest.raises(AssertionError):
        check()


# ------------------------------------------------------------------------------------------------------------------ ESP
@pytest.mark.parametrize("log_link", [False, True])
def test_esp_tells_of_groups_that_were_not_observed(log_link: bool) -> None:
    world = PairWorld(noise=0.02)
    groups = world.groups(3)
    fitted = Esp(log_link=log_link).fit(world.table(groups[::2]))
    truth = [world.longer(each, [name for name in group if name != each]) for group in groups[1::2] for each in group]
    said = [answer(fitted, question(each, group)).mean for group in groups[1::2] for each in group]
    assert np.abs(np.array(said) - truth).mean() < 0.5 * np.abs(np.array(truth) - np.mean(truth)).mean()


def test_esp_says_nothing_of_programs_without_features_or_of_few_observations() -> None:
    world = PairWorld()
    both = [*world.groups(2), *((b, a) for a, b in world.groups(2))]
    fitted = Esp(log_link=True).fit(world.table(both))
    assert fitted.slowdown(question("a", "ab")) is not None
    assert fitted.slowdown(question("a", "ax")) is None and fitted.slowdown(question("x", "xa")) is None
    assert fitted.slowdown(question("a", "abc")) is None
    extended = Esp(log_link=True, extrapolates=True).fit(world.table(both))
    assert extended.slowdown(question("a", "abc")) is not None
    few = Esp(log_link=True).fit(world.table(world.groups(2)[: LEAST_ROWS // 2 - 1]))
    assert few.slowdown(question("a", "ab")) is None


# ---------------------------------------------------------------------------------------------------------------- blend
class Oracle:
    """Knows the truth, as far as it is sure."""

    def __init__(self, world: PairWorld, error: float) -> None:
        self.world, self.error = world, error

    def fit(self, _: CoRunTable) -> "Oracle":
        return self

    def slowdown(self, asked: CoRunQuestion) -> ExpectedSlowdown:
        return ExpectedSlowdown(self.world.longer(asked.application, asked.neighbours) + self.error, 0.05)


def test_the_model_with_the_least_held_out_error_is_used_beside_pressures() -> None:
    world = PairWorld()
    table = with_pressures(world.table(world.groups(2)), 1.0)
    models = {PAIR_TABLE: Oracle(world, 0.5), "good": Oracle(world, 0.1), PRESSURES: ByPressure()}
    found = blended(table, models)
    assert found.errors["good"] == pytest.approx(0.1) and found.errors[PAIR_TABLE] == pytest.approx(0.5)
    asked = question("a", "ab", by_pressure=1.0)
    said, truth = answer(found, asked), world.longer("a", "b")
    assert min(truth + 0.1, math.log(2.0)) < said.mean < max(truth + 0.1, math.log(2.0))
    # Its own limits were too narrow: its error is twice what it says.
    assert abs(said.mean - truth - 0.1) < 0.5 * abs(math.log(2.0) - truth - 0.1)
    assert said.deviation == pytest.approx(0.1, rel=0.1)


class Silent(Oracle):
    """Knows the truth of pairs only."""

    def slowdown(self, asked: CoRunQuestion) -> ExpectedSlowdown | None:  # type: ignore[override]
        return super().slowdown(asked) if len(asked.neighbours) == 1 else None


def test_where_the_best_model_says_nothing_the_pair_table_does() -> None:
    world = PairWorld()
    found = blended(world.table(world.groups(2)), {PAIR_TABLE: PairTable(), "best": Silent(world, 0.0)})
    assert min(found.errors, key=lambda name: found.errors[name]) == "best"
    assert answer(found, question("a", "ab")).mean == pytest.approx(world.longer("a", "b"))
    assert answer(found, question("a", "abc")).mean == pytest.approx(world.longer("a", "bc"), abs=0.05)


def test_few_groups_are_learnt_by_pairs_alone() -> None:
    world = PairWorld()
    found = blended(world.table(world.groups(2)[: LEAST_GROUPS - 1]))
    assert found.errors == {}
    assert answer(found, question("a", "ab")).mean == pytest.approx(world.longer("a", "b"), abs=0.05)


def test_all_models_are_judged_where_all_is_known() -> None:
    world = PairWorld(noise=0.03)
    found = blended(with_pressures(world.table(world.groups(3)), 0.3))
    assert set(found.errors) == {"pair table", "ESP", "ESP, log link", PRESSURES}
    assert min(found.errors, key=lambda name: found.errors[name]) == "pair table"
    assert found.errors["pair table"] < 0.5 * found.errors[PRESSURES]
    said = [answer(found, question(each, "abc", by_pressure=0.3)).mean for each in "abc"]
    truth = [world.longer(each, [name for name in "abc" if name != each]) for each in "abc"]
    assert said == pytest.approx(truth, abs=0.1)
