"""A profile as a picture: performance by size, interference tolerated and caused, and sensitivity to each source.

The right half shows performance kept by intensity of each source, from the measured 5 % point by the linear law that
predictions use (``hcloud.classifier.interference``), with the limits of that point as a band.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hcloud.classifier.interference import kept
from hcloud.classifier.library import Question
from hcloud.classifier.profiles import Cell, ReferenceProfile
from hcloud.plots import BLUE, OLIVE, RED, ROW_IN, draw_limits, name_rows, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEPT_FLOOR = 0.4
"""Performance kept at the lower edge of a curve; the upper edge is 1."""
COLOURS = {Question.TOLERATED: BLUE, Question.CAUSED: RED}
_CURVE_HIGH = 0.8
"""Height of a curve, of a row's."""


def profile_figure(profile: ReferenceProfile) -> Figure:
    """Draw bars of performance, then a row per source: tolerated, caused, and the curve of sensitivity."""
    sources = list(profile.cells.tolerated) or list(profile.cells.caused)
    sizes, heights = list(_sizes(profile)), list[float]()
    heights += [0.9 + ROW_IN * len(sizes)] if sizes else []
    heights += [0.9 + ROW_IN * len(sources)] if sources else []
    figure = new_figure(0.6 + sum(heights), f"{profile.profile}: {_about(profile)}")
    if not heights:
        return figure
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    if sizes:
        _draw_sizes(parts[0].subplots(), sizes, profile.units.performance)
    if sources:
        tolerated, caused, curves = parts[-1].subplots(1, 3, sharey=True, width_ratios=(3, 3, 2))
        for axes, question in ((tolerated, Question.TOLERATED), (caused, Question.CAUSED)):
            _draw_pressures(axes, sources, profile.cells.of(question), COLOURS[question])
            axes.set_title(f"{question.value}, 95 % limits")
        _draw_curves(curves, sources, profile)
        name_rows(tolerated, sources)
    return figure


def _about(profile: ReferenceProfile) -> str:
    about, fitted = profile.provenance, profile.fitted
    text = f"{profile.group}; fitted {fitted.fitted_at} to {fitted.source}" if fitted is not None else profile.group
    if about is not None:
        text += f"; {about.cpu}, {about.cores} CPUs, {about.measured_at[:16]}, load {about.load_average:g}"
    return text


def _sizes(profile: ReferenceProfile) -> Iterator[tuple[str, Cell]]:
    """Yield columns to draw. Types that are slices of one machine repeat its steps, so steps are preferred."""
    chosen: Mapping[str, Cell] = profile.cells.step or profile.cells.type
    yield from chosen.items()
    yield from ((f"{nodes} nodes", cell) for nodes, cell in profile.cells.nodes.items())


def _draw_sizes(axes: Axes, sizes: Sequence[tuple[str, Cell]], unit: str) -> None:
    for row, (_, cell) in enumerate(sizes):
        axes.barh(row, cell.value, 0.6, color=OLIVE)
        draw_limits(axes, row, cell.value, max(0.0, cell.low), cell.high)
        axes.annotate(
            f"{cell.value:.4g}", (max(cell.value, cell.high), row), (5, 0), textcoords="offset points", va="center"
        )
    axes.set_title("performance, 95 % limits")
    axes.set_xlabel(unit)
    axes.set_xlim(0, 1.12 * max(max(cell.value, cell.high) for _, cell in sizes) or 1.0)
    name_rows(axes, [name for name, _ in sizes])


def _draw_pressures(axes: Axes, sources: Sequence[str], cells: Mapping[str, Cell], colour: str) -> None:
    for row, source in enumerate(sources):
        if (cell := cells.get(source)) is None:
            axes.text(1.0, row, "not measured", va="center", color="#777777")
            continue
        axes.barh(row, cell.value, 0.6, color=colour, alpha=0.8)
        draw_limits(axes, row, cell.value, max(0.0, cell.low), min(100.0, cell.high))
    axes.set_xlim(0, 103)
    axes.set_xlabel("intensity of the source, %")
    axes.grid(visible=False, axis="y")


def _draw_curves(axes: Axes, sources: Sequence[str], profile: ReferenceProfile) -> None:
    intensities = list(range(0, 101, 5))
    for row, source in enumerate(sources):
        cell = profile.cells.tolerated.get(source)
        if cell is None:
            continue
        low, middle, high = (
            [_height(row, at, point) for at in intensities] for point in (cell.low, cell.value, cell.high)
        )
        axes.axhspan(row - _CURVE_HIGH / 2, row + _CURVE_HIGH / 2, color="#f4f4f4", linewidth=0, zorder=0)
        axes.fill_between(intensities, low, high, color=BLUE, alpha=0.25, linewidth=0)
        axes.plot(intensities, middle, color=BLUE)
    axes.set_xlim(0, 103)
    axes.set_xlabel("intensity of the source, %")
    axes.set_title(f"kept, {100 * KEPT_FLOOR:.0f} to 100 %")
    axes.grid(visible=False, axis="y")


def _height(row: int, intensity: float, tolerated: float) -> float:
    """Return the place of a curve in its row; rows grow downwards."""
    share = max(0.0, (kept(intensity, tolerated) - KEPT_FLOOR) / (1.0 - KEPT_FLOOR))
    return row + _CURVE_HIGH * (0.5 - share)
