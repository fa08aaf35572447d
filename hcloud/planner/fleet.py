"""The live instances as arrays: their capacity, what is free, and which may be used.

Amounts are float arrays of shape ``(4, N)`` over the N live instances by number; the rows are vCPUs, memory in MiB,
disk in GiB and GPUs. Masks have shape ``(N,)``. All of it is scratch space of one ``make_plan`` call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from fnmatch import fnmatchcase
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hcloud.core.model import (
    Allocation,
    Gpus,
    Instance,
    InstanceId,
    InstanceState,
    Job,
    JobId,
    Market,
    Offer,
    Resources,
)
from hcloud.core.rows import by_number, row_changes
from hcloud.planner.cache import PlanCache
from hcloud.planner.occupancy import Occupancy, Residents

Amounts = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]
SLACK = 1e-9
"""Tolerance of ``Resources.fits``."""
_EMPTY = Residents()
_TIE = 1e-6
"""Loads closer than this count as equal."""
_PAIRS_AT_ONCE = 2**15
"""Up to this many pairs of demand and instance are compared directly; beyond it, only the skyline of the instances
is."""


def vector(resources: Resources) -> Amounts:
    """Return ``resources`` as an array of shape ``(4,)``."""
    return np.array(amounts_of(resources), dtype=np.float64)


def amounts_of(resources: Resources) -> tuple[float, float, float, float]:
    """Return ``resources`` as plain numbers: vCPUs, MiB, GiB of disk, GPUs."""
    gpus = float(resources.gpu_count)
    return (float(resources.vcpus), float(resources.memory_mib), float(resources.disk_gib), gpus)


class MachineKinds(NamedTuple):
    """Instances grouped by type and size."""

    sizes: tuple[tuple[str, float], ...]
    """The distinct pairs of type and vCPUs."""
    at: Places
    """Index into ``sizes`` of each instance, shape ``(N,)``."""


def kinds_of(sizes: Sequence[tuple[str, float]]) -> MachineKinds:
    """Group instances given as pairs of type (``<provider>/<type>``) and vCPUs."""
    kinds = tuple(sorted(set(sizes)))
    places = {size: place for place, size in enumerate(kinds)}
    return MachineKinds(sizes=kinds, at=np.array([places[size] for size in sizes], dtype=np.intp))


OfferShape = tuple[str, Market]
"""A type, as ``<provider>/<type>``, in a market. Prices may differ between instances of one shape."""


def offer_shape_of(offer: Offer) -> OfferShape:
    """Return type and market of ``offer``."""
    return f"{offer.provider}/{offer.instance_type.name}", offer.market


class _OfferFacts(NamedTuple):
    """What follows from the offers of the instances alone; see :class:`Fleet`. Shared, so never modified."""

    capacity: Amounts
    steady: Mask
    reserved: Mask
    type_columns: list[str]
    type_at: Places
    shapes: list[OfferShape]
    shape_at: Places
    of_shape: Mask
    sizes: list[tuple[str, float]]
    kinds: MachineKinds
    price_usd_per_h: Amounts


class _MachineFacts(NamedTuple):
    """The same of one instance."""

    size: tuple[str, float]
    shape: OfferShape
    capacity: tuple[float, float, float, float]
    steady: bool
    reserved: bool
    price_usd_per_h: float


def _machine_facts(offer: Offer) -> _MachineFacts:
    kind, market, shape = offer.instance_type, offer.market, offer_shape_of(offer)
    return _MachineFacts(
        size=(shape[0], float(kind.capacity.vcpus)),
        shape=shape,
        capacity=amounts_of(kind.capacity),
        steady=market is not Market.SPOT,
        reserved=market is Market.RESERVED,
        price_usd_per_h=offer.price_usd_per_h,
    )


def _offer_facts(machines: Sequence[_MachineFacts]) -> _OfferFacts:
    sizes = [each.size for each in machines]
    type_columns = sorted({column for column, _ in sizes})
    places = {column: at for at, column in enumerate(type_columns)}
    shapes = sorted({each.shape for each in machines})
    numbers = {shape: at for at, shape in enumerate(shapes)}
    shape_at = np.array([numbers[each.shape] for each in machines], dtype=np.intp)
    facts = _OfferFacts(
        capacity=_columns([each.capacity for each in machines]),
        steady=np.array([each.steady for each in machines], dtype=np.bool_),
        reserved=np.array([each.reserved for each in machines], dtype=np.bool_),
        type_columns=type_columns,
        type_at=np.array([places[column] for column, _ in sizes], dtype=np.intp),
        shapes=shapes,
        shape_at=shape_at,
        of_shape=shape_at == np.arange(len(shapes))[:, None],
        sizes=sizes,
        kinds=kinds_of(sizes),
        price_usd_per_h=np.array([each.price_usd_per_h for each in machines], dtype=np.float64),
    )
    arrays = (facts.capacity, facts.steady, facts.reserved, facts.price_usd_per_h)
    for shared in (*arrays, facts.type_at, facts.shape_at, facts.of_shape):
        shared.setflags(write=False)
    return facts


class _FleetBaseline:
    """The instances as a plan finds them, updated from one plan to the next.

    Only instances with a changed row or changed residents are read again. Fleets share its lists and arrays, which
    nothing else may modify.
    """

    def __init__(self) -> None:
        self._seen: Sequence[Instance] = ()
        self._made: dict[InstanceId, tuple[Offer, _MachineFacts]] = {}
        self._place((), {})

    def follow(self, instances: Sequence[Instance], occupancy: Occupancy) -> None:
        """Update to ``instances`` and to what units hold of them; ``occupancy`` must be up to date."""
        changed, touched = row_changes(self._seen, instances), occupancy.take_touched()
        self._seen = ()  # if anything below fails, the next plan reads all instances again
        if all(_is_live(before) and _is_live(now) for before, now in changed):
            places = {at for name in touched if (at := self.index.get(name)) is not None}
            places |= self._replace([(before, now) for before, now in changed if before and now])
        else:
            self._place(instances, occupancy.residents)
            places = set()
        for at in places:
            instance = self.instances[at]
            residents = self.residents[at] = occupancy.residents.get(instance.id, _EMPTY)
            self.holdings[at] = residents.held
            self.free[:, at] = residents.left_of(instance.capacity) if residents.held else self.facts.capacity[:, at]
        self._seen = instances

    def _place(self, instances: Sequence[Instance], occupants: Mapping[InstanceId, Residents]) -> None:
        terminated = InstanceState.TERMINATED
        self.instances = [each for each in by_number(instances) if each.state is not terminated]
        self.index: dict[InstanceId, int] = {each.id: at for at, each in enumerate(self.instances)}
        self.facts = self._read_offers()
        self.staying = self._staying_places()
        self.residents = [occupants.get(each.id, _EMPTY) for each in self.instances]
        self.holdings: list[list[tuple[Job, Allocation]]] = [each.held for each in self.residents]
        pairs = zip(self.residents, self.instances, strict=True)
        free = [held.left_of(each.capacity) if held.held else self._made[each.id][1].capacity for held, each in pairs]
        self.free: Amounts = _columns(free)

    def _replace(self, changed: Sequence[tuple[Instance, Instance]]) -> set[int]:
        """Replace changed rows; return the places where the offer changed too."""
        changed_offers = set[int]()
        for before, now in changed:
            at = self.index[now.id]
            self.instances[at] = now
            if now.offer is not before.offer:
                changed_offers.add(at)
        if changed_offers:
            self.facts = self._read_offers()
        if any(before.state is not now.state for before, now in changed):
            self.staying = self._staying_places()
        return changed_offers

    def _read_offers(self) -> _OfferFacts:
        before, self._made = self._made, {}
        for each in self.instances:
            previous = before.get(each.id)
            self._made[each.id] = (
                previous if previous and previous[0] is each.offer else (each.offer, _machine_facts(each.offer))
            )
        return _offer_facts([made for _, made in self._made.values()])

    def _staying_places(self) -> list[int]:
        terminating = InstanceState.TERMINATING
        return [at for at, each in enumerate(self.instances) if each.state is not terminating]


def _is_live(instance: Instance | None) -> bool:
    return instance is not None and instance.state is not InstanceState.TERMINATED


class Fleet:
    """The live instances, what their units hold, what is left, and which may be used."""

    def __init__(self, instances: Sequence[Instance], plan_cache: PlanCache) -> None:
        """Index ``instances`` (any order) and what units hold of them, according to the occupancy in ``plan_cache``."""
        baseline: _FleetBaseline = plan_cache.latest("machines") or _FleetBaseline()
        baseline.follow(instances, plan_cache.occupancy)
        plan_cache.keep("machines", baseline)
        self.instances = baseline.instances
        self.index = baseline.index
        """Place of each instance, by id."""
        self.staying = baseline.staying
        """Places of the instances that were not asked to terminate before this plan."""
        self.residents = baseline.residents
        self.holdings = baseline.holdings
        """Units on each instance."""
        count, facts = len(self.instances), baseline.facts
        self.capacity: Amounts = facts.capacity
        # One array for both, so that a search compares them in one operation.
        self._left: Amounts = np.concatenate((baseline.free, baseline.free))
        self.free = self._left[:4]
        """What no unit holds now."""
        self.room = self._left[4:]
        """What may still be promised: free, plus what stopping units will release, less what is claimed or held for
        jobs. A unit can start where both suffice."""
        self.load: Amounts = 1.0 - self.free[0] / np.maximum(self.capacity[0], SLACK)
        """Share of the vCPUs in use, shape ``(N,)``."""
        self.uses = 0
        """How often ``free`` has changed."""
        self.placeable: Mask = np.zeros(count, dtype=np.bool_)
        """Units may start there now. Set by :mod:`hcloud.planner.instance_lifecycle` at first, like the next two."""
        self.coming: Mask = np.zeros(count, dtype=np.bool_)
        """Still booting."""
        self.hopeful: Mask = np.zeros(count, dtype=np.bool_)
        """A job that awaits the instance may go on waiting: it is booting, or READY and staying."""
        self.steady: Mask = facts.steady
        """Not spot."""
        self.reserved: Mask = facts.reserved
        self.partly_reserved = bool(self.reserved.any() and not self.reserved.all())
        # At equal load prefer a reserved instance, which is paid for anyway.
        self._tie: Amounts = np.where(self.reserved, 0.0, _TIE)
        self._of_types: dict[tuple[str, ...], Mask] = {}
        self._of_kinds: dict[tuple[tuple[str, ...], Gpus | None], Mask] = {}
        self.has_gpus = bool(self.capacity[3].any())
        """Whether any instance has GPUs."""
        self.type_columns = facts.type_columns
        """The distinct types, as ``<provider>/<type>``."""
        self.type_at = facts.type_at
        """Index into ``type_columns`` of each instance."""
        self.shapes = facts.shapes
        """The distinct pairs of type and market."""
        self.shape_at = facts.shape_at
        """Index into ``shapes`` of each instance."""
        self.of_shape = facts.of_shape
        """Which instances are of each shape, shape ``(len(shapes), N)``."""
        self.sizes, self.kinds, self.price_usd_per_h = facts.sizes, facts.kinds, facts.price_usd_per_h

    def close(self, at: int) -> None:
        """Use instance ``at`` for nothing more: it goes away."""
        self.placeable[at] = self.coming[at] = self.hopeful[at] = False

    def set_placeable(self, at: int, placeable: bool) -> None:
        """Let units start on READY instance ``at``, and jobs await it, or neither."""
        self.placeable[at] = self.hopeful[at] = placeable

    def set_placeable_but(self, others: Sequence[int]) -> None:
        """Let units start on all instances that stay, except ``others``."""
        for mask in (self.placeable, self.hopeful):
            mask[self.staying] = True
            mask[others] = False

    def set_coming(self, at: int) -> None:
        """Let jobs await instance ``at``, which boots."""
        self.coming[at] = self.hopeful[at] = True

    def set_hopeful(self, at: int, hopeful: bool) -> None:
        """Let jobs await instance ``at``, where nothing can start now, or not."""
        self.hopeful[at] = hopeful

    def of_types(self, patterns: tuple[str, ...]) -> Mask:
        """Return which instances are of a type that matches one of ``patterns``; without patterns: all."""
        known = self._of_types.get(patterns)
        if known is None:
            names = [column.partition("/")[2] for column in self.type_columns]
            named = [not patterns or any(fnmatchcase(n, each) for each in patterns) for n in names]
            known = self._of_types[patterns] = np.array(named, dtype=np.bool_)[self.type_at]
        return known

    def of_kinds(self, patterns: tuple[str, ...], gpus: Gpus | None) -> Mask:
        """Return which instances are :meth:`of_types` and suit jobs that request ``gpus``
        (:meth:`hcloud.core.model.Offer.suits_gpus`)."""
        known = self._of_kinds.get((patterns, gpus))
        if known is None:
            known = self.of_types(patterns)
            if self.has_gpus or gpus is not None:
                suit = [each.offer.suits_gpus(gpus, named=bool(patterns)) for each in self.instances]
                known = known & np.array(suit, dtype=np.bool_)
            self._of_kinds[patterns, gpus] = known
        return known

    def others_than(self, names: Sequence[InstanceId]) -> Mask:
        """Return which instances are not in ``names``."""
        others: Mask = np.ones(len(self.instances), dtype=np.bool_)
        others[[self.index[name] for name in names if name in self.index]] = False
        return others

    def unshared(self, left: Amounts) -> Mask:
        """Return which instances are entirely in ``left``, which is :attr:`room` or :attr:`free`."""
        whole: Mask = np.logical_and.reduce(left >= self.capacity - SLACK, axis=0)
        return whole

    def expect_release(self, ending: Set[JobId], surplus: Set[JobId] = frozenset()) -> None:
        """Count what units of the jobs ``ending`` hold as room, and what ranks of ``surplus`` hold that yield."""
        if not ending and not surplus:
            return
        for at, holdings in enumerate(self.holdings):
            for job, held in holdings:
                if job.id in ending or (held.yielded_at is not None and job.id in surplus):
                    self.room[:, at] += vector(held.resources)

    def fitting(self, demand: Amounts, among: Mask) -> Mask:
        """Return which instances of ``among`` have room for ``demand`` now or when stopping units have ended."""
        cpu, memory, disk, gpus = demand - SLACK
        fits: Mask = among & (self.room[0] >= cpu) & (self.room[1] >= memory) & (self.room[2] >= disk)
        return fits & (self.room[3] >= gpus) if gpus > 0.0 else fits

    def fitting_now(self, demand: Amounts, among: Mask) -> Mask:
        """Return which instances of ``among`` have room for ``demand`` now."""
        enough = self._left.reshape(2, 4, -1) >= (demand - SLACK).reshape(4, -1)
        fits: Mask = among & np.logical_and.reduce(enough.reshape(8, -1), axis=0)
        return fits

    def have_room_now(self, places: Places, demands: Amounts) -> Mask:
        """Return :meth:`fitting_now` for the instances ``places``, with a demand for each, shape ``(4, n)``."""
        need, free, room = demands - SLACK, self.free.take(places, axis=1), self.room.take(places, axis=1)
        fits: Mask = np.logical_and.reduce((free >= need) & (room >= need), axis=0)
        return fits

    def has_room(self, at: int, demand: Amounts) -> bool:
        """Return :meth:`fitting` for one instance."""
        room = self.room[:, at].tolist()
        return all(has >= wanted - SLACK for has, wanted in zip(room, demand.tolist(), strict=True))

    def large_enough(self, demand: Amounts) -> Mask:
        """Return which instances would have room for ``demand`` if they were empty."""
        large: Mask = np.logical_and.reduce(self.capacity + SLACK >= demand[:, None], axis=0)
        return large

    def least_loaded(self, demand: Amounts, among: Mask) -> int:
        """Return the fitting instance with the smallest share of its vCPUs in use, or -1; ties: reserved, then
        number."""
        fits = self.fitting_now(demand, among)
        return self.least_loaded_of(fits) if fits.any() else -1

    def least_loaded_of(self, fits: Mask) -> int:
        """Return :meth:`least_loaded` of the instances ``fits``, which has at least one."""
        return int(np.where(fits, self.load + self._tie, np.inf).argmin())

    def first(self, demand: Amounts, among: Mask) -> int:
        """Return the first fitting instance of ``among``, or -1."""
        return next(iter(self.fitting(demand, among).nonzero()[0].tolist()), -1)

    def use(self, at: int, demand: Amounts) -> None:
        """Count a unit as placed on instance ``at``."""
        self.uses += 1
        self.free[:, at] -= demand
        self.room[:, at] -= demand
        self.load[at] += demand[0] / max(self.capacity[0, at], SLACK)

    def unuse(self, at: int, demand: Amounts) -> None:
        """Undo :meth:`use`."""
        self.uses += 1
        self.free[:, at] += demand
        self.room[:, at] += demand
        self.load[at] -= demand[0] / max(self.capacity[0, at], SLACK)

    def fits_somewhere(self, demands: Amounts, among: Mask) -> Mask:
        """Return for each of ``demands``, shape ``(G, 4)``, whether it fits on any instance of ``among``."""
        return fits_any(demands, self.room[:, among].T)


def fits_any(demands: Amounts, rooms: Amounts) -> Mask:
    """Return for each row of ``demands`` whether it fits into some row of ``rooms``; both have four columns.

    If there are very many pairs, only rooms that no other room exceeds in every column are compared.
    """
    fits: Mask
    if len(demands) * len(rooms) > _PAIRS_AT_ONCE:  # in a full cluster most rooms are too small for every demand
        rooms = rooms[np.logical_and.reduce(rooms + SLACK >= demands.min(axis=0), axis=1)]
    if len(demands) * len(rooms) <= _PAIRS_AT_ONCE:
        (vcpus, memory_mib, disk_gib, gpus), wanted = (rooms + SLACK).T, demands[:, :, None]
        pairs = (wanted[:, 0] <= vcpus) & (wanted[:, 1] <= memory_mib) & (wanted[:, 2] <= disk_gib)
        if demands[:, 3].any():
            pairs &= wanted[:, 3] <= gpus
        fits = np.logical_or.reduce(pairs, axis=1)
        return fits
    fits = np.zeros(len(demands), dtype=np.bool_)
    for point in skyline(rooms):
        fits |= (demands <= point + SLACK).all(axis=1)
    return fits


def skyline(points: Amounts) -> Amounts:
    """Return the rows of ``points``, shape ``(N, 4)``, that no other row equals or exceeds in all four columns."""
    kept: list[Amounts] = []
    ordered = np.unique(points, axis=0)[::-1]  # descending by vCPUs, so no later row exceeds an earlier one in them
    highest: Amounts = np.empty((0, 3))
    for point in ordered:
        if not (highest >= point[1:]).all(axis=1).any():
            kept.append(point)
            highest = np.vstack((highest, point[1:]))
    return np.array(kept).reshape(-1, 4)


def _columns(amounts: Sequence[tuple[float, float, float, float]]) -> Amounts:
    flat = np.fromiter(chain.from_iterable(amounts), np.float64, 4 * len(amounts))
    return np.ascontiguousarray(flat.reshape(-1, 4).T)
