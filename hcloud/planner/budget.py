"""Money and caps: what is booked and promised, and whether one more launch, renewal or placement fits.

An instance counts with its price until the end of its lease (``paid_until``); from the end of its commitment on with
the price of on demand. So every limit holds even if this daemon dies now and each instance lives until it powers itself
off. Cost beyond the end of the day or month counts against the limit of the next one. A scope (a user, a tag) is
charged with the share of each instance that its jobs hold. An awaited instance is charged in full to the scopes of jobs
that await or hold it; so is one that boots for a running job. A job counts in each of its scopes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from hcloud.core.budget_scope import TOTAL, BudgetScope, scopes_of
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
from hcloud.spec.policy import UNLIMITED, Policy

HOUR_S = 3600.0
CENT_DUST = 1e-9
Shares = Mapping[BudgetScope, float]
"""Part (0..1) of an instance's cost by scope; the rest is idle and charged to none."""
Bill = tuple[float, float, float, float]
"""USD in the present UTC day, the present month, the next day and the next month."""
CAPPED = "cap_instances"
"""Code of the reason of a job that waits because ``caps.max_instances`` is reached (:func:`cap_reached`)."""
PERIODS = ("per_day", "per_month", "next_day", "next_month")
_NOTHING: Bill = (0.0, 0.0, 0.0, 0.0)


def _add(bill: Bill, other: Bill, times: float = 1.0) -> Bill:
    return (
        bill[0] + times * other[0],
        bill[1] + times * other[1],
        bill[2] + times * other[2],
        bill[3] + times * other[3],
    )


@dataclass(slots=True)
class BudgetLedger:
    """The running account of one plan: every launch, renewal and placement decided is booked here."""

    policy: Policy
    now: float
    day_ends_at: float
    month_ends_at: float
    watches_total: bool
    """Whether the policy limits the total; if not, it is not counted."""
    watches_scopes: bool
    """Whether the policy limits any user or tag; if not, these are not counted."""
    usd_per_h: float = 0.0
    """Price of all live and planned instances, of each the highest until the end of its lease."""
    leaving_usd_per_h: float = 0.0
    """The part of ``usd_per_h`` paid for instances that will not be renewed."""
    total: Bill = _NOTHING
    """Booked plus promised, for all users."""
    instances: int = 0
    vcpus: float = 0.0
    per_type: Counter[str] = field(default_factory=Counter)
    """Number of instances by type."""
    scopes: dict[BudgetScope, Bill] = field(default_factory=dict)
    """Booked plus promised, by user and tag."""
    awaited: dict[JobId, Bill] = field(default_factory=dict)
    """What each job's scopes are charged for instances the job awaits."""
    renewed_until: dict[InstanceId, float] = field(default_factory=dict)
    """Expiry of the leases renewed by this plan."""

    def copy(self) -> BudgetLedger:
        """Return an independent copy, for decisions that may be dropped."""
        values = {name: getattr(self, name) for name in self.__slots__}
        own = {name: values[name].copy() for name in ("per_type", "scopes", "awaited", "renewed_until")}
        return BudgetLedger(**{**values, **own})

    def bill(self, offer: Offer, until_at: float) -> Bill:
        """Return what an instance of ``offer`` costs from now until ``until_at``."""
        whole = self._bill_at(offer.price_usd_per_h, until_at)
        if not _outlasts_commitment(offer, until_at):
            return whole
        increase = (offer.price_after_usd_per_h or 0.0) - offer.price_usd_per_h
        until_end = self._bill_at(increase, offer.ends_at or 0.0)
        return _add(_add(whole, self._bill_at(increase, until_at)), until_end, -1.0)

    def _bill_at(self, usd_per_h: float, until_at: float) -> Bill:
        usd_per_s = usd_per_h / HOUR_S
        whole = usd_per_s * max(0.0, until_at - self.now)
        day = usd_per_s * max(0.0, min(until_at, self.day_ends_at) - self.now)
        month = usd_per_s * max(0.0, min(until_at, self.month_ends_at) - self.now)
        return (day, month, whole - day, whole - month)

    # ------------------------------------------------------------------------------------------------------- launching
    @property
    def is_full(self) -> bool:
        """Whether the cap on instances allows no other, whatever it costs."""
        return self.instances + 1 > self.policy.caps.max_instances

    def shares(self, jobs: Sequence[Job], capacity: Resources) -> Shares:
        """Return :func:`launch_shares` if any scope has a limit, else nothing: then they are not counted."""
        return launch_shares(jobs, capacity) if self.watches_scopes else {}

    def launch_bill(self, offer: Offer) -> Bill:
        """Return the cost of an instance launched now: its lease, or the billing minimum if longer."""
        return self.bill(offer, self._launched_until(offer))

    def _launched_until(self, offer: Offer) -> float:
        return self.now + max(self.policy.lease.horizon_s, offer.billing_minimum_s)

    def refusal(self, offer: Offer, shares: Shares) -> Reason | None:
        """Return why no instance of ``offer`` may be launched for the scopes of ``shares``; None: it may."""
        return self._cap_refusal(offer) or self._money_refusal(offer, shares)

    def _cap_refusal(self, offer: Offer) -> Reason | None:
        caps, size, name = self.policy.caps, offer.instance_type.capacity.vcpus, offer.instance_type.name
        if self.is_full:
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
        wanted, usd_per_h = self.launch_bill(offer), highest_usd_per_h(offer, self._launched_until(offer))
        return (
            _limit_refusal("per_hour", self.policy.budgets.per_hour_usd, self.usd_per_h, usd_per_h)
            or self._total_refusal(wanted)
            or self._scopes_refusal({scope: _add(_NOTHING, wanted, part) for scope, part in shares.items()})
        )

    def _total_refusal(self, wanted: Bill) -> Reason | None:
        budgets = self.policy.budgets
        if not self.watches_total:
            return None
        return _limits_refusal(budgets.per_day_usd, budgets.per_month_usd, self.total, wanted)

    def book_launch(self, offer: Offer, shares: Shares) -> None:
        """Book an instance of ``offer``, paid by the scopes of ``shares``."""
        wanted = self.launch_bill(offer)
        self._count(offer, 1, highest_usd_per_h(offer, self._launched_until(offer)))
        self.total = _add(self.total, wanted)
        self._charge(wanted, shares)

    def reshare(self, offer: Offer, before: Shares, after: Shares) -> bool:
        """Change how the cost of an instance just booked is shared; return False and change nothing if a scope
        cannot pay."""
        wanted = self.launch_bill(offer)
        changes = {scope: part - before.get(scope, 0.0) for scope, part in after.items()}
        more = {scope: _add(_NOTHING, wanted, part) for scope, part in changes.items() if part > 0}
        if self._scopes_refusal(more) is not None:
            return False
        self._charge(wanted, changes)
        return True

    def count_live(self, instances: Collection[Instance]) -> None:
        """Count live instances, with what they may still cost."""
        offers = [instance.offer for instance in instances]
        rates = [
            each.offer.price_usd_per_h if each.offer.ends_at is None else self._usd_per_h(each) for each in instances
        ]
        self.usd_per_h = sum(rates, self.usd_per_h)
        self.instances += len(offers)
        self.vcpus = sum([offer.instance_type.capacity.vcpus for offer in offers], self.vcpus)
        self.per_type.update([offer.instance_type.name for offer in offers])
        for instance in instances if self.watches_total else ():
            self.total = _add(self.total, self.promised(instance))

    def release(self, instance: Instance) -> None:
        """Undo :meth:`count_live` for ``instance``, to see the account once it is gone."""
        self._count(instance.offer, -1, self._usd_per_h(instance))
        if self.watches_total:
            self.total = _add(self.total, self.promised(instance), -1.0)

    def _count(self, offer: Offer, by: int, usd_per_h: float) -> None:
        self.usd_per_h += by * usd_per_h
        self.instances += by
        self.vcpus += by * offer.instance_type.capacity.vcpus
        self.per_type[offer.instance_type.name] += by

    def promised(self, instance: Instance) -> Bill:
        """Return what a live instance may still cost."""
        return self.bill(instance.offer, self._paid_until(instance))

    def _paid_until(self, instance: Instance) -> float:
        return max(paid_until(instance, self.now), self.renewed_until.get(instance.id, 0.0))

    def _usd_per_h(self, instance: Instance) -> float:
        """Return the part of a live instance in ``usd_per_h``."""
        offer = instance.offer
        return offer.price_usd_per_h if offer.ends_at is None else highest_usd_per_h(offer, self._paid_until(instance))

    # -------------------------------------------------------------------------------------------------------- renewing
    def renewal_refusal(self, instance: Instance, until_at: float, shares: Shares) -> tuple[Reason, BudgetScope] | None:
        """Return why the lease of ``instance`` may not be renewed, and the scope whose limit forbids it."""
        more, rate = self._renewal_bill(instance, until_at), self._renewed_usd_per_h(instance, until_at)
        others_usd_per_h = self.usd_per_h - self.leaving_usd_per_h - self._usd_per_h(instance)
        per_hour_usd = self.policy.budgets.per_hour_usd
        common = _limit_refusal("per_hour", per_hour_usd, others_usd_per_h, rate) or self._total_refusal(more)
        if common is not None:
            return common, TOTAL
        for scope in sorted(shares):
            reason = self._scopes_refusal({scope: _add(_NOTHING, more, shares[scope])})
            if reason is not None:
                return reason, scope
        return None

    def book_renewal(self, instance: Instance, until_at: float, shares: Shares, waiters: Sequence[Job] = ()) -> None:
        """Book the cost of a lease until ``until_at`` to the scopes of ``shares``, and to those of ``waiters``."""
        more = self._renewal_bill(instance, until_at)
        self.usd_per_h += self._renewed_usd_per_h(instance, until_at) - self._usd_per_h(instance)
        self.total = _add(self.total, more)
        self._charge(more, shares)
        parts = [size_share(job.spec.resources_on(instance.capacity), instance) for job in waiters]
        for job, part in zip(waiters, parts, strict=True):
            self.remember_awaited(job, _add(_NOTHING, more, part * _scale_to_whole(sum(parts))))
        self.renewed_until[instance.id] = until_at

    def _renewal_bill(self, instance: Instance, until_at: float) -> Bill:
        until_at = max(until_at, paid_until(instance, self.now))
        return _add(self.bill(instance.offer, until_at), self.promised(instance), -1.0)

    def _renewed_usd_per_h(self, instance: Instance, until_at: float) -> float:
        return highest_usd_per_h(instance.offer, max(until_at, self._paid_until(instance)))

    def exclude_from_renewal(self, instance: Instance) -> None:
        """Note that ``instance`` will not be renewed, so that its hourly price makes room for other renewals."""
        self.leaving_usd_per_h += self._usd_per_h(instance)

    # ---------------------------------------------------------------------------------------------------------- scopes
    def placement_refusal(self, job: Job, instance: Instance, resources: Resources) -> Reason | None:
        """Return why the limits of ``job``'s scopes do not allow ``resources`` of a live instance, or None."""
        return self._scopes_refusal(dict.fromkeys(job_scopes(job), self._held_bill(instance, resources)))

    def stay_refusal(self, instance: Instance, until_at: float, shares: Shares) -> Reason | None:
        """Return why scopes holding ``shares`` of an instance could not pay for them until ``until_at``, or None."""
        more = _add(self.bill(instance.offer, until_at), self.promised(instance), -1.0)
        return self._scopes_refusal({scope: _add(_NOTHING, more, part) for scope, part in shares.items()})

    def book_placement(self, job: Job, instance: Instance, resources: Resources) -> None:
        """Book ``resources`` of a live instance to the scopes of ``job``."""
        if self.watches_scopes:
            self._charge(self._held_bill(instance, resources), dict.fromkeys(job_scopes(job), 1.0))

    def _held_bill(self, instance: Instance, resources: Resources) -> Bill:
        return _add(_NOTHING, self.promised(instance), size_share(resources, instance))

    def remember_awaited(self, job: Job, bill: Bill) -> None:
        """Book, or book again after :meth:`forget_awaited`, what the instances that ``job`` awaits cost its scopes."""
        self._charge(bill, dict.fromkeys(job_scopes(job), 1.0))
        self.awaited[job.id] = _add(self.awaited.get(job.id, _NOTHING), bill)

    def forget_awaited(self, job: Job) -> Bill | None:
        """Undo :meth:`remember_awaited` for ``job``; return the bill, None if there was none."""
        bill = self.awaited.pop(job.id, None)
        if bill is not None:
            self._charge(bill, dict.fromkeys(job_scopes(job), -1.0))
        return bill

    def _scopes_refusal(self, wanted: Mapping[BudgetScope, Bill]) -> Reason | None:
        for scope in sorted(wanted) if self.watches_scopes else ():
            limits, booked = self.policy.budgets.for_scope(scope), self.scopes.get(scope, _NOTHING)
            reason = _limits_refusal(limits.per_day_usd, limits.per_month_usd, booked, wanted[scope], scope)
            if reason is not None:
                return reason
        return None

    def limited_scopes(self, job: Job) -> tuple[BudgetScope, ...]:
        """Return the scopes of ``job`` that have a limit."""
        limits = self.policy.budgets
        return tuple(scope for scope in job_scopes(job) if limits.for_scope(scope) != UNLIMITED)

    def _charge(self, bill: Bill, shares: Shares) -> None:
        if self.watches_scopes:
            for scope, part in shares.items():
                self.scopes[scope] = _add(self.scopes.get(scope, _NOTHING), bill, part)


def open_budget(
    snapshot: Snapshot, policy: Policy, instances: Collection[Instance], jobs: Sequence[Job]
) -> BudgetLedger:
    """Return the account of ``instances`` as held and awaited by ``jobs``, on top of the spend in ``snapshot``."""
    spend = snapshot.spend
    ledger = BudgetLedger(
        policy=policy,
        now=snapshot.now,
        day_ends_at=spend.day_ends_at or inf,
        month_ends_at=spend.month_ends_at or inf,
        watches_total=policy.budgets.per_day_usd is not None or policy.budgets.per_month_usd is not None,
        watches_scopes=any(
            limit.per_day_usd is not None or limit.per_month_usd is not None
            for limit in (*policy.budgets.per_user.values(), *policy.budgets.per_tag.values())
        ),
        total=(spend.day_usd, spend.month_usd, 0.0, 0.0),
    )
    ledger.count_live(instances)
    if ledger.watches_scopes:
        day, month = spend.by_scope_day_usd, spend.by_scope_month_usd
        for scope in sorted(day.keys() | month.keys()):
            ledger.scopes[scope] = (day.get(scope, 0.0), month.get(scope, 0.0), 0.0, 0.0)
        _attribute(ledger, {instance.id: instance for instance in instances}, jobs)
    return ledger


def _attribute(ledger: BudgetLedger, by_id: Mapping[str, Instance], jobs: Sequence[Job]) -> None:
    taken: dict[str, float] = {}
    awaited: list[tuple[Job, Instance, float]] = []
    # By running job, the instances that boot for more of its nodes, one entry per node.
    booting: dict[JobId, list[InstanceId]] = {}
    for instance in by_id.values():
        for job_id in instance.for_running if instance.state in INSTANCE_COMING else ():
            booting.setdefault(job_id, []).append(instance.id)
    for job in jobs:
        # A stopping attempt counts until its end is known. If the daemon is away by then, its units are booked for as
        # long as their instance is paid for.
        staying = job.attempt is not None and job.attempt.stop_requested_at is None
        for held in job.attempt.allocations if job.attempt is not None else ():
            host = by_id.get(held.instance_id)
            if host is None or held.released:
                continue
            ledger.book_placement(job, host, held.resources)
            if staying:
                taken[host.id] = taken.get(host.id, 0.0) + size_share(held.resources, host)
        grows = staying and job.attempt is not None and not job.attempt.over
        for instance_id in (*job.awaiting, *(booting.get(job.id, ()) if grows else ())):
            if instance_id in by_id:
                share = size_share(job.spec.resources_on(by_id[instance_id].capacity), by_id[instance_id])
                awaited.append((job, by_id[instance_id], share))
                taken[instance_id] = taken.get(instance_id, 0.0) + share
    for job, instance, share in awaited:
        part = share * _scale_to_whole(taken[instance.id])
        ledger.remember_awaited(job, _add(_NOTHING, ledger.promised(instance), part))


def job_scopes(job: Job) -> tuple[BudgetScope, ...]:
    """Return the scopes in which ``job`` counts, besides the total."""
    return scopes_of(job.spec.user, job.spec.tags)


def launch_shares(jobs: Sequence[Job], capacity: Resources) -> dict[BudgetScope, float]:
    """Return by scope the part of a new instance's cost charged for ``jobs`` (one entry per rank).

    At least 1 in sum over users; a job counts in its tags besides.
    """
    parts = [size_share(job.spec.resources_on(capacity), capacity) for job in jobs]
    scale = _scale_to_whole(sum(parts))
    shares: dict[BudgetScope, float] = {}
    for job, part in zip(jobs, parts, strict=True):
        for scope in job_scopes(job):
            shares[scope] = shares.get(scope, 0.0) + part * scale
    return shares


def cost_is_shared(ledger: BudgetLedger, offer: Offer, jobs: Sequence[Job], job: Job) -> bool:
    """Share the cost of a planned instance of ``offer`` among ``jobs`` and ``job``, which joins them; return False and
    change nothing if one of their scopes cannot pay."""
    if not ledger.watches_scopes:
        return True
    size = offer.instance_type.capacity
    return ledger.reshare(offer, launch_shares(jobs, size), launch_shares([*jobs, job], size))


def _scale_to_whole(parts: float) -> float:
    return max(1.0, 1.0 / max(parts, CENT_DUST))


def paid_until(instance: Instance, now: float) -> float:
    """Return until when ``instance`` may cost money: the end of its lease, or of its billing minimum if later."""
    if instance.state is InstanceState.TERMINATED:
        return now
    since = instance.launched_at if instance.launched_at is not None else now
    return max(instance.expires_at, since + instance.offer.billing_minimum_s)


def highest_usd_per_h(offer: Offer, until_at: float) -> float:
    """Return the highest price of an instance of ``offer`` up to ``until_at``: its commitment may end before."""
    after_usd_per_h = offer.price_after_usd_per_h if _outlasts_commitment(offer, until_at) else None
    return max(offer.price_usd_per_h, after_usd_per_h or 0.0)


def _outlasts_commitment(offer: Offer, until_at: float) -> bool:
    """Return whether an instance until ``until_at`` outlasts its commitment, and the price after that is known."""
    return offer.ends_at is not None and offer.price_after_usd_per_h is not None and offer.ends_at < until_at


def cap_reached(rule: str, what: str, present: float, more: float, limit: float) -> Reason:
    """Return the reason that ``more`` of ``what`` would exceed the policy's ``caps.max_<rule>``."""
    numbers: dict[str, Number] = {"rule": rule, "limit": limit, "present": present, "wanted": more}
    text = f"caps.max_{rule} reached: {present:g} of {limit:g} {what}, {more:g} more needed"
    return Reason(code=f"cap_{rule}", text=text, numbers=numbers)


def _limits_refusal(
    day_usd: float | None, month_usd: float | None, booked: Bill, wanted: Bill, scope: BudgetScope = TOTAL
) -> Reason | None:
    for rule, limit, before, more in zip(PERIODS, (day_usd, month_usd) * 2, booked, wanted, strict=True):
        # A decision that costs nothing in a period is not refused because that period is overdrawn already.
        if more > CENT_DUST and (reason := _limit_refusal(rule, limit, before, more, scope)) is not None:
            return reason
    return None


def _limit_refusal(
    rule: str, limit_usd: float | None, committed_usd: float, wanted_usd: float, scope: BudgetScope = TOTAL
) -> Reason | None:
    if limit_usd is None or committed_usd + wanted_usd <= limit_usd + CENT_DUST:
        return None
    show = price if rule == "per_hour" else usd
    left_usd = max(0.0, limit_usd - committed_usd)
    numbers: dict[str, Number] = {
        "rule": rule if scope == TOTAL else f"{scope.kind}_{rule}",
        "limit_usd": limit_usd,
        "committed_usd": round(committed_usd, 6),
        "wanted_usd": round(wanted_usd, 6),
        "left_usd": round(left_usd, 6),
    }
    whose = ""
    if scope != TOTAL:
        numbers["whose"], whose = str(scope), f" of {scope}"
    text = f"needs {show(wanted_usd)}; {show(left_usd)} left of the {rule} budget{whose} of {show(limit_usd)}"
    return Reason(code=f"budget_{numbers['rule']}", text=text, numbers=numbers)
