"""Linear programs in which each group takes some of its options, and all groups share a few rows of capacity.

A plan ahead has thousands of jobs and options but less than a hundred rows of capacity (pools and slots). At the right
price of each row, most groups have one option that is clearly best, and the program is needed for the others only.
Prices come from a sample of the groups, then from ever larger programs, until no group could gain more than a small
part by another option. Where there is room for the best option of each group, no program is needed at all. All steps
are deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcloud.planner.plan_ahead.sparse_rows import Floats, Integers, SparseRows

Mask = NDArray[np.bool_]

MOST_ITERATIONS = 20_000
"""Limit of the solver's steps; where it is reached, there is no solution."""
SOLVED_WHOLE, SOLVED_EXACTLY = 250, 600
"""Programs of no more groups are solved without a sample, and those between the two to the best solution."""
SAMPLED, LEAST_EVERY = 250, 4
"""About so many groups are in the sample, and no more than one in so many."""
CLEAR_BY, WIDER = 0.1, 4.0
"""An option is clearly best if it is better than the next one by this part of what its capacity costs; where what is
fixed so takes more than there is, by so many times as much."""
GAP, GAP_WHOLE, GAP_EXACT = 0.01, 1e-4, 1e-9
"""The solution may be worth less than the best one by this part: of large programs, of those solved without a sample,
and of those between the two, where it is for rounding errors."""
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
    uses: SparseRows
    """What one unit of each option takes of each row, shape ``(N, R)``; none is negative."""
    counts: Floats
    """How many units each group takes at most, shape ``(G,)``."""
    release_cost: Floats
    """Of releasing each part of what is held, shape ``(K,)``."""
    releases: SparseRows
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
    np.maximum.at(best, program.group_of, program.worth - program.uses.times(prices))
    gains = np.maximum(program.releases.times(prices) - program.release_cost, 0.0)
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
        if (unhindered := self._unhindered()) is not None:
            return unhindered
        program, groups, clear_by = self.program, len(self.program.counts), CLEAR_BY
        prices, gap = np.zeros(len(program.capacity)), GAP if groups > SOLVED_EXACTLY else GAP_EXACT
        if groups <= SOLVED_WHOLE:
            gap, self.open[:], self.eligible[:] = GAP_WHOLE, True, True
        else:
            every = max(LEAST_EVERY, round(groups / SAMPLED))
            self.open[::every] = self.eligible[:] = True
            self.open_releases[::every] = True
            sampled = self._linear_program(program.capacity / every, prices)
            if sampled is None:
                return None
            prices = sampled.prices
            self._fix(prices, clear_by)
        found: PackingSolution | None = None
        for rounds in range(1, MOST_ROUNDS + 1):
            if rounds == MOST_ROUNDS and (found is None or gap == GAP_EXACT):
                self._open_all()
            fixed = np.flatnonzero(~self.open & (self.fixed >= 0))
            taken, released = self.fixed[fixed], self.fixed_releases & ~self.open_releases
            units = np.zeros(len(program.worth))
            units[taken] = program.counts[fixed]
            left = program.capacity - program.uses.summed(units) + program.releases.summed(released.astype(np.float64))
            found = self._linear_program(left, prices)
            if found is None:
                if self.open.all() and self.eligible.all():
                    return None
                # What is fixed takes more than there is.
                clear_by *= WIDER
                if clear_by < 1.0:
                    self._fix(prices, clear_by)
                else:
                    self._open_all()
                continue
            found.units[taken], found.released[released], prices = program.counts[fixed], 1.0, found.prices
            worth = program.worth @ found.units - program.release_cost @ found.released
            if self._all_open or bound_at(program, prices) <= worth * (1.0 + gap) + _GAIN * self.scale:
                break
            if not self._reopen(prices):
                self._open_all()
        return found

    def _unhindered(self) -> PackingSolution | None:
        """Return the solution in which each group takes its best option; None: there is not room for all of them."""
        program = self.program
        best, at = self._best(program.worth)
        paying = np.flatnonzero(best > 0.0)
        units, released = np.zeros(len(program.worth)), np.zeros(len(program.release_cost))
        units[at[paying]] = program.counts[paying]
        if (program.uses.summed(units) > program.capacity).any():
            return None
        return PackingSolution(units=units, released=released, prices=np.zeros(len(program.capacity)))

    @property
    def _all_open(self) -> bool:
        return bool(self.open.all() and self.eligible.all() and self.open_releases.all())

    def _open_all(self) -> None:
        self.open[:] = self.eligible[:] = self.open_releases[:] = True

    def _profits(self, prices: Floats) -> tuple[Floats, Floats]:
        """Return what one unit of each option is worth at these prices, and what each release is."""
        program = self.program
        return program.worth - program.uses.times(prices), program.releases.times(prices) - program.release_cost

    def _best(self, profits: Floats) -> tuple[Floats, Integers]:
        """Return the highest profit of each group, and the first option that has it; -1: it has no option."""
        best, at = np.full(len(self.program.counts), _NEVER), np.full(len(self.program.counts), -1)
        best[self.filled] = np.maximum.reduceat(profits, self.begins[self.filled]) if len(profits) else 0.0
        having = np.flatnonzero(profits == best[self.program.group_of])[::-1]
        at[self.program.group_of[having]] = having
        return best, at

    def _fix(self, prices: Floats, clear_by: float) -> None:
        """Fix each group to its best option, or to none, where that is clear at these prices; open the others."""
        profits, gains = self._profits(prices)
        best, at = self._best(profits)
        others = profits.copy()
        others[at[at >= 0]] = _NEVER
        second = np.maximum(self._best(others)[0], 0.0)
        doubt = np.maximum(clear_by * self.program.uses.times(prices), _GAIN * self.scale)
        doubts = np.where(at >= 0, doubt[at], 0.0)
        pays = best > 0.0
        self.open = self.filled & (np.abs(np.where(pays, best - second, best)) < doubts)
        self.fixed = np.where(pays, at, -1)
        self.eligible = profits > (np.maximum(best, 0.0) - doubts)[self.program.group_of]
        self.open_releases = np.abs(gains) < clear_by * self.program.releases.times(prices)
        self.fixed_releases = gains > 0.0

    def _reopen(self, prices: Floats) -> bool:
        """Open the groups and releases that gain at these prices by other than what is fixed; return whether any do."""
        profits, gains = self._profits(prices)
        best, least = np.maximum(self._best(profits)[0], 0.0), _GAIN * self.scale
        taken = np.where(self.fixed >= 0, profits[self.fixed], 0.0)
        doubt = np.maximum(CLEAR_BY * self.program.uses.times(prices), least)
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
        program, open_groups = self.program, np.flatnonzero(self.open)
        options = np.flatnonzero(self.open[program.group_of] & self.eligible)
        releases = np.flatnonzero(self.open_releases)
        units, released = np.zeros(len(program.worth)), np.zeros(len(program.release_cost))
        if not options.size + releases.size:
            found = PackingSolution(units=units, released=released, prices=prices)
            return found if capacity.min(initial=0.0) >= -_GAIN else None
        row_of = np.cumsum(self.open) - 1
        solved = _solved(
            np.concatenate((-program.worth[options], program.release_cost[releases])) / self.scale,
            # The bounds follow from the rows of groups, but the solver takes half the steps with them.
            np.concatenate((program.counts[program.group_of[options]], np.ones(len(releases)))),
            _by_column(
                row_of[program.group_of[options]],
                program.uses.chosen(options),
                program.releases.chosen(releases),
                len(open_groups),
            ),
            np.concatenate((program.counts[open_groups], capacity)),
        )
        if solved is None:
            return None
        shares, duals = solved
        units[options], released[releases] = shares[: len(options)], shares[len(options) :]
        prices = np.maximum(-self.scale * duals[len(open_groups) :], 0.0)
        return PackingSolution(units=units, released=released, prices=prices)


def _by_column(group_rows: Integers, uses: SparseRows, releases: SparseRows, groups: int) -> SparseRows:
    """Return the entries of the program by column, which are options and then releases: its rows are groups, then
    capacities."""
    options = len(group_rows)
    columns = np.concatenate((np.arange(options), uses.rows, options + releases.rows))
    rows = np.concatenate((group_rows, groups + uses.columns, groups + releases.columns))
    values, order = np.concatenate((np.ones(options), uses.values, -releases.values)), np.lexsort((rows, columns))
    shape = (options + releases.shape[0], groups + uses.shape[1])
    return SparseRows(rows=columns[order], columns=rows[order], values=values[order], shape=shape)


def _solved(cost: Floats, most: Floats, entries: SparseRows, limits: Floats) -> tuple[Floats, Floats] | None:
    """Return the values from 0 to ``most`` of least ``cost`` within the ``limits`` of rows, and the rows' dual values.

    ``entries``: by column. None: the solver reached its limit.
    """
    import highspy  # not needed by daemons whose jobs need no plan

    solver, infinite = highspy.Highs(), highspy.kHighsInf
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("presolve", "off"),  # it takes as long as the program itself
        ("solver", "simplex"),
        ("simplex_iteration_limit", MOST_ITERATIONS),
    ):
        solver.setOptionValue(option, value)
    starts = np.zeros(len(cost) + 1, dtype=np.int32)
    np.cumsum(np.bincount(entries.rows, minlength=len(cost)), out=starts[1:])
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(cost), len(limits)
    program.col_cost_, program.col_lower_, program.col_upper_ = cost, np.zeros(len(cost)), most
    program.row_lower_, program.row_upper_ = np.full(len(limits), -infinite), limits
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = starts
    program.a_matrix_.index_, program.a_matrix_.value_ = entries.columns.astype(np.int32), entries.values
    solver.passModel(program)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    found = solver.getSolution()
    return np.asarray(found.col_value, dtype=np.float64), np.asarray(found.row_dual, dtype=np.float64)
