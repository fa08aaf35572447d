"""Synthetic rows with known answers."""

import numpy as np

from hcloud.classifier.utility_matrix import Matrix, MeasuredRows, Scale


def rows(values: Matrix, *, scale: Scale = Scale.RATIO, groups: tuple[str, ...] | None = None) -> MeasuredRows:
    """Rows named a00, a01, ... with columns c0, c1, ... from values on the working axis."""
    names = tuple(f"a{i:02d}" for i in range(values.shape[0]))
    columns = tuple(f"c{j}" for j in range(values.shape[1]))
    return MeasuredRows(scale=scale, columns=columns, names=names, values=values, groups=groups or names)


def checkerboard(size: int = 12, columns: int = 6) -> MeasuredRows:
    """Every other application is three times faster on every other column; scales differ by up to e^2."""
    i, j = np.indices((size, columns))
    return rows(np.where((i + j) % 2 == 0, 0.55, -0.55) + np.linspace(-1, 1, size)[:, None])


def rank_one(size: int = 16, columns: int = 6) -> tuple[MeasuredRows, Matrix, Matrix]:
    """``y_uj = b_u + mu_j + f_u g_j``, the mean curve ``mu`` and the loading ``g``."""
    mean = np.linspace(-0.3, 0.4, columns)
    loading = np.array([(-1.0) ** j * (0.2 + 0.1 * j) for j in range(columns)])
    factor = np.linspace(-1.5, 1.5, size)
    return rows(np.linspace(0, 3, size)[:, None] + mean + np.outer(factor, loading)), mean, loading


def synthetic(seed: int, size: int, columns: int = 6, *, missing: float = 0.0, noise: float = 0.03) -> MeasuredRows:
    """Rank two plus noise, some cells missing; every row keeps at least two."""
    rng = np.random.default_rng(seed)
    # The truth is one population: seeds draw other applications of it.
    shape = np.random.default_rng(1).normal(size=(2, columns)) * 0.25
    values = rng.normal(size=(size, 1)) + rng.normal(size=(size, 2)) @ shape + noise * rng.normal(size=(size, columns))
    for row in values:
        gone = rng.permutation(columns)[2:]
        row[gone[rng.random(len(gone)) < missing]] = np.nan
    return rows(values)


def observed(known: MeasuredRows, row: int, *columns: int) -> dict[str, float]:
    """Some cells of a row as a profiling run would report them."""
    values = known.scale.from_axis(known.values[row])
    return {known.columns[j]: float(values[j]) for j in columns}
