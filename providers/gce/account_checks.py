"""Checks of a Google Cloud project without side effects: credentials, each permission, clock, quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from ipaddress import ip_network
from typing import Any

from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from requests import RequestException

from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderError
from hcloud.core.model import Market
from hcloud.provider import GANG_PORTS, Finding
from providers.gce.api import Api
from providers.gce.credentials import load_credentials
from providers.gce.settings import ENDPOINT, GceSettings

RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"
READ_SCOPE = "https://www.googleapis.com/auth/cloud-platform.read-only"
SKEW_WARN_S, SKEW_FAIL_S = 5.0, 240.0
NEARLY_USED = 0.9
PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
"""Addresses by which instances reach each other."""
FIX_PERMISSIONS = "give the daemon's account the role deploy/iam/gce-daemon-role.yaml; see docs/gcp.md"
ALWAYS = (
    "compute.disks.create", "compute.disks.setLabels", "compute.instances.create", "compute.instances.delete",
    "compute.instances.get", "compute.instances.list", "compute.instances.setLabels", "compute.instances.setMetadata",
    "compute.machineTypes.list", "compute.regions.get", "compute.zoneOperations.get", "compute.zoneOperations.list",
)  # fmt: skip


def needed_permissions(settings: GceSettings) -> tuple[str, ...]:
    """Return the permissions that these settings need in the project, sorted."""
    needed = {
        "compute.instances.setServiceAccount": settings.service_account,
        "compute.instances.setTags": settings.network_tags,
        "compute.subnetworks.useExternalIp": settings.external_ip,
        "compute.subnetworks.use": settings.subnetwork,
        "compute.networks.use": not settings.subnetwork,
        "compute.reservations.list": Market.RESERVED in settings.markets,
        "compute.commitments.list": Market.RESERVED in settings.markets,
        "compute.machineTypes.get": any("custom" in each for each in settings.types),
        "compute.images.useReadOnly": settings.image.startswith(f"projects/{settings.project}/"),
    }
    return tuple(sorted({*ALWAYS, *(name for name, yes in needed.items() if yes)}))


def check_project(api: Api, settings: GceSettings, clock: Clock) -> Iterator[Finding]:
    """Yield one finding per check."""
    permissions = needed_permissions(settings)
    try:
        answer = _test_permissions(settings, permissions)
    except (GoogleAuthError, OSError, ValueError, RequestException) as error:
        do = "give the daemon valid credentials; see docs/gcp.md"
        yield Finding(check="credentials", verdict="fail", finding=_line(error), do=do)
        return
    yield from _permissions(answer, permissions)
    yield from _clock(answer, clock)
    yield from _ways_out(api, settings)
    yield from _gang_ports(api, settings)
    yield from _quotas(api, settings)


def _test_permissions(settings: GceSettings, permissions: Sequence[str]) -> Any:
    base = RESOURCE_MANAGER if settings.endpoint == ENDPOINT else settings.endpoint
    session = AuthorizedSession(load_credentials(settings.credentials, READ_SCOPE))  # type: ignore[no-untyped-call]
    try:
        url = f"{base}/v1/projects/{settings.project}:testIamPermissions"
        return session.post(url, json={"permissions": list(permissions)}, timeout=settings.timeout_s)
    finally:
        session.close()  # type: ignore[no-untyped-call]


def _permissions(answer: Any, permissions: Sequence[str]) -> Iterator[Finding]:
    if answer.status_code == 401:
        do = "give the daemon valid credentials; see docs/gcp.md"
        yield Finding(check="credentials", verdict="fail", finding=_message(answer), do=do)
        return
    if answer.status_code != 200:
        do = "enable cloudresourcemanager.googleapis.com so that permissions can be tested"
        yield Finding(check="permissions", verdict="warn", finding=f"not tested: {_message(answer)}", do=do)
        return
    granted = set(answer.json().get("permissions", ()))
    yield Finding(check="credentials", verdict="ok", finding="valid")
    missing = [each for each in permissions if each not in granted]
    for each in missing:
        yield Finding(check="permission", verdict="fail", finding=f"{each} is not granted", do=FIX_PERMISSIONS)
    if not missing:
        yield Finding(
            check="permissions", verdict="ok", finding=f"all {len(permissions)} required permissions are granted"
        )


def _clock(answer: Any, clock: Clock) -> Iterator[Finding]:
    date = answer.headers.get("Date")
    if not date:
        return
    skew_s = abs(clock.now() - parsedate_to_datetime(date).timestamp())
    if skew_s <= SKEW_WARN_S:
        yield Finding(check="clock", verdict="ok", finding="in sync with Google")
        return
    finding = f"differs from Google by {skew_s:.0f} s"
    if skew_s >= SKEW_FAIL_S:
        yield Finding(check="clock", verdict="fail", finding=finding, do="synchronise the clock (NTP)")
    else:
        yield Finding(check="clock", verdict="warn", finding=finding, do="synchronise the clock (NTP)")


def _ways_out(api: Api, settings: GceSettings) -> Iterator[Finding]:
    """Yield whether instances without an external address have a Cloud NAT in each region."""
    if settings.external_ip:
        return
    do = "allow compute.routers.list (deploy/iam/gce-daemon-role.yaml), so that this can be looked at"
    try:
        found = api.routers()
    except ProviderError as error:
        yield Finding(check="ways out", verdict="warn", finding=f"not looked at: {error}", do=do)
        return
    # The network of a subnetwork is not read here, so any of the region's NATs counts for it.
    network = "" if settings.subnetwork else settings.network.rpartition("/")[2]
    with_nat = {
        region for region, router in found.items if router.nats and network in ("", router.network.rpartition("/")[2])
    }
    for name in settings.regions:
        if name in with_nat:
            yield Finding(check=f"way out {name}", verdict="ok", finding="there is a Cloud NAT")
        elif any(each == name or each.startswith("all ") for each in found.unanswered):
            yield Finding(check=f"way out {name}", verdict="warn", finding="not looked at: no answer", do="try again")
        else:
            finding = "no Cloud NAT, and instances get no external address: they can install no packages"
            do = "set `external_ip: true`, or make a Cloud NAT; with a NAT of your own or a prepared image, ignore this"
            # A route to another NAT, or an image that holds everything, would do: so this is no failure.
            yield Finding(check=f"way out {name}", verdict="warn", finding=finding, do=do)


def _gang_ports(api: Api, settings: GceSettings) -> Iterator[Finding]:
    """Yield whether instances reach each other by the ports of gangs that have a network of their own.

    Policies of the organisation are not looked at, nor which addresses a network has.
    """
    check, ports = "gang network", f"UDP {GANG_PORTS[0]} to {GANG_PORTS[-1]}"
    try:
        rules = api.firewall_rules()
    except ProviderError as error:
        do = "allow compute.firewalls.list (deploy/iam/gce-daemon-role.yaml), so that this can be looked at"
        yield Finding(check=check, verdict="warn", finding=f"not looked at: {error}", do=do)
        return
    # The network of a subnetwork is not read here, so rules of any network count for it.
    name = "" if settings.subnetwork else settings.network.rpartition("/")[2]
    undecided, opened, named = set(GANG_PORTS), set[int](), dict[bool, list[str]]({True: [], False: []})
    for rule in sorted(rules, key=lambda each: (each.priority, not each.denied)):
        if rule.network.rpartition("/")[2] == name or not name:
            decided = undecided & _decided_ports(rule, settings)
            undecided -= decided
            opened |= decided if rule.allowed else set()
            named[bool(rule.allowed)] += [f"{rule.name}{_sources(rule)}"] if decided else []
    where = f"network {name}" if name else f"the network of {settings.subnetwork}"
    if closed := len(GANG_PORTS) - len(opened):
        some = "" if closed == len(GANG_PORTS) else f"{closed} ports of "
        finding = f"no rule of {where} lets instances reach each other by {some}{ports}"
        finding += f"; they are denied by {', '.join(named[False])}" if named[False] else ""
        do = "for gangs with `network: none` on several instances make such a rule; see docs/gcp.md"
        yield Finding(check=check, verdict="warn", finding=finding, do=do)
        return
    finding = f"instances reach each other by {ports}: rule {', '.join(named[True])}"
    if not settings.worker.system_packages:
        finding += "; the image must hold wireguard-tools (`worker.system_packages: false`)"
    yield Finding(check=check, verdict="ok", finding=finding)


def _decided_ports(rule: Any, settings: GceSettings) -> set[int]:
    """Return for which ports of gangs a firewall rule says whether instances reach each other."""
    tags, accounts = set(settings.network_tags), {settings.service_account}
    targets_them = not (rule.target_tags or rule.target_service_accounts)
    targets_them |= bool(tags & set(rule.target_tags) or accounts & set(rule.target_service_accounts))
    is_from_them = any(ip_network(each).overlaps(private) for each in rule.source_ranges for private in PRIVATE)
    is_from_them |= bool(tags & set(rule.source_tags) or accounts & set(rule.source_service_accounts))
    if rule.disabled or rule.direction == "EGRESS" or not targets_them or not is_from_them:
        return set()
    found = set[int]()
    for part in rule.denied or rule.allowed:
        if part.I_p_protocol in ("all", "udp", "17"):
            found |= set(GANG_PORTS) if not part.ports else set[int]().union(*map(_port_range, part.ports))
    return found & set(GANG_PORTS)


def _port_range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _sources(rule: Any) -> str:
    return f" from {', '.join(rule.source_ranges)}" if rule.source_ranges else ""


def _quotas(api: Api, settings: GceSettings) -> Iterator[Finding]:
    for name in settings.regions:
        try:
            region = api.region(name)
        except ProviderError as error:
            do = "fix `zones`, the project, or the role"
            yield Finding(check=f"region {name}", verdict="fail", finding=str(error), do=do)
            continue
        for quota in region.quotas:
            if quota.metric in ("CPUS", "INSTANCES", "PREEMPTIBLE_CPUS") and quota.limit > 0:
                yield _quota(name, str(quota.metric), float(quota.limit), float(quota.usage))


def _quota(region: str, metric: str, limit: float, usage: float) -> Finding:
    finding = f"{max(0.0, limit - usage):g} of {limit:g} {metric} left"
    if usage >= NEARLY_USED * limit:
        do = "request an increase at IAM & Admin, Quotas, or use more regions"
        return Finding(check=f"quota {region}", verdict="warn", finding=finding, do=do)
    return Finding(check=f"quota {region}", verdict="ok", finding=finding)


def _message(answer: Any) -> str:
    try:
        return f"{answer.status_code}: {answer.json()['error']['message']}"[:500]
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code}: {answer.text[:200]}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
