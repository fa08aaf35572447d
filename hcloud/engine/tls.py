"""The deployment's own certificate authority: only holders of its certificates can speak to the engine.

A directory holds ``ca.pem``, ``ca.key`` and, per role, ``<role>.pem`` and ``<role>.key``. The common name of a
certificate is its role: the switchboard takes orders only from ``client``, so a worker's certificate commands
nothing.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hcloud.core.clock import Clock, SystemClock
from hcloud.core.errors import ConfigError

ROLES = ("scheduler", "client", "worker")
CA_LIFETIME = timedelta(days=20 * 365)
CERTIFICATE_LIFETIME = timedelta(days=10 * 365)
RENEW_BEFORE = timedelta(days=90)
# A clock a little behind on another machine must not find a new certificate "not yet valid".
BACKDATE = timedelta(days=1)


def make_ca(directory: Path, clock: Clock | None = None) -> None:
    """Create the authority and one certificate per role; what exists and is valid is left alone.

    Raises:
        ConfigError: the directory cannot be written, or holds half an authority.
    """
    clock = clock or SystemClock()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the TLS directory cannot be made: {error.strerror}", where=str(directory)) from error
    certificate, key = directory / "ca.pem", directory / "ca.key"
    if certificate.exists() != key.exists():
        missing = key if certificate.exists() else certificate
        raise ConfigError(
            "this part of the certificate authority is missing; restore it, or remove the other part and run "
            "`hcloud init` again (all workers then need new certificates)",
            where=str(missing),
        )
    if not certificate.exists() or _load(certificate).not_valid_after_utc <= _now(clock):
        _new_authority(directory, clock)
    for role in ROLES:
        issue(directory, role, clock)


def issue(directory: Path, name: str, clock: Clock | None = None) -> None:
    """Make ``<name>.pem`` and ``<name>.key`` unless there is one of this authority that stays valid for a while.

    Raises:
        ConfigError: the authority's key is not here.
    """
    clock = clock or SystemClock()
    certificate = directory / f"{name}.pem"
    if certificate.exists() and (directory / f"{name}.key").exists() and _lasting(directory, certificate, clock):
        return
    authority, authority_key = _load(directory / "ca.pem"), _load_key(directory / "ca.key")
    key = ec.generate_private_key(ec.SECP256R1())
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    built = (
        _builder(name, authority.subject, key, CERTIFICATE_LIFETIME, clock)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usages, critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    _write_pair(directory, name, built, key)


def context_files(directory: Path, role: str, clock: Clock | None = None) -> dict[str, str]:
    """Return the arguments ``tls_ca_file``, ``tls_<role>_cert`` and ``tls_<role>_key`` with their paths.

    Raises:
        ConfigError: a file is missing, unreadable or expired; the message says which and what to do.
    """
    now = _now(clock or SystemClock())
    files = {"tls_ca_file": "ca.pem", f"tls_{role}_cert": f"{role}.pem", f"tls_{role}_key": f"{role}.key"}
    for file in files.values():
        path = directory / file
        if not os.access(path, os.R_OK):
            raise ConfigError("no readable file here; `hcloud init` makes it", where=str(path))
        if file.endswith(".pem") and (ended := _load(path).not_valid_after_utc) <= now:
            raise ConfigError(f"this certificate expired on {ended:%Y-%m-%d}; `hcloud init` renews it", where=str(path))
    return {name: str(directory / file) for name, file in files.items()}


def peer_role(peer_certificate: object) -> str:
    """Return the common name in what ``ssl.SSLSocket.getpeercert`` gave, or "" where there is none."""
    subject = peer_certificate.get("subject", ()) if isinstance(peer_certificate, dict) else ()
    return next((value for parts in subject for key, value in parts if key == "commonName"), "")


def _now(clock: Clock) -> datetime:
    return datetime.fromtimestamp(clock.now(), UTC)


def _load(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"no readable certificate here ({error}); `hcloud init` makes it", where=str(path)) from error


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no readable key here ({error}); `hcloud init` makes it", where=str(path)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("this is not a key that HCloud made (an elliptic curve key)", where=str(path))
    return key


def _lasting(directory: Path, certificate: Path, clock: Clock) -> bool:
    present = _load(certificate)
    try:
        present.verify_directly_issued_by(_load(directory / "ca.pem"))
    except (InvalidSignature, ValueError):
        return False
    return present.not_valid_after_utc - RENEW_BEFORE > _now(clock)


def _new_authority(directory: Path, clock: Clock) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "HCloud engine authority")])
    certificate = (
        _builder("HCloud engine authority", name, key, CA_LIFETIME, clock)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_pair(directory, "ca", certificate, key)


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, lifetime: timedelta, clock: Clock
) -> x509.CertificateBuilder:
    now = _now(clock)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + lifetime)
    )


def _write_pair(directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _replace(directory / f"{name}.key", secret, mode=0o600)
    _replace(directory / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)


def _replace(path: Path, content: bytes, *, mode: int) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
