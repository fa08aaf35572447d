"""Launches that are idempotent without local state, by three keys derived from the token.

The instance's name: Compute Engine refuses a second instance of one name. The request id: a repeated one is answered
with the first operation. And the operations, kept for about two weeks, which are read before an insert. So a killed
daemon loses nothing, and a stockout does not use up the token.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence, Set
from dataclasses import replace

from google.cloud import compute_v1 as compute

from hcloud.core.clock import Clock
from hcloud.core.errors import (
    InsufficientCapacity,
    LaunchRejected,
    OutcomeUnknown,
    ProviderError,
    ProviderUnavailable,
    Throttled,
)
from hcloud.core.model import Market
from hcloud.provider import CloudInstance, CloudState, LaunchRequest
from providers.gce.api import Api, failure_of, is_done
from providers.gce.catalog import GceCatalog
from providers.gce.ended_instances import EndOperation, as_ended, end_of
from providers.gce.insert_request import body_of
from providers.gce.instance_mapping import PriceOf, seconds, to_cloud_instance
from providers.gce.names import name_of, provider_id, request_id
from providers.gce.settings import GceSettings

MAX_POLL_S = 5.0
MAX_FAILED_TOKENS = 1000
"""Tokens with remembered failures. The failure of an older one is at worst reported twice."""


class Launcher:
    """Launches instances of one project."""

    def __init__(self, api: Api, settings: GceSettings, clock: Clock, catalogue: GceCatalog, price_of: PriceOf) -> None:
        self._api, self._settings, self._clock = api, settings, clock
        self._catalog, self._price_of = catalogue, price_of
        self._failed: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self.undecided: set[str] = set()
        """Ids of instances with an insert in progress."""

    def launch(self, request: LaunchRequest) -> CloudInstance:
        """Launch an instance or return the one of this token; see the provider port."""
        zone, name = request.offer.zone, name_of(request)
        known = self._api.operations_on(zone, [name])
        self.undecided.discard(provider_id(zone, name))
        try:
            operation = self._pending_or_succeeded(request, known) or self._insert(request, zone, name)
            if operation is None:
                return self._existing_instance(request, zone, name)
            operation = self._wait_for(request, zone, name, operation)
            self._raise_failure(request, [operation], reported=set())
        except OutcomeUnknown:
            raise  # it counts still
        except ProviderError as error:
            self._catalog.uncount_launch(request.token, full=isinstance(error, InsufficientCapacity))
            raise
        self._failed.pop(request.token, None)
        self._catalog.confirm_launch(request.token)
        if request.offer.market is Market.ON_DEMAND:
            self._catalog.count_launch(request.token, zone, request.offer.instance_type.name)
        return self._launched_instance(request, zone, name, operation)

    def _pending_or_succeeded(
        self, request: LaunchRequest, known: Sequence[compute.Operation]
    ) -> compute.Operation | None:
        """Return the token's insert that is pending or has succeeded, or None.

        A failure since the last call is raised now, so that a slow stockout leads to the next offer.
        """
        inserts = [each for each in known if each.operation_type == "insert"]
        for each in inserts:
            if not is_done(each) or failure_of(each) is None:
                return each
        self._raise_failure(request, inserts, reported=self._failed.get(request.token, set()))
        return None

    def _raise_failure(
        self, request: LaunchRequest, operations: Sequence[compute.Operation], reported: Set[str]
    ) -> None:
        """Raise the last of these failures that was not reported before."""
        unreported = [each for each in operations if each.name not in reported and failure_of(each) is not None]
        with self._lock:
            if unreported:
                self._failed.setdefault(request.token, set()).update(each.name for each in unreported)
            if len(self._failed) > MAX_FAILED_TOKENS:
                del self._failed[next(iter(self._failed))]
        failure = failure_of(unreported[-1]) if unreported else None
        if failure is not None:
            offer = request.offer
            raise failure.as_error(f"{offer.instance_type.name} in {offer.zone} ({offer.market})")

    def _insert(self, request: LaunchRequest, zone: str, name: str) -> compute.Operation | None:
        """Request the instance. Returns None if an instance of its name exists."""
        if request.expires_at <= self._clock.now():
            raise LaunchRejected(f"{request.instance_id} would expire before it is launched")
        try:
            body = body_of(request, self._settings, self._reservation_name(request, zone))
            failures = len(self._failed.get(request.token, ()))
            return self._api.insert(zone, body, request_id(self._settings.project, request, failures))
        except (LaunchRejected, InsufficientCapacity):
            # A repeated request id with a different body is also rejected, and an instance launched before may have
            # taken the last reserved capacity; the instance exists then.
            if self._api_instance(zone, name) is None:
                raise
            return None

    def _reservation_name(self, request: LaunchRequest, zone: str) -> str | None:
        """Return the reservation that the launch must name, if any; a reserved launch is counted from now on.

        Raises InsufficientCapacity: nothing reserved is left.
        """
        if request.offer.market is not Market.RESERVED:
            return None
        found = self._catalog.count_reserved_launch(request.token, zone, request.offer.instance_type.name)
        return found.name if found is not None and found.must_be_named else None

    def _wait_for(
        self, request: LaunchRequest, zone: str, name: str, operation: compute.Operation
    ) -> compute.Operation:
        """Poll the operation until it is done.

        Raises OutcomeUnknown: it takes longer than ``operation_wait_s``, or cannot be read. The token finds it
        again.
        """
        machine_id, pause_s = provider_id(zone, name), self._settings.operation_poll_s
        give_up_at = self._clock.now() + self._settings.operation_wait_s
        while not is_done(operation):
            self.undecided.add(machine_id)
            if self._clock.now() >= give_up_at:
                raise OutcomeUnknown(f"{operation.name} for {request.instance_id} in {zone} is still running")
            self._api.pause(pause_s)
            pause_s = min(MAX_POLL_S, 1.5 * pause_s)
            try:
                operation = self._api.operation(zone, operation.name)
            except (ProviderUnavailable, Throttled) as error:
                raise OutcomeUnknown(f"{request.instance_id} in {zone} was requested, but: {error}") from error
        self.undecided.discard(machine_id)
        return operation

    def _launched_instance(
        self, request: LaunchRequest, zone: str, name: str, operation: compute.Operation
    ) -> CloudInstance:
        machine = self._api_instance(zone, name)
        if machine is not None:
            return self._to_cloud_instance(request, machine)
        return self._ended_instance(request, zone, name, operation)

    def _existing_instance(self, request: LaunchRequest, zone: str, name: str) -> CloudInstance:
        machine = self._api_instance(zone, name)
        if machine is None:
            raise OutcomeUnknown(f"{name} in {zone} is reported as existing but cannot be read; retry")
        return self._to_cloud_instance(request, machine)

    def _to_cloud_instance(self, request: LaunchRequest, machine: compute.Instance) -> CloudInstance:
        found = to_cloud_instance(machine, self._price_of, self._clock.now())
        if found is None or (found.token, found.owner) != (request.token, request.owner):
            raise LaunchRejected(
                f"{machine.name} in {request.offer.zone} does not belong to HCloud: its labels are missing"
            )
        return _with_price(found, request)

    def _ended_instance(
        self, request: LaunchRequest, zone: str, name: str, operation: compute.Operation
    ) -> CloudInstance:
        """Return the instance that this token launched and that has ended since, according to its operations."""
        now = self._clock.now()
        launched_at = seconds(operation.insert_time) or now
        machine = CloudInstance(
            provider_id=provider_id(zone, name),
            instance_id=request.instance_id,
            token=request.token,
            owner=request.owner,
            state=CloudState.TERMINATED,
            zone=zone,
            launched_at=launched_at,
            price_usd_per_h=self._price_of(zone, request.offer.instance_type.name, request.offer.market),
            expires_at=request.expires_at,
        )
        try:
            end = end_of(self._api.operations_on(zone, [name]))
        except ProviderError as error:
            raise OutcomeUnknown(f"{name} in {zone} has ended at an unknown time: {error}") from error
        return as_ended(_with_price(machine, request), end or EndOperation("ended", now), now)

    def _api_instance(self, zone: str, name: str) -> compute.Instance | None:
        # Something may have been written before, so a failed read is an unknown outcome.
        try:
            return self._api.instance(zone, name)
        except (ProviderUnavailable, Throttled) as error:
            raise OutcomeUnknown(f"{name} in {zone} may exist: {error}") from error


def _with_price(machine: CloudInstance, request: LaunchRequest) -> CloudInstance:
    return machine if machine.price_usd_per_h else replace(machine, price_usd_per_h=request.offer.price_usd_per_h)
