"""``hcloud offers`` for a job or a size: the offers that can run it and their cost, cheapest first; live or offline.

Prices are for all nodes of the job together. Machines are billed per second from launch, at least for the billing
minimum. If the job limits its run time, the maximum cost of one attempt is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from hcloud.cli.output import price_age, span, usd, write_rows
from hcloud.core.errors import BadInput
from hcloud.core.model import Constraints, JobSpec, Market, Resources
from hcloud.core.pricing import billed_s, cost_usd
from hcloud.core.resources import resources_from

COLUMNS = ("job", "provider", "region", "zone", "type", "market", ">vcpus", ">memory_mib", ">nodes", ">usd_per_h",
           ">minimum_usd", ">at_most_usd", ">age", "note")  # fmt: skip
SHOWN = 20
CATALOGUE_MINIMUM_S = 60.0
"""Billing minimum of both clouds: they bill Linux machines per second, at least one minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferQuery:
    """Requirements of a job, or a size, to find offers for."""

    name: str = ""
    """Name of the job; empty for a size."""
    need: Resources
    """Resources of one node."""
    nodes: int = 1
    types: tuple[str, ...] = ()
    """Patterns of instance types; empty: any type."""
    spot: bool = True
    """Whether spot machines are allowed."""
    max_runtime_s: float | None = None
    placement: Constraints | None = None

    @property
    def may_take_gpus(self) -> bool:
        """Whether it may run on a rented machine with GPUs: it requests some, or names types."""
        return self.need.gpus is not None or bool(self.types)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOption:
    """One offer that can run the query. Amounts are in USD for all nodes."""

    job: str
    provider: str
    region: str
    zone: str
    type: str
    market: str
    vcpus: float
    memory_mib: int
    nodes: int
    usd_per_h: float
    minimum_usd: float
    at_most_usd: float | None
    """Maximum cost of one attempt; None if the run time is not limited."""
    priced_at: float
    note: str


def queries_of(file: Path | None, vcpus: float | None, memory: str | None) -> list[OfferQuery]:
    """Return the queries of ``--for`` (one per job in the file), or of ``--vcpus`` and ``--memory``.

    Raises:
        BadInput: both a file and a size are given, or one of them is invalid.
    """
    from hcloud.config import load_job
    from hcloud.core.units import parse_size_mib

    if file is not None:
        if vcpus is not None or memory is not None:
            raise BadInput("--for cannot be combined with --vcpus and --memory; give one of them")
        return [_of_job(job.to_spec(user="")) for job in load_job(file)]
    try:
        memory_mib = round(parse_size_mib(memory)) if memory is not None else 0
    except ValueError as error:
        raise BadInput(f"--memory {error}") from None
    return [OfferQuery(need=Resources(vcpus=vcpus or 0.0, memory_mib=memory_mib, disk_gib=0.0))]


def _of_job(spec: JobSpec) -> OfferQuery:
    return OfferQuery(
        name=spec.name,
        need=spec.resources,
        nodes=spec.nodes.count,
        types=spec.instance_types,
        spot=spec.interruptible,
        max_runtime_s=spec.max_runtime_s,
        placement=spec.placement,
    )


def live(offers: Sequence[Mapping[str, Any]], query: OfferQuery) -> Iterator[RunOption]:
    """Yield the offers of the daemon's API that can run the query."""
    for each in offers:
        kind = each["instance_type"]
        if query.types and not any(fnmatchcase(kind["name"], pattern) for pattern in query.types):
            continue
        if each["market"] == Market.SPOT.value and not query.spot:
            continue
        own = {key: each[key] for key in ("provider", "region", "market")}
        labels = {**kind.get("labels", {}), **own, "type": kind["name"]}
        place = query.placement
        if place is not None and not (place.accepts_zone(each["zone"]) and place.accepts_labels(labels)):
            continue
        capacity = resources_from(kind["capacity"])
        if not query.need.fits(capacity) or (capacity.gpus is not None and not query.may_take_gpus):
            continue
        left = each["available"]
        note = f"only {left} available" if left is not None and left < query.nodes else ""
        yield _option(
            query,
            place=(each["provider"], each["region"], each["zone"], kind["name"], each["market"]),
            size=(kind["capacity"]["vcpus"], kind["capacity"]["memory_mib"]),
            price=(each["price_usd_per_h"], each["billing_minimum_s"], each["priced_at"]),
            note=note,
        )


def offline(query: OfferQuery) -> Iterator[RunOption]:
    """Yield the prices in the catalogue that can run the query. Disk space and stock are not considered."""
    from hcloud.catalog import CatalogQuery, PricePlan, candidates
    from hcloud.cli.catalog import catalogue_in_force

    plans = (PricePlan.ON_DEMAND, PricePlan.SPOT) if query.spot else (PricePlan.ON_DEMAND,)
    catalog_query = CatalogQuery(
        vcpus=query.need.vcpus, memory_mib=query.need.memory_mib, types=query.types, plans=plans
    )
    wanted = query.need.gpus
    for each in candidates(catalogue_in_force(), catalog_query):
        if each.size.gpus < query.need.gpu_count or (each.size.gpus and not query.may_take_gpus):
            continue
        unknown = f"{each.size.gpus} GPUs of a kind not listed here" if wanted is not None else ""
        yield _option(
            query,
            place=(each.cloud, each.region, "", each.type, each.plan.value),
            size=(each.size.vcpus, each.size.memory_mib),
            price=(each.quote.usd_per_h, CATALOGUE_MINIMUM_S, each.quote.at),
            note=unknown or ("burstable" if each.size.burstable else ""),
        )


def _option(
    query: OfferQuery,
    *,
    place: tuple[str, str, str, str, str],
    size: tuple[float, int],
    price: tuple[float, float, float],
    note: str,
) -> RunOption:
    usd_per_h, minimum_s, priced_at = price[0] * query.nodes, price[1], price[2]
    provider, region, zone, kind, market = place
    longest_s = query.max_runtime_s
    return RunOption(
        job=query.name,
        provider=provider,
        region=region,
        zone=zone,
        type=kind,
        market=market,
        vcpus=size[0],
        memory_mib=size[1],
        nodes=query.nodes,
        usd_per_h=usd_per_h,
        minimum_usd=cost_usd(usd_per_h, billed_s(0.0, minimum_s)),
        at_most_usd=cost_usd(usd_per_h, billed_s(longest_s, minimum_s)) if longest_s is not None else None,
        priced_at=priced_at,
        note=note,
    )


def chosen(
    options: Iterator[RunOption], provider: str | None, market: str | None, regions: Sequence[str]
) -> list[RunOption]:
    """Return the options that pass the filters (None or empty: no filter), cheapest first."""
    left = [
        each
        for each in options
        if provider in (None, each.provider)
        and market in (None, each.market)
        and (not regions or any(fnmatchcase(each.region, pattern) for pattern in regions))
    ]
    return sorted(
        left, key=lambda each: (each.usd_per_h, each.provider, each.region, each.zone, each.type, each.market)
    )


def show(options: Sequence[RunOption], form: str, now: float, limit: int) -> None:
    """Write the first ``limit`` options of each job; a table also counts the rest and shows the age of prices."""
    jobs = dict.fromkeys(each.job for each in options)
    kept = [each for job in jobs for each in [other for other in options if other.job == job][:limit]]
    if form == "json":
        write_rows(form, [asdict(each) for each in kept], COLUMNS, list)
        return
    write_rows(form, kept, COLUMNS, lambda each: _cells(each, now, form), empty="no suitable offer")
    if form == "table" and kept:
        if len(kept) < len(options):
            click.echo(f"... and {len(options) - len(kept)} more (--limit)", err=True)
        oldest_s = now - min(each.priced_at for each in kept)
        click.echo(
            f"the oldest of these prices is {price_age(oldest_s)}; the cheapest is {usd(kept[0].usd_per_h)}/h", err=True
        )


def _cells(each: RunOption, now: float, form: str) -> list[Any]:
    whole = form == "csv"
    amounts = (each.usd_per_h, each.minimum_usd, each.at_most_usd)
    return [
        each.job, each.provider, each.region, each.zone, each.type, each.market,
        each.vcpus, each.memory_mib, each.nodes,
        *(amount if whole or amount is None else f"{amount:.4f}" for amount in amounts),
        round(now - each.priced_at) if whole else span(now - each.priced_at),
        each.note,
    ]  # fmt: skip
