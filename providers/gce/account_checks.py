"""Checks of a Google Cloud project without side effects: credentials, each permission, clock, quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from requests import RequestException

from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderError
from hcloud.core.model import Market
from hcloud.provider import Finding
from providers.gce.api import Api
from providers.gce.credentials import load_credentials
from providers.gce.settings import ENDPOINT, GceSettings

RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"
READ_SCOPE = "https://www.googleapis.com/auth/cloud-platform.read-only"
SKEW_WARN_S, SKEW_FAIL_S = 5.0, 240.0
NEARLY_USED = 0.9
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
