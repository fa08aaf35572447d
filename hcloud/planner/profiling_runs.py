"""The jobs that measure a job: one run each, on a machine of its own, at the sizes and beside the sources asked for."""

from __future__ import annotations

from dataclasses import replace

from hcloud.model import PROFILE_TAG, BatchTarget, Job, JobSpec, Nodes, Offer, ProfileRequest, Retries
from hcloud.policy import ProfilingPolicy

AT_MOST_UNDER = 4.0
"""A job whose size is left open is profiled where it can be measured with up to so many times what it asks for."""
STOP_MARGIN_S = 30.0
"""A profiling run that is not over this long after its own time cap is stopped."""


def most_vcpus(job: Job) -> float:
    """Return at how many vCPUs a job should be measured at least: several times what it asks for, where it may get so
    many."""
    vcpus, within = job.spec.resources.vcpus, job.spec.vcpus_within
    return vcpus if within is None else max(vcpus, min(within[1], AT_MOST_UNDER * vcpus))


def steps_of(job: Job, most_vcpus: float) -> tuple[float, ...]:
    """Return the vCPUs to measure a job with on a machine that has ``most_vcpus``: first what it asks for, then the
    others, most first: half of it, or the ends of what it may be given.

    Users who leave their jobs' size to the planner may be off by far, to both sides. Only the least tells whether it
    would do, only more than they ask for whether that would help.
    """
    vcpus, within = job.spec.resources.vcpus, job.spec.vcpus_within
    if within is None:
        return vcpus, vcpus / 2
    others = {min(vcpus / 2, within[0]), max(vcpus, min(within[1], most_vcpus))}
    return (vcpus, *sorted(others - {vcpus}, reverse=True))


def run_for(
    policy: ProfilingPolicy,
    job: Job,
    offer: Offer,
    what: str,
    *,
    steps_vcpus: tuple[float, ...],
    sources: tuple[str, ...] = (),
    nodes: int = 1,
    look: bool = False,
) -> tuple[JobSpec, float]:
    """Return a profiling run of ``job`` on a machine of ``offer``, and what it may cost. ``what``: its name's end."""
    spec = job.spec
    request = ProfileRequest(
        job_id=job.id,
        type_column=f"{offer.provider}/{offer.instance_type.name}",
        steps_vcpus=steps_vcpus,
        sources=sources,
        nodes=nodes,
        run_s=policy.run_s,
        total_s=policy.total_s,
        warm_up_s=policy.warm_up_s if spec.stateful else 0.0,
        look=look,
        knees=spec.vcpus_within is not None and len(steps_vcpus) > 1,
    )
    name, only = f"{spec.name}:profile-{what}", (offer.instance_type.name,)
    asked = replace(_as_run(spec, request, policy), name=name, instance_types=only)
    return asked, nodes * run_usd(policy, offer)


def _as_run(spec: JobSpec, request: ProfileRequest, policy: ProfilingPolicy) -> JobSpec:
    """Return what is profiled as a job of the planner's own: with machines to itself, no promise, and an end."""
    return replace(
        spec,
        resources=replace(spec.resources, vcpus=max(request.steps_vcpus)),
        target=BatchTarget(),
        nodes=Nodes(count=request.nodes, minimum=request.nodes),
        tags={**spec.tags, PROFILE_TAG: request.job_id},
        interruptible=False,
        retries=Retries(limits={"instance_lost": 1, "preempted": 1, "evicted": 1}),
        max_runtime_s=policy.total_s + STOP_MARGIN_S,
        stop_grace_s=min(spec.stop_grace_s, 5.0),
        budget_usd=None,
        exclusive=True,
        profiling="never",
        profile=request,
        vcpus_within=None,
        placement=spec.placement and replace(spec.placement, apart_from=(), spread="none"),
    )


def run_usd(policy: ProfilingPolicy, offer: Offer) -> float:
    """Return what a run on one machine may cost."""
    held_s = max(offer.billing_minimum_s, offer.instance_type.boot_delay_s + policy.total_s)
    return offer.price_usd_per_h * held_s / 3600
