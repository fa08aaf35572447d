"""The certificate of one attempt of a gang: its ranks know each other by it, and nothing else has its key."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_network

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.x509.oid import NameOID

from hcloud.core.model import MARKED_BY
from hcloud.engine.gang_tunnel import PREFIX_BITS
from hcloud.provider import GANG_PORTS

FIRST_PORT, LAST_PORT = 20_000, 29_900
"""Below the ports that Linux gives to outgoing connections."""
_FROM, _UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=256)
def gang_pem(launch_key: bytes, attempt: str) -> str:
    """Return key and certificate of an attempt, as PEM: the same each time, as its ranks may start one after the other.

    It needs no end of its own: the next attempt has another one.
    """
    key = Ed25519PrivateKey.from_private_bytes(_digest(launch_key, attempt))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hcloud gang")])
    public = key.public_key()
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(int.from_bytes(_digest(launch_key, f"serial {attempt}")[:16], "big") | 1)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, None)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private.decode() + built.public_bytes(serialization.Encoding.PEM).decode()


def gang_of(unit: str) -> str:
    """Return the attempt of a unit, with its mark: what all its ranks, and no others, have in common."""
    plain, _, mark = unit.partition(MARKED_BY)
    return f"{plain.rpartition('.')[0]}{MARKED_BY}{mark}"


def tunnel_addresses(count: int) -> tuple[str, ...]:
    """Return the ranks' addresses in a network of their own across hosts."""
    first = ip_network(f"10.77.0.0/{PREFIX_BITS}").network_address + 1
    return tuple(str(first + rank) for rank in range(count))


def gang_tunnel(launch_key: bytes, attempt: str, rank: int, hosts: Sequence[str]) -> str:
    """Return what a rank's machine needs to connect the rank with the others, whose machines are at ``hosts``, as JSON:
    its private key, and of each peer the public key, address and where it is.

    The same each time for an attempt. No machine gets the private key of another rank.
    """
    keys = [
        X25519PrivateKey.from_private_bytes(_digest(launch_key, f"tunnel {rank} {attempt}"))
        for rank in range(len(hosts))
    ]
    start = int.from_bytes(_digest(launch_key, f"port {attempt}")[:4], "big")
    ports = [GANG_PORTS[(start + number) % len(GANG_PORTS)] for number in range(len(hosts))]
    described = list(zip(tunnel_addresses(len(hosts)), keys, hosts, ports, strict=True))
    peers = [
        {
            "key": b64encode(key.public_key().public_bytes_raw()).decode(),
            "address": address,
            "endpoint": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        }
        for number, (address, key, host, port) in enumerate(described)
        if number != rank
    ]
    address, key, _, port = described[rank]
    own = {"key": b64encode(key.private_bytes_raw()).decode(), "address": address, "port": port}
    return json.dumps({**own, "peers": peers})


def gang_port(attempt: str) -> int:
    """Return the first of the ports at which rank 0 of an attempt listens."""
    return FIRST_PORT + int.from_bytes(hashlib.sha256(attempt.encode()).digest()[:4], "big") % (LAST_PORT - FIRST_PORT)


def _digest(launch_key: bytes, text: str) -> bytes:
    return hmac.new(launch_key, f"gang {text}".encode(), hashlib.sha256).digest()
