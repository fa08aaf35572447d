"""Decisions as data: a plan is a tuple of frozen actions, each with the reason that decided it.

``apply`` re-checks each action against fresh rows and may refuse it; partly refused plans are normal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from hcloud.core.model import FailureCause, InstanceId, JobId, JobSpec, JobState, Market, Offer, Reason, Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueue:
    """Move a job to QUEUED: newly submitted, back from a failure (its back-off in ``not_before_at``), or because the
    machine it awaited failed. ``failure`` is recorded in the job's failures.
    """

    job_id: JobId
    reason: Reason
    not_before_at: float = 0.0
    failure: FailureCause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """Move a job whose machine was taken or lost to PREEMPTED; a later plan enqueues it after its back-off."""

    job_id: JobId
    failure: FailureCause
    not_before_at: float
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Leave a job queued; recorded only when the reason's code changes."""

    job_id: JobId
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """End a job: SUCCEEDED, FAILED or CANCELLED."""

    job_id: JobId
    state: JobState
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Submit the profiling ``runs`` of a submitted job, which waits for them. ``application``: what it is to become."""

    job_id: JobId
    application: str
    runs: tuple[JobSpec, ...]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Classify:
    """Take a submitted job for ``application`` ("": for nothing known); it is enqueued next. Runs it still has end.

    ``source``: profiled (for this job), known (from earlier), prior (what is typical).
    """

    job_id: JobId
    application: str
    source: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """Where one rank goes."""

    rank: int
    instance_id: InstanceId
    resources: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A type of machine, in one market, that a rank could have gone to, as it looked when that was decided.

    ``column``: ``<provider>/<type>``. ``usd_per_h``: what one rank's share of such a machine costs: of the machine it
    went to, else of the cheapest. ``predicted``: the performance expected of the job there, with its 80 % limits; None:
    nothing was known. ``rejected``: the constraint that kept it from there; empty: it went there.
    """

    column: str
    market: Market
    usd_per_h: float
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    rejected: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Start a job's ranks on READY instances: a new attempt, or more ranks of an incremental job's running attempt.

    ``candidates``: the types that were to choose from, the chosen one first.
    """

    job_id: JobId
    ranks: tuple[RankPlacement, ...]
    reason: Reason
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAttempt:
    """Ask a running attempt to end; ``cause`` is how its end will be read (None: the user cancelled it)."""

    job_id: JobId
    cause: FailureCause | None
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Launch one machine that expires at ``expires_at`` unless renewed; ``for_jobs`` then await it.

    A job is named once for each of its ranks that is to run there, and awaits the machine as often. Running jobs await
    nothing, they grow onto it: ``for_running`` names them in the same way, so that their users are counted with it.
    """

    offer: Offer
    expires_at: float
    for_jobs: tuple[JobId, ...]
    reason: Reason
    for_running: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Let a machine live until ``expires_at``; the budget has room for it."""

    instance_id: InstanceId
    expires_at: float
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Place nothing new on a machine (or, with ``undo``, allow it again)."""

    instance_id: InstanceId
    reason: Reason
    undo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate:
    """End a machine. Its unreleased allocations end as INSTANCE_LOST once the provider confirms it is gone."""

    instance_id: InstanceId
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Correct:
    """Note with a running job that something is done because it does not do as it should; the deed itself follows.

    ``instances``: the machines it is about. ``learnt``: what is believed of its application from now on.
    """

    job_id: JobId
    step: str
    reason: Reason
    instances: tuple[InstanceId, ...] = ()
    learnt: Learnt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What a running job teaches of its application: ``performance`` alone on type ``column`` with ``vcpus``, and the
    pressures it ``tolerated`` (0..100 by resource)."""

    column: str
    vcpus: float
    performance: float | None = None
    tolerated: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Let ranks of a running job hold other resources of their machines from now on: all of them, or none."""

    job_id: JobId
    ranks: tuple[RankPlacement, ...]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRank:
    """Ask one rank of an incremental job to end, to be started anew elsewhere; the others go on."""

    job_id: JobId
    rank: int
    reason: Reason


Action = (
    Enqueue
    | Preempted
    | Wait
    | Finish
    | Profile
    | Classify
    | Place
    | StopAttempt
    | Launch
    | Renew
    | Drain
    | Terminate
    | Correct
    | Resize
    | StopRank
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now, in order, and when time alone changes it: an idle machine is let go, or a back-off is over.

    Until ``due_at`` (inf: nothing is due) planning again is of no use for these, unless something happens.
    """

    at: float
    actions: tuple[Action, ...] = ()
    due_at: float = inf
