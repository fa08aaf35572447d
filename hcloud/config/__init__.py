"""Configuration, policies and job files, read from YAML with errors that name file, line and key."""

from hcloud.config.document import read_documents, to_yaml
from hcloud.config.files import (
    at_its_line,
    find_config,
    load_config,
    load_job,
    load_named_policy,
    load_policy,
    read_config,
    read_env_file,
)
from hcloud.config.profiles import load_library
from hcloud.config.secrets import resolve_secret
from hcloud.config.settings import (
    SOCKET_NAME,
    ApiSettings,
    CatalogSettings,
    Config,
    EngineSettings,
    ProviderSettings,
    RetentionSettings,
    TcpSettings,
    home_dir,
)
from hcloud.config.watch import PolicyStatus, PolicyWatch

__all__ = [
    "SOCKET_NAME",
    "ApiSettings",
    "CatalogSettings",
    "Config",
    "EngineSettings",
    "PolicyStatus",
    "PolicyWatch",
    "ProviderSettings",
    "RetentionSettings",
    "TcpSettings",
    "at_its_line",
    "find_config",
    "home_dir",
    "load_config",
    "load_job",
    "load_library",
    "load_named_policy",
    "load_policy",
    "read_config",
    "read_documents",
    "read_env_file",
    "resolve_secret",
    "to_yaml",
]
