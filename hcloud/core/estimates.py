"""Knowledge about applications: the measurements of profiling, and estimates with their uncertainty."""

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
"""Sources of interference that the profiler generates: the fifteen of iBench, and a variant of its sixth."""
SOURCES: tuple[str, ...] = get_args(SourceName)
T = TypeVar("T")
Row = TypeVar("Row")
_KEPT_ANSWERS = 1000
_UNANSWERED: Any = object()


# ------------------------------------------------------------------------------------------------------------- profiles

APART = 1.1
"""Numbers of vCPUs that differ by less than this factor are not distinguished."""
MOST_KNEES = 2
"""How many sizes a profiling run adds in search of the knee (:func:`next_knee`)."""


class Measure(StrEnum):
    """The quantity by which a profiling run measured performance, best first; per second, more is better."""

    PROGRESS = "progress"  # fraction of the whole job, from the progress hook
    REQUESTS = "requests"  # requests served, from the metrics hook
    COMPLETION = "completion"  # whole runs: 1 / duration
    OUTPUT = "output"  # MiB written
    INSTRUCTIONS = "instructions"  # instructions retired, if the machine counts them
    CPU = "cpu"  # CPU-seconds


WHOLE_JOBS = (Measure.PROGRESS, Measure.COMPLETION)
"""Measures in fractions of a whole job; their scale depends on the input."""


def per_rank(measure: Measure | None, nodes: int) -> float:
    """Return the fraction of a job's total performance on ``nodes`` nodes that the samples of one rank show.

    Every rank reports the progress of the whole job, but only its own requests, output and CPU time.
    """
    return 1.0 if measure in WHOLE_JOBS else 1.0 / max(1, nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One measured cell of the classifier's matrices."""

    question: str
    """The matrix: type, step, nodes, tolerated or caused."""
    column: str
    value: float
    low: float
    """Lower 95 % limit of ``value``."""
    high: float
    """Upper 95 % limit of ``value``."""
    runs: int = 1
    """Repeats of the measurement."""


def next_knee(rates: Mapping[float, float]) -> float | None:
    """Return the number of vCPUs, between measured ones, at which a program seems to stop scaling; None: nowhere.

    ``rates`` is performance by vCPUs (both above 0). The result is a whole number, or tenths below 1. It assumes
    proportional scaling up to the knee, such as that of a program with a fixed number of threads.
    """
    for more, less in pairwise(sorted(rates, reverse=True)):
        # Few programs scale quite in proportion, so the knee is rounded up, after 5 % are taken off for noise.
        at = 0.95 * less * rates[more] / rates[less]
        at = float(ceil(at)) if at >= 1 else ceil(10 * at) / 10
        if APART * less <= at <= more / APART:
            return at
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of a profiling run."""

    measure: Measure | None = None
    readings: tuple[Reading, ...] = ()
    """Empty: nothing could be measured; ``notes`` say why."""
    use: tuple[float, ...] = ()
    """Resource use of a run alone: vCPUs busy, memory in MiB, MiB read and MiB written per second."""
    duration_s: float = 0.0
    notes: tuple[str, ...] = ()
    """Whole sentences about what could not be measured."""


# ------------------------------------------------------------------------------------------------------ classifications
class Estimate(NamedTuple):
    """A value with its 80 % limits."""

    value: float
    low: float
    high: float
    observed: bool = False
    """Measured, not inferred."""


class Neighbour(NamedTuple):
    """A known application that behaves similarly."""

    name: str
    similarity: float
    """1: the same; towards 0: nothing in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """The estimated behaviour of an application: performance, interference and the resource quality it needs.

    Performance is work per second in the unit of ``measure``; more is better. Pressures are 0..100.
    """

    by_type: Mapping[str, Estimate] = field(default_factory=dict)
    """Performance of ``reference_vcpus`` by instance type."""
    reference_vcpus: float = 0.0
    """Number of vCPUs to which ``by_type`` refers; 0: what the job requests."""
    by_step: Mapping[str, Estimate] = field(default_factory=dict)
    """Performance by number of vCPUs."""
    by_nodes: Mapping[int, Estimate] = field(default_factory=dict)
    """Performance by number of nodes."""
    tolerated: Mapping[str, Estimate] = field(default_factory=dict)
    """Pressure it tolerates, by shared resource."""
    caused: Mapping[str, Estimate] = field(default_factory=dict)
    """Pressure it causes, by shared resource."""
    quality_target: Estimate
    """``Q_T`` (0..1): the resource quality it needs."""
    nearest: tuple[Neighbour, ...] = ()
    """The most similar known applications."""
    measure: Measure | None = None
    """None: not known."""
    notes: tuple[str, ...] = ()
    """What was missing, unusable or new."""
    _answers: dict[object, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def answer(self, question: object, work_out: Callable[[], T]) -> T:
        """Return ``work_out()``, cached by ``question``; it must depend on this record alone.

        Results are shared: callers must not modify them.
        """
        result: T = self._answers.get(question, _UNANSWERED)
        if result is _UNANSWERED:
            if len(self._answers) > _KEPT_ANSWERS:
                self._answers.clear()
            result = self._answers[question] = work_out()
        return result


# --------------------------------------------------------------------------------------------------------- applications
@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """Measurements of one program of one user: a row of the classifier's matrices, kept in the store."""

    name: str
    program: str
    """Digest of the program."""
    inputs: Mapping[str, float] = field(default_factory=dict)
    """Inputs (digests) with which it behaves alike, oldest first: performance as a factor of ``cells``; 0: unknown."""
    measure: Measure | None = None
    cells: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Performance per second and pressures, by question and column."""
    spreads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """95 % uncertainty of each cell: of performance as natural logarithm, of pressures in points."""
    use: tuple[float, ...] = ()
    """Resource use of a run alone, as in :class:`Findings`."""
    type_column: str = ""
    """The instance type it was profiled on."""
    reference_vcpus: float = 0.0
    """Number of vCPUs to which performance by type refers."""
    profiled_at: float | None = None
    """When it was last profiled completely; None: never."""
    looked_at: float | None = None
    """When a short check run was last made; None: never."""
    run_s: float | None = None
    """Typical run time of its jobs."""
    ended_runs: int = 0
    """Jobs of it that have succeeded."""
    runs: tuple[str, ...] = ()
    """Profiling runs that contributed."""
    missed: tuple[bool, ...] = ()
    """Of the latest measurements, which differed from the prediction."""
    revision: int = 0


# ---------------------------------------------------------------------------------------------------- rows by name
ON_TOP = 64
"""Changed rows that are layered over the base before both are merged."""


class LayeredRows(Mapping[str, Row], Generic[Row]):
    """An immutable mapping of rows by name; :meth:`over` makes the next version at the cost of the changed rows.

    Names are in order of their first appearance, except that those of recent changes come last.
    """

    __slots__ = ("_base", "_length", "_top")

    def __init__(self, base: Mapping[str, Row] | None = None, top: Mapping[str, Row] | None = None) -> None:
        """Rows of ``top`` hide those of ``base``. Neither mapping may be modified afterwards."""
        self._base: Mapping[str, Row] = {} if base is None else base
        self._top: Mapping[str, Row] = {} if top is None else top
        self._length = len(self._base) + sum(name not in self._base for name in self._top)

    def over(self, changed: Mapping[str, Row]) -> LayeredRows[Row]:
        """Return the rows with ``changed`` ones added or replaced."""
        top = {**self._top, **changed}
        return LayeredRows(self._base, top) if len(top) <= ON_TOP else LayeredRows({**self._base, **top})

    def since(self, before: Mapping[str, Row]) -> Iterator[tuple[str, Row]]:
        """Yield the rows that are not the same objects in ``before``; fast if that is an earlier version of these."""
        related = isinstance(before, LayeredRows) and before._base is self._base
        for name, row in (self._top if related else self).items():
            if before.get(name) is not row:
                yield name, row

    def __getitem__(self, name: str) -> Row:
        row = self._top.get(name)
        return self._base[name] if row is None else row

    def get(self, name: str, default: Any = None) -> Any:
        """Return a row, or ``default``; the inherited method makes three calls for each."""
        if name in self._top:
            return self._top[name]
        return self._base.get(name, default)

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        for name in self._top:
            if name not in self._base:
                yield name

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return repr(dict(self))
