"""A simulated engine without processes: units on simulated machines, ended by the clock; for tests and simulations."""

from __future__ import annotations

import heapq
import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from operator import is_
from typing import Any, Literal, cast

from hcloud.core.arrays import Interval
from hcloud.core.clock import Clock
from hcloud.core.cpu_topology import cpu_list
from hcloud.core.errors import NotFound, UnitRefused, WorkerUnreachable
from hcloud.core.model import FailureCause, InstanceId, Resources, UnitId
from hcloud.core.rows import replace_fields
from hcloud.fake_runner.profile import ProfileOf, profile_of_work, profiling_work
from hcloud.fake_runner.sampling import FakeSamplePolicy, Gap
from hcloud.fake_runner.unit import FakeUnit, SimulatedUnit
from hcloud.fake_runner.work import Resident, Surroundings, Work, WorkOf, read_work, with_tasks, work_from
from hcloud.provider import (
    AdmittedMachine,
    CommandResult,
    Journal,
    LogChunk,
    LogPiece,
    MachineSource,
    OutputsManifest,
    OutputsPiece,
    PauseResult,
    ResizeResult,
    RunnerView,
    SimulatedMachine,
    StartResult,
    UnitReport,
    UnitSpec,
    UnitStream,
    WorkerReport,
)

__all__ = [
    "FakeRunner",
    "ProfileOf",
    "Resident",
    "Start",
    "StartFault",
    "Surroundings",
    "Work",
    "WorkOf",
    "read_work",
    "work_from",
]

UNIT, START = "unit:", "start:"


class StartFault(StrEnum):
    """A fault injected into a start."""

    LOSE_REPLY = "lose_reply"
    """The unit starts, but the outcome is unknown to the caller."""
    LOSE_REQUEST = "lose_request"
    """The unit does not start, and the outcome is unknown to the caller."""
    REFUSE = "refuse"
    """The unit does not start, and the caller knows."""
    NOT_SENT = "not_sent"
    """The start is not sent, and the caller knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One actual start of a unit: the ground truth for checking that no unit ran twice."""

    unit_id: UnitId
    instance_id: InstanceId
    at: float
    tasks: Sequence[Sequence[int]] = ()
    """First and last positions of the tasks that it runs, if it runs many."""


class FakeRunner:
    """A Runner on simulated machines. A worker is registered while its machine is up.

    If the first source has a journal, units, fences and starts are written to it. They then outlive this process, and
    other processes see them.
    """

    def __init__(
        self,
        sources: Sequence[MachineSource],
        clock: Clock,
        *,
        work: WorkOf = read_work,
        profile: ProfileOf = profile_of_work,
        surroundings: Surroundings | None = None,
        sample_every_s: float = 10.0,
        gap: Gap | None = None,
    ) -> None:
        """Simulate units on the machines of ``sources``.

        ``work``: what a unit does; ``profile``: findings of a profiling unit; ``surroundings``: speeds of co-located
        units (None: each at its machine's quality). Each worker samples every ``sample_every_s`` with its own phase;
        with a ``gap`` uneventful samples are skipped (see :class:`FakeSamplePolicy`).
        """
        self._sources = tuple(sources)
        self._clock = clock
        self._work, self._profile, self._surroundings = with_tasks(work), profile, surroundings
        self._sample_policy = FakeSamplePolicy(sample_every_s, gap)
        self._lock = threading.Lock()
        self._journal: Journal | None = self._sources[0].journal("units") if self._sources else None
        self._now = -math.inf
        self._views: list[Mapping[InstanceId, SimulatedMachine]] = []
        self._machines: dict[InstanceId, SimulatedMachine] = {}
        self._units: dict[UnitId, FakeUnit] = {}
        self._on: defaultdict[InstanceId, dict[UnitId, SimulatedUnit]] = defaultdict(dict)
        self._ends: list[tuple[float, UnitId, InstanceId]] = []
        self._turns: list[tuple[float, InstanceId]] = []
        self._turns_at: dict[InstanceId, float] = {}
        self._sampling: list[tuple[float, InstanceId]] = []
        self._changed: set[InstanceId] = set()
        self._reports: dict[InstanceId, WorkerReport] = {}
        self._sampled_next_at: dict[InstanceId, float] = {}
        self._view = RunnerView(workers=())
        self._starts: list[Start] = []
        self._faults: list[StartFault] = []
        self._silent: set[InstanceId] = set()
        self._holding: set[InstanceId] = set()
        self._held: dict[UnitId, UnitSpec] = {}
        self._late: dict[UnitId, StartResult] = {}
        self._rigid: set[InstanceId] = set()
        self._away = False

    # -------------------------------------------------------------------------------------------------- the Runner port
    def admit(self, machines: Sequence[AdmittedMachine]) -> None:
        """Do nothing: simulated workers connect to nothing."""

    def observe(self) -> RunnerView:
        """Return every worker's report; reports without changes are reused."""
        try:
            with self._hold():
                if self._away:
                    return RunnerView(workers=(), reachable=False)
                silent = frozenset(self._silent & self._machines.keys())
                if self._report_changed() or silent != self._view.silent:
                    reports = self._reports
                    names: Iterable[InstanceId] = [key for key in reports if key not in silent] if silent else reports
                    self._view = RunnerView(workers=tuple(map(reports.__getitem__, names)), silent=silent)
                return replace(self._view, answered=frozenset(self._late)) if self._late else self._view
        except OSError:  # the journal is unreadable: the state is unknown
            return RunnerView(workers=(), reachable=False)

    def start(self, units: Sequence[UnitSpec]) -> Mapping[UnitId, StartResult]:
        """Start units at most once per id, ever."""
        with self._hold():
            held = {unit.id: unit for unit in units if unit.instance_id in self._holding} if self._holding else {}
            self._held |= held
            pending = StartResult(outcome="pending", detail="its worker has not answered yet")
            known = dict.fromkeys(held, pending) | {
                each.id: self._late[each.id] for each in units if each.id in self._late
            }
            for unit_id in known:
                self._late.pop(unit_id, None)
            return known | self._start_now([unit for unit in units if unit.id not in known])

    def _start_now(self, units: Sequence[UnitSpec]) -> dict[UnitId, StartResult]:
        fresh: dict[UnitId, FakeUnit] = {}
        results = {unit.id: self._started(unit, fresh) for unit in units}
        self._put(*fresh.values(), starts=True)
        for instance_id in dict.fromkeys(unit.instance_id for unit in fresh.values() if unit.spec is not None):
            self._pace(instance_id, self._now)
        return results

    def stop(
        self,
        units: Mapping[UnitId, InstanceId],
        *,
        cause: FailureCause | None,
        tasks: Mapping[UnitId, tuple[Interval, ...]] | None = None,
    ) -> frozenset[UnitId]:
        """Request units to stop; units that never started are fenced."""
        some = tasks or {}
        with self._hold():
            reached = [each for each, instance_id in units.items() if self._answers(instance_id)]
            self._put(*(self._stopped(each, units[each], cause, some.get(each)) for each in reached))
            return frozenset(reached)

    def resize(
        self,
        units: Mapping[UnitId, tuple[InstanceId, Resources]],
        *,
        cpus: Mapping[UnitId, tuple[int, ...]] | None = None,
        epoch: int = 0,
    ) -> Mapping[UnitId, ResizeResult]:
        """Change the limits of running units; their work continues at the new speed."""
        with self._hold():
            pinned = cpus or {}
            results = {each: self._bounded(each, *wanted, pinned.get(each), epoch) for each, wanted in units.items()}
            bounded = [unit for unit, _ in results.values() if unit is not None]
            self._put(*bounded)
            for instance_id in dict.fromkeys(unit.instance_id for unit in bounded):
                self._pace(instance_id, self._now)
            return {each: result for each, (_, result) in results.items()}

    def pause(self, units: Mapping[UnitId, tuple[InstanceId, bool]], *, epoch: int = 0) -> Mapping[UnitId, PauseResult]:
        """Halt the work of units, or continue it; neighbours then run at the speeds that they have without it."""
        with self._hold():
            results = {each: self._paused(each, *wanted, epoch) for each, wanted in units.items()}
            changed = [unit for unit, _ in results.values() if unit is not None]
            self._put(*changed)
            for instance_id in dict.fromkeys(unit.instance_id for unit in changed):
                self._pace(instance_id, self._now)
            return {each: result for each, (_, result) in results.items()}

    def renew(self, expiries: Mapping[InstanceId, float]) -> frozenset[InstanceId]:
        """Extend the expiry of machines with reachable workers; return those extended."""
        with self._hold():
            up = {} if self._away else self._machines
            silent = self._silent
            reached = {key: at for key, at in expiries.items() if key in up and key not in silent}
            renewed = [source.set_expiry(reached) for source in self._sources] if reached else []
            return frozenset().union(*renewed)

    def logs(self, unit: UnitId, instance_id: InstanceId, stream: UnitStream, offset: int, limit: int) -> LogChunk:
        """Read output written so far."""
        with self._hold():
            return self._output(LogPiece(unit=unit, instance_id=instance_id, stream=stream, offset=offset, limit=limit))

    def _output(self, piece: LogPiece) -> LogChunk:
        if not self._answers(piece.instance_id):
            raise WorkerUnreachable(f"the worker on {piece.instance_id} does not answer")
        life = self._on[piece.instance_id].get(piece.unit)
        if life is None or life.unit.forgotten:
            raise NotFound(f"there is no unit {piece.unit} on {piece.instance_id}")
        written = life.output(piece.stream, self._now)
        content = written[piece.offset : piece.offset + piece.limit]
        end = life.ended(self._now) and piece.offset + len(content) >= len(written)
        return LogChunk(content=content, next_offset=piece.offset + len(content), end=end)

    def read_logs(self, pieces: Sequence[LogPiece]) -> Mapping[LogPiece, LogChunk]:
        """Read many pieces of output."""
        chunks = dict[LogPiece, LogChunk]()
        with self._hold():
            for each in pieces:
                with suppress(WorkerUnreachable):
                    try:
                        chunks[each] = self._output(each)
                    except NotFound:
                        chunks[each] = LogChunk(content=b"", next_offset=each.offset, end=True)
        return chunks

    def read_outputs(self, unit: UnitId, instance_id: InstanceId, offset: int, limit: int) -> OutputsPiece:
        """Say that nothing was left, as no program ran."""
        with self._hold():
            if not self._answers(instance_id):
                raise WorkerUnreachable(f"the worker on {instance_id} does not answer")
            life = self._on[instance_id].get(unit)
            if life is not None and not life.unit.forgotten and not life.ended(self._now):
                return OutputsPiece(content=(), manifest=None)
        note = "" if life is None or life.unit.forgotten else "no program ran, so there are no outputs"
        return OutputsPiece(content=(), manifest=OutputsManifest(note=note))

    def read_checkpoint(
        self, unit: UnitId, instance_id: InstanceId, number: int, offset: int, limit: int
    ) -> OutputsPiece:
        """Say that nothing was kept, as no program runs."""
        with self._hold():
            if not self._answers(instance_id):
                raise WorkerUnreachable(f"the worker on {instance_id} does not answer")
        manifest = OutputsManifest(note="no program runs, so there are no checkpoints")
        return OutputsPiece(content=(), manifest=manifest)

    def execute(self, unit: UnitId, instance_id: InstanceId, command: Sequence[str], timeout_s: float) -> CommandResult:
        """Refuse: no program runs in which there could be another one."""
        with self._hold():
            if not self._answers(instance_id):
                raise WorkerUnreachable(f"the worker on {instance_id} does not answer")
        raise UnitRefused("no program runs in the simulated engine, so none can run beside it")

    def forget(self, units: Mapping[UnitId, InstanceId]) -> None:
        """Delete the output and records of ended units, but keep their fences."""
        with self._hold():
            lives = [self._on[at].get(each) for each, at in units.items() if self._answers(at)]
            ended = [life.unit for life in lives if life is not None and life.ended(self._now)]
            # The fence stays; what the unit was is forgotten with its output.
            self._put(*(replace(unit, forgotten=True, spec=None) for unit in ended))

    def facts(self) -> Mapping[str, str]:
        """Return facts that mark the engine as simulated."""
        return {
            "kind": "simulated engine; no real processes",
            "sample_every_s": f"{self._sample_policy.every_s:g}",
            "state": "in the journal of its machines" if self._journal is not None else "in memory",
        }

    def close(self) -> None:
        """Do nothing: no resources are held, and units continue."""

    # ------------------------------------------------------------------------------------------ for tests and simulator
    def inject(self, fault: StartFault, times: int = 1) -> None:
        """Make the next starts fail, one fault per unit."""
        self._faults += [fault] * times

    def silence(self, instance_id: InstanceId) -> None:
        """Make a worker unreachable; its units continue."""
        self._silent.add(instance_id)

    def unsilence(self, instance_id: InstanceId) -> None:
        """Make a worker reachable again."""
        self._silent.discard(instance_id)

    def hold_answers(self, instance_id: InstanceId) -> None:
        """Let a worker take starts without carrying them out or answering."""
        self._holding.add(instance_id)

    def release_answers(self, instance_id: InstanceId) -> None:
        """Let it carry out and answer what it took, and answer again."""
        with self._hold():
            self._holding.discard(instance_id)
            taken = [unit for unit in self._held.values() if unit.instance_id == instance_id]
            for unit in taken:
                del self._held[unit.id]
            self._late |= self._start_now(taken)

    def stiffen(self, instance_id: InstanceId) -> None:
        """Make a machine refuse resizes, like one without control groups."""
        self._rigid.add(instance_id)

    def disconnect(self) -> None:
        """Make the whole engine unreachable; workers and units continue."""
        self._away = True

    def reconnect(self) -> None:
        """Make the engine reachable again."""
        self._away = False

    def starts(self, prefix: str = "") -> tuple[Start, ...]:
        """Return every actual start of units with an id that begins with ``prefix``, in order, by any process."""
        with self._hold():
            return tuple(each for each in self._starts if each.unit_id.startswith(prefix))

    def running(self) -> tuple[UnitId, ...]:
        """Return the units that actually run now, sorted, whether or not their workers are reachable."""
        with self._hold():
            lives = (life for here in self._on.values() for life in here.values())
            return tuple(sorted(e.unit.id for e in lives if e.unit.started_at is not None and not e.ended(self._now)))

    def has_forgotten(self, unit_id: UnitId) -> bool:
        """Return whether only the fence of a unit is left."""
        unit = self._units.get(unit_id)
        return unit is not None and unit.forgotten

    def bounds(self) -> Mapping[UnitId, Resources]:
        """Return the current limits of each running unit."""
        running = self.running()
        return {unit_id: spec.resources for unit_id in running if (spec := self._units[unit_id].spec) is not None}

    def paused(self) -> frozenset[UnitId]:
        """Return the units that are paused now."""
        with self._hold():
            lives = [life.unit for here in self._on.values() for life in here.values() if not life.ended(self._now)]
            return frozenset(each.id for each in lives if each.paused_at is not None and each.works_from > self._now)

    def next_event_at(self) -> float | None:
        """Return when the next unit ends by itself, or None."""
        with self._hold():
            while self._ends:
                if self._still_ends(*self._ends[0]):
                    return self._ends[0][0]
                heapq.heappop(self._ends)
            return None

    # ------------------------------------------------------------------------------------------------------------ calls
    def _answers(self, instance_id: InstanceId) -> bool:
        return not self._away and instance_id in self._machines and instance_id not in self._silent

    def _started(self, spec: UnitSpec, fresh: dict[UnitId, FakeUnit]) -> StartResult:
        if not self._answers(spec.instance_id):
            outcome: Literal["unknown", "not_sent"] = "unknown" if self._away else "not_sent"
            return StartResult(outcome=outcome, detail=f"the worker on {spec.instance_id} does not answer")
        known = self._units.get(spec.id) or fresh.get(spec.id)
        if known is not None:
            return _start_result(known, spec)
        machine = self._machines[spec.instance_id]
        # A profiling unit reports failures as findings instead of being refused.
        refusal = spec.refusal or (self._work(spec).refusal if spec.profile is None else "")
        if spec.profile is not None and spec.profile.unit_id:
            subject = self._on[spec.instance_id].get(spec.profile.unit_id)
            if subject is None or subject.unit.spec is None or subject.ended(self._now):
                refusal = f"{spec.profile.unit_id}, which it was to measure, does not run on {spec.instance_id}"
        if not refusal and not spec.resources.fits(machine.capacity):
            refusal = f"{spec.resources} do not fit {spec.instance_id} with {machine.capacity}"
        if not refusal and (absent := _absent(spec.cpus, machine)):
            refusal = f"{spec.instance_id} has no CPUs {absent}"
        refusal = refusal or self._refused_gpus(spec, machine)
        fault = self._faults.pop(0) if self._faults else None
        if refusal or fault is StartFault.REFUSE:
            fresh[spec.id] = refused = _refused_fence(spec, refusal or "refused", self._now)
            return _start_result(refused, spec)
        if fault is StartFault.NOT_SENT:
            return StartResult(outcome="not_sent", detail=fault)
        if fault is not StartFault.LOSE_REQUEST:
            fresh[spec.id] = FakeUnit(
                id=spec.id, instance_id=spec.instance_id, spec=spec, started_at=self._now, speed=machine.quality
            )
        return StartResult(outcome="started" if fault is None else "unknown", detail=fault or "")

    def _refused_gpus(self, spec: UnitSpec, machine: SimulatedMachine) -> str:
        """Return why a machine does not give a unit its GPUs; empty: it does."""
        if absent := cpu_list(set(spec.gpus).difference(range(machine.capacity.gpu_count))):
            return f"{spec.instance_id} has no GPUs {absent}"
        others = [life.unit for life in self._on[spec.instance_id].values() if not life.ended(self._now)]
        used = {number for each in others if each.spec is not None for number in each.spec.gpus}
        in_use = cpu_list(used.intersection(spec.gpus))
        return f"GPUs {in_use} of {spec.instance_id} are in use" if in_use else ""

    def _bounded(
        self,
        unit_id: UnitId,
        instance_id: InstanceId,
        resources: Resources,
        cpus: tuple[int, ...] | None,
        epoch: int,
    ) -> tuple[FakeUnit | None, ResizeResult]:
        if not self._answers(instance_id):
            return None, ResizeResult(outcome="unknown", detail=f"the worker on {instance_id} does not answer")
        life = self._on[instance_id].get(unit_id)
        if life is None or life.unit.spec is None or life.ended(self._now):
            return None, ResizeResult(outcome="refused", detail=f"{unit_id} does not run on {instance_id}")
        if instance_id in self._rigid:
            return None, ResizeResult(outcome="refused", detail=f"{instance_id} cannot resize running units")
        if epoch < life.unit.bounded_in:
            return None, ResizeResult(outcome="refused", detail=f"{unit_id} was resized by a newer leader")
        if cpus and (absent := _absent(cpus, self._machines[instance_id])):
            return None, ResizeResult(outcome="refused", detail=f"{instance_id} has no CPUs {absent}")
        used_s, before = life.cpu_s(self._now), life.unit.spec
        spec = replace(before, resources=resources, cpus=before.cpus if cpus is None else cpus)
        bounded = replace(life.unit, spec=spec, bounded_at=self._now, cpu_before_s=used_s, bounded_in=epoch)
        return bounded, ResizeResult(outcome="resized")

    def _paused(
        self, unit_id: UnitId, instance_id: InstanceId, paused: bool, epoch: int
    ) -> tuple[FakeUnit | None, PauseResult]:
        if not self._answers(instance_id):
            return None, PauseResult(outcome="unknown", detail=f"the worker on {instance_id} does not answer")
        life, now = self._on[instance_id].get(unit_id), self._now
        if life is None or life.unit.spec is None or life.ended(now):
            return None, PauseResult(outcome="refused", detail=f"{unit_id} does not run on {instance_id}")
        unit, spec = life.unit, life.unit.spec
        if (paused and instance_id in self._rigid) or spec.tasks is not None or spec.profile is not None:
            return None, PauseResult(outcome="refused", detail=f"{instance_id} cannot pause {unit_id}")
        if epoch < unit.bounded_in:
            return None, PauseResult(outcome="refused", detail=f"{unit_id} was changed by a newer leader")
        if paused is (unit.paused_at is not None) or unit.stop_at < math.inf:
            return replace(unit, bounded_in=epoch), PauseResult(outcome="done")
        changed = replace(
            unit,
            done_s=life.done_s(now),
            since_at=now,
            cpu_before_s=life.cpu_s(now),
            bounded_at=now,
            bounded_in=epoch,
            paused_at=now if paused else None,
            paused_s=unit.paused_s if paused else unit.total_paused_s(now),
            resumed_at=unit.resumed_at if paused else now,
        )
        return changed, PauseResult(outcome="done")

    def _stopped(
        self, unit_id: UnitId, instance_id: InstanceId, cause: FailureCause | None, tasks: tuple[Interval, ...] | None
    ) -> FakeUnit:
        unit = self._units.get(unit_id)
        if unit is None:
            unit = FakeUnit(id=unit_id, instance_id=instance_id, spec=None, started_at=None)
        life = self._on[instance_id].get(unit_id)
        over = life is not None and life.ended(self._now)
        if over or (unit.stop_at < math.inf and (not unit.is_draining or tasks is not None)):
            return unit
        if life is not None and unit.paused_at is not None:  # it is resumed, so that it can end
            unit = replace(unit, paused_at=None, paused_s=unit.total_paused_s(self._now), since_at=self._now)
            unit = replace(unit, bounded_at=self._now, resumed_at=self._now)
        task_end = life.end_of_other_task(self._now, tasks) if life is not None and tasks is not None else None
        stop_at = self._now if task_end is None else task_end
        return replace(unit, stop_at=stop_at, stop_cause=cause, is_draining=task_end is not None)

    # ----------------------------------------------------------------------------------------------------------- memory
    @contextmanager
    def _hold(self) -> Iterator[None]:
        """Lock, read what other processes wrote, and advance machines and units to the present."""
        with self._locked() as written:
            news = {} if self._journal is None else cast(Mapping[str, Mapping[str, Any]], written)
            for key, row in news.items():
                self._learn(key, row)
            self._now = max(self._now, self._clock.now())
            self._find_machines(news_of_units=bool(news))
            self._advance()
            yield

    def _advance(self) -> None:
        """Process ends of units and changes of speed in time order, since each end may speed up other units."""
        while True:
            ends_at = self._ends[0][0] if self._ends else math.inf
            turns_at = self._turns[0][0] if self._turns else math.inf
            if min(ends_at, turns_at) > self._now:
                return
            if ends_at <= turns_at:
                at, unit_id, instance_id = heapq.heappop(self._ends)
                if self._still_ends(at, unit_id, instance_id):
                    self._changed.add(instance_id)
                    self._pace(instance_id, at)
            else:
                at, instance_id = heapq.heappop(self._turns)
                if self._turns_at.get(instance_id) == at:
                    self._pace(instance_id, at)

    def _pace(self, instance_id: InstanceId, at: float) -> None:
        """Update the speeds of the units on a machine from time ``at`` on."""
        machine = self._machines.get(instance_id)
        if self._surroundings is None or machine is None:
            return
        here = self._on[instance_id].values()
        running = [
            (each, spec)
            for each in here
            if (spec := each.unit.spec) is not None and each.ends_at > at and each.unit.paused_at is None
        ]
        self._turns_at.pop(instance_id, None)
        if not running:
            return
        residents = [Resident(spec, life.work, life.done_s(at)) for life, spec in running]
        speeds, until = self._surroundings.speeds(machine, residents, at)
        updates = zip([life.unit for life, _ in running], residents, speeds, strict=True)
        self._put(
            *[
                replace_fields(unit, speed=speed, since_at=at, done_s=each.done_s)
                for unit, each, speed in updates
                if speed != unit.speed
            ]
        )
        if math.isfinite(until):
            self._turns_at[instance_id] = until
            heapq.heappush(self._turns, (until, instance_id))

    def _locked(self) -> AbstractContextManager[object]:
        """Return the lock; with a journal, entering it returns the rows other processes wrote."""
        return self._lock if self._journal is None else self._journal.hold()

    def _learn(self, key: str, row: Mapping[str, Any]) -> None:
        if key.startswith(UNIT):
            self._know(FakeUnit.from_json(row))
        else:
            tasks = tuple(tuple(each) for each in row.get("tasks", ()))
            self._starts.append(Start(**{**row, "tasks": tasks}))

    def _put(self, *units: FakeUnit, starts: bool = False) -> None:
        """Write new or changed units and their starts to the journal, then to memory."""
        changed = [unit for unit in units if unit is not self._units.get(unit.id)]
        run = [unit for unit in changed if starts and unit.spec is not None]
        begun = [
            Start(unit_id=unit.id, instance_id=unit.instance_id, at=self._now, tasks=_positions(unit)) for unit in run
        ]
        if self._journal is not None and changed:
            rows: dict[str, object] = {UNIT + unit.id: unit.to_json() for unit in changed}
            for number, start in enumerate(begun, len(self._starts) + 1):
                rows[f"{START}{number}"] = asdict(start)
            self._journal.write(rows)
        self._starts += begun
        for unit in changed:
            self._know(unit)

    def _know(self, unit: FakeUnit) -> None:
        self._units[unit.id] = unit
        self._changed.add(unit.instance_id)
        if unit.forgotten:
            self._on[unit.instance_id].pop(unit.id, None)
            return
        here = self._on[unit.instance_id]
        before = here.get(unit.id)
        life = here[unit.id] = self._life(unit, before)
        if before is not None:
            began_at = (unit.since_at, unit.bounded_at)
            same = began_at == (before.unit.since_at, before.unit.bounded_at)
            self._sample_policy.changed(unit.id, self._now if same else max(at for at in began_at if at is not None))
        if life.ends_at < math.inf:
            heapq.heappush(self._ends, (life.ends_at, unit.id, unit.instance_id))

    def _life(self, unit: FakeUnit, before: SimulatedUnit | None) -> SimulatedUnit:
        spec = unit.spec
        if spec is None:
            return SimulatedUnit(unit=unit, work=Work())
        if spec.profile is None:
            same = before is not None and before.unit.spec is spec
            return SimulatedUnit(unit=unit, work=before.work if before is not None and same else self._work(spec))
        work = self._work(spec)
        findings = self._profile(spec, work, unit.speed)
        return SimulatedUnit(unit=unit, work=profiling_work(findings), findings=findings)

    def _still_ends(self, at: float, unit_id: UnitId, instance_id: InstanceId) -> bool:
        """Return whether a unit's machine is up and its end is still at that time."""
        life = self._on.get(instance_id, {}).get(unit_id)
        return life is not None and life.ends_at == at

    def _find_machines(self, *, news_of_units: bool) -> None:
        """Detect new and vanished machines; a vanished machine takes its units with it."""
        views = [source.running(self._now) for source in self._sources]
        if _same(views, self._views) and not news_of_units:
            return
        machines = {key: machine for view in views for key, machine in view.items()}
        for key in self._on.keys() - machines.keys():
            self._turns_at.pop(key, None)
            self._sampled_next_at.pop(key, None)
            for unit_id in self._on.pop(key):
                self._sample_policy.forget(unit_id)
                self._units[unit_id] = replace(self._units[unit_id], spec=None)  # keep only the fence
        for key in self._reports.keys() - machines.keys():
            del self._reports[key]
            self._changed.add(key)
        for key, machine in machines.items():
            before = self._machines.get(key)
            if before is None or before.preempt_at != machine.preempt_at:
                self._changed.add(key)
        self._views, self._machines = views, machines

    # ---------------------------------------------------------------------------------------------------------- reports
    def _report_changed(self) -> bool:
        """Renew the reports of workers with changes; return whether there were any."""
        while self._sampling and self._sampling[0][0] <= self._now:
            at, instance_id = heapq.heappop(self._sampling)
            if self._sampled_next_at.get(instance_id) == at:
                del self._sampled_next_at[instance_id]
                self._changed.add(instance_id)
        changed, self._changed = self._changed, set()
        for instance_id in sorted(changed & self._machines.keys()):
            self._reports[instance_id] = self._report(self._machines[instance_id])
        return bool(changed)

    def _report(self, machine: SimulatedMachine) -> WorkerReport:
        key, now, next_at = machine.instance_id, self._now, math.inf
        units: list[UnitReport] = []
        for life in self._on[key].values():
            if life.ends_at <= now:
                units.append(self._sample_policy.end(life, key, now))
                continue
            report, at = self._sample_policy.report(life, key, now)
            units.append(report)
            next_at = min(next_at, at)
        if next_at < math.inf and self._sampled_next_at.get(key) != next_at:
            self._sampled_next_at[key] = next_at
            heapq.heappush(self._sampling, (next_at, key))
        before = self._reports.get(key)
        if before is not None and before.preempt_at == machine.preempt_at and _same(before.units, units):
            return before
        return WorkerReport(
            instance_id=key,
            units=tuple(units),
            isolation=("simulated",),
            preempt_at=machine.preempt_at,
            cpu_topology=machine.cpu_topology,
        )


def _absent(cpus: Sequence[int], machine: SimulatedMachine) -> str:
    """Return which of these CPUs a machine does not have, as text; without a topology it has those of its vCPUs."""
    topology = machine.cpu_topology
    there = topology.numbers if topology is not None else range(math.ceil(machine.capacity.vcpus))
    return cpu_list(set(cpus).difference(there))


def _positions(unit: FakeUnit) -> tuple[tuple[int, ...], ...]:
    tasks = unit.spec.tasks if unit.spec is not None else None
    return tuple(tuple(each) for each in tasks.positions) if tasks is not None else ()


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _refused_fence(spec: UnitSpec, why: str, at: float) -> FakeUnit:
    """Return the fence of a refused unit, so that a late duplicate of the call is refused as well."""
    cause = FailureCause.START_REFUSED
    return FakeUnit(
        id=spec.id, instance_id=spec.instance_id, spec=None, started_at=None, stop_at=at, stop_cause=cause, refusal=why
    )


def _start_result(known: FakeUnit, spec: UnitSpec) -> StartResult:
    """Return the result of starting a unit that already has a fence."""
    if known.instance_id != spec.instance_id:
        return StartResult(outcome="refused", detail=f"{spec.id} belongs to {known.instance_id}")
    if known.started_at is None:
        detail = known.refusal or f"{spec.id} was stopped before it was started"
        return StartResult(outcome="refused", detail=detail)
    return StartResult(outcome="started", detail="before")
