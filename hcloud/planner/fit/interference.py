"""Interference on machines: the pressures residents cause on shared resources, and what they still tolerate.

Paragon keeps for each server the sum of what its jobs cause and the least of what they tolerate (§3.2), and requires
``D1 = t_server - c_new >= 0``. That minimum ignores the pressure residents already exert on each other: two that
tolerate 50 and cause 40 each would admit any number of others. So this module keeps the *headroom*: the least, over
residents, of what each tolerates minus what the others cause. ``D1 = headroom - c_new``, ``D2 = t_new - caused``.

Estimates are uncertain: a job counts with the lower limit of what it tolerates, at the policy's confidence. What
several cause together is their sum at that confidence; errors are independent, so squares add up. (Adding upper limits
instead would be far too pessimistic and leave machines half empty.) Shapes: K resources, sorted by name; N machines.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED
from hcloud.core import quality
from hcloud.core.estimates import Classification, Estimate
from hcloud.core.quality import EVEN_CLASSES, QualityClasses

if TYPE_CHECKING:
    from hcloud.planner.fit.observed_slowdowns import ObservedSlowdowns

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
FULL = 100.0
"""Maximum pressure, and what a machine without residents tolerates."""
STATED = 0.9
"""One-sided confidence of an :class:`Estimate`'s limits, which enclose 80 %."""
NEVER_FELT = 1e9
"""The pressure that would cost 5 %, for a resource that was not measured or has no effect."""
LOSS_AT_TOLERATED = 0.05
"""Loss at the pressure an application tolerates (Paragon §2.3)."""
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Sensitivity:
    """What one application causes and tolerates, as arrays of shape ``(K,)`` with values 0..100."""

    name: str
    caused: Floats
    """Pressure caused, upper limit at the policy's confidence."""
    tolerated: Floats
    """Pressure tolerated, lower limit at the policy's confidence."""
    expected: Floats
    """Expected pressure caused."""
    doubt: Floats
    """``caused`` minus ``expected``."""
    bears: Floats
    """Pressure expected to cost 5 %."""
    felt: tuple[float, ...]
    """``bears``, at least 1."""
    bounds: Floats
    """Lower bounds that the 2 K constraints put on :attr:`PressureState.state`."""
    rows: Floats
    """Shape ``(4, K)``: ``expected``, ``doubt``, its square, ``tolerated``; the input of :func:`_combined`."""
    usual: Floats
    """Shape ``(4, K)``: the values used for the medians that describe unknown applications."""
    quality: float
    """Quality needed for losing no more than 5 % (0..1)."""
    hardest: tuple[int, ...]
    """The 2 K constraints, hardest first (k: own pressure on k; K + k: pressure on it from k)."""
    loudest: float
    """Maximum of ``expected``."""


def sensitivity(
    name: str,
    known: Classification,
    sources: Sequence[str],
    confidence: float,
    tolerance: float = LOSS_AT_TOLERATED,
) -> Sensitivity:
    """Return the sensitivity of an application; an unmeasured resource counts as neither pressed nor felt.

    ``tolerance``: share of performance that neighbours may cost. Loss is proportional to pressure (iBench's second
    claim), so twice the tolerance allows twice the pressure.
    """
    reach, cause, feel = reach_of(confidence), known.caused, known.tolerated
    more = tolerance / LOSS_AT_TOLERATED
    kept = [min(FULL, more * at_reach(feel[s], reach, upward=False)) if s in feel else FULL for s in sources]
    return _sensitivity(
        name,
        caused=np.array([at_reach(cause[s], reach, upward=True) if s in cause else 0.0 for s in sources]),
        expected=np.array([at_reach(cause[s], 0.0, upward=True) if s in cause else 0.0 for s in sources]),
        tolerated=np.array(kept),
        bears=np.array([at_reach(feel[s], 0.0, upward=False) if s in feel else NEVER_FELT for s in sources]),
        needed=quality_needed(known),
    )


def quality_needed(known: Classification) -> float:
    """Return the quality (0..1) an application needs to lose no more than 5 % of its performance."""
    return min(1.0, max(0.0, known.quality_target.value))


def quality_classes(applications: Mapping[str, Classification], tolerance: float, count: int) -> QualityClasses:
    """Return ``count`` classes: quantiles of the quality that ``applications`` need.

    ``tolerance``: share of performance that neighbours may cost. Loss is proportional to pressure, so a machine offers
    a better quality where more loss is accepted.
    """
    needed = np.array([each.quality_target.value for each in applications.values()]).clip(0.0, 1.0).tolist()
    return QualityClasses.of(needed, count, allowed=tolerance / LOSS_AT_TOLERATED)


def sources_of(applications: Mapping[str, Classification]) -> tuple[str, ...]:
    """Return the measured resources that count between jobs on one machine, sorted by name.

    A unit owns its CPU time, so resources of one core are only shared by taking turns, and every program presses fully
    on its core; counting them would forbid any co-location. For the memory bus see ``NOT_COUNTED``.
    """
    measured = {each.answer("sources", lambda known=each: _known_sources(known)) for each in applications.values()}  # type: ignore[misc]
    return tuple(sorted(frozenset[str]().union(*measured) - CORE_SOURCES - NOT_COUNTED))


def _known_sources(known: Classification) -> frozenset[str]:
    return frozenset((*known.caused, *known.tolerated))


def _sensitivity(
    name: str,
    *,
    caused: Floats,
    expected: Floats,
    tolerated: Floats,
    bears: Floats,
    needed: float,
) -> Sensitivity:
    difficulty, doubt = np.concatenate((caused, FULL - tolerated)), caused - expected
    # Pressure cannot exceed 100, so tolerating that means tolerating any number of neighbours.
    at_most = np.where(tolerated >= FULL - _SLACK, NEVER_FELT, tolerated)
    return Sensitivity(
        name=name,
        caused=caused,
        tolerated=tolerated,
        expected=expected,
        doubt=doubt,
        bears=bears,
        felt=tuple(np.maximum(bears, 1.0).tolist()),
        bounds=np.concatenate((caused, -at_most)) - _SLACK,
        rows=np.array((expected, doubt, doubt * doubt, at_most)),
        usual=np.array((expected, tolerated, caused, bears)),
        quality=needed,
        hardest=tuple((-difficulty).argsort(kind="stable").tolist()),
        loudest=max(expected.tolist(), default=0.0),
    )


def reach_of(confidence: float) -> float:
    """Return the distance of the limit at ``confidence`` (0.5..1, one-sided), in units of an estimate's own limit."""
    return NormalDist().inv_cdf(confidence) / NormalDist().inv_cdf(STATED)


def at_reach(estimate: Estimate, reach: float, *, upward: bool) -> float:
    """Return the value (0..100) at that distance above (``upward``) or below the estimate; see :func:`reach_of`."""
    far = estimate.high - estimate.value if upward else estimate.value - estimate.low
    beyond = max(0.0, far) * reach
    return min(FULL, max(0.0, estimate.value + beyond if upward else estimate.value - beyond))


@dataclass(slots=True, eq=False)
class MachineSuitability:
    """Which machines suit one application."""

    suits: Mask
    seen: int
    """Number of changes included."""


@dataclass(slots=True, eq=False)
class PressureState:
    """The interference state of all machines during one plan."""

    sources: tuple[str, ...]
    known: Mapping[str, Sensitivity]
    prior: Sensitivity
    """Sensitivity assumed for an unknown resident."""
    classes: QualityClasses
    """Classes of jobs and pools of machines, on one scale."""
    state: Floats
    """Shape ``(2 K, N)``: headroom by resource, then minus what is caused: every requirement is a lower bound."""
    expected: Floats
    """Shape ``(K, N)``: expected pressure."""
    spare: Floats
    """Shape ``(N,)``: sum of ``state`` by machine; small where the fit is tight."""
    level: Floats
    """Pool of each machine."""
    quiet: Mask
    """Machines without units that were asked to stop."""
    residents: list[tuple[Sensitivity, ...]]
    """Sensitivities of each machine's units."""
    factors: Floats
    """Shape ``(N,)``: how much of the additional run time that pressures predict really comes on each machine's type.
    It counts in expected losses; limits (``state``) are those of the pressures themselves."""
    changes: array[int] = field(default_factory=lambda: array("q"))
    """Machines changed, in order."""
    journal: list[tuple[int, Sensitivity, bool]] = field(default_factory=list)
    """Undo log: machine, sensitivity, whether added."""
    views: dict[str, MachineSuitability] = field(default_factory=dict)
    copied: tuple[int, Floats] | None = None
    standing: PressureBaseline | None = None
    """The state at the start of the plan, for the next plan."""
    observed: ObservedSlowdowns | None = None
    """What programs cost each other that were observed together; None: nothing was."""
    met: dict[tuple[Sensitivity, ...], ResidentSums] = field(default_factory=dict)
    """Cache of the sums for combinations of residents, since searches add and remove the same ones many times."""

    @property
    def headroom(self) -> Floats:
        """What residents of each machine still tolerate, shape ``(K, N)``."""
        return self.state[: len(self.sources)]

    @property
    def caused(self) -> Floats:
        """What residents of each machine cause together, at the policy's confidence, shape ``(K, N)``."""
        return -self.state[len(self.sources) :]

    def expected_now(self) -> Floats:
        """Return a copy of :attr:`expected`; the same array until it changes."""
        if self.copied is None or self.copied[0] != len(self.changes):
            self.copied = (len(self.changes), self.expected.copy())
        return self.copied[1]

    def of(self, application: str) -> Sensitivity:
        """Return the sensitivity of an application, or the prior."""
        return self.known.get(application, self.prior)

    def observed_of(self, newcomer: Sensitivity) -> ObservedSlowdowns | None:
        """Return what was observed of a program among others, or of others beside it; None: nothing was."""
        return self.observed if self.observed is not None and self.observed.knows(newcomer) else None

    def add(self, at: int, resident: Sensitivity) -> None:
        """Add one unit of an application to machine ``at``."""
        self._arrive(at, resident)
        self.journal.append((at, resident, True))

    def remove(self, at: int, resident: Sensitivity) -> None:
        """Remove one unit of an application from machine ``at``."""
        self._leave(at, resident)
        self.journal.append((at, resident, False))

    def back_to(self, moment: int) -> None:
        """Undo all changes made since the journal had length ``moment``."""
        while len(self.journal) > moment:
            at, resident, added = self.journal.pop()
            if added:
                self._leave(at, resident)
            else:
                self._arrive(at, resident)

    def _arrive(self, at: int, resident: Sensitivity) -> None:
        self._put(at, (*self.residents[at], resident))

    def _leave(self, at: int, resident: Sensitivity) -> None:
        first = self.residents[at].index(resident)
        self._put(at, self.residents[at][:first] + self.residents[at][first + 1 :])

    def _put(self, at: int, residents: tuple[Sensitivity, ...]) -> None:
        found = self.met.get(residents)
        if found is None:
            found = self.met[residents] = _resident_sums(residents, len(self.sources), self.classes)
        self.residents[at] = residents
        self.state[:, at], self.expected[:, at], self.spare[at], self.level[at] = found
        self.changes.append(at)

    def suits(self, newcomer: Sensitivity) -> Mask:
        """Return the machines on which the newcomer and all residents are undisturbed (``D1 >= 0``, ``D2 >= 0``).

        Updated incrementally: the cost is linear in the number of changes.
        """
        view, now = self.views.get(newcomer.name), len(self.changes)
        if view is None or now - view.seen > len(self.spare) // 8:
            view = self.views[newcomer.name] = MachineSuitability(suits=self._suited(newcomer), seen=now)
        elif view.seen < now:
            changed = np.frombuffer(self.changes[view.seen :], dtype=np.int64)
            view.suits[changed] = (self.state.take(changed, axis=1) >= newcomer.bounds[:, None]).all(axis=0)
            view.seen = now
        return view.suits

    def suited_among(self, newcomer: Sensitivity, among: Mask) -> Mask:
        """Return :meth:`suits` for the machines of ``among``; if they are few, only they are evaluated."""
        if newcomer.name in self.views or np.count_nonzero(among) > len(among) // 2:
            return among & self.suits(newcomer)
        places, found = among.nonzero()[0], np.zeros(len(among), dtype=np.bool_)
        suited = np.logical_and.reduce(self.state.take(places, axis=1) >= newcomer.bounds[:, None], axis=0)
        found[places[suited]] = True
        return found

    def _suited(self, newcomer: Sensitivity) -> Mask:
        fits: Mask = np.ones(len(self.spare), dtype=np.bool_)
        for constraint in newcomer.hardest:
            # One vector comparison each, without copies.
            fits &= self.state[constraint] >= newcomer.bounds[constraint]
        return fits

    def suits_without(self, at: int, newcomer: Sensitivity, leaving: Sequence[Sensitivity]) -> bool:
        """Return whether machine ``at`` would suit the newcomer if the ``leaving`` units were gone."""
        left = list(self.residents[at])
        for each in leaving:
            if each in left:
                left.remove(each)
        return self.suits_company(newcomer, left)

    def suits_company(self, newcomer: Sensitivity, company: Sequence[Sensitivity]) -> bool:
        """Return whether the newcomer and the units of ``company`` suit each other on one machine."""
        _, caused, headroom = _combined(company, len(self.sources))
        return bool(np.logical_and.reduce(np.concatenate((headroom, -caused)) >= newcomer.bounds))


def _pools(expected: Floats, classes: QualityClasses) -> Floats:
    """Return the pools of machines under these pressures, shape ``(K, N)``: the class of the quality they offer.

    A job that loses 5 % under a pressure of 10 needs 0.9, and a machine under a pressure of 10 offers 0.9 where jobs
    may lose no more. Where they may lose four times that, one under 40 offers as much. (If what jobs *need* were scaled
    instead, most would need none, and be in one class.)
    """
    count = len(expected)
    if not count:
        return np.full(expected.shape[1], float(classes.count - 1))
    digits = -np.sort(-np.clip(expected, 0.0, quality.PRESSURE_MAX), axis=0)
    code = (quality.BASE ** -np.arange(1.0, count + 1.0)) @ digits / (1.0 - quality.BASE**-count)
    ranked, offered = np.array(classes.ranked), np.maximum(0.0, 1.0 - code / classes.allowed)
    pools: Floats = np.minimum(classes.count - 1.0, classes.count * np.searchsorted(ranked, offered) // ranked.size)
    return pools


class ResidentSums(NamedTuple):
    """One machine's column of each array of :class:`PressureState`."""

    state: Floats
    expected: Floats
    spare: float
    level: int


def _resident_sums(residents: Sequence[Sensitivity], count: int, classes: QualityClasses) -> ResidentSums:
    """Return the columns of a machine with ``residents``."""
    expected, caused, headroom = _combined(residents, count)
    return ResidentSums(
        state=np.concatenate((headroom, -caused)),
        expected=expected,
        spare=float(np.add.reduce(headroom)) - float(np.add.reduce(caused)),
        level=int(_pools(expected[:, None], classes)[0]),
    )


def _combined(residents: Sequence[Sensitivity], count: int) -> tuple[Floats, Floats, Floats]:
    """Return the expected pressure, the pressure at the stated confidence, and the headroom of ``residents``."""
    if not residents:
        return np.zeros(count), np.zeros(count), np.full(count, FULL)
    if len(residents) == 1:
        expected, doubt, _, tolerated = residents[0].rows
        return expected, expected + doubt, np.minimum(tolerated, FULL)
    rows = np.array([each.rows for each in residents])
    mean, square = np.add.reduce(rows[:, 0]), np.add.reduce(rows[:, 2])
    others = (mean - rows[:, 0]) + np.sqrt(np.maximum(square - rows[:, 2], 0.0))
    caused: Floats = mean + np.sqrt(square)
    headroom: Floats = np.minimum(np.minimum.reduce(rows[:, 3] - others), FULL)
    return mean, caused, headroom


class Sensitivities(NamedTuple):
    """The sensitivities of all applications."""

    sources: tuple[str, ...]
    """The resources that count."""
    known: Mapping[str, Sensitivity]
    """Sensitivity by application."""
    prior: Sensitivity
    """Median of the known ones, for unknown applications."""
    made_of: tuple[Mapping[str, Classification], tuple[object, ...]]
    """Classifications and settings used."""


def sensitivities(
    applications: Mapping[str, Classification],
    *,
    confidence: float,
    tolerance: float,
    before: Sensitivities | None = None,
) -> Sensitivities:
    """Return the sensitivities of ``applications``; unchanged ones are taken from ``before``."""
    sources = sources_of(applications)
    settings = (sources, confidence, tolerance)
    beliefs, old = before.made_of[0] if before is not None else {}, before.known if before is not None else {}
    if before is not None and before.made_of[1] != settings:
        beliefs = {}
    known = {
        name: old[name] if beliefs.get(name) is belief else sensitivity(name, belief, *settings)
        for name, belief in applications.items()
    }
    prior = _prior([known[name] for name in sorted(known)], len(sources))
    return Sensitivities(sources, known, prior, (applications, settings))


class PressureBaseline(NamedTuple):
    """The state of ``machines`` at the start of a plan, passed to the next plan."""

    table: Sensitivities
    machines: Sequence[str]
    names: Sequence[tuple[str, ...]]
    """By machine, the applications of its residents."""
    present: Sequence[tuple[Sensitivity, ...]]
    """By machine, the sensitivities of its residents."""
    state: Floats
    """:attr:`PressureState.state`."""
    expected: Floats
    """:attr:`PressureState.expected`."""


def open_pressure(
    applications: Mapping[str, Classification],
    residents: Sequence[Sequence[str]],
    ending: Sequence[bool],
    *,
    confidence: float,
    classes: QualityClasses = EVEN_CLASSES,
    tolerance: float = LOSS_AT_TOLERATED,
    table: Sensitivities | None = None,
    machines: Sequence[str] = (),
    before: PressureBaseline | None = None,
) -> PressureState:
    """Return the state of machines with these ``residents``: one application name per unit, known or not.

    Unknown applications count with the prior. ``table``: :func:`sensitivities` of ``applications``, if already
    computed; ``before``: the baseline of an earlier plan; unchanged machines are copied from it.
    """
    table = table or sensitivities(applications, confidence=confidence, tolerance=tolerance)
    sources, known, prior, _ = table
    standing = _baseline(table, machines, [tuple(names) for names in residents], before)
    state, expected = standing.state.copy(), standing.expected.copy()
    return PressureState(
        sources=sources,
        known=known,
        prior=prior,
        classes=classes,
        state=state,
        expected=expected,
        spare=state.sum(axis=0),
        level=_pools(expected, classes),
        quiet=~np.array(ending, dtype=np.bool_),
        residents=list(standing.present),
        factors=np.ones(len(residents)),
        standing=standing,
    )


def _baseline(
    table: Sensitivities, machines: Sequence[str], names: Sequence[tuple[str, ...]], before: PressureBaseline | None
) -> PressureBaseline:
    """Return the baseline of ``machines`` with residents of these ``names``.

    Machines with unchanged residents and sensitivities are copied from ``before``.
    """
    known, prior, count = table.known, table.prior, len(table.sources)
    if before is None or before.table.made_of[1] != table.made_of[1]:
        before = PressureBaseline(table, (), [], [], np.zeros((2 * count, 0)), np.zeros((count, 0)))
    others = _changed_applications(table, before.table, names)
    were, present, state, expected = _rows_before(before, machines, len(names), count)
    same = [was is here or was == here for was, here in zip(were, names, strict=True)]
    stale = [at for at, here in enumerate(names) if not (same[at] and others.isdisjoint(here))]
    for at in stale:
        present[at] = tuple([known.get(name, prior) for name in names[at]])
    state[:, stale], expected[:, stale] = _combined_by_machine([present[at] for at in stale], count)
    return PressureBaseline(table, machines, names, present, state, expected)


def _rows_before(
    before: PressureBaseline, machines: Sequence[str], size: int, count: int
) -> tuple[Sequence[tuple[str, ...] | None], list[tuple[Sensitivity, ...]], Floats, Floats]:
    """Return the earlier names, sensitivities, state and expected pressure of ``size`` machines.

    Names are None for machines that were not known before, or that have no name.
    """
    if machines and machines == before.machines:
        return before.names, list(before.present), before.state.copy(), before.expected.copy()
    places = {name: at for at, name in enumerate(before.machines)}
    old = [places.get(name, -1) for name in machines] or [-1] * size
    state, expected = np.zeros((2 * count, size)), np.zeros((count, size))
    if before.machines:
        state, expected = before.state.take(old, axis=1, mode="clip"), before.expected.take(old, axis=1, mode="clip")
    names = [None if at < 0 else before.names[at] for at in old]
    return names, [() if at < 0 else before.present[at] for at in old], state, expected


def _changed_applications(table: Sensitivities, before: Sensitivities, names: Sequence[tuple[str, ...]]) -> Set[str]:
    """Return the applications of ``names`` with a sensitivity other than ``before``."""
    if table is before:
        return frozenset()
    met = {name for here in set(names) for name in here}
    return {name for name in met if table.known.get(name, table.prior) is not before.known.get(name, before.prior)}


def _combined_by_machine(present: Sequence[Sequence[Sensitivity]], count: int) -> tuple[Floats, Floats]:
    """Return state and expected pressure of all machines at once; equals :func:`_combined` for each."""
    state, average = np.zeros((2 * count, len(present))), np.zeros((count, len(present)))
    state[:count] = FULL
    busy = np.array([at for at, residents in enumerate(present) if residents], dtype=np.intp)
    if not busy.size or not count:
        return state, average
    units = [resident for residents in present for resident in residents]
    sizes = np.array([len(present[at]) for at in busy])
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    expected, _, squares, tolerated = np.array([unit.rows for unit in units]).transpose(1, 0, 2)
    mean, square = np.add.reduceat(expected, starts, axis=0), np.add.reduceat(squares, starts, axis=0)
    doubt_of_others = np.sqrt(np.maximum(np.repeat(square, sizes, axis=0) - squares, 0.0))
    left = tolerated - (np.repeat(mean, sizes, axis=0) - expected + doubt_of_others)
    state[:count, busy] = np.minimum(np.minimum.reduceat(left, starts, axis=0), FULL).T
    state[count:, busy] = -(mean + np.sqrt(square)).T
    average[:, busy] = mean.T
    return state, average


def _prior(known: Sequence[Sensitivity], count: int) -> Sensitivity:
    if not known:
        nothing = np.zeros(count)
        caused, expected, tolerated, bears = nothing, nothing, np.full(count, FULL), np.full(count, NEVER_FELT)
    else:
        expected, tolerated, caused, bears = _median(np.array([each.usual for each in known]))
    return _sensitivity(
        "",
        caused=caused,
        expected=expected,
        tolerated=tolerated,
        bears=bears,
        needed=float(_median(np.array([each.quality for each in known]))) if known else 0.0,
    )


def _median(values: Floats) -> Floats:
    """Return the medians along the first axis; for few values a sort is faster than ``numpy.median``."""
    ordered, half = np.sort(values, axis=0), len(values) // 2
    median: Floats = (ordered[(len(values) - 1) // 2] + ordered[half]) / 2.0
    return median
