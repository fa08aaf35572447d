"""ESP's schedules (algorithms 2 and 3), and those by activity vectors: which programs share a server, and for how long.

Work of a program is the time in seconds that it needs alone. ``speeds`` of a :class:`CoRunSets` are by program and set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from hcloud.planner.fit.co_run_schedule import LEAST_SPEED, SpeedIn, decide_running, together_s

Floats = NDArray[np.float64]
Group = tuple[int, ...]
DONE_S = 1e-6
"""Less work than this is done (the print's tolerance)."""
OBSERVED_S = 30.0
"""A set that ran for so long is known."""
STEPS_MOST = 20
"""After so many steps all that is left is scheduled at once; the print's steps would become ever smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRunSets:
    """Sets of programs that may run together, and how fast each runs in each."""

    sets: tuple[Group, ...]
    speeds: Floats
    """Shape ``(programs, sets)``, 0 for who is no member, at most 1."""

    @staticmethod
    def of(programs: int, largest: int, speed: Callable[[int, Group], float]) -> CoRunSets:
        """Return all sets of up to ``largest`` programs, given the speed of a program beside others."""
        sets = tuple(group for size in range(1, largest + 1) for group in combinations(range(programs), size))
        speeds = np.zeros((programs, len(sets)))
        for at, group in enumerate(sets):
            for member in group:
                beside = tuple(each for each in group if each != member)
                speeds[member, at] = speed(member, beside) if beside else 1.0
        return CoRunSets(sets=sets, speeds=speeds)


def shortest(known: CoRunSets, work: Floats) -> Floats:
    """Return for how many seconds each set runs so that all work is done soonest (ESP eq. 8)."""
    busy = work > DONE_S
    open_sets = np.flatnonzero(known.speeds[~busy].sum(axis=0) == 0.0)
    times = np.zeros(len(known.sets))
    if not busy.any():
        return times
    speeds = known.speeds[np.ix_(busy, open_sets)]
    found = linprog(np.ones(len(open_sets)), A_eq=speeds, b_eq=work[busy], bounds=(0, None), method="highs")
    if found.x is None:
        raise ArithmeticError(f"no schedule: {found.message}")
    times[open_sets] = found.x
    return times


def in_steps(true: CoRunSets, expected: CoRunSets, work: Floats, caution: float) -> float:
    """Return the seconds until all work is done (ESP alg. 2): ``1 / caution`` of it is scheduled by what is expected,
    then what was observed replaces it.

    As printed the rest of each step would be forgotten (``w_sent - A y``); here it is part of what is left.
    """
    left, total, believed = work.copy(), 0.0, replace(expected, speeds=expected.speeds.copy())
    step = 0
    while np.linalg.norm(left) > DONE_S:
        step += 1
        times = shortest(believed, left / caution if step < STEPS_MOST else left)
        total += float(times.sum())
        left = np.maximum(left - true.speeds @ times, 0.0)
        left[left <= DONE_S] = 0.0
        ran = times > 0.0
        believed.speeds[:, ran] = true.speeds[:, ran]
    return total


Choose = Callable[[Sequence[int], int], Group]
"""Returns which of the programs that are left run next, at most so many."""


def until_one_ends(true: CoRunSets, work: Floats, largest: int, choose: Choose) -> float:
    """Return the seconds until all work is done where a rule chooses anew whenever a program ends."""
    at, left, total = {group: number for number, group in enumerate(true.sets)}, work.copy(), 0.0
    while live := np.flatnonzero(left > DONE_S).tolist():
        group = tuple(sorted(choose(live, min(largest, len(live)))))
        speeds = true.speeds[list(group), at[group]]
        ran_s = float((left[list(group)] / speeds).min())
        left[list(group)] -= speeds * ran_s
        total += ran_s
    return total


def most_varied(need: Floats) -> Choose:
    """Return the rule of activity vectors: those together whose use of a resource differs most."""

    def choose(live: Sequence[int], count: int) -> Group:
        return max(combinations(live, count), key=lambda group: float(np.var(need[list(group)])))

    return choose


def at_random(rng: np.random.Generator) -> Choose:
    """Return the rule that draws."""
    return lambda live, count: tuple(rng.choice(live, count, replace=False).tolist())


# ------------------------------------------------------------------------------------------------------ several servers
Job = tuple[int, float]
"""A program and its work in seconds."""


def by_least_finish(expected: CoRunSets, jobs: Sequence[Job], servers: int) -> Floats:
    """Return the work of each program on each server (ESP alg. 3): each job in turn goes where all is done soonest."""
    work = np.zeros((len(expected.speeds), servers))
    for program, work_s in jobs:
        finish = []
        for at in range(servers):
            with_job = work[:, at].copy()
            with_job[program] += work_s
            finish.append(float(shortest(expected, with_job).sum()))
        work[program, int(np.argmin(finish))] += work_s
    return work


def by_difference(need: Floats, jobs: Sequence[Job], servers: int) -> Floats:
    """Return the same by activity vectors: an empty server, else that whose programs differ most from the job."""
    work = np.zeros((len(need), servers))
    for program, work_s in jobs:
        present = [np.flatnonzero(work[:, at]) for at in range(servers)]
        differs = [abs(need[program] - need[there].mean()) if there.size else np.inf for there in present]
        work[program, int(np.argmax(differs))] += work_s
    return work


def drawn_servers(programs: int, jobs: Sequence[Job], servers: int, rng: np.random.Generator) -> Floats:
    """Return the same where each job's server is drawn."""
    work = np.zeros((programs, servers))
    for program, work_s in jobs:
        work[program, int(rng.integers(servers))] += work_s
    return work


# ------------------------------------------------------------------------------------------- as the product places them
@dataclass(slots=True)
class _Server:
    """A server of :func:`on_servers`: what is left of each program on it, and which of them run since when."""

    believed: CoRunSets
    left: dict[int, float] = field(default_factory=dict)
    running: Group = ()
    ran_s: float = 0.0
    decide_in_s: float = 0.0

    def speed(self, at: Mapping[Group, int], known: CoRunSets) -> SpeedIn:
        names = sorted(self.left)
        return lambda each, members: max(
            LEAST_SPEED, float(known.speeds[names[each], at[tuple(sorted(names[other] for other in members))]])
        )


Place = Callable[[Sequence[_Server], Sequence[int], Job], int]
"""Returns which of some servers a job goes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersOutcome:
    """What became of jobs on several servers."""

    makespan_s: float
    turnaround_s: float
    """Mean time from the begin to the end of a job."""
    pauses: int


def on_servers(
    true: CoRunSets, expected: CoRunSets, jobs: Sequence[Job], servers: int, *, place: Place, step_s: float | None
) -> ServersOutcome:
    """Run jobs that are all there at first, in order, on servers that hold as many as the largest set.

    ``step_s``: programs of a server take turns as the product decides it, for so long at least; None: all run. What a
    set ran for half a minute is known from then on.
    """
    at, room = {group: number for number, group in enumerate(true.sets)}, max(map(len, true.sets))
    there = [_Server(replace(expected, speeds=expected.speeds.copy())) for _ in range(servers)]
    waiting, now_s, ended, pauses = list(jobs), 0.0, list[float](), 0
    while waiting or any(each.left for each in there):
        _fill(there, waiting, room, place)
        for each in there:
            pauses += _choose(each, at, step_s)
        busy = [each for each in there if each.running]
        next_s = min(
            min([each.decide_in_s, *(each.left[one] / true.speeds[one, at[each.running]] for one in each.running)])
            for each in busy
        )
        now_s += next_s
        for each in busy:
            column, is_new = at[each.running], each.ran_s < OBSERVED_S
            each.ran_s, each.decide_in_s = each.ran_s + next_s, each.decide_in_s - next_s
            if is_new and each.ran_s >= OBSERVED_S:
                each.believed.speeds[:, column] = true.speeds[:, column]
            for one in each.running:
                each.left[one] -= float(true.speeds[one, column]) * next_s
            for one in [one for one in each.running if each.left[one] <= DONE_S]:
                del each.left[one]
                ended.append(now_s)
                each.running, each.decide_in_s = tuple(other for other in each.running if other != one), 0.0
    return ServersOutcome(makespan_s=now_s, turnaround_s=float(np.mean(ended)), pauses=pauses)


def _fill(there: Sequence[_Server], waiting: list[Job], room: int, place: Place) -> None:
    for job in list(waiting):
        open_ones = [n for n, each in enumerate(there) if len(each.left) < room and job[0] not in each.left]
        if not open_ones:
            continue
        server = there[place(there, open_ones, job)]
        server.left[job[0]] = job[1]
        server.running, server.ran_s, server.decide_in_s = tuple(sorted((*server.running, job[0]))), 0.0, 0.0
        waiting.remove(job)


def _choose(server: _Server, at: Mapping[Group, int], step_s: float | None) -> int:
    """Decide which programs of a server run, if that is due; return how many are paused anew."""
    if not server.left or server.decide_in_s > DONE_S:
        return 0
    names, before = sorted(server.left), server.running
    if step_s is None:
        server.running, server.decide_in_s = tuple(names), float("inf")
        return 0
    present = frozenset(names.index(each) for each in before)
    speed = server.speed(at, server.believed)
    found = decide_running([server.left[each] for each in names], speed, present, server.ran_s, step_s)
    server.running = tuple(names[each] for each in sorted(found.running))
    server.ran_s = server.ran_s if server.running == before else 0.0
    server.decide_in_s = found.for_s
    return len(set(before) - set(server.running))


def least_loss(expected: CoRunSets) -> Place:
    """Return the rule of order ``least_loss``: the least sum of slowdowns (logarithms) that a job adds."""
    at = {group: number for number, group in enumerate(expected.sets)}

    def cost(names: Sequence[int]) -> float:
        column = at[tuple(sorted(names))]
        return -float(np.log(expected.speeds[list(names), column]).sum())

    def place(there: Sequence[_Server], open_ones: Sequence[int], job: Job) -> int:
        def added(number: int) -> float:
            names = list(there[number].left)
            return cost([*names, job[0]]) - (cost(names) if names else 0.0)

        return min(open_ones, key=added)

    return place


def least_finish(expected: CoRunSets, *, in_turns: bool) -> Place:
    """Return the rule of ESP's algorithm 3: where all that is there is done soonest, if it takes turns or runs
    together."""
    at = {group: number for number, group in enumerate(expected.sets)}

    def place(there: Sequence[_Server], open_ones: Sequence[int], job: Job) -> int:
        def finish_s(number: int) -> float:
            with_job = _Server(expected, {**there[number].left, job[0]: job[1]})
            work_s = [with_job.left[each] for each in sorted(with_job.left)]
            speed = with_job.speed(at, expected)
            if not in_turns:
                return together_s(work_s, speed)
            return decide_running(work_s, speed, frozenset(), 0.0, 1.0).in_turns_s

        return min(open_ones, key=finish_s)

    return place


def any_server(rng: np.random.Generator) -> Place:
    """Return the rule that draws."""
    return lambda there, open_ones, job: int(rng.choice(open_ones))
