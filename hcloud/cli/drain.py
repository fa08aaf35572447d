"""``hcloud drain`` and ``hcloud destroy``: taking machines out of use, gently or at once."""

from __future__ import annotations

import getpass
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from hcloud.cli.arguments import duration_s
from hcloud.cli.completing import instance_ids
from hcloud.cli.output import FiniteRange, format_option, span, stop_when_unread, usd, when, write_json, write_rows
from hcloud.cli.waiting_line import working
from hcloud.client.connection import Connection
from hcloud.config import Config, find_config
from hcloud.core.clock import Clock, SystemClock, holds_within
from hcloud.core.errors import BadInput, DaemonUnreachable, HCloudError, ProviderError, Refused, StoreError
from hcloud.core.model import EventKind, Instance
from hcloud.provider import CloudInstance, CloudState, Provider
from hcloud.spec.validation import nearest

if TYPE_CHECKING:
    from hcloud.store import Store, Transaction

ORDER_COLUMNS = ("order", "about", "by", "since", "deadline", "machines", "jobs")
MACHINE_COLUMNS = ("instance", "state", "provider", "zone", "type", "market", ">$/h", ">up", ">cost", "jobs")
JOB_COLUMNS = ("job", "name", "user", "target", "on", ">lost", "then")
LOOK_AGAIN_S = 1.0


class MachinesStillUp(HCloudError):
    """Machines that were ordered to end had not ended in time; they are ended all the same."""


@click.command()
@click.argument("instances", nargs=-1, shell_complete=instance_ids)
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
    client = Connection()
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
    write_rows(form, orders, ORDER_COLUMNS, _order_row, empty="none")


def _order_row(order: Mapping[str, Any]) -> list[Any]:
    return [
        "destroy" if order["destroy"] else "drain", f"{order['scope']} {order['name']}", order["by"],
        when(order["ordered_at"]), when(order["deadline_at"]), " ".join(order["instances"]), " ".join(order["jobs"]),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- destroying
@click.command()
@click.argument("instances", nargs=-1, shell_complete=instance_ids)
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
        from hcloud.cli.drain import destroy_everything

        if instances:
            raise BadInput("--without-daemon knows no records: it ends all of this deployment, with --all")
        code: int = destroy_everything(providers, yes=yes, dry_run=dry_run, wait_s=wait_s, form=form)
        return code
    if providers:
        raise BadInput("--provider is for --without-daemon; see 'hcloud drain --provider'")
    try:
        return _destroy(Connection(), {"instances": instances, "every": every}, yes, dry_run, wait_s, form)
    except DaemonUnreachable as error:
        if not every:
            raise
        raise DaemonUnreachable(f"{error}; or let the providers end all machines: --all --without-daemon") from error


def _destroy(
    client: Connection, body: dict[str, Any], yes: bool, dry_run: bool, wait_s: float | None, form: str
) -> int:
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


def _live(client: Connection) -> set[str]:
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
    """Have the number of machines typed, unless ``yes``. Raises BadInput without a terminal, Abort on a no."""
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
        """Repeat, as long as the output is read."""
        stop_when_unread()
        left.intersection_update(live())
        return not left

    with working(lambda: f"{len(wanted) - len(left)} of {len(wanted)} machines have ended"):
        are_gone = holds_within(gone, wait_s, LOOK_AGAIN_S)
    if not are_gone:
        names = ", ".join(sorted(left)[:5]) + (", ..." if len(left) > 5 else "")
        raise MachinesStillUp(f"{len(left)} of {len(wanted)} machines had not ended after {wait_s:g} s: {names}")


COLUMNS = ("provider", "provider_id", "instance", "state", "zone", ">$/h", ">up", ">cost", "jobs")
LEASE_S = 60.0
_UP = (CloudState.PENDING, CloudState.RUNNING)


class NotAllSeen(HCloudError):
    """A provider did not list everything, so nothing was ended."""


class NotAllEnded(HCloudError):
    """A provider did not take the request to end machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveMachines:
    """Machines with our tag that are up, by provider, and how long a new one may be missing from listings."""

    machines: Mapping[str, Sequence[CloudInstance]]
    consistent_after_s: float
    jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def rows(self) -> list[tuple[str, CloudInstance]]:
        """Each machine with its provider."""
        return [(name, each) for name, machines in sorted(self.machines.items()) for each in machines]


def destroy_everything(
    only: Sequence[str], *, yes: bool, dry_run: bool, wait_s: float | None, form: str, clock: Clock | None = None
) -> int:
    """End every machine of this deployment at its providers (``only``: at these). Returns the exit code.

    Raises:
        Refused: a daemon runs; it must do it, for it would launch again.
        NotAllSeen: a listing failed or was partial; nothing was changed.
        NotAllEnded: a provider refused; others did as asked, and repeating the command does the rest.
    """
    # Only this needs the store and the providers: other orders go to the daemon, and start faster without.
    from hcloud.cli.config import load_with_policy
    from hcloud.wiring import build_providers

    clock = clock or SystemClock()
    config = load_with_policy(find_config())
    _refuse_beside_a_daemon()
    providers = _chosen(build_providers(config, clock), only)
    found = look(providers, config.owner)
    store, trouble = _open(config)
    try:
        found = LiveMachines(
            machines=found.machines,
            consistent_after_s=found.consistent_after_s,
            jobs=_jobs_by_token(store) if store is not None else {},
        )
        _show(found, form, clock.now(), trouble)
        if dry_run:
            return 0
        ask(len(found.rows), yes)
        recorded = store is not None and _write_down(store, config, found, clock.now())
        end(providers, found)
    finally:
        if store is not None:
            store.close()
    _tell_the_end(found, recorded)
    if wait_s is not None:
        wanted = {each.provider_id for _, each in found.rows}
        wait_until_gone(wanted, wait_s, lambda: _left(providers, config.owner, wanted))
    return 0


def _left(providers: Mapping[str, Provider], owner: str, wanted: set[str]) -> set[str]:
    """Return which machines there are; where a listing fails, all that were there may still be."""
    try:
        return {each.provider_id for _, each in look(providers, owner, _ANY).rows}
    except NotAllSeen:
        return wanted


_ANY = (CloudState.PENDING, CloudState.RUNNING, CloudState.STOPPING)


def look(providers: Mapping[str, Provider], owner: str, states: Sequence[CloudState] = _UP) -> LiveMachines:
    """List what carries our owner tag and is in one of ``states``. Raises NotAllSeen unless every listing is whole."""
    machines: dict[str, Sequence[CloudInstance]] = {}
    delay_s, troubles = 0.0, []
    for name, provider in sorted(providers.items()):
        try:
            listing = provider.instances(owner)
        except ProviderError as error:
            troubles.append(f"{name}: {error}")
            continue
        if not listing.complete:
            troubles.append(f"{name}: no answer from {', '.join(listing.unanswered) or 'part of it'}")
        delay_s = max(delay_s, listing.consistent_after_s)
        machines[name] = [each for each in listing.instances if each.owner == owner and each.state in states]
    if troubles:
        hint = "; try again, or name those that answer with --provider" if len(providers) > 1 else "; try again"
        raise NotAllSeen("nothing was changed, not all machines could be listed: " + "; ".join(troubles) + hint)
    return LiveMachines(machines=machines, consistent_after_s=delay_s)


def end(providers: Mapping[str, Provider], found: LiveMachines) -> None:
    """Ask every provider to end what was found there. Raises NotAllEnded, after all were asked."""
    troubles = []
    for name, machines in sorted(found.machines.items()):
        try:
            if machines:
                providers[name].terminate([each.provider_id for each in machines])
        except ProviderError as error:
            troubles.append(f"{name}: {error}")
    if troubles:
        raise NotAllEnded("not all machines were asked to end: " + "; ".join(troubles) + "; say it again")


def _refuse_beside_a_daemon() -> None:
    try:
        Connection().get("/v1/status")
    except DaemonUnreachable:
        return
    raise Refused("a daemon answers, and would launch again what is ended behind its back; use 'hcloud destroy --all'")


def _chosen(built: Mapping[str, Provider], only: Sequence[str]) -> dict[str, Provider]:
    for name in only:
        if name not in built:
            raise BadInput(f"--provider {name!r} is not in the configuration; {nearest(name, built)}")
    return {name: provider for name, provider in built.items() if not only or name in only}


def _open(config: Config) -> tuple[Store | None, str]:
    """Return the records, or None and why they cannot be read: then machines are ended without them."""
    from hcloud.store import Store

    try:
        return Store.open(config.database), ""
    except HCloudError as error:
        return None, str(error)


def _jobs_by_token(store: Store) -> dict[str, list[str]]:
    view = store.live()
    tokens = {each.id: each.token for each in view.instances}
    found: dict[str, list[str]] = {}
    for job in view.jobs:
        for held in job.attempt.allocations if job.attempt is not None else ():
            if not held.released and held.instance_id in tokens:
                found.setdefault(tokens[held.instance_id], []).append(job.id)
    return found


def _show(found: LiveMachines, form: str, now: float, trouble: str) -> None:
    write_rows(form, [_document(found, *row, now) for row in found.rows], COLUMNS, _row, empty="no machine is left")
    if trouble:
        click.echo(f"the records cannot be read, so what runs there is not known: {trouble}", err=True)
    if form == "table" and found.rows:
        click.echo()
        click.echo(f"{len(found.rows)} machine(s) end; jobs there lose their work and run again when a daemon runs")


def _document(found: LiveMachines, provider: str, each: CloudInstance, now: float) -> dict[str, object]:
    up_s = max(0.0, now - each.launched_at)
    return {
        "provider": provider,
        "provider_id": each.provider_id,
        "instance": each.instance_id,
        "state": each.state.value,
        "zone": each.zone,
        "price_usd_per_h": each.price_usd_per_h,
        "up_s": up_s,
        "spent_usd": up_s / 3600.0 * each.price_usd_per_h,
        "jobs": list(found.jobs.get(each.token, ())),
    }


def _row(each: Mapping[str, object]) -> list[object]:
    names = ("provider", "provider_id", "instance", "state", "zone")
    price, up_s, spent = (float(str(each[name])) for name in ("price_usd_per_h", "up_s", "spent_usd"))
    jobs = each["jobs"]
    assert isinstance(jobs, list)
    return [*(each[name] for name in names), f"{price:.4f}", span(up_s), usd(spent), " ".join(jobs)]


def _write_down(store: Store, config: Config, found: LiveMachines, now: float) -> bool:
    """Record the orders and the pause before anything is ended; whoever leads after us goes on from there.

    Returns False where the records cannot be written, which keeps no machine alive. Raises Refused when a daemon on
    another host leads.
    """
    try:
        # The name of this host's own daemon: one that hangs without answering is fenced off, as by its restart.
        lease = store.acquire_lease(f"{socket.gethostname()}:{config.state_dir}", now, LEASE_S)
        if lease is None:
            raise Refused("a daemon on another host leads this deployment; use 'hcloud destroy --all' there")
        with store.transaction(now, lease) as txn:
            _order_all(txn, store.live().instances, found)
        store.release_lease(lease)
    except StoreError as error:
        click.echo(f"the records cannot be written: {error}", err=True)
        return False
    return True


def _order_all(txn: Transaction, live: Sequence[Instance], found: LiveMachines) -> None:
    from hcloud.apply.directives import record_directive, set_paused
    from hcloud.planner.snapshot import Directive, DirectiveScope

    actor, known = getpass.getuser(), {each.token for each in live}
    set_paused(txn, actor, "every machine was destroyed without the daemon")
    for instance in live:
        if instance.offer.provider in found.machines:
            scope = DirectiveScope.INSTANCE
            record_directive(txn, Directive(scope=scope, name=instance.id, by=actor, ordered_at=txn.now, destroy=True))
    for provider, each in found.rows:
        if each.token not in known:
            _emit_orphan(txn, provider, each)


def _emit_orphan(txn: Transaction, provider: str, each: CloudInstance) -> None:
    kind, key, token = EventKind.ORPHAN, each.provider_id, each.token
    txn.emit(kind, provider_id=key, provider=provider, token=token, action="terminate")


def _tell_the_end(found: LiveMachines, recorded: bool) -> None:
    click.echo(f"{len(found.rows)} machine(s) were asked to end", err=True)
    if found.consistent_after_s > 0:
        late = span(found.consistent_after_s)
        click.echo(f"a machine launched in the last {late} may not have been listed: look again then", err=True)
    if recorded:
        click.echo("a daemon started now launches nothing until 'hcloud resume'", err=True)
    else:
        click.echo("a daemon started now may launch again: it could not be told", err=True)
