"""``hcloud destroy --all --without-daemon``: ends what carries our owner tag while no daemon runs.

Providers are asked, not records, for these may be lost; where records can be read they are told first, so that a
daemon started later neither launches anew nor wonders. Nothing at all is ended unless every listing is complete: a
person who is told that nothing is left must be able to rely on it.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import click

from hcloud.apply.orders import record_directive, set_paused
from hcloud.assembly import build_providers
from hcloud.cli.client import Client
from hcloud.cli.config import load_with_policy
from hcloud.cli.ending import ask, wait_until_gone
from hcloud.cli.output import span, usd, write_rows
from hcloud.clock import Clock, SystemClock
from hcloud.config import Config, find_config
from hcloud.errors import BadInput, DaemonUnreachable, HCloudError, ProviderError, Refused, StoreError
from hcloud.model import EventKind, Instance
from hcloud.planner.snapshot import Directive, DirectiveScope
from hcloud.provider import CloudInstance, CloudState, Provider
from hcloud.sentences import nearest
from hcloud.store import Store, Transaction

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
        Client().get("/v1/status")
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
