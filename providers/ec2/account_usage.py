"""Running instances of the account in one region, and its vCPU quotas.

Instances of other users count as well: they use the same quotas, reservations and savings plans.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hcloud.core.model import Market
from hcloud.core.paging import checked
from providers.ec2.clients import Clients
from providers.ec2.errors import Call, translating_errors
from providers.ec2.instance_mapping import TOKEN, tag_values

PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningInstance:
    """A running instance of the account, HCloud's or not."""

    zone: str
    type_name: str
    vcpus: float
    spot: bool
    in_capacity_reservation: bool = False
    """Whether it runs in a capacity reservation, which already counts it."""
    token: str = ""
    """The launch token if it is HCloud's instance, else ""."""


def read_running(clients: Clients) -> tuple[RunningInstance, ...]:
    """List pending and running instances. Raises ProviderUnavailable, Throttled."""
    filters = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    with translating_errors(Call.READ, "listing the account's instances"):
        paginator = clients.reading().get_paginator("describe_instances")
        pages = paginator.paginate(Filters=filters, PaginationConfig={"PageSize": PAGE})
        return tuple(
            _running_instance(each)
            for page in checked(pages, "the list of the account's instances")
            for group in page["Reservations"]
            for each in group["Instances"]
        )


def _running_instance(instance: Mapping[str, Any]) -> RunningInstance:
    cpu = instance.get("CpuOptions", {})
    return RunningInstance(
        zone=str(instance["Placement"]["AvailabilityZone"]),
        type_name=str(instance["InstanceType"]),
        vcpus=float(cpu.get("CoreCount", 0) * cpu.get("ThreadsPerCore", 1)),
        spot=instance.get("InstanceLifecycle") == "spot",
        in_capacity_reservation=bool(instance.get("CapacityReservationId")),
        token=tag_values(instance).get(TOKEN, ""),
    )


# -------------------------------------------------------------------------------------------------------------- quotas
QUOTAS: Mapping[str, Mapping[str, str]] = {
    "on_demand": {
        "standard": "L-1216C47A",
        "f": "L-74FC7D96",
        "g": "L-DB2E81BA",
        "p": "L-417A185B",
        "x": "L-7295265B",
        "inf": "L-1945791B",
        "trn": "L-2C3B7624",
        "dl": "L-6E869C2A",
        "hpc": "L-F7808C92",
        "u": "L-43DA4232",
    },
    "spot": {
        "standard": "L-34B43A08",
        "f": "L-88CF9481",
        "g": "L-3819A6DF",
        "p": "L-7212CCBC",
        "p5": "L-C4BD4855",
        "x": "L-E3A00192",
        "inf": "L-B5D1601B",
        "trn": "L-6B0D517C",
        "dl": "L-85EED4F7",
    },
}
"""Service Quotas codes by market and class of types; all count vCPUs of the region.

Source: the tables "On-Demand Instance quotas" and "Spot Instance quotas" of Amazon's "EC2 Instance Types" guide
(ec2-instance-quotas), which links every quota by its code.
"""
_OWN_CLASS = {"f": "f", "g": "g", "gr": "g", "vt": "g", "p": "p", "x": "x", "inf": "inf", "trn": "trn", "dl": "dl",
              "hpc": "hpc", "u": "u"}  # fmt: skip


def quota_of(type_name: str, market: Market) -> tuple[str, str]:
    """Return market and class of the quota that a type's vCPUs count against.

    Reserved instances count as on-demand ones. Classes are ``standard`` (A, C, D, H, I, M, R, T, Z) or a family's
    own; P5 has one of its own on the spot market only.
    """
    found = re.match(r"([a-z]+)(\d*)", type_name)
    letters, generation = found.groups() if found else ("", "")
    of = "spot" if market is Market.SPOT else "on_demand"
    numbered = letters + generation
    return of, numbered if numbered in QUOTAS[of] else _OWN_CLASS.get(letters, "standard")


def quota_name(type_name: str, market: Market) -> str:
    """Return the name of that quota: ``on_demand standard``."""
    return " ".join(quota_of(type_name, market))


def read_quotas(clients: Clients, type_names: Iterable[str]) -> dict[tuple[str, str], float]:
    """Return the account's vCPU quotas by market and class, for the classes of these types.

    Raises ProviderUnavailable, Throttled.
    """
    found = {}
    quotas = {quota_of(name, market) for name in type_names for market in (Market.ON_DEMAND, Market.SPOT)}
    with translating_errors(Call.READ, "reading quotas"):
        for market, kind in sorted(quotas):
            code = QUOTAS[market].get(kind)
            if code is None:  # this class is not sold on that market
                continue
            answer = clients.reading("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=code)
            value = answer.get("Quota", {}).get("Value")
            if value is not None:
                found[market, kind] = float(value)
    return found


def vcpus_used(running: Iterable[RunningInstance], vcpus_of: Mapping[str, float]) -> Counter[tuple[str, str]]:
    """Return vCPUs in use by market and class. If EC2 does not report an instance's vCPUs, those of its type count."""
    used: Counter[tuple[str, str]] = Counter()
    for each in running:
        vcpus = each.vcpus or vcpus_of.get(each.type_name, 0.0)
        used[quota_of(each.type_name, Market.SPOT if each.spot else Market.ON_DEMAND)] += vcpus  # type: ignore[assignment]
    return used
