"""The operator's policy: what may be spent, rented, kept and disturbed. Pure; files are read by ``hcloud.config``.

Every field has a unit in its name, a safe default and one line of meaning; they feed ``hcloud policy schema``. Python
names are the keys of the YAML. Construction checks every value, so a ``Policy`` that exists is a valid one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, field
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from hcloud.core.estimates import SourceName
from hcloud.core.model import Market, Offer
from hcloud.core.units import Count, Flag, Name, Number, PositiveCount, PositiveSeconds, PositiveUsd, Seconds
from hcloud.spec.validation import AtKey, KeyPath, key_path, parse

_STRICT = ConfigDict(extra="forbid")
TargetKind = Literal["batch", "service", "best_effort"]
Share = Annotated[Number, Field(ge=0, le=1)]
Strategy = Literal["best_value", "sr", "odf", "odm", "hf", "hm"]
MappingPolicy = Literal["p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8"]


def _check_order(small_name: str, small: float | None, large_name: str, large: float | None) -> None:
    if small is not None and large is not None and small > large:
        raise AtKey(small_name, f"must not be more than {large_name} ({large:g}), but is {small:g}")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class UserBudget:
    """What the jobs of one user may cost."""

    per_day_usd: PositiveUsd | None = None
    """At most this much per UTC day; null: no limit of its own."""
    per_month_usd: PositiveUsd | None = None
    """At most this much per UTC month; null: no limit of its own."""

    def __post_init__(self) -> None:
        _check_order("per_day_usd", self.per_day_usd, "per_month_usd", self.per_month_usd)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Budgets:
    """Money. A machine is launched or renewed only if all it may cost until its expiry still fits."""

    per_hour_usd: PositiveUsd | None = None
    """All live machines together may cost at most this much per hour; null: no limit."""
    per_day_usd: PositiveUsd | None = None
    """At most this much per UTC day; null: no limit."""
    per_month_usd: PositiveUsd | None = None
    """At most this much per UTC month; null: no limit."""
    per_user: Mapping[Name, UserBudget] = field(default_factory=lambda: {"default": UserBudget()})
    """Limits by user name; the entry `default` holds for everybody else, and for keys a user's own entry leaves out."""

    @model_validator(mode="before")
    @classmethod
    def _inherit_default(cls, given: Any) -> Any:
        """Give each user the limits of `default` that their own entry does not name (an explicit null lifts one)."""
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

    def for_user(self, user: str) -> UserBudget:
        """Return the limits that hold for ``user``."""
        return self.per_user.get(user) or self.per_user.get("default") or UserBudget()


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Caps:
    """Limits on how much there may be at one time; null: no limit."""

    max_instances: PositiveCount = 100
    """Machines of ours that are alive at one time."""
    max_vcpus: Annotated[Number, Field(gt=0)] | None = 256
    """vCPUs of all live machines together; on demand 256 cost 10 to 13 dollars an hour."""
    max_price_usd_per_h: PositiveUsd | None = None
    """No single machine may cost more than this per hour."""
    max_instances_per_type: Mapping[Name, Count] = field(default_factory=dict)
    """Live machines by instance type name, for example {m5.large: 4}; 0 forbids the type."""
    max_jobs_per_user: PositiveCount | None = None
    """Jobs of one user that hold machines at one time; the others wait."""
    max_queued_jobs: PositiveCount = 100_000
    """Jobs that may wait; further submissions are refused."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Allow:
    """What may be rented at all; null: everything the configured providers offer."""

    providers: tuple[Name, ...] | None = None
    """Names of providers, with * and ? as wildcards."""
    regions: tuple[Name, ...] | None = None
    """Regions, with * and ? as wildcards."""
    zones: tuple[Name, ...] | None = None
    """Zones, with * and ? as wildcards."""
    instance_types: tuple[Name, ...] | None = None
    """Instance type names, with * and ? as wildcards, for example [m5.*, c5.large]."""
    markets: tuple[Market, ...] = (Market.RESERVED, Market.ON_DEMAND, Market.SPOT)
    """Ways to pay: reserved, on_demand, spot."""

    def __post_init__(self) -> None:
        for name in ("providers", "regions", "zones", "instance_types", "markets"):
            if getattr(self, name) == ():
                meaning = "name at least one market" if name == "markets" else "write null to allow all"
                raise AtKey(name, f"is empty, so nothing could ever be launched; {meaning}")

    def refusal(self, offer: Offer) -> str | None:
        """Return the key that forbids ``offer`` and why, or None when it is allowed."""
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
    """When machines that may be taken back are good enough."""

    for_targets: tuple[TargetKind, ...] = ("best_effort", "batch")
    """Kinds of target that may run on spot machines: batch, service, best_effort."""
    only_interruptible: Flag = True
    """Only jobs that say they may be interrupted run on spot machines."""
    most_losses: Count = 3
    """A job that lost so many spot machines while it ran goes where nothing is taken back, if such machines are on
    offer for it; 0: it stays on spot machines however often."""
    quick_loss_s: PositiveSeconds = 600.0
    """A spot machine that is taken back within so long after its launch was lost quickly."""
    quick_losses: Count = 2
    """After so many quick losses in a row, each of a machine launched after the one before, an offer is left alone as
    after a stockout, longer with each; 0: it is tried again at once."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class RetentionPolicy:
    """How long an idle machine is kept for the next job: a multiple of its type's spin-up time (HCloud §8.3)."""

    spin_up_multiple: Annotated[Number, Field(ge=0, le=10_000)] = 1.0
    """Idle machines are kept for this many times their spin-up time."""
    minimum_s: Seconds = 0.0
    """But at least this long."""
    maximum_s: Seconds = 3600.0
    """And at most this long."""
    release_below_quality: Share = 0.8
    """A machine that delivered less than this part of what its type usually does is let go as soon as it is idle."""
    drain_below: Share = 0.5
    """A rented machine of which less than this part would be in use gets no job that has a cheaper one for itself."""

    def __post_init__(self) -> None:
        if self.minimum_s > self.maximum_s:
            raise AtKey("minimum_s", f"must not be more than maximum_s ({self.maximum_s:g}), but is {self.minimum_s:g}")

    def keep_idle_s(self, spin_up_s: float) -> float:
        """Return how long a machine whose type spins up in ``spin_up_s`` is kept idle."""
        return min(max(self.spin_up_multiple * spin_up_s, self.minimum_s), self.maximum_s)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class LeasePolicy:
    """How far ahead a machine's life is paid. It powers itself off at the horizon unless renewed, daemon or not."""

    horizon_s: PositiveSeconds = 3600.0
    """A launch or renewal lets the machine live this much longer."""
    renew_before_s: PositiveSeconds = 900.0
    """Renew when less than this is left."""

    def __post_init__(self) -> None:
        if self.renew_before_s >= self.horizon_s:
            why = "or machines would be renewed in every cycle"
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
    """When to give a starting machine up."""

    timeout_s: PositiveSeconds = 600.0
    """A machine whose worker has not registered this long after launch is terminated and its type backed off."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class UnreachablePolicy:
    """When to give a silent machine up."""

    terminate_after_s: PositiveSeconds = 120.0
    """A machine silent this long is terminated; its jobs run again only when the provider confirms it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class StockoutPolicy:
    """How long an offer that could not be had is left alone: doubled with each failure up to the cap."""

    backoff_s: PositiveSeconds = 60.0
    """After the first failure."""
    backoff_cap_s: PositiveSeconds = 1800.0
    """At most this long."""

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
    """How much may be changed at once."""

    max_terminations_per_cycle: PositiveCount = 10
    """Machines terminated in one planning cycle."""
    evict_best_effort: Flag = True
    """Best-effort jobs may be stopped to make room for jobs with a promise."""
    evict_rest_s: Seconds = 300.0
    """One that was evicted before is safe for so long after it was placed again."""
    consolidate: Flag = False
    """Empty a machine whose jobs fit on others when that saves more than it costs, and end it."""
    consolidate_gain: Annotated[Number, Field(ge=1, le=1000)] = 2.0
    """Only if it saves this many times what it costs (hysteresis)."""
    consolidate_rest_s: PositiveSeconds = 600.0
    """A job is not moved before it has run so long where it is."""
    move_gap_s: Seconds = 30.0
    """What a move costs a job besides the work it loses: the gap until it runs again."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ProvisioningPolicy:
    """Which machines serve what the running ones cannot (HCloud §8.3-8.4)."""

    strategy: Strategy = "best_value"
    """best_value: whatever is cheapest, reserved first. sr: reserved machines only. odf, odm: on demand (and spot)
    only, full servers or any size. hf, hm: reserved for those that need them, the rest on demand, full or any size."""
    mapping: MappingPolicy = "p8"
    """Hybrids (hf, hm): who goes to reserved machines. p8: by dynamic limits and delivered quality. To compare with:
    p1 a fair coin; p2, p3, p4 who needs a quality above 0.8, 0.5, 0.2; p5, p6, p7 all, up to 50, 70, 90 % full."""
    full_server_vcpus: Annotated[Number, Field(gt=0)] = 16.0
    """From so many vCPUs on a machine is a full server; where a provider has none, its largest ones are."""
    soft_limit: Share = 0.65
    """Below this part of the reserved vCPUs in use every job goes there; where the dynamic limit starts (p8)."""
    soft_limit_minimum: Share = 0.3
    """The soft limit never falls below this, however the queue grows."""
    soft_limit_fall_per_job: Annotated[Number, Field(ge=0, le=1)] = 0.01
    """The soft limit falls by this much for each job by which the queue grew within `queue_window_s`."""
    soft_limit_rise_per_min: Annotated[Number, Field(ge=0, le=1)] = 0.01
    """The soft limit rises by this much for each minute in which nothing queued, up to the hard limit."""
    hard_limit: Share = 0.9
    """Above this part of the reserved vCPUs in use jobs queue for reserved machines or go on demand (p8)."""
    queue_window_s: PositiveSeconds = 300.0
    """Growth of the queue is measured over this long."""
    wait_quantile: Annotated[Number, Field(gt=0, lt=1)] = 0.99
    """The expected wait for reserved room is this quantile of the recent times between its releases."""
    assumed_quality_batch: Share = 0.5
    """The quality a batch job of which nothing is known is taken to need; best effort needs none."""
    assumed_quality_service: Share = 0.9
    """The same for services."""
    unmeasured_quality_small: Share = 0.5
    """The quality the smallest machines are taken to deliver before any was measured ..."""
    unmeasured_quality_full: Share = 0.95
    """... and full servers; sizes between lie between."""
    keep_for_dearer: Share = 0.5
    """Reserved room, and machines nobody takes back, are kept from jobs for which a vCPU is rented for less than this
    part of what it costs those that need them; not with hf and hm, which map jobs by quality. 0: kept from none."""
    keep_for_quiet: Annotated[Number, Field(ge=0, le=100)] = 0.0
    """While others are rented for, reserved room is kept from jobs that press on a shared resource by more than this
    many times their part of the machine's vCPUs: they leave room nobody can use. 0: kept from none."""

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
    """On which of the machines with room a job goes. What is not known of a job, no order can use: it goes where the
    least is in use."""

    order: Literal[
        "least_loaded",
        "first_fit",
        "random",
        "paragon",
        "quasar",
        "heterogeneity_oblivious",
        "interference_oblivious",
        "least_loss",
    ] = "least_loaded"
    """least_loaded: smallest share of vCPUs in use; first_fit: lowest number; random: any; paragon: no neighbour
    disturbed, then best type, then tightest; quasar: the same with the least vCPUs and nodes that meet the target;
    heterogeneity_oblivious: paragon without types; interference_oblivious: best type only; least_loss: where it and
    its neighbours are expected to lose the least, to its type and to each other."""
    confidence: Annotated[Number, Field(ge=0.5, le=0.999)] = 0.9
    """How probable it must be that a placement meets a target (0.5..0.999)."""
    neighbour_confidence: Annotated[Number, Field(ge=0.5, le=0.999)] = 0.5
    """How probable it must be that neighbours leave each other what they tolerate (0.5..0.999). 0.5: estimates are
    compared as they are; with more, machines stay emptier and more of them are rented."""
    tolerance: Annotated[Number, Field(gt=0, lt=1)] = 0.05
    """The part of its best performance that a job without a target of its own may lose."""
    work_cells: PositiveCount = 20_000_000
    """Comparisons (machines times resources) after which the search for one job takes the best so far."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class AdmissionPolicy:
    """Who of those that wait is served first, and how long a job may hold out for a machine that suits it (ARQ)."""

    queues: Literal["one", "by_quality"] = "one"
    """one: a single queue by priority; by_quality: classes by how demanding a job is, so that none blocks another."""
    classes: Annotated[int, Field(ge=1, le=100, strict=True)] = 10
    """Number of classes."""
    order: Literal["priority", "shortest"] = "priority"
    """Inside a class: by priority, or by expected run time; a job whose patience has run out comes before both."""
    tolerance: Annotated[Number, Field(gt=0, le=10)] = 0.05
    """A job may wait for a suitable machine for this part of its expected run time."""
    patience_s: Seconds = 60.0
    """Or so long, where its run time is not known."""
    patience_cap_s: Seconds = 600.0
    """But never longer than this."""


CorrectionStep = Literal["reprofile", "reclassify", "resize", "evict", "nodes", "move"]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class CorrectionPolicy:
    """What is done about a running job that misses its target, or does other than expected (Quasar §4.4)."""

    steps: tuple[CorrectionStep, ...] = ("reprofile", "reclassify", "resize", "evict", "nodes", "move")
    """What may be done, always tried in this order: profile a copy anew, believe what is measured, give it more of its
    machines, evict best-effort neighbours, add missing nodes, move it. Empty: nothing."""
    margin: Annotated[Number, Field(gt=0, lt=1)] = 0.1
    """It counts as missed when performance is surely below the wanted one by this part of it."""
    confidence: Annotated[Number, Field(ge=0.9, le=0.999999)] = 0.999
    """How sure that must be, by the spread of the readings."""
    readings: Annotated[int, Field(ge=3, le=60, strict=True)] = 6
    """And from so many readings on, all since the job started or was last corrected."""
    settle_s: PositiveSeconds = 60.0
    """After a job's start or a correction nothing is concluded for so long."""
    gain: Annotated[Number, Field(ge=1, le=1000)] = 1.5
    """A step must be expected to save this many times what it costs."""
    promise_worth: Annotated[Number, Field(ge=1, le=1000)] = 10.0
    """Work of jobs with a promise counts so many times that of best-effort jobs."""
    resize_limit: Annotated[Number, Field(ge=1, le=64)] = 2.0
    """A job is given at most so many times the vCPUs it asked for; one that states resources.vcpus_max up to that."""
    busy_share: Annotated[Number, Field(gt=0, le=1)] = 0.9
    """A job that uses at least this part of its vCPUs is taken to be faster with more of them."""
    max_steps_per_attempt: PositiveCount = 8
    """A job is left alone after so many corrections of one attempt."""
    max_moves_per_job: PositiveCount = 2
    """A job is moved at most so often."""
    avoid_s: Seconds = 900.0
    """For so long it does not go back to the machine it left; then other neighbours may be there."""
    max_per_cycle: PositiveCount = 2
    """Jobs corrected in one planning cycle."""
    sample_share: Share = 0.2
    """Of the long-running jobs this part is looked at in each period, target missed or not, for a change of phase."""
    sample_every_s: PositiveSeconds = 600.0
    """The period."""
    long_running_s: PositiveSeconds = 600.0
    """Jobs that have run so long are long-running."""
    straggler_below: Annotated[Number, Field(gt=0, lt=1)] = 0.5
    """A rank of an incremental job with less than this part of the median's pace is a straggler; so is a job with
    less than this part of what is expected of it, if nothing else of its application is slow, or a copy profiled since
    on a machine of another type was not."""
    max_relaunches_per_attempt: Count = 1
    """So many stragglers of one attempt are started anew elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class TimingPolicy:
    """How often to look."""

    sample_every_s: PositiveSeconds = 10.0
    """CPU, memory, progress, rate and latency of running jobs are looked at this often; what is new is recorded."""
    steady_share: Share = 0.5
    """Once what a job does could be judged, one look is recorded after each such part of the time it has gone on so; 0:
    every look."""
    steady_every_s: PositiveSeconds = 120.0
    """But one at least this often; of a large fleet ``steady_per_s`` makes that longer."""
    steady_per_s: PositiveCount = 20
    """Of all that runs no more looks at what just goes on are recorded per second, in the mean: from 2,400 ranks on
    (``steady_every_s`` times as many) each is recorded more seldom, but at least every five minutes."""


def _enabled_from_flag(value: object) -> object:
    """Read true and false as the words they mean."""
    return {True: "always", False: "never"}[value] if isinstance(value, bool) else value


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ProfilingPolicy:
    """Short runs, on machines of their own, by which a job nobody has seen before becomes known (Paragon §2.2)."""

    enabled: Annotated[
        Literal["auto", "always", "never"],
        BeforeValidator(_enabled_from_flag, json_schema_input_type=bool | Literal["auto", "always", "never"]),
    ] = "auto"
    """auto: where something uses what is learnt (placement.order paragon, quasar, least_loss or one of the oblivious,
    admission.queues by_quality, provisioning.strategy hf or hm); always (or true); never (or false)."""
    for_targets: tuple[TargetKind, ...] = ("batch", "service")
    """Kinds of target whose jobs are profiled: batch, service, best_effort."""
    max_concurrent: PositiveCount = 2
    """Jobs that are being profiled at one time; each uses up to `types` + 1 machines."""
    max_usd_per_job: PositiveUsd | None = 0.25
    """Profiling one job may cost at most this much, by the prices of its machines; null: no limit."""
    max_share_of_budget: Annotated[Number, Field(gt=0, le=1)] = 0.01
    """And at most this part of budgets.per_day_usd, where there is such a limit."""
    max_share_of_slack: Annotated[Number, Field(gt=0, le=1)] = 0.1
    """And may take at most this part of the time from submission to the deadline."""
    run_s: PositiveSeconds = 5.0
    """Each copy of the job runs this long."""
    total_s: PositiveSeconds = 120.0
    """Each profiling run ends after this long, with what it has."""
    warm_up_s: Seconds = 30.0
    """A stateful job is measured after so long; 0: stateful jobs are not profiled."""
    skip_if_shorter_than_s: Seconds = 60.0
    """Jobs known to run shorter than this are not profiled: it would cost more than it could gain (Paragon §3.5)."""
    patience_s: PositiveSeconds = 300.0
    """A job that has waited this long for its profiling to start, or for its end, goes on without."""
    types: PositiveCount = 2
    """On so many machine types each job is measured; each further one tells more of the others, and costs a run."""
    instance_types: tuple[Name, ...] = ("*",)
    """Types to profile on, with * and ? as wildcards. Of idle ones those that tell most together, then the
    cheapest; the first one has `spare_vcpus` to spare."""
    spare_vcpus: Annotated[Number, Field(ge=0, le=1024)] = 1.0
    """What the first machine should have beside the job: for the source of interference, and for who measures."""
    fruitless_runs: PositiveCount = 3
    """A program of which so many runs could not learn anything is not profiled again."""
    sources: Annotated[tuple[SourceName, ...], Field(max_length=16)] | None = None
    """Sources of interference to measure every job beside; []: none. null: on each of two machines the two
    that leave least to guess."""

    def __post_init__(self) -> None:
        _check_order("run_s", self.run_s, "total_s", self.total_s)
        for name in ("for_targets", "instance_types"):
            if getattr(self, name) == ():
                raise AtKey(name, "is empty, so nothing would ever be profiled; write enabled: never for that")
        if self.sources is not None and len(set(self.sources)) != len(self.sources):
            raise AtKey("sources", "names one source twice; each must appear once")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Policy:
    """What the operator allows and prefers. Every key may be left out; the defaults are safe."""

    name: Name = "default"
    """Shown in status, reports and reasons."""
    budgets: Budgets = Budgets()
    """Money."""
    caps: Caps = Caps()
    """Limits on how much there may be at one time."""
    allow: Allow = Allow()
    """What may be rented at all."""
    spot: SpotPolicy = SpotPolicy()
    """When machines that may be taken back are good enough."""
    retention: RetentionPolicy = RetentionPolicy()
    """How long idle machines are kept."""
    lease: LeasePolicy = LeasePolicy()
    """How far ahead a machine's life is paid."""
    boot: BootPolicy = BootPolicy()
    """When to give a starting machine up."""
    unreachable: UnreachablePolicy = UnreachablePolicy()
    """When to give a silent machine up."""
    stockout: StockoutPolicy = StockoutPolicy()
    """How long an offer that could not be had is left alone."""
    disruption: DisruptionPolicy = DisruptionPolicy()
    """How much may be changed at once."""
    admission: AdmissionPolicy = AdmissionPolicy()
    """Who is served first, and how long jobs hold out for a machine that suits them."""
    provisioning: ProvisioningPolicy = ProvisioningPolicy()
    """Which machines serve what the running ones cannot."""
    placement: PlacementPolicy = PlacementPolicy()
    """On which machine a job goes."""
    profiling: ProfilingPolicy = ProfilingPolicy()
    """How a job nobody has seen before becomes known."""
    correction: CorrectionPolicy = CorrectionPolicy()
    """What is done about running jobs that miss their target."""
    timing: TimingPolicy = TimingPolicy()
    """How often to look."""

    def __post_init__(self) -> None:
        if self.boot.timeout_s > self.lease.horizon_s:
            horizon_s, timeout_s = self.lease.horizon_s, self.boot.timeout_s
            why = "or a machine would expire before it is given up"
            raise AtKey(
                "boot.timeout_s",
                f"must not be more than lease.horizon_s ({horizon_s:g}), {why}; it is {timeout_s:g}",
                otherwise=(
                    "lease.horizon_s",
                    f"must be at least boot.timeout_s ({timeout_s:g}), {why}; it is {horizon_s:g}",
                ),
            )

    @property
    def profiles_jobs(self) -> bool:
        """Whether unknown jobs are profiled: it costs money and time, and pays where something uses what is learnt."""
        if self.profiling.enabled != "auto":
            return self.profiling.enabled == "always"
        orders = ("paragon", "quasar", "heterogeneity_oblivious", "interference_oblivious", "least_loss")
        hybrid = self.provisioning.strategy in ("hf", "hm")
        return self.placement.order in orders or self.admission.queues == "by_quality" or hybrid

    @property
    def digest(self) -> str:
        """Identify the content: 16 hex digits of SHA-256, the same for any spelling of the same policy."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_policy(mapping: object, *, locate: Callable[[KeyPath], str] = key_path) -> Policy:
    """Return the policy that ``mapping`` (keys as in the YAML) states; what it leaves out has its default.

    ``locate`` turns a key path into the ``where`` of an error.

    Raises:
        ConfigError: an unknown key, a value of the wrong kind, or values that contradict each other.
    """
    return parse(Policy, mapping, locate)
