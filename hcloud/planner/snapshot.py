"""The input of a decision: a frozen, sorted picture of jobs, instances, offers and estimates at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from math import inf

from hcloud.classifier.slowdown.forecasts import NOTHING_OBSERVED, SlowdownForecasts
from hcloud.classifier.source_selection import SourcePrior
from hcloud.classifier.type_selection import TypePrior
from hcloud.core.budget_scope import BudgetScope
from hcloud.core.estimates import Application, Classification
from hcloud.core.model import Instance, Job, JobId, Offer
from hcloud.core.schedules import ScheduledRun
from hcloud.forecast.fleet_tracker import NOTHING_RECENT, FleetStats
from hcloud.forecast.job_monitor import JobSamples
from hcloud.planner.cache import PlanCache
from hcloud.planner.run_times import NO_RUN_TIMES, RunTimeForecasts


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """Money booked so far in USD. What live instances may still cost until they expire is computed by the planner."""

    day_usd: float = 0.0
    """Cost of live and ended instances since the start of the UTC day."""
    month_usd: float = 0.0
    """The same since the start of the UTC month."""
    day_ends_at: float = 0.0
    month_ends_at: float = 0.0
    by_scope_day_usd: Mapping[BudgetScope, float] = field(default_factory=dict)
    """``day_usd`` attributed to users, and to tags with a budget, by the resources their jobs held."""
    by_scope_month_usd: Mapping[BudgetScope, float] = field(default_factory=dict)
    """``month_usd`` attributed in the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferBackoff:
    """An offer, or all offers of a provider or zone (empty strings are wildcards), not to be launched before
    ``until_at``."""

    provider: str
    zone: str = ""
    instance_type: str = ""
    market: str = ""
    until_at: float
    error: str = ""
    """Error message of the last failed launch."""
    failures: int = 1
    """Failed launches in a row."""
    losses: int = 0
    """Spot instances in a row that were preempted soon after launch. Unlike ``failures``, a successful launch does not
    reset the count."""
    lost_at: float = 0.0
    """Time of the last such loss."""
    unregistered: int = 0
    """Launches in a row from which no worker registered; reset when one registers."""
    unregistered_at: float = 0.0
    """When the last of these was given up."""

    @property
    def stops_provider(self) -> bool:
        """Whether it applies to all offers of its provider."""
        return not (self.zone or self.instance_type or self.market)

    def covers(self, offer: Offer) -> bool:
        """Return whether the back-off applies to ``offer``."""
        return (
            self.provider == offer.provider
            and self.zone in ("", offer.zone)
            and self.instance_type in ("", offer.instance_type.name)
            and self.market in ("", offer.market.value)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaBackoff(OfferBackoff):
    """The back-off of all offers that count against one account limit; derived from a :class:`RefusedQuota`."""

    region: str
    quota: str

    @property
    def stops_provider(self) -> bool:
        """Return False: other offers of the provider count against other limits."""
        return False

    def covers(self, offer: Offer) -> bool:
        """Return whether ``offer`` counts against the limit."""
        return offer.quota_key == (self.provider, self.region, self.quota)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedQuota:
    """An account limit on vCPUs, as shown by a launch that exceeded it."""

    provider: str
    region: str
    quota: str
    """Its name; provider, region and name are those of ``Offer.quota_key``."""
    vcpus: float
    """How many vCPUs were too many, those of the refused instance included."""
    instance_vcpus: float
    """How many of these the refused instance has."""
    until_at: float
    """When ``vcpus`` is forgotten."""
    periods: int = 1
    """How many times in a row a refusal was remembered until then."""
    retry_at: float = 0.0
    """Nothing that counts against the limit is launched before then, however small."""
    failures: int = 1
    """Refused launches in a row."""
    error: str = ""
    """Error message of the last one."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Identify the limit: provider, region, name."""
        return (self.provider, self.region, self.quota)

    @property
    def backoff(self) -> QuotaBackoff:
        """The back-off of its offers until ``retry_at``."""
        return QuotaBackoff(
            provider=self.provider,
            region=self.region,
            quota=self.quota,
            until_at=self.retry_at,
            error=self.error,
            failures=self.failures,
        )


class DirectiveScope(StrEnum):
    """What the name of a directive refers to."""

    INSTANCE = "instance"
    TYPE = "type"
    PROVIDER = "provider"


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """An operator's standing order to drain instances and launch no more like them, or to destroy them."""

    scope: DirectiveScope
    name: str
    """Instance id, pattern (``*``, ``?``) of type names, or provider name, according to ``scope``."""
    by: str
    """The operator who gave the order."""
    ordered_at: float
    deadline_at: float | None = None
    """When units still running there are stopped, to run elsewhere; None: they may finish."""
    destroy: bool = False
    """Terminate the instances now."""

    def covers(self, instance: Instance) -> bool:
        """Return whether the directive applies to ``instance``."""
        if self.scope is DirectiveScope.INSTANCE:
            return instance.id == self.name
        return self.closes(instance.offer)

    def closes(self, offer: Offer) -> bool:
        """Return whether no instance of ``offer`` may be launched. A directive about one instance blocks no offer."""
        if self.scope is DirectiveScope.TYPE:
            return fnmatchcase(offer.instance_type.name, self.name)
        return self.scope is DirectiveScope.PROVIDER and offer.provider == self.name


def closed(orders: Sequence[Directive], offers: Sequence[Offer]) -> tuple[OfferBackoff, ...]:
    """Return the ``offers`` that ``orders`` block, as back-offs that last until the orders are withdrawn."""
    blocked = {
        (offer.provider, offer.instance_type.name): order for offer in offers for order in orders if order.closes(offer)
    }
    return tuple(
        OfferBackoff(provider=provider, instance_type=name, until_at=inf, error=f"drained by {order.by}", failures=0)
        for (provider, name), order in sorted(blocked.items(), key=lambda each: each[0])
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Jobs and stages excluded from planning because planning them failed, each with its error message."""

    jobs: Mapping[JobId, str] = field(default_factory=dict)
    """Jobs about which nothing is decided; cancelled jobs and jobs over their own budget still end."""
    stages: Mapping[str, str] = field(default_factory=dict)
    """Stages of the plan that are skipped."""

    def __bool__(self) -> bool:
        return bool(self.jobs or self.stages)


NOTHING_LEFT_OUT = LeftOut()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a plan may depend on. Rows are sorted: jobs and instances by number, offers by key."""

    now: float
    jobs: tuple[Job, ...] = ()
    """All jobs that have not ended, the tasks of arrays that have a row among them."""
    arrays: tuple[Job, ...] = ()
    """Admitted arrays that have not ended: their tasks are planned, not they."""
    instances: tuple[Instance, ...] = ()
    """All instances that are not terminated."""
    offers: tuple[Offer, ...] = ()
    spend: Spend = Spend()
    backoffs: tuple[OfferBackoff, ...] = ()
    refused_quotas: tuple[RefusedQuota, ...] = ()
    """Account limits that refusals showed; those that forbid any launch for now are among ``backoffs``."""
    reachable: frozenset[str] = frozenset()
    """Ids of the instances with a worker that answered just now."""
    offers_known: frozenset[str] = frozenset()
    """Providers whose offers were read at least once; the absence of any other provider proves nothing."""
    engine_reachable: bool = True
    """Whether the engine answers. While it does not, the silence of a worker means nothing."""
    engine_reachable_since: float = 0.0
    """Since when the engine has answered without interruption. A worker's silence counts from then at the earliest, so
    that an engine restart is not taken for the loss of the fleet."""
    providers: frozenset[str] = frozenset()
    """Names of the configured providers; empty: not known, so no job is called impossible."""
    applications: Mapping[str, Classification] = field(default_factory=dict)
    """Estimates of each application that a job of this snapshot is assigned to, by ``Job.application``."""
    fleet_stats: FleetStats = NOTHING_RECENT
    """Recent statistics of queue, reserved capacity and instances; maintained by the controller."""
    job_samples: Mapping[JobId, JobSamples] = field(default_factory=dict)
    """Recent samples of running jobs; maintained by the controller."""
    programs: Mapping[str, tuple[Application, ...]] = field(default_factory=dict)
    """The known applications of each program, by ``Identity.program``."""
    source_prior: SourcePrior | None = None
    """Correlation of pressures across all known applications; None: too little is known, or no job is to be
    profiled."""
    type_prior: TypePrior | None = None
    """Correlation of performance across instance types; None: too little is known, or no job is to be profiled."""
    run_times: RunTimeForecasts = NO_RUN_TIMES
    """How long jobs will run, learnt from those that ended."""
    slowdowns: SlowdownForecasts = NOTHING_OBSERVED
    """What neighbours cost applications that were observed together."""
    usage_usd: Mapping[str, float] = field(default_factory=dict)
    """What users, or values of the tag of ``admission.fair_share``, used lately; maintained by the controller."""
    directives: tuple[Directive, ...] = ()
    """Standing orders of operators; the offers they block are among ``backoffs``."""
    scheduled: tuple[ScheduledRun, ...] = ()
    """The next runs of schedules, as far ahead as retention may last."""
    paused: str = ""
    """Not empty: the reason why nothing may be launched or placed (an operator's drain)."""
    left_out: LeftOut = NOTHING_LEFT_OUT
    """Jobs and stages on which planning failed lately; maintained by the controller."""
    unreadable_secrets: Mapping[JobId, str] = field(default_factory=dict)
    """Jobs of which a secret cannot be decrypted now, each with the reason: they neither start nor leave a machine."""
    plan_cache: PlanCache = field(default_factory=PlanCache, compare=False, repr=False)
    """Results of earlier plans for rows that have not changed; never changes a plan."""
