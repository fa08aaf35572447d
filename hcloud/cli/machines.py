"""``hcloud instances``, ``offers``, ``events``, ``pause``, ``resume``."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from hcloud.cli import candidates
from hcloud.cli.candidates import OfferQuery, queries_of
from hcloud.cli.completing import instance_ids
from hcloud.cli.instance_table import INSTANCE_COLUMNS, INSTANCE_SPARE, instance_row
from hcloud.cli.jobs import job_id
from hcloud.cli.output import (
    FiniteRange,
    WholeRange,
    format_option,
    json_text,
    price_age,
    stop_when_unread,
    usd,
    when,
    write_json,
    write_rows,
)
from hcloud.client.connection import Connection
from hcloud.core.clock import SystemClock
from hcloud.core.errors import BadInput, printable
from hcloud.core.model import EventKind

INSTANCE_CSV = ("instance", "state", "provider", "zone", "type", "market", "price_usd_per_h", "vcpus", "memory_mib",
                "used_vcpus", "launched_at", "ready_at", "expires_at", "terminated_at", "jobs", "topology",
                "pinned")  # fmt: skip
OFFER_COLUMNS = ("provider", "zone", "type", "market", ">vcpus", ">memory_mib", ">price_usd_per_h", ">available",
                 ">boot_delay_s")  # fmt: skip
EVENT_COLUMNS = ("seq", "at", "kind", "job", "instance", "user", "actor", "fields")
PAGE = 1000


@click.command()
@click.option("--ended", is_flag=True, help="Also machines that are gone.")
@click.option("-n", "--limit", type=WholeRange(1, 10_000), default=1000, help="At most so many.")
@format_option
def instances(ended: bool, limit: int, form: str) -> None:
    """Show machines, and the jobs on them."""
    client = Connection()
    found = client.get("/v1/instances", ended=ended or None, limit=limit)
    if form == "table":
        now = client.get("/v1/status")["now"]
        write_rows(
            form,
            found,
            INSTANCE_COLUMNS,
            lambda each: instance_row(each, now),
            empty="no machines",
            spare=INSTANCE_SPARE,
        )
    else:
        write_rows(form, found, INSTANCE_CSV, _instance_csv)


def _instance_csv(each: dict[str, Any]) -> list[Any]:
    offer, kind = each["offer"], each["offer"]["instance_type"]
    return [
        each["id"], each["state"], offer["provider"], offer["zone"], kind["name"], offer["market"],
        offer["price_usd_per_h"], kind["capacity"]["vcpus"], kind["capacity"]["memory_mib"], each["used"]["vcpus"],
        each["launched_at"], each["ready_at"], each["expires_at"], each["terminated_at"], " ".join(each["jobs"]),
        each["topology"], " ".join(f"{job}:{cpus}" for job, cpus in each["pinned"].items()),
    ]  # fmt: skip


@click.command()
@click.option("--provider", help="Only of this provider.")
@click.option("--market", type=click.Choice(["reserved", "on_demand", "spot"]), help="Only of this market.")
@click.option("--region", "regions", multiple=True, help="Only in this region (repeatable; * and ? allowed).")
@click.option("--for", "job_file", type=click.Path(path_type=Path, allow_dash=True), help="What could run these jobs.")
@click.option("--vcpus", type=FiniteRange(min=0, min_open=True), help="At least so many vCPUs.")
@click.option("--memory", help="At least so much memory, such as 512MiB or 2GiB.")
@click.option("--offline", is_flag=True, help="Ask the catalogue of prices, not the daemon.")
@click.option("-n", "--limit", type=WholeRange(min=1), help="At most so many (tables: 20 for a job or a size).")
@format_option
def offers(
    provider: str | None,
    market: str | None,
    regions: tuple[str, ...],
    job_file: Path | None,
    vcpus: float | None,
    memory: str | None,
    offline: bool,
    limit: int | None,
    form: str,
) -> None:
    """Show what can be rented now, cheapest first.

    With --for, --vcpus or --memory: what could run it, and what that costs for all its nodes. With --offline also
    what is not configured here; burstable and ARM machines only where a job names their type.
    """
    if job_file is not None or vcpus is not None or memory is not None or offline:
        _candidates(queries_of(job_file, vcpus, memory), (provider, market, regions), offline, limit, form)
        return
    client = Connection()
    found = [
        each
        for each in client.get("/v1/offers")
        if provider in (None, each["provider"])
        and market in (None, each["market"])
        and (not regions or any(fnmatchcase(each["region"], pattern) for pattern in regions))
    ]
    if not found and provider is not None:
        _check_provider(client, provider)
    found.sort(key=lambda each: each["price_usd_per_h"])
    write_rows(form, found[:limit], OFFER_COLUMNS, _offer_row if form == "csv" else _shown_offer, empty="no offers")
    if form == "table" and found:
        age_s = client.get("/v1/status")["now"] - min(each["priced_at"] for each in found[:limit])
        cheapest = usd(found[0]["price_usd_per_h"])
        click.echo(f"the oldest of these prices is {price_age(age_s)}; the cheapest is {cheapest}/h", err=True)


def _check_provider(client: Connection, name: str) -> None:
    from hcloud.spec.validation import nearest  # 0.15 s, for a mistake only

    known = sorted(client.get("/v1/status")["daemon"]["providers"])
    if name not in known:
        raise BadInput(f"--provider {printable(name)}: there is no such provider; {nearest(name, known)}")


def _candidates(
    wanted: list[OfferQuery],
    filters: tuple[str | None, str | None, tuple[str, ...]],
    from_catalogue: bool,
    limit: int | None,
    form: str,
) -> None:
    if from_catalogue:
        known: list[dict[str, Any]] = []
        now = SystemClock().now()
    else:
        client = Connection()
        known, now = client.get("/v1/offers"), client.get("/v1/status")["now"]
        if filters[0] is not None and not any(each["provider"] == filters[0] for each in known):
            _check_provider(client, filters[0])
    found = [
        each
        for asked in wanted
        for each in candidates.chosen(
            candidates.offline(asked) if from_catalogue else candidates.live(known, asked), *filters
        )
    ]
    candidates.show(found, form, now, limit or (candidates.SHOWN if form == "table" else len(found) or 1))


def _offer_row(each: dict[str, Any]) -> list[Any]:
    kind = each["instance_type"]
    return [
        each["provider"], each["zone"], kind["name"], each["market"], kind["capacity"]["vcpus"],
        kind["capacity"]["memory_mib"], each["price_usd_per_h"], each["available"], kind["boot_delay_s"],
    ]  # fmt: skip


def _shown_offer(each: dict[str, Any]) -> list[Any]:
    price = OFFER_COLUMNS.index(">price_usd_per_h")
    cells = _offer_row(each)
    return [*cells[:price], f"{each['price_usd_per_h']:.4g}", *cells[price + 1 :]]


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with new events as they come.")
@click.option("--job", help="Only about this job.")
@click.option("--instance", shell_complete=instance_ids, help="Only about this machine.")
@click.option(
    "--kind",
    multiple=True,
    metavar="KIND",
    callback=lambda _context, _option, kinds: tuple(map(_event_kind, kinds)),
    help=f"Only of this kind (repeatable): {', '.join(EventKind)}.",
)
@click.option("--after", "after_seq", type=WholeRange(min=0), help="The first after this number, not the newest.")
@click.option(
    "-n", "--limit", type=WholeRange(1, 1_000_000), default=10_000, show_default=True, help="The newest so many."
)
@format_option
def events(
    follow: bool,
    job: str | None,
    instance: str | None,
    kind: tuple[str, ...],
    after_seq: int | None,
    limit: int,
    form: str,
) -> None:
    """Show the newest of the audit log, in order of time. With -f, -o json writes one object per line."""
    client = Connection()
    about = {"job_id": job and job_id(job), "instance_id": instance, "kind": list(kind) or None}
    found, more = _newest(client, limit, about) if after_seq is None else _first(client, limit, after_seq, about)
    # Of what there is not these say so.
    if not found and about["job_id"] is not None:
        client.get(f"/v1/jobs/{about['job_id']}")
    if not found and instance is not None:
        client.get(f"/v1/instances/{quote(instance, safe='')}")
    if more and form == "table" and not (follow and after_seq is not None):
        click.echo(_left_out(found, after_seq), err=True)
    if follow:
        _follow(client, found, found[-1]["seq"] if found else after_seq or 0, about, form)
    elif form == "json":
        write_json(found)
    else:
        write_rows(form, found, EVENT_COLUMNS, _event_row, empty="no events")


def _first(client: Connection, limit: int, after_seq: int, about: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """Return the first events after a number, and whether there are more."""
    found: list[dict[str, Any]] = []
    while len(found) <= limit:
        wanted = min(PAGE, limit + 1 - len(found))
        page = client.get("/v1/events", after_seq=found[-1]["seq"] if found else after_seq, limit=wanted, **about)
        found += page
        if len(page) < wanted:
            break
    return found[:limit], len(found) > limit


def _newest(client: Connection, limit: int, about: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """Return the newest events in order, and whether there are older ones."""
    found: list[dict[str, Any]] = []
    while len(found) <= limit:
        wanted, before = min(PAGE, limit + 1 - len(found)), found[0]["seq"] if found else None
        page = client.get("/v1/events", newest=True, before_seq=before, limit=wanted, **about)
        found = page + found
        if len(page) < wanted:
            break
    return found[-limit:], len(found) > limit


def _left_out(found: list[dict[str, Any]], after_seq: int | None) -> str:
    if after_seq is None:
        return "older events are left out; -n N shows the newest N"
    return f"newer events are left out; go on with --after {found[-1]['seq']}"


def _event_kind(name: str) -> str:
    if name in set(EventKind):
        return name
    near = difflib.get_close_matches(name.lower().replace("-", "_"), list(EventKind), n=1)
    hint = f"did you mean {str(near[0])!r}?" if near else "'hcloud events --help' lists them"
    raise BadInput(f"--kind {printable(name)}: there is no such kind of event; {hint}")


def _follow(client: Connection, found: list[dict[str, Any]], after_seq: int, about: dict[str, Any], form: str) -> None:
    from hcloud.cli.follow import WAIT_S

    client.be_patient()
    while True:
        for each in found:
            text = json_text(each) if form == "json" else "  ".join(map(str, _event_row(each)))
            click.echo(text if form == "json" else printable(text))
            after_seq = each["seq"]
        stop_when_unread()
        found = client.get("/v1/events", after_seq=after_seq, limit=PAGE, wait_s=WAIT_S, **about)


def _event_row(event: dict[str, Any]) -> list[Any]:
    fields = " ".join(f"{key}={_field(key, value)}" for key, value in event["fields"].items() if value is not None)
    return [
        event["seq"], when(event["at"]), event["kind"], event["job_id"] or "", event["instance_id"] or "",
        event["user"] or "", event["actor"], fields,
    ]  # fmt: skip


def _field(name: str, value: Any) -> str:
    if name.endswith("_at") and isinstance(value, (int, float)):
        return when(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@click.command()
@click.argument("reason", nargs=-1)
def pause(reason: tuple[str, ...]) -> None:
    """Launch and place nothing more until resumed; what runs goes on. REASON is shown to everybody."""
    body = {"reason": " ".join(reason)} if reason else {}
    click.echo(f"paused: {Connection().post('/v1/pause', body)['paused']}")


@click.command()
def resume() -> None:
    """Launch and place again."""
    Connection().post("/v1/resume")
    click.echo("resumed")


@click.group()
def provider() -> None:
    """Try a provider again that was stopped."""


@provider.command("resume")
@click.argument("name")
def resume_provider(name: str) -> None:
    """Launch at provider NAME again at once: what made it refuse is fixed.

    A changed configuration (at the daemon's start) and an `hcloud doctor` that finds nothing wrong do the same.
    """
    done = Connection().post(f"/v1/providers/{quote(name, safe='')}/resume")
    click.echo(f"{name} is tried again" if done["resumed"] else f"{name} was not stopped")
