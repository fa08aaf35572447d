"""``hcloud drain`` and ``hcloud destroy``: taking machines out of use, gently or at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from hcloud.cli.client import Client
from hcloud.cli.output import FiniteRange, format_option, span, stop_when_unread, usd, when, write_json, write_rows
from hcloud.cli.times import duration_s
from hcloud.clock import holds_within
from hcloud.errors import BadInput, DaemonUnreachable, HCloudError

ORDER_COLUMNS = ("order", "about", "by", "since", "deadline", "machines", "jobs")
MACHINE_COLUMNS = ("instance", "state", "provider", "zone", "type", "market", ">$/h", ">up", ">cost", "jobs")
JOB_COLUMNS = ("job", "name", "user", "target", "on", ">lost", "then")
LOOK_AGAIN_S = 1.0


class MachinesStillUp(HCloudError):
    """Machines that were ordered to end had not ended in time; they are ended all the same."""


@click.command()
@click.argument("instances", nargs=-1)
@click.option("--type", "types", multiple=True, help="All machines of these types, now and later (* and ? allowed).")
@click.option("--provider", "providers", multiple=True, help="All machines of this provider, now and later.")
@click.option(
    "--deadline", help="Stop by then what still runs there, such as 30min or 600 (seconds); it runs again elsewhere."
)
@click.option("--undo", is_flag=True, help="Use them again.")
@format_option
def drain(
    instances: tuple[str, ...],
    types: tuple[str, ...],
    providers: tuple[str, ...],
    deadline: str | None,
    undo: bool,
    form: str,
) -> None:
    """Give INSTANCES no new work, and end them when what runs there has ended; without any: show what is drained.

    Without --deadline jobs run to their end, which services never reach. Of a type or provider nothing more is launched
    until --undo.
    """
    deadline_s = None if deadline is None else duration_s(deadline, "--deadline")
    client = Client()
    if not (instances or types or providers):
        if undo or deadline is not None:
            raise BadInput("name what to drain: machines, --type or --provider; 'hcloud drain' alone shows it")
        _show_orders(client.get("/v1/orders"), form)
        return
    if undo and deadline is not None:
        raise BadInput("--deadline says when a drain ends; with --undo there is none")
    body: dict[str, Any] = {"instances": instances, "types": types, "providers": providers, "undo": undo}
    if deadline_s is not None:
        body["deadline_at"] = client.get("/v1/status")["now"] + deadline_s
    _show_orders(client.post("/v1/drain", body), form)


def _show_orders(orders: list[dict[str, Any]], form: str) -> None:
    write_rows(form, orders, ORDER_COLUMNS, _order_row, empty="nothing is drained")


def _order_row(order: Mapping[str, Any]) -> list[Any]:
    return [
        "destroy" if order["destroy"] else "drain", f"{order['scope']} {order['name']}", order["by"],
        when(order["ordered_at"]), when(order["deadline_at"]), " ".join(order["instances"]), " ".join(order["jobs"]),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- destroying
@click.command()
@click.argument("instances", nargs=-1)
@click.option(
    "--all", "every", is_flag=True, help="Every machine; nothing is launched afterwards until 'hcloud resume'."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would end.")
@click.option("--wait", "wait_s", type=FiniteRange(min=0), help="Wait so many seconds until they are gone.")
@click.option("--without-daemon", is_flag=True, help="With --all, while no daemon runs: ask the providers directly.")
@click.option("--provider", "providers", multiple=True, help="With --without-daemon: only at this one (repeatable).")
@format_option
def destroy(
    instances: tuple[str, ...],
    every: bool,
    yes: bool,
    dry_run: bool,
    wait_s: float | None,
    without_daemon: bool,
    providers: tuple[str, ...],
    form: str,
) -> int:
    """End INSTANCES at once. Shows first what runs there, what it costs, what is lost, and asks.

    Jobs that lose their machine are queued again. To end machines gently see 'hcloud drain'. Nothing without the owner
    tag of this deployment is ever touched.
    """
    if bool(instances) == every:
        raise BadInput("name the machines to end, or --all; see 'hcloud instances'")
    if without_daemon:
        from hcloud.cli.without_daemon import destroy_everything

        if instances:
            raise BadInput("--without-daemon knows no records: it ends all of this deployment, with --all")
        code: int = destroy_everything(providers, yes=yes, dry_run=dry_run, wait_s=wait_s, form=form)
        return code
    if providers:
        raise BadInput("--provider is for --without-daemon; see 'hcloud drain --provider'")
    try:
        return _destroy(Client(), {"instances": instances, "every": every}, yes, dry_run, wait_s, form)
    except DaemonUnreachable as error:
        if not every:
            raise
        raise DaemonUnreachable(f"{error}; or let the providers end all machines: --all --without-daemon") from error


def _destroy(client: Client, body: dict[str, Any], yes: bool, dry_run: bool, wait_s: float | None, form: str) -> int:
    plan = client.post("/v1/destroy", {**body, "dry_run": True})
    if form == "table":
        show_plan(plan, body["every"])
    if dry_run or not (plan["machines"] or body["every"]):
        if form != "table":
            _write(plan, form)
        return 0
    ask(len(plan["machines"]), yes)
    done = client.post("/v1/destroy", body)
    if form != "table":
        _write(done, form)
    elif done["paused"]:
        click.echo("they are ending; nothing is launched until 'hcloud resume'")
    else:
        click.echo("they are ending; 'hcloud instances' shows it")
    if wait_s is not None:
        client.be_patient(wait_s)
        wait_until_gone({each["id"] for each in done["machines"]}, wait_s, lambda: _live(client))
    return 0


def _live(client: Client) -> set[str]:
    return {each["id"] for each in client.get("/v1/instances", limit=10_000)}


def _write(plan: dict[str, Any], form: str) -> None:
    if form == "json":
        write_json(plan)
    else:
        write_rows(form, plan["machines"], MACHINE_COLUMNS, _machine_row)


def show_plan(plan: Mapping[str, Any], every: bool) -> None:
    """Write what ends, what runs there and what is lost."""
    write_rows("table", plan["machines"], MACHINE_COLUMNS, _machine_row, empty="no machine is left to end")
    if plan["jobs"]:
        click.echo()
        write_rows("table", plan["jobs"], JOB_COLUMNS, _job_row)
    lost_s = sum(each["lost_s"] for each in plan["jobs"])
    click.echo()
    click.echo(
        f"{len(plan['machines'])} machine(s) end, which saves {usd(plan['price_usd_per_h'])}/h;"
        f" {len(plan['jobs'])} job(s) lose {span(lost_s)} of work"
    )
    if every:
        click.echo("afterwards nothing is launched or placed until 'hcloud resume'; jobs that wait go on waiting")


def _machine_row(each: Mapping[str, Any]) -> list[Any]:
    return [
        each["id"], each["state"], each["provider"], each["zone"], each["instance_type"], each["market"],
        f"{each['price_usd_per_h']:.4f}", span(each["up_s"]), usd(each["spent_usd"]), " ".join(each["jobs"]),
    ]  # fmt: skip


def _job_row(each: Mapping[str, Any]) -> list[Any]:
    then = "runs again from its beginning" if each["runs_again"] else "fails: no retries are left"
    return [
        each["id"], each["name"], each["user"], each["target"], " ".join(each["instances"]), span(each["lost_s"]), then
    ]  # fmt: skip


def ask(machines: int, yes: bool) -> None:
    """Have the number of machines typed, unless ``yes``. Raises BadInput where nobody can be asked, Abort on a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput("this ends machines and there is no terminal to ask at; say --yes, or --dry-run to look only")
    wanted = f"destroy {machines}"
    if click.prompt(f"Type '{wanted}' to go on", err=True).strip() != wanted:
        click.echo("nothing was changed", err=True)
        raise click.Abort


def wait_until_gone(wanted: set[str], wait_s: float, live: Callable[[], set[str]]) -> None:
    """Look again and again until none of ``wanted`` lives. Raises StillThere after ``wait_s`` seconds."""
    left = set(wanted)

    def gone() -> bool:
        """Ask again, as long as somebody reads what we say."""
        stop_when_unread()
        left.intersection_update(live())
        return not left

    if not holds_within(gone, wait_s, LOOK_AGAIN_S):
        names = ", ".join(sorted(left)[:5]) + (", ..." if len(left) > 5 else "")
        raise MachinesStillUp(f"{len(left)} of {len(wanted)} machines had not ended after {wait_s:g} s: {names}")
