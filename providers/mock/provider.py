"""The mock provider: a simulated cloud that follows its clock, with every kind of fault of a real cloud."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hcloud.core.clock import Clock
from hcloud.core.errors import (
    AccountRejected,
    InsufficientCapacity,
    LaunchRejected,
    OutcomeUnknown,
    ProviderUnavailable,
    QuotaExceeded,
    Throttled,
)
from hcloud.core.model import InstanceId, Market, Offer
from hcloud.provider import CloudInstance, CloudState, CommitmentUse, Journal, LaunchRequest, Listing, SimulatedMachine
from providers.mock.catalog import MockCatalog
from providers.mock.cloud import Cloud
from providers.mock.failure_model import FailureModel
from providers.mock.fault_queue import FaultQueue
from providers.mock.faults import Call, Fault, FaultKind
from providers.mock.journal import FileJournal
from providers.mock.machine import MachineRecord, MachineRow
from providers.mock.settings import QuotaSettings, parse_settings
from providers.mock.throttle import TokenBucket


@dataclass(slots=True)
class _OwnerListing:
    """The listing of one owner, updated incrementally."""

    version: int = 0
    """The version of the cloud that it shows."""
    priced_as_of: tuple[int, int] = (0, 0)
    """Which spot prices it shows."""
    listing: tuple[CloudInstance, ...] = ()
    by_id: dict[str, CloudInstance] = field(default_factory=dict)
    unlisted: dict[str, None] = field(default_factory=dict)
    """Machines that are not listed yet."""
    kept_until: list[tuple[float, str]] = field(default_factory=list)
    """Until when ended machines stay listed, as a heap of times and ids."""


class MockProvider:
    """A cloud in memory, or with ``persist`` or ``state_file`` in a file shared with other processes.

    It is a ``Provider`` and a ``MachineSource``. Each call first advances the cloud to ``clock.now()``; nothing
    happens in between. A random draw depends only on the seed and the instance: equal histories have equal futures.

    Raises ConfigError: a setting is unknown or out of range.
    """

    def __init__(self, name: str, settings: Mapping[str, object], clock: Clock, owner: str, state_dir: str) -> None:
        self.name = name
        self.settings = parse_settings(name, settings)
        self.owner = owner
        self._clock = clock
        self._state_file = self._find_state_file(state_dir)
        self._catalog = MockCatalog(name, self.settings)
        self._cloud = Cloud(FileJournal(self._state_file) if self._state_file else None)
        self._faults = FaultQueue(self.settings, self._cloud)
        self._failures = FailureModel(self._catalog, self._faults)
        self._bucket = TokenBucket(self.settings.throttle.calls_per_s, self.settings.throttle.burst)
        self._offers: tuple[tuple[object, ...], tuple[Offer, ...]] | None = None
        self._listings: dict[str, _OwnerListing] = {}
        self._running: tuple[int, dict[InstanceId, SimulatedMachine]] = (0, {})
        self._pools: tuple[int, set[tuple[str, str]]] = (0, set())

    @staticmethod
    def check_settings(name: str, settings: Mapping[str, object]) -> None:
        """Raise ConfigError as the constructor would, without creating anything."""
        parse_settings(name, settings)

    # ------------------------------------------------------------------------------------------------ the Provider port
    def offers(self) -> tuple[Offer, ...]:
        """Return the catalog at current prices, sorted. Reserved offers state how many machines are left."""
        with self._cloud.hold(self._clock.now()):
            self._check_call("offers")
            left = [quota.vcpus - self._held_vcpus(quota) for quota in self._catalog.published_quotas]
            # The remainder of a quota holds for this moment only: later launches use it up.
            moment = self._cloud.now if left else self._catalog.priced_as_of(self._cloud.now)
            key = (moment, dict(self._cloud.reserved), left)
            if self._offers is None or self._offers[0] != key:
                self._offers = (key, self._catalog.offers(self._cloud.now, self._cloud.reserved, left))
            return self._offers[1]

    def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch a machine or return the one of this token; see the port for the errors."""
        with self._cloud.hold(self._clock.now()):
            self._check_call("launch", request.offer)
            provider_id = self._cloud.by_token.get(request.token)
            if provider_id is None:
                self._check_launch(request)
                row = self._failures.launch(request, len(self._cloud.machines) + 1, self._cloud.now)
                self._cloud.put(row)
            else:
                row = self._replayed(request, self._cloud.machines[provider_id])
            if row.launched_at > self._cloud.now:
                raise OutcomeUnknown(f"{self.name}: no answer yet to the launch of {request.instance_id}")
            if self._faults.take(FaultKind.LOSE_REPLY, "launch", request.offer):
                raise OutcomeUnknown(f"{self.name}: the reply to the launch of {request.instance_id} was lost")
            return self._listing_of(row)

    def instances(self, owner: str) -> Listing:
        """List an owner's machines, including ended ones for ``keep_terminated_s``."""
        with self._cloud.hold(self._clock.now()):
            self._check_call("instances")
            told = self._list_owner(owner)
            if self._faults.take(FaultKind.LIST_OTHERS, "instances"):
                told += self._others(owner)
            missing = self._missing_zone(told)
            if missing is not None:
                told = tuple(each for each in told if each.zone != missing)
            return Listing(
                instances=told,
                complete=missing is None,
                unanswered=() if missing is None else (missing,),
                consistent_after_s=self.settings.list_lag_s,
            )

    def terminate(self, provider_ids: Sequence[str]) -> None:
        """Begin to terminate machines; they are STOPPING for ``stop_s``."""
        with self._cloud.hold(self._clock.now()):
            self._check_call("terminate")
            now, live = self._cloud.now, self._cloud.live
            rows = [live[each] for each in dict.fromkeys(provider_ids) if each in live]
            to_stop = [row for row in rows if row.stop_asked_at == math.inf]
            stopped_at = now + self.settings.stop_s
            self._cloud.put(*(replace(row, stop_asked_at=now, stopped_at=stopped_at) for row in to_stop))
            if self._faults.take(FaultKind.LOSE_REPLY, "terminate"):
                raise OutcomeUnknown(f"{self.name}: the reply to terminate was lost")

    def commitments(self) -> Mapping[str, Sequence[CommitmentUse]]:
        """Return the reserved machines by zone and type, whatever quotas allow."""
        with self._cloud.hold(self._clock.now()):
            return {"reserved": self._catalog.commitments(self._cloud.now, self._cloud.reserved)}

    def why_no_gang_network(self) -> str:
        """Return nothing: programs of its machines, if there are any, run on one host."""
        return ""

    def facts(self) -> Mapping[str, str]:
        """Return kind, seed, boot times and location of the state."""
        return {
            "kind": "simulated cloud; no real machines, no real money",
            "seed": str(self.settings.seed),
            "boot": f"{self.settings.boot.p50_s:g} s typical, {self.settings.boot.p95_s:g} s at the 95th percentile",
            "state": str(self._state_file) if self._state_file else "in memory",
        }

    # ---------------------------------------------------------------------------------------------- the PriceFeed port
    def price_changed_at(self) -> float:
        """Return when a recorded price of a machine that is up last changed; minus infinity if none has."""
        with self._cloud.hold(self._clock.now()):
            return self._catalog.recorded.last_change(self._spot_pools(), self._cloud.now)

    def _spot_pools(self) -> set[tuple[str, str]]:
        """Return zones and types of spot machines that are up."""
        version, pools = self._pools
        if version != self._cloud.version:
            live = self._cloud.live.values()
            pools = {(row.zone, row.type_name) for row in live if row.market is Market.SPOT}
            self._pools = (self._cloud.version, pools)
        return pools

    # ------------------------------------------------------------------------------------------ the MachineSource port
    def running(self, now: float) -> Mapping[InstanceId, SimulatedMachine]:
        """Return this owner's running machines; the same object while nothing has changed."""
        with self._cloud.hold(now):
            return self._running_now()

    def _running_now(self) -> Mapping[InstanceId, SimulatedMachine]:
        version, machines = self._running
        if version != self._cloud.version:
            found = dict(machines)
            for provider_id in dict.fromkeys(self._cloud.changed_ids[version:]):
                self._update_running(self._cloud.machines[provider_id], found)
            machines = machines if found == machines else found
            self._running = (self._cloud.version, machines)
        return machines

    def _update_running(self, row: MachineRow, found: dict[InstanceId, SimulatedMachine]) -> None:
        """Add, update or remove a machine in ``found``, by its state now."""
        name, newest = row.instance_id, self._cloud.by_instance[row.owner, row.instance_id]
        if row.owner != self.owner or row.provider_id != newest:
            return
        if row.state_at(self._cloud.now) is not CloudState.RUNNING:
            found.pop(name, None)
        elif found.get(name) != (machine := row.machine_at(self._cloud.now)):
            found[name] = machine

    def set_expiry(self, expiries: Mapping[InstanceId, float]) -> frozenset[InstanceId]:
        """Set the expiry of running machines and renew their leases; return the ids that are running."""
        with self._cloud.hold(self._clock.now()):
            up, lease_ends_at = self._running_now(), self._cloud.now + (self.settings.lease_s or math.inf)
            told = {each: at for each, at in expiries.items() if each in up}
            # Only changed rows are written: most renewals repeat the last one.
            live, names, owner = self._cloud.live, self._cloud.by_instance, self.owner
            rows = [(live[names[owner, each]], at) for each, at in told.items()]
            changed = [(row, at) for row, at in rows if row.expires_at != at or row.lease_ends_at != lease_ends_at]
            changed.sort(key=lambda each: each[0].provider_id)
            self._cloud.put(*(replace(row, expires_at=at, lease_ends_at=lease_ends_at) for row, at in changed))
            return frozenset(told)

    def journal(self, name: str) -> Journal | None:
        """Return a journal next to the cloud's own, or None if the cloud is in memory."""
        return FileJournal(Path(f"{self._state_file}.{name}")) if self._state_file else None

    # ------------------------------------------------------------------------------------------ for tests and simulator
    def appear(self, request: LaunchRequest) -> str:
        """Launch a machine as another tenant of this account; return its provider id.

        Owner, name and token may be empty or collide with ours. Faults and limits do not apply, and its lease
        never ends.
        """
        no_faults = FaultQueue(self.settings.model_copy(update={"script": (), "chances": {}}), self._cloud)
        with self._cloud.hold(self._clock.now()):
            row = FailureModel(self._catalog, no_faults).launch(request, len(self._cloud.machines) + 1, self._cloud.now)
            self._cloud.put(replace(row, lease_ends_at=math.inf))
            return row.provider_id

    def inject(self, fault: Fault) -> None:
        """Arm a fault, for every process that shares this cloud."""
        with self._cloud.hold(self._clock.now()):
            self._faults.arm(fault)

    def kill(self, provider_id: str) -> None:
        """Make a machine die now."""
        with self._cloud.hold(self._clock.now()):
            row = self._cloud.live.get(provider_id)
            if row is not None:
                self._cloud.put(replace(row, dies_at=self._cloud.now))

    def preempt(self, provider_id: str, notice_s: float | None = None) -> None:
        """Announce now that a machine will be preempted in ``notice_s`` (default: the spot setting)."""
        with self._cloud.hold(self._clock.now()):
            row, now = self._cloud.live.get(provider_id), self._cloud.now
            if row is not None:
                notice_s = self.settings.spot.notice_s if notice_s is None else notice_s
                self._cloud.put(replace(row, notice_at=now, preempt_at=now + notice_s))

    def next_event_at(self) -> float | None:
        """Return when a machine next changes by itself (boot, notice, preemption, death, expiry, or its price if that
        is recorded), or None."""
        with self._cloud.hold(self._clock.now()):
            changes_at, now = self._cloud.next_change_at(), self._cloud.now
            at = self._catalog.recorded.next_change(self._spot_pools(), now)
            return changes_at if at == math.inf else at if changes_at is None else min(at, changes_at)

    def machines(self, now: float) -> tuple[MachineRecord, ...]:
        """Return the true state of every machine ever launched, of all owners, in order of launch."""
        with self._cloud.hold(self._clock.now()):
            return tuple(self._record(row, now) for row in self._cloud.machines.values() if row.launched_at <= now)

    def billed_usd(self, now: float) -> float:
        """Return the bill for all machines of all owners up to ``now``."""
        return math.fsum(record.billed_usd for record in self.machines(now))

    # ------------------------------------------------------------------------------------------------------------ calls
    def _check_call(self, call: Call, offer: Offer | None = None) -> None:
        """Let a call pass, or refuse it before it has any effect."""
        retry_after_s = self._bucket.take(self._cloud.now)
        if self._faults.take(FaultKind.THROTTLE, call, offer):
            retry_after_s = 1.0
        if retry_after_s:
            raise Throttled(f"{self.name}: rate limit exceeded, {call} was not executed", retry_after_s=retry_after_s)
        if self._faults.take(FaultKind.BE_AWAY, call, offer):
            raise ProviderUnavailable(f"{self.name} does not answer ({call})")
        if call in ("launch", "terminate") and self._faults.take(FaultKind.LOSE_REQUEST, call, offer):
            raise OutcomeUnknown(f"{self.name}: no reply to {call}")

    def _replayed(self, request: LaunchRequest, row: MachineRow) -> MachineRow:
        if (row.owner, row.instance_id) != (request.owner, request.instance_id):
            raise LaunchRejected(f"{self.name}: token {request.token} was used for {row.instance_id} of {row.owner}")
        return row

    def _check_launch(self, request: LaunchRequest) -> None:
        """Refuse a request that cannot be launched."""
        offer, what = request.offer, _label(request.offer)
        if self._faults.take(FaultKind.REJECT, "launch", offer):
            raise LaunchRejected(f"{self.name} rejects {what}")
        if self._faults.take(FaultKind.REJECT_ALL, "launch", offer):
            raise AccountRejected(f"{self.name}: the role hcloud-worker does not exist")
        if not self._catalog.has_offer(offer):
            raise LaunchRejected(f"{self.name} has no {what}; see its offers")
        if not (request.owner and request.instance_id and request.token):
            raise LaunchRejected(f"{self.name}: a launch needs an owner, an instance id and a token")
        if request.expires_at <= self._cloud.now:
            raise LaunchRejected(f"{self.name}: {request.instance_id} would expire before it is launched")
        if self._faults.take(FaultKind.EXCEED_QUOTA, "launch", offer):
            raise QuotaExceeded(f"{self.name}: the vCPU quota of {offer.region} does not allow {what}")
        self._check_quotas(offer)
        if self._faults.take(FaultKind.RUN_OUT, "launch", offer) or self._catalog.out_of_stock(offer, self._cloud.now):
            raise InsufficientCapacity(f"{self.name} is out of {what}")
        taken = self._cloud.reserved[offer.zone, offer.instance_type.name]
        if offer.market is Market.RESERVED and taken >= self._catalog.reserved_count(
            offer.zone, offer.instance_type.name
        ):
            raise InsufficientCapacity(f"{self.name}: every reserved {what} is in use")

    def _check_quotas(self, offer: Offer) -> None:
        for quota in self.settings.quotas:
            if quota.holds(offer.region, offer.market, offer.instance_type.name):
                held = self._held_vcpus(quota)
                if held + offer.instance_type.capacity.vcpus > quota.vcpus + 1e-9:
                    raise QuotaExceeded(
                        f"{self.name}: {held:g} of {quota.vcpus:g} vCPUs of {quota.region or 'all regions'} "
                        f"({quota.name}) are in use; {_label(offer)} does not fit"
                    )

    def _held_vcpus(self, quota: QuotaSettings) -> float:
        live = self._cloud.live.values()
        return math.fsum(row.capacity.vcpus for row in live if quota.holds(row.region, row.market, row.type_name))

    # ------------------------------------------------------------------------------------------------------- listings
    def _list_owner(self, owner: str) -> tuple[CloudInstance, ...]:
        """Return an owner's listing by id. Only machines that may have changed since the last call are updated."""
        now, machines = self._cloud.now, self._cloud.machines
        known = self._listings.setdefault(owner, _OwnerListing())
        changed = dict.fromkeys([*self._cloud.changed_ids[known.version :], *known.unlisted])
        if (priced_as_of := self._catalog.priced_as_of(now)) != known.priced_as_of:
            moving = (Market.SPOT,) if self.settings.reserved_ends_at is None else (Market.SPOT, Market.RESERVED)
            changed |= {each: None for each in known.by_id if machines[each].market in moving}
        while known.kept_until and known.kept_until[0][0] <= now:
            changed[heapq.heappop(known.kept_until)[1]] = None
        known.version, known.priced_as_of = self._cloud.version, priced_as_of
        if changed:
            self._refresh_listing([machines[each] for each in changed if machines[each].owner == owner], known)
            known.listing = tuple([known.by_id[each] for each in sorted(known.by_id)])
        return known.listing

    def _refresh_listing(self, rows: Sequence[MachineRow], known: _OwnerListing) -> None:
        now, keep_s = self._cloud.now, self.settings.keep_terminated_s
        for row in rows:
            name = row.provider_id
            known.unlisted.pop(name, None)
            if row.ends_at + keep_s <= now:
                self._cloud.ended.pop(name, None)
                known.by_id.pop(name, None)
            elif row.listed_at > now:
                known.unlisted[name] = None
                known.by_id.pop(name, None)
            else:
                told = self._listing_of(row)
                if known.by_id.get(name) != told:  # keep the object while it is unchanged
                    known.by_id[name] = told
            if now - keep_s < row.ends_at <= now:
                heapq.heappush(known.kept_until, (row.ends_at + keep_s, name))

    def _listing_of(self, row: MachineRow) -> CloudInstance:
        at = min(self._cloud.now, row.ends_at)
        price = self._catalog.paid_usd_per_h(row.zone, row.type_name, row.market, at)
        return row.listing_at(self._cloud.now, price)

    def _others(self, owner: str) -> tuple[CloudInstance, ...]:
        return tuple(self._listing_of(row) for row in self._cloud.live.values() if row.owner != owner)

    def _missing_zone(self, told: Sequence[CloudInstance]) -> str | None:
        """Return the zone that a fault hides from the listing, or None."""
        fault = self._faults.take(FaultKind.LIST_PARTLY, "instances")
        if fault is None:
            return None
        return fault.zone or min((each.zone for each in told), default=self.settings.zones[0])

    def _record(self, row: MachineRow, now: float) -> MachineRecord:
        up_until, billed_until = min(now, row.ends_at), row.billed_until(now)
        cost_usd = self._catalog.cost_usd(row.zone, row.type_name, row.market, row.launched_at, up_until)
        # What is left of the billing minimum costs what the machine did at its end.
        usd_per_h = self._catalog.paid_usd_per_h(row.zone, row.type_name, row.market, up_until)
        return row.record_at(now, cost_usd + usd_per_h * (billed_until - up_until) / 3600)

    def _find_state_file(self, state_dir: str) -> Path | None:
        if self.settings.state_file:
            return Path(state_dir, self.settings.state_file)
        return Path(state_dir, "cloud.journal") if self.settings.persist else None


def _label(offer: Offer) -> str:
    return f"{offer.instance_type.name} in {offer.zone} ({offer.market})"
