"""Calls of the Compute Engine API: each one a request to the configured endpoint, with a time limit of its own.

The client library is imported with the first call (1.5 s, 150 MB). None of its own waiting is used: its retries go on
for ten minutes whatever the time limit says, and its waiting for operations asks the public host whatever endpoint was
configured. So calls are the plain ones (``insert_unary``), never retried by the library; only reads are repeated here.
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
    """What an aggregated list gave: things by zone or region, and which of those did not answer."""

    items: tuple[tuple[str, Any], ...]
    unanswered: tuple[str, ...]


class Api:
    """One project as seen with one set of credentials. Safe to use from several threads."""

    def __init__(self, settings: GceSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._clients: dict[type[Any], Any] = {}
        self._credentials: Any = None
        self._lock = threading.Lock()

    # ----------------------------------------------------------------------------------------------------------- writes
    def insert(self, zone: str, body: compute.Instance, request_id: str) -> compute.Operation | None:
        """Ask for a machine; return its operation, or None where one of this name exists already.

        Raises QuotaExceeded, LaunchRejected, Throttled, ProviderUnavailable: not carried out; OutcomeUnknown.
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
        """Ask to end a machine; one that does not exist is no error.

        There is no request id: with one, a deletion that failed could never be repeated.
        """
        request = compute.DeleteInstanceRequest(project=self._settings.project, zone=zone, instance=name)
        client = self._client(compute.InstancesClient)
        try:
            client.delete_unary(request=request, retry=None, timeout=self._settings.timeout_s)
        except LIBRARY_ERRORS as cause:
            if is_not_found(cause):
                return
            error = write_error(cause, f"deleting {name} in {zone}")
            # Nothing of a deletion can be wrong in itself: what forbids it is outside and may be mended.
            raise ProviderUnavailable(str(error)) if isinstance(error, LaunchRejected) else error from cause

    # ------------------------------------------------------------------------------------------------------------ reads
    def instance(self, zone: str, name: str) -> compute.Instance | None:
        """Return a machine, or None where the API says that there is none of that name."""
        request = compute.GetInstanceRequest(project=self._settings.project, zone=zone, instance=name)
        found: compute.Instance | None = self._read_one(compute.InstancesClient, request, f"reading {name} in {zone}")
        return found

    def operation(self, zone: str, name: str) -> compute.Operation:
        """Return an operation as it stands."""
        request = compute.GetZoneOperationRequest(project=self._settings.project, zone=zone, operation=name)
        found: compute.Operation = self._read(compute.ZoneOperationsClient, "get", request, f"reading {name} in {zone}")
        return found

    def operations_on(self, zone: str, names: Sequence[str]) -> list[compute.Operation]:
        """Return the operations known of machines by name, oldest first (kept for about two weeks).

        The filter is a regular expression, because links carry one of several host names.
        """
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
        """List all machines with a label, in every zone of the project."""
        request = compute.AggregatedListInstancesRequest(
            project=self._settings.project, filter=f'labels.{owner_label} = "{owner}"', max_results=PAGE
        )
        return self._aggregated(compute.InstancesClient, request, "instances")

    def running(self) -> AggregatedList:
        """List all machines of the project that run, whoever made them."""
        request = compute.AggregatedListInstancesRequest(
            project=self._settings.project, filter='status = "RUNNING"', max_results=PAGE
        )
        return self._aggregated(compute.InstancesClient, request, "instances")

    def reservations(self) -> AggregatedList:
        """List all reservations."""
        request = compute.AggregatedListReservationsRequest(project=self._settings.project, max_results=PAGE)
        return self._aggregated(compute.ReservationsClient, request, "reservations")

    def commitments(self) -> AggregatedList:
        """List all commitments."""
        request = compute.AggregatedListRegionCommitmentsRequest(project=self._settings.project, max_results=PAGE)
        return self._aggregated(compute.RegionCommitmentsClient, request, "commitments")

    def machine_types(self, zone: str) -> list[compute.MachineType]:
        """Return the predefined machine types of a zone."""
        request = compute.ListMachineTypesRequest(project=self._settings.project, zone=zone, max_results=PAGE)
        pages = self._pages(compute.MachineTypesClient, "list", request, f"listing machine types in {zone}")
        return [each for page in pages for each in page.items]

    def machine_type(self, zone: str, name: str) -> compute.MachineType | None:
        """Return one machine type, also a custom one, or None where the zone has none of that name."""
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

    # --------------------------------------------------------------------------------------------------- how it is done
    def _client(self, kind: type[Any]) -> Any:
        with self._lock:
            found = self._clients.get(kind)
            if found is None:
                try:
                    if self._credentials is None:
                        self._credentials = load_credentials(self._settings.credentials)
                    found = kind(credentials=self._credentials, client_options=self._options(), transport="rest")
                except (*LIBRARY_ERRORS, OSError, ValueError) as cause:
                    raise ProviderUnavailable(f"no credentials for Google Cloud: {cause}") from cause
                if kind is compute.InstancesClient:
                    found.transport._session.hooks["response"].append(drop_unread_fields)
                self._clients[kind] = found
            return found

    def _options(self) -> ClientOptions:
        return ClientOptions(api_endpoint=self._settings.endpoint)

    def _read_one(self, kind: type[Any], request: Any, what: str) -> Any:
        return self._with_retries(lambda: self._once(kind, "get", request), what, none_if_not_found=True)

    def _read(self, kind: type[Any], method: str, request: Any, what: str) -> Any:
        return self._with_retries(lambda: self._once(kind, method, request), what)

    def _once(self, kind: type[Any], method: str, request: Any) -> Any:
        return getattr(self._client(kind), method)(request=request, retry=None, timeout=self._settings.timeout_s)

    def _with_retries(self, call: Callable[[], Any], what: str, *, none_if_not_found: bool = False) -> Any:
        """Make a read, again after a pause where that may help, at most ``read_tries`` times."""
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
        raise AssertionError("unreachable: the last try returns or raises")

    def pause(self, seconds: float) -> None:
        """Let time pass by the clock that was handed in."""
        self._clock.wait(threading.Event(), seconds)

    def _pages(self, kind: type[Any], method: str, request: Any, what: str) -> Iterator[Any]:
        """Yield every page of a list; each is a read of its own."""
        while True:
            pager = self._read(kind, method, request, what)
            page = next(iter(pager.pages))
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def _aggregated(self, kind: type[Any], request: Any, field: str) -> AggregatedList:
        """Gather an aggregated list; HTTP 200 may hide scopes that did not answer."""
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
    """Return how a finished operation failed, or None where it did not."""
    for error in operation.error.errors:
        return FailedOperation(code=error.code, message=error.message)
    if operation.http_error_status_code >= 400:
        return FailedOperation(code="INTERNAL_ERROR", message=operation.http_error_message)
    return None


def is_done(operation: compute.Operation) -> bool:
    """Whether an operation has come to its end."""
    return operation.status == compute.Operation.Status.DONE


def _is_transient(cause: Exception) -> bool:
    """Whether a read that failed so may succeed a moment later."""
    code = getattr(cause, "code", None)
    return not isinstance(code, int) or code == 429 or code >= 500 or isinstance(read_error(cause, ""), Throttled)


def _scope(path: str) -> str:
    """Return the zone or region of ``zones/us-central1-a``."""
    return path.rpartition("/")[2]
