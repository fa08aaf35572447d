"""The priced plan before spending: what the next plan would do with jobs not yet submitted. Pure; serves dry runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hcloud.model import Job, Market, Offer, Reason
from hcloud.planner.plan import Finish, Launch, Place, Plan, Wait
from hcloud.planner.snapshot import Snapshot
from hcloud.policy import Policy

MOST_CANDIDATES = 12


def describe_preview(snapshot: Snapshot, plan: Plan, jobs: Sequence[Job], policy: Policy) -> list[Mapping[str, Any]]:
    """Tell what ``plan`` does with each of ``jobs``, in order: name, action (place, launch, wait), code, text,
    price_usd_per_h that its launches add (shared evenly with the others a machine is for), instances, candidates."""
    return [_planned(job, snapshot, plan, policy) for job in jobs]


def _planned(job: Job, snapshot: Snapshot, plan: Plan, policy: Policy) -> Mapping[str, Any]:
    launches = [a for a in plan.actions if isinstance(a, Launch) and job.id in a.for_jobs]
    placed = [a for a in plan.actions if isinstance(a, Place) and a.job_id == job.id]
    told = [a.reason for a in plan.actions if isinstance(a, (Wait, Finish)) and a.job_id == job.id]
    action = "place" if placed else "launch" if launches else "wait"
    reasons = [a.reason for a in placed] + [a.reason for a in launches] + told
    unsaid = Reason(code="waiting", text="it would wait; the plan says nothing else of it")
    reason = reasons[0] if reasons else unsaid
    return {
        "name": job.spec.name,
        "action": action,
        "code": reason.code,
        "text": reason.text.replace(job.id, "this job"),
        "price_usd_per_h": sum(a.offer.price_usd_per_h * a.for_jobs.count(job.id) / len(a.for_jobs) for a in launches),
        "instances": tuple(rank.instance_id for a in placed for rank in a.ranks),
        "candidates": tuple(_candidates(job, snapshot, {a.offer.key for a in launches}, policy)),
    }


def _candidates(
    job: Job, snapshot: Snapshot, chosen: set[tuple[str, str, str, str]], policy: Policy
) -> list[Mapping[str, Any]]:
    """Return the cheapest fitting offers, the chosen ones first, each with why it is not taken."""
    fitting = [
        o
        for o in snapshot.offers
        if job.spec.resources.fits(o.instance_type.capacity) and job.spec.may_run_on(o.instance_type.name)
    ]
    ordered = sorted(fitting, key=lambda o: (o.key not in chosen, o.price_usd_per_h, o.key))
    return [_candidate(o, o.key in chosen, _note(o, job, snapshot, policy)) for o in ordered[:MOST_CANDIDATES]]


def _candidate(offer: Offer, chosen: bool, note: str) -> Mapping[str, Any]:
    return {
        "provider": offer.provider,
        "zone": offer.zone,
        "instance_type": offer.instance_type.name,
        "market": offer.market.value,
        "vcpus": offer.instance_type.capacity.vcpus,
        "memory_mib": offer.instance_type.capacity.memory_mib,
        "price_usd_per_h": offer.price_usd_per_h,
        "chosen": chosen,
        "note": "" if chosen else note,
    }


def _note(offer: Offer, job: Job, snapshot: Snapshot, policy: Policy) -> str:
    forbidden = policy.allow.refusal(offer)
    if forbidden is not None:
        return forbidden
    backoff = next((b for b in snapshot.backoffs if b.covers(offer) and b.until_at > snapshot.now), None)
    if backoff is not None:
        return f"backed off for {backoff.until_at - snapshot.now:.0f} s: {backoff.error}"
    if offer.available == 0:
        return "none available"
    spot_ok = job.spec.target.kind in policy.spot.for_targets
    interruptible = job.spec.interruptible or not policy.spot.only_interruptible
    if offer.market is Market.SPOT and not (spot_ok and interruptible):
        return "this job may not run on spot machines"
    return "not needed"
