"""The machines as arrays: what each has room for, and which may be used for what.

Shapes: amounts are ``(3, N)`` float arrays over the N live machines by number; the
rows are vCPUs, memory in MiB, disk in GiB. Masks are ``(N,)``. Everything here is scratch space of one ``make_plan``
call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from fnmatch import fnmatchcase
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hcloud.core.model import Allocation, Instance, InstanceId, InstanceState, Job, JobId, Market, Offer, Resources
from hcloud.core.rows import by_number, row_changes
from hcloud.planner.cache import PlanCache
from hcloud.planner.occupancy import Occupancy, Residents

Amounts = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]
SLACK = 1e-9
"""The slack of ``Resources.fits``."""
_NOBODY = Residents()
_TIE = 1e-6
"""Loads closer than this are equal."""
_PAIRS_AT_ONCE = 2**15
"""So many pairs of a demand and a machine are compared one by one sooner than the machines are sorted."""


def vector(resources: Resources) -> Amounts:
    """Return ``resources`` as an array of shape ``(3,)``."""
    return np.array((resources.vcpus, resources.memory_mib, resources.disk_gib), dtype=np.float64)


class MachineKinds(NamedTuple):
    """Machines by kind: the different types and vCPUs (``sizes``), and which of them each has, shape ``(N,)``."""

    sizes: tuple[tuple[str, float], ...]
    at: Places


def kinds_of(sizes: Sequence[tuple[str, float]]) -> MachineKinds:
    """Return the kinds of machines, of each its type (``<provider>/<type>``) and vCPUs."""
    kinds = tuple(sorted(set(sizes)))
    places = {size: place for place, size in enumerate(kinds)}
    return MachineKinds(sizes=kinds, at=np.array([places[size] for size in sizes], dtype=np.intp))


OfferShape = tuple[str, Market]
"""What is sold: a type, as ``<provider>/<type>``, in a market; machines of one type may have very different prices."""


def offer_shape_of(offer: Offer) -> OfferShape:
    """Return which ware ``offer`` is of."""
    return f"{offer.provider}/{offer.instance_type.name}", offer.market


class _OfferFacts(NamedTuple):
    """What of machines follows from their offers, whatever is on them: see :class:`Fleet`. Nobody may change it."""

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
    """The same of one machine."""

    size: tuple[str, float]
    shape: OfferShape
    capacity: tuple[float, float, float]
    steady: bool
    reserved: bool
    price_usd_per_h: float


def _made(offer: Offer) -> _MachineFacts:
    kind, market, shape = offer.instance_type, offer.market, offer_shape_of(offer)
    return _MachineFacts(
        size=(shape[0], float(kind.capacity.vcpus)),
        shape=shape,
        capacity=(float(kind.capacity.vcpus), float(kind.capacity.memory_mib), float(kind.capacity.disk_gib)),
        steady=market is not Market.SPOT,
        reserved=market is Market.RESERVED,
        price_usd_per_h=offer.price_usd_per_h,
    )


def _lasting(machines: Sequence[_MachineFacts]) -> _OfferFacts:
    sizes = [each.size for each in machines]
    type_columns = sorted({column for column, _ in sizes})
    places = {column: at for at, column in enumerate(type_columns)}
    shapes = sorted({each.shape for each in machines})
    numbers = {shape: at for at, shape in enumerate(shapes)}
    shape_at = np.array([numbers[each.shape] for each in machines], dtype=np.intp)
    found = _OfferFacts(
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
    arrays = (found.capacity, found.steady, found.reserved, found.price_usd_per_h)
    for shared in (*arrays, found.type_at, found.shape_at, found.of_shape):
        shared.setflags(write=False)
    return found


class _FleetBaseline:
    """The machines as a plan finds them, for the next one: looked at anew are those whose row, or whose residents,
    changed. Fleets share its lists and arrays; nobody else may change them.

    ``free``: what nothing holds, shape ``(3, N)``.
    """

    def __init__(self) -> None:
        """Know of none."""
        self._seen: Sequence[Instance] = ()
        self._made: dict[InstanceId, tuple[Offer, _MachineFacts]] = {}
        self._place((), {})

    def follow(self, instances: Sequence[Instance], occupancy: Occupancy) -> None:
        """Take in all machines as they are now, and what the units of ``roster``, which is followed already, hold."""
        changed, touched = row_changes(self._seen, instances), occupancy.take_touched()
        self._seen = ()  # whatever goes wrong below: the next plan then looks at all of them
        if all(_is_there(before) and _is_there(now) for before, now in changed):
            places = {at for name in touched if (at := self.index.get(name)) is not None}
            places |= self._replace([(before, now) for before, now in changed if before and now])
        else:
            self._place(instances, occupancy.residents)
            places = set()
        self._hold(places, occupancy.residents)
        self._seen = instances

    def _place(self, instances: Sequence[Instance], there: Mapping[InstanceId, Residents]) -> None:
        gone = InstanceState.TERMINATED
        self.instances = [each for each in by_number(instances) if each.state is not gone]
        self.index: dict[InstanceId, int] = {each.id: at for at, each in enumerate(self.instances)}
        self.lasting = self._last()
        self.staying = self._those_who_stay()
        self.residents = [there.get(each.id, _NOBODY) for each in self.instances]
        self.holdings: list[list[tuple[Job, Allocation]]] = [each.held for each in self.residents]
        pairs = zip(self.residents, self.instances, strict=True)
        left = [held.of(each.capacity) if held.held else self._made[each.id][1].capacity for held, each in pairs]
        self.free: Amounts = _columns(left)

    def _replace(self, changed: Sequence[tuple[Instance, Instance]]) -> set[int]:
        """Put rows in the place of earlier ones; return where the machine itself is another now."""
        others = set[int]()
        for before, now in changed:
            at = self.index[now.id]
            self.instances[at] = now
            if now.offer is not before.offer:
                others.add(at)
        if others:
            self.lasting = self._last()
        if any(before.state is not now.state for before, now in changed):
            self.staying = self._those_who_stay()
        return others

    def _last(self) -> _OfferFacts:
        """Return what follows from the machines' offers; of each it is read off once."""
        before, self._made = self._made, {}
        for each in self.instances:
            known = before.get(each.id)
            self._made[each.id] = known if known and known[0] is each.offer else (each.offer, _made(each.offer))
        return _lasting([made for _, made in self._made.values()])

    def _those_who_stay(self) -> list[int]:
        terminating = InstanceState.TERMINATING
        return [at for at, each in enumerate(self.instances) if each.state is not terminating]

    def _hold(self, places: Set[int], there: Mapping[InstanceId, Residents]) -> None:
        for at in places:
            instance = self.instances[at]
            residents = self.residents[at] = there.get(instance.id, _NOBODY)
            self.holdings[at] = residents.held
            self.free[:, at] = residents.of(instance.capacity) if residents.held else self.lasting.capacity[:, at]


def _is_there(instance: Instance | None) -> bool:
    return instance is not None and instance.state is not InstanceState.TERMINATED


class Fleet:
    """Machines, what their units hold (``holdings``), what is left, and who may use it.

    ``free``: what nothing holds now. ``room``: what may still be promised: free, plus what units that were asked to
    end will give back, less what is kept for somebody. A unit starts where both suffice. ``staying``: machines not
    asked to end before. ``placeable``: units may be started there now. ``coming``: will register. ``hopeful``: a job
    that awaits it may go on waiting (coming, or READY and staying). The last three are filled in by the lease stage.
    ``type_at``: each machine's type, as a place in ``type_columns`` (``<provider>/<type>``, as classifications say);
    ``ware_at``: the same in ``wares`` (types by market); ``of_ware``: by such a place which machines are of that ware,
    shape ``(wares, N)``;
    ``sizes``: each machine's type and vCPUs, ``kinds`` the same by kind; ``price_usd_per_h``: of each machine.
    ``uses``: how often ``free`` has changed.
    """

    def __init__(self, instances: Sequence[Instance], plan_cache: PlanCache) -> None:
        """Index ``instances`` (any order) and what the units of the ``memo``'s roster hold of them."""
        standing: _FleetBaseline = plan_cache.latest("machines") or _FleetBaseline()
        standing.follow(instances, plan_cache.occupancy)
        plan_cache.keep("machines", standing)
        self.instances, self.index, self.staying = standing.instances, standing.index, standing.staying
        self.residents, self.holdings = standing.residents, standing.holdings
        count, lasting = len(self.instances), standing.lasting
        self.capacity: Amounts = lasting.capacity
        # One array of both, so that a search compares them at one stroke.
        self._left: Amounts = np.concatenate((standing.free, standing.free))
        self.free, self.room = self._left[:3], self._left[3:]
        self.steady: Mask = lasting.steady
        self.placeable: Mask = np.zeros(count, dtype=np.bool_)
        self.coming: Mask = np.zeros(count, dtype=np.bool_)
        self.hopeful: Mask = np.zeros(count, dtype=np.bool_)
        self.load: Amounts = 1.0 - self.free[0] / np.maximum(self.capacity[0], SLACK)
        self.reserved: Mask = lasting.reserved
        self.partly_reserved = bool(self.reserved.any() and not self.reserved.all())
        # Equally loaded: a reserved machine first, its price is paid anyway.
        self._tie: Amounts = np.where(self.reserved, 0.0, _TIE)
        self.uses = 0
        self._of_types: dict[tuple[str, ...], Mask] = {}
        self.type_columns, self.type_at = lasting.type_columns, lasting.type_at
        self.shapes, self.shape_at, self.of_shape = lasting.shapes, lasting.shape_at, lasting.of_shape
        self.sizes, self.kinds, self.price_usd_per_h = lasting.sizes, lasting.kinds, lasting.price_usd_per_h

    def of_types(self, patterns: tuple[str, ...]) -> Mask:
        """Return which machines are of a type that one of ``patterns`` names; no patterns: all."""
        known = self._of_types.get(patterns)
        if known is None:
            names = [column.partition("/")[2] for column in self.type_columns]
            named = [not patterns or any(fnmatchcase(n, each) for each in patterns) for n in names]
            known = self._of_types[patterns] = np.array(named, dtype=np.bool_)[self.type_at]
        return known

    def others_than(self, names: Sequence[InstanceId]) -> Mask:
        """Return all machines but those named."""
        others: Mask = np.ones(len(self.instances), dtype=np.bool_)
        others[[self.index[name] for name in names if name in self.index]] = False
        return others

    def unshared(self, left: Amounts) -> Mask:
        """Return the machines of which ``left`` (``room`` or ``free``) is the whole."""
        whole: Mask = np.logical_and.reduce(left >= self.capacity - SLACK, axis=0)
        return whole

    def expect(self, ending: Set[JobId]) -> None:
        """Count what the units of jobs ``ending`` hold as room."""
        if not ending:
            return
        for at, holdings in enumerate(self.holdings):
            for job, held in holdings:
                if job.id in ending:
                    self.room[:, at] += vector(held.resources)

    def fitting(self, demand: Amounts, among: Mask) -> Mask:
        """Return which machines of ``among`` have room for ``demand``."""
        cpu, memory, disk = demand - SLACK
        fits: Mask = among & (self.room[0] >= cpu) & (self.room[1] >= memory) & (self.room[2] >= disk)
        return fits

    def fitting_now(self, demand: Amounts, among: Mask) -> Mask:
        """Return which machines of ``among`` have room for ``demand`` that nothing holds now."""
        enough = self._left.reshape(2, 3, -1) >= (demand - SLACK).reshape(3, -1)
        fits: Mask = among & np.logical_and.reduce(enough.reshape(6, -1), axis=0)
        return fits

    def have_room_now(self, places: Places, demands: Amounts) -> Mask:
        """Return :meth:`fitting_now` of the machines ``places``; ``demands``, shape ``(3, n)``: of each."""
        need, free, room = demands - SLACK, self.free.take(places, axis=1), self.room.take(places, axis=1)
        fits: Mask = np.logical_and.reduce((free >= need) & (room >= need), axis=0)
        return fits

    def has_room(self, at: int, demand: Amounts) -> bool:
        """Return whether machine ``at`` has room for ``demand``: :meth:`fitting` of one."""
        cpu, memory, disk = self.room[:, at].tolist()
        wanted = demand.tolist()
        return bool(cpu >= wanted[0] - SLACK and memory >= wanted[1] - SLACK and disk >= wanted[2] - SLACK)

    def large_enough(self, demand: Amounts) -> Mask:
        """Return which machines, empty, have room for ``demand``."""
        large: Mask = np.logical_and.reduce(self.capacity + SLACK >= demand[:, None], axis=0)
        return large

    def least_loaded(self, demand: Amounts, among: Mask) -> int:
        """Return the fitting machine with the least share of its vCPUs in use (then: reserved, number), or -1."""
        fits = self.fitting_now(demand, among)
        if not fits.any():
            return -1
        return int(np.where(fits, self.load + self._tie, np.inf).argmin())

    def first(self, demand: Amounts, among: Mask) -> int:
        """Return the first fitting machine of ``among``, or -1."""
        return next(iter(self.fitting(demand, among).nonzero()[0].tolist()), -1)

    def use(self, at: int, demand: Amounts) -> None:
        """Count a unit as placed on machine ``at``."""
        self.uses += 1
        self.free[:, at] -= demand
        self.room[:, at] -= demand
        self.load[at] += demand[0] / max(self.capacity[0, at], SLACK)

    def unuse(self, at: int, demand: Amounts) -> None:
        """Take :meth:`use` back."""
        self.uses += 1
        self.free[:, at] += demand
        self.room[:, at] += demand
        self.load[at] -= demand[0] / max(self.capacity[0, at], SLACK)

    def fits_somewhere(self, demands: Amounts, among: Mask) -> Mask:
        """Return for each of ``demands`` (shape ``(G, 3)``) whether any machine of ``among`` has room for it."""
        return fits_any(demands, self.room[:, among].T)


def fits_any(demands: Amounts, rooms: Amounts) -> Mask:
    """Return for each row of ``demands`` whether it fits into some row of ``rooms`` (both with three columns).

    Of very many pairs only the rooms that no other one exceeds in every respect are looked at: few.
    """
    fits: Mask
    if len(demands) * len(rooms) > _PAIRS_AT_ONCE:  # where nearly all is taken, most are too small for anybody
        rooms = rooms[np.logical_and.reduce(rooms + SLACK >= demands.min(axis=0), axis=1)]
    if len(demands) * len(rooms) <= _PAIRS_AT_ONCE:
        (vcpus, memory_mib, disk_gib), wanted = (rooms + SLACK).T, demands[:, :, None]
        pairs = (wanted[:, 0] <= vcpus) & (wanted[:, 1] <= memory_mib) & (wanted[:, 2] <= disk_gib)
        fits = np.logical_or.reduce(pairs, axis=1)
        return fits
    fits = np.zeros(len(demands), dtype=np.bool_)
    for point in skyline(rooms):
        fits |= (demands <= point + SLACK).all(axis=1)
    return fits


def skyline(points: Amounts) -> Amounts:
    """Return the rows of ``points`` (shape ``(N, 3)``) that no other row equals or exceeds in all three columns."""
    kept: list[Amounts] = []
    ordered = np.unique(points, axis=0)[::-1]  # descending by vCPUs, so nothing later exceeds an earlier one in them
    highest: Amounts = np.empty((0, 2))
    for point in ordered:
        if not (highest >= point[1:]).all(axis=1).any():
            kept.append(point)
            highest = np.vstack((highest, point[1:]))
    return np.array(kept).reshape(-1, 3)


def _columns(amounts: Sequence[tuple[float, float, float]]) -> Amounts:
    flat = np.fromiter(chain.from_iterable(amounts), np.float64, 3 * len(amounts))
    return np.ascontiguousarray(flat.reshape(-1, 3).T)
