"""The truth of a simulated world, which the planner never sees: it learns from noisy profiling and from what jobs do.

A unit's speed at any moment is type x size x neighbours x external load x machine x phase. The fake engine asks for it
anew whenever units come and go, and when this world says that something changes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hcloud.classifier.applications import identify
from hcloud.classifier.library import Library
from hcloud.core.errors import BadInput
from hcloud.core.estimates import MOST_KNEES, Findings, Measure, Reading, next_knee
from hcloud.core.model import JobSpec, Market, Resources, ServiceTarget
from hcloud.fake_runner.profile import measured_as, profiling_s, why_not_measured
from hcloud.fake_runner.work import Resident, Work
from hcloud.provider import SimulatedMachine, UnitSpec, unmarked
from hcloud.simulator.program_models import (
    NOTHING_CAUSED,
    SOURCES,
    STEADY,
    Phase,
    ProgramModel,
    Ranking,
    draw_program,
    offline_library,
    ranking_by_room,
    seeded_random,
    type_speeds,
)
from hcloud.simulator.workload import Arrival

Z95 = 1.96
FULL_VCPUS = 16.0
"""A machine of so many vCPUs is a whole server: nobody else is on it (HCloud §8.2)."""
SERVICE_LOAD, BEST_LATENCY_RATIO = 0.5, 0.6
"""A service alone on its best type is busy half of the time, and its latency is this part of what it promised. Then the
promise holds down to a speed of 0.8 (a queue with one server)."""
SERVED_RATE_FACTOR = 1.1
"""It serves a tenth more requests than are promised: nobody promises the last one, and no measurement is exact."""
STRAGGLER_SPEED = 0.4
"""A straggler makes less than half of the usual progress (Quasar, Dissertation §4.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a world is like. Everything follows from these numbers and the seed.

    ``heterogeneity``: how much machine types differ (0: not at all; 1: as measured on clouds; 5: old and new servers
    side by side). ``room``: vCPUs there are of each type in all, on a cluster bought for what the programs
    run best on (:func:`hcloud.simulator.program_models.ranking_by_room`); empty: what all prefer alike is drawn by lot.
    ``sensitivity`` and ``pressure`` scale what programs feel and cause. ``external_load`` (share of a
    whole server) with its standard deviation ``external_swing`` is on all smaller machines that are not reserved
    (HCloud §8.2: 25 % +- 10 %); it changes every ``external_step_s``. ``drift``: standard deviation of a machine's
    speed over time; ec2 machines of one type differ by 0.2 to 0.5 % in CPU and memory, 2 to 3 % in serving the web
    (Scheuner & Leitner 2018). ``phased``: share of batch programs with phases. ``stragglers``: share of units that run
    at less than half speed. ``noise``: standard deviation of a profiling run's readings (lognormal).
    """

    heterogeneity: float = 1.0
    room: tuple[tuple[str, float], ...] = ()
    sensitivity: float = 1.0
    pressure: float = 1.0
    external_load: float = 0.25
    external_swing: float = 0.10
    external_step_s: float = 300.0
    drift: float = 0.02
    phased: float = 0.1
    stragglers: float = 0.01
    noise: float = 0.03

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name == "room":
                continue
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise BadInput(f"the world's {name} is {value}; it must be a number of at least 0")
        if self.external_step_s <= 0:
            raise BadInput(f"the world's external_step_s is {self.external_step_s}; it must be more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTruth:
    """What is true of one job: its program, how long it takes at its best, what it asked for, and its program's speed
    on the best type on which it fits (1: on the best of all). ``most_vcpus``: more make it no faster."""

    run_s: float
    spec: JobSpec
    program: ProgramModel
    best: float
    needs_vcpus: float
    most_vcpus: float = math.inf

    def on_vcpus(self, vcpus: float) -> float:
        """Return its speed with so many vCPUs, as a factor of that with what it needs."""
        return self.program.on_vcpus(min(vcpus, self.most_vcpus)) / self.program.on_vcpus(self.needs_vcpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MachineConditions:
    """How others press on a machine from outside, until when, and how its speed has drifted."""

    step: int
    outside: Sequence[float]
    until: float
    drift: float


@dataclass(slots=True)
class World:
    """The truth about programs and machines. ``types``: every machine type there is, by name, whoever offers it."""

    truth: Truth
    seed: int
    types: Mapping[str, Resources]
    providers: tuple[str, ...]
    _ranking: Ranking | None = None
    _programs: dict[str, ProgramModel] = field(default_factory=dict)
    _speeds: dict[str, dict[str, float]] = field(default_factory=dict)
    _tasks: dict[str, JobTruth] = field(default_factory=dict)
    _conditions: dict[tuple[str, str, Market], _MachineConditions] = field(default_factory=dict)
    _neighbour_profiles: dict[str, Sequence[float]] = field(default_factory=dict)
    _straggling: dict[str, bool] = field(default_factory=dict)

    def library(self) -> Library:
        """Return the programs that were profiled on all machine types before the simulation begins."""
        columns = tuple(f"{each}/" for each in self.providers)
        vcpus = {name: each.vcpus for name, each in self.types.items()}
        return offline_library(self.seed, vcpus, columns, heterogeneity=self.truth.heterogeneity, ranking=self.ranking)

    @property
    def ranking(self) -> Ranking | None:
        """What all programs prefer alike, where that follows the room there is; None: it is drawn by lot."""
        if self._ranking is None and self.truth.room:
            vcpus = {name: each.vcpus for name, each in self.types.items()}
            self._ranking = ranking_by_room(self.seed, vcpus, dict(self.truth.room), self.truth.heterogeneity)
        return self._ranking

    # ------------------------------------------------------------------------------------------------------------- jobs
    def add_job(self, job_id: str, arrival: Arrival) -> None:
        """Learn what a submitted job really is."""
        spec = arrival.spec
        model = self.program_model(spec)
        needs = arrival.needs_vcpus or spec.resources.vcpus
        wanted = replace(spec.resources, vcpus=needs)
        self._tasks[job_id] = JobTruth(
            run_s=arrival.run_s,
            spec=spec,
            program=model,
            best=self._best_speed(model, wanted),
            needs_vcpus=needs,
            most_vcpus=arrival.needs_vcpus or math.inf,
        )

    def _best_speed(self, model: ProgramModel, wanted: Resources) -> float:
        fitting = [self.speed_on_type(model, name) for name, size in self.types.items() if wanted.fits(size)]
        return max(fitting, default=1.0)

    def relative_speed(self, spec: JobSpec, type_name: str) -> float:
        """Return the speed of a job on a machine type, 1 on the best of those on which it fits."""
        model = self.program_model(spec)
        return self.speed_on_type(model, type_name) / self._best_speed(model, spec.resources)

    def known_program(self, program: str) -> ProgramModel | None:
        """Return a program by its name (``Identity.program``), if one of its jobs was ever taken in."""
        return self._programs.get(program)

    def alone_s(self, arrival: Arrival) -> float:
        """Return how long a job takes alone on its best type, through all its phases."""
        begin, took_s = 0.0, 0.0
        for phase in (*self.program_model(arrival.spec).phases, STEADY):
            end = min(1.0, phase.until)
            begin, took_s = end, took_s + arrival.run_s * (end - begin) / phase.speed
        return took_s

    def forget(self, job_id: str) -> None:
        """Let go of a job that has ended."""
        self._tasks.pop(job_id, None)

    def program_model(self, spec: JobSpec) -> ProgramModel:
        """Return the program a job runs; its tag ``program_kind`` (or its target) says of which kind that is."""
        program = identify(spec).program
        found = self._programs.get(program)
        if found is None:
            kind = spec.tags.get("program_kind") or ("service" if spec.target.kind == "service" else "single")
            drawn = draw_program(program, kind, self.seed, phased=self.truth.phased)
            found = self._programs[program] = replace(
                drawn,
                tolerated=tuple(each / max(self.truth.sensitivity, 1e-9) for each in drawn.tolerated),
                caused=tuple(min(100.0, each * self.truth.pressure) for each in drawn.caused),
            )
        return found

    def work(self, unit: UnitSpec) -> Work:
        """Return what a unit does at its best; a profiling run measures copies of the job it is made for."""
        task = self._task(unit)
        target, use = task.spec.target, task.program.use
        memory_mib = min(use[1], unit.resources.memory_mib)
        if isinstance(target, ServiceTarget):
            return Work(
                duration_s=task.run_s,
                timed=True,
                memory_mib=memory_mib,
                requests_per_s=SERVED_RATE_FACTOR * target.requests_per_s / max(1, task.spec.nodes.count),
                latency_ms={"99": BEST_LATENCY_RATIO * target.latency_ms},
                load=SERVICE_LOAD,
                promised_ms=target.latency_ms,
            )
        return Work(duration_s=task.run_s, memory_mib=memory_mib, cpu_share=use[0])

    def _task(self, unit: UnitSpec) -> JobTruth:
        return self._tasks[unit.profile.job_id if unit.profile else unit.id.partition(".")[0]]

    # ------------------------------------------------------------------------------------------------------------ speed
    def speeds(
        self, machine: SimulatedMachine, residents: Sequence[Resident], now: float
    ) -> tuple[Sequence[float], float]:
        """Return how fast each unit on a machine is, and until when (see :class:`Surroundings`)."""
        tasks = [self._task(each.unit) for each in residents]
        phases = [self._phase(each, task) for each, task in zip(residents, tasks, strict=True)]
        pressing = [
            task.program.caused if phase.pressure == 1.0 else [each * phase.pressure for each in task.program.caused]
            for task, phase in zip(tasks, phases, strict=True)
        ]
        weather = self._conditions_of(machine, now)
        outside, until = weather.outside, weather.until
        together = [sum(each) for each in zip(outside, *pressing, strict=True)]
        alike = machine.quality * weather.drift
        speeds = []
        for resident, task, phase, own in zip(residents, tasks, phases, pressing, strict=True):
            others = zip(together, own, strict=True)
            felt = [rest if (rest := total - mine) < 100.0 else 100.0 for total, mine in others]
            speed = (
                alike
                * task.program.performance_under(felt)
                * phase.speed
                * self._unit_factor(machine, resident.unit, task)
            )
            speeds.append(speed)
            if phase.until < math.inf:
                until = min(until, now + max(1e-3, (phase.until * resident.work.duration_s - resident.done_s) / speed))
        return speeds, until

    def _phase(self, resident: Resident, task: JobTruth) -> Phase:
        if not task.program.phases:
            return STEADY
        return task.program.phase(resident.done_s / max(resident.work.duration_s, 1e-9))

    def _unit_factor(self, machine: SimulatedMachine, unit: UnitSpec, task: JobTruth) -> float:
        """Return the factor of type, size and luck; of a unit that is measured they are in what is found."""
        if unit.profile is not None:
            return 1.0
        asked, model = task.spec, task.program
        factor = self.speed_on_type(model, machine.type_name) / task.best
        if unit.resources.vcpus != task.needs_vcpus:
            factor *= task.on_vcpus(unit.resources.vcpus)
        if (nodes := max(1, len(unit.peers))) != asked.nodes.count:
            factor *= model.on_nodes(nodes) / model.on_nodes(asked.nodes.count)
        return factor * STRAGGLER_SPEED if self._straggles(unit.id) else factor

    def _straggles(self, unit_id: str) -> bool:
        share = self.truth.stragglers
        if unit_id not in self._straggling:
            chances = seeded_random(self.seed, "straggler", unmarked(unit_id))
            self._straggling[unit_id] = share > 0 and chances.random() < share
        return self._straggling[unit_id]

    def speed_on_type(self, model: ProgramModel, type_name: str) -> float:
        """Return the speed of a program on a machine type, 1 on the best there is, whether or not a job fits there."""
        speeds = self._speeds.get(model.name)
        if speeds is None:
            speeds = type_speeds(model, list(self.types), self.seed, self.truth.heterogeneity, self.ranking)
            self._speeds[model.name] = speeds
        return speeds[type_name]

    def _conditions_of(self, machine: SimulatedMachine, now: float) -> _MachineConditions:
        """Return what is so on a machine until the next step, whoever runs there; drawn once for each step."""
        step = math.floor(now / self.truth.external_step_s)
        which = (machine.instance_id, machine.type_name, machine.market)
        known = self._conditions.get(which)
        if known is None or known.step != step:
            outside = self._outside(machine, step)
            # Where nobody else is, a machine drifts all the same, however long the same units stay.
            changes = self.truth.drift > 0 or outside is not NOTHING_CAUSED
            until = (step + 1) * self.truth.external_step_s if changes else math.inf
            known = _MachineConditions(step=step, outside=outside, until=until, drift=self._drift(machine, step))
            self._conditions[which] = known
        return known

    def _outside(self, machine: SimulatedMachine, step: int) -> Sequence[float]:
        """Return how others press on a machine from outside during a step."""
        truth, shared = self.truth, 1.0 - machine.capacity.vcpus / FULL_VCPUS
        if truth.external_load <= 0 or shared <= 0 or machine.market is Market.RESERVED:
            return NOTHING_CAUSED
        chances = seeded_random(self.seed, "outside", machine.instance_id, step)
        load = max(0.0, chances.gauss(truth.external_load, truth.external_swing))
        return [min(100.0, 100.0 * load * shared * each) for each in self._neighbour_profile(machine)]

    def _neighbour_profile(self, machine: SimulatedMachine) -> Sequence[float]:
        """Return on which resources the neighbours of this machine bear most: around 1, always the same."""
        found = self._neighbour_profiles.get(machine.instance_id)
        if found is None:
            chances = seeded_random(self.seed, "bearing", machine.instance_id)
            found = self._neighbour_profiles[machine.instance_id] = [
                chances.lognormvariate(-0.125, 0.5) for _ in SOURCES
            ]
        return found

    def _drift(self, machine: SimulatedMachine, step: int) -> float:
        """Return the factor of a machine's speed during a step: part of it changes with each, part every six."""
        if not self.truth.drift:
            return 1.0
        slow = seeded_random(self.seed, "drift", machine.instance_id, step // 6).gauss(0, 0.8)
        return math.exp(
            self.truth.drift * (slow + seeded_random(self.seed, "drift", machine.instance_id, step).gauss(0, 0.6))
        )

    # -------------------------------------------------------------------------------------------------------- profiling
    def profile(self, unit: UnitSpec, work: Work, speed: float) -> Findings:
        """Return what a profiling run finds: the truth, with noise; of a program that cannot be measured, why not."""
        assert unit.profile is not None
        if reason := why_not_measured(unit, work):
            return Findings(notes=(reason,), duration_s=min(unit.profile.run_s, work.duration_s))
        task = self._task(unit)
        measure, best = measured_as(unit, work)
        noisy = seeded_random(self.seed, "profiling", unmarked(unit.id))
        readings = tuple(self._readings(unit, task, measure, best * speed, noisy))
        vcpus, (busy, memory_mib, read, written) = unit.profile.steps_vcpus[0], task.program.use
        use = (busy * vcpus, memory_mib, read, written)
        return Findings(measure=measure, readings=readings, use=use, duration_s=profiling_s(unit.profile))

    def _readings(
        self, unit: UnitSpec, task: JobTruth, measure: Measure, best: float, noisy: random.Random
    ) -> Iterator[Reading]:
        request, model = unit.profile, task.program
        assert request is not None
        asked, type_name = task.spec, request.type_column.rpartition("/")[2]
        # A count of CPU time does not tell how much is done in it.
        on_type = 1.0 if measure is Measure.CPU else self.speed_on_type(model, type_name)
        alone = best * on_type / task.best / model.on_nodes(asked.nodes.count)
        if request.nodes > 1:
            value = alone * task.on_vcpus(request.steps_vcpus[0]) * model.on_nodes(request.nodes)
            yield self._ratio("nodes", str(request.nodes), value, noisy)
            return
        rates = dict[float, float]()
        for index, vcpus in enumerate(request.steps_vcpus[:1] if request.look else request.steps_vcpus):
            reading = self._ratio("step", f"{vcpus:g} vCPU", alone * task.on_vcpus(vcpus), noisy)
            rates[vcpus] = reading.value
            if index == 0:
                yield replace(reading, question="type", column=request.type_column)
                yield replace(reading, question="nodes", column="1")
            yield reading
        for _ in range(MOST_KNEES) if request.knees and not request.look else ():
            if (at := next_knee(rates)) is not None:
                reading = self._ratio("step", f"{at:g} vCPU", alone * task.on_vcpus(at), noisy)
                rates[at] = reading.value
                yield reading
        for name in () if request.look else request.sources:
            for question, truth in (("tolerated", model.tolerated), ("caused", model.caused)):
                value = truth[SOURCES.index(name)] if name in SOURCES else 100.0 if question == "tolerated" else 0.0
                yield self._score(question, name, value, noisy)

    def _ratio(self, question: str, column: str, truth: float, noisy: random.Random) -> Reading:
        value, reach = truth * math.exp(noisy.gauss(0, self.truth.noise)), math.exp(Z95 * self.truth.noise)
        return Reading(question=question, column=column, value=value, low=value / reach, high=value * reach, runs=3)

    def _score(self, question: str, column: str, truth: float, noisy: random.Random) -> Reading:
        value = min(100.0, truth * math.exp(noisy.gauss(0, 2 * self.truth.noise)))
        reach = math.exp(2 * Z95 * self.truth.noise)
        return Reading(
            question=question, column=column, value=value, low=value / reach, high=min(100.0, value * reach), runs=2
        )
