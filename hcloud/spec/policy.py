"""The operator's policy: budgets, limits, and how jobs are placed, instances launched and running jobs corrected.

Field names are the keys of the YAML. The text under each field is its description in ``hcloud policy schema`` and in
``policies/example-full.yaml``. Construction validates every value, so every ``Policy`` object is valid. This module
does no I/O; ``hcloud.config`` reads the files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, field
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from hcloud.core.budget_scope import BudgetScope
from hcloud.core.estimates import SourceName
from hcloud.core.model import Market, Offer
from hcloud.core.units import Count, Flag, Name, Number, PositiveCount, PositiveSeconds, PositiveUsd, Seconds
from hcloud.spec.rule_names import RuleNames
from hcloud.spec.validation import AtKey, KeyPath, key_path, parse

_STRICT = ConfigDict(extra="forbid")
TargetKind = Literal["batch", "service", "best_effort"]
Share = Annotated[Number, Field(ge=0, le=1)]
ORDERS = RuleNames(
    plain=("least_loaded", "first_fit", "random", "largest_first"),
    classified=(
        "paragon",
        "quasar",
        "heterogeneity_oblivious",
        "interference_oblivious",
        "least_loss",
        "sampled",
        "paragon_sampled",
        "tarcil",
        "co_schedule",
    ),
    in_turns=("co_schedule",),
)
"""The placement orders; each is a file of ``hcloud/planner/placement/orders``."""
STRATEGIES = RuleNames(plain=("best_value", "sr", "odf", "odm"), classified=("hf", "hm"))
"""The provisioning strategies; see ``hcloud/planner/provisioning/strategies.py``."""
Strategy = Annotated[str, STRATEGIES]
MappingPolicy = Literal["p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8"]


def _check_order(small_name: str, small: float | None, large_name: str, large: float | None) -> None:
    if small is not None and large is not None and small > large:
        raise AtKey(small_name, f"must not be more than {large_name} ({large:g}), but is {small:g}")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ScopeBudget:
    """Budget for the jobs of one user, or with one tag."""

    per_day_usd: PositiveUsd | None = None
    """Limit per UTC day; null: none."""
    per_month_usd: PositiveUsd | None = None
    """Limit per UTC month; null: none."""

    def __post_init__(self) -> None:
        _check_order("per_day_usd", self.per_day_usd, "per_month_usd", self.per_month_usd)


UNLIMITED = ScopeBudget()


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Budgets:
    """Budgets in US dollars. An instance is launched or renewed only if its full cost until expiry fits all of them."""

    per_hour_usd: PositiveUsd | None = None
    """Limit on the price of all live instances together, per hour; null: none."""
    per_day_usd: PositiveUsd | None = None
    """Limit per UTC day; null: none."""
    per_month_usd: PositiveUsd | None = None
    """Limit per UTC month; null: none."""
    per_user: Mapping[Name, ScopeBudget] = field(default_factory=lambda: {"default": ScopeBudget()})
    """Budgets by user name. `default` applies to all other users, and to keys that a user's own entry omits."""
    per_tag: Mapping[Name, ScopeBudget] = field(default_factory=dict)
    """Budgets by tag of the jobs: `KEY=VALUE`, or `KEY` for each other value of it. A job with several such tags counts
    in all of them."""

    @model_validator(mode="before")
    @classmethod
    def _inherit_default(cls, given: Any) -> Any:
        """Copy the keys of `default` that a user's own entry omits; an explicit null removes a limit."""
        arguments = getattr(given, "kwargs", given)  # a call passes ArgsKwargs, a parsed file a mapping
        users = arguments.get("per_user") if isinstance(arguments, Mapping) else None
        common = users.get("default") if isinstance(users, Mapping) else None
        if not isinstance(users, Mapping) or not isinstance(common, Mapping):
            return given
        merged = {name: {**common, **own} if isinstance(own, Mapping) else own for name, own in users.items()}
        return {**arguments, "per_user": merged}

    def __post_init__(self) -> None:
        _check_order("per_hour_usd", self.per_hour_usd, "per_day_usd", self.per_day_usd)
        _check_order("per_hour_usd", self.per_hour_usd, "per_month_usd", self.per_month_usd)
        _check_order("per_day_usd", self.per_day_usd, "per_month_usd", self.per_month_usd)
        for tag in self.per_tag:
            key, equals, value = tag.partition("=")
            if not key or (equals and not value):
                raise AtKey("per_tag", f"names tags as KEY or KEY=VALUE, but has {tag!r}")

    def for_scope(self, scope: BudgetScope) -> ScopeBudget:
        """Return the budget that applies to a user or tag."""
        if scope.kind == "user":
            return self.per_user.get(scope.name) or self.per_user.get("default") or UNLIMITED
        return self.per_tag.get(scope.name) or self.per_tag.get(scope.name.partition("=")[0]) or UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Caps:
    """Limits on concurrent instances and jobs; null: no limit."""

    max_instances: PositiveCount = 100
    """Live instances."""
    max_vcpus: Annotated[Number, Field(gt=0)] | None = 256
    """vCPUs of all live instances together. 256 on-demand vCPUs cost 10 to 13 dollars an hour."""
    max_price_usd_per_h: PositiveUsd | None = None
    """Highest price of a single instance per hour."""
    max_instances_per_type: Mapping[Name, Count] = field(default_factory=dict)
    """Live instances by type name, for example {m5.large: 4}; 0 forbids the type."""
    max_jobs_per_user: PositiveCount | None = None
    """Jobs of one user that run at the same time; further ones wait."""
    max_queued_jobs: PositiveCount = 100_000
    """Jobs that have not ended; further submissions are refused."""
    max_queued_jobs_per_user: PositiveCount | None = 50_000
    """Jobs of one user that have not ended; null: as many as of all users."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Allow:
    """What may be launched; null: everything that the configured providers offer."""

    providers: tuple[Name, ...] | None = None
    """Provider names; * and ? are wildcards."""
    regions: tuple[Name, ...] | None = None
    """Regions; * and ? are wildcards."""
    zones: tuple[Name, ...] | None = None
    """Zones; * and ? are wildcards."""
    instance_types: tuple[Name, ...] | None = None
    """Instance type names; * and ? are wildcards, for example [m5.*, c5.large]."""
    markets: tuple[Market, ...] = (Market.RESERVED, Market.ON_DEMAND, Market.SPOT)
    """Markets: reserved, on_demand, spot."""

    def __post_init__(self) -> None:
        for name in ("providers", "regions", "zones", "instance_types", "markets"):
            if getattr(self, name) == ():
                meaning = "name at least one market" if name == "markets" else "write null to allow all"
                raise AtKey(name, f"is empty, so nothing could ever be launched; {meaning}")

    def refusal(self, offer: Offer) -> str | None:
        """Return why ``offer`` is not allowed, naming the key, or None if it is allowed."""
        rules = (
            ("providers", self.providers, offer.provider),
            ("regions", self.regions, offer.region),
            ("zones", self.zones, offer.zone),
            ("instance_types", self.instance_types, offer.instance_type.name),
            ("markets", self.markets, offer.market.value),
        )
        for name, patterns, value in rules:
            if patterns is not None and not any(fnmatchcase(value, pattern) for pattern in patterns):
                return f"allow.{name} does not include {value}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class SpotPolicy:
    """Use of spot instances, which the provider may reclaim at short notice."""

    for_targets: tuple[TargetKind, ...] = ("best_effort", "batch")
    """Kinds of target that may run on spot instances: batch, service, best_effort."""
    only_interruptible: Flag = True
    """Run only interruptible jobs on spot instances."""
    most_losses: Count = 3
    """A job that lost this many spot instances while it ran is placed on other markets, if they offer a suitable
    instance; 0: never."""
    quick_loss_s: PositiveSeconds = 600.0
    """A spot instance that is reclaimed within this time of its launch counts as a quick loss."""
    quick_losses: Count = 2
    """After this many quick losses in a row, each of an instance launched after the previous loss, an offer is backed
    off as after a stockout; 0: it is tried again at once."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class RetentionPolicy:
    """How long idle instances are kept for the next job: for as long as it pays, or a multiple of their type's boot
    time (HCloud §8.3)."""

    learn: bool = True
    """Keep an idle instance for as long as it pays on average, by how soon others of its type were needed again. false,
    and while none was seen: for as long as `spin_up_multiple` says."""
    spin_up_multiple: Annotated[Number, Field(ge=0, le=10_000)] = 1.0
    """Keep an idle instance for this many times its boot time; with `learn`, avoiding a boot is worth so much idle
    time."""
    minimum_s: Seconds = 0.0
    """Keep it at least this long."""
    maximum_s: Seconds = 3600.0
    """Keep it at most this long."""
    drain: bool = True
    """A job is not placed on a rented instance that it would keep up at a higher cost than that of its own."""

    def __post_init__(self) -> None:
        if self.minimum_s > self.maximum_s:
            raise AtKey("minimum_s", f"must not be more than maximum_s ({self.maximum_s:g}), but is {self.minimum_s:g}")

    def keep_idle_s(self, spin_up_s: float) -> float:
        """Return how long to keep an idle instance of a type that boots in ``spin_up_s``."""
        return self.within_limits_s(self.spin_up_multiple * spin_up_s)

    def within_limits_s(self, keep_s: float) -> float:
        """Return the time within these limits that is nearest to ``keep_s``."""
        return min(max(keep_s, self.minimum_s), self.maximum_s)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class LeasePolicy:
    """Leases of instances. An instance powers itself off when its lease expires, even if the daemon is down."""

    horizon_s: PositiveSeconds = 3600.0
    """Duration of a lease, from launch or renewal."""
    renew_before_s: PositiveSeconds = 900.0
    """Renew a lease when less than this is left."""

    def __post_init__(self) -> None:
        if self.renew_before_s >= self.horizon_s:
            why = "or leases would be renewed in every cycle"
            raise AtKey(
                "renew_before_s",
                f"must be less than horizon_s ({self.horizon_s:g}), {why}; it is {self.renew_before_s:g}",
                otherwise=(
                    "horizon_s",
                    f"must be more than renew_before_s ({self.renew_before_s:g}), {why}; it is {self.horizon_s:g}",
                ),
            )


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class BootPolicy:
    """When a booting instance counts as failed."""

    timeout_s: PositiveSeconds = 600.0
    """If the worker has not registered this long after launch, the instance is terminated and its type backed off."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class UnreachablePolicy:
    """When an instance that does not respond counts as failed."""

    terminate_after_s: PositiveSeconds = 120.0
    """Terminate an instance after this long without contact; its jobs are requeued once it is confirmed gone."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class StockoutPolicy:
    """Back-off of an offer after a failed launch, doubled with each failure in a row."""

    backoff_s: PositiveSeconds = 60.0
    """Back-off after the first failure."""
    backoff_cap_s: PositiveSeconds = 1800.0
    """Longest back-off."""

    def __post_init__(self) -> None:
        if self.backoff_cap_s < self.backoff_s:
            raise AtKey(
                "backoff_cap_s", f"must be at least backoff_s ({self.backoff_s:g}), but is {self.backoff_cap_s:g}"
            )

    def backoff_after_s(self, failures: int) -> float:
        """Return the back-off after ``failures`` (from 1) failures in a row."""
        return float(min(self.backoff_s * 2.0 ** min(failures - 1, 60), self.backoff_cap_s))


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class DisruptionPolicy:
    """How much running jobs and instances may be disturbed."""

    max_terminations_per_cycle: PositiveCount = 10
    """Instances terminated in one planning cycle."""
    evict_best_effort: Flag = True
    """Evict best-effort jobs, and ranks that jobs do not need (`nodes: 1..8`), to make room for jobs with a target."""
    optional_ranks_rest_s: PositiveSeconds = 600.0
    """Ranks that their job does not need and that alone keep a rented instance are stopped after they have run so
    long."""
    move_gap_s: Seconds = 30.0
    """Assumed interruption of a moved job, in addition to the work it loses."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ProvisioningPolicy:
    """Which instances are launched for jobs that the running ones cannot serve (HCloud §8.3-8.4)."""

    strategy: Strategy = "hm"
    """best_value: the cheapest suitable offers, reserved first. sr: reserved instances only. odf, odm: on-demand and
    spot only, full servers or any size. hf, hm: reserved for demanding jobs, rented ones for the rest, full servers or
    any size; without reserved instances, the best value of these."""
    mapping: MappingPolicy = "p8"
    """With hf and hm: which jobs are mapped to reserved instances. p8: by dynamic limits and delivered quality. For
    comparison: p1 at random; p2, p3, p4 jobs that need a quality above 0.8, 0.5, 0.2; p5, p6, p7 all jobs until the
    reserved instances are 50, 70, 90 % full."""
    full_server_vcpus: Annotated[Number, Field(gt=0)] = 16.0
    """Instances with at least this many vCPUs are full servers. If a provider has none, its largest types are."""
    soft_limit: Share = 0.95
    """With p8: below this utilisation of the reserved vCPUs all jobs go there. Initial value of the soft limit."""
    soft_limit_minimum: Share = 0.3
    """Lowest value of the soft limit."""
    soft_limit_fall_per_job: Annotated[Number, Field(ge=0, le=1)] = 0.01
    """Decrease of the soft limit for each job by which the queue grew within `queue_window_s`."""
    soft_limit_rise_per_min: Annotated[Number, Field(ge=0, le=1)] = 0.01
    """Increase of the soft limit for each minute without queued jobs, up to the hard limit."""
    hard_limit: Share = 1.0
    """With p8: above this utilisation of the reserved vCPUs, jobs queue for them or use on-demand instances."""
    queue_window_s: PositiveSeconds = 300.0
    """Window over which the growth of the queue is measured."""
    wait_quantile: Annotated[Number, Field(gt=0, lt=1)] = 0.99
    """The expected wait for reserved capacity is this quantile of the recent times between releases."""
    assumed_quality_batch: Share = 0.5
    """Assumed quality target of unclassified batch jobs. Best-effort jobs have none."""
    assumed_quality_service: Share = 0.9
    """Assumed quality target of unclassified services."""
    unmeasured_quality_small: Share = 0.95
    """Assumed quality of the smallest instances before any was measured; sizes in between are interpolated. Unknown is
    not bad: the first instances of a type are tried and measured."""
    unmeasured_quality_full: Share = 0.95
    """Assumed quality of full servers before any was measured."""
    keep_for_dearer: Share = 0.5
    """Keep reserved and other non-preemptible capacity free of jobs that can rent a vCPU for less than this fraction of
    what it costs the jobs that need such capacity. 0: never."""
    keep_for_quiet: Annotated[Number, Field(ge=0, le=100)] = 0.0
    """While instances are rented, keep reserved capacity free of jobs with a pressure on a shared resource above this
    many times their share of the instance's vCPUs: the vCPUs next to them are of little use. 0: never."""

    def __post_init__(self) -> None:
        _check_order("soft_limit_minimum", self.soft_limit_minimum, "soft_limit", self.soft_limit)
        _check_order("soft_limit", self.soft_limit, "hard_limit", self.hard_limit)
        _check_order(
            "unmeasured_quality_small",
            self.unmeasured_quality_small,
            "unmeasured_quality_full",
            self.unmeasured_quality_full,
        )


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class PlacementPolicy:
    """Which of the instances with free capacity a job is placed on. Unclassified jobs go to the least loaded one."""

    order: Annotated[str, ORDERS] = "quasar"
    """least_loaded: lowest vCPU utilisation; first_fit: lowest instance number; random: any; largest_first: most
    vCPUs; paragon: no interference with neighbours, then best type, then tightest fit; quasar: paragon with the fewest
    vCPUs and nodes that meet the target; heterogeneity_oblivious: paragon without the type; interference_oblivious:
    best type only; least_loss: the smallest expected loss of performance of the job and its neighbours; sampled: the
    same among a few drawn at random; paragon_sampled: paragon among a few; tarcil: sampled from the types and quality
    that match, or a short wait; co_schedule: where it and its neighbours are done soonest, for batches whose run times
    are known (ESP).
    """
    sampled_quantile: Annotated[Number, Field(ge=0.5, le=0.99)] = 0.9
    """With `order: sampled` or `tarcil`: a job is to get one of the best, better than this fraction of those that are
    drawn from; in one of 20 placements it is worse. At most 32 are drawn. `paragon_sampled`: 1 in 1,000, 128."""
    confidence: Annotated[Number, Field(ge=0.5, le=0.999)] = 0.9
    """Required probability that a placement meets the job's target, and that a job which passes another with reserved
    room ends before the reserved start (0.5..0.999)."""
    neighbour_confidence: Annotated[Number, Field(ge=0.5, le=0.999)] = 0.5
    """Required probability that neighbours stay within each other's tolerated pressure (0.5..0.999). 0.5 compares the
    plain estimates; higher values pack instances less densely and rent more of them."""
    tolerance: Annotated[Number, Field(gt=0, lt=1)] = 0.05
    """Fraction of its best performance that a job without a target may lose."""
    neighbour_tolerance: Annotated[Number, Field(gt=0, lt=1)] = 0.2
    """Fraction of its performance that neighbours may cost a job. Lower values leave paid capacity unused; what a
    target cannot spare, corrections give back."""
    neighbours: Literal["pressures", "observed"] = "pressures"
    """Predict what neighbours cost from pressures on shared resources; observed: where programs were observed together,
    from that (ESP)."""
    pause_step_s: Seconds = 0.0
    """With `order: co_schedule`: jobs without a deadline that share a machine take turns where all are then expected to
    be done sooner; each turn lasts at least so long, and the others are paused. 0: none is paused."""
    services_apart: bool | None = None
    """Services share no machine while one of their own size can be launched; one whose size is still to be found may.
    null: true if `order` considers interference. Neighbours rarely cost a service its rate, but often its latency."""
    work_cells: PositiveCount = 20_000_000
    """Limit of comparisons (instances times resources) per job; then the search takes the best one so far."""

    def __post_init__(self) -> None:
        if self.pause_step_s > 0.0 and not ORDERS.takes_turns(self.order):
            orders = " or ".join(order for order in ORDERS if ORDERS.takes_turns(order))
            raise AtKey(
                "pause_step_s",
                f"needs order: {orders}; with {self.order} no job is paused for another",
                otherwise=("order", f"must be {orders} with pause_step_s ({self.pause_step_s:g}), or that must be 0"),
            )
        if self.pause_step_s > 0.0 and self.neighbours != "observed":
            raise AtKey("pause_step_s", "needs neighbours: observed; only jobs that were observed together are paused")


def _check_fair_share(text: str) -> str:
    if not re.fullmatch(r"none|user|tag:[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", text):
        raise ValueError(f"must be none, user, or tag:KEY such as tag:team, not {text!r}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class AdmissionPolicy:
    """The order of the queue, and how long a job waits for an instance of suitable quality (ARQ)."""

    queues: Literal["one", "by_quality", "planned"] = "planned"
    """one: a single queue; by_quality: one queue per class of quality target, so that none blocks another; planned: the
    same, and jobs with a deadline or of best effort wait for room that is paid already while their deadline allows."""
    deadline_worth: Annotated[Number, Field(ge=1, le=1000)] = 20.0
    """With planned: what keeping a deadline is worth, as a multiple of the job's cost on a machine of its own."""
    classes: Annotated[int, Field(ge=1, le=100, strict=True)] = 10
    """Number of classes with by_quality."""
    order: Literal["priority", "shortest"] = "priority"
    """Among jobs of one priority and class: the oldest first, or by expected run time. Those that waited longer than
    their patience come before others of their priority."""
    fair_share: Annotated[str, AfterValidator(_check_fair_share)] = "none"
    """Among jobs of one priority, those of owners with less recent use go first, also before those whose patience is
    over: none, user, or tag:KEY (of teams, say)."""
    fair_share_half_life_s: PositiveSeconds = 604_800.0
    """After this time, half of what was used is forgotten."""
    tolerance: Annotated[Number, Field(gt=0, le=10)] = 0.05
    """A job waits for a suitable instance for up to this fraction of its expected run time."""
    patience_s: Seconds = 60.0
    """Patience of jobs with unknown run time."""
    patience_cap_s: Seconds = 600.0
    """Upper limit of any job's patience."""

    @property
    def by_class(self) -> bool:
        """Whether there is a queue per class of quality target."""
        return self.queues != "one"

    @property
    def fair_share_tag(self) -> str | None:
        """The key of the tag that fair share counts by; None: by user, or there is none."""
        kind, _, key = self.fair_share.partition(":")
        return key if kind == "tag" else None


CorrectionStep = Literal["repin", "reprofile", "reclassify", "resize", "squeeze", "evict", "nodes", "move"]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class CorrectionPolicy:
    """Corrective steps for running jobs that miss their target or behave unexpectedly (Quasar §4.4)."""

    steps: tuple[CorrectionStep, ...] = (
        "repin",
        "reprofile",
        "reclassify",
        "resize",
        "squeeze",
        "evict",
        "nodes",
        "move",
    )
    """Allowed steps, always tried in this order: pin the job to better CPUs of its instance, profile a copy again,
    update the classification from measurements, give the job more of its instances, squeeze best-effort neighbours onto
    fewer CPUs, evict them, add missing nodes, move it. Empty: none."""
    margin: Annotated[Number, Field(gt=0, lt=1)] = 0.1
    """A target is missed if performance is below it by at least this fraction; a latency, if it is surely not kept."""
    confidence: Annotated[Number, Field(ge=0.9, le=0.999999)] = 0.999
    """Required confidence that a target is missed, from the spread of the readings."""
    readings: Annotated[int, Field(ge=3, le=60, strict=True)] = 6
    """Required number of readings since the start or the last correction; of a latency, half as many."""
    settle_s: PositiveSeconds = 30.0
    """Time after a start or a correction in which a job is not judged."""
    gain: Annotated[Number, Field(ge=1, le=1000)] = 1.5
    """A step must be expected to save at least this many times its cost."""
    promise_worth: Annotated[Number, Field(ge=1, le=1000)] = 10.0
    """Weight of the work of jobs with a target, relative to best-effort jobs."""
    resize_limit: Annotated[Number, Field(ge=1, le=64)] = 2.0
    """A job is resized to at most this many times its requested vCPUs, or to its resources.vcpus_max."""
    busy_share: Annotated[Number, Field(gt=0, le=1)] = 0.9
    """A job that uses at least this fraction of its vCPUs is assumed to benefit from more."""
    max_steps_per_attempt: PositiveCount = 8
    """Limit of corrections in one attempt."""
    max_moves_per_job: PositiveCount = 2
    """Limit of moves of one job."""
    avoid_s: Seconds = 900.0
    """Time in which a moved job is not placed on the instance that it left."""
    max_per_cycle: PositiveCount = 2
    """Limit of jobs corrected in one planning cycle."""
    sample_share: Share = 0.2
    """Fraction of the long-running jobs that is checked for a change of phase in each period."""
    sample_every_s: PositiveSeconds = 600.0
    """Period of these checks."""
    long_running_s: PositiveSeconds = 600.0
    """Jobs that have run at least this long are long-running."""
    straggler_below: Annotated[Number, Field(gt=0, lt=1)] = 0.5
    """A rank of an incremental job is a straggler below this fraction of the median pace. A job is one below this
    fraction of its expected performance, if no other job of its application is slow, or if a copy that was profiled
    since on another instance type was not slow."""
    max_relaunches_per_attempt: Count = 1
    """Limit of stragglers relaunched on another instance in one attempt."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class TimingPolicy:
    """How often running jobs are sampled."""

    sample_every_s: PositiveSeconds = 10.0
    """Sampling period of CPU, memory, progress, request rate and latency of running jobs."""
    steady_share: Share = 0.5
    """While a job behaves steadily, the next sample is recorded after this fraction of the steady time so far; 0: every
    sample is recorded."""
    steady_every_s: PositiveSeconds = 120.0
    """Longest time between recorded samples of a steady job; longer in large fleets (`steady_per_s`)."""
    steady_per_s: PositiveCount = 20
    """Limit of recorded samples of steady jobs per second, on average. With more than `steady_every_s` times as many
    ranks (2,400 by default) each is recorded less often, but at least every five minutes."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ProfilingPolicy:
    """Short runs of unknown jobs on separate instances, to classify them (Paragon §2.2)."""

    when: Literal["beside", "before", "never"] | None = None
    """beside: an unknown job starts at once, and copies of it are profiled once that is worth its price; before: it
    starts after its profiling; never. null: beside if the policy uses classifications (placement.order paragon, quasar,
    least_loss or an oblivious one, admission.queues by_quality, provisioning.strategy hf or hm), else never."""
    expected_saving: Annotated[Number, Field(gt=0, le=1)] = 0.05
    """With `when: beside`: a program is profiled once this fraction of what its jobs are expected to cost from now on
    exceeds the cost of profiling it."""
    expected_saving_sized: Annotated[Number, Field(gt=0, le=1)] = 1.0
    """The same for jobs with a range of vCPUs (`vcpus_min`, `vcpus_max`), whose size knowledge improves. Once a job of
    the program has run to its end, half of either counts, as that run has shown what it uses."""
    for_targets: tuple[TargetKind, ...] = ("batch", "service")
    """Kinds of target that are profiled: batch, service, best_effort."""
    max_concurrent: PositiveCount = 4
    """Jobs profiled at the same time; each uses up to `types` + 1 instances."""
    max_usd_per_job: PositiveUsd | None = 0.25
    """Limit of the cost of profiling one job; null: none."""
    max_share_of_budget: Annotated[Number, Field(gt=0, le=1)] = 0.01
    """Limit of the cost of profiling one job, as a fraction of budgets.per_day_usd if that is set."""
    max_share_of_slack: Annotated[Number, Field(gt=0, le=1)] = 0.1
    """Limit of the duration of profiling, as a fraction of the time from submission to the deadline."""
    run_s: PositiveSeconds = 5.0
    """Duration of each copy of the job."""
    total_s: PositiveSeconds = 120.0
    """Longest duration of a profiling run; it keeps the measurements made so far."""
    warm_up_s: Seconds = 30.0
    """Warm-up time before a stateful job is measured; 0: stateful jobs are not profiled."""
    skip_if_shorter_than_s: Seconds = 60.0
    """Jobs known to run shorter than this are not profiled, as it would cost more than it gains (Paragon §3.5)."""
    patience_s: PositiveSeconds = 300.0
    """A job that waited this long for its profiling to start or to end is scheduled without it; copies to be profiled
    beside it that found no room for so long are given up."""
    types: PositiveCount = 2
    """Number of instance types on which each job is measured; more types improve the estimates and cost more runs."""
    instance_types: tuple[Name, ...] = ("*",)
    """Types to profile on; * and ? are wildcards. The most informative combination of idle instances is preferred,
    then the cheapest; the first one has `spare_vcpus` to spare."""
    spare_vcpus: Annotated[Number, Field(ge=0, le=1024)] = 1.0
    """Spare vCPUs on the first instance, for the interference source and the profiler."""
    fruitless_runs: PositiveCount = 3
    """A program is not profiled again after this many runs without a result."""
    sources: Annotated[tuple[SourceName, ...], Field(max_length=16)] | None = None
    """Interference sources to measure every job with; []: none. null: the two most informative ones on each of two
    instances."""

    def __post_init__(self) -> None:
        _check_order("run_s", self.run_s, "total_s", self.total_s)
        for name in ("for_targets", "instance_types"):
            if getattr(self, name) == ():
                raise AtKey(name, "is empty, so nothing would ever be profiled; write when: never for that")
        if self.sources is not None and len(set(self.sources)) != len(self.sources):
            raise AtKey("sources", "names one source twice; each must appear once")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Policy:
    """What the operator allows and prefers. Every key is optional; the defaults are safe."""

    name: Name = "default"
    """Shown in status, reports and reasons."""
    budgets: Budgets = Budgets()
    """Budgets in US dollars."""
    caps: Caps = Caps()
    """Limits on concurrent instances and jobs."""
    allow: Allow = Allow()
    """What may be launched."""
    spot: SpotPolicy = SpotPolicy()
    """Use of spot instances, which the provider may reclaim at short notice."""
    retention: RetentionPolicy = RetentionPolicy()
    """How long idle instances are kept."""
    lease: LeasePolicy = LeasePolicy()
    """Leases of instances."""
    boot: BootPolicy = BootPolicy()
    """When a booting instance counts as failed."""
    unreachable: UnreachablePolicy = UnreachablePolicy()
    """When an instance that does not respond counts as failed."""
    stockout: StockoutPolicy = StockoutPolicy()
    """Back-off of an offer after a failed launch."""
    disruption: DisruptionPolicy = DisruptionPolicy()
    """How much running jobs and instances may be disturbed."""
    admission: AdmissionPolicy = AdmissionPolicy()
    """The order of the queue, and how long jobs wait for a suitable instance."""
    provisioning: ProvisioningPolicy = ProvisioningPolicy()
    """Which instances are launched for jobs that the running ones cannot serve."""
    placement: PlacementPolicy = PlacementPolicy()
    """Which of the instances with free capacity a job is placed on."""
    profiling: ProfilingPolicy = ProfilingPolicy()
    """Profiling of unknown jobs."""
    correction: CorrectionPolicy = CorrectionPolicy()
    """Corrective steps for running jobs that miss their target."""
    timing: TimingPolicy = TimingPolicy()
    """How often running jobs are sampled."""

    def __post_init__(self) -> None:
        if self.boot.timeout_s > self.lease.horizon_s:
            horizon_s, timeout_s = self.lease.horizon_s, self.boot.timeout_s
            why = "or the lease would expire before the boot timeout"
            raise AtKey(
                "boot.timeout_s",
                f"must not be more than lease.horizon_s ({horizon_s:g}), {why}; it is {timeout_s:g}",
                otherwise=(
                    "lease.horizon_s",
                    f"must be at least boot.timeout_s ({timeout_s:g}), {why}; it is {horizon_s:g}",
                ),
            )
        if self.placement.pause_step_s > 0.0 and self.profiling.when == "never":
            why = "or nothing is learnt of which programs slow each other"
            raise AtKey(
                "placement.pause_step_s",
                f"must be 0 with profiling.when: never, {why}",
                otherwise=("profiling.when", f"must not be never with placement.pause_step_s, {why}"),
            )

    @property
    def profiles_jobs(self) -> bool:
        """Whether unknown jobs are profiled."""
        return self.profiles_when != "never"

    @property
    def profiles_when(self) -> Literal["beside", "before", "never"]:
        """When unknown jobs are profiled, with null resolved: beside them if the policy uses classifications."""
        if self.profiling.when is not None:
            return self.profiling.when
        return "beside" if self.uses_classifications else "never"

    @property
    def uses_classifications(self) -> bool:
        """Whether placement, queues or the strategy depend on what is known about applications."""
        order = ORDERS.uses_classifications(self.placement.order)
        strategy = STRATEGIES.uses_classifications(self.provisioning.strategy)
        return order or strategy or self.admission.by_class

    @property
    def digest(self) -> str:
        """16 hex digits of SHA-256 of the values, the same for any spelling of the same policy."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def simple_policy(**sections: Any) -> Policy:
    """Return the rules of ``policies/simple.yaml``: one queue, least loaded, the cheapest offer, nothing profiled.

    ``sections`` replace its own, as in ``Policy(...)``.
    """
    simple: dict[str, Any] = {
        "name": "simple",
        "admission": AdmissionPolicy(queues="one"),
        "provisioning": ProvisioningPolicy(strategy="best_value"),
        "placement": PlacementPolicy(order="least_loaded"),
        "profiling": ProfilingPolicy(when="never"),
        "retention": RetentionPolicy(learn=False),
    }
    return Policy(**(simple | sections))


def parse_policy(mapping: object, *, locate: Callable[[KeyPath], str] = key_path) -> Policy:
    """Return the policy in ``mapping`` (keys as in the YAML); missing keys have their defaults.

    ``locate`` turns a key path into the ``where`` of an error.

    Raises:
        ConfigError: an unknown key, a value of the wrong type, or values that contradict each other.
    """
    return parse(Policy, mapping, locate)
