"""``hcloud catalog``: show, refresh and compare the prices of machines."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from hcloud.catalog import (
    CLOUDS,
    CatalogFiles,
    Change,
    PriceCatalogue,
    PricePlan,
    Quote,
    Refreshed,
    compare,
    freshness,
    read_catalogue,
    shipped_catalogue,
)
from hcloud.cli.output import console, format_option, price_age, span, table, write_csv, write_json, write_rows
from hcloud.cli.waiting_line import working
from hcloud.config import Config, find_config, load_config, read_config
from hcloud.core.clock import SystemClock
from hcloud.core.errors import ConfigError, NotFound
from hcloud.spec.validation import counted, nearest, parse

PLANS = tuple(PricePlan)
PRICE_COLUMNS = ("cloud", "region", "type", ">vcpus", ">memory_mib", *(f">{plan.value}" for plan in PLANS), ">age",
                 "source")  # fmt: skip
SUMMARY_COLUMNS = ("cloud", "plan", ">regions", ">types", ">prices", "newest", "oldest", ">age", "sources")
CHANGE_COLUMNS = ("cloud", "region", "type", "plan", "verdict", ">before", ">after", ">factor")
HISTORY_COLUMNS = ("at", "cloud", "region", "zone", "type", ">usd_per_h")
CHANGES_SHOWN = 20
EDITIONS = ("shipped", "previous", "current")


@click.group()
def catalog() -> None:
    """Show, refresh and compare the prices of machines."""


# ------------------------------------------------------------------------------------------------------------- show
@catalog.command()
@click.argument("types", nargs=-1)
@click.option("--cloud", type=click.Choice(CLOUDS), help="Only prices of this cloud.")
@click.option("--region", "regions", multiple=True, help="Only prices in this region (repeatable; * and ? allowed).")
@click.option(
    "--shipped", "only_shipped", is_flag=True, help="Show the prices shipped with HCloud, not refreshed ones."
)
@format_option
def show(types: tuple[str, ...], cloud: str | None, regions: tuple[str, ...], only_shipped: bool, form: str) -> None:
    """Show the prices of TYPES (* and ? allowed) in USD per hour; without TYPES, the number of prices and their age.

    commit_1y and commit_3y are hourly prices of a one-year or three-year commitment without upfront payment.
    """
    known = shipped_catalogue() if only_shipped else catalogue_in_force()
    now = SystemClock().now()
    if not types:
        summary = list(_summary(known, cloud, regions, now))
        if not summary and known.quotes:
            there = {key.region for key in known.quotes if cloud in (None, key.cloud)}
            of_cloud = f" of {cloud}" if cloud is not None else ""
            raise NotFound(
                f"no price{of_cloud} is known in {' '.join(regions) or 'any region'}; "
                f"{nearest((*regions, '')[0], there)}"
            )
        write_rows(form, summary, SUMMARY_COLUMNS, lambda each: list(each.values()))
        _warn_of_age(known, cloud, regions, now)
        return
    rows = [_row(known, place) for place in known.places() if _matches(place, cloud, regions, types)]
    if not rows:
        hint = nearest(types[0], {key.type for key in known.quotes})
        raise NotFound(f"no price of {' '.join(types)} is known there; {hint}")
    write_rows(form, rows, PRICE_COLUMNS, lambda each: _price_cells(each, now))


def _warn_of_age(known: PriceCatalogue, cloud: str | None, patterns: tuple[str, ...], now: float) -> None:
    """Print the age of the oldest price per cloud and plan, and the plans without a price."""
    for name in CLOUDS if cloud is None else (cloud,):
        regions = {key.region for key in known.quotes if key.cloud == name and _matches((*key[:3],), name, patterns)}
        if not regions:
            continue
        found = list(freshness(known, name, regions))
        for each in found:
            if each.is_old(now):
                click.echo(
                    f"{name} {each.plan}: the prices of some regions are {price_age(now - each.read_at)}", err=True
                )
        absent = ", ".join(each.plan for each in found if not each.prices)
        if absent:
            click.echo(f"{name}: no price is known of {absent}", err=True)


def _matches(
    place: tuple[str, str, str], cloud: str | None, regions: tuple[str, ...], types: tuple[str, ...] = ("*",)
) -> bool:
    """Return whether a place (cloud, region, type) passes the filters; None or empty is no filter."""
    if cloud not in (None, place[0]) or not any(fnmatchcase(place[2], pattern) for pattern in types):
        return False
    return not regions or any(fnmatchcase(place[1], pattern) for pattern in regions)


def _row(known: PriceCatalogue, place: tuple[str, str, str]) -> dict[str, Any]:
    size = known.sizes.get((place[0], place[2]))
    quotes = {plan.value: known.price(*place, plan) for plan in PLANS}
    return {
        "cloud": place[0],
        "region": place[1],
        "type": place[2],
        "size": asdict(size) if size is not None else None,
        "prices": {name: asdict(quote) for name, quote in quotes.items() if quote is not None},
    }


def _price_cells(row: Mapping[str, Any], now: float) -> list[Any]:
    prices, size = row["prices"], row["size"] or {}
    oldest = min(prices.values(), key=lambda price: price["at"])
    return [
        *(row[name] for name in ("cloud", "region", "type")),
        size.get("vcpus"),
        size.get("memory_mib"),
        *(f"{prices[plan.value]['usd_per_h']:.6g}" if plan.value in prices else None for plan in PLANS),
        span(now - oldest["at"]),
        oldest["source"],
    ]


def _summary(
    known: PriceCatalogue, cloud: str | None, regions: tuple[str, ...], now: float
) -> Iterator[dict[str, Any]]:
    quotes: dict[tuple[str, PricePlan], list[tuple[str, str, Quote]]] = defaultdict(list)
    for key, quote in known.quotes.items():
        if _matches((key.cloud, key.region, key.type), cloud, regions):
            quotes[key.cloud, key.plan].append((key.region, key.type, quote))
    for (name, plan), cells in sorted(quotes.items(), key=lambda each: (each[0][0], PLANS.index(each[0][1]))):
        dates = [quote.at for _, _, quote in cells]
        yield {
            "cloud": name,
            "plan": plan.value,
            "regions": len({region for region, _, _ in cells}),
            "types": len({kind for _, kind, _ in cells}),
            "prices": len(cells),
            "newest": day(max(dates)),
            "oldest": day(min(dates)),
            "age": span(now - min(dates)),
            "sources": "; ".join(name for name, _ in Counter(quote.source for _, _, quote in cells).most_common()),
        }


def day(at: float) -> str:
    """Return the UTC date of a Unix time."""
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d")


# ---------------------------------------------------------------------------------------------------------- refresh
@catalog.command()
@click.option("--accept", is_flag=True, help="Accept prices that changed more than the configured limit.")
@click.option("--dry-run", "--dryrun", "dry_run", is_flag=True, help="Read and compare; write nothing.")
@format_option
def refresh(accept: bool, dry_run: bool, form: str) -> int:
    """Read current prices from the price lists in the configuration (section catalog).

    Exits with 1 if a list cannot be read completely; its prices then stay unchanged.
    """
    from hcloud.wiring import price_sources, refresh_prices  # slow to import; the other commands do not need it

    config, clock = load_config(find_config()), SystemClock()
    if not price_sources(config, clock):
        return _write_shipped(CatalogFiles(config.catalog_dir), dry_run)
    with working("reading price lists"):
        refreshed = refresh_prices(config, clock, accept=accept, dry_run=dry_run)
    _show_refreshed(refreshed, form)
    return 1 if refreshed.errors or refreshed.refused else 0


def _write_shipped(files: CatalogFiles, dry_run: bool) -> int:
    """Write the known prices for the providers, if no price list is configured. Returns the exit code."""
    if not dry_run:
        with files.locked():
            files.write_price_files()
    oldest = shipped_catalogue().oldest_at()
    click.echo(
        f"the configuration names no price list (catalog.aws.regions, catalog.gcp.api_key); using the shipped prices "
        f"of {day(oldest or 0.0)}",
        err=True,
    )
    return 0


def _show_refreshed(done: Refreshed, form: str) -> None:
    changes = [change for merged in done.merges.values() for change in merged.changes]
    if form == "json":
        write_json(
            {
                "at": done.at,
                "written": done.written,
                "changes": [_change(each) for each in changes],
                "troubles": done.errors,
                "refused": list(done.refused),
                "notes": done.notes,
            }
        )
        return
    if form == "csv":
        write_csv([name.removeprefix(">") for name in CHANGE_COLUMNS], [_cells(each) for each in changes])
    else:
        _show_changes([each for each in changes if each.verdict != "new"])
    for line in done.sentences():
        click.echo(line, err=bool(done.errors) or form == "csv")
    if done.held:
        click.echo(
            f"{counted(done.held, 'price')} held back, as they changed more than the configured limit; "
            f"accept them with `hcloud catalog refresh --accept`",
            err=True,
        )


def _show_changes(changes: list[Change]) -> None:
    """Show the changed prices: held ones first, then the largest change first."""
    ranked = sorted(changes, key=lambda each: (each.verdict != "held", -max(each.factor or 1, 1 / (each.factor or 1))))
    if ranked:
        console().print(table(CHANGE_COLUMNS, [_cells(each) for each in ranked[:CHANGES_SHOWN]]))
    if len(ranked) > CHANGES_SHOWN:
        click.echo(f"... and {len(ranked) - CHANGES_SHOWN} more")


def _change(each: Change) -> dict[str, Any]:
    return {
        "cloud": each.key.cloud,
        "region": each.key.region,
        "type": each.key.type,
        "plan": each.key.plan.value,
        "verdict": each.verdict,
        "before_usd_per_h": each.before_usd_per_h,
        "after_usd_per_h": each.after_usd_per_h,
        "factor": each.factor,
    }


def _cells(each: Change) -> list[Any]:
    before = f"{each.before_usd_per_h:.6g}" if each.before_usd_per_h is not None else None
    factor = f"{each.factor:.3g}" if each.factor is not None else None
    return [*each.key[:3], each.key.plan.value, each.verdict, before, f"{each.after_usd_per_h:.6g}", factor]


# ------------------------------------------------------------------------------------------------------------- diff
@catalog.command()
@click.argument("before", default="previous")
@click.argument("after", default="current")
@format_option
def diff(before: str, after: str, form: str) -> None:
    """Show how prices changed from BEFORE to AFTER: shipped, previous, current, or a file.

    Without arguments, shows the changes of the last refresh.
    """
    changes, gone = compare(_edition(before), _edition(after))
    rows = [_change(each) for each in changes]
    rows += [{**dict(zip(("cloud", "region", "type", "plan"), key, strict=True)), "verdict": "gone"} for key in gone]
    if form == "json":
        write_json(rows)
    elif form == "csv":
        write_csv([name.removeprefix(">") for name in CHANGE_COLUMNS], [_cells(each) for each in changes])
    else:
        _show_changes([each for each in changes if each.verdict == "changed"])
        counts = Counter(each.verdict for each in changes)
        click.echo(f"{counts['changed']} changed, {counts['new']} new, {len(gone)} removed")


def _edition(name: str) -> PriceCatalogue:
    if name == "shipped":
        return shipped_catalogue()
    if name in EDITIONS:
        files = _files()
        return shipped_catalogue() if files is None else files.current() if name == "current" else files.previous()
    if not Path(name).exists():
        raise NotFound(f"there is no edition or file {name!r}; {nearest(name, EDITIONS)}")
    return read_catalogue(Path(name))


# ---------------------------------------------------------------------------------------------------------- history
@catalog.command()
@click.argument("types", nargs=-1)
@click.option("--region", "regions", multiple=True, help="Only in this region (repeatable; * and ? allowed).")
@format_option
def history(types: tuple[str, ...], regions: tuple[str, ...], form: str) -> None:
    """Show recorded spot prices of TYPES (* and ? allowed; default: all), oldest first; one line per change."""
    files = _files()
    prices = [
        asdict(price)
        for price in (files.history() if files is not None else ())
        if _matches((price.cloud, price.region, price.type), None, regions, types or ("*",))
    ]

    def cells(each: Mapping[str, Any]) -> list[Any]:
        at = datetime.fromtimestamp(each["at"], tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return [at, *(each[name] for name in ("cloud", "region", "zone", "type", "usd_per_h"))]

    empty = "no spot prices are recorded yet; `hcloud catalog refresh` records them"
    write_rows(form, prices, HISTORY_COLUMNS, cells, empty=empty)


# -------------------------------------------------------------------------------------------------- the deployment's
def deployment() -> Config | None:
    """Return the configuration without its database, or None if there is none or it is not readable."""
    try:
        file = find_config()
    except ConfigError:
        return None
    if file.exists() and not os.access(file, os.R_OK):
        return None
    document = read_config(file, [])
    # The database may refer to an environment variable that only the daemon has; it is not needed here.
    value = document.value
    known = {key: each for key, each in value.items() if key != "database"} if isinstance(value, Mapping) else value
    return parse(Config, known, document.where, context={"base": file.expanduser().absolute().parent})


def _files() -> CatalogFiles | None:
    config = deployment()
    if config is None:
        click.echo("no configuration found; using the prices shipped with HCloud", err=True)
        return None
    return CatalogFiles(config.catalog_dir)


def catalogue_in_force() -> PriceCatalogue:
    """Return the catalogue of the deployment, or the shipped one without a configuration.

    Raises:
        ConfigError: the configuration or the catalogue cannot be read.
    """
    files = _files()
    return shipped_catalogue() if files is None else files.current()
