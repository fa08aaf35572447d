"""The state of one planning pass: what each stage of ``make_plan`` reads and extends."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from hcloud.core.model import (
    Constraints,
    FailureCause,
    InstanceId,
    Job,
    JobId,
    JobSpec,
    JobState,
    Offer,
    Reason,
    Resources,
)
from hcloud.core.rows import by_number
from hcloud.planner.budget import BudgetLedger, open_budget
from hcloud.planner.fit.sizing import SizeTarget
from hcloud.planner.fit.suitability import RankSizes, Suitability
from hcloud.planner.fleet import Amounts, Fleet, Mask, OfferShape, Places, vector
from hcloud.planner.job_queue import JobQueue
from hcloud.planner.late_boots import LateBoots, Urgency
from hcloud.planner.placement.order import PlacementOrder
from hcloud.planner.placement.orders import order_named
from hcloud.planner.placement.orders.least_loaded import ORDER as LEAST_LOADED
from hcloud.planner.plan import Action, Candidate, Enqueue, Plan, Renew, StopAttempt, Terminate, Wait
from hcloud.planner.provisioning.mapping import PLAIN, MappingNeed
from hcloud.planner.provisioning.open_strategy import OpenStrategy, open_strategy
from hcloud.planner.queued_jobs import JOB, SimilarJobs, requirements
from hcloud.planner.snapshot import Snapshot
from hcloud.planner.spot_preemption import has_non_spot_offer, spot_loss_limit_reached
from hcloud.planner.text import as_wait, seconds
from hcloud.planner.topology import AffinityGroup, TopologyConstraints
from hcloud.spec.policy import Policy

MOVED, RELAUNCHED = "move", "relaunch"
"""Corrections after which a job, or a rank of its present attempt, does not return to the instance it left."""
NODES, NODES_LAUNCHED = "nodes", "nodes_launched"
"""Corrections after which a job gets all its nodes: where there is room, and on instances launched for it."""
MOST_RECORDED = 4_000
"""Jobs that one plan admits, and waits that it records, at most. Others follow in the next plan, at once."""
Key = tuple[object, ...]


@dataclass(slots=True, eq=False)
class JobGroup:
    """Waiting jobs with the same requirements: whatever holds for one of them holds for all."""

    place: int
    """Number of groups created before this one."""
    resources: Resources
    """Resources requested per rank."""
    demand: Amounts
    """The same as an array, shape ``(3,)``. Where the planner chooses the size: the least a rank may get."""
    needed: int
    """Ranks that must start together."""
    wanted: int
    """Ranks that may start at most."""
    spot_ok: bool
    """Whether the group may run on spot instances."""
    promise: bool
    """Whether the jobs have a target (anything but best effort)."""
    stuck: Reason | None = None
    """Why no job of the group can be served any more in this plan; room and money only shrink while it is made."""
    fits_now: bool = True
    """Whether a rank may fit on an instance that is usable now."""
    fits_later: bool = True
    """Whether a rank may fit on room that stopping units or booting instances will provide."""
    offered: bool = True
    """Whether any offer is large enough."""
    pending: int = 0
    """Members not yet decided."""
    instance_types: tuple[str, ...] = ()
    """Patterns of permitted instance types; empty: any."""
    exclusive: bool = False
    """Whether a rank takes a whole instance."""
    mapping_need: MappingNeed = PLAIN
    """What the mapping of a hybrid strategy requires."""
    lifted: bool = False
    """Instances held back are open to the group, because nothing can be launched for it."""
    moved: bool = False
    """The jobs were stopped to be moved to other running instances."""
    application: str = ""
    """Name of the application, if it is known and the placement order uses classifications; else empty."""
    avoid: tuple[InstanceId, ...] = ()
    """Instances the jobs were moved away from."""
    fits_well: bool = True
    """Whether a rank may fit on an instance with tolerable interference."""
    down_within_s: float | None = None
    """Slack in seconds below which the jobs accept a worse instance; None: not computed yet."""
    lost: Amounts | None = None
    """Part of performance (0..1) lost to each instance's type, shape ``(N,)``; None: not computed yet."""
    awaits_type: bool = True
    """Whether there may be room on instances that only their type makes unsuitable."""
    candidates: tuple[Candidate, ...] | None = None
    """Types considered for the group; None: not computed yet."""
    by_offer: dict[tuple[OfferShape, float], tuple[Candidate, ...]] = field(default_factory=dict)
    """The same by the chosen type, market and price."""
    constraints: Constraints | None = None
    """Zones, labels and spread required by the job file; None: none."""
    company: AffinityGroup | None = None
    """Affinity group; None: no anti-affinity applies."""
    aim: SizeTarget | None = None
    """What the size of a rank is chosen for, where the planner chooses it."""
    portions: RankSizes | None = None
    """The size of a rank on each instance, where the planner chooses it."""
    sized: Amounts | None = None
    """Cache of :attr:`here`, shape ``(3, N)``; None: not computed yet."""
    urgency: Urgency = Urgency.NONE
    """Whether the jobs can wait for instances that boot late."""
    serves: bool = False
    """Whether the target is a latency."""
    max_runtime_s: float | None = None
    """When its units are stopped at the latest, in seconds after their start; None: never."""
    queued: bool = False
    """Whether any member was admitted to the queue in this plan."""
    may_reserve: bool = True
    """Whether room may still be reserved for a member; it is sought once per group and plan."""

    @property
    def here(self) -> Amounts | None:
        """Resources of a rank on each instance, shape ``(3, N)``, where the planner chooses its size; else None."""
        if self.sized is None and self.portions is not None:
            self.sized = self._with_vcpus(self.portions.vcpus())
        return self.sized

    @property
    def unsized(self) -> bool:
        """Whether the size of a rank on each instance is still to be computed; until then ``demand`` is its lower
        bound."""
        return self.portions is not None and self.sized is None

    @property
    def spreads(self) -> bool:
        """Whether the place of one rank restricts the places of the others."""
        return self.company is not None or (self.constraints is not None and self.constraints.spread != "none")

    @property
    def asks(self) -> Amounts:
        """Resources of a rank: shape ``(3,)`` if the same everywhere, else ``(3, N)``."""
        return self.demand if self.here is None else self.here

    def asks_on(self, at: int) -> Amounts:
        """Return :attr:`asks` on instance ``at``, shape ``(3,)``."""
        if self.portions is None:
            return self.demand
        if self.sized is not None:
            return self.sized[:, at]
        asks = self.demand.copy()
        asks[0] = self.portions.vcpus_at(at)
        return asks

    def taken_everywhere(self, capacity: Amounts) -> Amounts:
        """Return what one rank takes of each instance, given ``capacity`` of shape ``(3, N)``; an exclusive rank takes
        all."""
        if self.exclusive:
            return capacity
        return self.demand[:, None] if self.here is None else self.here

    def taken_on(self, capacity: Amounts, places: Places) -> Amounts:
        """Return :meth:`taken_everywhere` for the instances ``places`` only: shape ``(3, n)``, or ``(3, 1)`` if it is
        the same everywhere."""
        if self.exclusive:
            return capacity.take(places, axis=1)
        if self.unsized and self.portions is not None:
            return self._with_vcpus(self.portions.vcpus_on(places))
        return self.demand[:, None] if self.here is None else self.here.take(places, axis=1)

    def _with_vcpus(self, vcpus: Amounts) -> Amounts:
        taken = np.empty((3, vcpus.size))
        taken[0], taken[1:] = vcpus, self.demand[1:, None]
        return taken


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoomReservation:
    """Room that is kept for one job."""

    group: JobGroup
    """The group of the job; its members are not barred."""
    urgent: bool
    """Whether it is for a job whose deadline comes near, not for the first in order."""
    reserved: dict[int, Amounts]
    """By place of an instance: what is reserved there, shape ``(3,)``."""
    starts_in_s: float
    """Seconds until the expected start."""


@dataclass(slots=True)
class PlanContext:
    """The snapshot, the policy, and the decisions made so far. Lives for one call of ``make_plan``.

    Integers in sets, lists and keys are places in ``fleet.instances`` unless stated otherwise.
    """

    snapshot: Snapshot
    policy: Policy
    now: float
    """Time of the snapshot."""
    rng: np.random.Generator
    """Generator for random placement orders."""
    order: PlacementOrder
    """The policy's placement order."""
    jobs: Sequence[Job]
    """All jobs that have not ended, by number."""
    running: Sequence[Job]
    """Jobs with a running attempt."""
    fleet: Fleet
    ledger: BudgetLedger
    strategy: OpenStrategy
    topology: TopologyConstraints
    suit: Suitability | None = None
    """How well instances suit jobs; set at admission if the placement order uses estimates."""
    actions: list[Action] = field(default_factory=list)
    """The plan so far."""
    waiting: list[Job] = field(default_factory=list)
    """Jobs that wait for an instance, except those of ``similar``."""
    similar: Sequence[SimilarJobs] = ()
    """Queued jobs that differ in age only."""
    excluded: Set[JobId] = frozenset()
    """Jobs of ``similar`` that may not be planned."""
    queue: dict[bool, JobQueue] = field(default_factory=lambda: {True: JobQueue(), False: JobQueue()})
    """Admitted jobs in order, with a target (True) and best effort (False)."""
    groups: dict[Key, JobGroup] = field(default_factory=dict)
    holds: dict[JobId, list[int]] = field(default_factory=dict)
    """Room held for jobs on instances they await, by job id."""
    enqueued: set[JobId] = field(default_factory=set)
    """Jobs that this plan put into the queue."""
    stopping: set[JobId] = field(default_factory=set)
    """Jobs with an attempt that was asked to stop."""
    measuring: Set[JobId] = frozenset()
    """Profiling runs that are not over."""
    lazy: set[int] = field(default_factory=set)
    """Idle instances near the end of their lease, renewed only if something is placed there."""
    active: dict[str, int] = field(default_factory=dict)
    """Number of jobs that hold or await instances, by user."""
    gone: set[int] = field(default_factory=set)
    """Instances that this plan terminates."""
    kept: dict[int, list[Job]] = field(default_factory=dict)
    """Instances awaited when the plan began, with the jobs that await them."""
    used: set[int] = field(default_factory=set)
    """Instances used or promised by this plan."""
    behind: set[JobId] = field(default_factory=set)
    """Running jobs that are to get all their nodes because they miss their target."""
    expanding: list[Job] = field(default_factory=list)
    """Those of ``behind`` for which instances are to be launched."""
    reservations: dict[JobId, RoomReservation] = field(default_factory=dict)
    """Room reserved for urgent jobs, and for the first in order that found none, by job."""
    least_queued: Amounts | None = None
    """The least that any queued job asks for of each resource, shape ``(3,)``; None: not computed yet."""
    reservations_sought: int = 0
    """For how many groups this plan sought a reservation."""
    guarded: Mask | None = None
    """Instances closed to best effort, because such neighbours were evicted there for a running job; None: none."""
    open_of: Callable[[JobGroup, Places], Places] | None = None
    """Returns which of the given instances are open to a group while better ones can be launched; None: not set up
    yet."""
    late: LateBoots | None = None
    """Instances that boot far later than usual; None: none."""
    unkept: Mask | None = None
    """Instances where most services miss their latency; None: not computed yet."""
    explained_groups: int = 0
    """Number of groups whose candidates were computed."""
    fresh_s: dict[Resources, float] = field(default_factory=dict)
    """Boot delay of the quickest available offer, by requested resources."""
    diverting: bool = True
    """Whether jobs may accept unsuitable instances at present."""
    tried: dict[JobId, int] = field(default_factory=dict)
    """By job, how many changes :attr:`Suitability.changed` had when the job last found no room."""
    waits_recorded: int = 0
    postponed: bool = False
    """Whether more than :data:`MOST_RECORDED` jobs had to be admitted, or to wait."""
    next_release_at: float = inf
    """When the next idle instance is due for release; inf: none."""

    def plan(self) -> Plan:
        """Return the plan, with the time at which it is due again."""
        now, backoffs = self.now, [each.until_at for each in self.snapshot.backoffs]
        backoffs += [each.until_at for each in self.snapshot.refused_quotas]
        backoffs.append(self.snapshot.plan_cache.occupancy.next_retry_at(now))
        due_at = min([at for at in backoffs if at > now], default=inf)
        due_at = now if self.postponed else min(due_at, self.next_release_at)
        return Plan(at=now, actions=tuple(self.actions), due_at=due_at)

    @property
    def suitability(self) -> Suitability:
        """How well instances suit jobs, for placement orders that need classifications."""
        assert self.suit is not None
        return self.suit

    # ---------------------------------------------------------------------------------------------------------- actions
    def add(self, action: Action) -> None:
        """Append an action to the plan."""
        self.actions.append(action)

    def enqueue(
        self, job: Job, reason: Reason, *, not_before_at: float = 0.0, failure: FailureCause | None = None
    ) -> Job:
        """Put a job into the queue, to be considered in this same plan; return it as queued."""
        self.add(Enqueue(job_id=job.id, reason=reason, not_before_at=not_before_at, failure=failure))
        self.enqueued.add(job.id)
        failures = (*job.failures, failure) if failure is not None else job.failures
        return replace(
            job,
            state=JobState.QUEUED,
            not_before_at=not_before_at,
            failures=failures,
            awaiting=(),
            wait_code="",
            reserved=(),
        )

    def wait(self, job: Job, code: str, why: Callable[[], Reason], reserved: tuple[InstanceId, ...] = ()) -> None:
        """Record why ``job`` waits, if the code or the instances with ``reserved`` room are new. Nothing is recorded
        for a job that awaits its own instances."""
        if (job.wait_code == code and job.reserved == reserved) or job.state is not JobState.QUEUED:
            return
        if self.waits_recorded >= MOST_RECORDED and not (reserved or job.reserved):
            self.postponed = True
        else:
            self.waits_recorded += 1
            self.add(Wait(job_id=job.id, reason=as_wait(why()), reserved=reserved))

    def stop(self, job: Job, cause: FailureCause | None, reason: Reason) -> None:
        """Ask a running attempt to stop, unless that was done already."""
        if job.id not in self.stopping:
            self.stopping.add(job.id)
            self.add(StopAttempt(job_id=job.id, cause=cause, reason=reason))

    def mark(self) -> tuple[Amounts, int, int]:
        """Return the present claims on room, for :meth:`back_to`."""
        return self.fleet.room.copy(), self.suit.moment if self.suit is not None else 0, self.topology.moment

    def back_to(self, marked: tuple[Amounts, int, int]) -> None:
        """Drop all claims made since :meth:`mark`."""
        self.fleet.room[:] = marked[0]
        if self.suit is not None:
            self.suit.back_to(marked[1])
        self.topology.back_to(marked[2])

    def arrive(self, at: int, group: JobGroup) -> None:
        """Count a unit of ``group`` as placed on, or promised room on, instance ``at``."""
        self.topology.arrive(at, group.company)
        if self.suit is not None:
            self.suit.arrive(at, group.application)

    def leave(self, at: int, group: JobGroup) -> None:
        """Undo :meth:`arrive`."""
        self.topology.arrive(at, group.company, -1)
        if self.suit is not None:
            self.suit.leave(at, group.application)

    def fitting_now(self, group: JobGroup, among: Mask) -> Mask:
        """Return which instances of ``among`` have room now for a rank of ``group``."""
        if not group.unsized:
            return self.fleet.fitting_now(group.asks, among)
        # The size per instance is computed only where the lower bound fits.
        roomy = self.fleet.fitting_now(group.demand, among)
        places = roomy.nonzero()[0]
        roomy[places] = self.fleet.have_room_now(places, group.taken_on(self.fleet.capacity, places))
        return roomy

    def amount_on(self, group: JobGroup, at: int) -> Amounts:
        """Return what one rank of ``group`` takes of instance ``at``, shape ``(3,)``."""
        if group.exclusive:
            return self.fleet.capacity[:, at]
        return group.asks_on(at)

    def granted(self, group: JobGroup, at: int) -> Resources:
        """Return :meth:`amount_on` as the resources of an allocation."""
        if group.exclusive:
            return self.fleet.instances[at].capacity
        if group.portions is None:
            return group.resources
        return replace(group.resources, vcpus=float(group.asks_on(at)[0]))

    def terminate(self, at: int, reason: Reason, *, ordered: bool = False) -> bool:
        """Terminate instance ``at`` unless the limit per cycle is reached; ``ordered`` by an operator: always. Return
        whether it is terminated."""
        self.fleet.placeable[at] = self.fleet.coming[at] = self.fleet.hopeful[at] = False
        if not ordered and len(self.gone) >= self.policy.disruption.max_terminations_per_cycle:
            return False
        self.gone.add(at)
        self.add(Terminate(instance_id=self.fleet.instances[at].id, reason=reason))
        return True

    # --------------------------------------------------------------------------------------------------------- machines
    def available_offers(self) -> Sequence[Offer]:
        """Return the offers that the policy allows and that are not sold out."""
        offers, policy = self.snapshot.offers, self.policy
        return self.snapshot.plan_cache.get(
            "to be had",
            (offers, policy),
            lambda: [each for each in offers if each.available != 0 and policy.allow.refusal(each) is None],
        )

    def quickest_s(self, group: JobGroup) -> float:
        """Return the shortest boot delay in seconds of the offers for ``group``; inf if there is none."""
        if group.resources not in self.fresh_s:
            available = self.available_offers()
            backoffs = [each for each in self.snapshot.backoffs if each.until_at > self.now]
            delays = [
                offer.instance_type.boot_delay_s
                for offer in available
                if group.resources.fits(offer.instance_type.capacity)
                and not any(backoff.covers(offer) for backoff in backoffs)
            ]
            self.fresh_s[group.resources] = min(delays, default=inf)
        return self.fresh_s[group.resources]

    def running_on(self, at: int) -> list[Job]:
        """Return the jobs with units on instance ``at`` that were not asked to stop."""
        return [job for job, _ in self.fleet.holdings[at] if job.id not in self.stopping]

    def renew(self, at: int) -> None:
        """Renew the lease of instance ``at`` for one horizon from now; the caller has booked it."""
        instance = self.fleet.instances[at]
        left_s = instance.expires_at - self.now
        reason = Reason(
            code="renewed",
            text=f"lease of {instance.id} renewed for {seconds(self.policy.lease.horizon_s)} ({seconds(left_s)} left)",
            numbers={"left_s": round(left_s, 3), "horizon_s": self.policy.lease.horizon_s},
        )
        self.add(Renew(instance_id=instance.id, expires_at=self.renewed_until_at, reason=reason))

    @property
    def renewed_until_at(self) -> float:
        """Expiry of a lease renewed now."""
        return self.now + self.policy.lease.horizon_s

    # ------------------------------------------------------------------------------------------------------------- jobs
    @property
    def has_waiting_jobs(self) -> bool:
        """Whether any job waits for an instance; true until admission if all that wait may not be planned."""
        return bool(self.waiting or self.similar)

    def all_waiting(self) -> list[Job]:
        """Return all jobs that wait for an instance, in no order."""
        jobs = [each[JOB] for similar in self.similar for each in similar.members]
        return self.waiting + [job for job in jobs if job.id not in self.excluded]

    @property
    def distinguishes_similar_jobs(self) -> bool:
        """Whether the group of similar jobs depends on more than their age."""
        hybrid = self.strategy.hybrid
        return self.late is not None or bool(self.topology.users) or (hybrid is not None and hybrid.is_random)

    def user_cap(self, job: Job) -> Reason | None:
        """Return why no more jobs of this user may hold instances, or None. A job that awaits instances counts
        already."""
        limit, user = self.policy.caps.max_jobs_per_user, job.spec.user
        if limit is None or job.state is JobState.AWAITING_INSTANCE or self.active.get(user, 0) < limit:
            return None
        text = f"caps.max_jobs_per_user reached: {user} has {limit} of {limit} jobs on machines"
        return Reason(code="cap_jobs_per_user", text=text, numbers={"limit": limit, "whose": user})

    def slack_left_s(self, job: Job) -> float:
        """Return for how many seconds ``job`` may still wait for a suitable instance; inf without estimates."""
        return self.suit.slack_left_s(job, self.queued_at(job)) if self.suit is not None else inf

    def queued_at(self, job: Job) -> float:
        """Return since when ``job`` is queued; now, if this plan queued it."""
        return self.now if job.queued_at is None or job.id in self.enqueued else job.queued_at

    def count_active(self, job: Job, by: int = 1) -> None:
        """Add ``by`` to the number of jobs of this user that hold instances, if the policy limits it."""
        if self.policy.caps.max_jobs_per_user is None:
            return
        self.active[job.spec.user] = self.active.get(job.spec.user, 0) + by

    def order_for(self, group: JobGroup) -> PlacementOrder:
        """Return the order for ``group``: the policy's, or least loaded if that needs to know its application."""
        return self.order if group.application or not self.order.needs.classifications else LEAST_LOADED

    def group_of(self, job: Job) -> JobGroup:
        """Return the group of jobs with the same requirements as ``job``."""
        spec, hybrid, suit, plan_cache = job.spec, self.strategy.hybrid, self.suit, self.snapshot.plan_cache
        mapping_need = PLAIN if hybrid is None else hybrid.mapping_need(job)
        application = "" if suit is None else suit.application(job)
        avoid = avoided(job, self.now, self.policy.correction.avoid_s) if job.corrections else ()
        aim = None if suit is None or spec.vcpus_within is None else suit.aim_of(job)
        urgency = Urgency.NONE if self.late is None else self.late.urgency(job, suit)
        # Requirements of a spec never change.
        known = plan_cache.asks.get(id(spec))
        key = (
            known[1] if known is not None else plan_cache.number_asks(spec, requirements(spec)),
            mapping_need,
            application,
            avoid,
            self.ledger.limited_scopes(job) if self.ledger.watches_scopes else (),
            self.topology.company(spec) if self.topology.users else None,
            aim,
            urgency,
            moved := bool(job.failures) and job.failures[-1] is FailureCause.EVICTED,
            avoid_spot := bool(job.failures) and spot_loss_limit_reached(job, self.policy.spot),
        )
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = self._new_group(spec, mapping_need, application, aim)
            group.spot_ok = group.spot_ok and not (avoid_spot and has_non_spot_offer(spec, self.available_offers()))
            group.avoid, group.moved, group.urgency = avoid, moved, urgency
        return group

    def _new_group(
        self, spec: JobSpec, mapping_need: MappingNeed, application: str, aim: SizeTarget | None
    ) -> JobGroup:
        nodes, spot, demand, portions = spec.nodes, self.policy.spot, vector(spec.resources), None
        if aim is not None and self.suit is not None:
            portions = self.suit.rank_sizes(application, aim)
            demand[0] = aim.low
        return JobGroup(
            place=len(self.groups),
            resources=spec.resources,
            demand=demand,
            needed=nodes.needed,
            wanted=nodes.count,
            spot_ok=spec.target.kind in spot.for_targets and (spec.interruptible or not spot.only_interruptible),
            promise=spec.target.kind != "best_effort",
            serves=spec.target.kind == "service",
            max_runtime_s=spec.max_runtime_s,
            instance_types=spec.instance_types,
            exclusive=spec.exclusive,
            mapping_need=mapping_need,
            application=application,
            constraints=spec.placement,
            company=self.topology.company(spec),
            aim=aim,
            portions=portions,
        )


def avoided(job: Job, now: float, avoid_s: float) -> tuple[InstanceId, ...]:
    """Return the instances that ``job`` was moved away from within ``avoid_s``, and those its stragglers left."""
    attempt = job.attempt.id if job.attempt is not None and not job.attempt.over else ""
    fresh = (c for c in job.corrections if now - c.at < avoid_s)
    left = (c for c in fresh if c.step == MOVED or (c.step == RELAUNCHED and c.attempt == attempt))
    return tuple(sorted({name for each in left for name in each.instances}))


def open_context(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> PlanContext:
    """Return an empty plan over ``snapshot``, with jobs and instances sorted by number."""
    jobs = by_number(snapshot.jobs)
    snapshot.plan_cache.trim_asks(but=len(jobs))
    snapshot.plan_cache.trim_expectations(but=len(jobs))
    occupancy = snapshot.plan_cache.occupancy
    occupancy.follow(jobs)
    fleet, left_out = Fleet(snapshot.instances, snapshot.plan_cache), snapshot.left_out.jobs
    context = PlanContext(
        snapshot=snapshot,
        policy=policy,
        now=snapshot.now,
        rng=rng,
        order=order_named(policy.placement.order),
        jobs=jobs,
        running=[job for job in occupancy.running if job.id not in left_out] if left_out else occupancy.running,
        fleet=fleet,
        ledger=open_budget(snapshot, policy, fleet.instances, jobs),
        strategy=open_strategy(snapshot, policy, fleet),
        topology=TopologyConstraints(
            fleet, [job for job in jobs if job.id in occupancy.constrained] if occupancy.constrained else []
        ),
        similar=occupancy.queued.kinds(),
        stopping=set(occupancy.stopping),
        measuring=frozenset(occupancy.measuring),
    )
    for job in occupancy.running if policy.caps.max_jobs_per_user is not None else ():
        context.count_active(job)
    return context
