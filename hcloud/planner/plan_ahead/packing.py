"""Linear programs in which each group takes some of its options, and all groups share a few rows of capacity.

A plan ahead has thousands of jobs and options but less than a hundred rows of capacity (pools and slots). At the right
price of each row, most groups have one option that is clearly best, and the program is needed for the others only.
Prices come from a sample of the groups, then from ever larger programs, until no group could gain more than a small
part by another option. All steps are deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]
Mask = NDArray[np.bool_]

MOST_ITERATIONS = 20_000
"""Limit of the solver's steps; where it is reached, there is no solution."""
SOLVED_WHOLE = 600
"""Programs of no more groups are solved without a sample."""
SAMPLED = 250
"""About so many groups are in the sample."""
CLEAR_BY = 0.1
"""An option is clearly best if it is better than the next one by this part of what its capacity costs."""
GAP, GAP_WHOLE = 0.01, 1e-4
"""The solution may be worth less than the best one by this part; the second is of programs solved without a sample."""
MOST_ROUNDS = 8
_GAIN = 1e-7
"""Least gain in worth that counts, in parts of the largest worth of an option."""
_NEVER = -1e18


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackingProgram:
    """Maximise the worth of the options taken, less the cost of what is released, within the capacity."""

    worth: Floats
    """Of one unit of each option, shape ``(N,)``."""
    group_of: Integers
    """Group of each option, ascending, shape ``(N,)``."""
    uses: csr_array
    """What one unit of each option takes of each row, shape ``(N, R)``; none is negative."""
    counts: Floats
    """How many units each group takes at most, shape ``(G,)``."""
    release_cost: Floats
    """Of releasing each part of what is held, shape ``(K,)``."""
    releases: csr_array
    """What each gives to each row, shape ``(K, R)``; none is negative."""
    capacity: Floats
    """Of each row, shape ``(R,)``; none is negative."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackingSolution:
    """What to take."""

    units: Floats
    """Of each option, shape ``(N,)``."""
    released: Floats
    """Share of each part that is released, shape ``(K,)``."""
    prices: Floats
    """What one unit of capacity of each row is worth, shape ``(R,)``; none is negative."""


def solve_packing(program: PackingProgram) -> PackingSolution | None:
    """Return a solution within ``GAP`` of the best one; None: the solver reached its limit."""
    return _PackingSolver(program).solve()


def bound_at(program: PackingProgram, prices: Floats) -> float:
    """Return what no solution is worth more than, whatever the prices: its worth if all could take what pays."""
    best = np.zeros(len(program.counts))
    np.maximum.at(best, program.group_of, program.worth - program.uses @ prices)
    gains = np.maximum(program.releases @ prices - program.release_cost, 0.0)
    return float(best @ program.counts + gains.sum() + program.capacity @ prices)


class _PackingSolver:
    """Which groups and releases are decided by prices alone (fixed), and which by the linear program (open)."""

    def __init__(self, program: PackingProgram) -> None:
        groups, releases = len(program.counts), len(program.release_cost)
        self.program = program
        self.scale = max(float(np.abs(program.worth).max(initial=0.0)), 1e-300)
        self.begins: Integers = np.searchsorted(program.group_of, np.arange(groups))
        self.filled: Mask = np.bincount(program.group_of, minlength=groups) > 0
        self.open: Mask = np.zeros(groups, dtype=np.bool_)
        self.fixed: Integers = np.full(groups, -1)
        """The option that each group takes wholly unless it is open; -1: none."""
        self.eligible: Mask = np.zeros(len(program.worth), dtype=np.bool_)
        """Which options of open groups are in the linear program."""
        self.open_releases: Mask = np.zeros(releases, dtype=np.bool_)
        self.fixed_releases: Mask = np.zeros(releases, dtype=np.bool_)

    def solve(self) -> PackingSolution | None:
        """See :func:`solve_packing`."""
        program, groups = self.program, len(self.program.counts)
        prices, gap = np.zeros(len(program.capacity)), GAP if groups > SOLVED_WHOLE else GAP_WHOLE
        if groups <= SOLVED_WHOLE:
            self.open[:] = self.eligible[:] = True
        else:
            every = round(groups / SAMPLED)
            self.open[::every] = self.eligible[:] = True
            self.open_releases[::every] = True
            sampled = self._linear_program(program.capacity / every, prices)
            if sampled is None:
                return None
            prices = sampled.prices
            self._fix(prices)
        found: PackingSolution | None = None
        for _ in range(MOST_ROUNDS):
            fixed = np.flatnonzero(~self.open & (self.fixed >= 0))
            taken, released = self.fixed[fixed], self.fixed_releases & ~self.open_releases
            left = program.capacity - program.uses[taken].T @ program.counts[fixed]
            left += program.releases[np.flatnonzero(released)].sum(axis=0)
            found = self._linear_program(left, prices)
            if found is None:
                if self.open.all():
                    return None
                self._open_all()  # what is fixed takes more than there is
                continue
            found.units[taken], found.released[released], prices = program.counts[fixed], 1.0, found.prices
            worth = program.worth @ found.units - program.release_cost @ found.released
            if bound_at(program, prices) <= worth * (1.0 + gap) + _GAIN * self.scale:
                break
            if not self._reopen(prices):
                self._open_all()
        return found

    def _open_all(self) -> None:
        self.open[:] = self.eligible[:] = self.open_releases[:] = True

    def _profits(self, prices: Floats) -> tuple[Floats, Floats]:
        """Return what one unit of each option is worth at these prices, and what each release is."""
        program = self.program
        return program.worth - program.uses @ prices, program.releases @ prices - program.release_cost

    def _best(self, profits: Floats) -> tuple[Floats, Integers]:
        """Return the highest profit of each group, and the first option that has it; -1: it has no option."""
        best, at = np.full(len(self.program.counts), _NEVER), np.full(len(self.program.counts), -1)
        best[self.filled] = np.maximum.reduceat(profits, self.begins[self.filled]) if len(profits) else 0.0
        having = np.flatnonzero(profits == best[self.program.group_of])[::-1]
        at[self.program.group_of[having]] = having
        return best, at

    def _fix(self, prices: Floats) -> None:
        """Fix each group to its best option, or to none, where that is clear at these prices; open the others."""
        profits, gains = self._profits(prices)
        best, at = self._best(profits)
        others = profits.copy()
        others[at[at >= 0]] = _NEVER
        second = np.maximum(self._best(others)[0], 0.0)
        doubt = np.maximum(CLEAR_BY * (self.program.uses @ prices), _GAIN * self.scale)
        doubts = np.where(at >= 0, doubt[at], 0.0)
        pays = best > 0.0
        self.open = self.filled & (np.abs(np.where(pays, best - second, best)) < doubts)
        self.fixed = np.where(pays, at, -1)
        self.eligible = profits > (np.maximum(best, 0.0) - doubts)[self.program.group_of]
        self.open_releases = np.abs(gains) < CLEAR_BY * (self.program.releases @ prices)
        self.fixed_releases = gains > 0.0

    def _reopen(self, prices: Floats) -> bool:
        """Open the groups and releases that gain at these prices by other than what is fixed; return whether any do."""
        profits, gains = self._profits(prices)
        best, least = np.maximum(self._best(profits)[0], 0.0), _GAIN * self.scale
        taken = np.where(self.fixed >= 0, profits[self.fixed], 0.0)
        doubt = np.maximum(CLEAR_BY * (self.program.uses @ prices), least)
        opened = (
            self.open | (self.filled & (best > taken + least)),
            self.open_releases | np.where(self.fixed_releases, gains < -least, gains > least),
            self.eligible | (profits > best[self.program.group_of] - doubt),
        )
        before = (self.open, self.open_releases, self.eligible)
        self.open, self.open_releases, self.eligible = opened
        self.eligible[self.fixed[self.fixed >= 0]] = True
        return any(now.sum() > earlier.sum() for now, earlier in zip(opened, before, strict=True))

    def _linear_program(self, capacity: Floats, prices: Floats) -> PackingSolution | None:
        """Return the best solution of the open groups and releases; None: none was found. ``prices``: those so far."""
        # Slow to import: a daemon whose jobs need no plan does without.
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, hstack, vstack

        program, open_groups = self.program, np.flatnonzero(self.open)
        options = np.flatnonzero(self.open[program.group_of] & self.eligible)
        releases = np.flatnonzero(self.open_releases)
        units, released = np.zeros(len(program.worth)), np.zeros(len(program.release_cost))
        if not options.size + releases.size:
            found = PackingSolution(units=units, released=released, prices=prices)
            return found if capacity.min(initial=0.0) >= -_GAIN else None
        row_of = np.cumsum(self.open) - 1
        entries = (np.ones(len(options)), (row_of[program.group_of[options]], np.arange(len(options))))
        own = csr_array(entries, shape=(len(open_groups), len(options) + len(releases)))
        shared = hstack((program.uses[options].T, -program.releases[releases].T))
        # The bounds follow from the rows of groups, but the solver takes half the steps with them.
        most = np.concatenate((program.counts[program.group_of[options]], np.ones(len(releases))))
        solved = linprog(
            np.concatenate((-program.worth[options], program.release_cost[releases])) / self.scale,
            A_ub=cast(Any, vstack((own, shared), format="csc")),  # its stubs know dense matrices and lists only
            b_ub=np.concatenate((program.counts[open_groups], capacity)),
            bounds=cast(Any, np.stack((np.zeros(len(most)), most), axis=1)),
            method="highs-ds",
            options={"maxiter": MOST_ITERATIONS},
        )
        if solved.status != 0:
            return None
        shares = np.asarray(solved.x, dtype=np.float64)
        units[options], released[releases] = shares[: len(options)], shares[len(options) :]
        marginals = -self.scale * np.asarray(solved.ineqlin.marginals[len(open_groups) :], dtype=np.float64)
        return PackingSolution(units=units, released=released, prices=np.maximum(marginals, 0.0))
