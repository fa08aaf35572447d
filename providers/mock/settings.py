"""What can be set on the mock cloud, with a benign default for everything."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hcloud.core.errors import ConfigError
from hcloud.core.model import Market
from hcloud.provider import MOST_RESERVED
from providers.mock.faults import Fault, FaultKind

YEAR_S, MOST_PER_H = 31_536_000.0, 3600.0
"""The longest time, and how often at most something happens in an hour: beyond them, somebody mistook the unit."""


def _plain_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not name.strip() or not name.isprintable():
            raise ValueError(f"must hold names of printable characters, not {name!r}")
        if names.count(name) > 1:
            raise ValueError(f"must name each once; {name!r} is there twice")
    return names


def _not_twice(markets: tuple[Market, ...]) -> tuple[Market, ...]:
    _plain_names(tuple(market.value for market in markets))
    return markets


def _a_number(value: object) -> object:
    """Refuse what is taken for a number elsewhere, but was not meant as one: ``true``, ``"2"``."""
    if isinstance(value, (bool, str)):
        raise ValueError("must be a number")
    return value


def _printable(name: str) -> str:
    return _plain_names((name,))[0]


Real = Annotated[float, BeforeValidator(_a_number), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_a_number)]
Name = Annotated[str, AfterValidator(_printable)]
Markets = Annotated[tuple[Market, ...], AfterValidator(_not_twice)]
Names = Annotated[tuple[str, ...], AfterValidator(_plain_names)]


class _MockSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BootSettings(_MockSection):
    """Time from launch to RUNNING: lognormal. Defaults as in HCloud §8: typically 12-19 s, p95 2 minutes."""

    p50_s: Real = Field(15.0, ge=0, le=YEAR_S)
    p95_s: Real = Field(120.0, ge=0, le=YEAR_S)

    @model_validator(mode="after")
    def _in_order(self) -> BootSettings:
        """Refuse a typical boot that takes longer than nearly all do."""
        if self.p50_s > self.p95_s:
            raise ValueError(f"must have a p50_s of at most p95_s ({self.p95_s:g})")
        return self


class TypeSettings(_MockSection):
    """One machine type of the catalogue and its on-demand price in the cheapest region.

    None: its spot and reserved prices are the cloud's usual parts of that, and it is in all zones and markets.
    """

    vcpus: Real = Field(gt=0, le=1e6)
    memory_mib: Whole = Field(gt=0, le=10**12)
    disk_gib: Real = Field(50.0, gt=0, le=1e9)
    usd_per_h: Real = Field(gt=0, le=1e9)
    labels: dict[Name, Name] = Field(default_factory=dict)
    spot_price_factor: Real | None = Field(None, gt=0, le=1)
    reserved_price_factor: Real | None = Field(None, gt=0, le=1)
    zones: tuple[str, ...] | None = None
    markets: Markets | None = None


class SpotSettings(_MockSection):
    """Spot prices (a share of on-demand that wanders every ``step_s``) and preemptions (``notice_s`` ahead).

    ``preemptions_per_h`` strike single machines. ``shortages_per_h`` strike all of a type in a zone, so often while
    there is plenty of it, for ``shortage_h`` on average: it is taken back and cannot be had meanwhile.
    """

    price_factor: Real = Field(0.35, gt=0, le=1)
    volatility: Real = Field(0.15, ge=0, le=1)
    step_s: Real = Field(300.0, ge=0.001, le=YEAR_S)
    preemptions_per_h: Real = Field(0.0, ge=0, le=MOST_PER_H)
    shortages_per_h: Real = Field(0.0, ge=0, le=MOST_PER_H)
    shortage_h: Real = Field(0.35, ge=1e-6, le=8760)
    notice_s: Real = Field(120.0, ge=0, le=YEAR_S)


class QualitySettings(_MockSection):
    """Spread of the machines' speed around 1 (lognormal standard deviation); units run so much faster or slower."""

    spread: Real = Field(0.0, ge=0, le=1)


class QuotaSettings(_MockSection):
    """At most so many vCPUs at once; ``region`` and ``market`` None: in all together. ``told``: offers say what is left
    of it, as those of one host do, and of clouds whose quotas can be read; else larger requests are only refused."""

    vcpus: Real = Field(ge=0)
    region: str | None = None
    market: Market | None = None
    told: bool = False

    def holds(self, region: str, market: Market) -> bool:
        """Return whether machines of a region and market count."""
        return self.region in (None, region) and self.market in (None, market)


class StockoutSettings(_MockSection):
    """Random stockouts: in each ``period_s`` each offer is out with probability ``rate``."""

    rate: Real = Field(0.0, ge=0, le=1)
    period_s: Real = Field(600.0, ge=0.001, le=YEAR_S)


class ThrottleSettings(_MockSection):
    """A token bucket over all calls; None: no limit."""

    calls_per_s: Real | None = Field(None, ge=0.001, le=1e9)
    burst: Whole = Field(20, ge=1, le=10**9)


def _default_types() -> dict[str, TypeSettings]:
    """General (m), compute (c) and memory (r) machines, priced like the big clouds' in 2025, to two digits."""
    rows = {
        "m.small": (1, 2048, 0.025),
        "m.medium": (2, 8192, 0.096),
        "m.large": (4, 16384, 0.192),
        "m.xlarge": (8, 32768, 0.384),
        "m.2xlarge": (16, 65536, 0.768),
        "c.medium": (2, 4096, 0.085),
        "c.large": (4, 8192, 0.17),
        "c.2xlarge": (16, 32768, 0.68),
        "r.medium": (2, 16384, 0.126),
        "r.xlarge": (8, 65536, 0.504),
    }
    return {
        name: TypeSettings(vcpus=vcpus, memory_mib=memory_mib, usd_per_h=usd, disk_gib=25.0 * vcpus)
        for name, (vcpus, memory_mib, usd) in rows.items()
    }


class MockSettings(_MockSection):
    """All settings of the mock cloud.

    ``labels`` are those of all its machines, beside those of each type. ``zones`` maps a zone to its region and
    price factor by name: ``east-1a`` is in ``east-1``, if ``regions`` does not say another. ``reserved`` holds how
    many machines of a type are reserved per zone, or in one (``ZONE/TYPE``; absent types: ``reserved_default``).
    ``list_lag_s`` is how long a new machine may be missing from listings. A machine without a lease renewal for
    ``lease_s`` ends itself (None: at its expiry only). ``chances`` gives a fault's probability per call, ``script``
    faults at set times. With ``state_file`` (or ``persist``: ``cloud.journal`` in the provider's
    state directory) the cloud outlives this process and is shared with others.
    """

    seed: Whole = Field(0, ge=0)
    labels: dict[Name, Name] = Field(default_factory=dict)
    types: dict[Name, TypeSettings] = Field(default_factory=_default_types, min_length=1)
    zones: Names = Field(("east-1a", "east-1b", "west-1a"), min_length=1)
    regions: dict[Name, Name] = Field(default_factory=dict)
    region_price_factors: dict[Name, Annotated[Real, Field(gt=0, le=1e6)]] = Field(
        default_factory=lambda: {"west-1": 1.1}
    )
    markets: Markets = Field((Market.RESERVED, Market.ON_DEMAND, Market.SPOT), min_length=1)
    reserved: dict[Name, Annotated[Whole, Field(ge=0, le=MOST_RESERVED)]] = Field(default_factory=dict)
    reserved_default: Whole = Field(2, ge=0, le=MOST_RESERVED)
    reserved_price_factor: Real = Field(0.6, gt=0, le=1)
    billing_minimum_s: Real = Field(60.0, ge=0, le=YEAR_S)
    boot: BootSettings = BootSettings()
    stop_s: Real = Field(3.0, ge=0, le=YEAR_S)
    spot: SpotSettings = SpotSettings()
    quality: QualitySettings = QualitySettings()
    deaths_per_h: Real = Field(0.0, ge=0, le=MOST_PER_H)
    quotas: tuple[QuotaSettings, ...] = ()
    stockouts: StockoutSettings = StockoutSettings()
    throttle: ThrottleSettings = ThrottleSettings()
    list_lag_s: Real = Field(0.0, ge=0, le=YEAR_S)
    lease_s: Real | None = Field(None, gt=0, le=YEAR_S)
    keep_terminated_s: Real = Field(3600.0, ge=0, le=YEAR_S)
    chances: dict[FaultKind, Annotated[Real, Field(ge=0, le=1)]] = Field(default_factory=dict)
    script: tuple[Fault, ...] = ()
    persist: bool = False
    state_file: str | None = None

    def region_of(self, zone: str) -> str:
        """Return the region a zone is in: as set, or its name without the last letter."""
        return self.regions.get(zone, zone[:-1])


def parse_settings(provider: str, settings: Mapping[str, object]) -> MockSettings:
    """Check settings.

    Raises:
        ConfigError: names the key and, for an unknown one (or an unknown zone, type, region), the nearest right one.
    """
    try:
        found = MockSettings.model_validate(dict(settings))
    except ValidationError as error:
        raise _in_one_sentence(provider, error) from error
    for key, what, name, known in _names(found):
        if name is not None and name not in known:
            raise ConfigError(
                f"there is no {what} {name}; {_nearest(name, known)}", where=f"providers.{provider}.settings.{key}"
            )
    return found


def _names(given: MockSettings) -> Iterator[tuple[str, str, str | None, Collection[str]]]:
    """Yield where a zone, type, region or market is named (None: any), which kind of these, its name, and all such."""
    zones, types, regions = given.zones, given.types, {given.region_of(zone) for zone in given.zones}
    for key in given.reserved:
        zone, _, name = key.rpartition("/")
        yield f"reserved.{key}", "zone", zone or None, zones
        yield f"reserved.{key}", "type", name, types
    yield from (("regions", "zone", zone, zones) for zone in given.regions)
    for name, kind in types.items():
        yield from ((f"types.{name}.zones", "zone", zone, zones) for zone in kind.zones or ())
    yield from ((f"quotas.{at}.region", "region", each.region, regions) for at, each in enumerate(given.quotas))
    for at, fault in enumerate(given.script):
        yield f"script.{at}.zone", "zone", fault.zone, zones
        yield f"script.{at}.instance_type", "type", fault.instance_type, types
        yield f"script.{at}.market", "market", fault.market, [market.value for market in Market]


def _in_one_sentence(provider: str, error: ValidationError) -> ConfigError:
    errors = error.errors()
    unknown = [each for each in errors if each["type"] in ("extra_forbidden", "unexpected_keyword_argument")]
    first = (unknown or errors)[0]
    where = f"providers.{provider}.settings." + ".".join(str(part) for part in first["loc"])
    if first["type"] == "too_short":
        return ConfigError("is empty; name at least one", where=where)
    if not unknown:
        message = first["msg"].removeprefix("Value error, ")
        return ConfigError(f"{message[:1].lower()}{message[1:]}, not {first['input']!r}", where=where)
    key = str(first["loc"][-1])
    return ConfigError(f"there is no setting {key}; {_nearest(key, _known_keys(first['loc'][:-1]))}", where=where)


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"


def _known_keys(path: tuple[Any, ...]) -> list[str]:
    """The keys of the section at a path of the settings."""
    sections: dict[str, list[str]] = {
        "boot": list(BootSettings.model_fields),
        "spot": list(SpotSettings.model_fields),
        "quality": list(QualitySettings.model_fields),
        "quotas": list(QuotaSettings.model_fields),
        "stockouts": list(StockoutSettings.model_fields),
        "throttle": list(ThrottleSettings.model_fields),
        "types": list(TypeSettings.model_fields),
        "script": list(Fault.__dataclass_fields__),
    }
    return sections.get(str(path[0]), []) if path else list(MockSettings.model_fields)
