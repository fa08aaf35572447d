"""The true behaviour of programs and machines in a simulated world.

The planner never sees it; it learns only from noisy profiling and from what jobs do. A unit's speed is type x size x
neighbours x external load x machine x phase. The fake engine recomputes speeds whenever units start or end, and when
this world changes by itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hcloud.classifier.applications import identify
from hcloud.classifier.library import Library, Question
from hcloud.core.errors import BadInput
from hcloud.core.estimates import MOST_KNEES, Findings, Measure, Reading, next_knee
from hcloud.core.model import JobSpec, Market, Resources, ServiceTarget
from hcloud.fake_runner.profile import measured_as, profiling_s, why_not_measured
from hcloud.fake_runner.work import Resident, Work
from hcloud.provider import SimulatedMachine, UnitSpec, unmarked
from hcloud.simulator.measured_programs import MeasuredPrograms
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
"""A machine of this size is a whole server and has no other tenants (HCloud §8.2)."""
SERVICE_LOAD, BEST_LATENCY_RATIO = 0.5, 0.6
"""A service alone on its best type is busy half of the time, and its latency is this fraction of its target. The target
then holds down to a speed of 0.8 (a queue with one server)."""
SERVED_RATE_FACTOR = 1.1
"""A service serves a tenth more requests than its target, as no measurement is exact."""
STRAGGLER_SPEED = 0.4
"""A straggler makes less than half of the usual progress (Quasar, Dissertation §4.4)."""
HALTED_SHARE = 0.17
"""The part of a run in place for which the unit it measures is halted, as measured on a real one (18 to 21 % less)."""
IN_PLACE_NOISE = 2.0
"""Readings in place vary by so many times more: neighbours are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Parameters of a simulated world. Everything else follows from them and the seed."""

    heterogeneity: float = 1.0
    """How much machine types differ. 0: not at all; 1: as measured on clouds; 5: old and new servers in one cluster."""
    room: tuple[tuple[str, float], ...] = ()
    """vCPUs in total by type, on a cluster bought to suit its programs
    (:func:`hcloud.simulator.program_models.ranking_by_room`). Empty: the common ranking of types is random."""
    sensitivity: float = 1.0
    """Scales how strongly programs react to interference."""
    pressure: float = 1.0
    """Scales the interference that programs cause."""
    external_load: float = 0.25
    """Mean load of other tenants, as a share of a whole server, on machines smaller than a server that are not reserved
    (HCloud §8.2: 25 % +- 10 %)."""
    external_swing: float = 0.10
    """Standard deviation of ``external_load``."""
    external_step_s: float = 300.0
    """How often the external load changes."""
    external_severity: float = 1.0
    """How many times as much other tenants slow programs as neighbours in the fleet that press as hard
    (:data:`CLOUDS_OF_2014`)."""
    drift: float = 0.02
    """Standard deviation of a machine's speed over time. EC2 machines of one type differ by 0.2 to 0.5 % in CPU and
    memory and by 2 to 3 % in web serving (Scheuner & Leitner 2018)."""
    phased: float = 0.1
    """Share of batch programs with phases."""
    stragglers: float = 0.01
    """Share of units that run at less than half speed."""
    noise: float = 0.03
    """Standard deviation of the readings of a profiling run (lognormal)."""
    measured: bool = False
    """Programs are those of the shipped library, readings have its errors, and the planner begins with the programs
    that none of them was drawn from (:mod:`hcloud.simulator.measured_programs`). False: services and frameworks follow
    ranges stated in papers, readings have ``noise``, and the planner begins with programs that were profiled on all
    machine types."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name in ("room", "measured"):
                continue
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise BadInput(f"the world's {name} is {value}; it must be a number of at least 0")
        if self.external_step_s <= 0:
            raise BadInput(f"the world's external_step_s is {self.external_step_s}; it must be more than 0")


CLOUDS_OF_2014 = Truth(external_severity=32.0)
"""Today's clouds vary by 2 to 3 %; those of HCloud's chapter slowed programs on slices of a server far more. One
published number calibrates how much: jobs did 2.2 times better on reserved servers (SR) than on rented machines of
their own size (OdM; Dissertation §8.3.2), here with the sizes that programs need and nothing known of them
(``python -m lab.papers --figure calibration-2014``). All other numbers of that world are results."""
WORLDS: Mapping[str, Truth] = {"today": Truth(measured=True), "clouds-of-2014": CLOUDS_OF_2014}
"""Worlds by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTruth:
    """The true behaviour of one job."""

    run_s: float
    """Run time at its best."""
    spec: JobSpec
    program: ProgramModel
    best: float
    """The program's speed on the best type on which the job fits; 1 is the best of all types."""
    needs_vcpus: float
    """The vCPUs with which it runs for ``run_s``."""
    most_vcpus: float = math.inf
    """More vCPUs make it no faster."""

    def on_vcpus(self, vcpus: float) -> float:
        """Return the speed with ``vcpus``, relative to that with ``needs_vcpus``."""
        return self.program.on_vcpus(min(vcpus, self.most_vcpus)) / self.program.on_vcpus(self.needs_vcpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MachineConditions:
    """External pressure on a machine and its drift, constant until ``until``."""

    step: int
    outside: Sequence[float]
    until: float
    drift: float


@dataclass(slots=True)
class World:
    """The truth about programs and machines."""

    truth: Truth
    seed: int
    types: Mapping[str, Resources]
    """Every machine type of all providers, by name."""
    providers: tuple[str, ...]
    _ranking: Ranking | None = None
    _programs: dict[str, ProgramModel] = field(default_factory=dict)
    _speeds: dict[str, dict[str, float]] = field(default_factory=dict)
    _tasks: dict[str, JobTruth] = field(default_factory=dict)
    _conditions: dict[tuple[str, str, Market], _MachineConditions] = field(default_factory=dict)
    _slow_drifts: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By machine, the part of its drift that changes with every sixth step, with its number."""
    phases: dict[str, Phase] = field(default_factory=dict)
    """The present phase of each unit whose program has phases."""
    _neighbour_profiles: dict[str, Sequence[float]] = field(default_factory=dict)
    _straggling: dict[str, bool] = field(default_factory=dict)
    measured: MeasuredPrograms | None = None
    """What programs are drawn from if ``Truth.measured``."""

    def __post_init__(self) -> None:
        if self.truth.measured:
            self.measured = MeasuredPrograms.split(self.seed)

    def library(self) -> Library:
        """Return the programs that the planner knows before the simulation begins."""
        if self.measured is not None:
            return self.measured.library()
        columns = tuple(f"{each}/" for each in self.providers)
        vcpus = {name: each.vcpus for name, each in self.types.items()}
        return offline_library(self.seed, vcpus, columns, heterogeneity=self.truth.heterogeneity, ranking=self.ranking)

    @property
    def ranking(self) -> Ranking | None:
        """The common preference of all programs for types if it follows ``Truth.room``; None if it is random."""
        if self._ranking is None and self.truth.room:
            vcpus = {name: each.vcpus for name, each in self.types.items()}
            self._ranking = ranking_by_room(self.seed, vcpus, dict(self.truth.room), self.truth.heterogeneity)
        return self._ranking

    # ------------------------------------------------------------------------------------------------------------- jobs
    def add_job(self, job_id: str, arrival: Arrival) -> None:
        """Register a submitted job with its true behaviour."""
        spec = arrival.spec
        model = self.program_model(spec)
        needs_vcpus = arrival.needs_vcpus or spec.resources.vcpus
        self._tasks[job_id] = JobTruth(
            run_s=arrival.run_s,
            spec=spec,
            program=model,
            best=self._best_speed(model, replace(spec.resources, vcpus=needs_vcpus)),
            needs_vcpus=needs_vcpus,
            most_vcpus=arrival.needs_vcpus or math.inf,
        )

    def _best_speed(self, model: ProgramModel, needed: Resources) -> float:
        fitting = [self.speed_on_type(model, name) for name, size in self.types.items() if needed.fits(size)]
        return max(fitting, default=1.0)

    def relative_speed(self, spec: JobSpec, type_name: str) -> float:
        """Return a job's speed on a machine type; 1 is the best of the types on which it fits."""
        model = self.program_model(spec)
        return self.speed_on_type(model, type_name) / self._best_speed(model, spec.resources)

    def known_program(self, program: str) -> ProgramModel | None:
        """Return a program by its name (``Identity.program``) if a job of it was added, else None."""
        return self._programs.get(program)

    def alone_s(self, arrival: Arrival) -> float:
        """Return the run time of a job alone on its best type, through all its phases."""
        begin, took_s = 0.0, 0.0
        for phase in (*self.program_model(arrival.spec).phases, STEADY):
            end = min(1.0, phase.until)
            begin, took_s = end, took_s + arrival.run_s * (end - begin) / phase.speed
        return took_s

    def forget(self, job_id: str) -> None:
        """Drop a job that has ended."""
        self._tasks.pop(job_id, None)

    def program_model(self, spec: JobSpec) -> ProgramModel:
        """Return the program of a job. Its kind is the tag ``program_kind``, or follows from the target."""
        program = identify(spec).program
        model = self._programs.get(program)
        if model is None:
            kind = spec.tags.get("program_kind") or ("service" if spec.target.kind == "service" else "single")
            drawn = self._draw(program, kind)
            model = self._programs[program] = replace(
                drawn,
                tolerated=tuple(each / max(self.truth.sensitivity, 1e-9) for each in drawn.tolerated),
                caused=tuple(min(100.0, each * self.truth.pressure) for each in drawn.caused),
            )
        return model

    def _draw(self, program: str, kind: str) -> ProgramModel:
        if self.measured is not None:
            return self.measured.draw(program, kind, phased=self.truth.phased)
        return draw_program(program, kind, self.seed, phased=self.truth.phased)

    def work(self, unit: UnitSpec) -> Work:
        """Return what a unit does at its best. A profiling run measures copies of the job it profiles."""
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
                most_vcpus=task.most_vcpus,
            )
        return Work(duration_s=task.run_s, memory_mib=memory_mib, cpu_share=use[0], most_vcpus=task.most_vcpus)

    def _task(self, unit: UnitSpec) -> JobTruth:
        return self._tasks[unit.profile.job_id if unit.profile else unit.id.partition(".")[0]]

    # ------------------------------------------------------------------------------------------------------------ speed
    def speeds(
        self, machine: SimulatedMachine, residents: Sequence[Resident], now: float
    ) -> tuple[Sequence[float], float]:
        """Return the speed of each unit on a machine, and until when these speeds hold (see :class:`Surroundings`)."""
        tasks = [self._task(each.unit) for each in residents]
        phases = [self._phase(each, task) for each, task in zip(residents, tasks, strict=True)]
        pressing = [
            self._pressure(each.unit, task, phase) for each, task, phase in zip(residents, tasks, phases, strict=True)
        ]
        conditions = self._conditions_of(machine, now)
        outside, until = conditions.outside, conditions.until
        together = [sum(each) for each in zip(outside, *pressing, strict=True)]
        machine_speed, severer = machine.quality * conditions.drift, self.truth.external_severity - 1.0
        halted = {
            each.unit.profile.unit_id: 1.0 - HALTED_SHARE
            for each in residents
            if each.unit.profile is not None and any(one.question == "caused" for one in each.unit.profile.expected)
        }
        speeds = []
        for resident, task, phase, own in zip(residents, tasks, phases, pressing, strict=True):
            pairs = zip(together, own, strict=True)
            from_others = [rest if (rest := total - mine) < 100.0 else 100.0 for total, mine in pairs]
            if severer and outside is not NOTHING_CAUSED:
                from_others = [each + severer * other for each, other in zip(from_others, outside, strict=True)]
            speed = machine_speed * task.program.performance_under(from_others) * phase.speed
            speed *= self._unit_factor(machine, resident.unit, task) * halted.get(resident.unit.id, 1.0)
            speeds.append(speed)
            if phase.until < math.inf:
                until = min(until, now + max(1e-3, (phase.until * resident.work.duration_s - resident.done_s) / speed))
        return speeds, until

    def _phase(self, resident: Resident, task: JobTruth) -> Phase:
        if not task.program.phases or resident.unit.profile is not None:
            return STEADY
        phase = task.program.phase(resident.done_s / max(resident.work.duration_s, 1e-9))
        self.phases[resident.unit.id] = phase
        return phase

    def _pressure(self, unit: UnitSpec, task: JobTruth, phase: Phase) -> Sequence[float]:
        """Return what a unit presses on, by source. Sources that press beside a running unit do so half of the time."""
        if unit.profile is not None and unit.profile.unit_id:
            beside = {each.column: each.value / 2 for each in unit.profile.expected if each.question == "tolerated"}
            return [beside.get(source, 0.0) for source in SOURCES]
        caused = task.program.caused
        return caused if phase.pressure == 1.0 else [each * phase.pressure for each in caused]

    def _unit_factor(self, machine: SimulatedMachine, unit: UnitSpec, task: JobTruth) -> float:
        """Return the factor of type, size and straggling. It is 1 for a profiling run, whose readings include them."""
        if unit.profile is not None:
            return 1.0
        spec, model = task.spec, task.program
        factor = self.speed_on_type(model, machine.type_name) / task.best / spec.stretch_on(machine.type_name)
        if unit.resources.vcpus != task.needs_vcpus:
            factor *= task.on_vcpus(unit.resources.vcpus)
        if (nodes := max(1, len(unit.peers))) != spec.nodes.count:
            factor *= model.on_nodes(nodes) / model.on_nodes(spec.nodes.count)
        return factor * STRAGGLER_SPEED if self._straggles(unit.id) else factor

    def _straggles(self, unit_id: str) -> bool:
        share = self.truth.stragglers
        if share <= 0:
            return False
        if unit_id not in self._straggling:
            chances = seeded_random(self.seed, "straggler", unmarked(unit_id))
            self._straggling[unit_id] = chances.random() < share
        return self._straggling[unit_id]

    def speed_on_type(self, model: ProgramModel, type_name: str) -> float:
        """Return a program's speed on a machine type; 1 is the best of all types, whether or not a job fits there."""
        speeds = self._speeds.get(model.name)
        if speeds is None:
            speeds = type_speeds(model, list(self.types), self.seed, self.truth.heterogeneity, self.ranking)
            self._speeds[model.name] = speeds
        return speeds[type_name]

    def _conditions_of(self, machine: SimulatedMachine, now: float) -> _MachineConditions:
        """Return a machine's conditions, drawn once per step."""
        step = math.floor(now / self.truth.external_step_s)
        key = (machine.instance_id, machine.type_name, machine.market)
        known = self._conditions.get(key)
        if known is None or known.step != step:
            outside = self._outside(machine, step)
            # A machine without other tenants drifts as well, even while the same units stay on it.
            changes = self.truth.drift > 0 or outside is not NOTHING_CAUSED
            until = (step + 1) * self.truth.external_step_s if changes else math.inf
            known = _MachineConditions(step=step, outside=outside, until=until, drift=self._drift(machine, step))
            self._conditions[key] = known
        return known

    def _outside(self, machine: SimulatedMachine, step: int) -> Sequence[float]:
        """Return the pressure of other tenants on a machine during a step."""
        truth, shared = self.truth, 1.0 - machine.capacity.vcpus / FULL_VCPUS
        if truth.external_load <= 0 or shared <= 0 or machine.market is Market.RESERVED:
            return NOTHING_CAUSED
        chances = seeded_random(self.seed, "outside", machine.instance_id, step)
        load = max(0.0, chances.gauss(truth.external_load, truth.external_swing))
        return [min(100.0, 100.0 * load * shared * each) for each in self._neighbour_profile(machine)]

    def _neighbour_profile(self, machine: SimulatedMachine) -> Sequence[float]:
        """Return fixed weights around 1, by source, of what other tenants of a machine press on."""
        profile = self._neighbour_profiles.get(machine.instance_id)
        if profile is None:
            rng = seeded_random(self.seed, "bearing", machine.instance_id)
            profile = [rng.lognormvariate(-0.125, 0.5) for _ in SOURCES]
            self._neighbour_profiles[machine.instance_id] = profile
        return profile

    def _drift(self, machine: SimulatedMachine, step: int) -> float:
        if not self.truth.drift:
            return 1.0
        # One part of the drift changes with each step, the other with every sixth.
        at, slow = self._slow_drifts.get(machine.instance_id, (-1, 0.0))
        if at != step // 6:
            slow = seeded_random(self.seed, "drift", machine.instance_id, step // 6).gauss(0, 0.8)
            self._slow_drifts[machine.instance_id] = step // 6, slow
        fast = seeded_random(self.seed, "drift", machine.instance_id, step).gauss(0, 0.6)
        return math.exp(self.truth.drift * (slow + fast))

    # -------------------------------------------------------------------------------------------------------- profiling
    def profile(self, unit: UnitSpec, work: Work, speed: float) -> Findings:
        """Return the findings of a profiling run: the truth with noise, or a note on why the program cannot be
        measured."""
        assert unit.profile is not None
        if reason := why_not_measured(unit, work):
            return Findings(notes=(reason,), duration_s=min(unit.profile.run_s, work.duration_s))
        task = self._task(unit)
        measure, best = measured_as(unit, work)
        if unit.profile.unit_id:
            return Findings(
                measure=measure, readings=tuple(self._in_place(unit, task)), duration_s=unit.profile.total_s
            )
        noisy = seeded_random(self.seed, "profiling", unmarked(unit.id))
        readings = tuple(self._readings(unit, task, measure, best * speed, noisy))
        vcpus, (busy, memory_mib, read, written) = unit.profile.steps_vcpus[0], task.program.use
        use = (busy * min(vcpus, task.most_vcpus), memory_mib, read, written)
        return Findings(measure=measure, readings=readings, use=use, duration_s=profiling_s(unit.profile))

    def _readings(
        self, unit: UnitSpec, task: JobTruth, measure: Measure, best: float, noisy: random.Random
    ) -> Iterator[Reading]:
        request, model = unit.profile, task.program
        assert request is not None
        spec, type_name = task.spec, request.type_column.rpartition("/")[2]
        # CPU time does not say how much work is done in it.
        on_type = 1.0 if measure is Measure.CPU else self.speed_on_type(model, type_name)
        alone = best * on_type / task.best / model.on_nodes(spec.nodes.count)
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
            for question, value in zip(("tolerated", "caused"), model.pressures(name), strict=True):
                yield self._score(question, name, value, noisy)

    def _in_place(self, unit: UnitSpec, task: JobTruth) -> Iterator[Reading]:
        """Yield what a running unit shows in its present phase; it is pressed no harder than it is expected to bear."""
        request, model, noisy = unit.profile, task.program, seeded_random(self.seed, "profiling", unmarked(unit.id))
        assert request is not None
        pressure, vcpus = self.phases.get(request.unit_id, STEADY).pressure, request.steps_vcpus[0]
        beside = max(1.0, self.types[request.type_column.rpartition("/")[2]].vcpus - vcpus)
        highest = 100.0 * min(1.0, unit.resources.vcpus / beside)  # at 100 a source takes all CPUs beside the unit
        for each in request.expected:
            tolerated, caused = model.pressures(each.column)
            truth = tolerated if each.question == "tolerated" else min(100.0, caused * pressure)
            found = self._score(each.question, each.column, truth, noisy, IN_PLACE_NOISE)
            yield found if each.question == "caused" or found.value < min(each.value, highest) else each

    def _ratio(self, question: str, column: str, truth: float, noisy: random.Random) -> Reading:
        if self.measured is not None:
            return self.measured.reading(Question(question), column, truth, noisy)
        value, reach = truth * math.exp(noisy.gauss(0, self.truth.noise)), math.exp(Z95 * self.truth.noise)
        return Reading(question=question, column=column, value=value, low=value / reach, high=value * reach, runs=3)

    def _score(self, question: str, column: str, truth: float, noisy: random.Random, worse: float = 1.0) -> Reading:
        if self.measured is not None:
            return self.measured.reading(Question(question), column, truth, noisy, worse)
        noise = 2 * worse * self.truth.noise
        value, reach = min(100.0, truth * math.exp(noisy.gauss(0, noise))), math.exp(Z95 * noise)
        return Reading(
            question=question, column=column, value=value, low=value / reach, high=min(100.0, value * reach), runs=2
        )
