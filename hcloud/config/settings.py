"""The configuration of a deployment: the schema of ``config.yaml``.

The text under each field is its description in ``hcloud config schema``. In a :class:`Config`, paths are absolute, and
values that can be derived are never None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import field, replace
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic.dataclasses import dataclass

from hcloud.config.locate import SOCKET_NAME, home_dir
from hcloud.config.secrets import check_secret
from hcloud.core.bucket_urls import parse_bucket_url
from hcloud.core.units import Flag, NonEmptyText, Number, PositiveCount, PositiveMib, PositiveSeconds, Seconds, shown
from hcloud.spec.validation import AtKey, nearest

_STRICT = ConfigDict(extra="forbid")
_SOCKET_PATH_BYTES_MAX = 107
_PRICED_TYPES: Final = ("ec2", "gce")
"""Provider types that take their prices from the catalog, which has files of the same names."""
_OWNER = r"^[a-z][a-z0-9-]{2,39}$"


def _absolute(value: object, info: ValidationInfo) -> object:
    """Resolve a path against the directory of its configuration file (``base`` of the context), and ``~``."""
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


def _check_network(text: str) -> str:
    try:
        ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"must be an address or a network such as 198.51.100.0/24, not {shown(text)}") from None
    return text


def _check_mode(text: str) -> str:
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ValueError(f'must be a file mode in quotes such as "0660", not {shown(text)}')
    if int(text, 8) & 0o007:
        raise ValueError(f"must not give access to all users; the last digit must be 0, not {shown(text)}")
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
    """Refuse a plug-in that is not installed, if the context lists ``provider_types``."""
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
Network = Annotated[NonEmptyText, AfterValidator(_check_network)]
if TYPE_CHECKING:
    # Null in the file: __post_init__ derives the value, so readers never see None.
    DerivedPath = Path
    DerivedText = str
    DerivedListen = str
else:
    DerivedPath = Annotated[Path | None, BeforeValidator(_absolute, json_schema_input_type=str | None)]
    DerivedText = Annotated[NonEmptyText, AfterValidator(_check_database)] | None
    DerivedListen = Listen | None


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class TcpSettings:
    """The API over the network, always with TLS and a token."""

    listen: Listen
    """Address and port, for example 0.0.0.0:8443."""
    certificate: AbsolutePath
    """PEM file of the server's certificate chain."""
    key: AbsolutePath
    """PEM file of the private key."""
    tokens_file: AbsolutePath
    """File with lines `name:sha256-of-token:role`; roles are reader, submitter and admin. New ones wait for
    `hcloud policy accept`."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ApiSettings:
    """Access to the daemon's API. On the socket, users are identified by their user name on this machine."""

    socket_mode: Annotated[NonEmptyText, AfterValidator(_check_mode)] = "0660"
    """File mode of the socket; every user who can open it can submit jobs."""
    socket_group: NonEmptyText | None = None
    """Group of the socket; null: the daemon's own group."""
    tcp: TcpSettings | None = None
    """The API over the network; null: only the socket."""
    readers: tuple[NonEmptyText, ...] = ()
    """Users with read-only access."""
    admins: tuple[NonEmptyText, ...] = ()
    """Users who may also cancel other users' jobs, pause and resume; root always may."""
    max_uploads_mib: PositiveMib = 1024
    """Uploaded work directories kept for one user; the oldest that no job needs are deleted to make room."""
    exec: Flag = True
    """Owners of jobs and admins may run commands inside running jobs (`hcloud exec`)."""

    def __post_init__(self) -> None:
        both = sorted(set(self.readers) & set(self.admins))
        if both:
            raise AtKey("admins", f"names {both[0]}, who is also one of the readers; keep one")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class EngineSettings:
    """How programs run on the instances."""

    programs: Literal["real", "simulated"] = "real"
    """real: run programs on the instances; simulated: pretend to, to try policies on the mock provider."""
    listen: Listen = "127.0.0.1:8786"
    """Address to which workers connect; instances on other hosts must be able to reach it."""
    enrolment_listen: DerivedListen = None  # type: ignore[assignment]
    """Address at which new instances get agent and certificate; null: the port after that of listen."""
    gateway_addresses: tuple[Listen, ...] = ()
    """Addresses of this daemon and its standbys as instances reach them; empty: listen."""
    translated_addresses: tuple[Network, ...] = ()
    """Addresses or networks of address translation (NAT), behind which new instances may be; empty: there is none."""
    tls_dir: DerivedPath = None  # type: ignore[assignment]
    """Directory of the certificate authority and keys that `hcloud init` creates; null: <state_dir>/tls."""
    isolation: Literal["require", "best_effort"] | None = None
    """require: refuse jobs on instances that cannot isolate them; best_effort: isolate as far as possible; null:
    require on rented machines, best_effort on this host."""
    unit_user_base: Annotated[int, Field(strict=True, ge=1000, le=2_000_000_000)] = 61000
    """First of the user ids under which jobs run, if workers run as root."""
    max_workdir_mib: PositiveMib = 64
    """Largest work directory that can be uploaded."""
    max_log_mib: PositiveMib = 64
    """Largest log of one unit; of longer ones, the middle is dropped."""
    max_outputs_mib: PositiveMib = 4096
    """Largest archive of the outputs of one unit; of a larger one nothing is kept."""
    max_user_outputs_mib: PositiveMib = 65_536
    """Outputs kept for one user; beyond, the oldest are deleted."""

    def __post_init__(self) -> None:
        if _missing(self.enrolment_listen):
            host, _, port = self.listen.rpartition(":")
            if port == "65535":
                raise AtKey("listen", "has the highest port, and enrolment_listen needs the next one; set it too")
            object.__setattr__(self, "enrolment_listen", f"{host}:{int(port) + 1}")

    @property
    def enrolment_port_offset(self) -> int:
        """How much higher the port of enrolment is."""
        return _port_of(self.enrolment_listen) - _port_of(self.listen)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ProviderSettings:
    """A source of instances."""

    name: NonEmptyText
    """Its name in policies, offers and reports."""
    type: Annotated[NonEmptyText, AfterValidator(_check_provider_type)]
    """Plug-in: local (slices of this machine), mock (simulated), ec2, gce, or another installed one."""
    poll_s: PositiveSeconds = 2.0
    """How often its instances are listed while something changes; less often otherwise."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the plug-in."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class RetentionSettings:
    """How long records are kept."""

    events_days: Annotated[int, Field(ge=32)] = 400
    """Audit log, costs, jobs and instances: the range of reports. At least 32, for monthly budgets."""
    logs_days: PositiveCount = 30
    """Output of ended jobs."""
    samples_days: PositiveCount = 30
    """Samples of CPU, memory, request rate and latency."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class AwsPriceSettings:
    """Prices of EC2."""

    regions: tuple[NonEmptyText, ...] = ()
    """Regions to read prices of; empty: on-demand prices of those of the EC2 providers with Amazon's own endpoint."""
    price_list: Literal["bulk", "query"] = "bulk"
    """bulk: some hundred MB per region, without credentials; query: a few MB, needs pricing:GetProducts."""
    endpoint: Url | None = None
    """Address of the price list; null: AWS's own."""
    spot: bool = True
    """Also read spot prices; needs ec2:DescribeSpotPriceHistory and the extra `aws`."""
    ec2_endpoint: Url | None = None
    """Address of the EC2 API for spot prices; null: AWS's own."""
    profile: NonEmptyText | None = None
    """Profile of the AWS configuration files; null: the default credential chain."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class GcpPriceSettings:
    """Prices of Compute Engine."""

    api_key: Annotated[NonEmptyText, AfterValidator(check_secret)] | None = None
    """Location of the Cloud Billing API key, env:NAME or file:/PATH, not the key itself; null: no prices are read."""
    regions: tuple[NonEmptyText, ...] = ()
    """Regions to keep prices of; empty: all."""
    endpoint: Url = "https://cloudbilling.googleapis.com"
    """Address of the Cloud Billing API."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class CatalogSettings:
    """Sources of prices. Without any that can be read, prices are those of the shipped snapshot."""

    refresh_every_s: Annotated[Seconds, Field(ge=600)] | None = 86_400.0
    """How often the daemon refreshes prices; null: only `hcloud catalog refresh` does."""
    price_factor_max: Factor = 3.0
    """Prices that change by more than this factor are held back until `hcloud catalog refresh --accept`."""
    spot_factor_max: Factor = 10.0
    """The same limit for spot prices."""
    spot_history_days: PositiveCount = 90
    """How long the history of spot prices is kept."""
    aws: AwsPriceSettings = AwsPriceSettings()
    """Prices of EC2."""
    gcp: GcpPriceSettings = GcpPriceSettings()
    """Prices of Compute Engine."""


NotificationKind = Literal["job_ended", "budget", "spot_loss", "provider_trouble"]
ALL_NOTIFICATIONS: Final[tuple[NotificationKind, ...]] = ("job_ended", "budget", "spot_loss", "provider_trouble")


def _check_webhook(text: str) -> str:
    if text.startswith(("env:", "file:")):
        return check_secret(text)
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?(\?[^\s#]*)?", text):
        raise ValueError("must be an address such as https://hooks.example.com/x, or env:NAME or file:/PATH")
    return text


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class NotificationTarget:
    """An address to which messages about events go. Jobs cannot name one: only the operator may."""

    name: Annotated[NonEmptyText, AfterValidator(_check_owner)]
    """Its name in status and log: letters, digits and dashes."""
    url: Annotated[NonEmptyText, AfterValidator(_check_webhook)] = field(repr=False)
    """Address, or where it is kept if it is a secret, as those of Slack are: env:NAME or file:/PATH."""
    form: Literal["webhook", "slack"] = "webhook"
    """webhook: JSON in the form of Standard Webhooks; slack: as Slack's incoming webhooks take it."""
    key: Annotated[NonEmptyText, AfterValidator(check_secret)] | None = None
    """Location of the key that signs webhooks (HMAC-SHA256), env:NAME or file:/PATH; null: they are not signed."""
    events: Annotated[tuple[NotificationKind, ...], Field(min_length=1)] = ALL_NOTIFICATIONS
    """Kinds of events that it gets messages about."""
    users: tuple[NonEmptyText, ...] = ()
    """Users about whose jobs and budgets it gets messages; empty: all."""

    def __post_init__(self) -> None:
        if self.form == "slack" and self.key is not None:
            raise AtKey("key", "signs webhooks; Slack checks no signature; leave it out")


def _check_bucket(text: str) -> str:
    parse_bucket_url(text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class BucketSettings:
    """A bucket, or a folder of it, that the daemon may use for jobs. Jobs can name no other."""

    url: Annotated[NonEmptyText, AfterValidator(_check_bucket)]
    """s3://BUCKET or gs://BUCKET, with a folder if only that may be used."""
    users: tuple[NonEmptyText, ...] = ()
    """Users whose jobs may use it; empty: all."""
    access: Literal["read", "read_write"] = "read_write"
    """read: for inputs only; read_write: also for outputs."""
    endpoint: Url | None = None
    """Address of the store as machines reach it too; null: Amazon's or Google's own."""
    region: NonEmptyText | None = None
    """Region of an S3 bucket; null: that of the AWS configuration files."""
    profile: NonEmptyText | None = None
    """Profile of the AWS configuration files; null: the default credential chain."""

    def __post_init__(self) -> None:
        for name in ("region", "profile"):
            if self.url.startswith("gs://") and getattr(self, name) is not None:
                raise AtKey(name, "is for s3:// only; leave it out")


def _check_prefix(text: str) -> str:
    if not text.startswith(("aws:", "gcp:projects/")):
        raise ValueError(f"must begin with aws: or gcp:projects/, not {shown(text)}")
    return text


def _bucket_from_url(value: object) -> object:
    return {"url": value} if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class FilesSettings:
    """Files of jobs in buckets. Machines get URLs signed for single objects, never credentials."""

    buckets: tuple[
        Annotated[BucketSettings, BeforeValidator(_bucket_from_url, json_schema_input_type=BucketSettings | str)], ...
    ] = ()
    """Buckets that jobs may name in `inputs` and `outputs`: addresses, or mappings."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ImagesSettings:
    """Whether container images are there is asked of their registries when jobs are submitted."""

    ask_registries: bool = True
    """false: a missing image shows only on the machine."""
    unanswered: Literal["refuse", "accept"] = "refuse"
    """Jobs whose image's registry gives no answer now. accept: where only the machines reach registries."""
    private_registries: tuple[Url, ...] = ()
    """Registries at addresses that are not public, or without TLS, to ask too: https://HOST:PORT or http://HOST:PORT."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class SecretsSettings:
    """Secrets of jobs in secret managers, which the daemon reads with its own credentials when a job starts."""

    references: tuple[Annotated[NonEmptyText, AfterValidator(_check_prefix)], ...] = ()
    """Beginnings of the references that jobs may name, such as aws:prod/ or gcp:projects/NAME/secrets/; {user} in one
    stands for the job's owner. Empty: none."""
    aws_region: NonEmptyText | None = None
    """Region of AWS Secrets Manager, unless a reference is an ARN; null: that of the AWS configuration files."""
    aws_endpoint: Url | None = None
    """Address of AWS Secrets Manager; null: Amazon's own."""
    gcp_endpoint: Url | None = None
    """Address of GCP Secret Manager; null: Google's own."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Config:
    """Configuration of one deployment."""

    owner: Annotated[NonEmptyText, AfterValidator(_check_owner), Field(json_schema_extra={"pattern": _OWNER})]
    """Tag on every instance of this deployment, which lists and terminates no others. Unique per cloud account."""
    state_dir: DerivedPath = None  # type: ignore[assignment]
    """Directory of database, logs, uploads and keys; null: $HCLOUD_HOME, else ~/.hcloud."""
    run_dir: DerivedPath = None  # type: ignore[assignment]
    """Directory of the socket and its lock; null: <state_dir>/run."""
    database: DerivedText = field(default=None, repr=False)  # type: ignore[assignment]
    """sqlite:///FILE, postgresql+psycopg://... or a reference ${HCLOUD_DATABASE}; null: <state_dir>/hcloud.db."""
    secrets_key_file: AbsolutePath | None = None
    """File (mode 0400) of the keys that encrypt secrets of jobs, made with the first secret; null: the systemd
    credential secrets.key, else <state_dir>/secrets.key."""
    secrets: SecretsSettings = SecretsSettings()
    """Secrets of jobs in secret managers."""
    policy: Annotated[AbsolutePath, Field(validate_default=True)] = Path("policies/default.yaml")
    """Policy file; read again when it changes."""
    cycle_interval_s: PositiveSeconds = 1.0
    """Longest time between two planning cycles."""
    api: ApiSettings = ApiSettings()
    """Access to the daemon's API."""
    engine: EngineSettings = EngineSettings()
    """How programs run on the instances."""
    providers: tuple[ProviderSettings, ...] = (ProviderSettings(name="local", type="local"),)
    """Sources of instances."""
    catalog: CatalogSettings = CatalogSettings()
    """Sources of prices."""
    retention: RetentionSettings = RetentionSettings()
    """How long records are kept."""
    images: ImagesSettings = ImagesSettings()
    """Container images of jobs."""
    files: FilesSettings = FilesSettings()
    """Files of jobs in buckets."""
    notifications: tuple[NotificationTarget, ...] = ()
    """Addresses to which messages about events go."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""

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
            raise AtKey("providers", "is empty, so there would be no instances; name at least one")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise AtKey("providers", f"has two entries named {twice!r}; give each its own name")
        names = [target.name for target in self.notifications]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise AtKey("notifications", f"has two entries named {twice!r}; give each its own name")
        if len(os.fsencode(self.socket_path)) > _SOCKET_PATH_BYTES_MAX:
            raise AtKey("run_dir", f"is too long for a socket ({_SOCKET_PATH_BYTES_MAX} bytes): {self.socket_path}")
        ports = {name: _port_of(getattr(self.engine, name)) for name in ("listen", "enrolment_listen")}
        if ports["listen"] == ports["enrolment_listen"]:
            raise AtKey("engine", f"enrolment_listen has the same port as listen ({self.engine.listen})")
        taken = next((name for name, port in ports.items() if self._api_port() == port), None)
        if taken:
            raise AtKey("api", f"tcp.listen has the same port as engine.{taken} ({getattr(self.engine, taken)})")

    def _api_port(self) -> int | None:
        return _port_of(self.api.tcp.listen) if self.api.tcp is not None else None

    @property
    def catalog_dir(self) -> Path:
        """Directory of the price catalog."""
        return self.state_dir / "catalog"

    def default_price_regions(self) -> tuple[str, ...]:
        """Return the EC2 regions of which prices are read where ``catalog.aws.regions`` names none."""
        # An endpoint of its own is not AWS: the prices of AWS do not hold there.
        found = set[str]()
        for each in self.providers:
            differing = each.settings.get("regions")
            for region in self.regions_of(each) if each.type == "ec2" else ():
                more = differing.get(region) if isinstance(differing, Mapping) else None
                settings = {**each.settings, **(more if isinstance(more, Mapping) else {})}
                if settings.get("endpoint_url") is None:
                    found.add(region)
        return tuple(sorted(found))

    def regions_of(self, provider: ProviderSettings) -> tuple[str, ...]:
        """Return the regions of which a provider needs the catalog's prices; empty for one with its own prices."""
        if self.settings_of(provider) is provider.settings:
            return ()
        named = provider.settings
        given = named.get("regions", [named.get("region")]) if provider.type == "ec2" else named.get("zones")
        # The provider itself refuses what is no name; here it is left out.
        names = [each for each in given if isinstance(each, str)] if isinstance(given, list | tuple | Mapping) else []
        return tuple(sorted({each if provider.type == "ec2" else each.rpartition("-")[0] for each in names}))

    def settings_of(self, provider: ProviderSettings) -> Mapping[str, Any]:
        """Return a provider's own settings, with the catalog's price file added if it needs one and names none."""
        if provider.type not in _PRICED_TYPES or {"prices", "prices_file"} & set(provider.settings):
            return provider.settings
        return {**provider.settings, "prices_file": str(self.catalog_dir / f"{provider.type}.json")}

    @property
    def gateway_socket(self) -> Path:
        """Unix socket of the gateway that the daemon starts."""
        return self.run_dir / "gateway.sock"

    @property
    def socket_path(self) -> Path:
        """Unix socket of the API."""
        return self.run_dir / SOCKET_NAME
