"""The offline snapshot: prices and sizes in the data files of apache-libcloud, with their date.

EC2: on-demand prices for Linux by region and type. GCE: prices per vCPU and GiB of each machine family. Zero means
unknown. The source of prices that :mod:`hcloud.catalog.families` corrected says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final, cast

from hcloud.catalog.families import corrected_prices
from hcloud.catalog.gce_sizes import shapes, whole_price
from hcloud.catalog.prices import Key, PriceCatalogue, PricePlan, Quote, TypeSize, is_price
from hcloud.core.errors import ConfigError, error_text

_GCE_PLANS: Final = {
    "on_demand": PricePlan.ON_DEMAND,
    "preemptible": PricePlan.SPOT,
    "1yr_commitment": PricePlan.COMMIT_1Y,
    "3yr_commitment": PricePlan.COMMIT_3Y,
}
_BURSTABLE_EC2: Final = ("t1.", "t2.", "t3.", "t3a.", "t4g.")


@cache
def shipped_catalogue() -> PriceCatalogue:
    """Return the snapshot; cached.

    Raises:
        ConfigError: the installed apache-libcloud has no such data, or data in another format.
    """
    file = files("libcloud") / "data" / "pricing.json"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        return snapshot_of(document, source=f"apache-libcloud {version('apache-libcloud')}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        detail = error_text(error, with_type=True)
        message = f"has no price table of the known format ({detail}); reinstall apache-libcloud"
        raise ConfigError(message, where=str(file)) from error


def snapshot_of(document: Mapping[str, Any], source: str) -> PriceCatalogue:
    """Return the catalog of a libcloud price table, without cells that are not prices."""
    at, by_family = float(document["updated"]), f"{source}, by its family"
    quotes = {
        Key("ec2", region, kind, PricePlan.ON_DEMAND): Quote(
            cell.usd_per_h, at, by_family if cell.corrected else source
        )
        for kind, region, cell in corrected_prices(document["compute"]["ec2_linux"], _ec2_factors())
        if is_price(cell.usd_per_h)
    }
    parts = _gce(document["compute"]["gce_instances"])
    quotes.update({key: Quote(usd, at, source) for key, usd in parts if is_price(usd)})
    return PriceCatalogue(sizes={**_ec2_sizes(), **_gce_sizes()}, quotes=quotes)


def _ec2_factors() -> dict[str, float]:
    """Return AWS's normalization factors of the types that have one."""
    kinds = _ec2_types().items()
    named = ((name, str(kind["extra"].get("normalizationSizeFactor", ""))) for name, kind in kinds)
    return {name: float(text) for name, text in named if text.replace(".", "", 1).isdigit() and float(text) > 0}


def _gce(families: Mapping[str, Any]) -> Iterator[tuple[Key, float]]:
    for kind, shape in shapes().items():
        parts = families.get(shape.family)
        if parts is None:
            continue
        for name, plan in _GCE_PLANS.items():
            vcpu, gib = parts["cpu"].get(name, {}), parts.get("ram", {}).get(name, {})
            for region in vcpu:
                usd = whole_price(shape, _cell(vcpu, region), _cell(gib, region))
                if usd is not None:
                    yield Key("gce", region, kind, plan), usd


def _cell(prices: Mapping[str, Mapping[str, Any]], region: str) -> float | None:
    cell = prices.get(region)
    usd = float(cell["price"]) if cell is not None else 0.0
    return usd if is_price(usd) else None


def _ec2_sizes() -> dict[tuple[str, str], TypeSize]:
    return {("ec2", name): _ec2_size(name, kind["ram"], kind["extra"]) for name, kind in _ec2_types().items()}


def _ec2_types() -> Mapping[str, Mapping[str, Any]]:
    from libcloud.compute.constants.ec2_instance_types import INSTANCE_TYPES

    return cast(Mapping[str, Mapping[str, Any]], INSTANCE_TYPES)


def _ec2_size(name: str, ram_mib: int, extra: Mapping[str, str]) -> TypeSize:
    return ec2_size(name, float(extra["vcpu"]), ram_mib, extra.get("physicalProcessor", ""), extra.get("gpu", "0"))


def ec2_size(name: str, vcpus: float, memory_mib: int, processor: str, gpus: str) -> TypeSize:
    """Return the size of an EC2 type from the attributes of price lists (``gpus``: a number as text, or a word)."""
    return TypeSize(
        vcpus=vcpus,
        memory_mib=memory_mib,
        burstable=name.startswith(_BURSTABLE_EC2),
        arch="arm64" if "Graviton" in processor or name.startswith("a1.") else "x86_64",
        gpus=int(gpus) if gpus.isdigit() else 0,
    )


def _gce_sizes() -> dict[tuple[str, str], TypeSize]:
    return {("gce", name): shape.size for name, shape in shapes().items()}
