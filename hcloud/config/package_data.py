"""Shipped data files: policies, profiles, unit files and the commented example configuration.

In a checkout (or an editable installation) they are next to the packages; a wheel contains them in ``hcloud/_shipped``.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_WHEEL_ROOT = _PACKAGE / "_shipped"


def root() -> Path:
    """Return the directory with ``policies/``, ``profiles/``, ``deploy/`` and ``config.example.yaml``."""
    return _WHEEL_ROOT if _WHEEL_ROOT.is_dir() else _PACKAGE.parent


def path(name: str) -> Path:
    """Return the path of a shipped file or directory, for example of ``policies/hm.yaml`` or ``policies``.

    Raises:
        FileNotFoundError: there is none of that name; the message lists the content of the same directory.
    """
    shipped = root() / name
    if shipped.exists():
        return shipped
    folder = shipped.parent
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    raise FileNotFoundError(f"HCloud ships no {name!r}; {folder.name}/ contains: {', '.join(names) or 'nothing'}")
