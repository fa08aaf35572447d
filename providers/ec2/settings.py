"""Settings of an EC2 provider: one region of one account. Keys and passwords are rejected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hcloud.core.errors import ConfigError
from hcloud.core.model import Market

DEFAULT_TYPES = ("c7i.*", "m7i.*", "r7i.*", "c6i.*", "m6i.*", "r6i.*")
DEFAULT_IMAGES = {
    "x86_64": "ssm:/aws/service/debian/release/12/latest/amd64",
    "arm64": "ssm:/aws/service/debian/release/12/latest/arm64",
}
_REGION = r"[a-z]{2}(-[a-z]+)+-\d"
_SECRET_KEYS = {
    "access_key",
    "secret_key",
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "password",
}


def _matching(pattern: str, example: str) -> AfterValidator:
    def check(text: str) -> str:

        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be like {example}, not {text!r}")
        return text

    return AfterValidator(check)


Region = Annotated[str, _matching(_REGION, "us-east-1")]
Zone = Annotated[str, _matching(_REGION + r"[a-z]|[a-z0-9-]+-\d-[a-z]+-\d[a-z]", "us-east-1a")]
Subnet = Annotated[str, _matching(r"subnet-[0-9a-f]{8,17}", "subnet-0a1b2c3d")]
SecurityGroup = Annotated[str, _matching(r"sg-[0-9a-f]{8,17}", "sg-0a1b2c3d")]
Image = Annotated[str, _matching(r"ami-[0-9a-f]{8,17}|ssm:/\S+", "ami-0a1b2c3d or ssm:/aws/service/...")]
TypePattern = Annotated[str, _matching(r"[a-z0-9*?-]+(\.[a-z0-9*?-]+)?", "m7i.large or m7i.*")]
TAGS_MAX: Final = 50
"""Tags of one instance that EC2 allows, HCloud's seven among them."""
OWN_TAGS: Final = 7
_TAG = r"[\w .:/=+@-]"
TagKey = Annotated[str, _matching(rf"{_TAG}{{1,127}}", "team: 1 to 127 letters, digits, spaces or . : / = + @ _ -")]
Tag = Annotated[str, _matching(rf"{_TAG}{{0,256}}", "batch: at most 256 letters, digits, spaces or . : / = + @ _ -")]
Url = Annotated[str, _matching(r"https?://[^\s/]+.*", "https://ec2.us-east-1.amazonaws.com")]
Addresses = Annotated[
    tuple[Annotated[str, _matching(r"\S+:[0-9]{1,5}", "10.0.0.5:8786")], ...],
    BeforeValidator(lambda given: (given,) if isinstance(given, str) and given else given or ()),
]
UsdPerH = Annotated[float, Field(gt=0, le=10_000)]


class _Ec2Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class PriceSettings(_Ec2Section):
    """Prices of one type, in USD per hour."""

    on_demand: UsdPerH | None = None
    spot: UsdPerH | None = None


class Ec2Settings(_Ec2Section):
    """Every setting under ``providers: [{type: ec2, settings: ...}]``."""

    region: Region
    """One region. For several, set `regions`: a list, or a mapping with settings that differ by region."""
    prices_file: Path | None = None
    """Prices written by `hcloud catalog refresh`: {region: {type: {"on_demand": usd, "spot": usd}}}."""
    prices: dict[str, PriceSettings] = Field(default_factory=dict)
    """Prices by type; they override the file. A type without a price is not offered."""
    instance_types: Annotated[tuple[TypePattern, ...], Field(min_length=1)] = DEFAULT_TYPES
    """Instance types to offer, * and ? allowed; types that cannot run the image are left out."""
    max_vcpus: Annotated[int, Field(gt=0)] = 64
    """Larger types are not offered."""
    architecture: Literal["x86_64", "arm64"] = "x86_64"
    """Processor architecture of types and image."""
    zones: tuple[Zone, ...] = ()
    """Zones to use; default: all of the region."""
    markets: Annotated[tuple[Market, ...], Field(min_length=1)] = (Market.RESERVED, Market.ON_DEMAND, Market.SPOT)
    """Markets to use; reserved uses the account's Reserved Instances, capacity reservations and savings plans."""
    image: Image | None = None
    """Machine image, or the SSM parameter that names it; default: the newest Debian 12."""
    subnets: tuple[Subnet, ...] = ()
    """One subnet per zone; default: the default subnets."""
    security_groups: tuple[SecurityGroup, ...] = ()
    """Security groups; default: that of the network. Inbound rules are not needed."""
    public_ip: bool = False
    """Give instances a public address; without one the subnets need NAT or VPC endpoints."""
    instance_profile: str | None = None
    """Instance profile of the instances, for what jobs do with AWS; HCloud itself needs none."""
    key_name: str | None = None
    """SSH key pair to install; default: none, so that no user can log in."""
    disk_gib: Annotated[float, Field(ge=8, le=16_384)] = 24.0
    """Size of the encrypted root volume."""
    system_disk_gib: Annotated[float, Field(gt=0)] = 6.0
    """Part of the volume that is used by the system and HCloud."""
    kms_key: str | None = None
    """KMS key that encrypts volumes; default: the account's default key."""
    boot_delay_s: Annotated[float, Field(gt=0)] = 90.0
    """Typical time from launch to a registered worker."""
    boot_timeout_s: Annotated[float, Field(ge=120)] = 900.0
    """An instance without a running worker by then terminates itself."""
    gateway_addresses: Addresses = ()
    """Addresses of the gateways as seen from the instances; default: engine.gateway_addresses."""
    system_packages: bool = True
    """Install bubblewrap, nftables, stress-ng and Python at boot where they are missing; false: the image has them."""
    container_images: bool = False
    """Install podman at boot where it is missing, so that jobs with an `image` can run; true if the image has it."""
    interruption_queue: Url | None = None
    """SQS queue with spot interruption warnings; without it only the instance itself receives them."""
    rebalance: Literal["ignore", "leave"] = "ignore"
    """How to treat a rebalance recommendation: ignore it, or leave the instance as if interrupted in 10 minutes."""
    tags: dict[TagKey, Tag] = Field(default_factory=dict)
    """Additional tags for instances and volumes."""
    profile: str | None = None
    """Profile in the AWS configuration files; default: AWS's usual chain (environment, role of this machine...)."""
    endpoint_url: Url | None = None
    """Endpoint for every service instead of AWS's own (tests, private endpoints)."""
    timeout_s: Annotated[float, Field(gt=0, le=300)] = 30.0
    """Timeout of one call."""
    read_attempts: Annotated[int, Field(ge=1, le=10)] = 4
    """Attempts per read. The daemon itself repeats launches (with their token) and terminations."""
    launches_at_once: Annotated[int, Field(ge=1, le=32)] = 4
    """Concurrent launches; EC2 allows a short burst, then two a second."""
    list_lag_s: Annotated[float, Field(ge=0, le=3600)] = 60.0
    """How long a new instance may be missing from listings."""
    spot_prices_every_s: Annotated[float, Field(ge=0)] = 300.0
    """Interval between reads of spot prices and reservations."""
    types_every_s: Annotated[float, Field(ge=0)] = 86_400.0
    """Interval between reads of types, zones, subnets, image and quotas."""

    @model_validator(mode="before")
    @classmethod
    def _no_secrets(cls, given: object) -> object:
        found = sorted(_SECRET_KEYS & set(given)) if isinstance(given, Mapping) else []
        if found:
            raise ValueError(
                f"{found[0]} must not be in this file: use `profile`, the environment or a role of this machine"
            )
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> Ec2Settings:
        stray = next((zone for zone in self.zones if not zone.startswith(self.region)), None)
        if stray:
            raise ValueError(f"zones names {stray}, which is not in region {self.region}")
        if self.prices_file is None and not self.prices:
            raise ValueError("prices_file or prices is required: types without a price are not offered")
        if len(self.tags) > TAGS_MAX - OWN_TAGS:
            raise ValueError(
                f"tags has {len(self.tags)} entries; EC2 allows {TAGS_MAX} for one instance, and HCloud sets {OWN_TAGS}"
            )
        reserved_tags = sorted(key for key in self.tags if key.startswith(("hcloud:", "aws:")) or key == "Name")
        if reserved_tags:
            raise ValueError(f"tags names {reserved_tags[0]}, which is set by HCloud or by AWS")
        if self.system_disk_gib >= self.disk_gib:
            raise ValueError(f"disk_gib must be more than system_disk_gib ({self.system_disk_gib:g})")
        return self

    @property
    def image_or_default(self) -> str:
        """The configured image, or the default of the architecture."""
        return self.image or DEFAULT_IMAGES[self.architecture]


def parse_settings(provider: str, settings: Mapping[str, object]) -> Ec2Settings:
    """Check settings.

    Raises ConfigError: names the key and, for an unknown one, the nearest known key.
    """
    try:
        return Ec2Settings.model_validate(dict(settings))
    except ValidationError as error:
        raise _first_error(provider, error) from error


def parse_regions(provider: str, settings: Mapping[str, object]) -> dict[str, Ec2Settings]:
    """Check the settings of one or several regions; return them by region.

    ``region`` names one; ``regions`` is a list, or a mapping of region to settings that differ there.

    Raises ConfigError: names the key and, for an unknown one, the nearest known key.
    """
    plain = {key: value for key, value in settings.items() if key != "regions"}
    if "regions" not in settings:
        return {(one := parse_settings(provider, plain)).region: one}
    where, given = f"providers.{provider}.settings.regions", settings["regions"]
    if "region" in plain:
        raise ConfigError("give either region or regions, not both", where=where)
    differing = dict.fromkeys(given) if isinstance(given, list | tuple) else given
    if not isinstance(differing, Mapping) or not differing:
        raise ConfigError("must be a list such as [us-east-1, eu-west-1], or settings by region", where=where)
    found = {}
    for region, more in differing.items():
        if not isinstance(more, Mapping | None):
            raise ConfigError(f"must be settings that differ in {region}, not {more!r}", where=f"{where}.{region}")
        found[str(region)] = _settings_of_region(provider, str(region), plain, more or {})
    zones = plain.get("zones")
    stray = (
        [each for each in zones if not str(each).startswith(tuple(found))] if isinstance(zones, list | tuple) else []
    )
    if stray:
        raise ConfigError(f"{stray[0]} is in none of the regions", where=f"providers.{provider}.settings.zones")
    return found


def _settings_of_region(
    provider: str, region: str, plain: Mapping[str, object], more: Mapping[str, object]
) -> Ec2Settings:
    merged = {**plain, **more, "region": region}
    zones = merged.get("zones")
    if isinstance(zones, list | tuple) and "zones" not in more:
        merged["zones"] = [each for each in zones if str(each).startswith(region)]
    try:
        return parse_settings(provider, merged)
    except ConfigError as error:
        prefix = f"providers.{provider}.settings"
        key = error.where.removeprefix(f"{prefix}.")
        if key == "region" or key.partition(".")[0] in more:
            text = str(error).removeprefix(f"{error.where}: ")
            raise ConfigError(
                text, where=".".join([prefix, "regions", region, *([key] if key in more else [])])
            ) from error
        raise


def _first_error(provider: str, error: ValidationError) -> ConfigError:
    errors = error.errors()
    unknown = [each for each in errors if each["type"] == "extra_forbidden"]
    first: Any = (unknown or errors)[0]
    where = ".".join([f"providers.{provider}.settings", *map(str, first["loc"])])
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "missing":
        return ConfigError(f"this setting is required, for example {first['loc'][-1]}: us-east-1", where=where)
    if not unknown:
        text = (
            message if first["type"] == "value_error" else f"{message[0].lower()}{message[1:]}, not {first['input']!r}"
        )
        return ConfigError(text, where=where)
    key, known = str(first["loc"][-1]), [*Ec2Settings.model_fields, "regions"]
    if len(first["loc"]) > 1:
        known = list(PriceSettings.model_fields)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
    return ConfigError(f"unknown setting {key}; {hint}", where=where)
