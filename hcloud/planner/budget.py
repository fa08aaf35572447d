"""Money and caps: what is booked and promised, and whether one more machine, renewal or unit still fits.

A machine counts with its price until the end of what is promised (``paid_until``), so that every limit holds even if
this daemon dies now and each machine lives until it powers itself off. What falls beyond the end of the day or month
is held against the next one's limit. A user is counted with the share of each machine that the user's jobs hold; a
machine that is awaited is counted, whole, with those who await or hold it; so is one that boots for a running job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from hcloud.core.model import (
    INSTANCE_COMING,
    Instance,
    InstanceId,
    InstanceState,
    Job,
    JobId,
    Number,
    Offer,
    Reason,
    Resources,
)
from hcloud.planner.snapshot import Snapshot
from hcloud.planner.text import price, size_share, usd
from hcloud.spec.policy import Policy

HOUR_S = 3600.0
CENT_DUST = 1e-9
Shares = Mapping[str, float]
"""Which part (0..1) of a machine's cost is for which user; the rest is nobody's (idle)."""
Bill = tuple[float, float, float, float]
"""USD in the present UTC day, the present month, the day after, the month after."""
CAPPED = "cap_instances"
"""The reason's code of a job that waits as no more machines are allowed (:func:`cap_reached`, rule ``instances``)."""
PERIODS = ("per_day", "per_month", "next_day", "next_month")
_NOTHING: Bill = (0.0, 0.0, 0.0, 0.0)


def _plus(bill: Bill, other: Bill, times: float = 1.0) -> Bill:
    return (
        bill[0] + times * other[0],
        bill[1] + times * other[1],
        bill[2] + times * other[2],
        bill[3] + times * other[3],
    )


@dataclass(slots=True)
class BudgetLedger:
    """A running account of one plan; every launch, renewal and placement the plan decides is written into it.

    ``total`` and ``users`` are booked plus promised. ``leaving_usd_per_h`` is the part of ``usd_per_h`` that machines
    pay which are not renewed any more. ``awaited``: what each job's user is counted with for machines the job awaits.
    ``watches_total``, ``watches_users``: whether the policy limits them; what is not limited is not counted.
    """

    policy: Policy
    now: float
    day_ends_at: float
    month_ends_at: float
    watches_total: bool
    watches_users: bool
    usd_per_h: float = 0.0
    leaving_usd_per_h: float = 0.0
    total: Bill = _NOTHING
    instances: int = 0
    vcpus: float = 0.0
    per_type: Counter[str] = field(default_factory=Counter)
    users: dict[str, Bill] = field(default_factory=dict)
    awaited: dict[JobId, Bill] = field(default_factory=dict)
    renewed_until: dict[InstanceId, float] = field(default_factory=dict)

    def copy(self) -> BudgetLedger:
        """Return an independent copy, to go back to when a decision falls through."""
        values = {name: getattr(self, name) for name in self.__slots__}
        own = {name: values[name].copy() for name in ("per_type", "users", "awaited", "renewed_until")}
        return BudgetLedger(**{**values, **own})

    def bill(self, usd_per_h: float, until_at: float) -> Bill:
        """Return what a machine costs from now until ``until_at``."""
        usd_per_s = usd_per_h / HOUR_S
        whole = usd_per_s * max(0.0, until_at - self.now)
        day = usd_per_s * max(0.0, min(until_at, self.day_ends_at) - self.now)
        month = usd_per_s * max(0.0, min(until_at, self.month_ends_at) - self.now)
        return (day, month, whole - day, whole - month)

    # ------------------------------------------------------------------------------------------------------- launching
    def launch_bill(self, offer: Offer) -> Bill:
        """Return what a machine launched now is counted with: its whole horizon, or the billing minimum if longer."""
        return self.bill(offer.price_usd_per_h, self.now + max(self.policy.lease.horizon_s, offer.billing_minimum_s))

    def refusal(self, offer: Offer, shares: Shares) -> Reason | None:
        """Return why no machine of ``offer`` may be launched for the users of ``shares``, or None if it may."""
        return self._cap_refusal(offer) or self._money_refusal(offer, shares)

    def _cap_refusal(self, offer: Offer) -> Reason | None:
        caps, size, name = self.policy.caps, offer.instance_type.capacity.vcpus, offer.instance_type.name
        if self.instances + 1 > caps.max_instances:
            return cap_reached("instances", "machines running or launching", self.instances, 1, caps.max_instances)
        if caps.max_vcpus is not None and self.vcpus + size > caps.max_vcpus + CENT_DUST:
            return cap_reached("vcpus", "vCPUs running or launching", self.vcpus, size, caps.max_vcpus)
        limit = caps.max_instances_per_type.get(name)
        if limit is not None and self.per_type[name] + 1 > limit:
            return cap_reached(
                "instances_per_type", f"{name} machines running or launching", self.per_type[name], 1, limit
            )
        return None

    def _money_refusal(self, offer: Offer, shares: Shares) -> Reason | None:
        wanted = self.launch_bill(offer)
        return (
            _over("per_hour", self.policy.budgets.per_hour_usd, self.usd_per_h, offer.price_usd_per_h)
            or self._total_refusal(wanted)
            or self._users_refusal({user: _plus(_NOTHING, wanted, part) for user, part in shares.items()})
        )

    def _total_refusal(self, wanted: Bill) -> Reason | None:
        budgets = self.policy.budgets
        if not self.watches_total:
            return None
        return _beyond(budgets.per_day_usd, budgets.per_month_usd, self.total, wanted)

    def book_launch(self, offer: Offer, shares: Shares) -> None:
        """Count a machine of ``offer``, paid by the users of ``shares``."""
        wanted = self.launch_bill(offer)
        self._count(offer, 1)
        self.total = _plus(self.total, wanted)
        self._charge(wanted, shares)

    def reshare(self, offer: Offer, before: Shares, after: Shares) -> bool:
        """Split the cost of a machine booked just now anew; return False, and change nothing, if a user has no room."""
        wanted = self.launch_bill(offer)
        changes = {user: part - before.get(user, 0.0) for user, part in after.items()}
        more = {user: _plus(_NOTHING, wanted, part) for user, part in changes.items() if part > 0}
        if self._users_refusal(more) is not None:
            return False
        self._charge(wanted, changes)
        return True

    def count_live(self, instances: Collection[Instance]) -> None:
        """Count machines that live already, with what they may still cost."""
        offers = [instance.offer for instance in instances]
        self.usd_per_h = sum([offer.price_usd_per_h for offer in offers], self.usd_per_h)
        self.instances += len(offers)
        self.vcpus = sum([offer.instance_type.capacity.vcpus for offer in offers], self.vcpus)
        self.per_type.update([offer.instance_type.name for offer in offers])
        for instance in instances if self.watches_total else ():
            self.total = _plus(self.total, self.promised(instance))

    def release(self, instance: Instance) -> None:
        """Take back :meth:`count_live`: how things will be when ``instance`` is gone."""
        self._count(instance.offer, -1)
        if self.watches_total:
            self.total = _plus(self.total, self.promised(instance), -1.0)

    def _count(self, offer: Offer, by: int) -> None:
        self.usd_per_h += by * offer.price_usd_per_h
        self.instances += by
        self.vcpus += by * offer.instance_type.capacity.vcpus
        self.per_type[offer.instance_type.name] += by

    def promised(self, instance: Instance) -> Bill:
        """Return what a live machine may still cost."""
        until_at = max(paid_until(instance, self.now), self.renewed_until.get(instance.id, 0.0))
        return self.bill(instance.offer.price_usd_per_h, until_at)

    # -------------------------------------------------------------------------------------------------------- renewing
    def renewal_refusal(self, instance: Instance, until_at: float, shares: Shares) -> tuple[Reason, str] | None:
        """Return why ``instance`` may not live until ``until_at``, and the user whose limit it is ("": everybody's)."""
        rate, more = instance.offer.price_usd_per_h, self._renewal_bill(instance, until_at)
        others_usd_per_h = self.usd_per_h - self.leaving_usd_per_h - rate
        per_hour_usd = self.policy.budgets.per_hour_usd
        common = _over("per_hour", per_hour_usd, others_usd_per_h, rate) or self._total_refusal(more)
        if common is not None:
            return common, ""
        for user in sorted(shares):
            reason = self._users_refusal({user: _plus(_NOTHING, more, shares[user])})
            if reason is not None:
                return reason, user
        return None

    def book_renewal(self, instance: Instance, until_at: float, shares: Shares, waiters: Sequence[Job] = ()) -> None:
        """Count the money until ``until_at``: for those who hold the machine, or those who await it."""
        more = self._renewal_bill(instance, until_at)
        self.total = _plus(self.total, more)
        self._charge(more, shares)
        parts = [size_share(job.spec.held_of(instance.capacity), instance) for job in waiters]
        for job, part in zip(waiters, parts, strict=True):
            self.remember_awaited(job, _plus(_NOTHING, more, part * _whole(sum(parts))))
        self.renewed_until[instance.id] = until_at

    def _renewal_bill(self, instance: Instance, until_at: float) -> Bill:
        until_at = max(until_at, paid_until(instance, self.now))
        return _plus(self.bill(instance.offer.price_usd_per_h, until_at), self.promised(instance), -1.0)

    def let_go(self, instance: Instance) -> None:
        """Note that ``instance`` will not be renewed: its price per hour makes room for other renewals."""
        self.leaving_usd_per_h += instance.offer.price_usd_per_h

    # ----------------------------------------------------------------------------------------------------------- users
    def placement_refusal(self, user: str, instance: Instance, resources: Resources) -> Reason | None:
        """Return why ``user`` may not take ``resources`` of a live machine (their own limits), or None."""
        return self._users_refusal({user: self._held(instance, resources)})

    def stay_refusal(self, instance: Instance, until_at: float, shares: Shares) -> Reason | None:
        """Return why users whose units hold ``shares`` of a live machine may not hold them until ``until_at``, when it
        were renewed to, or None."""
        more = _plus(self.bill(instance.offer.price_usd_per_h, until_at), self.promised(instance), -1.0)
        return self._users_refusal({user: _plus(_NOTHING, more, part) for user, part in shares.items()})

    def book_placement(self, user: str, instance: Instance, resources: Resources) -> None:
        """Count what ``user`` now holds of a live machine."""
        self._charge(self._held(instance, resources), {user: 1.0})

    def book_stopping(self, job: Job, instance: Instance, resources: Resources) -> None:
        """Count what a unit that was asked to end holds until its grace is over."""
        asked_at = job.attempt.stop_requested_at if job.attempt is not None else None
        until_at = min((asked_at or self.now) + job.spec.stop_grace_s, paid_until(instance, self.now))
        bill = self.bill(instance.offer.price_usd_per_h, max(until_at, self.now))
        self._charge(_plus(_NOTHING, bill, size_share(resources, instance)), {job.spec.user: 1.0})

    def _held(self, instance: Instance, resources: Resources) -> Bill:
        return _plus(_NOTHING, self.promised(instance), size_share(resources, instance))

    def book_awaited(self, job: Job, instance: Instance, share: float) -> None:
        """Count ``job``'s user with ``share`` of a machine that ``job`` awaits."""
        self.remember_awaited(job, _plus(_NOTHING, self.promised(instance), share))

    def remember_awaited(self, job: Job, bill: Bill) -> None:
        """Count, or count again after :meth:`forget_awaited`, what ``job``'s user promised for machines it awaits."""
        self._charge(bill, {job.spec.user: 1.0})
        self.awaited[job.id] = _plus(self.awaited.get(job.id, _NOTHING), bill)

    def forget_awaited(self, job: Job) -> Bill | None:
        """Take back what ``job``'s user was counted with for the machines it awaits, and return it."""
        bill = self.awaited.pop(job.id, None)
        if bill is not None:
            self._charge(bill, {job.spec.user: -1.0})
        return bill

    def _users_refusal(self, wanted: Mapping[str, Bill]) -> Reason | None:
        for user in sorted(wanted) if self.watches_users else ():
            limits, booked = self.policy.budgets.for_user(user), self.users.get(user, _NOTHING)
            reason = _beyond(limits.per_day_usd, limits.per_month_usd, booked, wanted[user], user)
            if reason is not None:
                return reason
        return None

    def _charge(self, bill: Bill, shares: Shares) -> None:
        if self.watches_users:
            for user, part in shares.items():
                self.users[user] = _plus(self.users.get(user, _NOTHING), bill, part)


def open_budget(
    snapshot: Snapshot, policy: Policy, instances: Collection[Instance], jobs: Sequence[Job], *, heard: bool = False
) -> BudgetLedger:
    """Return the account of ``instances`` as ``jobs`` hold and await them, on top of what ``snapshot`` has booked.

    ``heard``: units that were asked to end are taken to do so in time, and to be heard of; else they count until their
    end is known.
    """
    spend = snapshot.spend
    ledger = BudgetLedger(
        policy=policy,
        now=snapshot.now,
        day_ends_at=spend.day_ends_at or inf,
        month_ends_at=spend.month_ends_at or inf,
        watches_total=policy.budgets.per_day_usd is not None or policy.budgets.per_month_usd is not None,
        watches_users=_limits_users(policy),
        total=(spend.day_usd, spend.month_usd, 0.0, 0.0),
    )
    ledger.count_live(instances)
    if ledger.watches_users:
        day, month = spend.by_user_day_usd, spend.by_user_month_usd
        for user in sorted(day.keys() | month.keys()):
            ledger.users[user] = (day.get(user, 0.0), month.get(user, 0.0), 0.0, 0.0)
        _attribute(ledger, {instance.id: instance for instance in instances}, jobs, heard=heard)
    return ledger


def _attribute(ledger: BudgetLedger, by_id: Mapping[str, Instance], jobs: Sequence[Job], *, heard: bool) -> None:
    taken: dict[str, float] = {}
    awaited: list[tuple[Job, Instance, float]] = []
    coming = _coming_for_running(by_id.values())
    for job in jobs:
        # An attempt that was asked to end counts until its end is known: should we be away by then, nobody is told of
        # it, and it is booked as long as its machine is paid for.
        staying = job.attempt is not None and job.attempt.stop_requested_at is None
        for held in job.attempt.allocations if job.attempt is not None else ():
            instance = by_id.get(held.instance_id)
            if instance is None or held.released:
                continue
            if not staying and heard:
                ledger.book_stopping(job, instance, held.resources)
                continue
            ledger.book_placement(job.spec.user, instance, held.resources)
            if not staying:
                continue
            taken[instance.id] = taken.get(instance.id, 0.0) + size_share(held.resources, instance)
        grows = staying and job.attempt is not None and not job.attempt.over
        for instance_id in (*job.awaiting, *(coming.get(job.id, ()) if grows else ())):
            if instance_id in by_id:
                share = size_share(job.spec.held_of(by_id[instance_id].capacity), by_id[instance_id])
                awaited.append((job, by_id[instance_id], share))
                taken[instance_id] = taken.get(instance_id, 0.0) + share
    for job, instance, share in awaited:
        ledger.book_awaited(job, instance, share * _whole(taken[instance.id]))


def _coming_for_running(instances: Iterable[Instance]) -> dict[JobId, list[InstanceId]]:
    """Return the machines that are not up yet and were launched for more nodes of running jobs: once for each node."""
    coming: dict[JobId, list[InstanceId]] = {}
    for instance in instances:
        for job_id in instance.for_running if instance.state in INSTANCE_COMING else ():
            coming.setdefault(job_id, []).append(instance.id)
    return coming


def launch_shares(jobs: Sequence[Job], capacity: Resources) -> dict[str, float]:
    """Return by user which part of a new machine's cost the jobs it is for (one entry per rank) are counted with.

    Together that is at least all of it.
    """
    parts = [size_share(job.spec.held_of(capacity), capacity) for job in jobs]
    scale = _whole(sum(parts))
    shares: dict[str, float] = {}
    for job, part in zip(jobs, parts, strict=True):
        shares[job.spec.user] = shares.get(job.spec.user, 0.0) + part * scale
    return shares


def shares_cost(ledger: BudgetLedger, offer: Offer, jobs: Sequence[Job], job: Job) -> bool:
    """Split what a new machine of ``offer`` for ``jobs`` costs among them and ``job``, which joins them; return False,
    and change nothing, if one of their users has no room for that."""
    if not ledger.watches_users:
        return True
    size = offer.instance_type.capacity
    return ledger.reshare(offer, launch_shares(jobs, size), launch_shares([*jobs, job], size))


def _whole(parts: float) -> float:
    """Return the factor that makes ``parts`` of a machine at least the whole."""
    return max(1.0, 1.0 / max(parts, CENT_DUST))


def paid_until(instance: Instance, now: float) -> float:
    """Return until when ``instance`` may cost money: its horizon, or the end of its billing minimum if later."""
    if instance.state is InstanceState.TERMINATED:
        return now
    since = instance.launched_at if instance.launched_at is not None else now
    return max(instance.expires_at, since + instance.offer.billing_minimum_s)


def _limits_users(policy: Policy) -> bool:
    limits = policy.budgets.per_user.values()
    return any(limit.per_day_usd is not None or limit.per_month_usd is not None for limit in limits)


def cap_reached(rule: str, what: str, present: float, more: float, limit: float) -> Reason:
    """Return the reason that ``more`` of ``what`` would pass the policy's ``caps.max_<rule>``."""
    numbers: dict[str, Number] = {"rule": rule, "limit": limit, "present": present, "wanted": more}
    text = f"{present:g} {what}; {more:g} more would exceed caps.max_{rule} ({limit:g})"
    return Reason(code=f"cap_{rule}", text=text, numbers=numbers)


def _beyond(
    day_usd: float | None, month_usd: float | None, booked: Bill, wanted: Bill, user: str = ""
) -> Reason | None:
    for rule, limit, before, more in zip(PERIODS, (day_usd, month_usd) * 2, booked, wanted, strict=True):
        # Where nothing more is wanted of a period that is overdrawn already, this decision is not what overdraws it.
        if more > CENT_DUST and (reason := _over(rule, limit, before, more, user)) is not None:
            return reason
    return None


def _over(rule: str, limit_usd: float | None, committed_usd: float, wanted_usd: float, user: str = "") -> Reason | None:
    if limit_usd is None or committed_usd + wanted_usd <= limit_usd + CENT_DUST:
        return None
    show = price if rule == "per_hour" else usd
    left_usd = max(0.0, limit_usd - committed_usd)
    numbers: dict[str, Number] = {
        "rule": f"user_{rule}" if user else rule,
        "limit_usd": limit_usd,
        "committed_usd": round(committed_usd, 6),
        "wanted_usd": round(wanted_usd, 6),
        "left_usd": round(left_usd, 6),
    }
    whose = ""
    if user:
        numbers["whose"], whose = user, f" of {user}"
    text = f"needs {show(wanted_usd)}; {show(left_usd)} left of the {rule} budget{whose} of {show(limit_usd)}"
    return Reason(code=f"budget_{numbers['rule']}", text=text, numbers=numbers)
