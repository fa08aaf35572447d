"""Programs in which groups share capacity: solved nearly as well as by the solver alone, and never beyond capacity."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from hcloud.planner.plan_ahead import packing
from hcloud.planner.plan_ahead.packing import PackingProgram, bound_at, solve_packing
from hcloud.planner.plan_ahead.sparse_rows import SlottedRows, SparseRows, sparse_rows_of


def program(seed: int, groups: int = 60, rows: int = 5, releases: int = 12, room: float = 0.1) -> PackingProgram:
    """Return groups with one to four options each; ``room``: capacity as a part of what all would use."""
    rng = np.random.default_rng(seed)
    group_of = np.sort(rng.integers(0, groups, 3 * groups))
    uses = rng.uniform(0.0, 2.0, (len(group_of), rows)) * (rng.random((len(group_of), rows)) < 0.6)
    uses[:, 0] += 0.2
    counts = rng.integers(1, 4, groups).astype(np.float64)
    return PackingProgram(
        worth=rng.uniform(0.1, 1.0, len(group_of)),
        group_of=group_of,
        uses=sparse_rows_of(uses),
        counts=counts,
        release_cost=rng.uniform(0.05, 0.5, releases),
        releases=sparse_rows_of(rng.uniform(0.0, 1.0, (releases, rows))),
        capacity=room * (counts[group_of, None] * uses).sum(axis=0),
    )


def dense(entries: SparseRows) -> packing.Floats:
    matrix = np.zeros(entries.shape)
    matrix[entries.rows, entries.columns] = entries.values
    return matrix


@pytest.mark.parametrize("seed", range(5))
def test_rows_by_pool_and_slot_are_the_matrix_that_they_stand_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spread, parts = rng.integers(0, 3, (4, 6)).astype(float), rng.uniform(size=(30, 5)) * rng.integers(0, 2, (30, 5))
    rows = SlottedRows(spread=spread, group_of=rng.integers(0, 4, 30), parts=parts)
    matrix = np.einsum("nu,nt->nut", spread[rows.group_of], parts).reshape(30, 30)
    some = np.flatnonzero(rng.uniform(size=30) < 0.3)
    prices, units = rng.uniform(size=30), np.where(rng.uniform(size=30) < 0.5, 0.0, rng.uniform(size=30))
    assert rows.times(prices) == pytest.approx(matrix @ prices)
    assert rows.summed(units) == pytest.approx(units @ matrix)
    assert np.array_equal(dense(rows.chosen(some)), matrix[some])


def best_worth(asked: PackingProgram) -> float:
    """Return the worth of the best solution, from the whole program."""
    own = (asked.group_of[None, :] == np.arange(len(asked.counts))[:, None]).astype(np.float64)
    none = np.zeros((len(asked.counts), len(asked.release_cost)))
    found = linprog(
        np.concatenate((-asked.worth, asked.release_cost)),
        A_ub=np.block([[own, none], [dense(asked.uses).T, -dense(asked.releases).T]]),
        b_ub=np.concatenate((asked.counts, asked.capacity)),
        bounds=[(0.0, None)] * len(asked.worth) + [(0.0, 1.0)] * len(asked.release_cost),
    )
    return -float(found.fun)


@pytest.fixture(params=["whole", "by prices of a sample"])
def solved_whole(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether programs are solved whole."""
    if request.param != "whole":
        monkeypatch.setattr(packing, "SOLVED_WHOLE", 10)
        monkeypatch.setattr(packing, "SOLVED_EXACTLY", 10)
        monkeypatch.setattr(packing, "SAMPLED", 15)
    return bool(request.param == "whole")


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("room", [0.02, 0.2, 1.0])
def test_a_solution_is_within_capacity_and_nearly_best(seed: int, room: float, solved_whole: bool) -> None:
    asked = program(seed, room=room)
    found, best = solve_packing(asked), best_worth(asked)
    assert found is not None
    used = found.units @ dense(asked.uses) - found.released @ dense(asked.releases)
    assert (used <= asked.capacity + 1e-6).all()
    assert (np.bincount(asked.group_of, found.units, len(asked.counts)) <= asked.counts + 1e-6).all()
    assert found.units.min() >= -1e-9 and -1e-9 <= found.released.min() <= found.released.max() <= 1.0 + 1e-9
    worth = float(asked.worth @ found.units - asked.release_cost @ found.released)
    assert best * (1.0 - packing.GAP) - 1e-6 <= worth <= best + 1e-6
    assert bound_at(asked, found.prices) >= best - 1e-6
    assert bound_at(asked, found.prices) <= worth * (1.0 + packing.GAP) + 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_programs_of_middle_size_are_solved_in_parts_and_as_if_whole(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = program(seed, groups=400, releases=20 * (seed % 2))
    in_parts = solve_packing(asked)
    monkeypatch.setattr(packing, "GAP_WHOLE", 0.0)
    monkeypatch.setattr(packing, "SOLVED_WHOLE", 400)
    whole = solve_packing(asked)
    assert in_parts is not None and whole is not None
    assert in_parts.units == pytest.approx(whole.units, abs=1e-6)
    assert in_parts.released == pytest.approx(whole.released, abs=1e-6)


def test_large_programs_are_solved_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    solver, sizes = packing._PackingSolver, list[int]()
    asked = program(1, groups=packing.SOLVED_WHOLE + 1400, releases=0)
    linear_program = solver._linear_program

    def counting(self: packing._PackingSolver, *given: packing.Floats) -> packing.PackingSolution | None:
        sizes.append(int(self.open.sum()))
        return linear_program(self, *given)

    monkeypatch.setattr(solver, "_linear_program", counting)
    assert solve_packing(asked) is not None
    assert 0.8 * packing.SAMPLED <= sizes[0] <= 1.3 * packing.SAMPLED
    assert len(sizes) >= 2 and max(sizes) < len(asked.counts)


def test_where_prices_of_the_sample_mislead_all_groups_are_solved_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SOLVED_WHOLE", 10)
    monkeypatch.setattr(packing, "SAMPLED", 10)
    # Every second group, which are those in the sample, uses nothing: room seems free, and is not.
    groups = 20
    asked = replace(
        program(0),
        worth=np.ones(groups),
        group_of=np.arange(groups),
        uses=sparse_rows_of(np.tile([[0.0], [1.0]], (groups // 2, 1))),
        counts=np.ones(groups),
        release_cost=np.zeros(0),
        releases=sparse_rows_of(np.zeros((0, 1))),
        capacity=np.array([3.0]),
    )
    found = solve_packing(asked)
    assert found is not None
    assert found.units[::2].tolist() == [1.0] * 10 and found.units[1::2].sum() == pytest.approx(3.0)


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert solve_packing(program(4)) is not None
    assert capfd.readouterr() == ("", "")


def test_where_all_best_options_fit_each_group_takes_its_own() -> None:
    asked = program(5, room=10.0)
    found, best = solve_packing(asked), best_worth(asked)
    assert found is not None and not found.prices.any() and not found.released.any()
    assert float(asked.worth @ found.units) == pytest.approx(best)


def test_the_same_program_always_has_the_same_solution() -> None:
    one, other = (solve_packing(program(3, groups=900)) for _ in range(2))
    assert one is not None and other is not None
    assert (one.units == other.units).all() and (one.prices == other.prices).all()


@pytest.mark.parametrize("seed", range(6))
def test_where_the_solver_begins_changes_its_steps_and_no_solution(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("SOLVED_WHOLE", "SAMPLED"):
        monkeypatch.setattr(packing, limit, 15)
    asked, real, begins = program(seed, groups=200, room=0.2), packing._solved, list[int]()

    def checked(*given: Any) -> object:
        begins.append(int(given[4].basic.sum()) - len(given[3]))
        return real(*given)

    def at_nothing(*given: Any) -> object:
        columns, rows = len(given[0]), len(given[3])
        basic = np.arange(columns + rows) >= columns
        return real(*given[:4], packing._Basis(basic=basic, upper=np.zeros(columns + rows, dtype=np.bool_)))

    monkeypatch.setattr(packing, "_solved", checked)
    found = solve_packing(asked)
    monkeypatch.setattr(packing, "_solved", at_nothing)
    plain = solve_packing(asked)
    assert found is not None and plain is not None
    assert found.units == pytest.approx(plain.units, abs=1e-6)
    assert len(begins) > 1 and set(begins) == {0}
