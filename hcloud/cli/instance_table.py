"""Instances as rows of a table, for every command that shows some."""

from __future__ import annotations

from typing import Any

from hcloud.cli.output import span

INSTANCE_COLUMNS = ("instance", "state", "provider", "zone", "type", "market", ">$/h", ">vcpus", ">used", ">memory",
                    ">up",
                    ">expires", "jobs")  # fmt: skip
INSTANCE_SPARE = ("zone", "memory", "used", "provider", "market", "vcpus", "expires", "up", "type")


def instance_row(each: dict[str, Any], now: float) -> list[Any]:
    """Return a machine as a row of ``INSTANCE_COLUMNS``."""
    offer, kind = each["offer"], each["offer"]["instance_type"]
    end = each["terminated_at"] or now
    return [
        each["id"],
        each["state"],
        offer["provider"],
        offer["zone"],
        kind["name"],
        offer["market"],
        f"{offer['price_usd_per_h']:.4f}",
        f"{kind['capacity']['vcpus']:g}",
        f"{each['used']['vcpus']:g}",
        memory_in_use(each),
        span(end - each["launched_at"]) if each["launched_at"] is not None else "",
        span(each["expires_at"] - now) if each["terminated_at"] is None else "",
        " ".join(each["jobs"]),
    ]


def memory_in_use(each: dict[str, Any]) -> str:
    """Return how much memory of a machine its units hold, of how much, such as ``0.5/2 GiB``."""
    used, capacity = each["used"], each["offer"]["instance_type"]["capacity"]
    return f"{used['memory_mib'] / 1024:.3g}/{capacity['memory_mib'] / 1024:.3g} GiB"
