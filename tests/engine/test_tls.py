"""The certificate authority: made once, kept, renewed in time, and clear about what is wrong."""

import stat
from pathlib import Path

import pytest

from hcloud.core.clock import ManualClock
from hcloud.core.errors import ConfigError
from hcloud.engine.tls import ROLES, context_files, issue, make_ca

YEAR_S = 365 * 86400.0
NOW = 1_800_000_000.0


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    make_ca(tmp_path / "tls")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {f"{role}.key" for role in (*ROLES, "ca")}
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
    assert all(after[f"{role}.pem"] != before[f"{role}.pem"] for role in ROLES)


def test_certificate_of_another_authority_is_replaced(tmp_path: Path) -> None:
    make_ca(tmp_path / "one")
    make_ca(tmp_path / "two")
    foreign = (tmp_path / "two" / "worker.pem").read_bytes()
    (tmp_path / "one" / "worker.pem").write_bytes(foreign)
    issue(tmp_path / "one", "worker")
    assert (tmp_path / "one" / "worker.pem").read_bytes() != foreign


def test_expired_certificate_is_said_with_its_date_and_the_way_out(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    make_ca(tmp_path, clock)
    clock.advance(11 * YEAR_S)
    with pytest.raises(ConfigError, match=r"client\.pem: this certificate expired on 20\d\d-\d\d-\d\d; `hcloud init`"):
        context_files(tmp_path, "client", clock)


def test_missing_certificate_is_said_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ca\.pem: no readable file here; `hcloud init` makes it"):
        context_files(tmp_path, "client")


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
