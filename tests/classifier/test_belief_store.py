"""The belief store classifies each application once per change, however often it is queried."""

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pytest

from hcloud.classifier.belief_store import CLASSIFIED_AT_ONCE, BeliefStore
from hcloud.classifier.classify import Classifier, FittedClassifier
from hcloud.classifier.gaussian import GaussianFoldIn, Moments
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.classifier.utility_matrix import MeasuredRows
from hcloud.core.estimates import Application, Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting(Classifier):
    """A classifier that counts its fits and their rows."""

    fits: list[int] = field(default_factory=list)

    def fit(self, library: Library, before: FittedClassifier | None = None) -> FittedClassifier:
        self.fits.append(len(library.known))
        return Classifier.fit(self, library, before)


def test_how_sure_answers_are_is_judged_anew_only_with_many_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    stretch = GaussianFoldIn._stretch

    def counted(method: GaussianFoldIn, known: MeasuredRows, of_all: Moments) -> float:
        judged.append(len(known))
        return stretch(method, known, of_all)

    monkeypatch.setattr(GaussianFoldIn, "_stretch", counted)
    book, known = BeliefStore(), {}
    for number in range(1, 41):
        known[f"ann:p{number}~1"] = row(number)
        book.follow(MappingProxyType(dict(known)))
        book.believe([f"ann:p{number}~1"])
    by_step = sorted(set(judged))
    assert by_step[-1] > 20
    assert all(after > 1.5 * before for before, after in pairwise(by_step))


def row(number: int = 1, revision: int = 1, **changes: object) -> Application:
    plain = Application(
        name=f"ann:p{number}~1",
        program=f"ann:p{number}",
        inputs={"own": 1.0, "half" + "0" * 12: 0.5, "unknown": 0.0},
        measure=Measure.PROGRESS,
        cells={"type": {"mock/small": 2.0}, "step": {"1 vCPU": 2.0, "2 vCPU": 3.0 + number % 3}},
        profiled_at=1.0,
        revision=revision,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def rows(*known: Application) -> MappingProxyType[str, Application]:
    return MappingProxyType({each.name: each for each in known})


def test_belief_carries_the_measure_and_is_made_once() -> None:
    book, known = BeliefStore(), rows(row())
    book.follow(known)
    first = book.believe(["ann:p1~1", "nobody"])
    assert list(first) == ["ann:p1~1"]
    assert first["ann:p1~1"].measure is Measure.PROGRESS
    assert book.believe(["ann:p1~1"])["ann:p1~1"] is first["ann:p1~1"]


def test_other_inputs_have_their_own_scale_or_none() -> None:
    book = BeliefStore()
    book.follow(rows(row()))
    beliefs = book.believe(["ann:p1~1", "ann:p1~1#half000000000000", "ann:p1~1#unknown"])
    whole, half, unknown = (each.by_type["mock/small"].value for each in beliefs.values())
    assert half == pytest.approx(whole / 2)
    assert unknown == whole
    assert [each.measure for each in beliefs.values()] == [Measure.PROGRESS, Measure.PROGRESS, None]


def test_one_call_classifies_only_so_many() -> None:
    book, known = BeliefStore(), [row(number) for number in range(3 * CLASSIFIED_AT_ONCE)]
    book.follow(rows(*known))
    names = [each.name for each in known]
    assert [len(book.believe(names)) for _ in range(4)] == [
        CLASSIFIED_AT_ONCE, 2 * CLASSIFIED_AT_ONCE, 3 * CLASSIFIED_AT_ONCE, 3 * CLASSIFIED_AT_ONCE,
    ]  # fmt: skip


def test_estimators_are_fitted_anew_only_when_a_good_part_has_changed() -> None:
    classifier = Counting()
    library = Library(
        known={f"l{n}": MeasuredApplication(name=f"l{n}", cells={Question.CAUSED: {"l2": n}}) for n in range(40)}
    )
    book = BeliefStore(library=library, classifier=classifier)
    known: list[Application] = []
    for number in range(12):
        known.append(row(number))
        book.follow(rows(*known))
        book.believe([each.name for each in known])
    assert classifier.fits == [41, 50]


def test_rows_of_a_program_are_found_and_those_of_others_are_not() -> None:
    book, other = BeliefStore(), row(1, name="ann:p1~2")
    book.follow(rows(row(1), other))
    before = book.programs
    book.follow(rows(changed := row(1, revision=9), row(2), other))
    assert before == {"ann:p1": (row(1), other)}
    assert book.programs == {"ann:p1": (changed, other), "ann:p2": (row(2),)}


def test_cell_measured_after_it_was_estimated_is_a_surprise_once() -> None:
    book = BeliefStore(library=Library(known={
        f"l{n}": MeasuredApplication(
            name=f"l{n}", cells={Question.STEP: {"1 vCPU": 2.0, "2 vCPU": 3.0, "4 vCPU": 4.0 + n / 9}}
        )
        for n in range(9)
    }))  # fmt: skip
    before = row(runs=("job-2",))
    book.follow(rows(before))
    book.believe([before.name])
    cells = {**before.cells, "step": {**before.cells["step"], "4 vCPU": 9.0}}
    book.follow(rows(replace(before, cells=cells, revision=2, runs=("job-2", "job-3"))))
    (found,) = book.surprises
    assert (found.question, found.column, found.measured) == ("step", "4 vCPU", 9.0)
    assert found.estimate.low < found.estimate.value < found.estimate.high
    book.surprises.clear()
    book.believe([before.name])
    book.follow(rows(replace(before, cells=cells, revision=3, runs=("job-2", "job-3"), run_s=4.0)))
    assert book.surprises == []


def test_belief_is_no_surer_than_the_measurements_it_rests_on() -> None:
    sure, unsure = row(1), row(2, spreads={"type": {"mock/small": 0.7}, "step": {"1 vCPU": 0.0, "2 vCPU": 0.0}})
    book = BeliefStore()
    book.follow(rows(sure, unsure))
    narrow, wide = (each.by_type["mock/small"] for each in book.believe([sure.name, unsure.name]).values())
    assert narrow.high / narrow.low < 1.5
    assert wide.high / wide.low > 2.0
    assert wide.low < wide.value < wide.high


def test_measured_pressure_is_as_sure_as_its_limits_say() -> None:
    cells = {"caused": {"llc-capacity": 6.0, "memory-bandwidth": 6.0}}
    book, one = BeliefStore(), row(1, cells=cells, spreads={"caused": {"llc-capacity": 1.0, "memory-bandwidth": 0.0}})
    book.follow(rows(one))
    caused = book.believe([one.name])[one.name].caused
    stated, usual = caused["llc-capacity"], caused["memory-bandwidth"]
    assert stated.high - stated.value == pytest.approx(0.654, abs=0.03)
    assert stated.value - stated.low == pytest.approx(0.654, abs=0.03)
    assert usual.high - usual.value == pytest.approx(2.05, abs=0.01)  # where nothing was said


def test_types_are_chosen_that_tell_most_together_and_twins_are_not() -> None:
    shapes = {"fast": 1.0, "slow": 0.0, "other": -1.0}
    cells = {
        f"p{number}": {
            Question.TYPE: {
                **{name: math.exp(slope * bend + 0.01 * (number % 3)) for name, slope in shapes.items()},
                "twin": math.exp(bend + 0.001 * number),
            }
        }
        for number, bend in enumerate(np.linspace(-1, 1, 12))
    }
    known = {name: MeasuredApplication(name=name, cells=each) for name, each in cells.items()}
    book = BeliefStore(library=Library(known=known))
    prior = book.type_prior()
    assert prior is not None and book.type_prior() is prior
    every = ("fast", "twin", "slow", "other")
    assert set(prior.most_telling(every, 2, one_of=every)) in ({"fast", "other"}, {"twin", "other"})
    assert "other" in prior.most_telling(every, 1, one_of=every, already=("fast",))
    assert "slow" in prior.most_telling(every, 2, one_of=("slow",))
    assert prior.most_telling(every, 2, one_of=()) == prior.most_telling(("nobody knows",), 2, one_of=every) == ()
    assert BeliefStore().type_prior() is None
