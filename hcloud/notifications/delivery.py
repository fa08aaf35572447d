"""Send one message over HTTP, signed as Standard Webhooks are (https://www.standardwebhooks.com).

The address comes from the operator's configuration, never from a job: it may be internal, and is not checked further.
Redirects are not followed, so only the operator chooses where messages go.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import urllib.request
from dataclasses import dataclass, field
from urllib.error import HTTPError, URLError

from hcloud.core.web_opener import web_opener
from hcloud.notifications.messages import Message, slack_body, webhook_body

TIMEOUT_S = 10.0
_ANSWER_BYTES = 4096
_BINARY_KEY = "whsec_"


class DeliveryError(Exception):
    """A message was not taken; the text says why, and quotes neither address nor key."""


def signature(key: str, message_id: str, at_s: int, body: bytes) -> str:
    """Return the header ``webhook-signature``: HMAC-SHA256 of id, time and body.

    ``key``: any text, or ``whsec_`` and the key in base64.
    """
    secret = key.encode()
    if key.startswith(_BINARY_KEY):
        try:
            secret = base64.b64decode(key.removeprefix(_BINARY_KEY), validate=True)
        except binascii.Error:
            raise DeliveryError("the key begins with whsec_, but what follows is not base64") from None
    signed = hmac.new(secret, b".".join((message_id.encode(), str(at_s).encode(), body)), hashlib.sha256)
    return f"v1,{base64.b64encode(signed.digest()).decode()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """One address."""

    url: str = field(repr=False)
    """Those of Slack are secrets themselves."""
    is_slack: bool = False
    key: str = field(default="", repr=False)
    """Key of the signature; empty: none is sent."""

    def send(self, message: Message, now: float) -> None:
        """Send a message once. Raises DeliveryError."""
        body, at_s = slack_body(message) if self.is_slack else webhook_body(message), int(now)
        headers = {"Content-Type": "application/json", "User-Agent": "hcloud"}
        if not self.is_slack:
            headers |= {"webhook-id": message.id, "webhook-timestamp": str(at_s)}
        if self.key:
            headers["webhook-signature"] = signature(self.key, message.id, at_s, body)
        request = urllib.request.Request(self.url, data=body, headers=headers, method="POST")
        try:
            with web_opener(self.url).open(request, timeout=TIMEOUT_S) as answer:
                answer.read(_ANSWER_BYTES)
        except HTTPError as refusal:
            with refusal:
                raise DeliveryError(f"HTTP {refusal.code}") from None
        except URLError as failure:
            raise DeliveryError(f"no answer: {failure.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as failure:
            raise DeliveryError(f"no answer: {type(failure).__name__}") from None
