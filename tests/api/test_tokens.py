"""The tokens file: read strictly, followed when it changes, and nobody comes in while it is broken."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

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
