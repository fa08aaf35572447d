"""Providers' listings become facts about instances. Concludes nothing from a listing that failed or is partial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain
from math import inf

from hcloud.apply.machines import confirm_launch, emit_provider_error
from hcloud.apply.unit_index import UnitIndex
from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderError
from hcloud.core.model import Instance, InstanceId, InstanceState, Market
from hcloud.observe import facts
from hcloud.observe.facts import Change, FactBatch, ObservationRound
from hcloud.observe.orphans import Orphans
from hcloud.provider import CloudInstance, CloudState, Listing, PriceFeed, Provider, is_listing
from hcloud.quarantine import Failure, call_provider
from hcloud.spec.policy import Policy
from hcloud.store import LeaderLease, LiveView, Store

DEFAULT_POLL_S = 2.0
SLOW_POLL_S = 30.0
"""How often a provider is listed while none of its instances is silent, booting or ending."""
EXPIRED_FOR_S = 600.0
"""How long after its expiry an instance that no provider lists counts as gone: its clock may be behind ours."""
UNKNOWN_LAUNCH_S = 60.0
"""How long after its request an instance with a lost launch reply may first appear in a listing."""
_IN_TRANSITION = (InstanceState.REQUESTED, InstanceState.BOOTING, InstanceState.TERMINATING)


@dataclass(slots=True)
class InstanceObserver:
    """Lists providers when they are due. Its memory (poll times, absences) may be lost without harm."""

    store: Store
    clock: Clock
    providers: Mapping[str, Provider]
    owner: str
    """The owner tag of this deployment's instances."""
    poll_s: Mapping[str, float]
    """By provider, the time between two listings; DEFAULT_POLL_S where none is given."""
    unit_index: UnitIndex
    _listed_at: dict[str, float] = field(default_factory=dict)
    _absent: dict[InstanceId, tuple[float, float]] = field(default_factory=dict)
    """By instance: how long complete listings have not named it, and when the last of them was requested."""
    _settled: dict[InstanceId, CloudInstance] = field(default_factory=dict)
    """By instance, the listed entry that added nothing to its present row: the same entry adds nothing again."""
    _in_transition: set[InstanceId] = field(default_factory=set)
    """Instances that are requested, booting or ending: their providers are listed more often."""
    _reported_unlisted: set[InstanceId] = field(default_factory=set)
    """Instances reported because no listing names them although their workers answer."""
    _orphans: Orphans = field(default_factory=Orphans)

    # --------------------------------------------------------------------------------------------------------- listing
    def listings(self, silent: Set[InstanceId], lease: LeaderLease | None) -> dict[str, Listing]:
        """Return the listings of all providers that are due and answer. ``silent``: instances without contact."""
        listings = dict[str, Listing]()
        for name in sorted(self.providers):
            if self._is_due(name, silent) and (listing := self._list(name, lease)) is not None:
                listings[name] = listing
        return listings

    def _is_due(self, provider: str, silent: Set[InstanceId]) -> bool:
        listed_at = self._listed_at.get(provider, -1e18)
        if self._price_changed_at(provider) > listed_at:
            return True
        since_s = self.clock.now() - listed_at
        if since_s < self._poll_s(provider):
            return False
        if since_s >= SLOW_POLL_S:
            return True
        # Rows as they are now: listing another provider may just have taken seconds.
        view = self.store.live()
        self.unit_index.follow(view.jobs, view.instances)
        self.note_changes(self.unit_index.changed_machines)
        watched = (self.unit_index.machines.get(each) for each in chain(self._in_transition, silent, self._absent))
        return any(row is not None and row.offer.provider == provider for row in watched)

    def _price_changed_at(self, name: str) -> float:
        provider = self.providers[name]
        if not isinstance(provider, PriceFeed):
            return -inf
        try:
            return call_provider(provider.price_changed_at, f"{name}.price_changed_at", _is_time)
        except ProviderError:
            return -inf  # the next listing is due by its interval

    def _poll_s(self, provider: str) -> float:
        return self.poll_s.get(provider, DEFAULT_POLL_S)

    def _list(self, name: str, lease: LeaderLease | None) -> Listing | None:
        now = self._listed_at[name] = self.clock.now()
        try:
            listing = call_provider(lambda: self.providers[name].instances(self.owner), f"{name}.instances", is_listing)
        except ProviderError as error:
            with self.store.transaction(now, lease) as txn:
                emit_provider_error(txn, name, "instances", error)
            return None
        self._end_orphans(name, listing, lease)
        return listing

    def _end_orphans(self, name: str, listing: Listing, lease: LeaderLease | None) -> None:
        known, up = {i.token for i in self.store.live().instances}, (CloudState.PENDING, CloudState.RUNNING)
        unknown = [c for c in listing.instances if c.token not in known]
        orphans = [c for c in unknown if c.owner == self.owner and c.state in up]
        self._orphans.terminate(self.store, self.clock, lease, name, self.providers[name], orphans)

    def note_changes(self, changed: Set[InstanceId]) -> None:
        """Drop conclusions about instances that changed, or their units."""
        for name in changed:
            row = self.unit_index.machines.get(name)
            self._settled.pop(name, None)
            if row is not None and row.state in _IN_TRANSITION:
                self._in_transition.add(name)
            else:
                self._in_transition.discard(name)

    def unsettle(self, instance_id: InstanceId) -> None:
        """Process the next listed entry of an instance even if it is the same: recording failed."""
        self._settled.pop(instance_id, None)

    # ----------------------------------------------------------------------------------------------------------- facts
    def listing_facts(
        self, name: str, listing: Listing, view: LiveView, now: float, policy: Policy, observed: ObservationRound
    ) -> Iterator[FactBatch]:
        """Yield what a provider's listing adds to the rows of its instances."""
        by_token, settled, rows = {c.token: c for c in listing.instances}, self._settled, self.unit_index.machines
        for present in [key for key in self._absent if key not in rows or rows[key].token in by_token]:
            del self._absent[present]
        due = [i for i in view.instances if (cloud := by_token.get(i.token)) is None or settled.get(i.id) is not cloud]
        for instance in due:
            if instance.offer.provider != name:
                continue
            cloud = by_token.get(instance.token)
            try:
                changes = tuple(self._instance_changes(instance, cloud, listing, view, now, policy, observed))
            except Exception as defect:  # noqa: BLE001 any defect: one row must not hide the other instances
                observed.failing[f"reading the listing of {name} for {instance.id}"] = Failure.from_error(
                    exc_info=defect
                )
                continue
            if cloud is not None and not changes:
                settled[instance.id] = cloud
            if changes:
                yield FactBatch(instance.id, instance.id, changes)

    def _instance_changes(
        self,
        instance: Instance,
        cloud: CloudInstance | None,
        listing: Listing,
        view: LiveView,
        now: float,
        policy: Policy,
        observed: ObservationRound,
    ) -> Iterator[Change]:
        if cloud is not None:
            yield from self._listed(instance, cloud, view, now, policy)
        elif not self._surely_absent(instance, listing, self._listed_at[instance.offer.provider]):
            return
        elif instance.id in observed.answering:
            yield from self._unlisted(instance)
        else:
            self._absent.pop(instance.id, None)
            # Its end is not known and may be long ago; but no instance outlives its expiry.
            at = min(now, instance.expires_at)
            yield facts.instance_gone(instance, view, self.unit_index, at, "absent from complete listings", policy)

    def _listed(
        self, instance: Instance, cloud: CloudInstance, view: LiveView, now: float, policy: Policy
    ) -> Iterator[Change]:
        if instance.provider_id is None:
            yield lambda txn: confirm_launch(txn, instance.id, cloud)
        if cloud.state is CloudState.TERMINATED:
            preempted = cloud.preempt_at is not None or instance.preempt_at is not None
            at, why = cloud.terminated_at or now, cloud.detail or "ended"
            yield facts.instance_gone(instance, view, self.unit_index, at, why, policy, preempted=preempted)
            return
        if instance.provider_id is not None and cloud.addresses != instance.addresses:
            yield facts.addresses_changed(instance.id, cloud.addresses)
        if cloud.preempt_at is not None and cloud.preempt_at != instance.preempt_at:
            yield facts.preemption_notice(instance.id, cloud.preempt_at)
        if cloud.market is Market.RESERVED and instance.offer.market is not Market.RESERVED:
            return  # its commitment has ended: the price in the listing is that of its launch, or of others
        price = cloud.price_usd_per_h
        if price > 0 and instance.provider_id is not None and price != instance.offer.price_usd_per_h:
            yield facts.price_changed(instance.id, price)

    def _surely_absent(self, instance: Instance, listing: Listing, asked_at: float) -> bool:
        """Return whether an instance that ``listing`` does not name is gone.

        Only complete listings requested (``asked_at``) after the launch count, over the provider's consistency delay.
        """
        if not listing.complete or instance.state is InstanceState.REQUESTED or asked_at <= instance.requested_at:
            return False
        # The delay is added up from listing to listing, each counting for one poll interval at most. No clock is
        # trusted with it: the provider's may be behind ours, and ours may jump, or be another since a restart.
        poll_s = self._poll_s(instance.offer.provider)
        absent_s, before = self._absent.get(instance.id, (0.0, asked_at))
        absent_s += min(max(0.0, asked_at - before), poll_s)
        self._absent[instance.id] = (absent_s, asked_at)
        settle_s = listing.consistent_after_s + (UNKNOWN_LAUNCH_S if instance.provider_id is None else 0.0)
        return absent_s >= settle_s + poll_s

    def _unlisted(self, instance: Instance) -> Iterator[Change]:
        """Report, once, an instance that no listing names: it exists, because its worker answers."""
        name = instance.offer.provider
        if instance.id not in self._reported_unlisted:
            self._reported_unlisted.add(instance.id)
            error = ProviderError(
                f"{name} does not list {instance.id}, but its worker answers; check that account, region and "
                "directory are still the same"
            )
            yield lambda txn: emit_provider_error(txn, name, "instances", error, instance.id)

    def expired_facts(
        self, view: LiveView, now: float, policy: Policy, observed: ObservationRound
    ) -> Iterator[FactBatch]:
        """Yield the end of instances of unconfigured providers that expired long ago and do not answer."""
        why = "its provider is not configured, and its lease has expired"
        for each in view.instances:
            is_known = each.offer.provider in self.providers or each.id in observed.answering
            if not is_known and now >= each.expires_at + EXPIRED_FOR_S:
                change = facts.instance_gone(each, view, self.unit_index, each.expires_at, why, policy)
                yield FactBatch(each.id, each.id, (change,))

    def forget_others(self, machines: Set[InstanceId], orphans_before: float) -> None:
        """Forget all instances but ``machines``, and orphans with a next call due before ``orphans_before``."""
        self._absent = {name: each for name, each in self._absent.items() if name in machines}
        self._reported_unlisted &= machines
        self._orphans.forget(orphans_before)


def _is_time(answer: object) -> bool:
    return isinstance(answer, float)
