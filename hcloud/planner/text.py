"""How amounts, prices and durations are written in reasons and events."""

from __future__ import annotations

from hcloud.core.model import Instance, Job, Number, Offer, Resources


def amount(resources: Resources) -> str:
    """Return resources as text: ``2 vCPU, 512 MiB, 1 GiB disk``."""
    return f"{resources.vcpus:g} vCPU, {resources.memory_mib} MiB, {resources.disk_gib:g} GiB disk"


def seconds(duration_s: float) -> str:
    """Return a duration as text: ``12 s``, ``3.5 min``, ``2 h``."""
    if duration_s < 120:
        return f"{duration_s:.3g} s"
    return f"{duration_s / 60:.3g} min" if duration_s < 7200 else f"{duration_s / 3600:.3g} h"


def offer_words(offer: Offer) -> str:
    """Return an offer as text: ``m5.large on_demand in eu-1a at $0.096/h``."""
    return f"{offer.instance_type.name} {offer.market} in {offer.zone} at {price(offer.price_usd_per_h)}"


def price(usd_per_h: float) -> str:
    """Return a price per hour as text: ``$0.096/h``."""
    return f"${usd_per_h:.4g}/h"


def usd(amount_usd: float) -> str:
    """Return an amount of money as text, in cents, or with two digits below a cent."""
    return f"${amount_usd:.2f}" if amount_usd >= 0.01 or amount_usd == 0 else f"${amount_usd:.2g}"


def deadline_numbers(job: Job, now: float) -> dict[str, Number]:
    """Return whether and by how much ``now`` is past the job's deadline; empty if it has none."""
    deadline_at = job.deadline_at
    if deadline_at is None:
        return {}
    missed = now > deadline_at
    return {
        "deadline_at": deadline_at,
        "deadline_missed": missed,
        "late_s" if missed else "deadline_in_s": round(abs(now - deadline_at), 3),
    }


def size_share(resources: Resources, instance_or_capacity: Instance | Resources) -> float:
    """Return the larger of the vCPU and memory shares (0..1) that ``resources`` is of an instance."""
    whole = instance_or_capacity.capacity if isinstance(instance_or_capacity, Instance) else instance_or_capacity
    shares = (
        resources.vcpus / whole.vcpus if whole.vcpus > 0 else 1.0,
        resources.memory_mib / whole.memory_mib if whole.memory_mib > 0 else 1.0,
    )
    return min(1.0, max(shares))
