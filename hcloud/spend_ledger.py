"""What was spent this UTC day and month, in total, by user and by tag: the booked side of every budget check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf

from hcloud.core.budget_scope import TOTAL, BudgetScope, tag_scope, user_scope
from hcloud.core.model import Event, EventKind, JobId
from hcloud.core.pricing import WHOLE, Holding, overcharges
from hcloud.planner.snapshot import Spend

DAY_S = 86_400.0
Scopes = tuple[BudgetScope, ...]
_TOTAL: Scopes = (TOTAL,)
SHARES_MAX, SHARES_KEPT_S = 64, 3600.0
"""With this many units on an instance, those that ended over an hour ago are settled; events may arrive late."""
SHARES_MANY, SHARES_OF_MANY_KEPT_S = 1024, 60.0
"""With this many, as short tasks of an array are in an hour, those that ended over a minute ago are settled."""


@dataclass(slots=True)
class _Meter:
    """One instance while it is billed."""

    price_usd_per_h: float
    vcpus: float
    memory_mib: float
    minimum_s: float
    """The billing minimum."""
    launched_at: float | None = None
    since: float = 0.0
    """Since when the present price holds (Unix seconds)."""
    booked: list[tuple[float, float, float]] = field(default_factory=list)
    """Stretches at earlier prices: since, until, USD/h."""


@dataclass(slots=True)
class _UnitMeter:
    """One unit while it runs."""

    job_id: JobId
    instance_id: str
    share: float
    since: float
    part: _CostShare
    booked: list[tuple[float, float, float]] = field(default_factory=list)
    """Stretches at earlier prices: since, until, USD/h of its share."""


@dataclass(slots=True)
class _CostShare(Holding):
    """A unit's share of an instance."""

    scopes: Scopes = ()
    """Who is charged for it."""
    job_id: JobId = ""


@dataclass(slots=True)
class _Sharers:
    """The units that hold an instance, or did lately."""

    parts: list[_CostShare] = field(default_factory=list)
    settled_at_size: int = SHARES_MAX
    """So many parts are settled. Doubles with those that are left, so that each is looked at a few times only."""
    crowded: bool = False
    """Whether shares that may overlap in time exceed the instance."""

    def join(self, part: _CostShare) -> None:
        """Add a unit that started lately."""
        others = sum(each.share for each in self.parts if each.until > part.since)
        self.crowded = self.crowded or others + part.share > WHOLE
        self.parts.append(part)


@dataclass(slots=True)
class _Running:
    """The running stretches of one scope, summed: their cost at any time of the day follows from the two sums."""

    usd_per_h: float = 0.0
    """The sum of their prices."""
    by_start: float = 0.0
    """The sum of each price times its start, in seconds of the day, 0 if it started before."""


@dataclass(slots=True)
class SpendLedger:
    """Follows the event log and computes what was spent; it can be rebuilt from the log at any time.

    An instance costs price x billed time, at least its billing minimum. A user, or a tag, is charged the share of it
    that units of the jobs hold while they run: the dominant share, scaled down where shares exceed the instance
    (:func:`hcloud.core.pricing.split`). Boot and idle time is charged to nobody; limits for all users count whole
    instances. Sums by scope are kept for one day, and rebuilt when they no longer hold (``_stale``).
    """

    tags_of: Callable[[JobId], Sequence[str]] = lambda _: ()
    """Returns the tags of a job that have a budget, as ``KEY=VALUE``."""
    seq: int = 0
    """The last event taken in."""
    _meters: dict[str, _Meter] = field(default_factory=dict)
    _units: dict[str, _UnitMeter] = field(default_factory=dict)
    _days: dict[BudgetScope, dict[float, float]] = field(default_factory=dict)
    """Closed costs in USD by scope (TOTAL: whole machines) and start of UTC day."""
    _job_usd: dict[JobId, float] = field(default_factory=dict)
    _sharers: dict[str, _Sharers] = field(default_factory=dict)
    _crowded: dict[str, _Sharers] = field(default_factory=dict)
    """Those of them that are crowded: some share may be booked too high."""
    _running: dict[BudgetScope, _Running] = field(default_factory=dict)
    _day_starts_at: float = 0.0
    _before: dict[BudgetScope, dict[float, float]] = field(default_factory=dict)
    """What running stretches cost before this day, by scope and start of day."""
    _ahead: dict[tuple[BudgetScope, float, float], int] = field(default_factory=dict)
    """Stretches that start after the last answer, by a provider's clock: (scope, since, USD/h), with their number."""
    _answered_at: float = 0.0
    _stale: bool = True

    def follow(self, events: Iterable[Event]) -> None:
        """Take in events in ``seq`` order, each once."""
        for event in events:
            self.seq = max(self.seq, event.seq)
            handler = _HANDLERS.get(event.kind)
            if handler is not None:
                handler(self, event)

    def spend(self, now: float) -> Spend:
        """Return what was spent up to ``now`` in its UTC day and month."""
        day_starts_at, month_starts_at, month_ends_at = _period(now)
        if self._stale or self._day_starts_at != day_starts_at or now < self._answered_at:
            self._begin(day_starts_at)
        self._answered_at = now
        scopes = {scope: dict(days) for scope, days in self._days.items()}
        for scope, days in self._before.items():
            _add_up(scopes.setdefault(scope, {}), days)
        lately = {
            scope: each.usd_per_h * (now - day_starts_at) - each.by_start for scope, each in self._running.items()
        }
        self._ahead = {each: count for each, count in self._ahead.items() if each[1] > now}
        for (scope, since, usd_per_h), count in self._ahead.items():
            lately[scope] += count * usd_per_h * (since - now)
        for scope, usd in lately.items():
            _add_up(scopes.setdefault(scope, {}), {day_starts_at: max(0.0, usd) / 3600.0})
        for part, since, until, usd_per_h in self._overcharges(now):
            for scope in part.scopes:
                _add(scopes.setdefault(scope, {}), since, until, -usd_per_h)
        day = {scope: days.get(day_starts_at, 0.0) for scope, days in scopes.items()}
        # A billing minimum may reach into the next month.
        month = {
            scope: sum(usd for at, usd in days.items() if month_starts_at <= at < month_ends_at)
            for scope, days in scopes.items()
        }
        return Spend(
            day_usd=day.pop(TOTAL, 0.0),
            month_usd=month.pop(TOTAL, 0.0),
            day_ends_at=day_starts_at + DAY_S,
            month_ends_at=month_ends_at,
            by_scope_day_usd=day,
            by_scope_month_usd=month,
        )

    def _begin(self, day_starts_at: float) -> None:
        """Rebuild the running sums for a day."""
        self._day_starts_at, self._stale = day_starts_at, False
        self._running, self._before, self._ahead = {}, {}, {}
        for meter in self._meters.values():
            if meter.launched_at is not None:
                self._opened(_TOTAL, meter.since, meter.price_usd_per_h)
        for unit in self._units.values():
            self._opened(unit.part.scopes, unit.since, self._rate(unit))

    def _opened(self, scopes: Scopes, since: float, usd_per_h: float) -> None:
        """Add a stretch that runs from ``since``."""
        if self._stale:
            return
        for scope in scopes:
            if since < self._day_starts_at:
                _add(self._before.setdefault(scope, {}), since, self._day_starts_at, usd_per_h)
            running, from_s = self._running.setdefault(scope, _Running()), max(0.0, since - self._day_starts_at)
            running.usd_per_h += usd_per_h
            running.by_start += usd_per_h * from_s
            stretch = (scope, since, usd_per_h)
            self._ahead[stretch] = self._ahead.get(stretch, 0) + 1  # until an answer later than its start

    def _closed(self, scopes: Scopes, since: float, usd_per_h: float) -> None:
        """Remove a stretch that :meth:`_opened` added."""
        for scope in scopes:
            running, stretch = self._running.get(scope), (scope, since, usd_per_h)
            if running is None or since < self._day_starts_at:
                self._stale = True
            if running is None or self._stale:
                return
            running.usd_per_h -= usd_per_h
            running.by_start -= usd_per_h * (since - self._day_starts_at)
            if (ahead := self._ahead.pop(stretch, 0)) > 1:
                self._ahead[stretch] = ahead - 1

    def total_usd(self, now: float) -> float:
        """Return what all instances in the log have cost up to ``now``, in USD."""
        billed = (meter for meter in self._meters.values() if meter.launched_at is not None)
        open_usd = sum(meter.price_usd_per_h * max(0.0, now - meter.since) / 3600.0 for meter in billed)
        return sum(self._days.get(TOTAL, {}).values()) + open_usd

    def job_usd(self, now: float) -> Mapping[JobId, float]:
        """Return what each unfinished job's units have cost up to ``now``, in USD."""
        total = dict(self._job_usd)
        for meter in self._units.values():
            usd = self._rate(meter) * max(0.0, now - meter.since) / 3600.0
            total[meter.job_id] = total.get(meter.job_id, 0.0) + usd
        for part, since, until, usd_per_h in self._overcharges(now):
            if part.job_id in total:
                total[part.job_id] -= usd_per_h * (until - since) / 3600.0
        return total

    def _overcharges(self, now: float) -> Iterator[tuple[_CostShare, float, float, float]]:
        """Yield what was booked too much up to ``now``: each share is booked whole first."""
        for name, sharers in self._crowded.items():
            yield from _overcharged(sharers, self._meters[name], now)

    def _joined(self, name: str, meter: _Meter, part: _CostShare) -> None:
        sharers = self._sharers.setdefault(name, _Sharers())
        if len(sharers.parts) >= sharers.settled_at_size:
            kept_s = SHARES_KEPT_S if len(sharers.parts) < SHARES_MANY else SHARES_OF_MANY_KEPT_S
            self._settle(name, sharers, meter, part.since - kept_s)
            sharers.settled_at_size = max(SHARES_MAX, 2 * len(sharers.parts))
        sharers.join(part)
        if sharers.crowded:
            self._crowded[name] = sharers

    def _settle(self, name: str, sharers: _Sharers, meter: _Meter, until: float) -> None:
        """Correct bookings up to ``until`` for shares that exceed the instance; forget units that ended before."""
        for part, since, to, usd_per_h in _overcharged(sharers, meter, until) if sharers.crowded else ():
            self._book(part.scopes, since, to, -usd_per_h)
            if part.job_id in self._job_usd or part.until == inf:
                usd = usd_per_h * (to - since) / 3600.0
                self._job_usd[part.job_id] = self._job_usd.get(part.job_id, 0.0) - usd
        sharers.parts = [part for part in sharers.parts if part.until > until]
        for part in sharers.parts:
            part.since = max(part.since, until)
        sharers.crowded = sharers.crowded and sum(part.share for part in sharers.parts) > WHOLE
        if not sharers.crowded:
            self._crowded.pop(name, None)

    def _rate(self, unit: _UnitMeter) -> float:
        machine = self._meters.get(unit.instance_id)
        return machine.price_usd_per_h * unit.share if machine else 0.0

    def _book(self, scopes: Scopes, since: float, until: float, usd_per_h: float) -> None:
        for scope in scopes:
            _add(self._days.setdefault(scope, {}), since, until, usd_per_h)

    def _close_unit(self, unit: _UnitMeter, until: float) -> None:
        rate = self._rate(unit)
        self._closed(unit.part.scopes, unit.since, rate)
        self._book(unit.part.scopes, unit.since, until, rate)
        usd = rate * max(0.0, until - unit.since) / 3600.0
        self._job_usd[unit.job_id] = self._job_usd.get(unit.job_id, 0.0) + usd
        unit.booked.append((unit.since, until, rate))
        unit.since = max(until, unit.since)

    def _end_unit(self, unit: _UnitMeter, until: float) -> None:
        """Close a unit's meter, and take back bookings after its end: a price event may have booked it further."""
        self._close_unit(unit, until)
        unit.part.until = until
        for since, booked_until, rate in unit.booked:
            over_since = max(since, until)
            self._book(unit.part.scopes, over_since, booked_until, -rate)
            self._job_usd[unit.job_id] -= rate * max(0.0, booked_until - over_since) / 3600.0

    # ------------------------------------------------------------------------------------------------- event handlers
    def _requested(self, event: Event) -> None:
        self._stale |= (event.instance_id or "") in self._meters
        self._meters[event.instance_id or ""] = _Meter(
            price_usd_per_h=_number(event, "price_usd_per_h"),
            vcpus=_number(event, "vcpus", 1.0),
            memory_mib=_number(event, "memory_mib", 1.0),
            minimum_s=_number(event, "billing_minimum_s"),
        )

    def _launched(self, event: Event) -> None:
        meter = self._meters.get(event.instance_id or "")
        if meter is not None:
            price_usd_per_h = _number(event, "price_usd_per_h", meter.price_usd_per_h)
            self._stale |= meter.launched_at is not None or meter.price_usd_per_h != price_usd_per_h
            meter.launched_at = meter.since = _number(event, "launched_at", event.at)
            meter.price_usd_per_h = price_usd_per_h
            self._opened(_TOTAL, meter.since, price_usd_per_h)

    def _price(self, event: Event) -> None:
        meter = self._meters.get(event.instance_id or "")
        if meter is None or meter.launched_at is None:
            return
        self._stale = True
        for unit in self._units.values():
            if unit.instance_id == event.instance_id:
                self._close_unit(unit, event.at)
        self._book(_TOTAL, meter.since, event.at, meter.price_usd_per_h)
        meter.booked.append((meter.since, event.at, meter.price_usd_per_h))
        meter.since, meter.price_usd_per_h = max(event.at, meter.since), _number(event, "price_usd_per_h")

    def _terminated(self, event: Event) -> None:
        # Its units ended with it, maybe long before this event, and need its price for their last stretch.
        ended_at = min(event.at, _number(event, "terminated_at", event.at))
        for key, unit in list(self._units.items()):
            if unit.instance_id == event.instance_id:
                self._end_unit(unit, ended_at)
                del self._units[key]
        name = event.instance_id or ""
        meter, sharers = self._meters.pop(name, None), self._sharers.pop(name, None)
        if meter is not None and sharers is not None:
            self._settle(name, sharers, meter, max((part.until for part in sharers.parts), default=0.0))
        if meter is not None and meter.launched_at is not None:
            until = max(_number(event, "terminated_at", event.at), meter.launched_at + meter.minimum_s)
            self._closed(_TOTAL, meter.since, meter.price_usd_per_h)
            self._book(_TOTAL, meter.since, until, meter.price_usd_per_h)
            # By the provider's clock it may have ended before a price change that it was booked up to.
            for since, booked_until, usd_per_h in meter.booked:
                self._book(_TOTAL, max(since, until), booked_until, -usd_per_h)

    def _unit_started(self, event: Event) -> None:
        machine = self._meters.get(event.instance_id or "")
        if machine is not None:
            share = max(_number(event, "vcpus") / machine.vcpus, _number(event, "memory_mib") / machine.memory_mib)
            since = max(event.at, machine.since) if machine.booked else event.at
            share, job_id = min(1.0, max(share, _number(event, "gpu_share"))), event.job_id or ""
            scopes = (user_scope(event.user or ""), *map(tag_scope, self.tags_of(job_id)))
            part = _CostShare(share=share, since=event.at, scopes=scopes, job_id=job_id)
            unit = _UnitMeter(job_id, event.instance_id or "", share, since, part)
            self._joined(unit.instance_id, machine, part)
            self._book_before(unit, machine, event.at)
            if (before := self._units.get(_unit(event))) is not None:
                self._stale, before.part.until = True, before.part.since
            self._units[_unit(event)] = unit
            self._opened(unit.part.scopes, unit.since, self._rate(unit))

    def _book_before(self, unit: _UnitMeter, machine: _Meter, started_at: float) -> None:
        """Book a unit's cost at earlier prices: it started before a price event that was read first."""
        for since, until, usd_per_h in machine.booked:
            stretch = (max(since, started_at), until, usd_per_h * unit.share)
            if stretch[0] < until:
                self._book(unit.part.scopes, *stretch)
                usd = stretch[2] * (until - stretch[0]) / 3600.0
                self._job_usd[unit.job_id] = self._job_usd.get(unit.job_id, 0.0) + usd
                unit.booked.append(stretch)

    def _unit_resized(self, event: Event) -> None:
        unit = self._units.pop(_unit(event), None)
        if unit is not None:
            self._end_unit(unit, event.at)
            self._unit_started(event)

    def _unit_ended(self, event: Event) -> None:
        unit = self._units.pop(_unit(event), None)
        if unit is not None:
            self._end_unit(unit, event.at)

    def _job_finished(self, event: Event) -> None:
        self._job_usd.pop(event.job_id or "", None)


_HANDLERS = {
    EventKind.INSTANCE_REQUESTED: SpendLedger._requested,
    EventKind.INSTANCE_LAUNCHED: SpendLedger._launched,
    EventKind.INSTANCE_PRICE: SpendLedger._price,
    EventKind.INSTANCE_TERMINATED: SpendLedger._terminated,
    EventKind.UNIT_STARTED: SpendLedger._unit_started,
    EventKind.UNIT_RESIZED: SpendLedger._unit_resized,
    EventKind.UNIT_ENDED: SpendLedger._unit_ended,
    EventKind.JOB_FINISHED: SpendLedger._job_finished,
}
SPEND_KINDS: tuple[EventKind, ...] = tuple(_HANDLERS)
"""The events a :class:`SpendLedger` needs; all others may be left out."""


def _overcharged(sharers: _Sharers, meter: _Meter, until: float) -> Iterator[tuple[_CostShare, float, float, float]]:
    prices = [*meter.booked, (meter.since, inf, meter.price_usd_per_h)]
    for place, *stretch in overcharges(sharers.parts, prices, until):
        yield sharers.parts[place], stretch[0], stretch[1], stretch[2]


def _period(now: float) -> tuple[float, float, float]:
    """Return the start of the UTC day, and the start and end of the UTC month, that contain ``now``."""
    day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    month = day.replace(day=1)
    following = (month + timedelta(days=32)).replace(day=1)
    return day.timestamp(), month.timestamp(), following.timestamp()


def month_start(now: float) -> float:
    """Return the start of the UTC month of ``now``, in Unix seconds."""
    return _period(now)[1]


def _add(days: dict[float, float], since: float, until: float, usd_per_h: float) -> None:
    """Add the cost of a stretch to the UTC days it touches."""
    while since < until:
        day = since - since % DAY_S
        end = min(until, day + DAY_S)
        days[day] = days.get(day, 0.0) + (end - since) * usd_per_h / 3600.0
        since = end


def _add_up(days: dict[float, float], more: Mapping[float, float]) -> None:
    for day, usd in more.items():
        days[day] = days.get(day, 0.0) + usd


def _unit(event: Event) -> str:
    return f"{event.fields['attempt']}.{event.fields['rank']}"


def _number(event: Event, key: str, default: float = 0.0) -> float:
    value = event.fields.get(key)
    return float(value) if isinstance(value, (int, float)) else default
