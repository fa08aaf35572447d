"""Pause some of the jobs that share a machine where all are done sooner if they take turns (ESP, algorithm 2).

Only jobs without a deadline are paused, and only beside programs they were observed with. A paused unit keeps its room.
With an order that needs ``turns`` and ``placement.pause_step_s``; without, whatever is paused is resumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hcloud.core.model import Allocation, InstanceState, Job, JobState, Number, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.correction.monitor import column_of
from hcloud.planner.fit.co_run_schedule import CoRunDecision, Members, decide_running
from hcloud.planner.fit.expected_performance import longer_beside
from hcloud.planner.plan import Pause
from hcloud.planner.run_times import ran_for_s
from hcloud.planner.text import seconds
from hcloud.spec.validation import counted

PAUSED_LONG_S = 1800.0
"""A unit that is paused for so long runs next; half of what its worker would allow (``PAUSED_MOST_S``)."""
MOST_IN_TURNS = 6
"""Of more jobs on a machine, the others run all the time: each job more doubles the number of sets."""
LEAST_WORK_S = 1.0
SPEEDS_KEPT = 10_000
"""Machines' programs of which speeds are kept from plan to plan."""
Held = tuple[Job, Allocation]


def co_schedule_residents(context: PlanContext) -> None:
    """Pause and resume units, machine by machine."""
    snapshot, policy = context.snapshot, context.policy.placement
    if not snapshot.engine_reachable:
        return
    is_on = context.order.needs.turns and policy.pause_step_s > 0.0 and not snapshot.paused
    paused_on = {
        context.fleet.index[held.instance_id]
        for name in snapshot.plan_cache.occupancy.paused
        for held in _held(snapshot.plan_cache.occupancy.rows[name])
        if held.instance_id in context.fleet.index
    }
    for at in context.fleet.staying if is_on else sorted(paused_on):
        if len(context.fleet.holdings[at]) > 1 or at in paused_on:
            _decide_on(context, at, is_on=is_on)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Residents:
    """The units on one machine."""

    in_turns: Sequence[Held]
    """Those that may be paused."""
    others: Sequence[str]
    """Applications of those that always run."""
    column: str
    """The machine's type."""


def _decide_on(context: PlanContext, at: int, *, is_on: bool) -> None:
    instance = context.fleet.instances[at]
    if instance.id not in context.snapshot.reachable:
        return
    held = [pair for pair in context.fleet.holdings[at] if pair[0].id not in context.decisions.stopping]
    calm = instance.state is InstanceState.READY and instance.preempt_at is None
    calm = calm and all(job.spec.profile is None for job, _ in held)
    found = _residents(context, at, held) if is_on and calm else None
    work_s = _work_s(context, found.in_turns) if found is not None else None
    if found is None or work_s is None:
        if is_on and calm and _is_undecided(context, held):
            return
        _resume_all(context, held)
        return
    now_running, since_at = _present(found.in_turns)
    overdue = frozenset(
        number
        for number, (_, unit) in enumerate(found.in_turns)
        if unit.paused_at is not None and context.now >= unit.paused_at + PAUSED_LONG_S
    )
    step_s = context.policy.placement.pause_step_s
    speed = _speeds(context, found).speed
    decided = decide_running(work_s, speed, now_running, max(0.0, context.now - since_at), step_s, overdue)
    _carry_out(context, found, decided)
    if len(decided.running) < len(found.in_turns) and math.isfinite(decided.for_s):
        context.decisions.look_at_pauses(context.now + decided.for_s)


def _is_undecided(context: PlanContext, held: Sequence[Held]) -> bool:
    """Return whether units stay as they are: a daemon that has just started has not read yet what neighbours cost."""
    paused_at = [unit.paused_at for _, unit in held if unit.paused_at is not None]
    is_recent = all(context.now < each + PAUSED_LONG_S for each in paused_at)
    return context.snapshot.slowdowns.blend is None and len(paused_at) < len(held) and is_recent


def _residents(context: PlanContext, at: int, held: Sequence[Held]) -> _Residents | None:
    """Return the residents of a machine; None where nothing may be paused, or too little is known."""
    slowdowns = context.snapshot.slowdowns
    may = [pair for pair in held if can_pause(*pair)][:MOST_IN_TURNS]
    if len(held) < 2 or not may:
        return None
    for job, _ in may:
        others = [other.application for other, _ in held if other is not job]
        if not job.application or not slowdowns.has_met(job.application, others):
            return None
    chosen = {job.id for job, _ in may}
    return _Residents(
        in_turns=may,
        others=tuple(job.application for job, _ in held if job.id not in chosen),
        column=column_of(context.fleet.instances[at]),
    )


def can_pause(job: Job, held: Allocation) -> bool:
    """Return whether a unit may be paused: it runs alone for its job, which promises nothing, and nothing else is done
    to it."""
    spec, attempt = job.spec, job.attempt
    promises = spec.target.kind == "service" or job.deadline_at is not None or bool(job.needed_for)
    is_whole = attempt is not None and len(attempt.allocations) == 1 and spec.nodes.count == 1
    is_plain = spec.profile is None and spec.metrics is None and spec.framework is None and spec.tasks is None
    is_plain = is_plain and spec.resources.gpus is None and not spec.exclusive and job.run is None
    is_settled = held.started_at is not None and held.resized_from is None and held.pinned_from is None
    runs = job.state is JobState.RUNNING and job.cancelled_by is None
    return runs and is_whole and is_plain and is_settled and not promises and not held.refuses_pause


def _work_s(context: PlanContext, residents: Sequence[Held]) -> list[float] | None:
    """Return how much longer each would run alone; None: that of one is not known."""
    found = [context.run_times.rest_s(job, ran_for_s(job, context.now)) for job, _ in residents]
    return None if None in found else [max(LEAST_WORK_S, each) for each in found if each is not None]


def _present(residents: Sequence[Held]) -> tuple[Members, float]:
    """Return which of the residents run, and since when it is exactly these."""
    running = frozenset(number for number, (_, unit) in enumerate(residents) if unit.paused_at is None)
    times = [each for _, unit in residents for each in (unit.started_at, unit.resumed_at, unit.paused_at) if each]
    return running, max(times, default=0.0)


@dataclass(slots=True)
class _Speeds:
    """How fast residents are expected to run in each set."""

    context: PlanContext
    residents: _Residents
    names: Sequence[str]
    known: dict[tuple[int, Members], float]
    """Earlier answers."""

    def speed(self, number: int, members: Members) -> float:
        """Return the speed (0..1) of a resident while these run, and those that always do."""
        found = self.known.get((number, members))
        if found is None:
            found = self.known[number, members] = self._expected(number, members)
        return found

    def _expected(self, number: int, members: Members) -> float:
        own = self.names[number]
        beside = [self.names[each] for each in sorted(members) if each != number] + list(self.residents.others)
        if not beside:
            return 1.0
        longer, column = self._by_pressure(own, beside), self.residents.column
        return math.exp(-max(0.0, self.context.snapshot.slowdowns.slowdown(own, beside, column, longer).mean))

    def _by_pressure(self, name: str, beside: Sequence[str]) -> float:
        state = self.context.suitability.pressure
        if state is None:
            return 0.0
        return longer_beside(state.of(name), np.add.reduce([state.of(each).expected for each in beside]))


def _speeds(context: PlanContext, residents: _Residents) -> _Speeds:
    """Return the speeds of residents; what was asked of the same programs before is not computed again."""
    snapshot, names = context.snapshot, tuple([job.application for job, _ in residents.in_turns])
    made_of = (snapshot.slowdowns, snapshot.applications, context.policy)
    kept: dict[object, dict[tuple[int, Members], float]] = snapshot.plan_cache.get("co-run speeds", made_of, dict)
    if len(kept) >= SPEEDS_KEPT:
        kept.clear()
    known = kept.setdefault((names, residents.others, residents.column), {})
    return _Speeds(context, residents, names, known)


def _resume_all(context: PlanContext, held: Sequence[Held]) -> None:
    for job, unit in held:
        if unit.paused_at is not None:
            _add(context, job, unit, Reason(code="resumed", text=f"resumed on {unit.instance_id}"), undo=True)


def _carry_out(context: PlanContext, residents: _Residents, decided: CoRunDecision) -> None:
    names = [job.id for number, (job, _) in enumerate(residents.in_turns) if number in decided.running]
    beside = _words(names)
    for number, (job, unit) in enumerate(residents.in_turns):
        is_paused, runs = unit.paused_at is not None, number in decided.running
        if is_paused is not runs:
            continue
        numbers: dict[str, Number] = {
            "for_s": round(decided.for_s, 1),
            "in_turns_s": round(decided.in_turns_s, 1),
            "together_s": round(decided.together_s, 1),
        }
        if runs:
            others = _words([name for name in names if name != job.id])
            text = f"resumed on {unit.instance_id}" + (f" beside {others}" if others else " alone")
            _add(context, job, unit, Reason(code="resumed", text=text, numbers=numbers), undo=True)
            continue
        text = f"paused on {unit.instance_id} while {beside} {'runs' if len(names) == 1 else 'run'}, for about "
        text += f"{seconds(decided.for_s)}: in turns all are expected to be done in {seconds(decided.in_turns_s)}, "
        text += f"together in {seconds(decided.together_s)}"
        _add(context, job, unit, Reason(code="paused", text=text, numbers=numbers), undo=False)


def _add(context: PlanContext, job: Job, unit: Allocation, reason: Reason, *, undo: bool) -> None:
    action = Pause(job_id=job.id, rank=unit.rank, instance_id=unit.instance_id, reason=reason, undo=undo)
    context.decisions.add(action)


def _words(names: Sequence[str]) -> str:
    if len(names) > 3:
        return counted(len(names), "job")
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)


def _held(job: Job) -> Sequence[Allocation]:
    held = job.attempt.allocations if job.attempt is not None else ()
    return [each for each in held if each.paused_at is not None]
