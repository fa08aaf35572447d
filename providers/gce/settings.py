"""Settings of the GCE provider: project, zones, machine types, and how instances are created."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hcloud.core.errors import ConfigError, missing_library
from hcloud.core.model import Market

EXTRA = "gcp"
ENDPOINT = "https://compute.googleapis.com"
SHORTEST_RUN_S, LONGEST_RUN_S = 30.0, 120 * 86400.0
"""Limits of Compute Engine's ``maxRunDuration``."""


def _matching(pattern: str, what: str) -> AfterValidator:
    def check(text: str) -> str:

        if not re.fullmatch(pattern, text):
            raise ValueError(what)
        return text

    return AfterValidator(check)


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
        raise ValueError(f"must be a scheme and a host, for example {ENDPOINT}")
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        raise ValueError("must be https except on this machine, because credentials are sent there")
    return text.rstrip("/")


Zone = Annotated[str, _matching(r"[a-z]+-[a-z]+\d+-[a-z]", "must be a zone such as us-central1-a")]
Project = Annotated[
    str,
    _matching(
        r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]",
        "must be a project id: 6 to 30 lower-case letters, digits or dashes, a letter first",
    ),
]
Addresses = Annotated[
    tuple[Annotated[str, _matching(r"\S+:[0-9]{1,5}", "must be addresses and ports such as 10.128.0.5:8786")], ...],
    BeforeValidator(lambda given: (given,) if isinstance(given, str) and given else given or ()),
]
LabelKey = Annotated[str, _matching(r"[a-z][a-z0-9_-]{0,62}", "must be lower-case letters, digits, - or _")]
MAX_LABELS: Final = 64
"""Labels of one instance that Compute Engine allows, HCloud's five among them."""
OWN_LABELS: Final = 5
LabelText = Annotated[str, _matching(r"[a-z0-9_-]{0,63}", "must be lower-case letters, digits, - or _, at most 63")]


class _GceSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkerSettings(_GceSection):
    """How an instance becomes a worker (``deploy/cloud-init``)."""

    system_packages: bool = True
    """Install bubblewrap, nftables, stress-ng and Python at boot where they are missing; false: the image has them."""
    container_images: bool = False
    """Install podman at boot where it is missing, so that jobs with an `image` can run; true if the image has it."""
    gateway_addresses: Addresses = ()
    """Addresses of the gateways as seen from the instances; default: engine.gateway_addresses."""
    boot_timeout_s: float = Field(900.0, ge=60)
    """An instance without a running worker by then switches itself off."""


class GceSettings(_GceSection):
    """Every setting under ``providers: [{type: gce, settings: ...}]``."""

    project: Project
    """Project id."""
    zones: tuple[Zone, ...] = Field(min_length=1)
    """Zones to use."""
    types: tuple[str, ...] = Field(("e2-standard-*", "e2-highmem-*", "e2-highcpu-*"), min_length=1)
    """Patterns of machine types (``*`` and ``?``). Custom types (``n2-custom-4-8192``) are named in full."""
    markets: tuple[Market, ...] = Field((Market.ON_DEMAND, Market.SPOT), min_length=1)
    """Markets to use."""
    prices_file: Path
    """Prices: ``{region: {type: {"on_demand": usd, "spot": usd, "at": time}}}``; default: the catalog's file."""
    image: str = Field("projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64", min_length=1)
    """Boot image; it needs cloud-init."""
    disk_gib: int = Field(30, ge=10, le=65536)
    disk_type: str = Field("pd-balanced", min_length=1)
    network: str = Field("global/networks/default", min_length=1)
    subnetwork: str | None = None
    """Subnetwork, by name or path; default: that of ``network``."""
    external_ip: bool = False
    """Give instances a public address; without one they need Cloud NAT or private access."""
    network_tags: tuple[str, ...] = ()
    """Network tags for firewall rules."""
    service_account: str | None = None
    """Service account of the instances, for what jobs do with Google Cloud; HCloud itself needs none."""
    shielded: bool = True
    secure_boot: bool = True
    labels: Mapping[LabelKey, LabelText] = Field(default_factory=dict, max_length=MAX_LABELS - OWN_LABELS)
    worker: WorkerSettings = WorkerSettings()
    system_memory_mib: int = Field(512, ge=0)
    """Memory reserved for the system and the worker."""
    boot_delay_s: float = Field(60.0, gt=0)
    """Typical time from launch to a registered worker."""
    longest_run_s: float = Field(7 * 86400.0, ge=SHORTEST_RUN_S, le=LONGEST_RUN_S)
    """When Compute Engine itself deletes an instance.

    This limit cannot be moved while the instance runs, so the worker enforces the earlier, renewable expiry.
    """
    credentials: str = Field("default", min_length=1)
    """``default`` (application default credentials), ``anonymous`` (for emulators) or the path of a key file."""
    endpoint: Annotated[str, AfterValidator(_endpoint)] = ENDPOINT
    timeout_s: float = Field(20.0, gt=0)
    """Timeout of one call."""
    read_tries: int = Field(3, ge=1, le=10)
    """Attempts per read."""
    operation_wait_s: float = Field(10.0, ge=0)
    """How long a launch waits for its operation."""
    operation_poll_s: float = Field(1.0, gt=0)
    launches_at_once: int = Field(8, ge=1, le=32)
    """Concurrent launches."""
    list_lag_s: float = Field(30.0, ge=0)
    """How long a new instance may be missing from listings."""

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions of the zones, sorted."""
        return tuple(sorted({region_of(zone) for zone in self.zones}))


def region_of(zone: str) -> str:
    """Return the region of a zone: ``us-central1`` for ``us-central1-a``."""
    return zone.rpartition("-")[0]


def parse_settings(provider: str, settings: Mapping[str, object]) -> GceSettings:
    """Check settings, the client library and the key file.

    Raises ConfigError: names the key and, for an unknown one, the nearest known key.
    """
    where = f"providers.{provider}.settings"
    try:
        parsed = GceSettings.model_validate(dict(settings))
    except ValidationError as error:
        raise _first_error(where, error) from error
    _refuse_missing_library(where)
    _refuse_missing_key(where, parsed)
    return parsed


def _refuse_missing_library(where: str) -> None:
    try:
        found = importlib.util.find_spec("google.cloud.compute_v1")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError(missing_library("the Google client library", EXTRA), where=where)


def refuse_missing_prices(provider: str, settings: GceSettings) -> None:
    """Raise ConfigError if the price file does not exist."""
    # Not part of parse_settings: the daemon writes the catalog's own file before it builds providers.
    if not settings.prices_file.is_file():
        raise ConfigError(
            f"{str(settings.prices_file)!r} does not exist; `hcloud catalog refresh` writes the catalog's file, and "
            "types without a price are not offered",
            where=f"providers.{provider}.settings.prices_file",
        )


def _refuse_missing_key(where: str, settings: GceSettings) -> None:
    if settings.credentials not in ("default", "anonymous") and not Path(settings.credentials).is_file():
        raise ConfigError(
            f"{settings.credentials!r} does not exist; set the path of a key file, 'default' or 'anonymous'",
            where=f"{where}.credentials",
        )


_WORDS = {
    "value_error": "{error}",
    "string_type": "must be text",
    "path_type": "must be a path",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} entries",
    "string_too_short": "must not be empty",
    "enum": "must be {expected}",
    "mapping_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
}
"""Messages by type of validation error; other types say that the value is invalid."""


def _first_error(where: str, error: ValidationError) -> ConfigError:
    errors = error.errors()
    unknown = [each for each in errors if each["type"] == "extra_forbidden"]
    first = (unknown or errors)[0]
    path = ".".join([where, *(str(part) for part in first["loc"])])
    if first["type"] == "missing":
        return ConfigError("is required", where=path)
    if not unknown:
        message = _WORDS.get(first["type"], "is invalid").format(**first.get("ctx", {}))
        return ConfigError(f"{message}, not {first['input']!r}", where=path)
    key, path_to_key = str(first["loc"][-1]), first["loc"][:-1]
    section: type[_GceSection] = WorkerSettings if path_to_key[:1] == ("worker",) else GceSettings
    known = sorted(section.model_fields)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return ConfigError(f"unknown setting {key}; {hint}", where=path)
