"""Preview: what the next plan would do with jobs that are not submitted yet, and what it would cost. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isinf
from typing import Any

import numpy as np

from hcloud.core.dependencies import DEPENDENCY, wait_words
from hcloud.core.model import Job, JobId, JobState, Market, Offer, Reason
from hcloud.core.rows import number_of
from hcloud.planner import make_plan
from hcloud.planner.plan import Classify, Enqueue, Finish, Launch, Place, Plan, Profile, Wait
from hcloud.planner.snapshot import Snapshot
from hcloud.quarantine import Planner, plan_or_recover
from hcloud.spec.policy import Policy

CANDIDATES_MAX = 12
TASKS_PREVIEWED = 256
"""Of an array with more tasks only so many are planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What would happen to ``jobs``."""

    snapshot: Snapshot
    """The snapshot with ``jobs`` added, except those that wait for other jobs to end."""
    jobs: tuple[Job, ...]
    """One for each that was asked about; of an array its first task."""
    more_tasks: Mapping[JobId, tuple[JobId, ...]] = field(default_factory=dict)
    """The other tasks of an array that may run soon, by the first one."""
    tasks: Mapping[JobId, int] = field(default_factory=dict)
    """How many tasks an array has in all, by the first one."""
    knowing: Plan
    """The plan right after submission: it says how each job gets classified."""
    plan: Plan
    """The same plan; if some jobs are profiled first, the plan as if they were classified already."""


def preview_plan(snapshot: Snapshot, asked: Sequence[Job], policy: Policy, planner: Planner = make_plan) -> Preview:
    """Return what would happen to jobs that are ``asked`` about: submitted ones that are not in ``snapshot`` yet.

    A job that makes planning fail because of a defect is shown as waiting. Of an array those tasks are planned that may
    run soon.
    """
    more_tasks = dict(_more_tasks(asked))
    firsts = [replace(job, spec=replace(job.spec, tasks=None)) if job.is_array else job for job in asked]
    others = [replace(job, id=task) for job in firsts for task in more_tasks.get(job.id, ())]
    jobs = [job for job in (*firsts, *others) if not job.is_held]
    extended = replace(snapshot, jobs=(*snapshot.jobs, *jobs))
    plan = knowing = plan_or_recover(planner, extended, policy, np.random.default_rng(0)).plan
    taken_for = {a.job_id: a.application for a in knowing.actions if isinstance(a, Classify)}
    if not {job.id for job in jobs} <= _enqueued(knowing):
        queued = tuple(replace(job, state=JobState.QUEUED, application=taken_for.get(job.id, "")) for job in jobs)
        past = replace(snapshot, jobs=(*snapshot.jobs, *queued))
        plan = plan_or_recover(planner, past, policy, np.random.default_rng(0)).plan
    return Preview(
        snapshot=extended,
        jobs=tuple(firsts),
        more_tasks=more_tasks,
        tasks={job.id: len(job.spec.tasks) for job in asked if job.spec.tasks is not None},
        knowing=knowing,
        plan=plan,
    )


def _more_tasks(asked: Sequence[Job]) -> Iterator[tuple[JobId, tuple[JobId, ...]]]:
    """Yield for each array made-up ids of all its tasks but the first that may run soon."""
    number = 2 * max([number_of(job.id) for job in asked], default=0)
    for job in asked:
        tasks = job.spec.tasks
        if job.is_array and tasks is not None:
            count = min(len(tasks), TASKS_PREVIEWED, tasks.at_most or len(tasks)) - 1
            yield job.id, tuple(f"job-{number + each}" for each in range(count))
            number += count


def describe_preview(preview: Preview, policy: Policy) -> list[Mapping[str, Any]]:
    """Return one mapping per job: name, action (place, launch, wait, fail), reason, instances and candidates.

    ``price_usd_per_h`` is the job's even share of the instances launched for it; ``knowing``: how it gets classified.
    """
    snapshot, plan = preview.snapshot, preview.plan
    decisions = [a for a in preview.knowing.actions if isinstance(a, (Profile, Classify, Wait))]
    passed = _enqueued(preview.knowing)
    knowing = {a.job_id: a for a in decisions if not (isinstance(a, Wait) and a.job_id in passed)}
    chances = snapshot.run_times.deadline_probabilities(preview.jobs, snapshot.now)
    planned = [
        {
            **_planned(job, snapshot, plan, policy),
            "knowing": _knowing(knowing.get(job.id), job),
            "deadline_probability": chance,
        }
        for job, chance in zip(preview.jobs, chances, strict=True)
    ]
    return [_with_tasks(each, job, preview) for each, job in zip(planned, preview.jobs, strict=True)]


def _with_tasks(planned: Mapping[str, Any], job: Job, preview: Preview) -> Mapping[str, Any]:
    """Return what is planned for the first task of an array with the price and the number of all that would start."""
    if job.id not in preview.tasks:
        return planned
    ids = {job.id, *preview.more_tasks[job.id]}
    launches = [a for a in preview.plan.actions if isinstance(a, Launch)]
    price = sum(a.offer.price_usd_per_h * sum(each in ids for each in a.for_jobs) / len(a.for_jobs) for a in launches)
    starting = {a.job_id for a in preview.plan.actions if isinstance(a, Place)}
    starting |= {each for a in launches for each in a.for_jobs}
    text = f"{planned['text']}; {len(ids & starting)} of {preview.tasks[job.id]} tasks would start at first"
    # When the last task ends is not forecast.
    return {**planned, "text": text, "price_usd_per_h": price, "deadline_probability": None}


def _enqueued(plan: Plan) -> set[str]:
    return {a.job_id for a in plan.actions if isinstance(a, Enqueue)}


def _knowing(action: Profile | Classify | Wait | None, job: Job) -> Mapping[str, Any] | None:
    """Return how a job gets classified; None if nothing is decided (the policy profiles no jobs)."""
    if action is None:
        return None
    numbers = action.reason.numbers
    how = {"known": "known", "prior": "unknown"}[action.source] if isinstance(action, Classify) else "profiled"
    if isinstance(action, Wait):
        how = "later"
    return {
        "how": how,
        "code": action.reason.code,
        "text": action.reason.text.replace(job.id, "this job"),
        "runs": len(action.runs) if isinstance(action, Profile) else 0,
        **{name: numbers.get(name) for name in ("cost_usd", "lasts_s", "predicted", "predicted_low", "predicted_high")},
        "measure": numbers.get("measure"),
    }


def _planned(job: Job, snapshot: Snapshot, plan: Plan, policy: Policy) -> Mapping[str, Any]:
    launches = [a for a in plan.actions if isinstance(a, Launch) and job.id in a.for_jobs]
    placed = [a for a in plan.actions if isinstance(a, Place) and a.job_id == job.id]
    others = [a.reason for a in plan.actions if isinstance(a, (Wait, Finish)) and a.job_id == job.id]
    fails = any(isinstance(a, Finish) and a.job_id == job.id for a in plan.actions)
    action = "place" if placed else "launch" if launches else "fail" if fails else "wait"
    reasons = [a.reason for a in placed] + [a.reason for a in launches] + others
    default = Reason(code="waiting", text="it would wait")
    if job.is_held:
        default = Reason(code=DEPENDENCY, text=wait_words(job.waits_for))
    reason = reasons[0] if reasons else default
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
    """Return the cheapest suitable offers, the chosen ones first, each with why it is not chosen."""
    fitting = [o for o in snapshot.offers if job.spec.resources.fits(o.instance_type.capacity) and job.spec.may_use(o)]
    ordered = sorted(fitting, key=lambda o: (o.key not in chosen, o.price_usd_per_h, o.key))
    return [_candidate(o, o.key in chosen, _note(o, job, snapshot, policy)) for o in ordered[:CANDIDATES_MAX]]


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
    refusal = policy.allow.refusal(offer)
    if refusal is not None:
        return refusal
    backoff = next((b for b in snapshot.backoffs if b.covers(offer) and b.until_at > snapshot.now), None)
    if backoff is not None:
        if isinf(backoff.until_at):
            return backoff.error
        return f"backed off for {backoff.until_at - snapshot.now:.0f} s: {backoff.error}"
    if offer.available == 0:
        return "none available"
    spot_ok = job.spec.target.kind in policy.spot.for_targets
    interruptible = job.spec.interruptible or not policy.spot.only_interruptible
    if offer.market is Market.SPOT and not (spot_ok and interruptible):
        return "this job may not run on spot"
    return "not needed"
