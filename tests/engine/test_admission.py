"""Which machines get certificates and connections: each condition alone decides."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from hcloud.core.clock import ManualClock
from hcloud.engine.admission import Admission, ListedMachine, NotAdmitted
from hcloud.engine.tls import MACHINE_LIFETIME, Authority, machine_request, make_ca, new_machine_key, request_key

NOW = 1_800_000_000.0
ADDRESS = "10.0.0.7"
MACHINE = ListedMachine(
    instance_id="inst-7",
    launch_token="launch-1",
    secret_sha256=hashlib.sha256(b"secret").digest(),
    has_registered=False,
    addresses=(ADDRESS, "10.0.0.8"),
)


class Bench:
    """An authority, an admission with one machine listed, and that machine's key."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(NOW)
        make_ca(folder, self.clock)
        self.authority = Authority(folder, self.clock)
        self.admission = Admission(self.authority, self.clock.now)
        self.admission.list([MACHINE])
        self.key = new_machine_key()

    def enrol(self, address: str = ADDRESS, key: bytes | None = None, **changes: str) -> bytes:
        request = machine_request(key or self.key).decode()
        body = {"request": request, "instance_id": "inst-7", "secret": "secret", **changes}
        return self.admission.certify(json.dumps(body).encode(), address)

    def renew(self, certificate: bytes, key: bytes | None = None) -> bytes:
        body = {"request": machine_request(key or self.key).decode(), "certificate": certificate.decode()}
        return self.admission.certify(json.dumps(body).encode(), "203.0.113.9")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def refused(bench: Bench, address: str = ADDRESS, **changes: str) -> str:
    with pytest.raises(NotAdmitted) as refusal:
        bench.enrol(address, **changes)
    return f"{refusal.value}{' (again)' if refusal.value.again else ''}"


def test_a_machine_enrols_and_is_known_by_its_certificate(bench: Bench) -> None:
    identity = bench.admission.identity(bench.enrol())
    assert (identity.instance_id, identity.launch_token) == ("inst-7", "launch-1")
    assert identity.public_key == request_key(machine_request(bench.key))


def test_a_lost_answer_may_be_asked_for_again_with_the_same_key_only(bench: Bench) -> None:
    bench.enrol()
    bench.enrol()
    with pytest.raises(NotAdmitted, match="has been used"):
        bench.enrol(key=new_machine_key())
    bench.admission.list([MACHINE])  # the daemon has not seen the registration yet: nothing is forgotten
    with pytest.raises(NotAdmitted, match="has been used"):
        bench.enrol(key=new_machine_key())


def test_a_machine_that_was_registered_before_cannot_enrol_again(bench: Bench) -> None:
    bench.admission.list([replace(MACHINE, has_registered=True)])
    assert "has been used" in refused(bench)


def test_a_secret_is_good_for_its_own_launch_only(bench: Bench) -> None:
    assert "not that of inst-7's launch" in refused(bench, secret="another")
    assert "not that of inst-7's launch" in refused(bench, secret="")
    assert refused(bench, instance_id="inst-8") == "no instance 'inst-8' is being launched (again)"


def test_only_the_addresses_that_the_provider_names_may_enrol(bench: Bench) -> None:
    assert "203.0.113.9 is not an address of inst-7" in refused(bench, "203.0.113.9")
    bench.admission.list([replace(MACHINE, addresses=None)])
    assert refused(bench) == "the address of inst-7 is not known yet (again)"
    bench.admission.list([replace(MACHINE, addresses=())])
    assert bench.enrol("203.0.113.9")
    bench.admission.list([replace(MACHINE, addresses=("10.0.0.7",))])
    assert bench.enrol("::ffff:10.0.0.7")


def test_addresses_of_address_translation_stand_for_any_machine(bench: Bench) -> None:
    bench.admission = Admission(bench.authority, bench.clock.now, ["198.51.100.9", "203.0.113.0/28"])
    bench.admission.list([MACHINE])
    assert "203.0.113.16 is not an address of inst-7" in refused(bench, "203.0.113.16")
    assert bench.enrol("203.0.113.15") and bench.enrol("198.51.100.9")


def test_nothing_is_signed_before_a_daemon_has_said_which_machines_there_are(bench: Bench) -> None:
    certificate = bench.enrol()
    fresh = Admission(bench.authority, bench.clock.now)
    assert fresh.identity(certificate).instance_id == "inst-7"  # the gateway was restarted; the machine goes on
    bench.admission = fresh
    assert "no daemon has said which machines there are (again)" in refused(bench)
    with pytest.raises(NotAdmitted, match="no daemon has said") as refusal:
        fresh.renew(fresh.identity(certificate), machine_request(bench.key))
    assert refusal.value.again


def test_an_expired_certificate_of_a_live_machine_is_renewed_by_its_key(bench: Bench) -> None:
    first = bench.enrol()
    bench.clock.advance(40 * MACHINE_LIFETIME.total_seconds())  # its daemon was away for weeks
    with pytest.raises(NotAdmitted, match="has expired"):
        bench.admission.identity(first)
    assert bench.admission.identity(bench.renew(first)).instance_id == "inst-7"


def test_a_connected_machine_renews_the_certificate_of_its_own_key(bench: Bench) -> None:
    identity = bench.admission.identity(bench.enrol())
    bench.clock.advance(MACHINE_LIFETIME.total_seconds() / 2)
    renewed = bench.admission.identity(bench.admission.renew(identity, machine_request(bench.key)))
    assert (renewed.instance_id, renewed.public_key) == ("inst-7", identity.public_key)
    assert renewed.expires_at > identity.expires_at
    for request, says in [
        (b"nonsense", "no certificate request"),
        (machine_request(new_machine_key()), "not signed with the key of inst-7"),
    ]:
        with pytest.raises(NotAdmitted, match=says):
            bench.admission.renew(identity, request)
    bench.admission.list([])
    with pytest.raises(NotAdmitted, match="has ended"):
        bench.admission.renew(identity, machine_request(bench.key))


def test_a_stolen_certificate_without_its_key_renews_nothing(bench: Bench) -> None:
    first = bench.enrol()
    with pytest.raises(NotAdmitted, match="not signed with the key of inst-7"):
        bench.renew(first, key=new_machine_key())


@pytest.mark.parametrize("listed", [[], [replace(MACHINE, launch_token="launch-2")]], ids=["ended", "launched anew"])
def test_an_ended_machine_is_refused_at_once(bench: Bench, listed: list[ListedMachine]) -> None:
    certificate = bench.enrol()
    identity = bench.admission.identity(certificate)
    bench.admission.list(listed)
    assert "has ended" in (bench.admission.why_not(identity) or "")
    with pytest.raises(NotAdmitted, match="has ended"):
        bench.admission.identity(certificate)
    with pytest.raises(NotAdmitted, match="has ended"):
        bench.renew(certificate)


@pytest.mark.parametrize("hours", [-1, 1])
def test_an_hour_of_skew_locks_nobody_out(bench: Bench, hours: int) -> None:
    certificate = bench.enrol()
    standby = Admission(bench.authority, ManualClock(NOW + hours * 3600.0).now)
    assert standby.identity(certificate).instance_id == "inst-7"
    begins = x509.load_pem_x509_certificate(certificate).not_valid_before_utc.timestamp()
    assert begins < NOW - 3600.0  # TLS checks that by itself


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"request": 1, "instance_id": "inst-7", "secret": "secret"}',
        b'{"request": "junk", "instance_id": "inst-7", "secret": "secret"}',
        b'{"request": "junk", "pickle": "gASVAAAA"}',
        json.dumps({"request": "x" * 9000}).encode(),
    ],
)
def test_requests_that_make_no_sense_are_refused(bench: Bench, body: bytes) -> None:
    with pytest.raises(NotAdmitted):
        bench.admission.certify(body, ADDRESS)
