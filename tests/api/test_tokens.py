"""The tokens file: read strictly, followed when it changes, and nobody comes in while it is broken."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from hcloud.api.errors import Unauthenticated
from hcloud.api.tokens import TokenFile, parse_tokens
from hcloud.core.errors import ConfigError

DIGEST = sha256(b"secret").hexdigest()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ada", "tokens:1: expected name:sha256-of-token:role"),
        (f"\n# c\nada:{DIGEST}", "tokens:3: expected name:sha256-of-token:role"),
        ("ada:secret:admin", "tokens:1: expected the SHA-256 of ada's token"),
        (f"ada:{DIGEST}:root", "tokens:1: unknown role 'root'; must be one of reader, submitter, admin"),
        (f"ada:{DIGEST}:admin\neva:{DIGEST}:reader", "tokens:2: the same token already belongs to ada"),
        (f"a b:{DIGEST}:admin", "tokens:1: expected name"),
        ("# nothing", "tokens: contains no token"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_tokens(text, "tokens")
    assert wanted in str(refused.value)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)
    moved = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(moved, moved))


def test_a_revoked_token_stops_working_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    _write(path, f"ada:{DIGEST}:admin\n")
    tokens = TokenFile(path)
    assert tokens.find("secret") is not None
    _write(path, f"ada:{sha256(b'other').hexdigest()}:admin\n")
    assert tokens.find("secret") is None
    assert tokens.find("other") is not None


def test_a_new_token_and_a_higher_role_wait_and_a_lower_role_holds_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    _write(path, f"ada:{DIGEST}:submitter\n")
    tokens = TokenFile(path)
    assert tokens.complete is not None
    tokens.accept(tokens.complete)
    _write(path, f"ada:{DIGEST}:admin\neva:{sha256(b'other').hexdigest()}:reader\n")
    found = tokens.find("secret")
    assert found is not None and found.role == "submitter"
    with pytest.raises(Unauthenticated, match=r"token of eva is not in force until an admin runs 'hcloud policy accep"):
        tokens.find("other")
    assert tokens.poll(0.0, force=True)
    tokens.accept(tokens.complete)
    assert [tokens.find(each).role for each in ("secret", "other")] == ["admin", "reader"]  # type: ignore[union-attr]
    _write(path, f"ada:{DIGEST}:reader\n")
    found = tokens.find("secret")
    assert found is not None and found.role == "reader" and tokens.find("other") is None


def test_a_file_that_is_being_written_revokes_nothing_for_good(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    _write(path, f"ada:{DIGEST}:admin\n")
    tokens = TokenFile(path)
    before = tokens.complete
    _write(path, "")
    assert not tokens.poll(1.0) and tokens.is_settling
    _write(path, f"ada:{DIGEST}:admin\n\n")
    assert not tokens.poll(2.5) and not tokens.poll(3.5)
    assert tokens.complete == before and not tokens.is_settling
    _write(path, "rubbish")
    assert not tokens.poll(5.0) and tokens.poll(6.0)
    assert tokens.complete is None


def test_nobody_comes_in_while_the_file_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    _write(path, f"ada:{DIGEST}:admin\n")
    tokens = TokenFile(path)
    _write(path, "rubbish")
    assert tokens.find("secret") is None
    assert tokens.find("secret") is None  # also when asked again
    path.unlink()
    assert tokens.find("secret") is None
    _write(path, f"ada:{DIGEST}:admin\n")
    assert tokens.find("secret") is not None


def test_a_missing_file_and_one_that_others_may_write_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the tokens file"):
        TokenFile(tmp_path / "none")
    path = tmp_path / "tokens"
    path.write_text(f"ada:{DIGEST}:admin\n")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="chmod go-w"):
        TokenFile(path)
