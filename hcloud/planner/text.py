"""How amounts, prices and durations are written in reasons and events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from math import floor, log10

from hcloud.core.model import FailureCause, Instance, Job, Number, Offer, Reason, Resources

_FAILURES: Mapping[str, str] = {
    FailureCause.EXIT_CODE: "failed",
    FailureCause.OUT_OF_MEMORY: "ran out of memory",
    FailureCause.OUT_OF_DISK: "ran out of disk",
    FailureCause.TIMEOUT: "exceeded max_runtime",
    FailureCause.PREEMPTED: "was preempted",
    FailureCause.INSTANCE_LOST: "lost its machine",
    FailureCause.START_REFUSED: "could not be started",
    FailureCause.INPUTS: "did not get its inputs",
    FailureCause.EVICTED: "was evicted",
}


def amount(resources: Resources) -> str:
    """Return resources as text: ``2 vCPU, 512 MiB, 1 GiB disk, 2 GPUs of kind a100``."""
    gpus = f", {resources.gpus.words()}" if resources.gpus is not None else ""
    return f"{resources.vcpus:g} vCPU, {resources.memory_mib} MiB, {resources.disk_gib:g} GiB disk{gpus}"


def seconds(duration_s: float) -> str:
    """Return a duration as text: ``0.18 s``, ``12.5 s``, ``3.5 min``, ``2 h``."""
    if duration_s < 120:
        return f"{duration_s:.2g} s" if abs(duration_s) < 1 else f"{duration_s:.3g} s"
    return f"{duration_s / 60:.3g} min" if duration_s < 7200 else f"{duration_s / 3600:.3g} h"


def clock_time(at: float) -> str:
    """Return a Unix time as UTC, such as 2026-11-26T08:12:46Z."""
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def offer_words(offer: Offer) -> str:
    """Return an offer as text: ``m5.large on_demand in eu-1a at $0.096/h``."""
    return f"{offer.instance_type.name} {offer.market} in {offer.zone} at {price(offer.price_usd_per_h)}"


def price(usd_per_h: float) -> str:
    """Return a price per hour as text: ``$0.096/h``."""
    return f"${usd_per_h:.4g}/h" if usd_per_h >= 1e-4 or usd_per_h == 0 else f"${_decimals(usd_per_h, 4)}/h"


def usd(amount_usd: float) -> str:
    """Return an amount of money as text, in cents, or with two digits below a cent."""
    return f"${amount_usd:.2f}" if amount_usd >= 0.01 or amount_usd == 0 else f"${_decimals(amount_usd, 2)}"


def _decimals(amount: float, digits: int) -> str:
    """Return ``amount`` with so many significant digits and at least two decimals, never with an exponent."""
    whole, _, decimals = f"{amount:.{max(2, digits - 1 - floor(log10(abs(amount))))}f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"


def percent(part: float) -> str:
    """Return a part (0..1) as text: ``85 %``."""
    return f"{100 * part:.0f} %"


def failure(cause: str, exit_code: object = None, detail: object = None) -> str:
    """Return why an attempt or rank failed, as the end of a sentence: ``failed with exit code 1``."""
    text = _FAILURES.get(cause, f"failed ({cause})")
    if cause == FailureCause.EXIT_CODE and exit_code is not None:
        text = f"failed with exit code {exit_code}"
    # The worker's own words for an exit code add nothing.
    known = detail in (f"ended with code {exit_code}", f"exited with code {exit_code}")
    return f"{text} ({detail})" if detail and not known else text


def as_wait(reason: Reason) -> Reason:
    """Return ``reason`` as the reason of a job that waits: ``waiting: no m5.large available``."""
    return reason if reason.text.startswith("retrying") else replace(reason, text=f"waiting: {reason.text}")


def deadline_numbers(job: Job, now: float) -> dict[str, Number]:
    """Return whether and by how much ``now`` is past the job's deadline; empty if it has none of its own."""
    deadline_at = job.deadline_at
    if deadline_at is None or job.needed_for:
        return {}
    missed = now > deadline_at
    return {
        "deadline_at": deadline_at,
        "deadline_missed": missed,
        "late_s" if missed else "deadline_in_s": round(abs(now - deadline_at), 3),
    }


def size_share(resources: Resources, instance_or_capacity: Instance | Resources) -> float:
    """Return the largest of the vCPU, memory and GPU shares (0..1) that ``resources`` is of an instance."""
    whole = instance_or_capacity.capacity if isinstance(instance_or_capacity, Instance) else instance_or_capacity
    shares = (
        resources.vcpus / whole.vcpus if whole.vcpus > 0 else 1.0,
        resources.memory_mib / whole.memory_mib if whole.memory_mib > 0 else 1.0,
        resources.gpu_count / whole.gpu_count if whole.gpu_count > 0 else 0.0,
    )
    return min(1.0, max(shares))
