"""Maps AWS errors to the errors of ``hcloud.core.errors``, by the reaction they call for.

The tables hold EC2's documented error codes. An unlisted code counts as a rejected request if its HTTP status is 4xx.
With 5xx, or without a response, the outcome of a write is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    SSLError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

from hcloud.core.errors import (
    AccountRejected,
    InsufficientCapacity,
    LaunchRejected,
    OutcomeUnknown,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    Throttled,
)

RETRY_AFTER_S = 2.0


class Call(StrEnum):
    """Whether a call reads or writes; the same error then means different things."""

    READ = "read"
    WRITE = "write"


THROTTLED = frozenset(
    {
        "RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled",
        "RequestThrottledException", "EC2ThrottledException", "TooManyRequestsException", "SlowDown",
        "PriorRequestNotComplete", "BandwidthLimitExceeded", "TransactionInProgressException",
    }
)  # fmt: skip
OUT_OF_CAPACITY = frozenset(
    {
        "InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity", "InsufficientCapacityOnHost", "InsufficientVolumeCapacity",
        "InsufficientFreeAddressesInSubnet", "InsufficientAddressCapacity", "UnfulfillableCapacity",
        "ReservationCapacityExceeded", "SpotMaxPriceTooLow", "InstanceCapacityExceeded",
    }
)  # fmt: skip
OVER_QUOTA = frozenset(
    {
        "VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "SpotInstanceCountExceeded",
        "VolumeLimitExceeded", "MaxIOPSLimitExceeded", "AddressLimitExceeded", "NetworkInterfaceLimitExceeded",
        "PrivateIpAddressLimitExceeded", "PendingVerification", "MaxScheduledInstanceCapacityExceeded",
    }
)  # fmt: skip
# Nothing was done and the request is fine: credentials or the clock must be fixed, then a retry works.
NOT_AUTHENTICATED = frozenset(
    {
        "AuthFailure", "InvalidClientTokenId", "ExpiredToken", "ExpiredTokenException", "RequestExpired",
        "SignatureDoesNotMatch", "UnrecognizedClientException", "IncompleteSignature", "MissingAuthenticationToken",
        "Blocked", "OptInRequired", "InvalidAccessKeyId",
    }
)  # fmt: skip
NOT_ALLOWED = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "UnauthorizedException"})
# The same for every type and zone: what the account or the provider's settings name is not there, or not allowed.
OF_THE_ACCOUNT = NOT_ALLOWED | {
    "TagLimitExceeded", "TagPolicyViolation", "InvalidTagKey.Malformed", "InvalidKeyPair.NotFound",
    "InvalidIamInstanceProfile", "InvalidIamInstanceProfileArn.Malformed", "InvalidIamInstanceProfile.NotFound",
    "InvalidKMSKey.InvalidState", "KMSKeyNotFound", "InvalidUserData.Malformed",
}  # fmt: skip
_NAMES_PROFILE = re.compile(r"iam ?instance ?profile", re.IGNORECASE)
"""In messages of InvalidParameterValue."""
TOKEN_REUSED = "IdempotentParameterMismatch"
TOKEN_ENDED = "IdempotentInstanceTerminated"
NO_SUCH_INSTANCE = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed", "InvalidInstanceId"})
# Certainly not sent: there was no connection, or nothing to sign with.
_NOT_SENT = (
    EndpointConnectionError,
    ConnectTimeoutError,
    ProxyConnectionError,
    SSLError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)


LIBRARY_ERRORS = (ClientError, BotoCoreError, ResponseParserError)
"""What the library raises; the last one, for an answer that is none of Amazon's, has no base in common with others."""


def error_code(error: Exception) -> str:
    """Return AWS's error code, or "" if there is none."""
    response: Mapping[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def to_provider_error(error: Exception, call: Call, what: str) -> ProviderError:
    """Return the ProviderError for one of LIBRARY_ERRORS. ``what`` names provider and call, e.g.

    ``"ec2: listing instances"``.
    """
    if isinstance(error, ClientError):
        return _from_response(error, call, what)
    if call is Call.READ or isinstance(error, _NOT_SENT):
        return ProviderUnavailable(f"{what}: {_one_line(error)}")
    return OutcomeUnknown(f"{what}: {_one_line(error)}")


def _from_response(error: ClientError, call: Call, what: str) -> ProviderError:
    code = error_code(error)
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
    text = f"{what}: {code}: {_message(error)}"
    if code in THROTTLED or status == 429:
        return Throttled(text, retry_after_s=RETRY_AFTER_S)
    if code in NOT_AUTHENTICATED:
        return ProviderUnavailable(text)
    if call is Call.READ:
        return ProviderUnavailable(text)
    if code in OUT_OF_CAPACITY:
        return InsufficientCapacity(text)
    if code in OVER_QUOTA:
        return QuotaExceeded(text)
    # 5xx, or a status that does not fit the body (a proxy's error page).
    if status >= 500 or status < 400:
        return OutcomeUnknown(text)
    if code in OF_THE_ACCOUNT or (code == "InvalidParameterValue" and _NAMES_PROFILE.search(text)):
        return AccountRejected(text)
    return LaunchRejected(text)


def _message(error: ClientError) -> str:
    message = str(error.response.get("Error", {}).get("Message", ""))
    # The encoded policy decision is of no use to readers.
    return message.split(" Encoded authorization failure message:")[0][:500]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


@contextmanager
def translating_errors(call: Call, what: str) -> Iterator[None]:
    """Raise library errors of the block as ProviderErrors."""
    try:
        yield
    except LIBRARY_ERRORS as error:
        raise to_provider_error(error, call, what) from error
