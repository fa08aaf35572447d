"""What each stage of ``make_plan`` is given: inputs that never change, and four records of the plan so far.

What was decided is in :class:`~hcloud.planner.decisions.Decisions`, what was promised in
:class:`~hcloud.planner.reservations.PlanReservations`, the waiting jobs are in
:class:`~hcloud.planner.waiting_jobs.WaitingJobs`, and the instances in :class:`~hcloud.planner.fleet.Fleet`. Each
changes by its own methods only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from math import inf

import numpy as np

from hcloud.core.model import FailureCause, InstanceId, Job, JobId, JobSpec, Market, Offer, Reason, Resources
from hcloud.core.rows import by_number, number_of
from hcloud.planner.budget import BudgetLedger, open_budget
from hcloud.planner.decisions import Decisions
from hcloud.planner.fit.job_run_times import JobRunTimes
from hcloud.planner.fit.sizing import SizeTarget
from hcloud.planner.fit.suitability import Suitability
from hcloud.planner.fleet import Fleet, vector
from hcloud.planner.job_groups import JobGroup
from hcloud.planner.late_boots import LateBoots, Urgency
from hcloud.planner.placement.order import PlacementOrder
from hcloud.planner.placement.orders import order_named
from hcloud.planner.placement.orders.least_loaded import ORDER as LEAST_LOADED
from hcloud.planner.plan import Plan, Renew
from hcloud.planner.provisioning.mapping import PLAIN, MappingNeed
from hcloud.planner.provisioning.open_strategy import OpenStrategy, open_strategy
from hcloud.planner.queued_jobs import requirements
from hcloud.planner.reservations import PlanReservations
from hcloud.planner.snapshot import Snapshot
from hcloud.planner.spot_preemption import SpotDeadlines, has_non_spot_offer, spot_loss_limit_reached
from hcloud.planner.text import seconds
from hcloud.planner.topology import TopologyConstraints
from hcloud.planner.waiting_jobs import WaitingJobs
from hcloud.spec.policy import Policy

MOVED, RELAUNCHED = "move", "relaunch"
"""Corrections after which a job, or a rank of its present attempt, does not return to the instance it left."""
OFF_SPOT_LOSSES = "it lost too many spot machines (spot.most_losses)"
OFF_SPOT_DEADLINE = "losing a spot machine would put its deadline at risk (placement.confidence)"
NODES, NODES_LAUNCHED = "nodes", "nodes_launched"
"""Corrections after which a job gets all its nodes: where there is room, and on instances launched for it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanInputs:
    """What a plan is made from. None of it changes while the plan is made."""

    snapshot: Snapshot
    policy: Policy
    now: float
    """Time of the snapshot."""
    rng: np.random.Generator
    """Generator for random placement orders."""
    order: PlacementOrder
    """The policy's placement order."""
    strategy: OpenStrategy
    """The policy's provisioning strategy."""
    jobs: Sequence[Job]
    """All jobs that have not ended, by number."""
    running: Sequence[Job]
    """Jobs with a running attempt."""
    measuring: Set[JobId]
    """Profiling runs that are not over."""
    run_times: JobRunTimes
    """How long jobs run."""
    spot_deadlines: SpotDeadlines | None
    """Which deadlines spot machines put at risk; None: no job with a deadline may use any."""
    _quickest_s: dict[Resources, float] = field(default_factory=dict)

    @property
    def renewed_until_at(self) -> float:
        """Expiry of a lease renewed now."""
        return self.now + self.policy.lease.horizon_s

    def available_offers(self) -> Sequence[Offer]:
        """Return the offers that the policy allows and that are not sold out."""
        offers, policy = self.snapshot.offers, self.policy
        return self.snapshot.plan_cache.get(
            "to be had",
            (offers, policy),
            lambda: [each for each in offers if each.available != 0 and policy.allow.refusal(each) is None],
        )

    def quickest_s(self, resources: Resources) -> float:
        """Return the shortest boot delay in seconds of the offers with ``resources``; inf if there is none."""
        if resources not in self._quickest_s:
            backoffs = [each for each in self.snapshot.backoffs if each.until_at > self.now]
            delays = [
                offer.instance_type.boot_delay_s
                for offer in self.available_offers()
                if resources.fits(offer.instance_type.capacity)
                and not any(backoff.covers(offer) for backoff in backoffs)
            ]
            self._quickest_s[resources] = min(delays, default=inf)
        return self._quickest_s[resources]

    def order_for(self, group: JobGroup) -> PlacementOrder:
        """Return the order for ``group``: the policy's, or least loaded if that needs to know its application."""
        return self.order if group.application or not self.order.needs.classifications else LEAST_LOADED


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanContext(PlanInputs):
    """The inputs of a plan, and what it has decided and promised so far. Lives for one call of ``make_plan``."""

    fleet: Fleet
    """The instances. Integers in sets, lists and keys are places in ``fleet.instances`` unless stated otherwise."""
    waiting: WaitingJobs
    reservations: PlanReservations
    decisions: Decisions

    def plan(self) -> Plan:
        """Return the plan, with the time at which it is due again."""
        now, backoffs, decided = self.now, [each.until_at for each in self.snapshot.backoffs], self.decisions
        backoffs += [each.until_at for each in self.snapshot.refused_quotas]
        backoffs.append(self.snapshot.plan_cache.occupancy.next_retry_at(now))
        due_at = min([at for at in backoffs if at > now], default=inf)
        due_at = now if decided.postponed else min(due_at, decided.next_release_at, decided.next_pause_at)
        return Plan(
            at=now,
            actions=tuple(decided.actions),
            due_at=due_at,
            planned_starts=decided.planned_starts,
            unprofiled=decided.unprofiled,
        )

    @property
    def ledger(self) -> BudgetLedger:
        """The account of caps and budgets, with all that this plan spends."""
        return self.reservations.ledger

    @property
    def topology(self) -> TopologyConstraints:
        """Constraints of users."""
        return self.reservations.topology

    @property
    def suit(self) -> Suitability | None:
        """How well instances suit jobs; None before admission, or if the placement order needs no classifications."""
        return self.reservations.suit

    @property
    def suitability(self) -> Suitability:
        """How well instances suit jobs, for placement orders that need classifications."""
        assert self.reservations.suit is not None
        return self.reservations.suit

    @property
    def late(self) -> LateBoots | None:
        """Instances that boot far later than usual; None: none."""
        return self.reservations.late

    # ------------------------------------------------------------------------------------------------------- instances
    def terminate(self, at: int, reason: Reason, *, ordered: bool = False) -> bool:
        """Terminate instance ``at`` unless the limit per cycle is reached; ``ordered`` by an operator: always. Return
        whether it is terminated."""
        self.fleet.close(at)
        limit = self.policy.disruption.max_terminations_per_cycle
        if not ordered and len(self.decisions.terminating) >= limit:
            return False
        self.decisions.terminate(at, self.fleet.instances[at].id, reason)
        return True

    def running_on(self, at: int) -> list[Job]:
        """Return the jobs with units on instance ``at`` that were not asked to stop."""
        return [job for job, _ in self.fleet.holdings[at] if job.id not in self.decisions.stopping]

    def renew(self, at: int) -> None:
        """Renew the lease of instance ``at`` for one horizon from now; the caller has booked it."""
        instance = self.fleet.instances[at]
        left_s = instance.expires_at - self.now
        reason = Reason(
            code="renewed",
            text=f"lease of {instance.id} renewed for {seconds(self.policy.lease.horizon_s)} ({seconds(left_s)} left)",
            numbers={"left_s": round(left_s, 3), "horizon_s": self.policy.lease.horizon_s},
        )
        self.decisions.add(Renew(instance_id=instance.id, expires_at=self.renewed_until_at, reason=reason))

    # ------------------------------------------------------------------------------------------------------------ jobs
    @property
    def distinguishes_similar_jobs(self) -> bool:
        """Whether the group of similar jobs depends on more than their age."""
        hybrid = self.strategy.hybrid
        return self.late is not None or bool(self.topology.users) or (hybrid is not None and hybrid.is_random)

    @property
    def regroups_as_it_waits(self) -> bool:
        """Whether the group of a queued job may change as it waits: by what it maps to, or by the risk of spot."""
        return self.strategy.hybrid is not None or self.spot_deadlines is not None

    def slack_left_s(self, job: Job) -> float:
        """Return for how many seconds ``job`` may still wait for a suitable instance; inf without estimates."""
        return self.suit.slack_left_s(job, self.queued_at(job)) if self.suit is not None else inf

    def queued_at(self, job: Job) -> float:
        """Return since when ``job`` is queued; now, if this plan queued it."""
        return self.now if job.queued_at is None or job.id in self.decisions.enqueued else job.queued_at

    def group_of(self, job: Job) -> JobGroup:
        """Return the group of jobs with the same requirements as ``job``."""
        spec, hybrid, suit, plan_cache = job.spec, self.strategy.hybrid, self.suit, self.snapshot.plan_cache
        late, groups = self.late, self.waiting.groups
        mapping_need = PLAIN if hybrid is None else hybrid.mapping_need(job)
        application = "" if suit is None else suit.application(job)
        avoid = avoided(job, self.now, self.policy.correction.avoid_s) if job.corrections else ()
        aim = None if suit is None or spec.vcpus_within is None else suit.aim_of(job)
        urgency = Urgency.NONE if late is None else late.urgency(job, self.run_times)
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
            off_spot := self._off_spot(job),
        )
        group = groups.get(key)
        if group is None:
            group = groups[key] = self._new_group(
                job, mapping_need, application, aim, avoid, urgency, moved=moved, off_spot=off_spot
            )
        return group

    def _off_spot(self, job: Job) -> str:
        """Return why spot machines, if permitted, are not for ``job``: it lost too many, or its deadline is at risk.
        Empty: they are."""
        if job.failures and spot_loss_limit_reached(job, self.policy.spot):
            return OFF_SPOT_LOSSES
        spec, deadlines = job.spec, self.spot_deadlines
        if deadlines is None or spec.target.kind != "batch" or spec.profile is not None:
            return ""
        avoids = deadlines.avoids_spot(
            job,
            lambda ran_s: self.run_times.equally_likely_s(job, ran_s),
            lambda: self.quickest_s(spec.resources),
        )
        return OFF_SPOT_DEADLINE if avoids else ""

    def _has_non_spot_offer(self, spec: JobSpec) -> bool:
        """Return whether an offer that is not spot suits this job, and did not fail to launch a moment ago."""
        backoffs = [each for each in self.snapshot.backoffs if each.until_at > self.now]
        offers: Iterable[Offer] = self.available_offers()
        if backoffs:
            offers = (each for each in offers if not any(backoff.covers(each) for backoff in backoffs))
        return has_non_spot_offer(spec, offers)

    def _new_group(
        self,
        job: Job,
        mapping_need: MappingNeed,
        application: str,
        aim: SizeTarget | None,
        avoid: tuple[InstanceId, ...],
        urgency: Urgency,
        *,
        moved: bool,
        off_spot: str,
    ) -> JobGroup:
        spec, nodes, spot, demand, portions = (
            job.spec,
            job.spec.nodes,
            self.policy.spot,
            vector(job.spec.resources),
            None,
        )
        if aim is not None and self.suit is not None:
            portions = self.suit.rank_sizes(application, aim)
            demand[0] = aim.low
        spot_ok = spec.target.kind in spot.for_targets and (spec.interruptible or not spot.only_interruptible)
        return JobGroup(
            place=len(self.waiting.groups),
            example=job,
            resources=spec.resources,
            demand=demand,
            needed=nodes.needed,
            wanted=nodes.count,
            spot_ok=spot_ok and not (avoids := bool(off_spot) and self._has_non_spot_offer(spec)),
            off_spot=off_spot if spot_ok and avoids else "",
            promise=spec.target.kind != "best_effort",
            serves=spec.target.kind == "service",
            max_runtime_s=spec.max_runtime_s,
            checkpoint_s=None if spec.checkpoint is None else spec.checkpoint.every_s,
            instance_types=spec.instance_types,
            preferred_types=spec.preferred_types,
            slower_elsewhere=spec.slower_elsewhere,
            exclusive=spec.exclusive,
            mapping_need=mapping_need,
            moved=moved,
            application=application,
            avoid=avoid,
            constraints=spec.placement,
            company=self.topology.company(spec),
            sizable=spec.vcpus_within is not None,
            aim=aim,
            portions=portions,
            urgency=urgency,
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
    snapshot.plan_cache.trim_by_job(but=len(jobs))
    occupancy = snapshot.plan_cache.occupancy
    occupancy.follow(jobs)
    fleet, left_out = Fleet(snapshot.instances, snapshot.plan_cache), snapshot.left_out.jobs
    constrained = [occupancy.rows[each] for each in sorted(occupancy.constrained, key=number_of)]
    spot = [each for each in fleet.instances if each.offer.market is Market.SPOT]
    offered = spot or any(each.market is Market.SPOT and each.available != 0 for each in snapshot.offers)
    deadlines = None
    if "batch" in policy.spot.for_targets and offered:
        lifetimes = snapshot.fleet_stats.spot_lifetimes
        deadlines = SpotDeadlines.from_history(lifetimes, spot, 1.0 - policy.placement.confidence, snapshot.now)
    reservations = PlanReservations(
        fleet=fleet,
        ledger=open_budget(snapshot, policy, fleet.instances, jobs),
        topology=TopologyConstraints(fleet, constrained),
        most_jobs_per_user=policy.caps.max_jobs_per_user,
    )
    for job in occupancy.running if policy.caps.max_jobs_per_user is not None else ():
        reservations.count_active(job)
    return PlanContext(
        snapshot=snapshot,
        policy=policy,
        now=snapshot.now,
        rng=rng,
        order=order_named(policy.placement.order),
        strategy=open_strategy(snapshot, policy, fleet),
        jobs=jobs,
        running=[job for job in occupancy.running if job.id not in left_out] if left_out else occupancy.running,
        measuring=frozenset(occupancy.measuring),
        run_times=JobRunTimes(
            snapshot,
            neighbour_tolerance=policy.placement.neighbour_tolerance,
            confidence=policy.placement.confidence,
        ),
        spot_deadlines=deadlines,
        fleet=fleet,
        waiting=WaitingJobs(similar=occupancy.queued.kinds()),
        reservations=reservations,
        decisions=Decisions(stopping=set(occupancy.stopping)),
    )
