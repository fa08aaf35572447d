"""``hcloud schedule``: jobs that are submitted again and again."""

from __future__ import annotations

import re
from typing import Any

import click

from hcloud.cli.output import confirmed, format_option, when, write_rows
from hcloud.client.connection import Connection
from hcloud.core.errors import BadInput

COLUMNS = ("id", "name", "user", "cron", "timezone", "next", "last", "last job", "overlap", "missed")


@click.group()
def schedule() -> None:
    """Show, pause, resume and delete schedules; `hcloud submit` makes them."""


@schedule.command("list")
@click.option("--all-users", "-a", is_flag=True, help="Also those of others.")
@format_option
def list_(all_users: bool, form: str) -> None:
    """List schedules with their next and last times."""
    client = Connection()
    user = None if all_users else client.get("/v1/status")["you"]
    write_rows(form, client.get("/v1/schedules", user=user), COLUMNS, _row, empty="no schedules")


def _row(each: dict[str, Any]) -> list[Any]:
    rule = each["recurrence"]
    coming = f"paused by {each['paused_by']}" if each["paused_by"] else when(each["next_at"]) or "never"
    last = each["jobs"][-1] if each["jobs"] else ""
    named = [each["id"], each["name"], each["user"], rule["cron"], rule["timezone"]]
    return [*named, coming, when(each["fired_at"]), last, rule["overlap"], rule["missed"]]


def schedule_id(text: str) -> str:
    """Return a schedule's id; ``7`` means ``sched-7``. Raises BadInput."""
    if not re.fullmatch(r"[\w-]+", text, re.ASCII):
        raise BadInput(f"{text!r} is not the id of a schedule; one looks like sched-7")
    return f"sched-{text}" if text.isdigit() else text


@schedule.command()
@click.argument("names", metavar="SCHEDULE...", nargs=-1, required=True)
def pause(names: tuple[str, ...]) -> None:
    """Let SCHEDULEs submit no more jobs until they are resumed. Their jobs go on."""
    for each in [schedule_id(name) for name in names]:
        click.echo(_line(Connection().post(f"/v1/schedules/{each}/pause")))


@schedule.command()
@click.argument("names", metavar="SCHEDULE...", nargs=-1, required=True)
def resume(names: tuple[str, ...]) -> None:
    """Let paused SCHEDULEs go on from their next time; what was due meanwhile is not made up for."""
    for each in [schedule_id(name) for name in names]:
        click.echo(_line(Connection().post(f"/v1/schedules/{each}/resume")))


@schedule.command()
@click.argument("names", metavar="SCHEDULE...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(names: tuple[str, ...], yes: bool) -> None:
    """Delete SCHEDULEs. Their jobs go on."""
    ids = [schedule_id(name) for name in names]
    if not confirmed(f"Delete {', '.join(ids)}?", yes):
        raise click.Abort
    for each in ids:
        click.echo(f"{Connection().post(f'/v1/schedules/{each}/delete')['id']} deleted")


def _line(each: dict[str, Any]) -> str:
    return f"{each['id']} {each['name']}: {'paused' if each['paused_by'] else coming_words(each['next_at'])}"


def coming_words(next_at: float | None) -> str:
    """Return when a schedule fires next, in a few words."""
    return f"next at {when(next_at)}" if next_at is not None else "paused"
