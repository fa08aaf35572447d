"""Send one message over HTTP, signed as Standard Webhooks are (https://www.standardwebhooks.com).

The address comes from the operator's configuration, never from a job: it may be internal, and is not checked further.
Redirects are not followed, so that nobody but the operator chooses where messages go.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import ssl
import urllib.request
from dataclasses import dataclass, field
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from hcloud.notifications.messages import Message, slack_body, webhook_body

TIMEOUT_S = 10.0
_ANSWER_BYTES = 4096
_BINARY_KEY = "whsec_"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


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
            with _opener(self.url).open(request, timeout=TIMEOUT_S) as answer:
                answer.read(_ANSWER_BYTES)
        except HTTPError as refusal:
            with refusal:
                raise DeliveryError(f"HTTP {refusal.code}") from None
        except URLError as failure:
            raise DeliveryError(f"no answer: {failure.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as failure:
            raise DeliveryError(f"no answer: {type(failure).__name__}") from None


def _opener(url: str) -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()  # has no handler of redirects, files or FTP
    # The environment's proxy must not be used for this machine itself.
    direct = urlsplit(url).hostname in _LOOPBACK
    for handler in (
        urllib.request.ProxyHandler({} if direct else None),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener
