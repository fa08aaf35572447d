"""One simulation: the daemon's own controller on a virtual clock, a mock cloud and fake work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from hcloud.apply import ApplyResult
from hcloud.classifier.library import Library
from hcloud.config import Config, EngineSettings, ProviderSettings
from hcloud.controller import Controller
from hcloud.core.clock import ManualClock
from hcloud.core.errors import BadInput, SimulationStalled
from hcloud.core.gc_tuning import infrequent_gc
from hcloud.core.model import Event, Job, JobSpec, Market, Offer, ServiceTarget
from hcloud.core.pricing import HOUR_S
from hcloud.core.rows import FilteredRows
from hcloud.fake_runner.runner import FakeRunner, Work
from hcloud.observe.log_archive import NoLogArchive
from hcloud.observe.sampling import gap_s
from hcloud.planner import make_plan
from hcloud.provider import MachineSource, Provider, UnitSpec
from hcloud.quarantine.planning import Planner
from hcloud.simulator.ground_truth import VirtualCloud
from hcloud.simulator.oracle import with_true_beliefs
from hcloud.simulator.performance import Ideal, JobPerformance
from hcloud.simulator.program_models import Phase
from hcloud.simulator.qos_losses import count_qos_losses
from hcloud.simulator.workload import Arrival, Workload
from hcloud.simulator.world import BEST_LATENCY_RATIO, SERVED_RATE_FACTOR, Truth, World
from hcloud.spec.policy import Policy
from hcloud.spec.validation import counted, nearest
from hcloud.store import MemoryStore, Store, Submission
from hcloud.wiring import build_controller, build_providers

START_AT = 1_900_000_800.0
"""Start time of workloads without a date, so that a simulation does not depend on the current day."""
STEP_S, QUIET_STEP_S, IDLE_STEP_S = 1.0, 10.0, 60.0
LONGEST_TAIL_S = 7 * 86_400.0
STALL_S = 90_000.0
"""If nothing moved for this long, nothing will: daily budgets have been renewed, and caps never change."""
GC_EVERY, GC_MIN_OBJECTS = 1000, 1_000_000
"""Full garbage collections are rare: the log only grows, and hardly any of its objects form reference cycles."""
OWNER, PROVIDER = "hcloud-simulation", "mock"
PLAIN_LATENCY_RATIO = 0.9
"""A service's latency on a machine of nominal speed, as a share of its target; it grows on slower machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """All inputs of a simulation; equal settings give equal traces."""

    workload: Workload
    policy: Policy
    cloud: Mapping[str, object] = field(default_factory=dict)
    """Settings of one mock provider."""
    seed: int = 0
    truth: Truth | None = None
    """How programs perform. None: every job runs as the workload says, regardless of machine type and neighbours."""
    cycle_s: float = STEP_S
    """Seconds between cycles while something happens; the daemon uses one. A longer interval simulates faster, but
    makes jobs wait up to that much longer."""
    planner: Planner = make_plan
    oracle: bool = False
    """The planner knows the world's ``truth``."""
    clouds: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Settings of several mock providers by name, instead of ``cloud``."""

    @property
    def providers(self) -> Mapping[str, Mapping[str, object]]:
        """The settings of all mock providers, by name."""
        return self.clouds or {PROVIDER: self.cloud}

    @property
    def starts_at(self) -> float:
        """The start time (Unix seconds)."""
        return START_AT if self.workload.began_at is None else self.workload.began_at

    def __post_init__(self) -> None:
        if self.cloud and self.clouds:
            raise BadInput("a simulation takes either cloud or clouds, not both")
        if self.oracle and self.truth is None:
            raise BadInput("oracle: there is no truth to know, as truth is None; set both or neither")
        if not (math.isfinite(self.cycle_s) and self.cycle_s > 0):
            raise BadInput(f"cycle_s is {self.cycle_s}; it must be a number of seconds above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """Reserved machines of one type, which are paid for all the time."""

    count: int
    vcpus: float
    """Of one machine."""
    price_usd_per_h: float
    """Amortised, for one machine."""


@dataclass(slots=True)
class Progress:
    """How far a simulation is, for progress displays."""

    now_s: float = 0.0
    """Seconds since the start."""
    submitted: int = 0
    ended: int = 0
    cycles: int = 0


@dataclass(slots=True)
class Simulation:
    """A simulated deployment in ``folder``."""

    setting: Setting
    folder: Path
    clock: ManualClock = field(init=False)
    give_up_after_s: float = LONGEST_TAIL_S
    progress: Progress = field(default_factory=Progress)
    store: Store = field(init=False)
    controller: Controller = field(init=False)
    _runner: FakeRunner = field(init=False)
    _world: World | None = field(init=False)
    _ideals: dict[str, Ideal] = field(default_factory=dict)
    _specs: dict[str, JobSpec] = field(default_factory=dict)
    _needs_vcpus: dict[str, float] = field(default_factory=dict)
    _waiting: list[Arrival] = field(init=False)
    _clouds: Sequence[VirtualCloud] = field(init=False)
    _not_submitted: FilteredRows[Job] = field(default_factory=lambda: FilteredRows(_is_part))

    def __post_init__(self) -> None:
        """Build the deployment. Raises ConfigError if the cloud's settings are invalid."""
        config = _config(self.folder, self.setting)
        self.clock = ManualClock(self.setting.starts_at)
        self._waiting = list(reversed(self.setting.workload.arrivals))
        self.store = MemoryStore()
        providers = build_providers(config, self.clock)
        self._clouds = cast(Sequence[VirtualCloud], tuple(providers.values()))
        self._world = self._make_world(providers)
        sources = [each for each in providers.values() if isinstance(each, MachineSource)]
        gap, planner = partial(gap_s, policy=self.setting.policy), self.setting.planner
        if (world := self._world) is None:
            self._runner = FakeRunner(sources, self.clock, work=self._work, gap=gap)
            # Reading the shipped library takes longer than a small simulation; skip it if it is not used.
            library = None if self.setting.policy.profiles_jobs else Library()
        else:
            self._runner = FakeRunner(
                sources, self.clock, work=world.work, profile=world.profile, surroundings=world, gap=gap
            )
            library = world.library()
            planner = with_true_beliefs(world, planner) if self.setting.oracle else planner
        self.controller = build_controller(
            config,
            self.store,
            providers,
            self._runner,
            self.clock,
            self.setting.policy,
            rng=np.random.default_rng(self.setting.seed),
            holder=OWNER,
            library=library,
            planner=planner,
            logs=NoLogArchive(self.folder),
        )

    def _make_world(self, providers: Mapping[str, Provider]) -> World | None:
        if self.setting.truth is None:
            return None
        types = {
            offer.instance_type.name: offer.instance_type.capacity
            for each in providers.values()
            for offer in each.offers()
        }
        return World(truth=self.setting.truth, seed=self.setting.seed, types=types, providers=tuple(providers))

    def _work(self, unit: UnitSpec) -> Work:
        # A profiling run measures copies of the job it profiles.
        job_id = unit.profile.job_id if unit.profile else unit.id.partition(".")[0]
        ideal, spec = self._ideals[job_id], self._specs[job_id]
        if ideal.latency_ms is None or not isinstance(spec.target, ServiceTarget):
            return Work(duration_s=ideal.run_s)
        served = SERVED_RATE_FACTOR * spec.target.requests_per_s / max(1, spec.nodes.count)
        return Work(duration_s=ideal.run_s, requests_per_s=served, latency_ms={"99": ideal.latency_ms})

    @property
    def phases(self) -> Mapping[str, Phase]:
        """The present phase of each unit whose program has phases."""
        return {} if self._world is None else self._world.phases

    def run(self, watch: Callable[[Progress], object] = lambda _: None) -> None:
        """Run cycles until the end; ``watch`` is called after each.

        Raises SimulationStalled if jobs still wait long after the last arrival, since the cloud or policy cannot run
        them.
        """
        with infrequent_gc(GC_EVERY, GC_MIN_OBJECTS):
            self._run(watch)

    def _run(self, watch: Callable[[Progress], object]) -> None:
        # The longest job may be slowed down, so allow twice its run time in addition to the tail.
        longest_s = max((each.run_s for each in self.setting.workload.arrivals), default=0.0)
        moved_at = will_move_at = self.setting.starts_at
        give_up_at = self.setting.starts_at + self.setting.workload.span_s + self.give_up_after_s + 2.0 * longest_s
        while self._waiting or self._has_jobs() or self._has_rented_machines():
            self._submit_due()
            outcome = self.controller.cycle()
            self.progress.cycles += 1
            self.progress.now_s = self.clock.now() - self.setting.starts_at
            # Profiling runs and tasks of arrays are the planner's own jobs and do not count as submitted.
            view = self.store.live()
            left = len(view.arrays) + len(view.jobs) - len(self._not_submitted.of(view.jobs))
            self.progress.ended = self.progress.submitted - left
            watch(self.progress)
            moved_at = moved_at if outcome.only_renewed else self.clock.now()
            will_move_at = self.clock.now() if outcome.moved or self._has_scheduled_events() else will_move_at
            if self.clock.now() > min(give_up_at, will_move_at + STALL_S):
                late_s = self.clock.now() - self.setting.starts_at - self.setting.workload.span_s
                have = f"{counted(left, 'job')} {'has' if left == 1 else 'have'}"
                waits = {job.wait_code: job.wait_text for job in self.store.live().jobs if job.wait_code}
                reasons = "; ".join(f"{code} ({text})" for code, text in sorted(waits.items()))
                why = f"they wait for {reasons}" if reasons else "they are still running"
                raise SimulationStalled(f"{have} not ended {late_s:.0f} s after the last arrival; {why}")
            self.clock.advance(self._step_s(outcome, self.clock.now() - moved_at))

    def _has_jobs(self) -> bool:
        view = self.store.live()
        return bool(view.jobs or view.arrays)

    def _has_rented_machines(self) -> bool:
        return any(each.offer.market is not Market.RESERVED for each in self.store.live().instances)

    def _submit_due(self) -> None:
        now_s, due = self.clock.now() - self.setting.starts_at, []
        while self._waiting and self._waiting[-1].at_s <= now_s + 1e-9:
            due.append(self._waiting.pop())
        if due:
            jobs = self.store.submit([Submission(spec=a.spec, actor=a.spec.user) for a in due], self.clock.now())
            for job, arrival in zip(jobs, due, strict=True):
                self._ideals[job.id] = self._ideal(arrival)
                self._specs[job.id] = arrival.spec
                if arrival.needs_vcpus is not None:
                    self._needs_vcpus[job.id] = arrival.needs_vcpus
                if self._world is not None:
                    self._world.add_job(job.id, arrival)
            self.progress.submitted += len(due)

    def _has_scheduled_events(self) -> bool:
        times = [self._runner.next_event_at(), *(cloud.next_event_at() for cloud in self._clouds)]
        return bool(self._waiting) or any(at is not None for at in times)

    def _step_s(self, outcome: ApplyResult, still_s: float) -> float:
        """Return the seconds to the next cycle.

        One ``cycle_s`` after a change; else the time to the next event, at most ten seconds, or a minute after an hour
        without progress. Without jobs and rented machines it jumps straight to the next arrival.
        """
        step_s = self.setting.cycle_s
        if outcome.moved:
            return step_s
        happens_at = [self._runner.next_event_at(), *(cloud.next_event_at() for cloud in self._clouds)]
        events = [outcome.due_at, *(at for at in happens_at if at is not None)]
        if self._waiting:
            events.append(self.setting.starts_at + self._waiting[-1].at_s)
        quiet_s = IDLE_STEP_S if still_s > HOUR_S else QUIET_STEP_S
        if self._waiting and not self._has_jobs() and not self._has_rented_machines():
            quiet_s = math.inf
        return max(step_s, math.ceil(min(quiet_s, min(events) - self.clock.now() - 1e-6)))

    def commitments(self) -> tuple[Commitment, ...]:
        """Return the reserved machines of this cloud. Call it before the first cycle, while none of them is in use.

        Raises BadInput if the settings reserve a type that the cloud lacks, or if it has no reserved machines.
        """
        offers = [offer for each in self.controller.offers.providers.values() for offer in each.offers()]
        for name, settings in self.setting.providers.items():
            _check_reserved(settings.get("reserved", {}), [each for each in offers if each.provider == name])
        return tuple(
            Commitment(count=o.available, vcpus=o.instance_type.capacity.vcpus, price_usd_per_h=o.price_usd_per_h)
            for o in offers
            if o.market is Market.RESERVED and o.available
        )

    def _ideal(self, arrival: Arrival) -> Ideal:
        target = arrival.spec.target
        if not isinstance(target, ServiceTarget):
            alone_s = arrival.run_s if self._world is None else self._world.alone_s(arrival)
            return Ideal(run_s=alone_s, counts=target.kind != "best_effort")
        best_ms = (PLAIN_LATENCY_RATIO if self._world is None else BEST_LATENCY_RATIO) * target.latency_ms
        return Ideal(run_s=arrival.run_s, latency_ms=best_ms, promised_ms=target.latency_ms)

    def ideals(self) -> Mapping[str, Ideal]:
        """Return the ideal of each job that was submitted so far and has a target."""
        return {job_id: ideal for job_id, ideal in self._ideals.items() if ideal.counts}

    def needs_vcpus(self) -> Mapping[str, float]:
        """Return the vCPUs that each rank of a job needs, of the submitted jobs whose requests are guesses."""
        return self._needs_vcpus

    def qos_losses(self, performances: Sequence[JobPerformance]) -> Mapping[str, int]:
        """Return how many jobs lost their QoS by cause (:mod:`hcloud.simulator.qos_losses`); empty without a truth."""
        return {} if self._world is None else count_qos_losses(self.events(), performances, self._specs, self._world)

    def events(self) -> Iterator[Event]:
        """Yield the whole event log."""
        return self.store.iter_events()

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def _is_part(job: Job) -> bool:
    """Return whether a job is a profiling run or a task of an array: a part of what was submitted."""
    return job.spec.profile is not None or bool(job.array)


def offers_of(setting: Setting, folder: Path) -> Mapping[str, Sequence[Offer]]:
    """Return what each cloud of a setting offers at the start, by provider. ``folder`` is for files of the clouds.

    Raises ConfigError if the clouds' settings are invalid.
    """
    calm = {name: {**each, "script": (), "chances": {}, "throttle": {}} for name, each in setting.providers.items()}
    config = _config(folder, replace(setting, cloud={}, clouds=calm))
    return {name: each.offers() for name, each in build_providers(config, ManualClock(setting.starts_at)).items()}


@contextmanager
def simulated(setting: Setting, folder: Path) -> Iterator[Simulation]:
    """Open a simulation for a block."""
    simulation = Simulation(setting, folder)
    try:
        yield simulation
    finally:
        simulation.close()


def _check_reserved(reserved_counts: object, offers: Sequence[Offer]) -> None:
    """Raise BadInput if a reserved place (type, or ``ZONE/TYPE``) is not offered; the provider would ignore it
    silently."""
    if not isinstance(reserved_counts, Mapping):
        return
    types = {offer.instance_type.name for offer in offers}
    reserved = [offer for offer in offers if offer.market is Market.RESERVED]
    places = {o.instance_type.name for o in reserved} | {f"{o.zone}/{o.instance_type.name}" for o in reserved}
    for place in (str(name) for name, count in reserved_counts.items() if count):
        if (name := place.rpartition("/")[2]) not in types:
            raise BadInput(f"there is no machine type {name!r} to reserve on this cloud; {nearest(name, types)}")
        if not reserved:
            raise BadInput("nothing can be reserved on this cloud; add `reserved` to its `markets`, or reserve none")
        if place not in places:
            alike = [each for each in places if ("/" in each) == ("/" in place)]
            raise BadInput(f"{place} cannot be reserved on this cloud; {nearest(place, alike)}")


def _config(folder: Path, setting: Setting) -> Config:
    return Config(
        owner=OWNER,
        state_dir=folder,
        run_dir=Path("run"),  # never used; the path of ``folder`` may be too long for a socket
        providers=tuple(
            ProviderSettings(name=name, type="mock", settings={"seed": setting.seed, **cloud})
            for name, cloud in setting.providers.items()
        ),
        engine=EngineSettings(programs="simulated"),
    )
