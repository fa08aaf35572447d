"""What presses on what: the pressures residents cause on each machine's shared resources, and what they still tolerate.

Paragon keeps for each server the sum of what its jobs cause and the least of what they tolerate (§3.2), and asks
``D1 = t_server - c_new >= 0``. That least says nothing of what the residents press on each other already: two that
tolerate 50 and cause 40 each would let in any number of others. So what is kept here is the *headroom*: the least, over
residents, of what each tolerates less what the others cause. ``D1 = headroom - c_new``, ``D2 = t_new - caused``.

Estimates have uncertainty: a job counts with what it tolerates at least, with the policy's confidence. What several
cause together is their sum with that confidence: their errors are their own, so squares of them add up. (Were each
counted with the most it may cause, the sum of ten would be one that never comes, and machines would stay half empty.)
Shapes: K resources in the order of their names, N machines.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hcloud.classifier.interference import CORE_SOURCES, NOT_COUNTED
from hcloud.core import quality
from hcloud.core.estimates import Classification, Estimate

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
FULL = 100.0
"""The largest pressure, and what a machine without residents tolerates."""
STATED = 0.9
"""The one-sided confidence of an :class:`Estimate`'s limits, between which lie 80 of 100."""
NEVER_FELT = 1e9
"""The pressure that would cost 5 % where nobody asked, or where none does."""
LOSS_AT_TOLERATED = 0.05
"""What is lost at the pressure an application is said to tolerate (Paragon §2.3)."""
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Sensitivity:
    """What one application causes and tolerates (shape ``(K,)``, 0..100), at the stated confidence, and its quality.

    ``expected``: what it causes on average, ``doubt``: by how much ``caused`` is above that; ``bears``: the pressures
    that are expected to cost it 5 %. ``quality`` (0..1) is ARQ's sum over the expected pressures, ``level`` its class.
    ``felt``: ``bears``, 1 at least.
    ``hardest``: the 2 K constraints (k: its own pressure k, K + k: pressure k on it), the hardest to satisfy first;
    ``bounds``: what each asks of a machine's :attr:`Pressure.state`; ``rows``, shape ``(4, K)``: ``expected``,
    ``doubt`` and its square, ``tolerated``, as :func:`_together` adds them up; ``usual``, of the same shape, has all of
    which medians are taken for applications nothing is known of. ``loudest``: the most of ``expected``.
    """

    name: str
    caused: Floats
    tolerated: Floats
    expected: Floats
    doubt: Floats
    bears: Floats
    felt: tuple[float, ...]
    bounds: Floats
    rows: Floats
    usual: Floats
    quality: float
    level: int
    hardest: tuple[int, ...]
    loudest: float


def sensitivity(
    name: str,
    known: Classification,
    sources: Sequence[str],
    confidence: float,
    classes: int,
    tolerance: float = LOSS_AT_TOLERATED,
) -> Sensitivity:
    """Return the sensitivity of an application; a resource without a question is neither pressed nor felt.

    ``tolerance``: the part of its performance that neighbours may cost. What is lost grows in proportion to the
    pressure (iBench's second claim), so a job that may lose twice as much bears twice the pressure.
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
        needed=quality_needed(known, sources),
        classes=classes,
    )


def quality_needed(known: Classification, sources: Sequence[str]) -> float:
    """Return the quality (0..1) an application needs: ARQ's sum over what it is expected to cause (eq. 6.1)."""
    cause = known.caused

    def total() -> float:
        """Of a resource without a question: nothing."""
        return quality.total([min(FULL, max(0.0, cause[s].value)) if s in cause else 0.0 for s in sources])

    return known.answer(("quality needed", sources), total)


def sources_of(applications: Mapping[str, Classification]) -> tuple[str, ...]:
    """Return all resources that count between the jobs of one machine and that anything is known of, by name.

    A unit's CPU time is its own, so resources of one core are shared by turns only, and every program presses fully on
    the core it runs on: counted, no two programs could ever meet. The bus is not counted for the reason given there.
    """
    told = {known.answer("sources", lambda known=known: _told_of(known)) for known in applications.values()}  # type: ignore[misc]
    return tuple(sorted(frozenset[str]().union(*told) - CORE_SOURCES - NOT_COUNTED))


def _told_of(known: Classification) -> frozenset[str]:
    return frozenset((*known.caused, *known.tolerated))


def _sensitivity(
    name: str,
    *,
    caused: Floats,
    expected: Floats,
    tolerated: Floats,
    bears: Floats,
    needed: float,
    classes: int,
) -> Sensitivity:
    difficulty, doubt = np.concatenate((caused, FULL - tolerated)), caused - expected
    # No resource is pressed by more than all of it: who tolerates that tolerates any number of neighbours.
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
        level=quality.quality_class(needed, classes),
        hardest=tuple((-difficulty).argsort(kind="stable").tolist()),
        loudest=max(expected.tolist(), default=0.0),
    )


def reach_of(confidence: float) -> float:
    """Return how many times the way to an estimate's limit it is to the limit at ``confidence`` (0.5..1, one-sided)."""
    return NormalDist().inv_cdf(confidence) / NormalDist().inv_cdf(STATED)


def at_reach(estimate: Estimate, reach: float, *, upward: bool) -> float:
    """Return the value (0..100) so far above (``upward``) or below what is expected; see :func:`reach_of`."""
    far = estimate.high - estimate.value if upward else estimate.value - estimate.low
    beyond = max(0.0, far) * reach
    return min(FULL, max(0.0, estimate.value + beyond if upward else estimate.value - beyond))


@dataclass(slots=True, eq=False)
class MachineSuitability:
    """Which machines suit one application, as of change number ``seen``."""

    suits: Mask
    seen: int


@dataclass(slots=True, eq=False)
class PressureState:
    """The state of all machines. ``state`` has shape ``(2 K, N)``: headroom by resource, then what is caused there,
    negative; so that everything asked of a machine is a lower bound. ``expected``, shape ``(K, N)``: what is caused
    there on average. ``spare`` is the sum over both, shape ``(N,)``:
    small where the fit is tight. ``level``: the pool of each machine.
    ``prior``: what a resident nothing is known of counts as; ``quiet``: machines without units that were asked to end;
    ``met``: how machines stand with residents that met in this plan: many come and go before it is decided where.
    """

    sources: tuple[str, ...]
    known: Mapping[str, Sensitivity]
    prior: Sensitivity
    classes: int
    state: Floats
    expected: Floats
    spare: Floats
    level: Floats
    quiet: Mask
    residents: list[tuple[Sensitivity, ...]]
    changes: array[int] = field(default_factory=lambda: array("q"))
    journal: list[tuple[int, Sensitivity, bool]] = field(default_factory=list)
    views: dict[str, MachineSuitability] = field(default_factory=dict)
    copied: tuple[int, Floats] | None = None
    standing: PressureBaseline | None = None
    met: dict[tuple[Sensitivity, ...], ResidentSums] = field(default_factory=dict)

    @property
    def headroom(self) -> Floats:
        """What residents of each machine still tolerate, shape ``(K, N)``."""
        return self.state[: len(self.sources)]

    @property
    def caused(self) -> Floats:
        """What residents of each machine cause together, with the policy's confidence, shape ``(K, N)``."""
        return -self.state[len(self.sources) :]

    def expected_now(self) -> Floats:
        """Return a copy of :attr:`expected`: the same array until that changes."""
        if self.copied is None or self.copied[0] != len(self.changes):
            self.copied = (len(self.changes), self.expected.copy())
        return self.copied[1]

    def of(self, application: str) -> Sensitivity:
        """Return what is known of an application, else the prior."""
        return self.known.get(application, self.prior)

    def add(self, at: int, resident: Sensitivity) -> None:
        """Count one more unit of an application on machine ``at``."""
        self._arrive(at, resident)
        self.journal.append((at, resident, True))

    def remove(self, at: int, resident: Sensitivity) -> None:
        """Count one unit less."""
        self._leave(at, resident)
        self.journal.append((at, resident, False))

    def back_to(self, moment: int) -> None:
        """Undo what was added and removed since the journal was ``moment`` long."""
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
            found = self.met[residents] = _stands(residents, len(self.sources), self.classes)
        self.residents[at] = residents
        self.state[:, at], self.expected[:, at], self.spare[at], self.level[at] = found
        self.changes.append(at)

    def suits(self, who: Sensitivity) -> Mask:
        """Return the machines without interference beyond tolerance, in either direction (``D1 >= 0``, ``D2 >= 0``).

        What was found before holds but for the machines that changed since: the cost is linear in what changed.
        """
        view, now = self.views.get(who.name), len(self.changes)
        if view is None or now - view.seen > len(self.spare) // 8:
            view = self.views[who.name] = MachineSuitability(suits=self._suited(who), seen=now)
        elif view.seen < now:
            changed = np.frombuffer(self.changes[view.seen :], dtype=np.int64)
            view.suits[changed] = (self.state.take(changed, axis=1) >= who.bounds[:, None]).all(axis=0)
            view.seen = now
        return view.suits

    def suited_among(self, who: Sensitivity, among: Mask) -> Mask:
        """Return :meth:`suits` for the machines of ``among`` only: where they are few, only they are looked at."""
        if who.name in self.views or np.count_nonzero(among) > len(among) // 2:
            return among & self.suits(who)
        places, found = among.nonzero()[0], np.zeros(len(among), dtype=np.bool_)
        suited = np.logical_and.reduce(self.state.take(places, axis=1) >= who.bounds[:, None], axis=0)
        found[places[suited]] = True
        return found

    def _suited(self, who: Sensitivity) -> Mask:
        fits: Mask = np.ones(len(self.spare), dtype=np.bool_)
        for constraint in who.hardest:
            # A comparison of vectors for each; nothing is copied.
            fits &= self.state[constraint] >= who.bounds[constraint]
        return fits

    def suits_without(self, at: int, who: Sensitivity, leaving: Sequence[Sensitivity]) -> bool:
        """Return whether machine ``at`` would suit ``who`` if the ``leaving`` units were gone."""
        left = list(self.residents[at])
        for each in leaving:
            if each in left:
                left.remove(each)
        return self.suits_company(who, left)

    def suits_company(self, who: Sensitivity, company: Sequence[Sensitivity]) -> bool:
        """Return whether ``who`` and the units of ``company`` suit each other on one machine."""
        _, caused, headroom = _together(company, len(self.sources))
        return bool((np.concatenate((headroom, -caused)) >= who.bounds).all())


def _pools(headroom: Floats, classes: int) -> Floats:
    """Return the pools 0..``classes``-1 of machines of this ``headroom``, as :func:`_stands` does for one."""
    mean = headroom.sum(axis=0) / (max(1, len(headroom)) * quality.PRESSURE_MAX)
    pools: Floats = np.minimum(classes - 1, np.floor(np.maximum(0.0, mean) * classes))
    return pools if len(headroom) else np.full_like(pools, classes - 1)


class ResidentSums(NamedTuple):
    """How a machine stands with some residents: of each array of :class:`Pressure` the column."""

    state: Floats
    expected: Floats
    spare: float
    level: int


def _stands(residents: Sequence[Sensitivity], count: int, classes: int) -> ResidentSums:
    """Return how a machine stands with ``residents``.

    As a job's class is taken of the mean it causes (eq. 6.1), a machine's pool is of the mean it tolerates: one that
    suits a job is never in a pool below the job's class.
    """
    expected, caused, headroom = _together(residents, count)
    tolerated = float(np.add.reduce(headroom))
    mean = tolerated / (count * quality.PRESSURE_MAX) if count else 1.0
    return ResidentSums(
        state=np.concatenate((headroom, -caused)),
        expected=expected,
        spare=tolerated - float(np.add.reduce(caused)),
        level=min(classes - 1, int(max(0.0, mean) * classes)),
    )


def _together(residents: Sequence[Sensitivity], count: int) -> tuple[Floats, Floats, Floats]:
    """Return what ``residents`` are expected to cause together, what they cause with confidence, and the headroom they
    leave."""
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
    """What is known of all applications at once: the ``sources`` that count, by name each application's sensitivity,
    and what one nothing is known of counts as, the median over those known. ``made_of``: of what that was worked out,
    and how."""

    sources: tuple[str, ...]
    known: Mapping[str, Sensitivity]
    prior: Sensitivity
    made_of: tuple[Mapping[str, Classification], tuple[object, ...]]


def sensitivities(
    applications: Mapping[str, Classification],
    *,
    confidence: float,
    classes: int,
    tolerance: float,
    before: Sensitivities | None = None,
) -> Sensitivities:
    """Return the sensitivities of ``applications``; those in ``before`` are reused."""
    sources = sources_of(applications)
    asked = (sources, confidence, classes, tolerance)
    beliefs, told = before.made_of[0] if before is not None else {}, before.known if before is not None else {}
    if before is not None and before.made_of[1] != asked:
        beliefs = {}
    known = {
        name: told[name] if beliefs.get(name) is belief else sensitivity(name, belief, *asked)
        for name, belief in applications.items()
    }
    prior = _usual([known[name] for name in sorted(known)], len(sources), classes)
    return Sensitivities(sources, known, prior, (applications, asked))


class PressureBaseline(NamedTuple):
    """How ``machines`` stand as a plan begins, for the next plan: by machine the ``names`` of its residents, what is
    known of each (``present``), and :class:`Pressure`'s ``state`` and ``expected``."""

    told: Sensitivities
    machines: Sequence[str]
    names: Sequence[tuple[str, ...]]
    present: Sequence[tuple[Sensitivity, ...]]
    state: Floats
    expected: Floats


def open_pressure(
    applications: Mapping[str, Classification],
    residents: Sequence[Sequence[str]],
    ending: Sequence[bool],
    *,
    confidence: float,
    classes: int,
    tolerance: float = LOSS_AT_TOLERATED,
    told: Sensitivities | None = None,
    machines: Sequence[str] = (),
    before: PressureBaseline | None = None,
) -> PressureState:
    """Return the state of machines with these ``residents``: one application name per unit, known or not.

    Of an application nothing is known of, what is usual counts. ``told``: what :func:`sensitivities` returns for
    ``applications``, where that was worked out before; ``before``: how ``machines`` stood, or others, when last asked.
    """
    told = told or sensitivities(applications, confidence=confidence, classes=classes, tolerance=tolerance)
    sources, known, prior, _ = told
    standing = _standing(told, machines, [tuple(names) for names in residents], before)
    state, expected, count = standing.state.copy(), standing.expected.copy(), len(sources)
    return PressureState(
        sources=sources,
        known=known,
        prior=prior,
        classes=classes,
        state=state,
        expected=expected,
        spare=state.sum(axis=0),
        level=_pools(state[:count], classes),
        quiet=~np.array(ending, dtype=np.bool_),
        residents=list(standing.present),
        standing=standing,
    )


def _standing(
    told: Sensitivities, machines: Sequence[str], names: Sequence[tuple[str, ...]], before: PressureBaseline | None
) -> PressureBaseline:
    """Return how ``machines`` stand with residents of these ``names``: as ``before`` but for those where residents, or
    what is known of them, changed."""
    known, prior, count = told.known, told.prior, len(told.sources)
    if before is None or before.told.made_of[1] != told.made_of[1]:
        before = PressureBaseline(told, (), [], [], np.zeros((2 * count, 0)), np.zeros((count, 0)))
    others = _told_otherwise(told, before.told, names)
    were, present, state, expected = _placed_as(before, machines, len(names), count)
    same = [was is here or was == here for was, here in zip(were, names, strict=True)]
    anew = [at for at, here in enumerate(names) if not (same[at] and others.isdisjoint(here))]
    for at in anew:
        present[at] = tuple([known.get(name, prior) for name in names[at]])
    state[:, anew], expected[:, anew] = _all_together([present[at] for at in anew], count)
    return PressureBaseline(told, machines, names, present, state, expected)


def _placed_as(
    before: PressureBaseline, machines: Sequence[str], size: int, count: int
) -> tuple[Sequence[tuple[str, ...] | None], list[tuple[Sensitivity, ...]], Floats, Floats]:
    """Return how ``machines`` stood before, ``size`` of them: names, what is known of them, state, what is expected.

    Of those that were not there, or are not named, the names are None.
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


def _told_otherwise(told: Sensitivities, before: Sensitivities, names: Sequence[tuple[str, ...]]) -> Set[str]:
    """Return those of the applications ``names`` of which something else is known than ``before``."""
    if told is before:
        return frozenset()
    met = {name for here in set(names) for name in here}
    return {name for name in met if told.known.get(name, told.prior) is not before.known.get(name, before.prior)}


def _all_together(present: Sequence[Sequence[Sensitivity]], count: int) -> tuple[Floats, Floats]:
    """Return the state of all machines at once, as :func:`_together` for each of them; and what is expected there."""
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


def _usual(known: Sequence[Sensitivity], count: int, classes: int) -> Sensitivity:
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
        classes=classes,
    )


def _median(values: Floats) -> Floats:
    """Return the medians along the first axis: of few values a sort is quicker than numpy's general way."""
    ordered, half = np.sort(values, axis=0), len(values) // 2
    median: Floats = (ordered[(len(values) - 1) // 2] + ordered[half]) / 2.0
    return median
