"""What a deployment is configured to be: the schema of ``config.yaml``. Readers always see absolute paths and no nulls
where a value can be derived.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic.dataclasses import dataclass

from hcloud.config.locate import SOCKET_NAME, home_dir
from hcloud.config.secrets import check_secret
from hcloud.core.units import NonEmptyText, Number, PositiveCount, PositiveMib, PositiveSeconds, Seconds, shown
from hcloud.spec.validation import AtKey, nearest

_STRICT = ConfigDict(extra="forbid")
_SOCKET_PATH_BYTES_MAX = 107
_PRICED_TYPES: Final = ("ec2", "gce")
"""Types of providers that take their prices from the catalogue: its clouds, by name."""
_OWNER = r"^[a-z][a-z0-9-]{2,39}$"


def _absolute(value: object, info: ValidationInfo) -> object:
    """Resolve a path against the directory of the file it stands in (the context), ``~`` against the home directory."""
    if value is None or not isinstance(value, str | Path):
        return value
    if not str(value).strip() or "\0" in str(value):
        raise ValueError(f"must be a path, not {shown(str(value))}")
    base = (info.context or {}).get("base", Path.cwd())
    try:
        return base / Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"names a user that does not exist: {shown(str(value))}") from None


def _check_owner(text: str) -> str:
    if not re.fullmatch(_OWNER, text):
        raise ValueError(f"must be 3 to 40 lower-case letters, digits or dashes, a letter first, not {shown(text)}")
    return text


def _check_listen(text: str) -> str:
    match = re.fullmatch(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", text)
    if match is None or not 0 < int(match[1]) < 65536:
        raise ValueError(f"must be an address and a port such as 127.0.0.1:8443, not {shown(text)}")
    return text


def _check_ports(text: str) -> str:
    match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text)
    if match is None or not 1024 <= int(match[1]) <= int(match[2]) <= 65535:
        raise ValueError(f"must be a range of ports from 1024 such as 9100-9999, not {shown(text)}")
    return text


def _check_mode(text: str) -> str:
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ValueError(f'must be a file mode in quotes such as "0660", not {shown(text)}')
    if int(text, 8) & 0o007:
        raise ValueError(f"must not let everybody on this machine in: end it with 0, not {shown(text)}")
    return text


def _check_database(text: str, info: ValidationInfo) -> str:
    if re.match(r"postgres(ql)?(\+\w+)?://", text):
        if not text.startswith("postgresql+psycopg://"):
            raise ValueError("must begin with postgresql+psycopg:// for PostgreSQL")
        return text
    if not text.startswith("sqlite:///") or text in {"sqlite:///", "sqlite:///:memory:"}:
        raise ValueError("must be sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME")
    return f"sqlite:///{_absolute(text.removeprefix('sqlite:///'), info)}"


def _check_provider_type(text: str, info: ValidationInfo) -> str:
    """Refuse a plug-in that is not installed, where the reader of the file says which are (the context)."""
    known = (info.context or {}).get("provider_types")
    if known is not None and text not in known:
        raise ValueError(f"there is no provider type {shown(text)}; {nearest(text, known)}")
    return text


def _check_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", text):
        raise ValueError(f"must be an address such as https://prices.example.com, not {shown(text)}")
    return text


def _missing(value: object) -> bool:
    return value is None


def _port_of(listen: str) -> int:
    return int(listen.rpartition(":")[2])


AbsolutePath = Annotated[Path, BeforeValidator(_absolute, json_schema_input_type=str)]
Url = Annotated[NonEmptyText, AfterValidator(_check_url)]
Factor = Annotated[Number, Field(gt=1, le=1000)]
Listen = Annotated[NonEmptyText, AfterValidator(_check_listen)]
if TYPE_CHECKING:
    # What may be left out (or null) in the file is derived in __post_init__, so that readers always see a value.
    DerivedPath = Path
    DerivedText = str
else:
    DerivedPath = Annotated[Path | None, BeforeValidator(_absolute, json_schema_input_type=str | None)]
    DerivedText = Annotated[NonEmptyText, AfterValidator(_check_database)] | None


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class TcpSettings:
    """The API on the network: always with TLS and a token."""

    listen: Listen
    """Address and port, for example 0.0.0.0:8443."""
    certificate: AbsolutePath
    """PEM file of the server's certificate chain."""
    key: AbsolutePath
    """PEM file of its private key."""
    tokens_file: AbsolutePath
    """File of `name:sha256-of-token:role` lines; roles are reader, submitter and admin."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ApiSettings:
    """Who may talk to the daemon. Callers on the socket are known by their user name on this machine."""

    socket_mode: Annotated[NonEmptyText, AfterValidator(_check_mode)] = "0660"
    """File mode of the socket; who can open it can submit jobs."""
    socket_group: NonEmptyText | None = None
    """Group of the socket; null: that of the daemon."""
    tcp: TcpSettings | None = None
    """The API on the network; null: only the socket."""
    readers: tuple[NonEmptyText, ...] = ()
    """Users who may look but change nothing."""
    admins: tuple[NonEmptyText, ...] = ()
    """Users who may also cancel the jobs of others, pause and resume; the daemon's own user and root always may."""

    def __post_init__(self) -> None:
        both = sorted(set(self.readers) & set(self.admins))
        if both:
            raise AtKey("admins", f"names {both[0]}, who is also among the readers; keep one")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class EngineSettings:
    """How programs are run on the machines."""

    runner: Literal["dask", "fake"] = "dask"
    """dask: real programs; fake: pretend to run them (trying policies out)."""
    listen: Listen = "127.0.0.1:8786"
    """Where workers dial in; instances elsewhere need an address they can reach."""
    worker_ports: Annotated[NonEmptyText, AfterValidator(_check_ports)] = "9100-9999"
    """Ports for workers, one each."""
    tls_dir: DerivedPath = None  # type: ignore[assignment]
    """Directory of the CA and the keys made by `hcloud init`; null: <state_dir>/tls."""
    isolation: Literal["require", "best_effort"] = "best_effort"
    """require: refuse jobs where the machine cannot isolate them; best_effort: isolate as well as it can and say so."""
    unit_user_base: Annotated[int, Field(strict=True, ge=1000, le=2_000_000_000)] = 61000
    """First of the user ids under which jobs run (when the worker is root)."""
    max_workdir_mib: PositiveMib = 64
    """Largest work directory that may be uploaded."""
    max_log_mib: PositiveMib = 64
    """Largest log kept of one unit; the middle of longer ones is dropped."""

    def __post_init__(self) -> None:
        if _port_of(self.listen) in self.worker_port_range:
            raise AtKey("worker_ports", f"must not include the port of engine.listen ({self.listen})")

    @property
    def worker_port_range(self) -> range:
        """Ports for workers as a range."""
        first, last = self.worker_ports.split("-")
        return range(int(first), int(last) + 1)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ProviderSettings:
    """One place to rent machines from."""

    name: NonEmptyText
    """What policies, offers and reports call it."""
    type: Annotated[NonEmptyText, AfterValidator(_check_provider_type)]
    """Which plug-in: local (slices of this machine), mock (pretended), or one that was installed."""
    poll_s: PositiveSeconds = 2.0
    """List its machines this often while something changes; less often when nothing does."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The plug-in's own settings."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class RetentionSettings:
    """How long the past is kept."""

    events_days: Annotated[int, Field(ge=32)] = 400
    """Audit log, costs, jobs and machines; reports reach back no further. A month's budget counts by it."""
    logs_days: PositiveCount = 30
    """Output of jobs that ended."""
    samples_days: PositiveCount = 30
    """CPU, memory, rate and latency samples."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class AwsPriceSettings:
    """Prices of EC2."""

    regions: tuple[NonEmptyText, ...] = ()
    """Regions whose prices are read; empty: none."""
    price_list: Literal["bulk", "query"] = "bulk"
    """bulk: files of some hundred MB per region, no credentials; query: a few MB, needs pricing:GetProducts."""
    endpoint: Url | None = None
    """Where the price list is; null: AWS's own."""
    spot: bool = True
    """Also read spot prices; needs ec2:DescribeSpotPriceHistory and the extra `aws`."""
    ec2_endpoint: Url | None = None
    """Where spot prices are asked for; null: AWS's own."""
    profile: NonEmptyText | None = None
    """Profile of the AWS configuration files; null: the usual chain (environment, role of this machine...)."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class GcpPriceSettings:
    """Prices of Compute Engine."""

    api_key: Annotated[NonEmptyText, AfterValidator(check_secret)] | None = None
    """Where the key of the Cloud Billing API is: env:NAME or file:PATH, never the key itself; null: nothing is read."""
    regions: tuple[NonEmptyText, ...] = ()
    """Regions whose prices are kept; empty: all."""
    endpoint: Url = "https://cloudbilling.googleapis.com"
    """Where the catalogue of prices is."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class CatalogSettings:
    """Where prices come from. Without any of this, they are those of the shipped snapshot, with its date."""

    refresh_every_s: Annotated[Seconds, Field(ge=600)] | None = None
    """The daemon reads new prices this often; null: only `hcloud catalog refresh` does."""
    price_factor_max: Factor = 3.0
    """A price that moved by more than this factor, up or down, is held back until `hcloud catalog refresh --accept`."""
    spot_factor_max: Factor = 10.0
    """The same for spot prices."""
    spot_history_days: PositiveCount = 90
    """How long spot prices are kept."""
    aws: AwsPriceSettings = AwsPriceSettings()
    """Prices of EC2."""
    gcp: GcpPriceSettings = GcpPriceSettings()
    """Prices of Compute Engine."""

    def __post_init__(self) -> None:
        if self.refresh_every_s is not None and not self.aws.regions and self.gcp.api_key is None:
            raise AtKey("refresh_every_s", "has nothing to read: name aws.regions or gcp.api_key, or leave it out")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Config:
    """One deployment of HCloud."""

    owner: Annotated[NonEmptyText, AfterValidator(_check_owner), Field(json_schema_extra={"pattern": _OWNER})]
    """Tag on every machine of this deployment, the only ones it ever lists or touches. Unique per cloud account."""
    state_dir: DerivedPath = None  # type: ignore[assignment]
    """Database, logs, uploads, keys; null: $HCLOUD_HOME, else ~/.hcloud."""
    run_dir: DerivedPath = None  # type: ignore[assignment]
    """Socket and process id; null: <state_dir>/run."""
    database: DerivedText = field(default=None, repr=False)  # type: ignore[assignment]
    """sqlite:///FILE, postgresql+psycopg://... or a reference ${HCLOUD_DATABASE}; null: <state_dir>/hcloud.db."""
    policy: Annotated[AbsolutePath, Field(validate_default=True)] = Path("policies/default.yaml")
    """The policy in force; read again when it changes."""
    cycle_interval_s: PositiveSeconds = 1.0
    """Observe, plan and act at least this often."""
    api: ApiSettings = ApiSettings()
    """Who may talk to the daemon."""
    engine: EngineSettings = EngineSettings()
    """How programs are run."""
    providers: tuple[ProviderSettings, ...] = (ProviderSettings(name="local", type="local"),)
    """Where machines come from."""
    catalog: CatalogSettings = CatalogSettings()
    """Where prices come from."""
    retention: RetentionSettings = RetentionSettings()
    """How long the past is kept."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is logged."""

    def __post_init__(self) -> None:
        self._derive("state_dir", home_dir())
        self._derive("run_dir", self.state_dir / "run")
        self._derive("database", f"sqlite:///{self.state_dir / 'hcloud.db'}")
        if _missing(self.engine.tls_dir):
            object.__setattr__(self, "engine", replace(self.engine, tls_dir=self.state_dir / "tls"))
        self._check()

    def _derive(self, name: str, value: object) -> None:
        if _missing(getattr(self, name)):
            object.__setattr__(self, name, value)

    def _check(self) -> None:
        names = [provider.name for provider in self.providers]
        if not names:
            raise AtKey("providers", "is empty, so there would be no machines; name at least one")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise AtKey("providers", f"names {twice!r} twice; give each a name of its own")
        if len(os.fsencode(self.socket_path)) > _SOCKET_PATH_BYTES_MAX:
            raise AtKey("run_dir", f"is too long for a socket ({_SOCKET_PATH_BYTES_MAX} bytes): {self.socket_path}")
        if self.api.tcp is not None and _port_of(self.api.tcp.listen) == _port_of(self.engine.listen):
            raise AtKey("api", f"tcp.listen has the port of engine.listen ({self.engine.listen})")

    @property
    def catalog_dir(self) -> Path:
        """Where the catalogue of prices is kept."""
        return self.state_dir / "catalog"

    def settings_of(self, provider: ProviderSettings) -> Mapping[str, Any]:
        """A provider's own settings; one that takes prices gets the catalogue's where it names none."""
        if provider.type not in _PRICED_TYPES or {"prices", "prices_file"} & set(provider.settings):
            return provider.settings
        return {**provider.settings, "prices_file": str(self.catalog_dir / f"{provider.type}.json")}

    @property
    def socket_path(self) -> Path:
        """The Unix socket of the API."""
        return self.run_dir / SOCKET_NAME
