"""The certificate authority: made once, kept, renewed in time, and clear about what is wrong."""

import stat
from pathlib import Path

import pytest

from hcloud.core.clock import ManualClock
from hcloud.core.errors import ConfigError
from hcloud.engine.tls import (
    MACHINE_LIFETIME,
    Authority,
    enrolment_secret,
    expiry_of,
    issue,
    launch_key,
    machine_request,
    make_ca,
    new_machine_key,
    request_key,
    server_files,
)

YEAR_S = 365 * 86400.0
NOW = 1_800_000_000.0


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    make_ca(tmp_path / "tls")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {"ca.key", "gateway.key", "launch.key"}
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700


def test_making_it_again_changes_nothing(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    make_ca(tmp_path, clock)
    before = contents(tmp_path)
    clock.advance(YEAR_S)
    make_ca(tmp_path, clock)
    assert contents(tmp_path) == before


def test_certificates_near_their_end_are_renewed_under_the_same_authority(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    make_ca(tmp_path, clock)
    before = contents(tmp_path)
    clock.advance(9.9 * YEAR_S)
    make_ca(tmp_path, clock)
    after = contents(tmp_path)
    assert after["ca.pem"] == before["ca.pem"]
    assert after["launch.key"] == before["launch.key"]
    assert after["gateway.pem"] != before["gateway.pem"]


def test_certificate_of_another_authority_is_replaced(tmp_path: Path) -> None:
    make_ca(tmp_path / "one")
    make_ca(tmp_path / "two")
    foreign = (tmp_path / "two" / "gateway.pem").read_bytes()
    (tmp_path / "one" / "gateway.pem").write_bytes(foreign)
    issue(tmp_path / "one", "gateway")
    assert (tmp_path / "one" / "gateway.pem").read_bytes() != foreign


def test_expired_certificate_is_said_with_its_date_and_the_way_out(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    make_ca(tmp_path, clock)
    clock.advance(11 * YEAR_S)
    with pytest.raises(ConfigError, match=r"gateway\.pem: this certificate expired on 20\d\d-\d\d-\d\d; `hcloud init`"):
        server_files(tmp_path, clock)


def test_missing_certificate_is_said_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ca\.pem: no readable file here; `hcloud init` makes it"):
        server_files(tmp_path)


def test_half_an_authority_is_never_replaced_silently(tmp_path: Path) -> None:
    make_ca(tmp_path)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca\.key: this part of the certificate authority is missing"):
        make_ca(tmp_path)


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_damaged_certificate_is_said(tmp_path: Path, content: bytes) -> None:
    make_ca(tmp_path)
    (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(ConfigError, match=r"ca\.pem: no readable certificate"):
        make_ca(tmp_path)


# ----------------------------------------------------------------------------------------------------------- machines
def test_a_machines_certificate_says_which_launch_it_is_and_lasts_for_hours(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    make_ca(tmp_path, clock)
    authority, key = Authority(tmp_path, clock), new_machine_key()
    signed = authority.sign(machine_request(key), "inst-7", "launch-1")
    identity = authority.identity(signed)
    assert (identity.instance_id, identity.launch_token) == ("inst-7", "launch-1")
    assert identity.public_key == request_key(machine_request(key))
    assert identity.expires_at == expiry_of(signed) == NOW + MACHINE_LIFETIME.total_seconds()


def test_only_certificates_of_machines_under_the_same_authority_are_identities(tmp_path: Path) -> None:
    make_ca(tmp_path / "one")
    make_ca(tmp_path / "two")
    foreign = Authority(tmp_path / "two").sign(machine_request(new_machine_key()), "inst-7", "launch-1")
    authority = Authority(tmp_path / "one")
    with pytest.raises(ValueError, match="another authority"):
        authority.identity(foreign)
    with pytest.raises(ValueError, match="no machine's"):
        authority.identity((tmp_path / "one" / "gateway.pem").read_bytes())
    for damaged in (b"", b"junk", foreign[:200]):
        with pytest.raises(ValueError, match=r".*"):
            authority.identity(damaged)


def test_each_launch_has_a_secret_of_its_own_which_is_the_same_each_time(tmp_path: Path) -> None:
    key = launch_key(tmp_path)
    assert enrolment_secret(key, "a") == enrolment_secret(launch_key(tmp_path), "a") != enrolment_secret(key, "b")
    assert enrolment_secret(key, "a") != enrolment_secret(b"another", "a")
