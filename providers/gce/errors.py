"""Maps Compute Engine errors to the errors of ``hcloud.core.errors``, by the reaction they call for.

Sources: the HTTP reasons of the Compute Engine API ("Troubleshooting API errors") and the codes of failed operations. A
stockout is no HTTP error: the insert succeeds and its operation fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import requests
from google.api_core import exceptions as core
from google.auth import exceptions as auth
from google.protobuf.json_format import ParseError
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from hcloud.core.errors import (
    AccountRejected,
    InsufficientCapacity,
    LaunchRejected,
    OutcomeUnknown,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    Throttled,
    error_text,
)

LIBRARY_ERRORS = (core.GoogleAPIError, requests.RequestException, auth.GoogleAuthError, ParseError)
"""Every exception that the client library raises for external causes."""
THROTTLE_REASONS = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "concurrentLimitExceeded"})
QUOTA_REASONS = frozenset({"quotaExceeded", "limitExceeded"})
THROTTLED_RETRY_S = 5.0

OPERATION_ERRORS: Mapping[str, type[ProviderError]] = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": InsufficientCapacity,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": InsufficientCapacity,
    "RESOURCE_POOL_EXHAUSTED": InsufficientCapacity,
    "STOCKOUT": InsufficientCapacity,
    # Seen when a spot instance is preempted during creation, and when a reservation was just used up.
    "UNSUPPORTED_OPERATION": InsufficientCapacity,
    "QUOTA_EXCEEDED": QuotaExceeded,
    "RATE_LIMIT_EXCEEDED": Throttled,
    "RESOURCE_OPERATION_RATE_EXCEEDED": Throttled,
    "INTERNAL_ERROR": ProviderUnavailable,
    "RESOURCE_NOT_READY": ProviderUnavailable,
}
"""Errors by code of a failed operation, which launched nothing. Other codes mean that the request is invalid."""
_RESERVATION_FULL = ("no available resources in specified reservation", "does not have available resources")
"""Words of the messages about a named reservation without free capacity, which come under several codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOperation:
    """The first error of a failed operation."""

    code: str
    message: str

    def as_error(self, what: str) -> ProviderError:
        """Return the error that callers react to."""
        refused = InsufficientCapacity if _reservation_is_full(self.message) else LaunchRejected
        kind = OPERATION_ERRORS.get(self.code, refused)
        return kind(f"{what}: {self.code}: {self.message}")


def is_not_found(error: Exception) -> bool:
    """Return whether the error says that the resource does not exist."""
    return isinstance(error, core.NotFound)


def is_already_exists(error: Exception) -> bool:
    """Return whether the error says that a resource of that name exists."""
    return isinstance(error, core.Conflict)


def read_error(error: Exception, what: str) -> ProviderError:
    """Return the error of a failed read. It never means that the resource does not exist."""
    if isinstance(error, core.GoogleAPICallError) and _throttled(error):
        return Throttled(f"{what}: {_message(error)}", retry_after_s=_retry_after_s(error))
    return ProviderUnavailable(f"{what}: {_message(error)}")


def write_error(error: Exception, what: str) -> ProviderError:
    """Return the error of a failed write: not carried out, or unknown."""
    if not isinstance(error, core.GoogleAPICallError):
        kind = ProviderUnavailable if _never_sent(error) else OutcomeUnknown
        return kind(f"{what}: {_message(error)}")
    code, reason = error.code or 500, _reason(error)
    if _throttled(error):
        return Throttled(f"{what}: {_message(error)}", retry_after_s=_retry_after_s(error))
    if code == 401:
        return ProviderUnavailable(f"{what}: {_message(error)}")
    if code == 403 and reason in QUOTA_REASONS:
        return QuotaExceeded(f"{what}: {_message(error)}")
    if code == 403 or (400 <= code < 500 and "serviceaccount" in str(error.message).lower().replace(" ", "")):
        return AccountRejected(f"{what}: {_message(error)}")  # a permission, a service account, billing
    if 400 <= code < 500 and _reservation_is_full(str(error.message)):
        return InsufficientCapacity(f"{what}: {_message(error)}")
    if 400 <= code < 500 and code != 408:
        return LaunchRejected(f"{what}: {_message(error)}")
    return OutcomeUnknown(f"{what}: {_message(error)}")


def _reservation_is_full(message: str) -> bool:
    return any(words in message.lower() for words in _RESERVATION_FULL)


def _throttled(error: core.GoogleAPICallError) -> bool:
    return error.code == 429 or (error.code == 403 and _reason(error) in THROTTLE_REASONS)


def _reason(error: core.GoogleAPICallError) -> str:
    first = next(iter(error.errors or ()), None)
    return str(first.get("reason", "")) if isinstance(first, Mapping) else ""


def _retry_after_s(error: core.GoogleAPICallError) -> float:
    headers = getattr(error.response, "headers", None) or {}
    text = str(headers.get("Retry-After", ""))
    return float(text) if text.isdecimal() and text != "0" else THROTTLED_RETRY_S


def _never_sent(error: Exception) -> bool:
    """Return whether the request certainly never reached the server: no connection, or no credentials."""
    if isinstance(error, auth.GoogleAuthError):
        return True
    return any(isinstance(each, NewConnectionError | ConnectTimeoutError) for each in _nested_errors(error, 5))


def _nested_errors(error: BaseException, depth: int) -> Iterator[BaseException]:
    """Yield an error and those inside: requests and urllib3 wrap errors in arguments and ``reason``."""
    yield error
    if depth:
        parts = [*error.args, getattr(error, "reason", None), error.__cause__]
        for part in parts:
            if isinstance(part, BaseException):
                yield from _nested_errors(part, depth - 1)


def _message(error: Exception) -> str:
    if isinstance(error, core.GoogleAPICallError):
        return f"HTTP {error.code} {_reason(error)}: {error.message}".replace(" :", ":")
    return error_text(error, with_type=True)
