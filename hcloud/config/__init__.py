"""The only reader of YAML: configuration, policies and job files, with errors that name file, line and key.

Names are imported when they are used: commands that only look for the daemon's socket load none of the schemas.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hcloud.config.accepted_limits import (
        AcceptedLimits,
        TokenEntry,
        limits_of,
        loosened,
        parse_limits,
        stricter,
        with_limits,
    )
    from hcloud.config.document import read_documents, to_yaml
    from hcloud.config.files import (
        at_its_line,
        load_config,
        load_engine,
        load_job,
        load_named_policy,
        load_policy,
        new_defaults_note,
        read_config,
        read_env_file,
    )
    from hcloud.config.locate import SOCKET_NAME, find_config, home_dir
    from hcloud.config.plugins import load_plugins
    from hcloud.config.profiles import load_library
    from hcloud.config.secrets import resolve_secret
    from hcloud.config.settings import (
        ApiSettings,
        CatalogSettings,
        Config,
        EngineSettings,
        NotificationTarget,
        ProviderSettings,
        RetentionSettings,
        TcpSettings,
    )
    from hcloud.config.watch import FileWatch, PolicyStatus, PolicyWatch

_MODULES = {
    "accepted_limits": (
        "AcceptedLimits", "TokenEntry", "limits_of", "loosened", "parse_limits", "stricter", "with_limits",
    ),
    "document": ("read_documents", "to_yaml"),
    "files": (
        "at_its_line", "load_config", "load_engine", "load_job", "load_named_policy", "load_policy",
        "new_defaults_note", "read_config", "read_env_file",
    ),
    "locate": ("SOCKET_NAME", "find_config", "home_dir"),
    "plugins": ("load_plugins",),
    "profiles": ("load_library",),
    "secrets": ("resolve_secret",),
    "settings": (
        "ApiSettings", "CatalogSettings", "Config", "EngineSettings", "NotificationTarget", "ProviderSettings",
        "RetentionSettings", "TcpSettings",
    ),
    "watch": ("FileWatch", "PolicyStatus", "PolicyWatch"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "SOCKET_NAME",
    "AcceptedLimits",
    "ApiSettings",
    "CatalogSettings",
    "Config",
    "EngineSettings",
    "FileWatch",
    "NotificationTarget",
    "PolicyStatus",
    "PolicyWatch",
    "ProviderSettings",
    "RetentionSettings",
    "TcpSettings",
    "TokenEntry",
    "at_its_line",
    "find_config",
    "home_dir",
    "limits_of",
    "load_config",
    "load_engine",
    "load_job",
    "load_library",
    "load_named_policy",
    "load_plugins",
    "load_policy",
    "loosened",
    "new_defaults_note",
    "parse_limits",
    "read_config",
    "read_documents",
    "read_env_file",
    "resolve_secret",
    "stricter",
    "to_yaml",
    "with_limits",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
