"""Where a deployment's configuration and socket are, without reading the whole configuration: commands need no more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from hcloud.core.errors import ConfigError

SYSTEM_CONFIG = Path("/etc/hcloud/config.yaml")
SOCKET_NAME: Final = "hcloud.sock"


def home_dir() -> Path:
    """Return where a user's HCloud lives: ``$HCLOUD_HOME``, else ``~/.hcloud``."""
    return Path(os.environ.get("HCLOUD_HOME") or "~/.hcloud").expanduser().absolute()


def find_config(explicit: Path | None = None) -> Path:
    """Return the configuration file in force.

    The first of: ``explicit`` and ``$HCLOUD_CONFIG`` (whether or not there is such a file), ``./hcloud.yaml``,
    ``config.yaml`` in ``$HCLOUD_HOME`` or ``~/.hcloud``, ``/etc/hcloud/config.yaml``.

    Raises:
        ConfigError: there is none anywhere.
    """
    if explicit is not None:
        return explicit
    if os.environ.get("HCLOUD_CONFIG"):
        return Path(os.environ["HCLOUD_CONFIG"])
    places = [Path("hcloud.yaml"), home_dir() / "config.yaml", SYSTEM_CONFIG]
    for place in places:
        if place.is_file():
            return place
    looked = ", ".join(str(place) for place in places)
    raise ConfigError(f"there is no configuration (looked for {looked}); `hcloud init` creates one")


def stated_socket(file: Path) -> Path | None:
    """Return the API's socket as a configuration states it, unchecked; None where only a full reading can say."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        with file.expanduser().open(encoding="utf-8") as stream:
            value = loader(stream).get_single_data()
    except (OSError, ValueError, yaml.YAMLError):
        return None
    if not isinstance(value, dict):
        return None
    run_dir, state_dir = value.get("run_dir"), value.get("state_dir")
    if not all(each is None or (isinstance(each, str) and each) for each in (run_dir, state_dir)):
        return None
    base = file.expanduser().absolute().parent
    if run_dir is not None:
        return base / Path(run_dir).expanduser() / SOCKET_NAME
    return (base / Path(state_dir).expanduser() if state_dir is not None else home_dir()) / "run" / SOCKET_NAME
