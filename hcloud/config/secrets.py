"""Secrets by reference: the configuration names the location of a secret, never the secret itself.

``env:NAME`` is an environment variable of the daemon, ``file:PATH`` a file that only its owner can read. Secrets are
read when they are needed, never stored, and never part of a message.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from hcloud.core.errors import ConfigError

_SECRET_BYTES_MAX = 64 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_secret(text: str) -> str:
    """Return a valid reference unchanged.

    Raises:
        ValueError: it is not a reference; the message does not quote it, as it may be the secret itself.
    """
    if re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*|file:(/|~/)\S.*", text):
        return text
    raise ValueError("must be the location of the secret, env:NAME or file:/PATH, not the secret itself")


def resolve_secret(reference: str) -> str:
    """Return the secret at a reference, without surrounding white space.

    Raises:
        ConfigError: it does not exist, is empty, or is readable by other users; the message names the location only.
    """
    kind, _, place = reference.partition(":")
    secret = _from_variable(place) if kind == "env" else _from_file(Path(place).expanduser())
    if not secret.strip():
        raise ConfigError("is empty; it must contain the secret", where=reference)
    return secret.strip()


def _from_variable(name: str) -> str:
    if name not in os.environ:
        raise ConfigError("is not set in the environment of this process", where=f"env:{name}")
    return os.environ[name]


def _from_file(path: Path) -> str:
    where = f"file:{path}"
    try:
        with path.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if mode & _OTHERS:
                raise ConfigError(f"is readable by other users (mode {mode:04o}); run: chmod 600 {path}", where=where)
            content = stream.read(_SECRET_BYTES_MAX + 1)
        if len(content) > _SECRET_BYTES_MAX:
            raise ConfigError("is too large for a secret", where=where)
        return content.decode()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=where) from None
    except UnicodeDecodeError:
        raise ConfigError("is not text", where=where) from None
