"""What Compute Engine says no with, and which error of HCloud's each is: tables, read by reaction.

Sources: the HTTP reasons of the Compute Engine API ("Troubleshooting API errors"), and the codes that operations end
with. A stockout is no HTTP error at all: the insert succeeds and its operation fails.
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
    InsufficientCapacity,
    LaunchRejected,
    OutcomeUnknown,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    Throttled,
)

TROUBLES = (core.GoogleAPIError, requests.RequestException, auth.GoogleAuthError, ParseError)
"""All that a call of the client library raises for what lies beyond this program."""
THROTTLE_REASONS = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "concurrentLimitExceeded"})
QUOTA_REASONS = frozenset({"quotaExceeded", "limitExceeded"})
THROTTLED_RETRY_S = 5.0

OPERATION_ERRORS: Mapping[str, type[ProviderError]] = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": InsufficientCapacity,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": InsufficientCapacity,
    "RESOURCE_POOL_EXHAUSTED": InsufficientCapacity,
    "STOCKOUT": InsufficientCapacity,
    # Seen when a spot machine is taken back while it is being made, and when a reservation has just been used up.
    "UNSUPPORTED_OPERATION": InsufficientCapacity,
    "QUOTA_EXCEEDED": QuotaExceeded,
    "RATE_LIMIT_EXCEEDED": Throttled,
    "RESOURCE_OPERATION_RATE_EXCEEDED": Throttled,
    "INTERNAL_ERROR": ProviderUnavailable,
    "RESOURCE_NOT_READY": ProviderUnavailable,
}
"""Codes of operations that failed, so that certainly nothing was launched; all others: the request itself is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOperation:
    """How an operation failed: the first error's code and message."""

    code: str
    message: str

    def as_error(self, what: str) -> ProviderError:
        """Return the error a caller should react to."""
        kind = OPERATION_ERRORS.get(self.code, LaunchRejected)
        return kind(f"{what}: {self.code}: {self.message}")


def is_missing(trouble: Exception) -> bool:
    """Whether it says that the thing does not exist."""
    return isinstance(trouble, core.NotFound)


def is_conflict(trouble: Exception) -> bool:
    """Whether it says that a thing of that name exists already."""
    return isinstance(trouble, core.Conflict)


def of_read(trouble: Exception, what: str) -> ProviderError:
    """Return what a failed read is: it never means that nothing is there."""
    if isinstance(trouble, core.GoogleAPICallError) and _throttled(trouble):
        return Throttled(f"{what}: {_said(trouble)}", retry_after_s=_retry_after_s(trouble))
    return ProviderUnavailable(f"{what}: {_said(trouble)}")


def of_write(trouble: Exception, what: str) -> ProviderError:
    """Return what a failed write is: carried out for certain, certainly not, or unknown."""
    if not isinstance(trouble, core.GoogleAPICallError):
        kind = ProviderUnavailable if _never_sent(trouble) else OutcomeUnknown
        return kind(f"{what}: {_said(trouble)}")
    code, reason = trouble.code or 500, _reason(trouble)
    if _throttled(trouble):
        return Throttled(f"{what}: {_said(trouble)}", retry_after_s=_retry_after_s(trouble))
    if code == 401:
        return ProviderUnavailable(f"{what}: {_said(trouble)}")
    if code == 403 and reason in QUOTA_REASONS:
        return QuotaExceeded(f"{what}: {_said(trouble)}")
    if 400 <= code < 500 and code != 408:
        return LaunchRejected(f"{what}: {_said(trouble)}")
    return OutcomeUnknown(f"{what}: {_said(trouble)}")


def _throttled(trouble: core.GoogleAPICallError) -> bool:
    return trouble.code == 429 or (trouble.code == 403 and _reason(trouble) in THROTTLE_REASONS)


def _reason(trouble: core.GoogleAPICallError) -> str:
    first = next(iter(trouble.errors or ()), None)
    return str(first.get("reason", "")) if isinstance(first, Mapping) else ""


def _retry_after_s(trouble: core.GoogleAPICallError) -> float:
    headers = getattr(trouble.response, "headers", None) or {}
    text = str(headers.get("Retry-After", ""))
    return float(text) if text.isdecimal() and text != "0" else THROTTLED_RETRY_S


def _never_sent(trouble: Exception) -> bool:
    """Whether no byte of the request can have reached the other side: there was no connection, or no credentials."""
    if isinstance(trouble, auth.GoogleAuthError):
        return True
    return any(isinstance(each, NewConnectionError | ConnectTimeoutError) for each in _inside(trouble, 5))


def _inside(trouble: BaseException, depth: int) -> Iterator[BaseException]:
    """The errors an error is made of: requests and urllib3 wrap each other in arguments and ``reason``."""
    yield trouble
    if depth:
        parts = [*trouble.args, getattr(trouble, "reason", None), trouble.__cause__]
        for part in parts:
            if isinstance(part, BaseException):
                yield from _inside(part, depth - 1)


def _said(trouble: Exception) -> str:
    if isinstance(trouble, core.GoogleAPICallError):
        return f"HTTP {trouble.code} {_reason(trouble)}: {trouble.message}".replace(" :", ":")
    return f"{type(trouble).__name__}: {trouble}" if str(trouble) else type(trouble).__name__
