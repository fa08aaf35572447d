"""``hcloud plan``: recommend reservations from past load, and replay past jobs under other policies."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import click

from hcloud.catalog import PricePlan, Quote
from hcloud.cli.catalog import catalogue_in_force
from hcloud.cli.output import (
    FiniteRange,
    NamedPath,
    console,
    format_option,
    price_age,
    table,
    usd,
    write_csv,
    write_json,
)
from hcloud.cli.report import SINCE_HELP
from hcloud.cli.reservations import (
    CONCURRENT_USE,
    PLANS_HEADER,
    AllTypes,
    PriceRegion,
    advise_all,
    load_curve,
    read_plan_prices,
    show_all,
    weeks_text,
)
from hcloud.cli.scheduled_load import LaunchedMachine, scheduled_load
from hcloud.cli.seeds import Seeds, seeds_options
from hcloud.cli.waiting_line import working
from hcloud.client.connection import Connection
from hcloud.config import load_policy
from hcloud.core.clock import SystemClock
from hcloud.core.errors import BadInput
from hcloud.core.units import parse_number, parse_utc_s, plain, shown
from hcloud.forecast.load import LoadCurve
from hcloud.planner.provisioning.commitments import Advice, Terms, advise, sizes_by_strategy
from hcloud.simulator.input_table import LATEST_AT, read_document
from hcloud.simulator.workload import DAY_S, LONGEST_DAYS
from hcloud.spec.validation import counted

PAGE = 10_000
COLUMNS = ("option", ">reserve", ">upfront", ">usd/h", ">saves %", ">in use %", ">pays from %", ">weeks", ">back after",
           ">at least", ">if halved", ">by week")  # fmt: skip
FIELDS = ("option", "term_months", "count", "upfront_usd", "usd_per_h", "on_demand_usd_per_h", "saving", "use",
          "break_even_use", "pays_after_months", "least_load", "if_load_halves_usd_per_h", "by_week_min",
          "by_week_max", "break_even_weeks")  # fmt: skip
TERMS_HEADER = ("option", "term_months", "upfront_usd", "usd_per_h")
MONTHS_MOST, USD_MOST, MACHINES_MOST = 1200.0, 1e9, 1e5
"""Limits of plausible input; a value beyond them is probably in another unit."""


@click.group()
def plan() -> None:
    """Recommend reservations, and try policies on past jobs."""


@plan.command()
@click.option(
    "--load", "load_file", type=NamedPath(path_type=Path), help="CSV with columns at,load (default: recorded machines)."
)
@click.option(
    "--type",
    "kind",
    help="CLOUD/REGION/TYPE in the price catalogue; only recorded machines of this TYPE in REGION count.",
)
@click.option(
    "--on-demand",
    type=FiniteRange(0, USD_MOST, min_open=True),
    help="On-demand price in USD per hour (default: from the catalogue).",
)
@click.option(
    "--terms",
    "terms_file",
    type=NamedPath(path_type=Path),
    help=f"CSV with columns {','.join(TERMS_HEADER)} (default: from the catalogue).",
)
@click.option(
    "--savings-plans",
    "plans_file",
    type=NamedPath(path_type=Path),
    help=f"CSV of savings plan prices, for the advice on all types: {','.join(PLANS_HEADER)}.",
)
@format_option
def reservations(
    load_file: Path | None,
    kind: str | None,
    on_demand: float | None,
    terms_file: Path | None,
    plans_file: Path | None,
    form: str,
) -> None:
    """Recommend how many machines to reserve under each option: the count with the least cost, cheapest option first.

    Without any option: the best one for each type that the daemon launched, in weeks until it pays off, and savings
    plans over all types where --savings-plans has their prices; "no price" where none is known.

    The load of one type is the number of machines needed over time: from --load, or the machines that the daemon
    launched. Prices are from the catalogue for --type, or from --on-demand and --terms. Use is counted per clock hour,
    as AWS bills it; for a --type of gce at each moment, as Google applies commitments.
    """
    if load_file is None and kind is None and on_demand is None and terms_file is None:
        with working("reading the event log"):
            found = _advise_all_types(plans_file)
        show_all(found, form)
        return
    if plans_file is not None:
        raise BadInput("--savings-plans is for the advice on all types; leave out --type, --load and prices")
    cloud, region, name = _place(kind)
    with working("reading the load"):
        load, of_schedules = (_read_load(load_file), ()) if load_file is not None else _recorded_load(region, name)
    load = load if cloud in CONCURRENT_USE else load.per_clock_hour()
    listed = [_catalogue_price(cloud, region, name)] if on_demand is None else []
    price = on_demand if on_demand is not None else listed[0].usd_per_h
    offered = _catalogue_terms(cloud, region, name) if terms_file is None else []
    options = _read_terms(terms_file) if terms_file is not None else [terms for terms, _ in offered]
    advice, notes = advise(load, price, options), [*_notes(load, price, cloud), *of_schedules]
    if read_at := [quote.at for quote in (*listed, *(quote for _, quote in offered))]:
        age_s = max(0.0, SystemClock().now() - min(read_at))
        notes.append(f"the oldest of the catalogue's prices used here is {price_age(age_s)}")
    if form == "json":
        write_json({"on_demand_usd_per_h": price, "advice": [_document(each) for each in advice], "notes": notes})
    elif form == "csv":
        write_csv(FIELDS, [list(_document(each).values()) for each in advice])
    else:
        out = console()
        out.print(table(COLUMNS, [_row(each) for each in advice]))
        for note in notes:
            out.print(note, style="dim")


@plan.command()
@click.argument(
    "policies", nargs=-1, required=True, metavar="POLICY...", type=NamedPath(path_type=Path, dir_okay=False)
)
@click.option("--since", default="7d", show_default=True, metavar="7d|TIME",
              help=f"Replay jobs submitted since then: {SINCE_HELP}.")  # fmt: skip
@click.option("--out", type=NamedPath(path_type=Path, file_okay=False), help="Directory for results and charts.")
@seeds_options
@format_option
def policy(policies: tuple[Path, ...], since: str, out: Path | None, seeds: Seeds, form: str) -> int:
    """Replay recent jobs under the policy in force and under each POLICY, on a simulated cloud.

    POLICY is a file, the name of a shipped policy, or peer:NAME (the rules of another tool). The last row, "as it was",
    has the recorded cost and targets. The simulated cloud has the types, prices and reserved machines that the daemon's
    providers offer now.
    """
    from hcloud.cli.compare import ComparisonOptions, compare
    from hcloud.cli.history import back_s_of, now_of, offered_clouds, read_past, recorded_outcome
    from hcloud.cli.simulate import load_policies, with_peer, with_suffix
    from hcloud.simulator.peers import PREFIX
    from hcloud.simulator.run import Setting

    client, (ours, peers) = Connection(), load_policies(policies)
    back_s = back_s_of(since, lambda: now_of(client))
    in_force = load_policy(Path(client.get("/v1/status")["daemon"]["policy"]["path"]))
    past, (clouds, age_s) = read_past(client, back_s), offered_clouds(client)
    workload = past.workload()
    files = [str(each) for each in policies if not str(each).startswith(PREFIX)]
    others = [
        with_suffix(each, file) if each.name == in_force.name else each for each, file in zip(ours, files, strict=True)
    ]

    def replays(seed: int) -> list[Setting]:
        first = Setting(workload=workload, policy=with_suffix(in_force, "in force"), clouds=clouds, seed=seed)
        limits = replace(first, policy=in_force)
        return [
            first,
            *(replace(first, policy=each) for each in others),
            *(with_peer(limits, each) for each in peers),
        ]

    recorded = recorded_outcome(client, past)
    return compare(seeds, replays, ComparisonOptions(form=form, out=out, recorded=recorded, price_age_s=age_s))


# --------------------------------------------------------------------------------------------------------------- prices
def _place(kind: str | None) -> tuple[str, str, str]:
    parts = kind.split("/") if kind else []
    if len(parts) not in (0, 1, 3) or not all(parts):
        raise BadInput(f"--type {kind!r}: must be CLOUD/REGION/TYPE, such as ec2/us-east-1/m5.large")
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("", "", parts[0] if parts else "")


def _catalogue_price(cloud: str, region: str, name: str) -> Quote:
    if not name:
        raise BadInput("give the machine type with --type CLOUD/REGION/TYPE, or its price with --on-demand")
    quote = catalogue_in_force().price(cloud, region, name)
    if quote is None:
        place = f"{cloud}/{region}/{name}" if cloud else name
        raise BadInput(
            f"the catalogue has no on-demand price of {place}; give --on-demand, or --type CLOUD/REGION/TYPE"
        )
    return quote


def _catalogue_terms(cloud: str, region: str, name: str) -> list[tuple[Terms, Quote]]:
    catalogue = catalogue_in_force()
    terms = []
    for each, months in ((PricePlan.COMMIT_1Y, 12.0), (PricePlan.COMMIT_3Y, 36.0)):
        quote = catalogue.price(cloud, region, name, each)
        if quote is not None:
            label = f"{months / 12:g} year{'s' if months > 12 else ''}, no upfront"
            option = Terms(name=label, term_months=months, upfront_usd=0.0, usd_per_h=quote.usd_per_h)
            terms.append((option, quote))
    if not terms:
        raise BadInput(
            f"the catalogue has no commitment price of {name or 'this type'}; give --terms, a CSV of options"
        )
    return terms


def _read_terms(file: Path) -> list[Terms]:
    terms: list[Terms] = []
    for line, row in _rows(file, TERMS_HEADER):
        name = _option_name(file, line, row["option"] or "", [each.name for each in terms])
        months = _number(file, line, row, "term_months", MONTHS_MOST)
        upfront, hourly = (_number(file, line, row, key, USD_MOST) for key in TERMS_HEADER[2:])
        if months <= 0 or upfront < 0 or hourly < 0:
            raise BadInput(f"{file}:{line}: term_months must be more than 0, prices 0 or more")
        terms.append(Terms(name=name, term_months=months, upfront_usd=upfront, usd_per_h=hourly))
    return terms


def _option_name(file: Path, line: int, text: str, above: Sequence[str]) -> str:
    name = text.strip()
    if not name:
        raise BadInput(f"{file}:{line}: option is empty; it must be a unique name")
    if name in above:
        raise BadInput(f"{file}:{line}: option {shown(name)} is a duplicate; it must be a unique name")
    return name


# ----------------------------------------------------------------------------------------------------------------- load
def _read_load(file: Path) -> LoadCurve:
    samples = dict[float, float]()
    for line, row in _rows(file, ("at", "load")):
        at = _time_s(file, line, row["at"])
        if at in samples:
            raise BadInput(f"{file}:{line}: at {shown(row['at'])} is a duplicate; each time must occur once")
        samples[at] = _number(file, line, row, "load", MACHINES_MOST, least=0.0)
    days = (max(samples) - min(samples)) / DAY_S if samples else 0.0
    if days > LONGEST_DAYS:  # the advice is computed for each week
        raise BadInput(f"{file}: the last time is {days:.0f} days after the first; at most {LONGEST_DAYS} are allowed")
    try:
        return LoadCurve.of(samples.items())
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from error


def _rows(file: Path, header: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(read_document(file).splitlines(keepends=True))
    try:
        _check_header(file, reader.fieldnames or (), header)
        for row in reader:
            if (extra := row.get(cast(str, None))) is not None:  # DictReader's key for values without a column
                values = counted(len(extra), "more value")
                raise BadInput(f"{file}:{reader.line_num}: has {values} than columns; the first is {shown(extra[0])}")
            yield reader.line_num, row
    except csv.Error as error:
        raise BadInput(f"{file}:{reader.line_num + 1}: {error}") from error


def _check_header(file: Path, columns: Sequence[str], needed: Sequence[str]) -> None:
    """Raise BadInput if a needed column is missing, or ambiguous because it occurs twice."""
    missing = [name for name in needed if name not in columns]
    twice = next((name for name in needed if columns.count(name) > 1), None)
    if not columns:
        raise BadInput(f"{file}:1: the file is empty; it must start with the header {','.join(needed)}")
    if missing:
        raise BadInput(f"{file}:1: column {', '.join(missing)} is missing; the header must be {','.join(needed)}")
    if twice is not None:
        raise BadInput(f"{file}:1: column {twice} occurs twice; each column must occur once")


def _number(file: Path, line: int, row: dict[str, str], key: str, most: float, least: float | None = None) -> float:
    value = parse_number((row[key] or "").strip())
    if value is None:
        raise BadInput(f"{file}:{line}: {key} is {shown(row[key])}; it must be a number")
    if value > most or (least is not None and value < least):
        limits = f"at most {plain(most)}" if least is None else f"from {plain(least)} to {plain(most)}"
        raise BadInput(f"{file}:{line}: {key} is {value:g}; it must be {limits}")
    return value


def _time_s(file: Path, line: int, text: str | None) -> float:
    seconds = parse_number((text or "").strip())
    if seconds is not None:
        if abs(seconds) > LATEST_AT:  # probably milliseconds, as many tools write them
            raise BadInput(f"{file}:{line}: at is {seconds:g}, after the year 2200; it must be in seconds")
        return seconds
    try:
        return parse_utc_s(text)
    except ValueError as error:
        raise BadInput(
            f"{file}:{line}: at is {text!r}; it must be in seconds, or a time such as 2026-05-01T18:00:00Z"
        ) from error


def _recorded_load(region: str, name: str) -> tuple[LoadCurve, tuple[str, ...]]:
    """Return the number of machines over time, of one region and type, "" for any, with what schedules add to it; and
    notes about these."""
    recorded = _recorded()
    changes = [
        (at, change)
        for machine, found in recorded.changes.items()
        for at, change in found
        if (not name or recorded.machines[machine].type == name)
        and (not region or recorded.machines[machine].region == region)
    ]
    if not changes:
        which = f"{f' of type {name}' if name else ''}{f' in {region}' if region else ''}"
        raise BadInput(f"no machine{which} was launched yet; give --load, a CSV")
    return load_curve(changes, recorded.now), recorded.notes


def _advise_all_types(plans_file: Path | None) -> AllTypes:
    """Return advice on every type that the daemon launched."""
    recorded, catalogue = _recorded(), catalogue_in_force()
    changes: dict[PriceRegion, list[tuple[float, float]]] = {}
    for machine, found in recorded.changes.items():
        where = recorded.machines[machine]
        place = PriceRegion.named(where.provider, where.region, where.type, catalogue)
        changes.setdefault(place, []).extend(found)
    if not changes:
        raise BadInput("no machine was launched yet; give --load, a CSV, and --type")
    plan_prices = {} if plans_file is None else read_plan_prices(_rows(plans_file, PLANS_HEADER), plans_file)
    advice = advise_all(changes, catalogue, plan_prices, recorded.now)
    return replace(advice, notes=(*advice.notes, *recorded.notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """The machines of the event log, and when there were more or fewer, schedules' runs of before them included."""

    machines: Mapping[str, LaunchedMachine]
    changes: Mapping[str, Sequence[tuple[float, float]]]
    now: float
    notes: tuple[str, ...]


def _recorded() -> _Recorded:
    client, machines = Connection(), dict[str, LaunchedMachine]()
    changes: dict[str, list[tuple[float, float]]] = {}
    for event in _events(client):
        machine, fields = event["instance_id"], event["fields"]
        if event["kind"] == "instance_requested":
            machines[machine] = LaunchedMachine(
                provider=str(fields.get("provider")), region=str(fields.get("region")), type=str(fields.get("type")),
                vcpus=float(fields.get("vcpus", 1.0)), memory_mib=float(fields.get("memory_mib", 1024.0)),
            )  # fmt: skip
        elif event["kind"] == "instance_launched" and machine in machines:
            changes.setdefault(machine, []).append((float(fields.get("launched_at", event["at"])), 1.0))
        elif event["kind"] == "instance_terminated" and machine in machines and fields.get("billed", True):
            changes.setdefault(machine, []).append((float(fields.get("terminated_at", event["at"])), -1.0))
    notes = tuple[str, ...]()
    if changes:
        added = scheduled_load(client, machines, min(at for found in changes.values() for at, _ in found))
        notes = added.notes
        for machine, more in added.changes.items():
            changes.setdefault(machine, []).extend(more)
    return _Recorded(machines=machines, changes=changes, now=float(client.get("/v1/status")["now"]), notes=notes)


def _events(client: Connection) -> Iterator[dict[str, Any]]:
    kinds, after = ["instance_requested", "instance_launched", "instance_terminated"], 0
    while page := client.get("/v1/events", after_seq=after, kind=kinds, limit=PAGE):
        yield from page
        after = page[-1]["seq"]


# --------------------------------------------------------------------------------------------------------------- output
def _notes(load: LoadCurve, on_demand: float, cloud: str) -> list[str]:
    days = float(load.seconds.sum()) / 86_400
    sizes = "; ".join(f"{names}: {count}" for names, count in sizes_by_strategy(load).items())
    since = datetime.fromtimestamp(float(load.times[0]), tz=UTC).strftime("%Y-%m-%d")
    notes = [
        f"load: {load.mean:.1f} machines on average, {load.steady:g} nearly always, {load.peak:g} at most, over "
        f"{days:.1f} days from {since}; all on demand: ${load.mean * on_demand:.4f}/h at ${on_demand:g}/h each",
        "use is counted at each moment: what a commitment leaves unused is lost"
        if cloud in CONCURRENT_USE
        else "use is counted per clock hour: machines that run for a part of an hour add up",
        f"machines reserved by the provisioning strategies: {sizes}",
        "pays from: share of the time that a machine must be in use to pay off; weeks: of this load until all that the "
        "option costs is earned back; back after: time to recover the "
        "upfront payment; at least: share of this load down to which the option costs no more than all on demand",
        "if halved: extra cost per hour compared with all on demand, at half the load; by week: smallest and largest "
        "count that is best for a single week",
    ]
    if days < 28:
        notes.append(f"only {days:.1f} days of load are known, too little to commit for a year")
    return notes


def _row(each: Advice) -> list[str]:
    weeks = f"{each.by_week[0]}-{each.by_week[1]}" if each.by_week is not None else ""
    after = "" if each.pays_after_months is None else f"{each.pays_after_months:.1f} months"
    return [
        each.terms.name, str(each.count), usd(each.upfront_usd), f"{each.usd_per_h:.4f}", f"{100 * each.saving:.1f}",
        f"{100 * each.use:.0f}", f"{100 * each.break_even_use:.0f}", weeks_text(each.break_even_weeks), after,
        f"{100 * each.least_load:.0f} %", f"{each.if_load_halves_usd_per_h:+.4f}", weeks,
    ]  # fmt: skip


def _document(each: Advice) -> dict[str, Any]:
    low, high = each.by_week if each.by_week is not None else (None, None)
    values = [
        each.terms.name, each.terms.term_months, each.count, each.upfront_usd, each.usd_per_h,
        each.on_demand_usd_per_h, each.saving, each.use, each.break_even_use, each.pays_after_months,
        each.least_load, each.if_load_halves_usd_per_h, low, high,
        each.break_even_weeks,
    ]  # fmt: skip
    return dict(zip(FIELDS, values, strict=True))
