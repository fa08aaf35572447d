"""One simulation: the daemon's own controller, on a clock that jumps, a mock cloud and pretended work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from hcloud.simulator.qos_losses import count_qos_losses
from hcloud.simulator.workload import Arrival, Workload
from hcloud.simulator.world import BEST_LATENCY_RATIO, SERVED_RATE_FACTOR, Truth, World
from hcloud.spec.policy import Policy
from hcloud.spec.validation import counted, nearest
from hcloud.store import MemoryStore, Store, Submission
from hcloud.wiring import build_controller, build_providers

START_AT = 1_900_000_800.0
"""A fixed date, so that a simulation does not depend on the day it is run; what is replayed begins when it did."""
STEP_S, QUIET_STEP_S, IDLE_STEP_S = 1.0, 10.0, 60.0
LONGEST_TAIL_S = 7 * 86_400.0
STALL_S = 90_000.0
"""Nothing that stood still for so long moves again: budgets of a day begin anew, caps do not."""
GC_EVERY, GC_MIN_OBJECTS = 1000, 1_000_000
"""The log only grows: so seldom is it looked at for reference cycles, and not at all before it has so many objects, of
which the cycles are less than one in a hundred."""
OWNER, PROVIDER = "hcloud-simulation", "mock"
PLAIN_LATENCY_RATIO = 0.9
"""A service's latency on a machine as fast as its type should be, as a part of what it promised; it grows on a slower
one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """All that a simulation depends on: equal settings, equal traces. ``cloud`` holds a mock provider's settings;
    ``clouds`` those of several, by name, instead.

    ``truth``: how jobs perform there; None: each as the workload says, whatever its machine's type and neighbours.
    ``cycle_s``: how long after a cycle that did something the next one comes, as the daemon's do every second. Longer
    makes a simulation quicker, and jobs wait up to so much longer. ``told``: the planner knows the world's ``truth``.
    """

    workload: Workload
    policy: Policy
    cloud: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    truth: Truth | None = None
    cycle_s: float = STEP_S
    planner: Planner = make_plan
    oracle: bool = False
    clouds: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def providers(self) -> Mapping[str, Mapping[str, object]]:
        """Return the settings of all mock providers, by name."""
        return self.clouds or {PROVIDER: self.cloud}

    @property
    def starts_at(self) -> float:
        """Return when it begins (Unix seconds)."""
        return START_AT if self.workload.began_at is None else self.workload.began_at

    def __post_init__(self) -> None:
        if self.cloud and self.clouds:
            raise BadInput("a simulation has one cloud or several by name; leave out cloud or clouds")
        if self.oracle and self.truth is None:
            raise BadInput("a planner can be told the truth only in a world that has one; truth is None")
        if not (math.isfinite(self.cycle_s) and self.cycle_s > 0):
            raise BadInput(f"cycle_s is {self.cycle_s}; it must be a number of seconds above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """Reserved machines that are paid for all the time: how many of a type, its vCPUs, and the amortised price."""

    count: int
    vcpus: float
    price_usd_per_h: float


@dataclass(slots=True)
class Progress:
    """How far a simulation is, for progress displays."""

    now_s: float = 0.0
    submitted: int = 0
    ended: int = 0
    cycles: int = 0


@dataclass(slots=True)
class Simulation:
    """A virtual deployment in ``folder``. ``run`` drives it until every job has ended and no machine costs any more."""

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
    _waiting: list[Arrival] = field(init=False)
    _clouds: Sequence[VirtualCloud] = field(init=False)
    _profiling: FilteredRows[Job] = field(default_factory=lambda: FilteredRows(_is_of_profiling))

    def __post_init__(self) -> None:
        """Put the deployment together. Raises ConfigError where the cloud's settings are wrong."""
        config = _config(self.folder, self.setting)
        self.clock = ManualClock(self.setting.starts_at)
        self._waiting = list(reversed(self.setting.workload.arrivals))
        self.store = MemoryStore()
        providers = build_providers(config, self.clock)
        self._clouds = cast(Sequence[VirtualCloud], tuple(providers.values()))
        self._world = self._make_world(providers)
        sources = [each for each in providers.values() if isinstance(each, MachineSource)]
        gap = partial(gap_s, policy=self.setting.policy)
        if self._world is None:
            self._runner = FakeRunner(sources, self.clock, work=self._work, gap=gap)
        else:
            world = self._world
            self._runner = FakeRunner(
                sources, self.clock, work=world.work, profile=world.profile, surroundings=world, gap=gap
            )
        self.controller = build_controller(
            config,
            self.store,
            providers,
            self._runner,
            self.clock,
            self.setting.policy,
            rng=np.random.default_rng(self.setting.seed),
            holder=OWNER,
            library=self._library(),
            planner=self._planner(),
            logs=NoLogArchive(self.folder),
        )

    def _planner(self) -> Planner:
        planner = self.setting.planner
        return with_true_beliefs(self._world, planner) if self.setting.oracle and self._world is not None else planner

    def _library(self) -> Library | None:
        """Return the world's library; nothing if it is not used: reading the shipped one takes longer than a little
        simulation."""
        if self._world is not None:
            return self._world.library()
        return None if self.setting.policy.profiles_jobs else Library()

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
        """What a unit does where nothing but its machine's quality matters."""
        # A profiling run measures copies of the job it is made for.
        job_id = unit.profile.job_id if unit.profile else unit.id.partition(".")[0]
        ideal, spec = self._ideals[job_id], self._specs[job_id]
        if ideal.latency_ms is None or not isinstance(spec.target, ServiceTarget):
            return Work(duration_s=ideal.run_s)
        served = SERVED_RATE_FACTOR * spec.target.requests_per_s / max(1, spec.nodes.count)
        return Work(duration_s=ideal.run_s, requests_per_s=served, latency_ms={"99": ideal.latency_ms})

    def run(self, watch: Callable[[Progress], object] = lambda _: None) -> None:
        """Drive cycles to the end.

        Raises Standstill where jobs are still waiting long after the last arrival: the cloud or policy cannot run them.
        """
        with infrequent_gc(GC_EVERY, GC_MIN_OBJECTS):
            self._run(watch)

    def _run(self, watch: Callable[[Progress], object]) -> None:
        # Whatever slows the longest job down: it is given up only when it takes twice as long, and the tail beside.
        longest_s = max((each.run_s for each in self.setting.workload.arrivals), default=0.0)
        moved_at = will_move_at = self.setting.starts_at
        give_up_at = self.setting.starts_at + self.setting.workload.span_s + self.give_up_after_s + 2.0 * longest_s
        while self._waiting or self.store.live().jobs or self._has_rented_machines():
            self._submit_due()
            outcome = self.controller.cycle()
            self.progress.cycles += 1
            self.progress.now_s = self.clock.now() - self.setting.starts_at
            # Profiling runs are jobs of the planner's own: nobody submitted them.
            jobs = self.store.live().jobs
            left = len(jobs) - len(self._profiling.of(jobs))
            self.progress.ended = self.progress.submitted - left
            watch(self.progress)
            moved_at = moved_at if outcome.went_on else self.clock.now()
            will_move_at = self.clock.now() if outcome.moved or self._has_scheduled_events() else will_move_at
            if self.clock.now() > min(give_up_at, will_move_at + STALL_S):
                late_s = self.clock.now() - self.setting.starts_at - self.setting.workload.span_s
                have = f"{counted(left, 'job')} {'has' if left == 1 else 'have'}"
                raise SimulationStalled(
                    f"{have} not ended {late_s:.0f} s after the last arrival; {self._wait_reasons()}"
                )
            self.clock.advance(self._step_s(outcome, self.clock.now() - moved_at))

    def _has_rented_machines(self) -> bool:
        """Whether machines live that are paid for by use; reserved ones need not be ended."""
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
                if self._world is not None:
                    self._world.add_job(job.id, arrival)
            self.progress.submitted += len(due)

    def _has_scheduled_events(self) -> bool:
        """Whether something will come by itself: an arrival, a machine's next change, a unit's end."""
        clouds = (cloud.next_event_at() for cloud in self._clouds)
        return bool(self._waiting) or self._runner.next_event_at() is not None or any(at is not None for at in clouds)

    def _step_s(self, outcome: ApplyResult, still_s: float) -> float:
        """Return how far to go: a cycle while something moves; else to what happens or is due next, at most ten
        seconds, or a minute when all has just gone on for an hour; straight to it if there are no jobs at all."""
        step_s = self.setting.cycle_s
        if outcome.moved:
            return step_s
        happens_at = [self._runner.next_event_at(), *(cloud.next_event_at() for cloud in self._clouds)]
        events = [outcome.due_at, *(at for at in happens_at if at is not None)]
        if self._waiting:
            events.append(self.setting.starts_at + self._waiting[-1].at_s)
        quiet_s = IDLE_STEP_S if still_s > HOUR_S else QUIET_STEP_S
        if self._waiting and not self.store.live().jobs and not self._has_rented_machines():
            quiet_s = math.inf
        return max(step_s, math.ceil(min(quiet_s, min(events) - self.clock.now() - 1e-6)))

    def _wait_reasons(self) -> str:
        waits = {job.wait_code: job.wait_text for job in self.store.live().jobs if job.wait_code}
        told = "; ".join(f"{code} ({text})" for code, text in sorted(waits.items()))
        return f"they wait for {told}" if told else "they are still running"

    def commitments(self) -> tuple[Commitment, ...]:
        """Return what is reserved on this cloud; asked before the first cycle, while nothing of it is in use.

        Raises BadInput where the settings reserve a type that the cloud does not have, or it has no reserved machines.
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
        """Return what each job submitted so far that has a target does at its best."""
        return {job_id: ideal for job_id, ideal in self._ideals.items() if ideal.counts}

    def qos_losses(self, performances: Sequence[JobPerformance]) -> Mapping[str, int]:
        """Return how many jobs lost their QoS by what (:mod:`hcloud.simulator.qos_losses`); nothing without a truth."""
        return {} if self._world is None else count_qos_losses(self.events(), performances, self._specs, self._world)

    def events(self) -> Iterator[Event]:
        """Yield all that happened."""
        return self.store.iter_events()

    def close(self) -> None:
        """Let go of the database."""
        self.store.close()


def _is_of_profiling(job: Job) -> bool:
    return job.spec.profile is not None


@contextmanager
def simulated(setting: Setting, folder: Path) -> Iterator[Simulation]:
    """Open a simulation for a block."""
    simulation = Simulation(setting, folder)
    try:
        yield simulation
    finally:
        simulation.close()


def _check_reserved(wanted: object, offers: Sequence[Offer]) -> None:
    """Raise BadInput where what is reserved (by type, or ``ZONE/TYPE``) is not among what a cloud offers, or none of it
    can be reserved there: it would be passed over in silence."""
    if not isinstance(wanted, Mapping):
        return
    types = {offer.instance_type.name for offer in offers}
    reserved = [offer for offer in offers if offer.market is Market.RESERVED]
    places = {o.instance_type.name for o in reserved} | {f"{o.zone}/{o.instance_type.name}" for o in reserved}
    for place in (str(name) for name, count in wanted.items() if count):
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
        run_dir=Path("run"),  # nobody is called there; the path of a folder may be too long for a socket
        providers=tuple(
            ProviderSettings(name=name, type="mock", settings={"seed": setting.seed, **cloud})
            for name, cloud in setting.providers.items()
        ),
        engine=EngineSettings(runner="fake"),
    )
