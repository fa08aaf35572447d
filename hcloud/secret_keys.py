"""The keys that encrypt secrets of jobs in the database (AES-256-GCM), in a file or a systemd credential.

One key per line, 64 hexadecimal digits each. The first one encrypts; all of them decrypt, so that a key can be replaced
while secrets of before are still read. The file is read at each use: a changed one needs no restart.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hcloud.core.errors import SecretUnreadable

CREDENTIAL = "secrets.key"
"""Name of the systemd credential, and of the file in the state directory."""
_NONCE_BYTES = 12
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_FILE_BYTES_MAX = 64 * 1024


class SecretKeys:
    """The keys of one deployment. ``path``: their file; None: the systemd credential, else ``state_dir/secrets.key``.

    Every method may raise SecretUnreadable: the file has a wrong mode, owner or content; one sentence names it.
    """

    def __init__(self, path: Path | None, state_dir: Path) -> None:
        directory = os.environ.get("CREDENTIALS_DIRECTORY")
        credential = Path(directory) / CREDENTIAL if directory else None
        self.is_credential = path is None and credential is not None and credential.exists()
        self.path = path or (credential if credential is not None and self.is_credential else state_dir / CREDENTIAL)

    def ids(self) -> tuple[str, ...]:
        """Return the ids of all keys, the one that encrypts first; empty if there is no file yet."""
        return tuple(_id(key) for key in self._read())

    def version(self) -> object:
        """Return a value that differs once the file of keys has changed, appeared or disappeared. Raises nothing."""
        try:
            status = self.path.stat()
        except OSError as error:
            return error.errno
        # A change of mode or owner changes ``st_ctime_ns``.
        return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)

    def seal(self, user: str, values: Mapping[str, str]) -> dict[str, str]:
        """Return secrets of a user by name, encrypted, each bound to its user and name. Makes the first key."""
        keys = self._read() or self._make()
        return {name: _seal(keys[0], user, name, value) for name, value in values.items()}

    def unseal(self, user: str, sealed: Mapping[str, str]) -> dict[str, str]:
        """Return the secrets again. Raises SecretUnreadable also for a key that is not there and a changed secret."""
        keys = {_id(key): key for key in self._read()}
        return {name: self._unseal(keys, user, name, text) for name, text in sealed.items()}

    def reseal(self, user: str, name: str, sealed: str) -> str | None:
        """Return a secret encrypted with the first key; None: it cannot be decrypted."""
        with suppress(SecretUnreadable):
            return self.seal(user, self.unseal(user, {name: sealed}))[name]
        return None

    def add(self) -> str:
        """Put a new key first and return its id."""
        key = os.urandom(32)
        self._write([key, *self._read()])
        return _id(key)

    def keep(self, ids: Iterable[str]) -> None:
        """Drop all keys but those with these ids."""
        kept = frozenset(ids)
        self._write([key for key in self._read() if _id(key) in kept])

    def _unseal(self, keys: Mapping[str, bytes], user: str, name: str, sealed: str) -> str:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key_id, _, text = sealed.partition(".")
        if key_id not in keys:
            raise SecretUnreadable(
                f"secret {name} cannot be decrypted: its key {key_id} is not in {self.path}; "
                "restore that file, or submit the job again"
            )
        try:
            content = base64.b64decode(text, validate=True)
            plain = AESGCM(keys[key_id]).decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], _bound_to(user, name))
        except (InvalidTag, ValueError):
            raise SecretUnreadable(
                f"secret {name} cannot be decrypted: it was changed in the database; submit the job again"
            ) from None
        return plain.decode()

    def _read(self) -> list[bytes]:
        try:
            with self.path.open("rb") as file:
                self._check_access(os.fstat(file.fileno()))
                lines = file.read(_FILE_BYTES_MAX).decode("ascii", "replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SecretUnreadable(f"the key of secrets {self.path} cannot be read: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            if line.strip() and not re.fullmatch(r"[0-9a-f]{64}", line.strip()):
                raise SecretUnreadable(f"{self.path}:{number}: must be a key of 64 hexadecimal digits")
        keys = [bytes.fromhex(line.strip()) for line in lines if line.strip()]
        if not keys:
            raise SecretUnreadable(f"the key of secrets {self.path} is empty; restore it, or delete it for a new one")
        return keys

    def _check_access(self, status: os.stat_result) -> None:
        if self.is_credential:  # systemd protects its directory, and shows the mode of an access list
            return
        mode = stat.S_IMODE(status.st_mode)
        if mode & _OTHERS:
            raise SecretUnreadable(
                f"the key of secrets {self.path} is open to other users (mode {mode:04o}); run: chmod 400 {self.path}"
            )
        if status.st_uid not in (0, os.geteuid()):
            raise SecretUnreadable(
                f"the key of secrets {self.path} belongs to uid {status.st_uid}; it must belong to this user "
                f"(uid {os.geteuid()}) or to root"
            )

    def _make(self) -> list[bytes]:
        """Make the file with a first key, or read the one that was made meanwhile."""
        if self.is_credential:
            raise SecretUnreadable(f"the systemd credential {self.path} has disappeared; restart the daemon")
        staged = self._stage([os.urandom(32)])
        try:
            os.link(staged, self.path)
            _sync(self.path.parent)
        except FileExistsError:
            pass
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            staged.unlink(missing_ok=True)
        return self._read()

    def _write(self, keys: Iterable[bytes]) -> None:
        staged = self._stage(keys)
        try:
            staged.rename(self.path)
            _sync(self.path.parent)
        except OSError as error:
            staged.unlink(missing_ok=True)
            raise self._unwritable(error) from error

    def _stage(self, keys: Iterable[bytes]) -> Path:
        staged = self.path.with_name(f".{self.path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
            with os.fdopen(handle, "w") as file:
                file.write("".join(f"{key.hex()}\n" for key in keys))
                file.flush()
                os.fsync(file.fileno())  # a secret must not outlive its key
        except OSError as error:
            staged.unlink(missing_ok=True)
            raise self._unwritable(error) from error
        return staged

    def _unwritable(self, error: OSError) -> SecretUnreadable:
        return SecretUnreadable(f"the key of secrets {self.path} cannot be written: {error.strerror}")


def key_of(sealed: str) -> str:
    """Return the id of the key that encrypted a secret."""
    return sealed.partition(".")[0]


def _seal(key: bytes, user: str, name: str, value: str) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # slow to load, and few jobs have secrets

    nonce = os.urandom(_NONCE_BYTES)
    content = nonce + AESGCM(key).encrypt(nonce, value.encode(), _bound_to(user, name))
    return f"{_id(key)}.{base64.b64encode(content).decode()}"


def _id(key: bytes) -> str:
    return hashlib.sha256(b"hcloud secrets " + key).hexdigest()[:12]


def _bound_to(user: str, name: str) -> bytes:
    """Return what is authenticated with a secret: it decrypts for no other user and under no other name."""
    return f"{user}\0{name}".encode()


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
