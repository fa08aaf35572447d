"""The deployment's own certificate authority: its certificates identify the gateway and each machine.

A directory holds ``ca.pem``, ``ca.key``, and ``gateway.pem`` and ``gateway.key``, which only the gateway needs; and
``launch.key``, which only the daemon needs: of it the secrets are made that let new machines enrol (``credential``).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hcloud.core.clock import Clock, SystemClock
from hcloud.core.errors import ConfigError

GATEWAY = "gateway"
"""Name in the gateway's certificate, whatever the address at which it is reached."""
MACHINE = "hcloud agent"
"""Organisation in machines' certificates."""
CA_LIFETIME = timedelta(days=20 * 365)
CERTIFICATE_LIFETIME = timedelta(days=10 * 365)
MACHINE_LIFETIME = timedelta(hours=24)
"""A machine renews its certificate after a third of this."""
RENEW_BEFORE = timedelta(days=90)
# A clock a little behind on another machine must not find a new certificate "not yet valid".
BACKDATE = timedelta(days=1)
MACHINE_BACKDATE = timedelta(hours=2)
LAUNCH_KEY = "launch.key"


def make_ca(directory: Path, clock: Clock | None = None) -> None:
    """Create the authority, the gateway's certificate and the launch key; what exists and is valid is left alone.

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
    issue(directory, GATEWAY, clock)
    launch_key(directory)


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


def launch_key(directory: Path) -> bytes:
    """Return the secret of which machines' enrolment secrets are made; make it if there is none.

    Raises:
        ConfigError: it cannot be read or made.
    """
    path = directory / LAUNCH_KEY
    try:
        if not path.exists():
            _replace(path, secrets.token_hex(32).encode(), mode=0o600)
        return path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"the launch key cannot be read or made: {error.strerror}", where=str(path)) from error


def enrolment_secret(key: bytes, launch_token: str) -> str:
    """Return the secret with which the machine of that launch may enrol once. Repeated launches get the same."""
    return hmac.new(key, launch_token.encode(), hashlib.sha256).hexdigest()


def authority_pem(directory: Path) -> str:
    """Return the authority's certificate. Raises ConfigError."""
    _load(directory / "ca.pem")
    return (directory / "ca.pem").read_text()


def server_files(directory: Path, clock: Clock | None = None) -> tuple[Path, Path, Path]:
    """Return the paths of the authority's certificate, and of the gateway's certificate and key.

    Raises:
        ConfigError: a file is missing, unreadable or expired; the message says which and what to do.
    """
    now = _now(clock or SystemClock())
    authority, certificate, key = (directory / name for name in ("ca.pem", f"{GATEWAY}.pem", f"{GATEWAY}.key"))
    for path in (authority, certificate, key):
        if not os.access(path, os.R_OK):
            raise ConfigError("no readable file here; `hcloud init` makes it", where=str(path))
        if path.suffix == ".pem" and (ended := _load(path).not_valid_after_utc) <= now:
            raise ConfigError(f"this certificate expired on {ended:%Y-%m-%d}; `hcloud init` renews it", where=str(path))
    return authority, certificate, key


# ---------------------------------------------------------------------------------------------------------- machines
@dataclass(frozen=True, slots=True, kw_only=True)
class MachineIdentity:
    """What a machine's certificate says."""

    instance_id: str
    launch_token: str
    """Idempotency token of its launch: an instance of the same name in another database has another."""
    expires_at: float
    """Unix seconds."""
    public_key: bytes
    """DER."""


class Authority:
    """Signs machines' certificates, and knows its own again."""

    def __init__(self, directory: Path, clock: Clock | None = None) -> None:
        """Read the authority. Raises ConfigError."""
        self._clock = clock or SystemClock()
        self._certificate, self._key = _load(directory / "ca.pem"), _load_key(directory / "ca.key")

    def sign(self, request_pem: bytes, instance_id: str, launch_token: str) -> bytes:
        """Return a machine's certificate for the key of its request. Raises ValueError: no request of a fit key."""
        request = _machine_request(request_pem)
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, MACHINE),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, launch_token),
                x509.NameAttribute(NameOID.COMMON_NAME, instance_id),
            ]
        )
        now = _now(self._clock)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._certificate.subject)
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - MACHINE_BACKDATE)
            .not_valid_after(now + MACHINE_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def identity(self, certificate_pem: bytes) -> MachineIdentity:
        """Return whose certificate this is, expired or not. Raises ValueError: not one that this authority signed."""
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (InvalidSignature, TypeError) as error:
            raise ValueError("another authority signed this certificate") from error
        values = {each.oid: str(each.value) for each in certificate.subject}
        if values.get(NameOID.ORGANIZATION_NAME) != MACHINE:
            raise ValueError("this certificate is no machine's")
        return MachineIdentity(
            instance_id=values.get(NameOID.COMMON_NAME, ""),
            launch_token=values.get(NameOID.ORGANIZATIONAL_UNIT_NAME, ""),
            expires_at=certificate.not_valid_after_utc.timestamp(),
            public_key=_der(certificate.public_key()),
        )


def new_machine_key() -> bytes:
    """Return a new private key, PEM."""
    return _private_pem(ec.generate_private_key(ec.SECP256R1()))


def machine_request(key_pem: bytes) -> bytes:
    """Return a certificate request for a key, PEM: it proves that the key is held. Raises ValueError."""
    key = serialization.load_pem_private_key(key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    built = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return built.public_bytes(serialization.Encoding.PEM)


def request_key(request_pem: bytes) -> bytes:
    """Return the public key of a certificate request, DER. Raises ValueError: no request of a fit key."""
    return _der(_machine_request(request_pem).public_key())


def expiry_of(certificate_pem: bytes) -> float:
    """Return when a certificate expires, Unix seconds. Raises ValueError."""
    return x509.load_pem_x509_certificate(certificate_pem).not_valid_after_utc.timestamp()


def _machine_request(request_pem: bytes) -> x509.CertificateSigningRequest:
    request = x509.load_pem_x509_csr(request_pem)
    key = request.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("the key of this request is not of the curve P-256")
    if not request.is_signature_valid:
        raise ValueError("this request is not signed with its own key")
    return request


def _der(key: object) -> bytes:
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


# ------------------------------------------------------------------------------------------------------------- files
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
    _replace(directory / f"{name}.key", _private_pem(key), mode=0o600)
    _replace(directory / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)


def _replace(path: Path, content: bytes, *, mode: int) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
