"""The plan so far: what each stage of ``make_plan`` reads and extends, in order. Lives for one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
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
    Market,
    Offer,
    Reason,
    Resources,
    matches,
)
from hcloud.core.rows import by_number
from hcloud.planner.budget import BudgetLedger, open_budget
from hcloud.planner.fit.sizing import SizeTarget
from hcloud.planner.fit.suitability import RankSizes, Suitability
from hcloud.planner.fleet import Amounts, Fleet, Mask, OfferShape, Places, vector
from hcloud.planner.late_boots import LateBoots, Urgency
from hcloud.planner.plan import Action, Candidate, Enqueue, Plan, Renew, StopAttempt, Terminate, Wait
from hcloud.planner.provisioning.strategies import PLAIN, MappingNeed, Strategy, open_strategy
from hcloud.planner.snapshot import Snapshot
from hcloud.planner.topology import AffinityGroup, TopologyConstraints, admits
from hcloud.spec.policy import Policy, SpotPolicy


def spot_loss_limit_reached(job: Job, spot: SpotPolicy) -> bool:
    """Whether ``job`` lost so many spot machines that it should go elsewhere."""
    return 0 < spot.most_losses <= job.failures.count(FailureCause.PREEMPTED)


def has_non_spot_offer(spec: JobSpec, offers: Iterable[Offer]) -> bool:
    """Whether any of ``offers`` is a machine for this job that is not taken back."""
    return any(
        offer.market is not Market.SPOT
        and spec.resources.fits(offer.instance_type.capacity)
        and (not spec.instance_types or matches(offer.instance_type.name, spec.instance_types))
        and admits(spec.placement, offer)
        for offer in offers
    )


@dataclass(slots=True, eq=False)
class JobGroup:
    """Waiting jobs that ask for the same: what holds for one of them holds for all.

    ``needed`` ranks must start together, up to ``wanted`` may. ``stuck``: why none of them can be served any more in
    this plan (room and money only shrink while it is made). ``fits_now``, ``fits_later``: whether a rank may find room
    on machines that can be used now, or that stopping units or starting machines will give; ``offered``: whether any
    offer is large enough. ``pending`` counts members not yet decided. ``exclusive``: a rank takes a whole machine.
    ``leaning``: what the mapping of hybrid strategies asks of them; ``lifted``: no machines are closed to them any
    more, because nothing can be rented for them; ``moved``: they were stopped to be moved to machines that run.
    ``application``: what they are, where the order of placement uses what is known of it; ``avoid``: machines they were
    moved away from; ``fits_well``: whether a rank may find room where nobody is disturbed; ``down_within_s``: how much
    slack may be left when they make do with less; ``lost``: what they lose to the type of each machine (0..1);
    ``awaits_type``: whether there may be room where only that keeps them; ``candidates``: the types at hand for them
    (None: not worked out yet); ``told``: the same by what was chosen, and at
    which price. ``place``: the number of groups there
    were before it. ``constraints``: what else their machines must be (None: nothing); ``company``: whom they must not
    meet there (None: nobody). Where the size of a rank is the planner's choice, ``aim`` is what is asked of it, and
    ``portions`` what a rank gets on each machine, kept in ``sized`` once it was asked for (:attr:`here`); ``demand`` is
    then the least it may get. ``hurry``: whether it can wait for machines that are late;
    ``serves``: whether it promises a latency.
    """

    place: int
    resources: Resources
    demand: Amounts
    needed: int
    wanted: int
    spot_ok: bool
    promise: bool
    stuck: Reason | None = None
    fits_now: bool = True
    fits_later: bool = True
    offered: bool = True
    pending: int = 0
    instance_types: tuple[str, ...] = ()
    exclusive: bool = False
    mapping_need: MappingNeed = PLAIN
    lifted: bool = False
    moved: bool = False
    application: str = ""
    avoid: tuple[InstanceId, ...] = ()
    fits_well: bool = True
    down_within_s: float | None = None
    lost: Amounts | None = None
    awaits_type: bool = True
    candidates: tuple[Candidate, ...] | None = None
    told: dict[tuple[OfferShape, float], tuple[Candidate, ...]] = field(default_factory=dict)
    constraints: Constraints | None = None
    company: AffinityGroup | None = None
    aim: SizeTarget | None = None
    portions: RankSizes | None = None
    sized: Amounts | None = None
    urgency: Urgency = Urgency.NONE
    serves: bool = False

    @property
    def here(self) -> Amounts | None:
        """What a rank gets on each machine (shape ``(3, N)``) where its size is the planner's choice."""
        if self.sized is None and self.portions is not None:
            self.sized = self._with(self.portions.vcpus())
        return self.sized

    @property
    def unsized(self) -> bool:
        """Whether what a rank gets where is still to be worked out; ``demand`` is the least of that."""
        return self.portions is not None and self.sized is None

    @property
    def spreads(self) -> bool:
        """Whether where one of its ranks is decides where others may be."""
        return self.company is not None or (self.constraints is not None and self.constraints.spread != "none")

    @property
    def asks(self) -> Amounts:
        """What a rank gets: the same everywhere (shape ``(3,)``), or by machine (``(3, N)``)."""
        return self.demand if self.here is None else self.here

    def asks_on(self, at: int) -> Amounts:
        """Return :attr:`asks` on machine ``at``, shape ``(3,)``."""
        if self.portions is None:
            return self.demand
        if self.sized is not None:
            return self.sized[:, at]
        asks = self.demand.copy()
        asks[0] = self.portions.vcpus_at(at)
        return asks

    def taken_everywhere(self, capacity: Amounts) -> Amounts:
        """Return what one rank takes of each machine of ``capacity`` (shape ``(3, N)``): if exclusive, all."""
        if self.exclusive:
            return capacity
        return self.demand[:, None] if self.here is None else self.here

    def taken_on(self, capacity: Amounts, places: Places) -> Amounts:
        """Return :meth:`taken_everywhere` of the machines ``places`` only; shape ``(3, n)``, or ``(3, 1)`` where it is
        the same everywhere."""
        if self.exclusive:
            return capacity.take(places, axis=1)
        if self.unsized and self.portions is not None:
            return self._with(self.portions.vcpus_on(places))
        return self.demand[:, None] if self.here is None else self.here.take(places, axis=1)

    def _with(self, vcpus: Amounts) -> Amounts:
        """Return what a rank asks for with so many ``vcpus``, shape ``(n,)``, in place of the least it may get."""
        taken = np.empty((3, vcpus.size))
        taken[0], taken[1:] = vcpus, self.demand[1:, None]
        return taken


MOVED, RELAUNCHED = "move", "relaunch"
"""Corrections after which a job, or a rank of its present attempt, does not go back to the machine it left."""
NODES, NODES_LAUNCHED = "nodes", "nodes_launched"
"""Corrections by which a job is to get all its nodes: where there is room, and on machines launched for it."""
Key = tuple[object, ...]


@dataclass(slots=True)
class PlanContext:
    """Everything a stage needs. ``now``: the snapshot's time. ``rng`` is for policies that draw lots. ``suit``: how
    well machines suit jobs, from admission on, where the order of placement asks.

    ``running``: jobs whose attempt is not over; ``measuring``: profiling runs that are not over;
    ``queue``: what admission lets through, in order, with (True) and
    without a promise. ``awaiting``: who of them awaits machines: which queue, which place. ``unplaced``: what
    placement left of it. ``active``: by user, how many jobs hold or await machines. Machines: ``lazy`` are idle, near
    their horizon, and renewed only if something is placed there; ``gone`` are ended by this plan; ``kept`` are awaited
    by somebody as the plan begins; ``used`` are promised or taken by this plan; ``guarded`` are closed to best effort,
    as such neighbours were evicted there for a job that still runs (None: none are). ``behind``: running jobs that are
    to get all their nodes, because they miss their target; ``expanding``: those that machines are launched for.
    ``kinds_told``: groups whose candidates were worked out; ``fresh_s``: how long the quickest new machine takes;
    ``diverting``: whether jobs may go down now to machines that do not suit them. ``open_of``: which of some
    machines are not closed to a group while better ones can be rented (None: not known yet). ``late``: machines that
    start far later than their like (None: none does); ``unkept``: those where services miss theirs (None: not known
    yet); ``tried``: how much had changed on machines (:attr:`Suitability.changed`) when a job last found nothing.
    """

    snapshot: Snapshot
    policy: Policy
    now: float
    rng: np.random.Generator
    jobs: Sequence[Job]
    running: Sequence[Job]
    fleet: Fleet
    ledger: BudgetLedger
    strategy: Strategy
    topology: TopologyConstraints
    suit: Suitability | None = None
    actions: list[Action] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)
    queue: dict[bool, list[tuple[Job, JobGroup]]] = field(default_factory=lambda: {True: [], False: []})
    awaiting: list[tuple[bool, int]] = field(default_factory=list)
    unplaced: list[tuple[Job, JobGroup]] = field(default_factory=list)
    groups: dict[Key, JobGroup] = field(default_factory=dict)
    holds: dict[JobId, list[int]] = field(default_factory=dict)
    enqueued: set[JobId] = field(default_factory=set)
    stopping: set[JobId] = field(default_factory=set)
    measuring: Set[JobId] = frozenset()
    lazy: set[int] = field(default_factory=set)
    active: dict[str, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    kept: dict[int, list[Job]] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    behind: set[JobId] = field(default_factory=set)
    expanding: list[Job] = field(default_factory=list)
    guarded: Mask | None = None
    open_of: Callable[[JobGroup, Places], Places] | None = None
    late: LateBoots | None = None
    unkept: Mask | None = None
    kinds_told: int = 0
    fresh_s: dict[Resources, float] = field(default_factory=dict)
    diverting: bool = True
    tried: dict[JobId, int] = field(default_factory=dict)
    next_release_at: float = inf

    def plan(self) -> Plan:
        """Return what was decided."""
        now, backoffs = self.now, [each.until_at for each in self.snapshot.backoffs]
        backoffs += [at for job in self.jobs if (at := job.not_before_at) > now]
        due_at = min([at for at in backoffs if at > now], default=inf)
        return Plan(at=now, actions=tuple(self.actions), due_at=min(due_at, self.next_release_at))

    # ---------------------------------------------------------------------------------------------------------- actions
    def add(self, action: Action) -> None:
        """Append an action."""
        self.actions.append(action)

    def enqueue(
        self, job: Job, reason: Reason, *, not_before_at: float = 0.0, failure: FailureCause | None = None
    ) -> Job:
        """Put a job (back) into the queue; it is considered for placement in this very plan. Returns it as queued."""
        self.add(Enqueue(job_id=job.id, reason=reason, not_before_at=not_before_at, failure=failure))
        self.enqueued.add(job.id)
        failures = (*job.failures, failure) if failure is not None else job.failures
        return replace(
            job, state=JobState.QUEUED, not_before_at=not_before_at, failures=failures, awaiting=(), wait_code=""
        )

    def wait(self, job: Job, code: str, why: Callable[[], Reason]) -> None:
        """Say why ``job`` waits, if that is news. A job that awaits its own machines has been told so."""
        if job.wait_code != code and job.state is JobState.QUEUED:
            self.add(Wait(job_id=job.id, reason=why()))

    def stop(self, job: Job, cause: FailureCause | None, reason: Reason) -> None:
        """Ask a running attempt to end, once."""
        if job.id not in self.stopping:
            self.stopping.add(job.id)
            self.add(StopAttempt(job_id=job.id, cause=cause, reason=reason))

    def mark(self) -> tuple[Amounts, int, int]:
        """Return what is claimed now, for :meth:`back_to`."""
        return self.fleet.room.copy(), self.suit.moment if self.suit is not None else 0, self.topology.moment

    def back_to(self, marked: tuple[Amounts, int, int]) -> None:
        """Forget all claims made since :meth:`mark`."""
        self.fleet.room[:] = marked[0]
        if self.suit is not None:
            self.suit.back_to(marked[1])
        self.topology.back_to(marked[2])

    def arrive(self, at: int, group: JobGroup) -> None:
        """Count a unit of ``group`` as on, or promised room of, machine ``at``: beside whom others find themselves."""
        self.topology.arrive(at, group.company)
        if self.suit is not None:
            self.suit.arrive(at, group.application)

    def leave(self, at: int, group: JobGroup) -> None:
        """Take :meth:`arrive` back."""
        self.topology.arrive(at, group.company, -1)
        if self.suit is not None:
            self.suit.leave(at, group.application)

    def fitting_now(self, group: JobGroup, among: Mask) -> Mask:
        """Return which machines of ``among`` have room now for what a rank of ``group`` gets there."""
        if not group.unsized:
            return self.fleet.fitting_now(group.asks, among)
        # What it gets on each machine is worked out for those only that have room for the least it may get.
        roomy = self.fleet.fitting_now(group.demand, among)
        places = roomy.nonzero()[0]
        roomy[places] = self.fleet.have_room_now(places, group.taken_on(self.fleet.capacity, places))
        return roomy

    def amount_on(self, group: JobGroup, at: int) -> Amounts:
        """Return what one rank of ``group`` takes of machine ``at``."""
        if group.exclusive:
            return self.fleet.capacity[:, at]
        return group.asks_on(at)

    def granted(self, group: JobGroup, at: int) -> Resources:
        """Return :meth:`amount_on` as what an allocation holds."""
        if group.exclusive:
            return self.fleet.instances[at].capacity
        if group.portions is None:
            return group.resources
        return replace(group.resources, vcpus=float(group.asks_on(at)[0]))

    def terminate(self, at: int, reason: Reason, *, ordered: bool = False) -> bool:
        """End machine ``at``, if the plan may end one more or an operator ``ordered`` it; return whether it does."""
        self.fleet.placeable[at] = self.fleet.coming[at] = self.fleet.hopeful[at] = False
        if not ordered and len(self.gone) >= self.policy.disruption.max_terminations_per_cycle:
            return False
        self.gone.add(at)
        self.add(Terminate(instance_id=self.fleet.instances[at].id, reason=reason))
        return True

    # --------------------------------------------------------------------------------------------------------- machines
    def to_be_had(self) -> Sequence[Offer]:
        """Return the offers that the policy allows and that are not sold out."""
        offers, policy = self.snapshot.offers, self.policy
        return self.snapshot.plan_cache.of(
            "to be had",
            (offers, policy),
            lambda: [each for each in offers if each.available != 0 and policy.allow.refusal(each) is None],
        )

    def quickest_s(self, group: JobGroup) -> float:
        """Return how long the quickest machine takes that is on offer for ``group``; infinite where there is none."""
        if group.resources not in self.fresh_s:
            had = self.to_be_had()
            backoffs = [each for each in self.snapshot.backoffs if each.until_at > self.now]
            delays = [
                offer.instance_type.boot_delay_s
                for offer in had
                if group.resources.fits(offer.instance_type.capacity)
                and not any(backoff.covers(offer) for backoff in backoffs)
            ]
            self.fresh_s[group.resources] = min(delays, default=inf)
        return self.fresh_s[group.resources]

    def running_on(self, at: int) -> list[Job]:
        """Return the jobs with units on machine ``at`` that nobody has asked to end."""
        return [job for job, _ in self.fleet.holdings[at] if job.id not in self.stopping]

    def renew(self, at: int) -> None:
        """Let machine ``at`` live on for a horizon from now; the caller has booked it."""
        instance = self.fleet.instances[at]
        left_s = instance.expires_at - self.now
        reason = Reason(
            code="renewed",
            text=f"lease of {instance.id} renewed {left_s:.0f} s early, to {self.policy.lease.horizon_s:.0f} s",
            numbers={"left_s": round(left_s, 3), "horizon_s": self.policy.lease.horizon_s},
        )
        self.add(Renew(instance_id=instance.id, expires_at=self.renewed_until_at, reason=reason))

    @property
    def renewed_until_at(self) -> float:
        """When a machine renewed now expires."""
        return self.now + self.policy.lease.horizon_s

    # ------------------------------------------------------------------------------------------------------------- jobs
    def user_cap(self, job: Job) -> Reason | None:
        """Return why no more jobs of this user may hold machines, or None; one that awaits machines counts already."""
        limit, user = self.policy.caps.max_jobs_per_user, job.spec.user
        if limit is None or job.state is JobState.AWAITING_INSTANCE or self.active.get(user, 0) < limit:
            return None
        text = f"waiting: {user} already has {limit} job(s) on machines, the most allowed at one time"
        return Reason(code="cap_jobs_per_user", text=text, numbers={"limit": limit, "whose": user})

    def slack_left_s(self, job: Job) -> float:
        """Return for how long ``job`` may still hold out for a machine that suits it; without end where none asks."""
        return self.suit.slack_left_s(job, self.queued_at(job)) if self.suit is not None else inf

    def queued_at(self, job: Job) -> float:
        """Return since when ``job`` is in the queue; one that this plan puts there: from now."""
        return self.now if job.queued_at is None or job.id in self.enqueued else job.queued_at

    def count_active(self, job: Job, by: int = 1) -> None:
        """Count a job as holding machines (or, with -1, no longer), where any user may have so many only."""
        if self.policy.caps.max_jobs_per_user is None:
            return
        self.active[job.spec.user] = self.active.get(job.spec.user, 0) + by

    def group_of(self, job: Job) -> JobGroup:
        """Return the group of jobs that ask for the same as ``job``."""
        spec, hybrid, suit, plan_cache = job.spec, self.strategy.hybrid, self.suit, self.snapshot.plan_cache
        mapping_need = PLAIN if hybrid is None else hybrid.mapping_need(job)
        application = "" if suit is None else suit.application(job)
        avoid = avoided(job, self.now, self.policy.correction.avoid_s) if job.corrections else ()
        aim = None if suit is None or spec.vcpus_within is None else suit.aim_of(job)
        urgency = Urgency.NONE if self.late is None else self.late.urgency(job, suit)
        # What a spec asks for never changes: this is the most frequent thing done to a long queue.
        known = plan_cache.asks.get(id(spec))
        key = (
            known[1] if known is not None else plan_cache.number_asks(spec, _asks(spec)),
            mapping_need,
            application,
            avoid,
            spec.user if self.ledger.watches_users else "",
            self.topology.company(spec) if self.topology.users else None,
            aim,
            urgency,
            moved := bool(job.failures) and job.failures[-1] is FailureCause.EVICTED,
            weary := bool(job.failures) and spot_loss_limit_reached(job, self.policy.spot),
        )
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = self._new_group(spec, mapping_need, application, aim)
            group.spot_ok = group.spot_ok and not (weary and has_non_spot_offer(spec, self.to_be_had()))
            group.avoid, group.moved, group.urgency = avoid, moved, urgency
        return group

    def _new_group(
        self, spec: JobSpec, mapping_need: MappingNeed, application: str, aim: SizeTarget | None
    ) -> JobGroup:
        nodes, spot, demand, portions = spec.nodes, self.policy.spot, vector(spec.resources), None
        if aim is not None and self.suit is not None:
            portions = self.suit.portions(application, aim)
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
            instance_types=spec.instance_types,
            exclusive=spec.exclusive,
            mapping_need=mapping_need,
            application=application,
            constraints=spec.placement,
            company=self.topology.company(spec),
            aim=aim,
            portions=portions,
        )


def _asks(spec: JobSpec) -> Key:
    """Return all of a spec that decides where its jobs may be, but whose they are."""
    need, nodes = spec.resources, spec.nodes
    return (
        *(need.vcpus, need.memory_mib, need.disk_gib),
        *(nodes.count, nodes.minimum, nodes.gang),
        spec.target.kind,
        spec.interruptible,
        spec.instance_types,
        spec.exclusive,
        spec.placement,
    )


def avoided(job: Job, now: float, avoid_s: float) -> tuple[InstanceId, ...]:
    """Return the machines that ``job`` left in the last ``avoid_s``, or stragglers of its present attempt did."""
    attempt = job.attempt.id if job.attempt is not None and not job.attempt.over else ""
    fresh = (c for c in job.corrections if now - c.at < avoid_s)
    left = (c for c in fresh if c.step == MOVED or (c.step == RELAUNCHED and c.attempt == attempt))
    return tuple(sorted({name for each in left for name in each.instances}))


def open_context(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> PlanContext:
    """Return an empty plan over ``snapshot``; jobs and machines by number, however they were given."""
    jobs = by_number(snapshot.jobs)
    snapshot.plan_cache.forget_asks(but=len(jobs))
    snapshot.plan_cache.forget_others(but=len(jobs))
    occupancy = snapshot.plan_cache.occupancy
    occupancy.follow(jobs)
    fleet = Fleet(snapshot.instances, snapshot.plan_cache)
    context = PlanContext(
        snapshot=snapshot,
        policy=policy,
        now=snapshot.now,
        rng=rng,
        jobs=jobs,
        running=_not_left_out(occupancy.running, snapshot),
        fleet=fleet,
        ledger=open_budget(snapshot, policy, fleet.instances, jobs),
        strategy=open_strategy(snapshot, policy, fleet),
        topology=TopologyConstraints(
            fleet, [job for job in jobs if job.id in occupancy.demanding] if occupancy.demanding else []
        ),
        stopping=set(occupancy.stopping),
        measuring=frozenset(occupancy.measuring),
    )
    for job in occupancy.running if policy.caps.max_jobs_per_user is not None else ():
        context.count_active(job)
    return context


def _not_left_out(running: Sequence[Job], snapshot: Snapshot) -> Sequence[Job]:
    left_out = snapshot.left_out.jobs
    return [job for job in running if job.id not in left_out] if left_out else running
