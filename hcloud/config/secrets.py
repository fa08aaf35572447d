"""Secrets by reference: the configuration says where a secret is, never what it is.

``env:NAME`` is an environment variable of the daemon, ``file:PATH`` a file that only its owner may read. It is read
when it is needed, kept nowhere and quoted in no message.
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
    """Return a reference as it is.

    Raises:
        ValueError: it is none; the message does not quote it, since it may be the secret itself.
    """
    if re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*|file:(/|~/)\S.*", text):
        return text
    raise ValueError("must say where the secret is, env:NAME or file:/PATH, not what it is")


def resolve_secret(reference: str) -> str:
    """Return the secret a reference leads to, without white space around it.

    Raises:
        ConfigError: there is nothing there, or everybody may read it; the message names the place only.
    """
    kind, _, place = reference.partition(":")
    secret = _of_variable(place) if kind == "env" else _of_file(Path(place).expanduser())
    if not secret.strip():
        raise ConfigError("holds no secret; it is empty", where=reference)
    return secret.strip()


def _of_variable(name: str) -> str:
    if name not in os.environ:
        raise ConfigError("is not set; put it into the environment of this process", where=f"env:{name}")
    return os.environ[name]


def _of_file(path: Path) -> str:
    where = f"file:{path}"
    try:
        with path.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if mode & _OTHERS:
                raise ConfigError(f"may be read by others (mode {mode:04o}); run: chmod 600 {path}", where=where)
            content = stream.read(_SECRET_BYTES_MAX + 1)
        if len(content) > _SECRET_BYTES_MAX:
            raise ConfigError("is too large for a secret", where=where)
        return content.decode()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=where) from None
    except UnicodeDecodeError:
        raise ConfigError("is not text", where=where) from None
