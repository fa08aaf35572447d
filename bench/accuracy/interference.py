"""Interference: what two or four sources predict of the others, every program of the shipped library left out in turn.

Errors are those of all sources, those that were measured counting as known, so that methods that measure different
ones can be compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from hcloud.classifier.classify import METHODS, Classifier, FittedClassifier
from hcloud.classifier.estimator import Estimator
from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.classifier.source_selection import choose_sources, source_prior
from hcloud.config import load_library, package_data
from hcloud.core.estimates import SOURCES

QUESTIONS = (Question.TOLERATED, Question.CAUSED)
COUNTED = frozenset(SOURCES) - CORE_SOURCES - NOT_COUNTED
ASKED = [source for source in SOURCES if source in COUNTED - {"network-bandwidth"}]
Errors = Mapping[Question, Sequence[tuple[str, float]]]
Choice = Callable[[FittedClassifier], tuple[str, ...]]


def report() -> None:
    """Print the mean error in points of the sources that decisions count, and of all, by how two are chosen."""
    library = load_library([package_data.path("profiles")])
    fitted = {name: fitted_without(library, name) for name in library.known}
    print(f"\ninterference: all sources from some ({len(library.known)} programs, each left out); mean error, points")
    print(f"  {'':<44}{'quality':>10}{'tolerated':>12}{'caused':>12}{'both, all sixteen':>20}")
    for title, choose in _choices():
        found = [_errors(library.known[name], known, choose(known)) for name, known in fitted.items()]
        counted = [_mean(found, question, COUNTED) for question in QUESTIONS]
        whole = sum(_mean(found, question, frozenset(SOURCES)) for question in QUESTIONS) / len(QUESTIONS)
        needed = float(np.mean([_quality_error(library.known[n], each, choose(each)) for n, each in fitted.items()]))
        print(f"  {title:<44}{needed:>10.1f}{counted[0]:>12.1f}{counted[1]:>12.1f}{whole:>20.1f}")


def _choices() -> Iterator[tuple[str, Choice]]:
    yield "chosen, on two machines (the product)", lambda known: chosen_sources(known, machines=2)
    yield "chosen, on one", lambda known: chosen_sources(known, machines=1)
    storage, memory = ("llc-capacity", "storage-bandwidth"), ("llc-capacity", "memory-bandwidth")
    for pair in (storage, memory, ("floating-point", "llc-capacity")):
        yield f"always {' and '.join(pair)}", lambda _, pair=pair: pair  # type: ignore[misc]
    rng, pairs = np.random.default_rng(0), list(itertools.combinations(ASKED, 2))
    yield "any two that count, at random", lambda _: pairs[int(rng.integers(len(pairs)))]
    yield "none", lambda _: ()


def chosen_sources(known: FittedClassifier, machines: int) -> tuple[str, ...]:
    """Return the sources that the product measures of an unknown program on so many machines."""
    prior, found = source_prior(known.fitted, known.scale), tuple[str, ...]()
    for _ in range(machines):
        found += choose_sources(prior, left_out={"network-bandwidth"}, besides=found).sources
    return found


def fitted_without(library: Library, name: str, methods: Mapping[Question, Estimator] = METHODS) -> FittedClassifier:
    """Return what is known of tolerated and caused pressure without a program, with all its inputs."""
    program = library.known[name].program
    others = {other: row for other, row in library.known.items() if other != name and row.program != program}
    asked = {question: methods[question] for question in QUESTIONS}
    return Classifier(methods=asked).fit(Library(known=others))


def _errors(truth: MeasuredApplication, known: FittedClassifier, pair: Sequence[str]) -> Errors:
    found: dict[Question, list[tuple[str, float]]] = {}
    for question in QUESTIONS:
        row = truth.cells.get(question, {})
        completion = known.fitted[question].complete({source: row[source] for source in pair if source in row})
        values = dict(zip(completion.columns, completion.values, strict=True))
        found[question] = [(s, abs(float(values[s]) - measured)) for s, measured in row.items() if s in values]
    return found


def _quality_error(truth: MeasuredApplication, known: FittedClassifier, pair: Sequence[str]) -> float:
    """Return how far the needed quality is off, in points: 100 minus what is tolerated of the least tolerated of the
    sources that needed quality counts."""
    row = truth.cells[Question.TOLERATED]
    completion = known.fitted[Question.TOLERATED].complete({source: row[source] for source in pair if source in row})
    values = dict(zip(completion.columns, completion.values, strict=True))
    counted = known.scale.counted([source for source in row if source in values])
    return float(abs(min(row[source] for source in counted) - min(values[source] for source in counted)))


def _mean(found: Sequence[Errors], question: Question, sources: frozenset[str]) -> float:
    return float(np.mean([error for each in found for source, error in each[question] if source in sources]))
