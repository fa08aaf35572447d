"""What presses on what: the pressures residents cause on each machine's shared resources, and what they still tolerate.

Paragon keeps for each server the sum of what its jobs cause and the least of what they tolerate (§3.2), and asks
``D1 = t_server - c_new >= 0``. That least says nothing of what the residents press on each other already: two that
tolerate 50 and cause 40 each would let in any number of others. So what is kept here is the *headroom*: the least, over
residents, of what each tolerates less what the others cause. ``D1 = headroom - c_new``, ``D2 = t_new - caused``.

Estimates have uncertainty: a job counts with what it causes and tolerates at most and at least, respectively, with the
policy's confidence. Shapes: K resources in the order of their names, N machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from hcloud import quality
from hcloud.known import Classification, Estimate

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
FULL = 100.0
"""The largest pressure, and what a machine without residents tolerates."""
STATED = 0.9
"""The one-sided confidence of an :class:`Estimate`'s limits, between which lie 80 of 100."""
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Sensitivity:
    """What one application causes and tolerates (shape ``(K,)``, 0..100), at the stated confidence, and its quality.

    ``quality`` (0..1) is ARQ's sum over the expected pressures, ``level`` its class. ``hardest``: the 2 K constraints
    (k: its own pressure k, K + k: pressure k on it), the hardest to satisfy first.
    """

    name: str
    caused: Floats
    tolerated: Floats
    quality: float
    level: int
    hardest: tuple[int, ...]


def sensitivity(
    name: str, known: Classification, sources: Sequence[str], confidence: float, classes: int
) -> Sensitivity:
    """Return the sensitivity of an application; a resource nobody asked about is neither pressed nor felt."""
    caused = [at_confidence(known.caused[s], confidence, upward=True) if s in known.caused else 0.0 for s in sources]
    kept = [
        at_confidence(known.tolerated[s], confidence, upward=False) if s in known.tolerated else FULL for s in sources
    ]
    expected = [min(FULL, max(0.0, known.caused[s].value)) if s in known.caused else 0.0 for s in sources]
    return _sensitivity(name, np.array(caused), np.array(kept), quality.total(expected), classes)


def _sensitivity(name: str, caused: Floats, tolerated: Floats, needed: float, classes: int) -> Sensitivity:
    difficulty = np.concatenate((caused, FULL - tolerated))
    return Sensitivity(
        name=name,
        caused=caused,
        tolerated=tolerated,
        quality=needed,
        level=quality.quality_class(needed, classes),
        hardest=tuple(int(each) for each in np.argsort(-difficulty, kind="stable")),
    )


def at_confidence(estimate: Estimate, confidence: float, *, upward: bool) -> float:
    """Return the value (0..100) the truth is not above (``upward``), or not below, with ``confidence`` (0.5..1)."""
    far = estimate.high - estimate.value if upward else estimate.value - estimate.low
    reach = max(0.0, far) * NormalDist().inv_cdf(confidence) / NormalDist().inv_cdf(STATED)
    return min(FULL, max(0.0, estimate.value + reach if upward else estimate.value - reach))


@dataclass(slots=True, eq=False)
class View:
    """Which machines suit one application, as of change number ``seen``."""

    suits: Mask
    seen: int


@dataclass(slots=True, eq=False)
class Pressure:
    """The state of all machines. ``caused`` and ``headroom`` have shape ``(K, N)``; ``spare`` is the sum over resources
    of headroom less pressure, shape ``(N,)``: small where the fit is tight. ``level``: the pool of each machine.
    ``prior``: what a resident nothing is known of counts as; ``ending``: machines with units that were asked to end.
    """

    sources: tuple[str, ...]
    known: Mapping[str, Sensitivity]
    prior: Sensitivity
    classes: int
    caused: Floats
    headroom: Floats
    spare: Floats
    level: Floats
    ending: Mask
    residents: list[list[Sensitivity]]
    changes: list[int] = field(default_factory=list)
    journal: list[tuple[int, Sensitivity, bool]] = field(default_factory=list)
    views: dict[str, View] = field(default_factory=dict)

    def of(self, application: str) -> Sensitivity:
        """Return what is known of an application, else the prior."""
        return self.known.get(application, self.prior)

    def add(self, at: int, resident: Sensitivity) -> None:
        """Count one more unit of an application on machine ``at``."""
        self.residents[at].append(resident)
        self.journal.append((at, resident, True))
        self._recount(at)

    def remove(self, at: int, resident: Sensitivity) -> None:
        """Count one unit less."""
        self.residents[at].remove(resident)
        self.journal.append((at, resident, False))
        self._recount(at)

    def back_to(self, moment: int) -> None:
        """Undo what was added and removed since the journal was ``moment`` long."""
        while len(self.journal) > moment:
            at, resident, added = self.journal.pop()
            if added:
                self.residents[at].remove(resident)
            else:
                self.residents[at].append(resident)
            self._recount(at)

    def _recount(self, at: int) -> None:
        caused, headroom = _together(self.residents[at], len(self.sources))
        self.caused[:, at], self.headroom[:, at] = caused, headroom
        self.spare[at] = headroom.sum() - caused.sum()
        self.level[at] = self._pool(headroom)
        self.changes.append(at)

    def _pool(self, headroom: Floats) -> int:
        mean = min(1.0, max(0.0, float(headroom.mean()) / quality.PRESSURE_MAX)) if len(headroom) else 1.0
        return quality.quality_class(mean, self.classes)

    def pool_without(self, at: int, resident: Sensitivity) -> int:
        """Return the pool machine ``at`` was in before one unit of ``resident``, which counts there now, came.

        As a job's class is taken of the mean it causes (eq. 6.1), a machine's is of the mean it tolerates: one that
        suits a job is never in a pool below the job's class.
        """
        others = list(self.residents[at])
        if resident in others:
            others.remove(resident)
        return self._pool(_together(others, len(self.sources))[1])

    def suits(self, who: Sensitivity) -> Mask:
        """Return the machines where ``who`` disturbs nobody and nobody disturbs it (``D1 >= 0``, ``D2 >= 0``).

        What was found before holds but for the machines that changed since: the cost is linear in what changed.
        """
        view, now = self.views.get(who.name), len(self.changes)
        if view is None or now - view.seen > len(self.spare) // 8:
            view = self.views[who.name] = View(suits=self._suited(who), seen=now)
        elif view.seen < now:
            changed = np.array(sorted(set(self.changes[view.seen :])), dtype=np.intp)
            view.suits[changed] = _fits(who, self.headroom[:, changed], self.caused[:, changed])
            view.seen = now
        return view.suits

    def _suited(self, who: Sensitivity) -> Mask:
        return _fits(who, self.headroom, self.caused)

    def suits_without(self, at: int, who: Sensitivity, leaving: Sequence[Sensitivity]) -> bool:
        """Return whether machine ``at`` would suit ``who`` if the ``leaving`` units were gone."""
        left = list(self.residents[at])
        for each in leaving:
            if each in left:
                left.remove(each)
        return self.suits_company(who, left)

    def suits_company(self, who: Sensitivity, company: Sequence[Sensitivity]) -> bool:
        """Return whether ``who`` and the units of ``company`` suit each other on one machine."""
        caused, headroom = _together(company, len(self.sources))
        return bool((headroom + _SLACK >= who.caused).all() and (who.tolerated + _SLACK >= caused).all())


def _fits(who: Sensitivity, headroom: Floats, caused: Floats) -> Mask:
    fits: Mask = np.ones(headroom.shape[1], dtype=np.bool_)
    own, borne = who.caused - _SLACK, who.tolerated + _SLACK
    for k in range(len(own)):
        # A vector comparison per resource; nothing is copied.
        fits &= headroom[k] >= own[k]
        fits &= caused[k] <= borne[k]
    return fits


def _together(residents: Sequence[Sensitivity], count: int) -> tuple[Floats, Floats]:
    """Return what ``residents`` cause together, and the headroom they leave."""
    if not residents:
        return np.zeros(count), np.full(count, FULL)
    each = np.array([resident.caused for resident in residents])
    caused: Floats = each.sum(axis=0)
    left = np.array([resident.tolerated for resident in residents]) - (caused - each)
    headroom: Floats = np.minimum(left.min(axis=0), FULL)
    return caused, headroom


def open_pressure(
    applications: Mapping[str, Classification],
    residents: Sequence[Sequence[str]],
    ending: Sequence[bool],
    *,
    confidence: float,
    classes: int,
) -> Pressure:
    """Return the state of machines whose ``residents`` are named by application: one name per unit, known or not.

    Of an application nothing is known of, what is usual counts: the median over those known.
    """
    sources = tuple(sorted({s for known in applications.values() for s in (*known.caused, *known.tolerated)}))
    known = {name: sensitivity(name, each, sources, confidence, classes) for name, each in sorted(applications.items())}
    count, machines = len(sources), len(residents)
    pressure = Pressure(
        sources=sources,
        known=known,
        prior=_usual(list(known.values()), count, classes),
        classes=classes,
        caused=np.zeros((count, machines)),
        headroom=np.full((count, machines), FULL),
        spare=np.full(machines, FULL * count),
        level=np.full(machines, float(classes - 1)),
        ending=np.array(ending, dtype=np.bool_),
        residents=[[] for _ in residents],
    )
    for at, names in enumerate(residents):
        if names:
            pressure.residents[at] = [pressure.of(name) for name in names]
            pressure._recount(at)
    pressure.changes.clear()
    return pressure


def _usual(known: Sequence[Sensitivity], count: int, classes: int) -> Sensitivity:
    if not known:
        return _sensitivity("", np.zeros(count), np.full(count, FULL), 0.0, classes)
    caused: Floats = np.median([each.caused for each in known], axis=0)
    tolerated: Floats = np.median([each.tolerated for each in known], axis=0)
    return _sensitivity("", caused, tolerated, float(np.median([each.quality for each in known])), classes)
