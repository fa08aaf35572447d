"""``hcloud doctor`` and ``hcloud orphans``: what is wrong with a deployment and what to do; what nearly leaked.

Both only look. What a cloud account allows is tried out by its provider, without any effect.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import click

from hcloud.catalog import CatalogFiles, PricePlan, freshness
from hcloud.cli.config import load_with_policy
from hcloud.cli.output import format_option, span, when, write_rows
from hcloud.cli.waiting_line import working
from hcloud.client.connection import Connection
from hcloud.config import Config, ProviderSettings, at_its_line, find_config, resolve_secret
from hcloud.core.clock import SystemClock
from hcloud.core.errors import BadInput, ConfigError, DaemonUnreachable, HCloudError, StoreBusy, StoreDamaged
from hcloud.provider import Examinable

Verdict = Literal["ok", "warn", "fail"]
COLUMNS = ("check", "verdict", "finding", "do")
ORPHAN_COLUMNS = ("provider", "what", "action", ">times", "first", "last")
DISK_WARN_MIB, DISK_FAIL_MIB = 2048, 256
INODES_FAIL = 1000
CLOCK_SKEW_MAX_S = 5.0
CONNECT_TIMEOUT_S = 2.0
HERE = ("local", "mock")
"""Types of providers whose machines are on this host."""
CYCLE_STALLED_S = 120.0
PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """What one look found. ``do`` says what would help, "" where nothing is wrong."""

    check: str
    verdict: Verdict
    finding: str
    do: str = ""


@click.command()
@click.option("--no-cloud", is_flag=True, help="Ask no cloud about its account: permissions, quotas, image, clock.")
@click.option("--audit-head", metavar="LINK:DIGEST", help="Head of the audit log that was kept elsewhere.")
@format_option
def doctor(no_cloud: bool, audit_head: str | None, form: str) -> int:
    """Look over the deployment: configuration, keys, disk, database, audit log, secrets, prices, network, clouds,
    daemon and engine.

    Ends with 1 when something must be fixed. Run it as the daemon's user: it is the daemon's credentials that count.
    Changes nothing, but for this: a provider that was stopped since it refused launches is tried again if its account
    passes all checks.
    """
    kept = None if audit_head is None else _parsed_head(audit_head)
    with working("looking the deployment over"):
        here = list(_of_this_machine(cloud=not no_cloud, kept=kept))
        found = [*here, *_of_the_daemon(here)]
    write_rows(form, [asdict(each) for each in found], COLUMNS, lambda each: list(each.values()))
    return 1 if any(each.verdict == "fail" for each in found) else 0


# ---------------------------------------------------------------------------------------------------- this machine
def _of_this_machine(*, cloud: bool, kept: tuple[int, str] | None) -> Iterator[DoctorFinding]:
    yield from _namesakes()
    try:
        path = find_config()
        config = load_with_policy(path)
    except HCloudError as error:
        yield DoctorFinding(check="configuration", verdict="fail", finding=str(error), do="hcloud config check")
        return
    yield DoctorFinding(check="configuration", verdict="ok", finding=f"{path} and its policy are right")
    yield from _keys(config)
    yield from _disk(config.state_dir)
    yield from _database(config, path)
    yield from _audit_log(config, kept)
    yield from _secrets(config)
    yield from _secret_keys(config)
    yield from _prices(config)
    yield from _gateway(config)
    yield from _sources(config)
    if cloud:
        yield from _accounts(config)


def _namesakes() -> Iterator[DoctorFinding]:
    """Yield what else is called hcloud here: Hetzner Cloud's official library and command line are."""
    do = "install HCloud in an environment of its own (uv tool, pipx, deploy/install)"
    with suppress(metadata.PackageNotFoundError):
        other = metadata.distribution("hcloud")
        finding = (
            f"Hetzner Cloud's library hcloud {other.version} is in the same environment; its files and ours overlap"
        )
        yield DoctorFinding(check="name clash", verdict="fail", finding=finding, do=do)
    ours, first = Path(sys.executable).parent / "hcloud", shutil.which("hcloud")
    if first is not None and ours.exists() and not os.path.samefile(first, ours):
        finding = f"'hcloud' runs {first}, not this program ({ours})"
        yield DoctorFinding(check="name clash", verdict="warn", finding=finding, do=f"{do}, or put ours first on PATH")


def _keys(config: Config) -> Iterator[DoctorFinding]:
    if config.engine.programs != "real":
        return
    ca = config.engine.tls_dir / "ca.pem"
    if not os.path.isfile(ca):  # Path.is_file raises where it may not be seen
        yield DoctorFinding(
            check="keys", verdict="fail", finding=f"there is no {ca}, or you may not see it", do="hcloud init"
        )
    else:
        yield DoctorFinding(check="keys", verdict="ok", finding=f"in {config.engine.tls_dir}")


def _sources(config: Config) -> Iterator[DoctorFinding]:
    """Whether profiling can generate interference on this host; what rented machines can do is in their events."""
    if not any(each.type == "local" for each in config.providers):
        return
    if shutil.which("stress-ng") is None:
        finding = "stress-ng is not installed on this host: what jobs tolerate and cause cannot be profiled here"
        yield DoctorFinding(check="profiling", verdict="warn", finding=finding, do="apt-get install stress-ng")
    else:
        yield DoctorFinding(check="profiling", verdict="ok", finding="sources of interference can be generated here")


def _disk(state_dir: Path) -> Iterator[DoctorFinding]:
    if not os.path.isdir(state_dir):
        finding = f"{state_dir} does not exist, or you may not see it"
        yield DoctorFinding(check="state directory", verdict="fail", finding=finding, do="hcloud init")
        return
    free_mib = shutil.disk_usage(state_dir).free // 2**20
    verdict: Verdict = "fail" if free_mib < DISK_FAIL_MIB else "warn" if free_mib < DISK_WARN_MIB else "ok"
    do = "" if verdict == "ok" else "make room; the daemon stands still on a full disk"
    yield DoctorFinding(check="disk", verdict=verdict, finding=f"{free_mib} MiB free at {state_dir}", do=do)
    room = os.statvfs(state_dir)
    if room.f_files and room.f_favail < INODES_FAIL:  # some file systems count none
        finding = f"room for {room.f_favail} more files at {state_dir}, whatever their size"
        yield DoctorFinding(
            check="disk", verdict="fail", finding=finding, do="delete files there; it has no inodes left"
        )
    if not os.access(state_dir, os.W_OK):
        finding = f"{state_dir} is not yours to write"
        yield DoctorFinding(
            check="state directory", verdict="warn", finding=finding, do="run as the daemon's user to be sure"
        )


def _database(config: Config, file: Path) -> Iterator[DoctorFinding]:
    from hcloud.store import check_integrity, examine  # a quarter of a second, which `hcloud orphans` and --help save

    try:
        found = examine(config.database, state_dir=config.state_dir)
        undamaged = " and undamaged" if check_integrity(config.database) else ""
    except HCloudError as error:
        finding = str(at_its_line(error, file) if isinstance(error, ConfigError) else error)
        yield DoctorFinding(
            check="database", verdict="fail", finding=finding, do=_help_with_database(error, config.database)
        )
        return
    if found.state == "older":
        finding = f"{found.name} has schema {found.schema}; the daemon brings it to {found.needed} at its start"
        yield DoctorFinding(
            check="database", verdict="warn", finding=finding, do="back it up before; see docs/operations.md"
        )
        return
    present = f"of schema {found.schema}{undamaged}"
    finding = present if found.state == "present" else "new: the daemon makes it at its first start"
    yield DoctorFinding(check="database", verdict="ok", finding=f"{found.name} is {finding}")


def _parsed_head(text: str) -> tuple[int, str]:
    found = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{16,64})", text)
    if found is None:
        raise BadInput(f"--audit-head {text}: must be a head as doctor prints it, such as 1234:0123456789abcdef")
    return int(found[1]), found[2]


def _audit_log(config: Config, kept: tuple[int, str] | None) -> Iterator[DoctorFinding]:
    """Verify the hash chain of the event log. A database that cannot be read has its own finding."""
    from hcloud.store import AuditHead, verify_audit_log

    with suppress(HCloudError):
        log = verify_audit_log(config.database, kept and AuditHead(link=kept[0], digest=kept[1]))
        if log is None:
            return
        if log.fault:
            do = "find out who changed the database; compare with a backup (docs/operations.md)"
            yield DoctorFinding(check="audit log", verdict="fail", finding=log.fault, do=do)
            return
        counts = [f"{log.records} events verified"]
        counts += [f"{log.pruned} pruned"] if log.pruned else []
        counts += [f"{log.unlinked} from before the chain not covered"] if log.unlinked else []
        yield DoctorFinding(check="audit log", verdict="ok", finding=f"{', '.join(counts)}; head {log.head}")


def _help_with_database(error: HCloudError, url: str) -> str:
    if isinstance(error, StoreDamaged):
        return "see docs/operations.md for backups"
    if isinstance(error, StoreBusy) and url.startswith("sqlite:"):
        return "see what else uses it, and try again"
    if isinstance(error, StoreBusy):
        return "see that its address is right, that it runs, and that it is reached from here"
    return "fix that, or 'database' of the configuration; ask again as the daemon's user"


def _secrets(config: Config) -> Iterator[DoctorFinding]:
    reference = config.catalog.gcp.api_key
    if reference is None:
        return
    try:
        resolve_secret(reference)
    except HCloudError as error:
        # A variable may be set for the daemon alone.
        verdict: Verdict = "warn" if reference.startswith("env:") else "fail"
        yield DoctorFinding(check="secret", verdict=verdict, finding=str(error), do="see docs/prices.md")
    else:
        yield DoctorFinding(check="secret", verdict="ok", finding=f"{reference} holds something")


def _secret_keys(config: Config) -> Iterator[DoctorFinding]:
    """Check the keys that encrypt secrets of jobs. A database that cannot be read has its own finding."""
    from hcloud.store import count_sealed
    from hcloud.wiring import secret_keys

    keys, used = secret_keys(config), dict[str, int]()
    with suppress(HCloudError):
        used = dict(count_sealed(config.database))
    try:
        known = keys.ids()
    except HCloudError as error:
        yield DoctorFinding(check="keys of secrets", verdict="fail", finding=str(error), do="see docs/operations.md")
        return
    missing = sorted(used.keys() - set(known))
    for key_id in missing:
        finding = f"{used[key_id]} secrets of jobs need key {key_id}, which is not in {keys.path}"
        do = "restore it, or submit those jobs again; a systemd credential is visible to the daemon only"
        yield DoctorFinding(check="keys of secrets", verdict="warn", finding=finding, do=do)
    if known and not missing:
        finding = f"{sum(used.values())} secrets of jobs can be decrypted with {keys.path}"
        yield DoctorFinding(check="keys of secrets", verdict="ok", finding=finding)


def _prices(config: Config) -> Iterator[DoctorFinding]:
    """Check the prices of each provider's regions, per plan: their age, and whether there are any."""
    priced = [each for each in config.providers if config.settings_of(each) is not each.settings]
    if not priced:
        return
    try:
        known = CatalogFiles(config.catalog_dir).current()
    except HCloudError as error:
        yield DoctorFinding(check="prices", verdict="fail", finding=str(error), do="hcloud catalog refresh")
        return
    now = SystemClock().now()
    for each in priced:
        found = list(freshness(known, each.type, config.regions_of(each)))
        for plan in found:
            if plan.prices:
                yield DoctorFinding(
                    check="prices",
                    verdict="warn" if plan.is_old(now) else "ok",
                    finding=f"{each.name} {plan.plan}: read {span(now - plan.read_at)} ago ({plan.source})",
                    do="hcloud catalog refresh; see docs/prices.md" if plan.is_old(now) else "",
                )
        absent = [plan.plan for plan in found if not plan.prices]
        if PricePlan.ON_DEMAND in absent:
            finding, do = f"{each.name}: no price of its regions is known", "hcloud catalog refresh; see docs/prices.md"
            yield DoctorFinding(check="prices", verdict="warn", finding=finding, do=do)
        elif absent:
            finding = f"{each.name}: the catalog has no price of {', '.join(absent)}"
            yield DoctorFinding(check="prices", verdict="ok", finding=finding)


def _gateway(config: Config) -> Iterator[DoctorFinding]:
    """Check whether the gateway is reachable from here, and at the addresses that instances get."""
    if config.engine.programs != "real":
        return
    host, _, port = config.engine.listen.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S):
            yield DoctorFinding(
                check="network", verdict="ok", finding=f"the gateway is reached at {config.engine.listen}"
            )
    except OSError as error:
        finding = f"nothing is reached at {config.engine.listen}: {error.strerror or error}"
        yield DoctorFinding(check="network", verdict="fail", finding=finding, do="hcloud daemon; open the port")
    for each in config.providers:
        for address in filter(_is_here_only, _addresses_for(config, each)):
            finding = f"machines of {each.name} would connect to {address}, which is nowhere but here"
            do = "set gateway_addresses, or engine.gateway_addresses, to an address that they reach"
            yield DoctorFinding(check="network", verdict="fail", finding=finding, do=do)


def _addresses_for(config: Config, provider: ProviderSettings) -> Sequence[str]:
    """Return where machines of a cloud provider look for the gateway; nowhere if they are on this host."""
    if provider.type in HERE:
        return ()
    settings = config.settings_of(provider)
    worker = settings.get("worker")
    own = settings.get("gateway_addresses") or (worker.get("gateway_addresses") if isinstance(worker, Mapping) else ())
    own = (own,) if isinstance(own, str) else own
    return tuple(map(str, own or ())) or config.engine.gateway_addresses or (config.engine.listen,)


def _is_here_only(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1", "0.0.0.0", "::") or host.startswith("127.")


def _accounts(config: Config) -> Iterator[DoctorFinding]:
    """What cloud providers find in their accounts."""
    from hcloud.wiring import build_providers  # half a second, which `hcloud orphans` and --help save

    for wanted in [each for each in config.providers if each.type not in HERE]:
        name = f"account of {wanted.name}"
        try:
            [provider] = build_providers(replace(config, providers=(wanted,)), SystemClock()).values()
        except (HCloudError, OSError) as error:
            yield DoctorFinding(
                check=name, verdict="fail", finding=str(error), do="run as the daemon's user; hcloud config check"
            )
            continue
        if isinstance(provider, Examinable):
            for each in provider.examine():
                yield DoctorFinding(
                    check=f"{wanted.name}: {each.check}", verdict=each.verdict, finding=each.finding, do=each.do
                )


# -------------------------------------------------------------------------------------------------------- the daemon
def _of_the_daemon(here: Sequence[DoctorFinding]) -> Iterator[DoctorFinding]:
    """What the daemon says. ``here``: what was found of this machine and the accounts."""
    client = Connection()
    try:
        status = client.get("/v1/status")
    except DaemonUnreachable as error:
        yield DoctorFinding(
            check="daemon", verdict="fail", finding=str(error), do="hcloud daemon, or systemctl start hcloud"
        )
        return
    except HCloudError as error:
        yield DoctorFinding(check="daemon", verdict="fail", finding=str(error), do="see its log")
        return
    for look in (_daemon, _clock, _engine, _providers):
        yield from look(status)
    for name, why in sorted((name, each.get("stopped", "")) for name, each in status["daemon"]["providers"].items()):
        if why:
            yield _resumed(client, name, why, [each for each in here if each.check.startswith(f"{name}: ")])


def _resumed(client: Connection, name: str, why: str, account: Sequence[DoctorFinding]) -> DoctorFinding:
    """Try a stopped provider again if its account was looked at, and nothing is wrong there."""
    check, finding, do = f"provider {name}", f"launches nothing {why}", f"fix that; hcloud provider resume {name}"
    if not account or any(each.verdict == "fail" for each in account):
        return DoctorFinding(check=check, verdict="fail", finding=finding, do=do)
    try:
        client.post(f"/v1/providers/{quote(name, safe='')}/resume")
    except HCloudError as error:
        return DoctorFinding(check=check, verdict="fail", finding=f"{finding}; not tried again: {error}", do=do)
    return DoctorFinding(check=check, verdict="warn", finding=f"was stopped {why}; its checks pass: it is tried again")


def _daemon(status: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    cycle, leader = status["daemon"].get("cycle", {}), status["daemon"].get("leader", False)
    age_s = status["now"] - cycle.get("at", 0.0)
    if cycle.get("error"):
        yield DoctorFinding(
            check="daemon", verdict="fail", finding=f"its last cycle failed: {cycle['error']}", do="see its log"
        )
    elif leader and age_s > CYCLE_STALLED_S:
        yield DoctorFinding(
            check="daemon", verdict="fail", finding=f"its last cycle was {span(age_s)} ago", do="see its log"
        )
    else:
        role = "leads" if leader else "stands by for another one"
        yield DoctorFinding(check="daemon", verdict="ok", finding=f"version {status['version']} answers and {role}")
    for name, error in sorted(cycle.get("left_out", {}).items()):
        finding, do = f"it fails on {name}, and goes on without: {error}", "a defect: see its log, and report it"
        yield DoctorFinding(check="daemon", verdict="fail", finding=finding, do=do)
    if status["paused"]:
        yield DoctorFinding(check="daemon", verdict="warn", finding=f"paused: {status['paused']}", do="hcloud resume")
    wrong = status["daemon"].get("policy", {}).get("error")
    if wrong:
        yield DoctorFinding(
            check="policy", verdict="warn", finding=f"an older one is in force: {wrong}", do="hcloud policy check"
        )


def _clock(status: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    skew_s = SystemClock().now() - status["now"]
    if abs(skew_s) > CLOCK_SKEW_MAX_S:
        finding = f"this machine and the daemon differ by {span(abs(skew_s))}"
        yield DoctorFinding(check="clock", verdict="warn", finding=finding, do="synchronise both (NTP)")
    else:
        yield DoctorFinding(check="clock", verdict="ok", finding="this machine and the daemon agree")


def _engine(status: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    engine = status["daemon"].get("engine", {})
    if not engine.get("reachable"):
        yield DoctorFinding(
            check="engine", verdict="fail", finding="the gateway does not answer the daemon", do="see the daemon's log"
        )
        return
    silent = engine.get("silent", 0)
    finding = f"{engine.get('workers', 0)} workers answer" + (f", {silent} are silent" if silent else "")
    do = "nothing is concluded until their provider confirms" if silent else ""
    yield DoctorFinding(check="engine", verdict="warn" if silent else "ok", finding=finding, do=do)


def _providers(status: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    for name, each in sorted(status["daemon"].get("providers", {}).items()):
        if not each["ok"]:
            do = "hcloud events --kind provider_trouble"
            yield DoctorFinding(check=f"provider {name}", verdict="fail", finding=each["error"], do=do)
        elif not each["offers"]:
            finding = "answers, but offers nothing"
            yield DoctorFinding(
                check=f"provider {name}", verdict="warn", finding=finding, do="hcloud offers; are prices known?"
            )
        else:
            yield DoctorFinding(check=f"provider {name}", verdict="ok", finding=f"{each['offers']} offers")
        if count := each.get("without_wireguard", 0):
            finding = f"{count} of its machines report no WireGuard, so gangs with `network: none` do not come there"
            do = "install wireguard-tools in its image, and wireguard-go where the kernel has no WireGuard"
            yield DoctorFinding(check=f"{name}: gang network", verdict="warn", finding=finding, do=do)


# ---------------------------------------------------------------------------------------------------------- orphans
@click.command()
@format_option
def orphans(form: str) -> None:
    """Show what carried our owner tag but was in no record, and what was done about it, the latest last.

    The daemon ends such machines by itself, at its start and whenever it lists machines; `hcloud bill` finds those
    that a provider never listed.
    """
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for event in _orphan_events(Connection().get):
        fields = event["fields"]
        what = fields.get("provider_id") or ""
        key = (fields.get("provider") or "", what, fields.get("action") or "")
        row = found.setdefault(key, {**dict(zip(("provider", "what", "action"), key, strict=True)), "times": 0})
        row["times"] += 1
        row.setdefault("first_at", event["at"])
        row["last_at"] = event["at"]
    rows = sorted(found.values(), key=lambda row: row["last_at"])
    write_rows(form, rows, ORPHAN_COLUMNS, _orphan_cells, empty="no orphans are on record")


def _orphan_events(get: Callable[..., Any]) -> Iterator[Mapping[str, Any]]:
    after_seq = 0
    while True:
        page = get("/v1/events", after_seq=after_seq, limit=PAGE, kind=["orphan"])
        yield from page
        if len(page) < PAGE:
            return
        after_seq = page[-1]["seq"]


def _orphan_cells(row: Mapping[str, Any]) -> list[Any]:
    names = ("provider", "what", "action", "times")
    return [*(row[name] for name in names), when(row["first_at"]), when(row["last_at"])]
