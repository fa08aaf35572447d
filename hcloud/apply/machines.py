"""Instance actions: record the intent, call the provider outside any transaction, record the result."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from hcloud.apply.directives import PAUSED, emit_order, refuse_drained
from hcloud.apply.launch_pool import Answer, provider_named, send_launches
from hcloud.apply.transitions import reason_fields, transition_instance, transition_job
from hcloud.core.clock import Clock
from hcloud.core.commitments import covered_until
from hcloud.core.errors import (
    AccountRejected,
    InsufficientCapacity,
    LaunchRejected,
    OutcomeUnknown,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    Refused,
    Throttled,
)
from hcloud.core.model import (
    JOB_WAITING,
    EventKind,
    Instance,
    InstanceId,
    InstanceState,
    Intent,
    IntentKind,
    JobState,
    Market,
    Offer,
    Reason,
)
from hcloud.planner.budget import CENT_DUST, highest_usd_per_h
from hcloud.planner.plan import Drain, Launch, Renew, Terminate
from hcloud.planner.quota_limits import refused_quota, vcpus_in_use
from hcloud.planner.snapshot import DirectiveScope, OfferBackoff
from hcloud.provider import BootstrapOf, CloudInstance, LaunchRequest, Provider
from hcloud.quarantine import call_provider
from hcloud.spec.policy import Policy
from hcloud.store import LeaderLease, LiveView, Store, Transaction

TERMINATE_RETRY_S = 30.0
"""The termination of an instance that is still listed after this long is repeated."""
RETRY_CAP_S = 60.0
HELD_RETRY_S = 2.0
"""A launch that an operator holds back is checked again after this long."""
REJECTED_BACKOFF_S = 3600.0
NEVER_REGISTERED = "never_registered"
"""The planner's reason code for ending an instance that never registered."""
UNREGISTERED_OFFERS = 2
"""After launches in a row of which no worker registered, the fault is taken to be the provider's or the account's."""
_ROUNDED_USD_PER_H = 1e-6
"""Prices that differ by less are equal: providers keep them in tags with six digits."""
_UP = (InstanceState.BOOTING, InstanceState.READY, InstanceState.DRAINING)
"""States of instances that certainly count against a quota."""
QUICK_LOSS = "taken_quickly"
QUICK_LOSS_MEMORY_CAPS = 2.0
"""Quick losses stop counting as one series after this multiple of the longest back-off without a loss."""


@dataclass(slots=True)
class MachineActions:
    """Launches and terminates instances."""

    store: Store
    providers: Mapping[str, Provider]
    clock: Clock
    owner: str
    bootstrap: BootstrapOf
    """What the instance of a launch needs to become a worker of this deployment."""
    offers_failed: bool = False
    """Set when an offer turned out unavailable; the controller then reads offers again."""

    # ------------------------------------------------------------------------------------------------------- launching
    def record_launch(
        self, txn: Transaction, action: Launch, policy: Policy, live: LaunchBudgetView, list_price_usd: float
    ) -> Instance:
        """Write a REQUESTED instance, its launch intent, and the jobs that await it; add it to ``live``.

        Raises Refused if caps, budgets, back-offs or directives no longer allow it.
        """
        _refuse_beyond_caps(action, policy, live)
        _refuse_backed_off(action.offer, self.store.live(), txn.now)
        refuse_drained(txn, action.offer, self.store.live().directives)
        instance = txn.new_instance(lambda new_id: self._requested(new_id, action, txn.now))
        txn.open_intent(Intent(token=instance.token, kind=IntentKind.LAUNCH, subject=instance.id, created_at=txn.now))
        txn.emit(
            EventKind.INSTANCE_REQUESTED,
            instance_id=instance.id,
            **{**reason_fields(action.reason), **_request_fields(instance, list_price_usd)},
        )
        awaits = replace(action.reason, numbers={**action.reason.numbers, "awaits": instance.id})
        for job_id, ranks in Counter(action.for_jobs).items():
            job = txn.job(job_id)
            if job.state in JOB_WAITING and not job.cancelled_by:
                awaiting = (*job.awaiting, *[instance.id] * ranks)
                transition_job(txn, job, JobState.AWAITING_INSTANCE, awaits, awaiting=awaiting, wait_code="")
        live.add(instance)
        return instance

    def _requested(self, new_id: str, action: Launch, now: float) -> Instance:
        # Unique across re-created databases, and the same when a simulation is repeated.
        token = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.owner}/{new_id}/{now!r}"))
        return Instance(
            id=new_id,
            offer=action.offer,
            state=InstanceState.REQUESTED,
            token=token,
            requested_at=now,
            expires_at=action.expires_at,
            for_running=action.for_running,
            reason=action.reason.text,
        )

    def drive_launches(self, intents: Sequence[Intent], policy: Policy, lease: LeaderLease | None) -> None:
        """Carry out launch intents, several at once; record each result in their order.

        Intents stay open if no time is left, while launches are paused, and while a directive covers their instance.
        """
        begun = [(intent, self.store.instance(intent.subject)) for intent in intents]
        requested = [each for each in begun if each[1].state is InstanceState.REQUESTED]
        for intent in (intent for intent, instance in begun if instance.state is not InstanceState.REQUESTED):
            with self.store.transaction(self.clock.now(), lease) as txn:
                txn.close_intent(intent.token)
        paused, directives = self.store.get_meta(PAUSED), self.store.live().directives
        held = [intent for intent, each in requested if paused or any(d.covers(each) for d in directives)]
        if held:
            with self.store.transaction(self.clock.now(), lease) as txn:
                for intent in held:
                    txn.put_intent(replace(intent, retry_at=txn.now + HELD_RETRY_S))
        due, requests = list[tuple[Intent, Instance]](), list[LaunchRequest]()
        for intent, instance in (each for each in requested if each[0] not in held):
            try:
                requests.append(self._request(instance))
                due.append((intent, instance))
            except ProviderUnavailable as error:
                self._retry_launch_later(intent, instance, error, lease)
        answers = send_launches(self.providers, requests, self.clock)
        with closing(answers):
            for (intent, instance), answer in zip(due, answers, strict=True):
                self._record_answer(intent, instance, answer, policy, lease)

    def _record_answer(
        self, intent: Intent, instance: Instance, answer: Answer, policy: Policy, lease: LeaderLease | None
    ) -> None:
        if answer is None:
            return
        if isinstance(answer, (Throttled, ProviderUnavailable, OutcomeUnknown)):
            self._retry_launch_later(intent, instance, answer, lease)
            return
        if isinstance(answer, ProviderError):
            self._cancel_launch(intent, instance, answer, policy, lease)
            return
        with self.store.transaction(self.clock.now(), lease) as txn:
            confirm_launch(txn, instance.id, answer)
            earlier, quota = _find_backoff(txn, instance.offer), txn.refused_quota(*instance.offer.quota_key)
            # Of a gang, one launch shows nothing: the next may be refused as before.
            resets = not any(each is not None and each.failures for each in (earlier, quota))
            resets = resets or self._is_last_of_its_jobs(instance)
            if earlier is not None:  # a launch does not show whether an instance registers, or how long it stays
                until_at = earlier.until_at if earlier.losses or earlier.unregistered else txn.now
                txn.put_backoff(replace(earlier, until_at=until_at, failures=0 if resets else earlier.failures))
            if quota is not None:
                vcpus = self._vcpus_up(instance)
                # An instance may have launched because it is smaller than the one that exceeded the quota.
                failures = 0 if quota.retry_at <= txn.now and resets else quota.failures
                after = replace(quota, failures=failures)
                if vcpus >= quota.vcpus and quota.until_at > txn.now:  # the quota is larger now
                    after = replace(after, until_at=txn.now, periods=0)
                if after != quota:
                    txn.put_refused_quota(after)
            txn.close_intent(intent.token)

    def _is_last_of_its_jobs(self, instance: Instance) -> bool:
        """Return whether every other instance that the jobs of ``instance`` await is launched, too."""
        jobs = [job for job in self.store.live().jobs if instance.id in job.awaiting]
        others = {each for job in jobs for each in job.awaiting} - {instance.id}
        return all(self.store.instance(each).state in _UP for each in others)

    def _vcpus_up(self, instance: Instance) -> float:
        # The instance itself is not among them: its launch is not committed yet.
        others = [each for each in self.store.live().instances if each.state in _UP]
        return vcpus_in_use(instance.offer.quota_key, [instance, *others])

    def _request(self, instance: Instance) -> LaunchRequest:
        return LaunchRequest(
            token=instance.token,
            instance_id=instance.id,
            owner=self.owner,
            offer=instance.offer,
            expires_at=instance.expires_at,
            bootstrap=self.bootstrap(instance.token),
        )

    def _retry_launch_later(
        self, intent: Intent, instance: Instance, error: ProviderError, lease: LeaderLease | None
    ) -> None:
        now = self.clock.now()
        retry_at = now + _retry_delay_s(error, intent.tries)
        with self.store.transaction(now, lease) as txn:
            txn.put_intent(replace(intent, tries=intent.tries + 1, retry_at=retry_at))
            emit_provider_error(txn, instance.offer.provider, "launch", error, instance_id=instance.id)

    def _cancel_launch(
        self, intent: Intent, instance: Instance, refusal: ProviderError, policy: Policy, lease: LeaderLease | None
    ) -> None:
        self.offers_failed = True
        # This one is among the live ones; those still on their way may be refused too, and lower the number then.
        vcpus = vcpus_in_use(instance.offer.quota_key, self.store.live().instances)
        with self.store.transaction(self.clock.now(), lease) as txn:
            fresh = txn.instance(instance.id)
            code = "stockout" if isinstance(refusal, InsufficientCapacity) else type(refusal).__name__.lower()
            transition_instance(
                txn, fresh, InstanceState.TERMINATED, Reason(code=code, text=f"launch failed: {refusal}")
            )
            txn.close_intent(intent.token)
            if isinstance(refusal, QuotaExceeded):
                _record_refused_quota(txn, instance.offer, vcpus, refusal, policy)
            else:
                _back_off_refused(txn, instance.offer, refusal, policy)

    # ----------------------------------------------------------------------------------------------------- commitments
    def follow_commitments(self, offers: Sequence[Offer], lease: LeaderLease | None) -> bool:
        """Let instances whose commitment has ended be on demand since then; return whether there was any.

        An instance moves to a commitment that ends later only where that has capacity for it. A commitment that was
        extended counts with its new end, and the price after it as last read.
        """
        now = self.clock.now()
        reserved = [each for each in self.store.live().instances if each.offer.market is Market.RESERVED]
        listed = [each for each in offers if each.market is Market.RESERVED and _has_terms(each)]
        if not listed and not any(_has_terms(each.offer) for each in reserved):
            return False
        terms = _latest_terms(reserved, {each.key: each for each in offers if each.market is Market.RESERVED}, now)
        ended = [each for each in reserved if (terms[each.id].ends_at or inf) <= now]
        changed = [each for each in reserved if each not in ended and terms[each.id] is not each.offer]
        if not (changed or ended):
            return False
        with self.store.transaction(now, lease) as txn:
            for instance in changed:
                txn.put_instance(replace(txn.instance(instance.id), offer=terms[instance.id]))
            for instance in ended:
                _end_commitment(txn, instance.id, terms[instance.id], on_demand_price(instance.offer, offers))
        return bool(ended)

    # ---------------------------------------------------------------------------------------------------------- ending
    def record_terminate(self, txn: Transaction, action: Terminate, policy: Policy) -> Intent | None:
        """Write TERMINATING and the intent; None if the instance is ending already.

        An instance that never registered, or is preempted too soon, counts against its offer.
        """
        instance = txn.instance(action.instance_id)
        if instance.state in (InstanceState.TERMINATING, InstanceState.TERMINATED):
            return None
        transition_instance(txn, instance, InstanceState.TERMINATING, action.reason)
        if action.reason.code == NEVER_REGISTERED:
            record_unregistered(txn, instance, action.reason.text, policy)
        if instance.preempt_at is not None:
            record_preemption(txn, instance, instance.preempt_at, policy)
        intent = Intent(
            token=f"terminate:{instance.id}", kind=IntentKind.TERMINATE, subject=instance.id, created_at=txn.now
        )
        txn.open_intent(intent)
        return intent

    def drive_terminates(self, intents: Sequence[Intent], lease: LeaderLease | None) -> None:
        """Ask providers to terminate instances. Intents stay open, and are repeated, until a listing confirms the end.

        Failed calls are repeated with back-off.
        """
        by_provider: dict[str, list[Intent]] = {}
        for intent in intents:
            by_provider.setdefault(self.store.instance(intent.subject).offer.provider, []).append(intent)
        for name, group in sorted(by_provider.items()):
            error = self._terminate_at(name, group)
            with self.store.transaction(self.clock.now(), lease) as txn:
                failed = error if name in self.providers else None
                for intent in group:
                    wait_s = terminate_retry_delay_s(failed, intent.tries)
                    txn.put_intent(replace(intent, tries=intent.tries + 1, retry_at=txn.now + wait_s))
                if error is not None:
                    emit_provider_error(txn, name, "terminate", error)

    def _terminate_at(self, provider: str, group: Sequence[Intent]) -> ProviderError | None:
        found = (self.store.instance(intent.subject).provider_id for intent in group)
        # An instance whose launch reply was lost has no id until the observer finds it by its token.
        known = sorted(provider_id for provider_id in found if provider_id)
        try:
            if known:
                call_provider(
                    lambda: provider_named(self.providers, provider).terminate(known), f"{provider}.terminate"
                )
        except ProviderError as error:
            return error
        return None


def _has_terms(offer: Offer) -> bool:
    """Return whether the capacity of a reserved offer ends at some time, or is of several commitments."""
    return offer.ends_at is not None or bool(offer.committed) or offer.price_after_usd_per_h is not None


def _latest_terms(
    reserved: Sequence[Instance], latest: Mapping[tuple[str, str, str, str], Offer], now: float
) -> dict[InstanceId, Offer]:
    """Return reserved instances' offers with end and later price as the ``latest`` offers have them, by instance.

    An offer that does not change is the same object.
    """
    terms = {each.id: each.offer for each in reserved}
    groups = dict[tuple[tuple[str, str, str, str], str], list[Instance]]()
    for each in reserved:
        groups.setdefault((each.offer.key, each.offer.commitment), []).append(each)
    for (key, kind), instances in groups.items():
        offer = latest.get(key)
        if offer is None:
            continue
        parts = [part for part in offer.committed if part.kind == kind]
        if kind == "" and len({part.kind for part in offer.committed}) == 1:  # launched before kinds were recorded
            parts = list(offer.committed)
        if not offer.committed:  # only the first end is known; one that has passed is not moved to another commitment
            for each in instances:
                if (each.offer.ends_at or inf) > now:
                    ends_at = max(offer.ends_at, each.offer.ends_at or 0.0) if offer.ends_at else each.offer.ends_at
                    terms[each.id] = _with_terms(each.offer, ends_at, offer.price_after_usd_per_h)
            continue
        if not parts:  # of other kinds only: each instance keeps the end of its own
            continue
        kind_usd_per_h = offer.price_usd_per_h if parts[0].usd_per_h is None else parts[0].usd_per_h
        # Those whose end is first keep it if the reading shows less in use: it may be older than a launch.
        instances.sort(key=lambda each: (each.offer.ends_at or inf, each.requested_at, each.id))
        ends = covered_until(parts, len(instances))
        for each, ends_at in zip(instances[len(instances) - len(ends) :], ends, strict=True):
            # To a commitment that costs more it does not move, since it would keep the lower price.
            later = (ends_at or inf) > (each.offer.ends_at or inf)
            if not later or kind_usd_per_h <= each.offer.price_usd_per_h + _ROUNDED_USD_PER_H:
                terms[each.id] = _with_terms(each.offer, ends_at, offer.price_after_usd_per_h)
    return terms


def _with_terms(offer: Offer, ends_at: float | None, after_usd_per_h: float | None) -> Offer:
    after = offer.price_after_usd_per_h if after_usd_per_h is None else after_usd_per_h
    same = (ends_at, after) == (offer.ends_at, offer.price_after_usd_per_h)
    return offer if same else replace(offer, ends_at=ends_at, price_after_usd_per_h=after)


def _end_commitment(txn: Transaction, instance_id: str, terms: Offer, listed_usd_per_h: float) -> None:
    """Let an instance be on demand from the end that ``terms`` state, at the price they state for then.

    ``listed_usd_per_h``: the price if they state none.
    """
    fresh, after = txn.instance(instance_id), terms.price_after_usd_per_h
    price_usd_per_h = listed_usd_per_h if after is None else after
    offer = replace(
        fresh.offer,
        market=Market.ON_DEMAND,
        price_usd_per_h=price_usd_per_h,
        ends_at=None,
        price_after_usd_per_h=None,
    )
    txn.put_instance(replace(fresh, offer=offer))
    text = f"its commitment has ended: on demand from now on, at ${price_usd_per_h:g}/h"
    txn.emit(
        EventKind.INSTANCE_PRICE,
        instance_id=instance_id,
        at=max(terms.ends_at or txn.now, fresh.launched_at or fresh.requested_at),
        price_usd_per_h=price_usd_per_h,
        market=offer.market.value,
        text=text,
    )


def terminate_retry_delay_s(failed: ProviderError | None, tries: int) -> float:
    """Return in how many seconds to repeat the termination of an instance that is still listed.

    ``tries``: calls before the last one. ``failed``: the error of the last call; None if it succeeded and needs time.
    """
    return TERMINATE_RETRY_S if failed is None else _retry_delay_s(failed, tries)


def _retry_delay_s(error: ProviderError, tries: int) -> float:
    """Return in how many seconds to repeat a failed call: exponential back-off up to RETRY_CAP_S."""
    wait_s = error.retry_after_s if isinstance(error, Throttled) else 1.0
    return min(RETRY_CAP_S, wait_s * 2.0 ** min(tries, 6))


def confirm_launch(txn: Transaction, instance_id: str, cloud: CloudInstance) -> Instance:
    """Record what the provider confirmed of a launch: its id, and when billing started."""
    instance = txn.instance(instance_id)
    if instance.provider_id is not None:
        return instance
    offer = replace(instance.offer, price_usd_per_h=cloud.price_usd_per_h or instance.offer.price_usd_per_h)
    known = replace(
        instance,
        provider_id=cloud.provider_id,
        launched_at=cloud.launched_at,
        offer=offer,
        addresses=cloud.addresses,
    )
    if instance.state is InstanceState.REQUESTED:
        reason = Reason(code="launched", text=f"{cloud.provider_id} launched in {cloud.zone}")
        after = transition_instance(txn, known, InstanceState.BOOTING, reason)
    else:
        after = txn.put_instance(known)
    txn.emit(
        EventKind.INSTANCE_LAUNCHED,
        instance_id=instance_id,
        provider_id=cloud.provider_id,
        launched_at=cloud.launched_at,
        price_usd_per_h=offer.price_usd_per_h,
    )
    return after


def _find_backoff(txn: Transaction, offer: Offer) -> OfferBackoff | None:
    """Return the back-off of an offer, expired or not; None if there is none."""
    return txn.backoff(offer.provider, offer.zone, offer.instance_type.name, offer.market.value)


def _record_refused_quota(txn: Transaction, offer: Offer, vcpus: float, refusal: QuotaExceeded, policy: Policy) -> None:
    """Remember that ``vcpus`` exceed the limit of an offer; back off from all that count against it, longer each
    time."""
    known, backoff_after_s = txn.refused_quota(*offer.quota_key), policy.stockout.backoff_after_s
    limit = refused_quota(offer, vcpus, str(refusal), txn.now, backoff_after_s, known)
    txn.put_refused_quota(limit)
    _emit_backoff(txn, limit.backoff, type(refusal).__name__, region=limit.region, quota=limit.quota)


def _back_off_refused(txn: Transaction, offer: Offer, refusal: ProviderError, policy: Policy) -> None:
    """Back off from an offer that could not be launched, longer each time."""
    earlier = _find_backoff(txn, offer) or _new_backoff(offer)
    failures = earlier.failures + 1
    backoff_s = policy.stockout.backoff_after_s(failures)
    if isinstance(refusal, LaunchRejected):
        backoff_s = max(backoff_s, REJECTED_BACKOFF_S)
    after = replace(earlier, until_at=txn.now + backoff_s, error=str(refusal), failures=failures)
    if isinstance(refusal, AccountRejected):
        # Once the provider is tried again, another offer comes first: a permission may be for some types only.
        txn.put_backoff(replace(after, until_at=txn.now + 2.0 * backoff_s))
        after = replace(_provider_backoff(txn, offer.provider), until_at=txn.now + backoff_s, error=str(refusal))
    _put_backoff(txn, after, type(refusal).__name__)


def resume_provider(txn: Transaction, provider: str, live: LiveView, actor: str) -> bool:
    """End all back-offs of a provider and forget its refused quotas, as what caused them is fixed.

    Returns whether there was any in force.
    """
    backoffs = [each for each in live.backoffs if each.provider == provider and each.until_at > txn.now]
    for each in backoffs:
        txn.put_backoff(replace(each, until_at=txn.now, failures=0, losses=0, unregistered=0))
    quotas = [each for each in live.refused_quotas if each.provider == provider]
    quotas = [each for each in quotas if max(each.until_at, each.retry_at) > txn.now]
    for quota in quotas:
        txn.put_refused_quota(replace(quota, until_at=txn.now, periods=0, retry_at=txn.now, failures=0))
    if backoffs or quotas:
        emit_order(txn, "resume", DirectiveScope.PROVIDER, provider, actor, None)
    return bool(backoffs or quotas)


def record_unregistered(txn: Transaction, instance: Instance, why: str, policy: Policy) -> None:
    """Back off from the offer of a paid instance that never registered, longer each time in a row.

    After ``UNREGISTERED_OFFERS`` in a row, whatever their types, all offers of the provider are backed off. Instances
    launched before the first of them was given up count as one.
    """
    offer = instance.offer
    for earlier, free in (
        (_find_backoff(txn, offer) or _new_backoff(offer), 0),
        (_provider_backoff(txn, offer.provider), UNREGISTERED_OFFERS - 1),
    ):
        if earlier.unregistered and instance.requested_at < earlier.unregistered_at:
            continue
        count = earlier.unregistered + 1
        after = replace(earlier, until_at=max(earlier.until_at, txn.now), unregistered=count, unregistered_at=txn.now)
        if count <= free:
            txn.put_backoff(after)
            continue
        until_at = max(earlier.until_at, txn.now + policy.stockout.backoff_after_s(count - free))
        _put_backoff(txn, replace(after, until_at=until_at, error=why), NEVER_REGISTERED)


def record_registration(txn: Transaction, offer: Offer) -> None:
    """Reset the counts of instances that never registered, of an offer and of its provider, which is free again."""
    earlier, provider = _find_backoff(txn, offer), _provider_backoff(txn, offer.provider)
    if earlier is not None and earlier.unregistered:
        txn.put_backoff(replace(earlier, unregistered=0))
    if provider.unregistered:
        txn.put_backoff(replace(provider, unregistered=0, until_at=min(provider.until_at, txn.now)))


def _provider_backoff(txn: Transaction, provider: str) -> OfferBackoff:
    found = txn.backoff(provider, "", "", "")
    return found or OfferBackoff(provider=provider, until_at=0.0, failures=0)


def record_preemption(txn: Transaction, instance: Instance, taken_at: float, policy: Policy) -> None:
    """Count a spot instance that is preempted at ``taken_at`` (Unix seconds) soon after its launch.

    Instances preempted together count as one loss. After ``spot.quick_losses`` in a row the offer is backed off, longer
    each time. An instance that stayed, or a long time without a loss, resets the count.
    """
    spot, launched_at = policy.spot, instance.launched_at or instance.requested_at
    if not spot.quick_losses or instance.offer.market is not Market.SPOT:
        return
    earlier = _find_backoff(txn, instance.offer) or _new_backoff(instance.offer)
    stayed = taken_at - launched_at > spot.quick_loss_s
    if stayed and earlier.losses:
        txn.put_backoff(replace(earlier, losses=0))
    if stayed or (earlier.losses and instance.requested_at < earlier.lost_at):
        return
    forgotten = instance.requested_at > earlier.lost_at + QUICK_LOSS_MEMORY_CAPS * policy.stockout.backoff_cap_s
    losses = (0 if forgotten else earlier.losses) + 1
    # Kept as long as other expired back-offs, though it blocks no launch.
    after = replace(earlier, until_at=max(earlier.until_at, txn.now), losses=losses, lost_at=txn.now)
    if losses < spot.quick_losses:
        txn.put_backoff(after)
        return
    backoff_s = policy.stockout.backoff_after_s(losses - spot.quick_losses + 1)
    text = f"{losses} machines in a row were preempted within {spot.quick_loss_s:g} s of their launch"
    _put_backoff(txn, replace(after, until_at=max(after.until_at, txn.now + backoff_s), error=text), QUICK_LOSS)


def _new_backoff(offer: Offer) -> OfferBackoff:
    return OfferBackoff(
        provider=offer.provider,
        zone=offer.zone,
        instance_type=offer.instance_type.name,
        market=offer.market.value,
        until_at=0.0,
        failures=0,
    )


def _put_backoff(txn: Transaction, backoff: OfferBackoff, code: str) -> None:
    """Write a back-off and its event."""
    txn.put_backoff(backoff)
    _emit_backoff(txn, backoff, code)


def _emit_backoff(txn: Transaction, backoff: OfferBackoff, code: str, **fields: Any) -> None:
    txn.emit(
        EventKind.OFFER_BACKOFF,
        provider=backoff.provider,
        zone=backoff.zone,
        type=backoff.instance_type,
        market=backoff.market,
        until_at=backoff.until_at,
        error=code,
        text=backoff.error,
        **fields,
    )


def drain(txn: Transaction, action: Drain) -> None:
    """Stop placing on an instance, or allow it again."""
    instance = txn.instance(action.instance_id)
    to = InstanceState.READY if action.undo else InstanceState.DRAINING
    if instance.state is not to:
        transition_instance(txn, instance, to, action.reason)


def renew(txn: Transaction, action: Renew) -> None:
    """Record a later expiry; the instance receives it with the next lease push. Raises Refused if it is terminating."""
    instance = txn.instance(action.instance_id)
    if instance.state in (InstanceState.TERMINATING, InstanceState.TERMINATED):
        raise Refused(f"{instance.id} is terminating")
    txn.put_instance(replace(instance, expires_at=action.expires_at))
    txn.emit(
        EventKind.INSTANCE_RENEWED,
        instance_id=instance.id,
        **{**reason_fields(action.reason), "expires_at": action.expires_at},
    )


def emit_provider_error(
    txn: Transaction, provider: str, call: str, error: ProviderError, instance_id: str | None = None
) -> None:
    """Write a PROVIDER_TROUBLE event."""
    txn.emit(
        EventKind.PROVIDER_TROUBLE,
        instance_id=instance_id,
        provider=provider,
        call=call,
        error=type(error).__name__,
        text=str(error),
    )


def _refuse_backed_off(offer: Offer, live: LiveView, now: float) -> None:
    """Raise Refused for an offer that this plan, or another process, has just found unavailable."""
    backoffs = [*live.backoffs, *(each.backoff for each in live.refused_quotas)]
    memory = next((b for b in backoffs if b.until_at > now and b.covers(offer)), None)
    if memory is not None:
        raise Refused(
            f"{offer.instance_type.name} in {offer.zone} is backed off for {memory.until_at - now:.0f} s more"
        )


@dataclass(slots=True)
class LaunchBudgetView:
    """Live instances as caps and budgets count them."""

    count: int = 0
    vcpus: float = 0.0
    usd_per_h: float = 0.0
    """What all of them cost per hour."""

    @classmethod
    def of(cls, instances: Iterable[Instance]) -> LaunchBudgetView:
        """Return the counts of ``instances``."""
        counts = cls()
        for instance in instances:
            counts.add(instance)
        return counts

    def add(self, instance: Instance) -> None:
        """Count one more instance."""
        self.count += 1
        self.vcpus += instance.offer.instance_type.capacity.vcpus
        self.usd_per_h += highest_usd_per_h(instance.offer, instance.expires_at)


def _refuse_beyond_caps(action: Launch, policy: Policy, live: LaunchBudgetView) -> None:
    if live.count >= policy.caps.max_instances:
        raise Refused(f"caps.max_instances {policy.caps.max_instances} is reached")
    offer = action.offer
    vcpus, most_vcpus = live.vcpus + offer.instance_type.capacity.vcpus, policy.caps.max_vcpus
    if most_vcpus is not None and vcpus > most_vcpus + CENT_DUST:
        raise Refused(f"{vcpus:g} vCPUs would exceed caps.max_vcpus ({most_vcpus:g})")
    burn = live.usd_per_h + highest_usd_per_h(offer, action.expires_at)
    limit = policy.budgets.per_hour_usd
    if limit is not None and burn > limit + CENT_DUST:
        raise Refused(f"${burn:.4f}/h would exceed budgets.per_hour_usd ({limit})")


def _request_fields(instance: Instance, list_price_usd: float) -> dict[str, Any]:
    offer, capacity = instance.offer, instance.capacity
    return {
        "provider": offer.provider,
        "region": offer.region,
        "zone": offer.zone,
        "type": offer.instance_type.name,
        "market": offer.market.value,
        "price_usd_per_h": offer.price_usd_per_h,
        "priced_at": offer.priced_at,
        "vcpus": capacity.vcpus,
        "memory_mib": capacity.memory_mib,
        "billing_minimum_s": offer.billing_minimum_s,
        "on_demand_usd_per_h": list_price_usd,
        "expires_at": instance.expires_at,
    }


def on_demand_price(offer: Offer, offers: Sequence[Offer]) -> float:
    """Return the on-demand price of the same type in the same region, in USD/h; its own price if there is none."""
    same = [
        o.price_usd_per_h
        for o in offers
        if o.market is Market.ON_DEMAND
        and (o.provider, o.region, o.instance_type.name) == (offer.provider, offer.region, offer.instance_type.name)
    ]
    return min(same, default=offer.price_usd_per_h)
