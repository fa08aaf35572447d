"""Settings of the local provider: how this host is divided into slices, and their nominal prices."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hcloud.core.errors import ConfigError
from hcloud.core.model import Market
from hcloud.core.resources import Gpus, gpu_kind

_USD_PER_VCPU_H = 0.04
_USD_PER_GIB_H = 0.005
_USD_PER_GPU_H = 0.5
_GPUS_FORM = "gpus must be {count, kind, memory_gib}, for example {count: 1, kind: l4, memory_gib: 24}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalType:
    """A size of slice."""

    vcpus: float
    memory_mib: int
    disk_gib: float = 4.0
    price_usd_per_h: float = 0.0
    """On-demand price; 0: the nominal one, 0.04 USD per vCPU-hour, 0.005 USD per GiB-hour and 0.5 USD per GPU-hour."""
    gpus: Gpus | None = None
    """GPUs of this host, of which only one slice has any at a time; not offered where the driver shows fewer."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of this type, in addition to those of all slices."""

    @property
    def nominal_usd_per_h(self) -> float:
        """The on-demand price."""
        gpus = self.gpus.count if self.gpus is not None else 0
        nominal = self.vcpus * _USD_PER_VCPU_H + self.memory_mib / 1024 * _USD_PER_GIB_H + gpus * _USD_PER_GPU_H
        return self.price_usd_per_h or round(nominal, 6)


DEFAULT_TYPES: Mapping[str, LocalType] = {
    "local.small": LocalType(vcpus=0.5, memory_mib=512, disk_gib=2.0),
    "local.medium": LocalType(vcpus=1.0, memory_mib=1024, disk_gib=4.0),
    "local.large": LocalType(vcpus=2.0, memory_mib=2048, disk_gib=8.0),
    "local.xlarge": LocalType(vcpus=4.0, memory_mib=4096, disk_gib=16.0),
    "local.2xlarge": LocalType(vcpus=8.0, memory_mib=8192, disk_gib=32.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """Every setting under ``providers: [{type: local, settings: ...}]``."""

    vcpus: float | None = None
    """vCPUs for all slices together; default: the CPUs this process may use."""
    oversubscription: float = 1.0
    """Multiplies ``vcpus``: 2.0 assigns each CPU twice."""
    memory_mib: int | None = None
    """Memory for all slices together; default: 80 % of what is available at start."""
    types: Mapping[str, LocalType] = field(default_factory=lambda: DEFAULT_TYPES)
    """Sizes by name; those larger than the host are not offered."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of all slices, for ``placement.labels`` in job files; a type may add its own."""
    markets: tuple[Market, ...] = (Market.ON_DEMAND, Market.SPOT)
    """Markets to offer, in addition to ``reserved``."""
    spot_price_fraction: float = 0.3
    """Nominal spot price as a share of the on-demand price."""
    reserved: Mapping[str, int] = field(default_factory=dict)
    """Number of reserved slices by type name."""
    reserved_price_fraction: float = 0.6
    """Nominal amortised price of a reserved slice as a share of the on-demand price."""
    boot_delay_s: float = 2.0
    """Typical time from launch to a registered worker, for the planner."""
    pinning: bool = True
    """Pin each slice to as few CPUs as it needs."""
    cgroups: bool = True
    """Limit slices by control groups if the host allows it."""
    cgroup_parent: str = "hcloud"
    """Name of the control group above all slices."""
    pids_max: int = 4096
    """Processes and threads per slice."""
    gpu_root: str = "/"
    """Below it are the device nodes of GPUs (``dev``) and what the driver says of them (``proc``)."""
    worker_memory_mib: int = 256
    """Memory of a slice's worker, in addition to that of its units."""
    worker_command: tuple[str, ...] = ()
    """Program run instead of the HCloud worker, with ``--bootstrap FILE`` added."""
    keep_ended_s: float = 7 * 86400.0
    """How long an ended slice's record is kept (its token cannot launch again meanwhile)."""


def parse_settings(name: str, settings: Mapping[str, object]) -> LocalSettings:
    """Check the settings of provider ``name``.

    Raises ConfigError: an unknown key (with the nearest known one), or a value of the wrong kind.
    """
    where = f"providers: {name}: settings"
    _refuse_unknown(settings, [each.name for each in fields(LocalSettings)], where)
    values: dict[str, Any] = {key: _READ.get(key, _same)(value, where) for key, value in settings.items()}
    try:
        return _checked(LocalSettings(**values), where)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error), where=where) from error


def _refuse_unknown(given: Mapping[str, object], known: list[str], where: str) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(sorted(known))}"
            raise ConfigError(f"unknown setting {key!r}; {hint}", where=where)


def _same(value: object, _where: str) -> object:
    return value


def _types(value: object, where: str) -> Mapping[str, LocalType]:
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(
            "types must map names to {vcpus, memory_mib}, for example local.tiny: {vcpus: 0.25, memory_mib: 256}",
            where=where,
        )
    types = {}
    for name, content in value.items():
        here = f"{where}: types: {name}"
        if not isinstance(content, Mapping):
            raise ConfigError("must be a mapping with vcpus and memory_mib", where=here)
        _refuse_unknown(content, [each.name for each in fields(LocalType)], here)
        types[str(name)] = _positive_type(content, here)
    return types


def _positive_type(content: Mapping[str, object], where: str) -> LocalType:
    for key in ("vcpus", "memory_mib"):
        if not isinstance(content.get(key), int | float) or content[key] <= 0:  # type: ignore[operator]
            raise ConfigError(f"{key} must be a number above 0", where=where)
    labels, gpus = _labels(content.get("labels", {}), where), _gpus(content.get("gpus"), where)
    return LocalType(**{**content, "labels": labels, "gpus": gpus})  # type: ignore[arg-type]


def _gpus(value: object, where: str) -> Gpus | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != {"count", "kind", "memory_gib"}:
        raise ConfigError(_GPUS_FORM, where=where)
    count, kind, memory_gib = value["count"], value["kind"], value["memory_gib"]
    right = isinstance(count, int) and not isinstance(count, bool) and isinstance(kind, str) and gpu_kind(kind) == kind
    if not right or count < 1 or not isinstance(memory_gib, int | float) or memory_gib <= 0:
        raise ConfigError(_GPUS_FORM, where=where)
    return Gpus(count=count, kind=kind, memory_gib=float(memory_gib))


def _labels(value: object, where: str) -> Mapping[str, str]:
    texts = isinstance(value, Mapping) and all(isinstance(each, str) for pair in value.items() for each in pair)
    if not texts or not isinstance(value, Mapping):
        raise ConfigError(f"labels must map names to texts, for example {{disk: ssd}}, not {value!r}", where=where)
    return dict(value)


def _markets(value: object, where: str) -> tuple[Market, ...]:
    allowed = [Market.ON_DEMAND.value, Market.SPOT.value]
    if not isinstance(value, list | tuple) or not set(value) <= set(allowed):
        raise ConfigError(f"markets must be a list of {allowed} (set reserved slices with 'reserved')", where=where)
    return tuple(Market(each) for each in value)


def _words(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError("worker_command must be a list of words", where=where)
    return tuple(map(str, value))


_READ = {"types": _types, "labels": _labels, "markets": _markets, "worker_command": _words}


def _checked(settings: LocalSettings, where: str) -> LocalSettings:
    for key in (
        "vcpus",
        "memory_mib",
        "oversubscription",
        "spot_price_fraction",
        "reserved_price_fraction",
        "pids_max",
    ):
        value = getattr(settings, key)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool) or value <= 0):
            raise ConfigError(f"{key} must be a number above 0, not {value!r}", where=where)
    unknown = sorted(set(settings.reserved) - set(settings.types))
    if unknown:
        raise ConfigError(
            f"reserved names the unknown type {unknown[0]!r}; types: {sorted(settings.types)}", where=where
        )
    return settings
