"""Find the data files HCloud ships: policies, profiles, unit files and the commented example configuration.

In a checkout (also an editable installation) they lie beside the packages; a wheel has them in ``hcloud/_shipped``.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_WHEEL_ROOT = _PACKAGE / "_shipped"


def root() -> Path:
    """Directory that holds ``policies/``, ``profiles/``, ``deploy/`` and ``config.example.yaml``."""
    return _WHEEL_ROOT if _WHEEL_ROOT.is_dir() else _PACKAGE.parent


def path(name: str) -> Path:
    """Path of one shipped file or directory, for example ``path("policies/hm.yaml")`` or ``path("policies")``.

    Raises:
        FileNotFoundError: nothing of that name is shipped; the message lists what the same directory does hold.
    """
    found = root() / name
    if found.exists():
        return found
    beside = sorted(entry.name for entry in found.parent.iterdir()) if found.parent.is_dir() else []
    raise FileNotFoundError(f"HCloud ships no {name!r}; {found.parent.name}/ holds: {', '.join(beside) or 'nothing'}")
