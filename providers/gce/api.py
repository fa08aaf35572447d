"""Calls of the Compute Engine API. Each is one request to the configured endpoint, with its own timeout.

The client library is imported with the first call (1.5 s, 150 MB). Its own retries and operation polling are not used:
the retries go on for ten minutes whatever the timeout says, and polling contacts the public host whatever endpoint is
configured. So calls use ``insert_unary`` and the like, without library retries; only reads are retried here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.api_core.client_options import ClientOptions
from google.cloud import compute_v1 as compute

from hcloud.core.clock import Clock
from hcloud.core.errors import LaunchRejected, ProviderUnavailable, Throttled
from hcloud.core.paging import pages_of
from providers.gce.credentials import load_credentials
from providers.gce.errors import (
    LIBRARY_ERRORS,
    FailedOperation,
    is_already_exists,
    is_not_found,
    read_error,
    write_error,
)
from providers.gce.settings import GceSettings
from providers.gce.trimmed_listings import drop_unread_fields

PAGE = 500
FIRST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatedList:
    """Items of an aggregated list, and the scopes missing from it."""

    items: tuple[tuple[str, Any], ...]
    """Pairs of zone or region and item."""
    unanswered: tuple[str, ...]
    """Zones or regions that did not answer."""


class Api:
    """One project with one set of credentials. Thread-safe."""

    def __init__(self, settings: GceSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._clients: dict[type[Any], Any] = {}
        self._credentials: Any = None
        self._lock = threading.Lock()

    # ----------------------------------------------------------------------------------------------------------- writes
    def insert(self, zone: str, body: compute.Instance, request_id: str) -> compute.Operation | None:
        """Request an instance. Returns its operation, or None if an instance of this name exists.

        Raises QuotaExceeded, LaunchRejected, Throttled, ProviderUnavailable: nothing was created;
        OutcomeUnknown.
        """
        request = compute.InsertInstanceRequest(
            project=self._settings.project, zone=zone, instance_resource=body, request_id=request_id
        )
        client = self._client(compute.InstancesClient)
        try:
            operation: compute.Operation = client.insert_unary(
                request=request, retry=None, timeout=self._settings.timeout_s
            )
            return operation
        except LIBRARY_ERRORS as cause:
            if is_already_exists(cause):
                return None
            raise write_error(cause, f"inserting {body.name} in {zone}") from cause

    def delete(self, zone: str, name: str) -> None:
        """Request the deletion of an instance. One that does not exist is no error."""
        # No request id: with one, a deletion that failed could never be repeated.
        request = compute.DeleteInstanceRequest(project=self._settings.project, zone=zone, instance=name)
        client = self._client(compute.InstancesClient)
        try:
            client.delete_unary(request=request, retry=None, timeout=self._settings.timeout_s)
        except LIBRARY_ERRORS as cause:
            if is_not_found(cause):
                return
            error = write_error(cause, f"deleting {name} in {zone}")
            # A deletion has no invalid arguments: whatever forbids it may be fixed, so it is worth a retry.
            raise ProviderUnavailable(str(error)) if isinstance(error, LaunchRejected) else error from cause

    # ------------------------------------------------------------------------------------------------------------ reads
    def instance(self, zone: str, name: str) -> compute.Instance | None:
        """Return an instance, or None if the API reports that it does not exist."""
        request = compute.GetInstanceRequest(project=self._settings.project, zone=zone, instance=name)
        found: compute.Instance | None = self._read_one(compute.InstancesClient, request, f"reading {name} in {zone}")
        return found

    def operation(self, zone: str, name: str) -> compute.Operation:
        """Return the current state of an operation."""
        request = compute.GetZoneOperationRequest(project=self._settings.project, zone=zone, operation=name)
        found: compute.Operation = self._read(compute.ZoneOperationsClient, "get", request, f"reading {name} in {zone}")
        return found

    def operations_on(self, zone: str, names: Sequence[str]) -> list[compute.Operation]:
        """Return the known operations on instances, oldest first. Compute Engine keeps them for about two weeks."""
        # A regular expression, because links may carry one of several host names.
        pattern = "|".join(names) if len(names) == 1 else f"({'|'.join(names)})"
        request = compute.ListZoneOperationsRequest(
            project=self._settings.project,
            zone=zone,
            filter=f'targetLink eq ".*/zones/{zone}/instances/{pattern}"',
            max_results=PAGE,
        )
        what = f"listing operations in {zone}"
        pages = self._pages(compute.ZoneOperationsClient, "list", request, what)
        return sorted((each for page in pages for each in page.items), key=lambda each: each.insert_time)

    def instances(self, owner_label: str, owner: str) -> AggregatedList:
        """List all instances with an owner label, in every zone of the project."""
        request = compute.AggregatedListInstancesRequest(
            project=self._settings.project, filter=f'labels.{owner_label} = "{owner}"', max_results=PAGE
        )
        return self._aggregated(compute.InstancesClient, request, "instances")

    def running(self) -> AggregatedList:
        """List all running instances of the project, HCloud's and others."""
        request = compute.AggregatedListInstancesRequest(
            project=self._settings.project, filter='status = "RUNNING"', max_results=PAGE
        )
        return self._aggregated(compute.InstancesClient, request, "instances")

    def reservations(self) -> AggregatedList:
        """List all reservations of the project."""
        request = compute.AggregatedListReservationsRequest(project=self._settings.project, max_results=PAGE)
        return self._aggregated(compute.ReservationsClient, request, "reservations")

    def commitments(self) -> AggregatedList:
        """List all commitments of the project."""
        request = compute.AggregatedListRegionCommitmentsRequest(project=self._settings.project, max_results=PAGE)
        return self._aggregated(compute.RegionCommitmentsClient, request, "commitments")

    def routers(self) -> AggregatedList:
        """List the Cloud Routers of the project, with their NATs, by region."""
        request = compute.AggregatedListRoutersRequest(project=self._settings.project, max_results=PAGE)
        return self._aggregated(compute.RoutersClient, request, "routers")

    def firewall_rules(self) -> list[compute.Firewall]:
        """Return the firewall rules of the project's networks."""
        request = compute.ListFirewallsRequest(project=self._settings.project, max_results=PAGE)
        pages = self._pages(compute.FirewallsClient, "list", request, "listing firewall rules")
        return [each for page in pages for each in page.items]

    def machine_types(self, zone: str) -> list[compute.MachineType]:
        """Return the predefined machine types of a zone."""
        request = compute.ListMachineTypesRequest(project=self._settings.project, zone=zone, max_results=PAGE)
        pages = self._pages(compute.MachineTypesClient, "list", request, f"listing machine types in {zone}")
        return [each for page in pages for each in page.items]

    def machine_type(self, zone: str, name: str) -> compute.MachineType | None:
        """Return one machine type, which may be a custom one, or None if the zone does not have it."""
        request = compute.GetMachineTypeRequest(project=self._settings.project, zone=zone, machine_type=name)
        found: compute.MachineType | None = self._read_one(
            compute.MachineTypesClient, request, f"reading machine type {name} in {zone}"
        )
        return found

    def region(self, name: str) -> compute.Region:
        """Return a region with its quotas."""
        request = compute.GetRegionRequest(project=self._settings.project, region=name)
        found: compute.Region = self._read(compute.RegionsClient, "get", request, f"reading region {name}")
        return found

    # --------------------------------------------------------------------------------------------------------- requests
    def _client(self, kind: type[Any]) -> Any:
        with self._lock:
            found = self._clients.get(kind)
            if found is None:
                try:
                    if self._credentials is None:
                        self._credentials = load_credentials(self._settings.credentials)
                    options = ClientOptions(api_endpoint=self._settings.endpoint)
                    found = kind(credentials=self._credentials, client_options=options, transport="rest")
                except (*LIBRARY_ERRORS, OSError, ValueError) as cause:
                    raise ProviderUnavailable(f"no credentials for Google Cloud: {cause}") from cause
                if kind is compute.InstancesClient:
                    found.transport._session.hooks["response"].append(drop_unread_fields)
                self._clients[kind] = found
            return found

    def _read_one(self, kind: type[Any], request: Any, what: str) -> Any:
        return self._with_retries(lambda: self._once(kind, "get", request), what, none_if_not_found=True)

    def _read(self, kind: type[Any], method: str, request: Any, what: str) -> Any:
        return self._with_retries(lambda: self._once(kind, method, request), what)

    def _once(self, kind: type[Any], method: str, request: Any) -> Any:
        return getattr(self._client(kind), method)(request=request, retry=None, timeout=self._settings.timeout_s)

    def _with_retries(self, call: Callable[[], Any], what: str, *, none_if_not_found: bool = False) -> Any:
        """Make a read, with retries of transient errors: at most ``read_tries`` attempts."""
        pause_s = FIRST_PAUSE_S
        for left in reversed(range(self._settings.read_tries)):
            try:
                return call()
            except LIBRARY_ERRORS as cause:
                if none_if_not_found and is_not_found(cause):
                    return None
                error = read_error(cause, what)
                if not left or not _is_transient(cause):
                    raise error from cause
            self.pause(error.retry_after_s if isinstance(error, Throttled) else pause_s)
            pause_s *= 2
        raise AssertionError("unreachable: the last attempt returns or raises")

    def pause(self, seconds: float) -> None:
        """Sleep on the injected clock."""
        self._clock.wait(threading.Event(), seconds)

    def _pages(self, kind: type[Any], method: str, request: Any, what: str) -> Iterator[Any]:
        """Yield every page of a list; each is a read of its own."""

        def read(token: str) -> tuple[Any, str]:
            if token:
                request.page_token = token
            page = next(iter(self._read(kind, method, request, what).pages))
            return page, page.next_page_token

        return pages_of(read, what)

    def _aggregated(self, kind: type[Any], request: Any, field: str) -> AggregatedList:
        """Collect all pages of an aggregated list. A response with status 200 may still lack scopes."""
        items: list[tuple[str, Any]] = []
        unanswered: set[str] = set()
        for page in self._pages(kind, "aggregated_list", request, f"listing {field}"):
            unanswered.update(_scope(each) for each in page.unreachables)
            if page.warning.code and page.warning.code != "NO_RESULTS_ON_PAGE":
                unanswered.add(f"all ({page.warning.code})")
            for scope, content in page.items.items():
                items += [(_scope(scope), each) for each in getattr(content, field)]
                if content.warning.code and content.warning.code != "NO_RESULTS_ON_PAGE":
                    unanswered.add(_scope(scope))
        return AggregatedList(items=tuple(items), unanswered=tuple(sorted(unanswered)))


def failure_of(operation: compute.Operation) -> FailedOperation | None:
    """Return how a finished operation failed, or None if it succeeded."""
    for error in operation.error.errors:
        return FailedOperation(code=error.code, message=error.message)
    if operation.http_error_status_code >= 400:
        return FailedOperation(code="INTERNAL_ERROR", message=operation.http_error_message)
    return None


def is_done(operation: compute.Operation) -> bool:
    """Return whether an operation has finished."""
    return operation.status == compute.Operation.Status.DONE


def _is_transient(cause: Exception) -> bool:
    """Return whether the failed read may succeed on a retry."""
    code = getattr(cause, "code", None)
    return not isinstance(code, int) or code == 429 or code >= 500 or isinstance(read_error(cause, ""), Throttled)


def _scope(path: str) -> str:
    """Return the zone or region of ``zones/us-central1-a``."""
    return path.rpartition("/")[2]
