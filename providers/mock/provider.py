"""The mock provider: a behaving cloud that follows its clock, with every fault a cloud can have."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hcloud.core.clock import Clock
from hcloud.core.errors import (
    InsufficientCapacity,
    LaunchRejected,
    OutcomeUnknown,
    ProviderUnavailable,
    QuotaExceeded,
    Throttled,
)
from hcloud.core.model import InstanceId, Market, Offer
from hcloud.provider import CloudInstance, CloudState, Journal, LaunchRequest, Listing, SimulatedMachine
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
class _ReportedStates:
    """What was listed to an owner, by id, as of which version of the cloud and step of prices; which are not
    listed yet, and until when ended ones are."""

    version: int = 0
    step: int = 0
    told: tuple[CloudInstance, ...] = ()
    said: dict[str, CloudInstance] = field(default_factory=dict)
    unlisted: dict[str, None] = field(default_factory=dict)
    kept_until: list[tuple[float, str]] = field(default_factory=list)


class MockProvider:
    """A cloud in memory (or, with ``persist`` or ``state_file``, in a file shared with other processes).

    It is a ``Provider`` and a ``MachineSource``. Each call first brings the cloud up to ``clock.now()``; nothing
    happens in between. A draw depends only on the seed and the instance it is for: equal histories, equal futures.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """

    def __init__(self, name: str, settings: Mapping[str, object], clock: Clock, owner: str, state_dir: str) -> None:
        self.name = name
        self.settings = parse_settings(name, settings)
        self.owner = owner
        self._clock = clock
        self._state_file = self._find_state_file(state_dir)
        self._catalogue = MockCatalog(name, self.settings)
        self._cloud = Cloud(FileJournal(self._state_file) if self._state_file else None)
        self._faults = FaultQueue(self.settings, self._cloud)
        self._fate = FailureModel(self._catalogue, self._faults)
        self._bucket = TokenBucket(self.settings.throttle.calls_per_s, self.settings.throttle.burst)
        self._offers: tuple[tuple[object, ...], tuple[Offer, ...]] | None = None
        self._told: dict[str, _ReportedStates] = {}
        self._running: tuple[int, dict[InstanceId, SimulatedMachine]] = (0, {})

    @staticmethod
    def check_settings(name: str, settings: Mapping[str, object]) -> None:
        """Raise ConfigError as building would, and build nothing."""
        parse_settings(name, settings)

    # ------------------------------------------------------------------------------------------------ the Provider port
    def offers(self) -> tuple[Offer, ...]:
        """Return the catalogue at present prices, sorted; reserved offers say how many are left."""
        with self._cloud.hold(self._clock.now()):
            self._gate("offers")
            left = [quota.vcpus - self._held_vcpus(quota) for quota in self._catalogue.told]
            # What is left of a quota is left now: machines that are requested later are taken out of it.
            moment = self._cloud.now if left else self._catalogue.step_of(self._cloud.now)
            key = (moment, dict(self._cloud.reserved), left)
            if self._offers is None or self._offers[0] != key:
                self._offers = (key, self._catalogue.offers(self._cloud.now, self._cloud.reserved, left))
            return self._offers[1]

    def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch a machine or return the one of this token; see the port for what each error means."""
        with self._cloud.hold(self._clock.now()):
            self._gate("launch", request.offer)
            provider_id = self._cloud.by_token.get(request.token)
            if provider_id is None:
                self._judge(request)
                row = self._fate.machine(request, len(self._cloud.machines) + 1, self._cloud.now)
                self._cloud.put(row)
            else:
                row = self._replayed(request, self._cloud.machines[provider_id])
            if row.launched_at > self._cloud.now:
                raise OutcomeUnknown(f"{self.name}: no answer yet to the launch of {request.instance_id}")
            if self._faults.take(FaultKind.LOSE_REPLY, "launch", request.offer):
                raise OutcomeUnknown(f"{self.name}: the reply to the launch of {request.instance_id} was lost")
            return self._tell(row)

    def instances(self, owner: str) -> Listing:
        """List an owner's machines, ended ones for ``keep_terminated_s``."""
        with self._cloud.hold(self._clock.now()):
            self._gate("instances")
            told = self._tell_all(owner)
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
        """Begin to end machines; they are STOPPING for ``stop_s``."""
        with self._cloud.hold(self._clock.now()):
            self._gate("terminate")
            now, live = self._cloud.now, self._cloud.live
            rows = [live[each] for each in dict.fromkeys(provider_ids) if each in live]
            asked = [row for row in rows if row.stop_asked_at == math.inf]
            stopped_at = now + self.settings.stop_s
            self._cloud.put(*(replace(row, stop_asked_at=now, stopped_at=stopped_at) for row in asked))
            if self._faults.take(FaultKind.LOSE_REPLY, "terminate"):
                raise OutcomeUnknown(f"{self.name}: the reply to terminate was lost")

    def facts(self) -> Mapping[str, str]:
        """Say what this cloud is made of."""
        return {
            "kind": "simulated cloud; no real machines, no real money",
            "seed": str(self.settings.seed),
            "boot": f"{self.settings.boot.p50_s:g} s typical, {self.settings.boot.p95_s:g} s at the 95th percentile",
            "state": str(self._state_file) if self._state_file else "in memory",
        }

    # ------------------------------------------------------------------------------------------ the MachineSource port
    def running(self, now: float) -> Mapping[InstanceId, SimulatedMachine]:
        """Return this owner's machines that are up; the same object again while nothing has changed."""
        with self._cloud.hold(now):
            return self._running_now()

    def _running_now(self) -> Mapping[InstanceId, SimulatedMachine]:
        version, machines = self._running
        if version != self._cloud.version:
            found = dict(machines)
            for provider_id in dict.fromkeys(self._cloud.touched[version:]):
                self._see(self._cloud.machines[provider_id], found)
            machines = machines if found == machines else found
            self._running = (self._cloud.version, machines)
        return machines

    def _see(self, row: MachineRow, found: dict[InstanceId, SimulatedMachine]) -> None:
        """Let an engine see a machine as it is now, or no more."""
        name, newest = row.instance_id, self._cloud.by_instance[row.owner, row.instance_id]
        if row.owner != self.owner or row.provider_id != newest:
            return
        if row.state_at(self._cloud.now) is not CloudState.RUNNING:
            found.pop(name, None)
        elif found.get(name) != (machine := row.machine_at(self._cloud.now)):
            found[name] = machine

    def set_expiry(self, expiries: Mapping[InstanceId, float]) -> frozenset[InstanceId]:
        """Move the expiry of machines that are up, and renew their leases."""
        with self._cloud.hold(self._clock.now()):
            up, lease_ends_at = self._running_now(), self._cloud.now + (self.settings.lease_s or math.inf)
            told = {each: at for each, at in expiries.items() if each in up}
            # Thousands are told again and again what they were told before.
            live, names, owner = self._cloud.live, self._cloud.by_instance, self.owner
            rows = [(live[names[owner, each]], at) for each, at in told.items()]
            news = [(row, at) for row, at in rows if row.expires_at != at or row.lease_ends_at != lease_ends_at]
            news.sort(key=lambda each: each[0].provider_id)
            self._cloud.put(*(replace(row, expires_at=at, lease_ends_at=lease_ends_at) for row, at in news))
            return frozenset(told)

    def journal(self, name: str) -> Journal | None:
        """Return a journal beside the cloud's own, if that has one."""
        return FileJournal(Path(f"{self._state_file}.{name}")) if self._state_file else None

    # ------------------------------------------------------------------------------------------ for tests and simulator
    def appear(self, request: LaunchRequest) -> str:
        """Launch a machine as another tenant of this account, with any tags: owner, name and token may be "" or
        like ours. No fault and no limit meets it, and its lease is not renewed. Returns its provider id."""
        calm = FaultQueue(self.settings.model_copy(update={"script": (), "chances": {}}), self._cloud)
        with self._cloud.hold(self._clock.now()):
            row = FailureModel(self._catalogue, calm).machine(request, len(self._cloud.machines) + 1, self._cloud.now)
            self._cloud.put(replace(row, lease_ends_at=math.inf))
            return row.provider_id

    def inject(self, fault: Fault) -> None:
        """Arm a fault, for every process that shares this cloud."""
        with self._cloud.hold(self._clock.now()):
            self._faults.arm(fault)

    def kill(self, provider_id: str) -> None:
        """Let a machine die now."""
        with self._cloud.hold(self._clock.now()):
            row = self._cloud.live.get(provider_id)
            if row is not None:
                self._cloud.put(replace(row, dies_at=self._cloud.now))

    def preempt(self, provider_id: str, notice_s: float | None = None) -> None:
        """Announce now that a machine is taken back ``notice_s`` from now (by default as set for spot)."""
        with self._cloud.hold(self._clock.now()):
            row, now = self._cloud.live.get(provider_id), self._cloud.now
            if row is not None:
                notice_s = self.settings.spot.notice_s if notice_s is None else notice_s
                self._cloud.put(replace(row, notice_at=now, preempt_at=now + notice_s))

    def next_event_at(self) -> float | None:
        """Return when a machine next changes by itself (boot, notice, preemption, death, expiry), or None."""
        with self._cloud.hold(self._clock.now()):
            return self._cloud.next_change_at()

    def machines(self, now: float) -> tuple[MachineRecord, ...]:
        """Return the truth about every machine ever launched, of all owners, in order of launch."""
        with self._cloud.hold(self._clock.now()):
            return tuple(self._record(row, now) for row in self._cloud.machines.values() if row.launched_at <= now)

    def billed_usd(self, now: float) -> float:
        """Return the bill for all machines of all owners up to ``now``."""
        return math.fsum(record.billed_usd for record in self.machines(now))

    # ------------------------------------------------------------------------------------------------------------ calls
    def _gate(self, call: Call, offer: Offer | None = None) -> None:
        """Let a call through, or refuse it before it has any effect."""
        retry_after_s = self._bucket.take(self._cloud.now)
        if self._faults.take(FaultKind.THROTTLE, call, offer):
            retry_after_s = 1.0
        if retry_after_s:
            raise Throttled(f"{self.name}: too many calls, {call} was not carried out", retry_after_s=retry_after_s)
        if self._faults.take(FaultKind.BE_AWAY, call, offer):
            raise ProviderUnavailable(f"{self.name} does not answer ({call})")
        if call in ("launch", "terminate") and self._faults.take(FaultKind.LOSE_REQUEST, call, offer):
            raise OutcomeUnknown(f"{self.name}: no reply to {call}")

    def _replayed(self, request: LaunchRequest, row: MachineRow) -> MachineRow:
        if (row.owner, row.instance_id) != (request.owner, request.instance_id):
            raise LaunchRejected(f"{self.name}: token {request.token} was used for {row.instance_id} of {row.owner}")
        return row

    def _judge(self, request: LaunchRequest) -> None:
        """Refuse what cannot be launched."""
        offer, what = request.offer, _named(request.offer)
        if self._faults.take(FaultKind.REJECT, "launch", offer):
            raise LaunchRejected(f"{self.name} rejects {what}")
        if not self._catalogue.has(offer):
            raise LaunchRejected(f"{self.name} has no {what}; see its offers")
        if not (request.owner and request.instance_id and request.token):
            raise LaunchRejected(f"{self.name}: a machine needs an owner, an instance id and a token")
        if request.expires_at <= self._cloud.now:
            raise LaunchRejected(f"{self.name}: {request.instance_id} would expire before it is launched")
        if self._faults.take(FaultKind.EXCEED_QUOTA, "launch", offer):
            raise QuotaExceeded(f"{self.name}: the vCPU quota of {offer.region} does not allow {what}")
        self._judge_quotas(offer)
        if self._faults.take(FaultKind.RUN_OUT, "launch", offer) or self._catalogue.out_of_stock(
            offer, self._cloud.now
        ):
            raise InsufficientCapacity(f"{self.name} is out of {what}")
        taken = self._cloud.reserved[offer.zone, offer.instance_type.name]
        if offer.market is Market.RESERVED and taken >= self._catalogue.reserved_count(
            offer.zone, offer.instance_type.name
        ):
            raise InsufficientCapacity(f"{self.name}: every reserved {what} is in use")

    def _judge_quotas(self, offer: Offer) -> None:
        for quota in self.settings.quotas:
            if quota.holds(offer.region, offer.market):
                held = self._held_vcpus(quota)
                if held + offer.instance_type.capacity.vcpus > quota.vcpus + 1e-9:
                    raise QuotaExceeded(
                        f"{self.name}: {held:g} of {quota.vcpus:g} vCPUs of {quota.region or 'all regions'} "
                        f"({quota.market or 'all markets'}) are in use, no room for {_named(offer)}"
                    )

    def _held_vcpus(self, quota: QuotaSettings) -> float:
        live = self._cloud.live.values()
        return math.fsum(row.capacity.vcpus for row in live if quota.holds(row.region, row.market))

    # -------------------------------------------------------------------------------------------------------- telling
    def _tell_all(self, owner: str) -> tuple[CloudInstance, ...]:
        """Return an owner's machines by id; only what may have changed since the last time is made again."""
        now, machines = self._cloud.now, self._cloud.machines
        known = self._told.setdefault(owner, _ReportedStates())
        news = dict.fromkeys([*self._cloud.touched[known.version :], *known.unlisted])
        if (step := self._catalogue.step_of(now)) != known.step:
            news |= {each: None for each in known.said if machines[each].market is Market.SPOT}
        while known.kept_until and known.kept_until[0][0] <= now:
            news[heapq.heappop(known.kept_until)[1]] = None
        known.version, known.step = self._cloud.version, step
        if news:
            self._tell_some([machines[each] for each in news if machines[each].owner == owner], known)
            known.told = tuple([known.said[each] for each in sorted(known.said)])
        return known.told

    def _tell_some(self, rows: Sequence[MachineRow], known: _ReportedStates) -> None:
        now, keep_s = self._cloud.now, self.settings.keep_terminated_s
        for row in rows:
            name = row.provider_id
            known.unlisted.pop(name, None)
            if row.ends_at + keep_s <= now:
                self._cloud.ended.pop(name, None)
                known.said.pop(name, None)
            elif row.listed_at > now:
                known.unlisted[name] = None
                known.said.pop(name, None)
            else:
                told = self._tell(row)
                if known.said.get(name) != told:  # the same object while that is the same
                    known.said[name] = told
            if now - keep_s < row.ends_at <= now:
                heapq.heappush(known.kept_until, (row.ends_at + keep_s, name))

    def _tell(self, row: MachineRow) -> CloudInstance:
        at = min(self._cloud.now, row.ends_at)
        price = self._catalogue.price_usd_per_h(row.zone, row.type_name, row.market, at)
        return row.told_at(self._cloud.now, price)

    def _others(self, owner: str) -> tuple[CloudInstance, ...]:
        """Return the machines of all other owners that are up."""
        return tuple(self._tell(row) for row in self._cloud.live.values() if row.owner != owner)

    def _missing_zone(self, told: Sequence[CloudInstance]) -> str | None:
        """The zone that does not answer a listing, if one does not."""
        fault = self._faults.take(FaultKind.LIST_PARTLY, "instances")
        if fault is None:
            return None
        return fault.zone or min((each.zone for each in told), default=self.settings.zones[0])

    def _record(self, row: MachineRow, now: float) -> MachineRecord:
        until_at = row.billed_until(now)
        cost_usd = self._catalogue.cost_usd(row.zone, row.type_name, row.market, row.launched_at, until_at)
        return row.record_at(now, cost_usd)

    def _find_state_file(self, state_dir: str) -> Path | None:
        if self.settings.state_file:
            return Path(state_dir, self.settings.state_file)
        return Path(state_dir, "cloud.journal") if self.settings.persist else None


def _named(offer: Offer) -> str:
    return f"{offer.instance_type.name} in {offer.zone} ({offer.market})"
