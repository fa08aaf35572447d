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

from hcloud.planner.plan_ahead.sparse_rows import Floats, Integers, SlottedRows, SparseRows

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
    uses: SparseRows | SlottedRows
    """What one unit of each option takes of each row, shape ``(N, R)``; none is negative."""
    counts: Floats
    """How many units each group takes at most, shape ``(G,)``."""
    release_cost: Floats
    """Of releasing each part of what is held, shape ``(K,)``."""
    releases: SparseRows | SlottedRows
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
    return _PackingSolver(program).bound(prices)


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
        self.seen: Mask = np.zeros(groups, dtype=np.bool_)
        """Which groups were open in the last linear program."""
        self.basic: Mask = np.zeros(len(program.worth) + releases + groups + len(program.capacity), dtype=np.bool_)
        """Which options, releases, groups and rows of capacity were in the basis at its end."""
        self.basic[len(self.basic) - len(program.capacity) :] = True
        self.priced: tuple[Floats, Floats, Floats] | None = None
        """The latest prices, and what is used and released at these."""

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
            if self._all_open or self.bound(prices) <= worth * (1.0 + gap) + _GAIN * self.scale:
                break
            if not self._reopen(prices):
                self._open_all()
        return found

    def bound(self, prices: Floats) -> float:
        """See :func:`bound_at`."""
        profits, gains = self._profits(prices)
        best = np.maximum(self._best(profits)[0], 0.0)
        return float(best @ self.program.counts + np.maximum(gains, 0.0).sum() + self.program.capacity @ prices)

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

    def _priced(self, prices: Floats) -> tuple[Floats, Floats]:
        """Return the price of what one unit of each option uses, and of what each release gives."""
        if self.priced is None or self.priced[0] is not prices:
            self.priced = (prices, self.program.uses.times(prices), self.program.releases.times(prices))
        return self.priced[1:]

    def _profits(self, prices: Floats) -> tuple[Floats, Floats]:
        """Return what one unit of each option is worth at these prices, and what each release is."""
        used, given = self._priced(prices)
        return self.program.worth - used, given - self.program.release_cost

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
        doubt = np.maximum(clear_by * self._priced(prices)[0], _GAIN * self.scale)
        doubts = np.where(at >= 0, doubt[at], 0.0)
        pays = best > 0.0
        self.open = self.filled & (np.abs(np.where(pays, best - second, best)) < doubts)
        self.fixed = np.where(pays, at, -1)
        self.eligible = profits > (np.maximum(best, 0.0) - doubts)[self.program.group_of]
        self.open_releases = np.abs(gains) < clear_by * self._priced(prices)[1]
        self.fixed_releases = gains > 0.0

    def _reopen(self, prices: Floats) -> bool:
        """Open the groups and releases that gain at these prices by other than what is fixed; return whether any do."""
        profits, gains = self._profits(prices)
        best, least = np.maximum(self._best(profits)[0], 0.0), _GAIN * self.scale
        taken = np.where(self.fixed >= 0, profits[self.fixed], 0.0)
        doubt = np.maximum(CLEAR_BY * self._priced(prices)[0], least)
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
        row_of, uses, given = np.cumsum(self.open) - 1, program.uses.chosen(options), program.releases.chosen(releases)
        parts = self._variables(options, releases, open_groups)
        columns = len(options) + len(releases)
        solved = _solved(
            np.concatenate((-program.worth[options], program.release_cost[releases])) / self.scale,
            # The bounds follow from the rows of groups, but the solver takes half the steps with them.
            np.concatenate((program.counts[program.group_of[options]], np.ones(len(releases)))),
            _by_column(row_of[program.group_of[options]], uses, given, len(open_groups)),
            np.concatenate((program.counts[open_groups], capacity)),
            self._first_basis(options, releases, parts, prices),
        )
        if solved is None:
            return None
        self.basic[:], self.seen = False, self.open.copy()
        self.basic[parts[solved.basic]] = True
        units[options], released[releases] = solved.values[: len(options)], solved.values[len(options) : columns]
        prices = np.maximum(-self.scale * solved.duals[len(open_groups) :], 0.0)
        return PackingSolution(units=units, released=released, prices=prices)

    def _variables(self, options: Integers, releases: Integers, groups: Integers) -> Integers:
        """Return the places in :attr:`basic` of the columns and rows of a linear program, in its order."""
        counts = (len(self.program.worth), len(self.program.release_cost), len(self.program.counts))
        first = np.cumsum((0, *counts))
        rows = np.arange(len(self.program.capacity))
        return np.concatenate((options, first[1] + releases, first[2] + groups, first[3] + rows))

    def _first_basis(self, options: Integers, releases: Integers, parts: Integers, prices: Floats) -> _Basis:
        """Return where the solver begins: at the end of the last linear program, and for other groups at the option
        that is best at these prices. So few steps are left to do."""
        program, basic = self.program, self.basic.copy()
        worth, gains = self._profits(prices)
        worth[~self.eligible] = _NEVER
        best, at = self._best(worth)
        anew = self.open & ~self.seen
        taking = np.flatnonzero(anew & (best > 0.0))
        row_at = len(program.worth) + len(program.release_cost)
        basic[row_at : row_at + len(anew)][anew] = True
        basic[row_at + taking], basic[at[taking]] = False, True
        columns = len(options) + len(releases)
        chosen, rows = basic[parts], len(parts) - columns
        # What left the program may have taken or given a place of the basis: rows of capacity make up for it.
        capacities = np.arange(len(parts) - len(program.capacity), len(parts))
        lacking = rows - int(chosen.sum())
        if lacking:
            movable = capacities[chosen[capacities] != (lacking > 0)]
            order = np.argsort(prices[movable - capacities[0]], kind="stable")
            chosen[movable[order][: abs(lacking)]] = lacking > 0
        upper = np.concatenate((np.zeros(len(options), dtype=np.bool_), gains[releases] > 0.0, np.ones(rows, np.bool_)))
        return _Basis(basic=chosen, upper=upper & ~chosen)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Basis:
    """Where the solver begins: by column, then by row."""

    basic: Mask
    upper: Mask
    """Which of the others are at their upper limit; the rest are at the lower one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Solved:
    """The end of a linear program."""

    values: Floats
    """Of columns."""
    duals: Floats
    """Of rows."""
    basic: Integers
    """Which columns, and then rows, are in the basis."""


def _by_column(group_rows: Integers, uses: SparseRows, releases: SparseRows, groups: int) -> SparseRows:
    """Return the entries of the program by column, which are options and then releases: its rows are groups, then
    capacities."""
    options, used = len(group_rows), len(uses.values)
    shape = (options + releases.shape[0], groups + uses.shape[1])
    counts = np.bincount(uses.rows, minlength=options) + 1
    owns = np.cumsum(counts) - counts  # each option's entry in its group's row stands before what it uses
    others = np.arange(used) + uses.rows + 1
    columns, rows = np.empty(options + used, dtype=np.intp), np.empty(options + used, dtype=np.intp)
    values = np.ones(options + used)
    columns[owns], rows[owns] = np.arange(options), group_rows
    columns[others], rows[others], values[others] = uses.rows, groups + uses.columns, uses.values
    return SparseRows(
        rows=np.concatenate((columns, options + releases.rows)),
        columns=np.concatenate((rows, groups + releases.columns)),
        values=np.concatenate((values, -releases.values)),
        shape=shape,
    )


def _solved(cost: Floats, most: Floats, entries: SparseRows, limits: Floats, first: _Basis) -> _Solved | None:
    """Return the values from 0 to ``most`` of least ``cost`` within the ``limits`` of rows.

    ``entries``: by column; ``first``: where the solver begins, which changes nothing but its steps. None: the solver
    reached its limit.
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
    columns, rows = len(cost), len(limits)
    starts = np.zeros(columns + 1, dtype=np.int32)
    np.cumsum(np.bincount(entries.rows, minlength=columns), out=starts[1:])
    solver.passModel(
        columns, rows, len(entries.values), int(highspy.MatrixFormat.kColwise), int(highspy.ObjSense.kMinimize), 0.0,
        cost, np.zeros(columns), most, np.full(rows, -infinite), limits,
        starts, entries.columns.astype(np.int32), entries.values, np.zeros(columns, dtype=np.int32),
    )  # fmt: skip
    status, basis = highspy.HighsBasisStatus, highspy.HighsBasis()
    by_number = (status.kLower, status.kBasic, status.kUpper)
    statuses = [by_number[each] for each in np.where(first.basic, 1, np.where(first.upper, 2, 0)).tolist()]
    basis.col_status, basis.row_status, basis.valid = statuses[:columns], statuses[columns:], True
    basis.alien = False  # as many as there are rows; else it would be factorised twice
    solver.setBasis(basis)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    found = solver.getSolution()
    basic = np.asarray(solver.getBasicVariables()[1], dtype=np.intp)
    return _Solved(
        values=np.asarray(found.col_value, dtype=np.float64),
        duals=np.asarray(found.row_dual, dtype=np.float64),
        basic=np.where(basic < 0, columns - 1 - basic, basic),
    )
