"""Settings of the GCE provider: which project and zones, what to rent, and how a machine is made."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from hcloud.core.errors import ConfigError, missing_library
from hcloud.core.model import Market

EXTRA = "gcp"
ENDPOINT = "https://compute.googleapis.com"
SHORTEST_RUN_S, LONGEST_RUN_S = 30.0, 120 * 86400.0
"""What Compute Engine takes as ``maxRunDuration``."""


def _matching(pattern: str, what: str) -> AfterValidator:
    def check(text: str) -> str:
        """Return ``text`` as it is. Raises ValueError where it does not match."""
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
Secret = Annotated[
    str,
    _matching(
        r"projects/[^/]+/secrets/[^/]+/versions/[^/]+",
        "must name a version in Secret Manager: projects/PROJECT/secrets/NAME/versions/latest",
    ),
]
LabelKey = Annotated[str, _matching(r"[a-z][a-z0-9_-]{0,62}", "must be lower-case letters, digits, - or _")]
LabelText = Annotated[str, _matching(r"[a-z0-9_-]{0,63}", "must be lower-case letters, digits, - or _, at most 63")]


class _GceSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkerSettings(_GceSection):
    """How a new machine becomes a worker (``deploy/cloud-init``).

    Its keys come from one of three places: ``tls_secret``, the Secret Manager version the machine reads with its own
    service account; its metadata, where whoever may read the machine in the project can read them, only if
    ``tls_in_metadata``; else the image, in ``/etc/hcloud/tls``. ``package`` is what pip installs where the image lacks
    the program (empty: it must have it), from ``package_index`` where given (a mirror). ``scheduler_address`` is where
    machines reach the engine, if not at ``engine.listen``. A machine without a worker ``boot_timeout_s`` after
    its start switches itself off.
    """

    tls_secret: Secret | None = None
    tls_in_metadata: bool = False
    package: str = ""
    package_index: str = ""
    system_packages: bool = True
    scheduler_address: str = ""
    boot_timeout_s: float = Field(900.0, ge=60)


class GceSettings(_GceSection):
    """All settings of the GCE provider.

    ``types`` are patterns of machine types (``*`` and ``?``); custom ones (``n2-custom-4-8192``) are named in full.
    ``prices_file`` holds ``{region: {type: {"on_demand": usd, "spot": usd, "at": time}}}``; what has no price there is
    not offered. Where it is not given, it is the catalogue's.
    ``image`` needs cloud-init. ``credentials``: ``default`` (application default credentials), ``anonymous`` (for
    emulators) or the path of a key file. ``system_memory_mib`` is kept back from jobs for the system and the worker.
    ``launches_at_once``: how many launches are under way at the same time.
    ``longest_run_s`` is when Compute Engine itself deletes a machine whatever happens: its own limit cannot be moved
    while a machine runs, so a machine's earlier expiry is kept by its worker, which receives renewals.
    """

    project: Project
    zones: tuple[Zone, ...] = Field(min_length=1)
    types: tuple[str, ...] = Field(("e2-standard-*", "e2-highmem-*", "e2-highcpu-*"), min_length=1)
    markets: tuple[Market, ...] = Field((Market.ON_DEMAND, Market.SPOT), min_length=1)
    prices_file: Path
    image: str = Field("projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64", min_length=1)
    disk_gib: int = Field(30, ge=10, le=65536)
    disk_type: str = Field("pd-balanced", min_length=1)
    network: str = Field("global/networks/default", min_length=1)
    subnetwork: str | None = None
    external_ip: bool = False
    network_tags: tuple[str, ...] = ()
    service_account: str | None = None
    shielded: bool = True
    secure_boot: bool = True
    labels: Mapping[LabelKey, LabelText] = Field(default_factory=dict)
    worker: WorkerSettings = WorkerSettings()
    system_memory_mib: int = Field(512, ge=0)
    boot_delay_s: float = Field(60.0, gt=0)
    longest_run_s: float = Field(7 * 86400.0, ge=SHORTEST_RUN_S, le=LONGEST_RUN_S)
    credentials: str = Field("default", min_length=1)
    endpoint: Annotated[str, AfterValidator(_endpoint)] = ENDPOINT
    timeout_s: float = Field(20.0, gt=0)
    read_tries: int = Field(3, ge=1, le=10)
    operation_wait_s: float = Field(10.0, ge=0)
    operation_poll_s: float = Field(1.0, gt=0)
    launches_at_once: int = Field(8, ge=1, le=32)
    list_lag_s: float = Field(30.0, ge=0)

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions of the zones, sorted."""
        return tuple(sorted({region_of(zone) for zone in self.zones}))


def region_of(zone: str) -> str:
    """Return the region a zone is in: ``us-central1`` for ``us-central1-a``."""
    return zone.rpartition("-")[0]


def parse_settings(provider: str, settings: Mapping[str, object]) -> GceSettings:
    """Check settings, that the client library is installed and that a key file is where it is said to be.

    Raises:
        ConfigError: names the key and, for an unknown one, the nearest right one.
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
    """Raise ConfigError where the prices are not there; asked when the provider is built, for only then they must be.

    The daemon writes the catalogue's own file before that.
    """
    if not settings.prices_file.is_file():
        raise ConfigError(
            f"there is no file {str(settings.prices_file)!r}; `hcloud catalog refresh` writes the catalogue's, and "
            "without a price nothing is rented",
            where=f"providers.{provider}.settings.prices_file",
        )


def _refuse_missing_key(where: str, settings: GceSettings) -> None:
    if settings.credentials not in ("default", "anonymous") and not Path(settings.credentials).is_file():
        raise ConfigError(
            f"there is no file {settings.credentials!r}; give the path of a key file, 'default' or 'anonymous'",
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
    "string_too_short": "must not be empty",
    "enum": "must be {expected}",
    "mapping_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
}
"""What each kind of error says in plain words; the others say that the value is not right."""


def _first_error(where: str, error: ValidationError) -> ConfigError:
    errors = error.errors()
    unknown = [each for each in errors if each["type"] == "extra_forbidden"]
    first = (unknown or errors)[0]
    path = ".".join([where, *(str(part) for part in first["loc"])])
    if first["type"] == "missing":
        return ConfigError("is missing; it is needed", where=path)
    if not unknown:
        message = _WORDS.get(first["type"], "is not right").format(**first.get("ctx", {}))
        return ConfigError(f"{message}, not {first['input']!r}", where=path)
    key, known = str(first["loc"][-1]), _known_keys(first["loc"][:-1])
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return ConfigError(f"there is no setting {key}; {hint}", where=path)


def _known_keys(path: tuple[Any, ...]) -> list[str]:
    section: type[_GceSection] = WorkerSettings if path[:1] == ("worker",) else GceSettings
    return sorted(section.model_fields)
