"""Settings of the mock cloud, with a harmless default for each."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hcloud.core.cpu_topology import CPUS_MAX
from hcloud.core.errors import ConfigError
from hcloud.core.model import Market
from hcloud.provider import MOST_RESERVED
from providers.mock.faults import Fault, FaultKind

YEAR_S, MAX_PER_H = 31_536_000.0, 3600.0
"""Upper limits of times and of rates per hour; a larger value is a mistaken unit."""


def _plain_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not name.strip() or not name.isprintable():
            raise ValueError(f"must hold names of printable characters, not {name!r}")
        if names.count(name) > 1:
            raise ValueError(f"must name each once; {name!r} is there twice")
    return names


def _unique_markets(markets: tuple[Market, ...]) -> tuple[Market, ...]:
    _plain_names(tuple(market.value for market in markets))
    return markets


def _require_number(value: object) -> object:
    # pydantic would convert ``true`` and ``"2"``.
    if isinstance(value, (bool, str)):
        raise ValueError("must be a number")
    return value


def _printable(name: str) -> str:
    return _plain_names((name,))[0]


Real = Annotated[float, BeforeValidator(_require_number), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_require_number)]
Name = Annotated[str, AfterValidator(_printable)]
Markets = Annotated[tuple[Market, ...], AfterValidator(_unique_markets)]
Names = Annotated[tuple[str, ...], AfterValidator(_plain_names)]


class _MockSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BootSettings(_MockSection):
    """Lognormal time from launch to RUNNING. Defaults as in HCloud §8: typically 12-19 s, p95 2 minutes."""

    p50_s: Real = Field(15.0, ge=0, le=YEAR_S)
    p95_s: Real = Field(120.0, ge=0, le=YEAR_S)

    @model_validator(mode="after")
    def _check_order(self) -> BootSettings:
        """Refuse a typical boot that takes longer than nearly all do."""
        if self.p50_s > self.p95_s:
            raise ValueError(f"must have a p50_s of at most p95_s ({self.p95_s:g})")
        return self


class GpuSettings(_MockSection):
    """The GPUs of a machine type."""

    count: Whole = Field(ge=1, le=64)
    kind: Name
    """Model, such as ``t4``."""
    memory_gib: Real = Field(gt=0, le=1e6)
    """Memory of each."""


class TypeSettings(_MockSection):
    """One machine type of the catalog."""

    vcpus: Real = Field(gt=0, le=1e6)
    memory_mib: Whole = Field(gt=0, le=10**12)
    disk_gib: Real = Field(50.0, gt=0, le=1e9)
    gpus: GpuSettings | None = None
    """Its GPUs; None: it has none."""
    usd_per_h: Real = Field(gt=0, le=1e9)
    """On-demand price in the cheapest region."""
    labels: dict[Name, Name] = Field(default_factory=dict)
    spot_price_factor: Real | None = Field(None, gt=0, le=1)
    """Usual spot price as a share of on-demand; None: that of the cloud."""
    reserved_price_factor: Real | None = Field(None, gt=0, le=1)
    """Reserved price as a share of on-demand; None: that of the cloud."""
    zones: tuple[str, ...] | None = None
    """Zones that sell it; None: all."""
    markets: Markets | None = None
    """Markets that sell it; None: all."""


Steps = tuple[tuple[float, float], ...]
"""A value over time: times (Unix seconds), each with the value that holds from then on."""
STEP_VALUES = {"prices": (1e-9, 1e9), "available": (0.0, 1.0), "scores": (1.0, 10.0)}
"""Limits of recorded values by kind."""


class SpotHistorySettings(_MockSection):
    """A recorded spot market, by ``ZONE/TYPE``. Types and zones that are absent follow the other settings."""

    prices: dict[Name, Steps] = Field(default_factory=dict)
    """USD per hour; they may be above the on-demand price."""
    available: dict[Name, Steps] = Field(default_factory=dict)
    """1 or 0. While it is 0 none can be launched; when it becomes 0 all running machines are preempted."""
    scores: dict[Name, Steps] = Field(default_factory=dict)
    """Spot placement scores, 1 to 10: score / 10 is the share of the time without a shortage, in the long run."""

    @model_validator(mode="after")
    def _check_steps(self) -> SpotHistorySettings:
        """Refuse steps without a value, out of order or out of range."""
        for kind, (least, most) in STEP_VALUES.items():
            for pool, steps in getattr(self, kind).items():
                if not steps or any(not before < after for (before, _), (after, _) in pairwise(steps)):
                    raise ValueError(f"must have {kind}.{pool} in order of time, at least one and each time once")
                if not all(least <= value <= most and math.isfinite(at) for at, value in steps):
                    raise ValueError(f"must have {kind}.{pool} between {least:g} and {most:g}")
        return self


class SpotSettings(_MockSection):
    """Spot prices and preemptions."""

    price_factor: Real = Field(0.35, gt=0, le=1)
    """Usual spot price as a share of on-demand."""
    volatility: Real = Field(0.15, ge=0, le=1)
    """Standard deviation of the log price."""
    step_s: Real = Field(300.0, ge=0.001, le=YEAR_S)
    """Interval between price changes."""
    preemptions_per_h: Real = Field(0.0, ge=0, le=MAX_PER_H)
    """Preemptions of single machines per hour."""
    shortages_per_h: Real = Field(0.0, ge=0, le=MAX_PER_H)
    """Shortages of a type in a zone per hour of plenty: all its spot machines are preempted, none can be launched."""
    shortage_h: Real = Field(0.35, ge=1e-6, le=8760)
    """Mean duration of a shortage."""
    notice_s: Real = Field(120.0, ge=0, le=YEAR_S)
    """Time from the notice to the preemption."""
    history: SpotHistorySettings = SpotHistorySettings()


class QualitySettings(_MockSection):
    """How fast machines run their units."""

    spread: Real = Field(0.0, ge=0, le=1)
    """Lognormal standard deviation of the machines' speed around 1."""


class QuotaSettings(_MockSection):
    """A limit on concurrent vCPUs."""

    vcpus: Real = Field(ge=0)
    region: str | None = None
    """Region that it limits; None: all together."""
    market: Market | None = None
    """Market that it limits; None: all together."""
    types: Names | None = None
    """Patterns (``*``, ``?``) of the types that it limits; None: all together."""
    told: bool = False
    """Whether offers state the remainder, as clouds with readable quotas do.

    Otherwise launches above it are only refused.
    """

    @property
    def name(self) -> str:
        """What it limits, in words."""
        return f"{self.market or 'all markets'}{' ' if self.types else ''}{', '.join(self.types or ())}"

    def holds(self, region: str, market: Market, type_name: str) -> bool:
        """Return whether machines of a region, market and type count."""
        of_type = self.types is None or any(fnmatchcase(type_name, pattern) for pattern in self.types)
        return self.region in (None, region) and self.market in (None, market) and of_type


class StockoutSettings(_MockSection):
    """Random stockouts: in each ``period_s`` an offer is out of stock with probability ``rate``."""

    rate: Real = Field(0.0, ge=0, le=1)
    period_s: Real = Field(600.0, ge=0.001, le=YEAR_S)


class ThrottleSettings(_MockSection):
    """A token bucket over all calls."""

    calls_per_s: Real | None = Field(None, ge=0.001, le=1e9)
    """Refill rate; None: no limit."""
    burst: Whole = Field(20, ge=1, le=10**9)


def _default_types() -> dict[str, TypeSettings]:
    """Return general (m), compute (c), memory (r) and GPU (g, p) types, priced like those of large clouds in 2025."""
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
    types = {
        name: TypeSettings(vcpus=vcpus, memory_mib=memory_mib, usd_per_h=usd, disk_gib=25.0 * vcpus)
        for name, (vcpus, memory_mib, usd) in rows.items()
    }
    with_gpus = {
        "g.xlarge": (4, 16384, GpuSettings(count=1, kind="t4", memory_gib=16.0), 0.526),
        "g.12xlarge": (48, 196608, GpuSettings(count=4, kind="t4", memory_gib=16.0), 3.912),
        "p.24xlarge": (96, 1179648, GpuSettings(count=8, kind="a100", memory_gib=40.0), 32.77),
    }
    rented = (Market.ON_DEMAND, Market.SPOT)
    return types | {
        name: TypeSettings(
            vcpus=vcpus, memory_mib=memory_mib, usd_per_h=usd, disk_gib=1000.0, gpus=gpus, markets=rented
        )
        for name, (vcpus, memory_mib, gpus, usd) in with_gpus.items()
    }


class MockSettings(_MockSection):
    """All settings of the mock cloud."""

    seed: Whole = Field(0, ge=0)
    labels: dict[Name, Name] = Field(default_factory=dict)
    """Labels of all machines; types add their own."""
    types: dict[Name, TypeSettings] = Field(default_factory=_default_types, min_length=1)
    zones: Names = Field(("east-1a", "east-1b", "west-1a"), min_length=1)
    """Zone names. A zone's region is its name without the last letter, unless ``regions`` maps it."""
    regions: dict[Name, Name] = Field(default_factory=dict)
    """Regions by zone, for zones that are not named after their region."""
    region_price_factors: dict[Name, Annotated[Real, Field(gt=0, le=1e6)]] = Field(
        default_factory=lambda: {"west-1": 1.1}
    )
    """Price factors by region; 1 if absent."""
    markets: Markets = Field((Market.RESERVED, Market.ON_DEMAND, Market.SPOT), min_length=1)
    reserved: dict[Name, Annotated[Whole, Field(ge=0, le=MOST_RESERVED)]] = Field(default_factory=dict)
    """Reserved machines by type (in each zone) or by ``ZONE/TYPE``."""
    reserved_default: Whole = Field(2, ge=0, le=MOST_RESERVED)
    """Reserved machines of types that ``reserved`` does not name."""
    reserved_price_factor: Real = Field(0.6, gt=0, le=1)
    reserved_ends_at: Real | None = Field(None, gt=0)
    """When all reservations end (Unix seconds): what runs then is on demand; None: never."""
    launched_price_factor: Real = Field(1.0, gt=0, le=100)
    """What machines cost, as a share of the price offered: an agreement the offers do not show, or an old list."""
    billing_minimum_s: Real = Field(60.0, ge=0, le=YEAR_S)
    boot: BootSettings = BootSettings()
    stop_s: Real = Field(3.0, ge=0, le=YEAR_S)
    """How long a termination takes."""
    spot: SpotSettings = SpotSettings()
    quality: QualitySettings = QualitySettings()
    topology_from_vcpus: Whole | None = Field(None, ge=1, le=CPUS_MAX)
    """Machines with at least so many vCPUs report sockets, caches and cores; None: none does."""
    deaths_per_h: Real = Field(0.0, ge=0, le=MAX_PER_H)
    """Failures per machine and hour."""
    quotas: tuple[QuotaSettings, ...] = ()
    stockouts: StockoutSettings = StockoutSettings()
    throttle: ThrottleSettings = ThrottleSettings()
    list_lag_s: Real = Field(0.0, ge=0, le=YEAR_S)
    """How long a new machine may be missing from listings."""
    lease_s: Real | None = Field(None, gt=0, le=YEAR_S)
    """A machine terminates itself this long after its last lease renewal; None: at its expiry only."""
    keep_terminated_s: Real = Field(3600.0, ge=0, le=YEAR_S)
    """How long listings contain ended machines."""
    chances: dict[FaultKind, Annotated[Real, Field(ge=0, le=1)]] = Field(default_factory=dict)
    """Probability per call by kind of fault."""
    script: tuple[Fault, ...] = ()
    """Faults at fixed times."""
    persist: bool = False
    """Keep the cloud in ``cloud.journal`` in the provider's state directory."""
    state_file: str | None = None
    """Keep the cloud in this file, which outlives the process and may be shared with others."""

    def region_of(self, zone: str) -> str:
        """Return the region of a zone: as set, or its name without the last letter."""
        return self.regions.get(zone, zone[:-1])


def parse_settings(provider: str, settings: Mapping[str, object]) -> MockSettings:
    """Check settings.

    Raises ConfigError: names the key and, for an unknown name, the nearest known one.
    """
    try:
        found = MockSettings.model_validate(dict(settings))
    except ValidationError as error:
        raise _first_error(provider, error) from error
    for key, what, name, known in _references(found):
        if name is not None and name not in known:
            raise ConfigError(
                f"unknown {what} {name}; {_nearest(name, known)}", where=f"providers.{provider}.settings.{key}"
            )
    return found


def _references(given: MockSettings) -> Iterator[tuple[str, str, str | None, Collection[str]]]:
    """Yield every reference to a zone, type, region or market: key, kind, name (None: any), known names."""
    zones, types, regions = given.zones, given.types, {given.region_of(zone) for zone in given.zones}
    for key in given.reserved:
        zone, _, name = key.rpartition("/")
        yield f"reserved.{key}", "zone", zone or None, zones
        yield f"reserved.{key}", "type", name, types
    yield from (("regions", "zone", zone, zones) for zone in given.regions)
    for recorded in STEP_VALUES:
        for key in getattr(given.spot.history, recorded):
            zone, _, name = key.rpartition("/")
            yield f"spot.history.{recorded}.{key}", "zone", zone, zones
            yield f"spot.history.{recorded}.{key}", "type", name, types
    for name, kind in types.items():
        yield from ((f"types.{name}.zones", "zone", zone, zones) for zone in kind.zones or ())
    yield from ((f"quotas.{at}.region", "region", each.region, regions) for at, each in enumerate(given.quotas))
    for at, fault in enumerate(given.script):
        yield f"script.{at}.zone", "zone", fault.zone, zones
        yield f"script.{at}.instance_type", "type", fault.instance_type, types
        yield f"script.{at}.market", "market", fault.market, [market.value for market in Market]


def _first_error(provider: str, error: ValidationError) -> ConfigError:
    errors = error.errors()
    unknown = [each for each in errors if each["type"] in ("extra_forbidden", "unexpected_keyword_argument")]
    first = (unknown or errors)[0]
    where = f"providers.{provider}.settings." + ".".join(str(part) for part in first["loc"])
    if first["type"] == "too_short":
        return ConfigError("must not be empty", where=where)
    if not unknown:
        message = first["msg"].removeprefix("Value error, ")
        return ConfigError(f"{message[:1].lower()}{message[1:]}, not {first['input']!r}", where=where)
    key = str(first["loc"][-1])
    return ConfigError(f"unknown setting {key}; {_nearest(key, _known_keys(first['loc'][:-1]))}", where=where)


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"


def _known_keys(path: tuple[Any, ...]) -> list[str]:
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
    if path[:2] == ("spot", "history"):
        return list(SpotHistorySettings.model_fields)
    return sections.get(str(path[0]), []) if path else list(MockSettings.model_fields)
