"""Why no offer has the GPUs that a job requests, in one sentence: when it is submitted, and when it is planned."""

from __future__ import annotations

from collections.abc import Sequence

from hcloud.core.model import Gpus, Offer

NAMED_MOST = 8
"""So many types with GPUs are named."""


def has_gpus(wanted: Gpus | None, offer: Offer, *, named: bool) -> bool:
    """Return whether an empty instance of ``offer`` has ``wanted`` GPUs and suits jobs that request them
    (:meth:`hcloud.core.model.Offer.suits_gpus`)."""
    enough = wanted is None or offer.instance_type.capacity.gpu_count >= wanted.count
    return enough and offer.suits_gpus(wanted, named=named)


def why_no_gpus(wanted: Gpus | None, offers: Sequence[Offer], *, named: bool) -> str:
    """Return why none of ``offers`` has such GPUs, or why all have GPUs and none is requested; empty: some offer is
    suitable, or there are no offers."""
    if not offers or any(has_gpus(wanted, offer, named=named) for offer in offers):
        return ""
    if wanted is None:
        return "every offer has GPUs, which are for jobs that request some; set resources.gpus or name instance_types"
    kinds = {offer.instance_type.name: has for offer in offers if (has := offer.instance_type.capacity.gpus)}
    names = sorted(f"{has.count} x {has.described()} ({name})" for name, has in kinds.items())
    shown = ", ".join(names[:NAMED_MOST]) + (", ..." if len(names) > NAMED_MOST else "")
    return f"no offer has {wanted.words()}; available: {shown or 'no GPUs'}"
