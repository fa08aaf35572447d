"""What is known of applications: what profiling measured, and what is believed from it, each with its uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from math import ceil
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

SourceName = Literal[
    "memory-capacity", "memory-bandwidth", "storage-capacity", "storage-bandwidth", "network-bandwidth", "llc-capacity",
    "l2", "llc-bandwidth", "l1i", "l1d", "tlb", "integer", "floating-point", "prefetchers", "interconnect", "vector",
]  # fmt: skip
"""The sources of interference that the profiler makes: the fifteen of iBench and its variant of the sixth."""
SOURCES: tuple[str, ...] = get_args(SourceName)
T = TypeVar("T")
Row = TypeVar("Row")
_KEPT_ANSWERS = 1000
_UNANSWERED: Any = object()


# ------------------------------------------------------------------------------------------------------------- profiles

APART = 1.1
"""Amounts nearer to each other than by this factor are not worth telling apart."""
MOST_KNEES = 2
"""So often a profiling run looks for where growth ends (:func:`next_knee`)."""


class Measure(StrEnum):
    """What a profiling run took for performance, best first; all are per second, more is better."""

    PROGRESS = "progress"  # the progress hook's fraction of the whole job
    REQUESTS = "requests"  # requests served, by the metrics hook
    COMPLETION = "completion"  # whole runs: 1 / duration
    OUTPUT = "output"  # MiB written
    INSTRUCTIONS = "instructions"  # instructions, where the machine counts them
    CPU = "cpu"  # CPU-seconds of useful work


WHOLE_JOBS = (Measure.PROGRESS, Measure.COMPLETION)
"""Measures in fractions of a whole job, whose scale is the input's."""


def per_rank(measure: Measure | None, nodes: int) -> float:
    """Return the part of what ``nodes`` machines do together that one rank's samples tell: all of a job's progress, but
    of requests, output and CPU time, which each rank counts for itself, only its own."""
    return 1.0 if measure in WHOLE_JOBS else 1.0 / max(1, nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One measured cell. ``question`` is one of the classifier's (type, step, nodes, tolerated, caused); ``column`` as
    there; ``low`` and ``high`` are the 95 % limits of ``value`` from ``runs`` repeats.
    """

    question: str
    column: str
    value: float
    low: float
    high: float
    runs: int = 1


def next_knee(rates: Mapping[float, float]) -> float | None:
    """Return where between the vCPUs of ``rates`` (performance by vCPUs, above 0) a program stops growing that grows in
    proportion until then: whole vCPUs, or tenths of one. None where growth goes on, or has ended before.

    With its threads, say: two ends look the same whether it grows all the way or no more than so far.
    """
    for more, less in pairwise(sorted(rates, reverse=True)):
        # Few grow quite in proportion, so it is rather a little more; but never for what is mere noise.
        at = 0.95 * less * rates[more] / rates[less]
        at = float(ceil(at)) if at >= 1 else ceil(10 * at) / 10
        if APART * less <= at <= more / APART:
            return at
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a profiling run found. No readings: nothing could be measured, and ``notes`` say why in whole sentences.

    ``use`` is the resource use of a run alone: vCPUs busy, memory in MiB, MiB read and written per second.
    """

    measure: Measure | None = None
    readings: tuple[Reading, ...] = ()
    use: tuple[float, ...] = ()
    duration_s: float = 0.0
    notes: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------------ classifications
class Estimate(NamedTuple):
    """A value, and the limits between which the truth lies in 80 of 100 cases; ``observed``: measured, not inferred."""

    value: float
    low: float
    high: float
    observed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A known application, and how alike it behaves: 1 the same, towards 0 nothing in common."""

    name: str
    similarity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """What is believed of a job after profiling: the answers to the four questions, each with its uncertainty.

    Performance is work per second (or requests per second) in the unit in which the job was measured, ``measure``
    (None: not known); more is better. ``tolerated`` and ``caused`` are pressures 0..100 per shared resource.
    ``quality_target`` is ``Q_T`` (0..1) with its 80 % limits, ``quality_class`` the ARQ queue 0..9. ``notes`` say what
    was missing, unusable or never seen before.
    """

    by_type: Mapping[str, Estimate] = field(default_factory=dict)
    by_step: Mapping[str, Estimate] = field(default_factory=dict)
    by_nodes: Mapping[int, Estimate] = field(default_factory=dict)
    tolerated: Mapping[str, Estimate] = field(default_factory=dict)
    caused: Mapping[str, Estimate] = field(default_factory=dict)
    quality_target: Estimate
    quality_class: int
    nearest: tuple[Neighbour, ...] = ()
    measure: Measure | None = None
    notes: tuple[str, ...] = ()
    _answers: dict[object, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def answer(self, question: object, work_out: Callable[[], T]) -> T:
        """Return what follows from this record alone, worked out once. Answers are shared: nobody may change them."""
        found: T = self._answers.get(question, _UNANSWERED)
        if found is _UNANSWERED:
            if len(self._answers) > _KEPT_ANSWERS:
                self._answers.clear()
            found = self._answers[question] = work_out()
        return found


# --------------------------------------------------------------------------------------------------------- applications
@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """What was measured of one program of one user: a row of the classifier's matrices, kept in the store.

    ``inputs`` are the inputs (digests) with which it is known to behave alike, oldest first, each with its performance
    as a factor of ``cells``; 0: alike, but never measured. ``cells``: performance per second and pressures, by question
    and column; performance on types is that with ``reference_vcpus``. ``spreads``: how far from each cell the truth may
    lie (95 %): of performance as natural logarithm, of pressures in points. ``use``: resource use of a run alone (see
    :class:`Findings`). ``profiled_at``, ``looked_at``: when it was last profiled as a whole, or looked at; None: never.
    ``run_s``: how long its jobs run. ``missed``: of the last measurements, which were not as predicted.
    """

    name: str
    program: str
    inputs: Mapping[str, float] = field(default_factory=dict)
    measure: Measure | None = None
    cells: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    spreads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    use: tuple[float, ...] = ()
    type_column: str = ""
    reference_vcpus: float = 0.0
    profiled_at: float | None = None
    looked_at: float | None = None
    run_s: float | None = None
    runs: tuple[str, ...] = ()
    missed: tuple[bool, ...] = ()
    revision: int = 0


# ------------------------------------------------------------------------------------------------------ all of them
ON_TOP = 64
"""So many changed rows lie over the others before all are copied."""


class LayeredRows(Mapping[str, Row], Generic[Row]):
    """Rows by name, as of one moment: a mapping that never changes.

    :meth:`over` makes the next one at the cost of what changed, not of what there is.
    Names are in order of their first appearance but for those of the last few changes, which come last.
    """

    __slots__ = ("_base", "_length", "_top")

    def __init__(self, base: Mapping[str, Row] | None = None, top: Mapping[str, Row] | None = None) -> None:
        """Lay ``top`` over ``base``; neither may be changed from now on."""
        self._base: Mapping[str, Row] = {} if base is None else base
        self._top: Mapping[str, Row] = {} if top is None else top
        self._length = len(self._base) + sum(name not in self._base for name in self._top)

    def over(self, changed: Mapping[str, Row]) -> LayeredRows[Row]:
        """Return these rows with those that have ``changed`` in place of theirs."""
        top = {**self._top, **changed}
        return LayeredRows(self._base, top) if len(top) <= ON_TOP else LayeredRows({**self._base, **top})

    def since(self, before: Mapping[str, Row]) -> Iterator[tuple[str, Row]]:
        """Yield the rows that are not the same as ``before``, cheaply where that is an earlier state of these."""
        related = isinstance(before, LayeredRows) and before._base is self._base
        for name, row in (self._top if related else self).items():
            if before.get(name) is not row:
                yield name, row

    def __getitem__(self, name: str) -> Row:
        """Return the row of that name."""
        found = self._top.get(name)
        return self._base[name] if found is None else found

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        yield from self._base
        for name in self._top:
            if name not in self._base:
                yield name

    def __len__(self) -> int:
        """Return how many rows there are."""
        return self._length

    def __repr__(self) -> str:
        """Show all of them."""
        return repr(dict(self))
