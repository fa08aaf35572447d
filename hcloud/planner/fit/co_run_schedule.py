"""Which of the programs on one machine run together, and for how long each set of them (ESP, algorithm 2).

A linear program finds how long each set runs so that all work is done soonest (ESP eq. 10). It is solved again whenever
it is asked, with the work that is left and the speeds that are expected by then. Work of a program is the time in
seconds that it needs alone; speeds are relative to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Members = frozenset[int]
SpeedIn = Callable[[int, Members], float]
"""Returns the speed (0..1) of a program while exactly these, with itself, run."""

LEAST_GAIN = 0.05
"""Programs take turns only if all are done sooner by this share than if they run together."""
LEAST_GAIN_GOING_ON = 0.02
"""The same where they take turns already."""
CAUTION = 3.0
"""A set runs for this part of its time, then everything is solved again (ESP's eta)."""
LEAST_SPEED = 0.02
LEAST_WORK_S = 1.0
_MOST_STEPS = 500
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRunDecision:
    """Which programs run now."""

    running: Members
    for_s: float
    """How long they run until it is to be decided again, unless something else changes."""
    in_turns_s: float
    """Until all are done, if they take turns as decided."""
    together_s: float
    """The same if all run together."""


def members_of(count: int) -> list[Members]:
    """Return all sets of ``count`` programs but the empty one, the smallest first."""
    sizes = range(1, count + 1)
    return [frozenset(some) for size in sizes for some in combinations(range(count), size)]


def shortest_times(speeds: Floats, work_s: Floats) -> Floats:
    """Return for how many seconds each set runs so that all work is done soonest.

    ``speeds``: by program and set, 0 for a program that is not in it, shape ``(N, M)``. The first ``N`` sets are the
    single programs in order. By the simplex method from there; at most ``N`` sets run at all.
    """
    count = len(work_s)
    basis, times = np.arange(count), np.zeros(speeds.shape[1])
    for _ in range(_MOST_STEPS):
        chosen = speeds[:, basis]
        prices = np.linalg.solve(chosen.T, np.ones(count))
        gains = prices @ speeds - 1.0
        enters = int(gains.argmax())
        if gains[enters] <= _SLACK:
            break
        direction = np.linalg.solve(chosen, speeds[:, enters])
        level = np.linalg.solve(chosen, work_s)
        steps = np.where(direction > _SLACK, level / np.maximum(direction, _SLACK), np.inf)
        basis[int(steps.argmin())] = enters
    times[basis] = np.maximum(np.linalg.solve(speeds[:, basis], work_s), 0.0)
    return times


def together_s(work_s: Sequence[float], speed: SpeedIn) -> float:
    """Return the seconds until all is done if all programs that are not done run together."""
    left, total_s = dict(enumerate(work_s)), 0.0
    while left:
        running = frozenset(left)
        speeds = {each: speed(each, running) for each in left}
        next_s = min(left[each] / speeds[each] for each in left)
        total_s += next_s
        left = {each: left_s - speeds[each] * next_s for each, left_s in left.items() if left_s / speeds[each] > next_s}
    return total_s


def decide_running(
    work_s: Sequence[float],
    speed: SpeedIn,
    now_running: Members,
    since_s: float,
    step_s: float,
    overdue: Members = frozenset(),
) -> CoRunDecision:
    """Return which programs run now.

    ``since_s``: how long exactly ``now_running`` has run; no set is changed before ``step_s``, unless none of it is
    left. ``overdue``: programs that were paused too long, of which one at least runs next.
    """
    work = [max(each, LEAST_WORK_S) for each in work_s]
    count, everyone = len(work), frozenset(range(len(work)))
    sets, all_s = members_of(count), together_s(work, _at_least(speed))
    speeds = np.zeros((count, len(sets)))
    for column, members in enumerate(sets):
        for each in members:
            speeds[each, column] = max(LEAST_SPEED, speed(each, members))
    times = shortest_times(speeds, np.array(work))
    turns_s, lasts = float(times.sum()), dict(zip(sets, times.tolist(), strict=True))
    gain = LEAST_GAIN if now_running == everyone else LEAST_GAIN_GOING_ON
    settles = bool(now_running) and since_s < step_s and not overdue
    if turns_s > (1.0 - gain) * all_s:
        if now_running != everyone and settles:
            return CoRunDecision(running=now_running, for_s=step_s - since_s, in_turns_s=turns_s, together_s=all_s)
        return CoRunDecision(running=everyone, for_s=all_s, in_turns_s=turns_s, together_s=all_s)
    wanted = max(step_s, (lasts.get(now_running, 0.0) + since_s) / CAUTION) if lasts.get(now_running) else step_s
    if now_running and since_s < wanted and not overdue:
        return CoRunDecision(running=now_running, for_s=wanted - since_s, in_turns_s=turns_s, together_s=all_s)
    others = [each for each in sets if each != now_running and lasts[each] > _SLACK]
    urgent = [each for each in others if each & overdue]
    # The longest first; of equal ones the first in order of size and number.
    chosen = max(urgent or others, key=lambda each: lasts[each], default=now_running or everyone)
    for_s = max(step_s, lasts[chosen] / CAUTION)
    return CoRunDecision(running=chosen, for_s=for_s, in_turns_s=turns_s, together_s=all_s)


def _at_least(speed: SpeedIn) -> SpeedIn:
    return lambda each, members: max(LEAST_SPEED, speed(each, members))
