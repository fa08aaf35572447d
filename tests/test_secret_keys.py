"""Keys of secrets: what they encrypt, how they are made, replaced and refused."""

import os
import stat
from pathlib import Path

import pytest

from hcloud.core.errors import SecretUnreadable
from hcloud.secret_keys import SecretKeys, key_of
from tests.machine import needs_root


@pytest.fixture
def keys(tmp_path: Path) -> SecretKeys:
    return SecretKeys(None, tmp_path)


def test_first_secret_makes_a_key_that_only_its_owner_can_read(keys: SecretKeys) -> None:
    assert keys.ids() == ()
    sealed = keys.seal("ann", {"TOKEN": "hunter2é", "EMPTY": ""})
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o400
    assert keys.unseal("ann", sealed) == {"TOKEN": "hunter2é", "EMPTY": ""}
    assert {key_of(each) for each in sealed.values()} == {keys.ids()[0]}
    assert keys.seal("ann", {"TOKEN": "hunter2é"})["TOKEN"] != sealed["TOKEN"]  # equal secrets look different
    assert [each.name for each in keys.path.parent.iterdir()] == ["secrets.key"]


def test_secret_is_bound_to_its_user_its_name_and_its_content(keys: SecretKeys) -> None:
    sealed = keys.seal("ann", {"TOKEN": "hunter2"})["TOKEN"]
    changed = sealed[:-3] + ("A" if sealed[-3] != "A" else "B") + sealed[-2:]
    for user, name, text in (("bob", "TOKEN", sealed), ("ann", "OTHER", sealed), ("ann", "TOKEN", changed)):
        with pytest.raises(SecretUnreadable, match=f"secret {name} cannot be decrypted: it was changed") as caught:
            keys.unseal(user, {name: text})
        assert "hunter2" not in str(caught.value)


def test_old_keys_are_read_until_they_are_dropped(keys: SecretKeys) -> None:
    old = keys.seal("ann", {"TOKEN": "hunter2"})["TOKEN"]
    new_id = keys.add()
    assert keys.ids() == (new_id, key_of(old))
    assert keys.unseal("ann", {"TOKEN": old}) == {"TOKEN": "hunter2"}
    new = keys.reseal("ann", "TOKEN", old)
    assert new is not None and key_of(new) == new_id
    keys.keep([new_id])
    assert keys.unseal("ann", {"TOKEN": new}) == {"TOKEN": "hunter2"}
    with pytest.raises(SecretUnreadable, match=f"its key {key_of(old)} is not in {keys.path}; restore that file"):
        keys.unseal("ann", {"TOKEN": old})
    assert keys.reseal("ann", "TOKEN", old) is None
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o400


@pytest.mark.parametrize(
    ("content", "mode", "sentence"),
    [
        ("ab" * 32, 0o440, r"is open to other users \(mode 0440\); run: chmod 400"),
        ("ab" * 32, 0o604, "is open to other users"),
        (f"{'ab' * 32}\nhunter2\n", 0o400, ":2: must be a key of 64 hexadecimal digits"),
        ("\n", 0o400, "is empty; restore it"),
    ],
)
def test_key_file_that_cannot_be_trusted_is_refused_in_one_sentence(
    keys: SecretKeys, content: str, mode: int, sentence: str
) -> None:
    keys.path.write_text(content)
    keys.path.chmod(mode)
    with pytest.raises(SecretUnreadable, match=sentence) as caught:
        keys.seal("ann", {"TOKEN": "x"})
    assert "hunter2" not in str(caught.value)


@needs_root
def test_key_file_of_another_user_is_refused(keys: SecretKeys) -> None:
    keys.seal("ann", {"TOKEN": "x"})
    os.chown(keys.path, 12345, 12345)
    with pytest.raises(SecretUnreadable, match="belongs to uid 12345; it must belong to this user"):
        keys.ids()


def test_systemd_credential_goes_before_the_file_of_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert not SecretKeys(None, tmp_path / "state").is_credential  # yesterday's unit file loads none
    (tmp_path / "secrets.key").write_text(f"{'ab' * 32}\n")
    (tmp_path / "secrets.key").chmod(0o440)  # as systemd shows it
    keys = SecretKeys(None, tmp_path / "state")
    assert keys.unseal("ann", keys.seal("ann", {"A": "x"})) == {"A": "x"}
    assert list((tmp_path / "state").iterdir()) == []
    assert SecretKeys(tmp_path / "own", tmp_path / "state").path == tmp_path / "own"
