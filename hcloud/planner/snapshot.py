"""What a decision may know: a frozen, sorted picture of the world at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from math import inf

from hcloud.classifier.source_selection import SourcePrior
from hcloud.classifier.type_selection import TypePrior
from hcloud.core.estimates import Application, Classification
from hcloud.core.model import Instance, Job, JobId, Offer
from hcloud.forecast.fleet_tracker import NOTHING_RECENT, FleetStats
from hcloud.forecast.job_monitor import JobSamples
from hcloud.planner.cache import PlanCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """Money booked so far and money already promised, in USD.

    ``day_usd`` and ``month_usd`` are what live and ended instances have cost since the start of the UTC day and month;
    ``by_user_*`` the same attributed to users by what their jobs held. What live instances may still cost until they
    expire is computed by the planner from ``Instance.expires_at``.
    """

    day_usd: float = 0.0
    month_usd: float = 0.0
    day_ends_at: float = 0.0
    month_ends_at: float = 0.0
    by_user_day_usd: Mapping[str, float] = field(default_factory=dict)
    by_user_month_usd: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferBackoff:
    """An offer (or a whole provider/zone, with empty strings as wildcards) not to be tried before ``until_at``.

    ``losses``: how often in a row a spot machine of it was taken back soon after its launch, the last at ``lost_at``;
    unlike ``failures`` (to launch) they still count when another one could be launched. ``unregistered``: from how many
    launches in a row no worker came, the last given up at ``unregistered_at``; they count until one registers.
    """

    provider: str
    zone: str = ""
    instance_type: str = ""
    market: str = ""
    until_at: float
    error: str = ""
    failures: int = 1
    losses: int = 0
    lost_at: float = 0.0
    unregistered: int = 0
    unregistered_at: float = 0.0

    def covers(self, offer: Offer) -> bool:
        """Return whether this memory speaks of ``offer``."""
        return (
            self.provider == offer.provider
            and self.zone in ("", offer.zone)
            and self.instance_type in ("", offer.instance_type.name)
            and self.market in ("", offer.market.value)
        )


class DirectiveScope(StrEnum):
    """What an order names."""

    INSTANCE = "instance"
    TYPE = "type"
    PROVIDER = "provider"


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """An operator's standing order: nothing new on these machines, none more like them; or, ``destroy``, they end now.

    ``name`` is an instance's id, a pattern (``*``, ``?``) of type names, or a provider's name. By ``deadline_at`` what
    still runs there has been stopped and runs again elsewhere; None: it may run to its end.
    """

    scope: DirectiveScope
    name: str
    by: str
    ordered_at: float
    deadline_at: float | None = None
    destroy: bool = False

    def covers(self, instance: Instance) -> bool:
        """Return whether ``instance`` is meant."""
        if self.scope is DirectiveScope.INSTANCE:
            return instance.id == self.name
        return self.closes(instance.offer)

    def closes(self, offer: Offer) -> bool:
        """Return whether nothing of ``offer`` may be launched. An order about one instance closes none."""
        if self.scope is DirectiveScope.TYPE:
            return fnmatchcase(offer.instance_type.name, self.name)
        return self.scope is DirectiveScope.PROVIDER and offer.provider == self.name


def closed(orders: Sequence[Directive], offers: Sequence[Offer]) -> tuple[OfferBackoff, ...]:
    """Return what ``orders`` close among ``offers``, as back-offs that last until the orders are taken back."""
    found = {
        (offer.provider, offer.instance_type.name): order for offer in offers for order in orders if order.closes(offer)
    }
    return tuple(
        OfferBackoff(provider=provider, instance_type=name, until_at=inf, error=f"drained by {order.by}", failures=0)
        for (provider, name), order in sorted(found.items(), key=lambda each: each[0])
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """What planning failed on, each with what went wrong: nothing is decided about these ``jobs`` (but those
    that are cancelled, or have used up a budget of their own, end), and these ``stages`` of a plan are passed over."""

    jobs: Mapping[JobId, str] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything is left out."""
        return bool(self.jobs or self.stages)


NOTHING_LEFT_OUT = LeftOut()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a plan may depend on. ``jobs`` are all that have not ended, ``instances`` all not terminated, both in
    order of their number; ``offers`` sorted by key. ``reachable`` lists the instances whose worker answered just now.
    ``offers_known`` names providers whose offers were read at least once (an absent provider proves nothing).
    ``engine_reachable`` False means silence of workers says nothing about them; ``engine_reachable_since`` is when its
    present, gapless time of answering began: a worker's silence counts from then at the earliest, so that an engine
    that comes back is not taken for a fleet that died. ``providers`` names those configured (empty: not known, so
    nothing is ever called impossible).
    """

    now: float
    jobs: tuple[Job, ...] = ()
    instances: tuple[Instance, ...] = ()
    offers: tuple[Offer, ...] = ()
    spend: Spend = Spend()
    backoffs: tuple[OfferBackoff, ...] = ()
    reachable: frozenset[str] = frozenset()
    offers_known: frozenset[str] = frozenset()
    engine_reachable: bool = True
    engine_reachable_since: float = 0.0
    providers: frozenset[str] = frozenset()
    applications: Mapping[str, Classification] = field(default_factory=dict)
    """What is believed of each application that a job of this snapshot is taken for, by ``Job.application``."""
    fleet_stats: FleetStats = NOTHING_RECENT
    """What the last while has shown of queue, reserved room and machines; followed by the controller."""
    job_samples: Mapping[JobId, JobSamples] = field(default_factory=dict)
    """What running jobs have lately been measured to do; followed by the controller."""
    programs: Mapping[str, tuple[Application, ...]] = field(default_factory=dict)
    """What is known of each program, by ``Identity.program``."""
    source_prior: SourcePrior | None = None
    """How pressures go together in all that is known; None: too little is, or no job is to be profiled."""
    type_prior: TypePrior | None = None
    """How performance on machine types goes together in all that is known; None: too little is, or no job is to be
    profiled."""
    directives: tuple[Directive, ...] = ()
    """What operators ordered about machines; what that closes among the offers is among the ``backoffs``."""
    paused: str = ""
    """Not empty: nothing may be launched or placed; says why (an operator's drain)."""
    left_out: LeftOut = NOTHING_LEFT_OUT
    """What planning failed on lately; found and remembered by the controller."""
    plan_cache: PlanCache = field(default_factory=PlanCache, compare=False, repr=False)
    """What earlier plans worked out of records that are still the same; no plan depends on it."""
