"""Selection of the interference sources to profile with: those that tell best what quality a job needs."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hcloud.classifier.classify import Classifier
from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED
from hcloud.classifier.library import Library, MeasuredApplication, Question
from hcloud.classifier.source_selection import SURE_BY, Pressing, SourcePrior, choose_sources, source_prior
from hcloud.config import load_library, package_data
from hcloud.core.estimates import SOURCES, Application

COUNTED = [source for source in SOURCES if source not in CORE_SOURCES | NOT_COUNTED]
USUAL = ("llc-capacity", "storage-bandwidth")
DEFAULTS = (*USUAL, "memory-bandwidth", "memory-capacity")


def library(programs: int, seed: int = 0) -> Library:
    """Programs with pressures determined by how much they write and how much memory they hold."""
    rng, known = np.random.default_rng(seed), {}
    for number in range(programs):
        disk, memory = rng.uniform(10, 90, 2)
        row = dict.fromkeys(SOURCES, 50.0) | {
            "storage-bandwidth": disk, "storage-capacity": disk, "network-bandwidth": disk,
            "memory-capacity": memory, "llc-bandwidth": memory, "floating-point": rng.uniform(0, 100),
        }  # fmt: skip
        known[f"p{number}"] = MeasuredApplication(
            name=f"p{number}", cells={Question.TOLERATED: row, Question.CAUSED: row}
        )
    return Library(known=known)


def prior_of(programs: Library) -> SourcePrior | None:
    fitted = Classifier().fit(programs)
    return source_prior(fitted.fitted, fitted.scale)


def test_one_source_of_each_kind_is_chosen_and_it_is_said_what_that_leaves() -> None:
    found = choose_sources(prior_of(library(40)))
    disk, memory = {"storage-bandwidth", "storage-capacity", "network-bandwidth"}, {"memory-capacity", "llc-bandwidth"}
    assert len(disk & set(found.sources)) == len(memory & set(found.sources)) == 1
    assert found.why.startswith("leaving ")
    assert choose_sources(prior_of(Library(known=dict(reversed(library(40).known.items()))))) == found


def test_usual_pair_is_asked_while_little_is_known() -> None:
    for known in (Library(), library(4)):
        assert prior_of(known) is None
    assert choose_sources(None).sources == USUAL
    assert "the defaults: fewer than 5 programs" in choose_sources(None).why
    assert choose_sources(None, left_out={"llc-capacity"}).sources == ("storage-bandwidth", "memory-bandwidth")


def test_what_another_run_measures_is_not_asked_and_tells_what_to_ask() -> None:
    assert set(choose_sources(None, besides=USUAL).sources).isdisjoint(USUAL)
    prior = prior_of(library(40))
    memory = {"memory-capacity", "llc-bandwidth"}
    apart = choose_sources(prior, besides=("storage-bandwidth", "llc-capacity"), left_out={"network-bandwidth"})
    assert set(apart.sources) & memory


def test_sources_that_few_programs_were_measured_beside_are_not_chosen() -> None:
    known = dict(library(40).known)
    for name in list(known)[4:]:
        cells = {q: {s: v for s, v in row.items() if s != "memory-capacity"} for q, row in known[name].cells.items()}
        known[name] = replace(known[name], cells=cells)
    prior = prior_of(Library(known=known))
    assert prior is not None and "memory-capacity" not in prior.sources
    assert "llc-bandwidth" in choose_sources(prior).sources


def test_further_profile_asks_what_is_least_known() -> None:
    prior = prior_of(library(40))
    cells = dict.fromkeys(("storage-bandwidth", "storage-capacity", "network-bandwidth"), 40.0)
    surely = Application(name="a", program="a", cells={q.value: cells for q in (Question.TOLERATED, Question.CAUSED)})
    again = choose_sources(prior, row=surely).sources
    assert set(again) & {"memory-capacity", "llc-bandwidth"}
    assert set(again).isdisjoint(cells)
    hardly = replace(surely, spreads={q: dict.fromkeys(row, 95.0) for q, row in surely.cells.items()})
    assert set(choose_sources(prior, row=hardly).sources) & set(cells)


def test_shipped_programs_differ_most_in_caches_and_storage() -> None:
    shipped = prior_of(load_library([package_data.path("profiles")]))
    assert shipped is not None
    assert set(choose_sources(shipped).sources) == {"llc-capacity", "storage-bandwidth"}


def test_pairs_that_are_about_as_good_do_not_take_turns() -> None:
    """Programs of three kinds, each sensitive to one source: every pair misses one kind, and which is chance."""
    kinds = ("memory-bandwidth", "llc-capacity", "storage-bandwidth")
    rng, known = np.random.default_rng(0), {}
    for number in range(20):
        row = {source: rng.uniform(90, 100) for source in SOURCES} | {kinds[number % 3]: rng.uniform(0, 10)}
        known[f"p{number}"] = MeasuredApplication(name=f"p{number}", cells={Question.TOLERATED: row})
    for name in known:
        others = Library(known={other: row for other, row in known.items() if other != name})
        assert set(choose_sources(prior_of(others)).sources) == set(USUAL), name


# ----------------------------------------------------------------------------------------------------------- properties
Choose = Callable[..., Pressing]


def left_by(prior: SourcePrior, pair: tuple[str, ...]) -> list[float]:
    """The errors in points of the qualities the programs need, by textbook regression of each source on the pair."""
    index, missed = [prior.sources.index(each) for each in pair], []
    own = prior.covariance[np.ix_(index, index)] + 0.02**2 * np.eye(len(index))
    for program in prior.programs:
        found = [
            prior.mean[at] + np.linalg.solve(own, prior.covariance[index, at]) @ (program[index] - prior.mean[index])
            for at in range(len(prior.sources))
        ]
        counted = [prior.sources.index(each) for each in prior.counted]
        borne = [
            100.0 * math.sin(math.pi / 2 * min(1.0, max(0.0, min(each[at] for at in counted)))) ** 2
            for each in (found, program)
        ]
        missed.append(abs(borne[0] - borne[1]))
    return missed


def least_is_left_of_what_can_be_had(choose: Choose, prior: SourcePrior, left_out: set[str]) -> None:
    """Assert that both sources are available and leave the least, or are the usual pair and none surely leaves less."""
    found = choose(prior, left_out=left_out).sources
    free = [source for source in prior.sources if source not in left_out]
    assert len(set(found)) == min(2, len(free)) and set(found) <= set(free), found
    errors = left_by(prior, found)
    gains = [
        [own - other for own, other in zip(errors, left_by(prior, pair), strict=True)]
        for pair in combinations(free, min(2, len(free)))
    ]
    best = max(gains, key=fmean)
    usual = set(found) == set([source for source in DEFAULTS if source in free][:2])
    assert fmean(best) <= (SURE_BY * stdev(best) / math.sqrt(len(best)) if usual else 0.0) + 1e-9


def always_the_usual(prior: SourcePrior, *, left_out: set[str]) -> Pressing:
    """Seeded fault: always chooses the same two."""
    return Pressing(sources=USUAL, why="")


def most_varied(prior: SourcePrior, *, left_out: set[str]) -> Pressing:
    """Seeded fault: takes the two with the highest variance, although they may be correlated."""
    ranked = sorted(
        (s for s in prior.sources if s not in left_out),
        key=lambda s: -prior.covariance.diagonal()[prior.sources.index(s)],
    )
    return Pressing(sources=tuple(ranked[:2]), why="")


def least_uncertain(prior: SourcePrior, *, left_out: set[str]) -> Pressing:
    """Seeded fault: minimises the mean uncertainty of all sources, also of those that every program bears."""

    def uncertainty(pair: tuple[int, ...]) -> float:
        own = prior.covariance[np.ix_(pair, pair)] + 0.02**2 * np.eye(len(pair))
        told = prior.covariance[:, pair] @ np.linalg.solve(own, prior.covariance[list(pair)])
        return float(np.sqrt(np.maximum((prior.covariance - told).diagonal(), 0.0)).sum())

    free = [at for at, source in enumerate(prior.sources) if source not in left_out]
    best = min(combinations(free, min(2, len(free))), key=uncertainty)
    return Pressing(sources=tuple(prior.sources[at] for at in best), why="")


def sources_that_do_not_count(prior: SourcePrior, *, left_out: set[str]) -> Pressing:
    """Seeded fault: judges by all sources, also by those whose readings do not distinguish programs."""
    return choose_sources(replace(prior, counted=prior.sources), left_out=left_out)


def whatever_is_missing(prior: SourcePrior, *, left_out: set[str]) -> Pressing:
    """Seeded fault: ignores which sources the machine cannot generate."""
    return choose_sources(prior)


@st.composite
def priors(draw: st.DrawFn) -> tuple[SourcePrior, set[str]]:
    """Programs that differ by few factors, of which some sources are hardly felt; up to five unavailable sources."""
    rng, size = np.random.default_rng(draw(st.integers(0, 10_000))), len(COUNTED)
    load, mean = rng.normal(0, 0.2, (size, draw(st.integers(1, 3)))), rng.uniform(0.4, 0.95, size)
    covariance = load @ load.T + 0.0009 * np.eye(size)
    programs = np.clip(rng.multivariate_normal(mean, covariance, 20), 0.0, 1.0)
    left_out = draw(st.sets(st.sampled_from(COUNTED), max_size=5))
    counted = tuple(sorted(draw(st.sets(st.sampled_from(COUNTED), min_size=3)), key=COUNTED.index))
    prior = SourcePrior(
        sources=tuple(COUNTED), mean=mean, covariance=covariance, programs=programs, rows=20, counted=counted
    )
    return prior, left_out


@settings(max_examples=25, deadline=None, phases=[Phase.generate])
@given(priors())
def test_least_is_left_in_doubt(drawn: tuple[SourcePrior, set[str]]) -> None:
    least_is_left_of_what_can_be_had(choose_sources, *drawn)


@pytest.mark.parametrize(
    "fault",
    [always_the_usual, most_varied, least_uncertain, sources_that_do_not_count, whatever_is_missing],
    ids=lambda each: each.__name__,
)
def test_property_catches_its_seeded_fault(fault: Choose) -> None:
    @settings(max_examples=200, deadline=None, phases=[Phase.generate], report_multiple_bugs=False)
    @given(priors())
    def kept(drawn: tuple[SourcePrior, set[str]]) -> None:
        least_is_left_of_what_can_be_had(fault, *drawn)

    with pytest.raises(AssertionError):
        kept()
