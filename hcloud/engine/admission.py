"""Which machines may connect to the gateway, and the certificates they get.

A new machine proves with its launch's secret that it is that launch, once, from an address that its provider names; it
gets a certificate of its own. With that it connects, and renews it, until its instance is over.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import TextIO

from hcloud.engine.tls import Authority, MachineIdentity, request_key

FIELD_BYTES_MAX = 8192
LINES_KEPT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMachine:
    """An instance that the leading daemon has launched and not yet ended."""

    instance_id: str
    launch_token: str
    secret_sha256: bytes
    """Of its enrolment secret."""
    has_registered: bool
    """Whether its agent was ever connected: then its secret is used up."""
    addresses: tuple[str, ...] | None
    """At which its provider has it; None: not known yet; empty: the provider names none, so any will do."""


class NotAdmitted(Exception):
    """A machine gets no certificate, or no connection; the message says why.

    ``again``: it may be different soon, since the daemon does not know enough yet.
    """

    def __init__(self, why: str, *, again: bool = False) -> None:
        super().__init__(why)
        self.again = again


class RefusalLog:
    """Writes why something was refused, once for repeated tries."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._written: set[str] = set()

    def write(self, line: str) -> None:
        """Write a line unless it is among the last ones."""
        if len(self._written) >= LINES_KEPT:
            self._written.clear()
        if line not in self._written:
            self._written.add(line)
            print(f"hcloud gateway: {line}", file=self._out)


class Admission:
    """Decides by the latest list of a leading daemon; without one, machines with certificates are believed."""

    def __init__(self, authority: Authority, now_s: Callable[[], float], translated: Iterable[str] = ()) -> None:
        """``now_s`` returns Unix seconds. ``translated``: addresses and networks behind which any machine may be."""
        self._authority, self._now_s = authority, now_s
        self._translated = tuple(ip_network(each, strict=False) for each in translated)
        self._listed: dict[str, ListedMachine] | None = None
        self._enrolled: dict[str, bytes] = {}
        """By instance whose registration is not on the list yet, the key it enrolled with."""

    def list(self, machines: Iterable[ListedMachine]) -> None:
        """Replace the list."""
        self._listed = {each.instance_id: each for each in machines}
        self._enrolled = {name: key for name, key in self._enrolled.items() if name in self._listed}

    def identity(self, certificate_pem: bytes) -> MachineIdentity:
        """Return whose certificate this is, if that machine may be connected. Raises NotAdmitted."""
        try:
            identity = self._authority.identity(certificate_pem)
        except ValueError as error:
            raise NotAdmitted(str(error)) from error
        if (why := self.why_not(identity)) is not None:
            raise NotAdmitted(why)
        return identity

    def why_not(self, identity: MachineIdentity) -> str | None:
        """Return why that machine may not be connected any more, if so."""
        if identity.expires_at <= self._now_s():
            return f"the certificate of {identity.instance_id} has expired"
        return self._why_unlisted(identity) if self._listed is not None else None

    def _why_unlisted(self, identity: MachineIdentity) -> str | None:
        listed = self._listed.get(identity.instance_id) if self._listed is not None else None
        if listed is None or listed.launch_token != identity.launch_token:
            return f"{identity.instance_id} has ended, or was launched by another deployment"
        return None

    # ---------------------------------------------------------------------------------------------------- certificates
    def certify(self, body: bytes, address: str) -> bytes:
        """Return a certificate for what a machine at ``address`` sent (``credential``), PEM. Raises NotAdmitted."""
        request = _fields(body)
        key = _requested_key(request["request"])
        if self._listed is None:
            raise NotAdmitted("no daemon has said which machines there are", again=True)
        if "certificate" in request:
            instance_id, launch_token = self._renewing(request["certificate"], key)
        else:
            listed = self._enrolling(request, key, address)
            instance_id, launch_token = listed.instance_id, listed.launch_token
            self._enrolled[instance_id] = key
        return self._authority.sign(request["request"], instance_id, launch_token)

    def renew(self, identity: MachineIdentity, request_pem: bytes) -> bytes:
        """Return a new certificate for a connected machine's own key, PEM. Raises NotAdmitted."""
        key = _requested_key(request_pem)
        if key != identity.public_key:
            raise NotAdmitted(f"the request is not signed with the key of {identity.instance_id}")
        if self._listed is None:
            raise NotAdmitted("no daemon has said which machines there are", again=True)
        if (why := self.why_not(identity)) is not None:
            raise NotAdmitted(why)
        return self._authority.sign(request_pem, identity.instance_id, identity.launch_token)

    def _renewing(self, certificate: bytes, key: bytes) -> tuple[str, str]:
        """Check the holder of an earlier certificate, expired or not: its daemon may have been away for days."""
        try:
            identity = self._authority.identity(certificate)
        except ValueError as error:
            raise NotAdmitted(str(error)) from error
        if identity.public_key != key:
            raise NotAdmitted(f"the request is not signed with the key of {identity.instance_id}")
        if (why := self._why_unlisted(identity)) is not None:
            raise NotAdmitted(why)
        return identity.instance_id, identity.launch_token

    def _enrolling(self, request: Mapping[str, bytes], key: bytes, address: str) -> ListedMachine:
        name = request.get("instance_id", b"").decode(errors="replace")
        listed = self._listed.get(name) if self._listed is not None else None
        if listed is None:
            raise NotAdmitted(f"no instance {name[:64]!r} is being launched", again=True)
        if not hmac.compare_digest(hashlib.sha256(request.get("secret", b"")).digest(), listed.secret_sha256):
            raise NotAdmitted(f"the secret is not that of {name}'s launch")
        if listed.has_registered or self._enrolled.get(name, key) != key:
            raise NotAdmitted(f"the secret of {name}'s launch has been used")
        if listed.addresses is None:
            raise NotAdmitted(f"the address of {name} is not known yet", again=True)
        if listed.addresses and not self._is_at(address, listed.addresses):
            raise NotAdmitted(f"{address} is not an address of {name}, which has {', '.join(listed.addresses)}")
        return listed

    def _is_at(self, address: str, listed: Iterable[str]) -> bool:
        found = ip_address(address)
        found = getattr(found, "ipv4_mapped", None) or found
        return str(found) in listed or any(found in network for network in self._translated)


def _requested_key(request_pem: bytes) -> bytes:
    try:
        return request_key(request_pem)
    except ValueError as error:
        raise NotAdmitted(f"no certificate request: {error}") from error


def _fields(body: bytes) -> dict[str, bytes]:
    """Return the fields of a request: an object of texts. Raises NotAdmitted."""
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotAdmitted("the request is not JSON") from error
    known = {"request", "certificate", "instance_id", "secret"}
    if not isinstance(plain, dict) or "request" not in plain or plain.keys() - known:
        raise NotAdmitted("the request is not an object of request, and either certificate, or instance_id and secret")
    if not all(isinstance(each, str) and len(each) <= FIELD_BYTES_MAX for each in plain.values()):
        raise NotAdmitted(f"the fields are not all texts of up to {FIELD_BYTES_MAX} characters")
    return {name: each.encode(errors="replace") for name, each in plain.items()}
