"""ESP's schedules (algorithms 2 and 3), and those by activity vectors: which programs share a server, and for how long.

Work of a program is the time in seconds that it needs alone. ``speeds`` of a :class:`CoRunSets` are by program and set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

Floats = NDArray[np.float64]
Group = tuple[int, ...]
DONE_S = 1e-6
"""Less work than this is done (the print's tolerance)."""
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
