"""Reports as pictures: which columns of each report are drawn, side by side with one row for each row of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hcloud.core.errors import BadInput
from hcloud.plots import COLOURS, ROW_IN, label, name_rows, new_figure, time_unit
from hcloud.report.table import ReportTable, Value, columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS_MOST: Final = 40
"""Rows in a picture: the first ones, by day the last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot of a report: bars on one another, and dots, by column."""

    axis: str
    """What the axis shows, without its unit."""
    bars: tuple[str, ...] = ()
    dots: tuple[str, ...] = ()
    unit: str = ""
    limit: float | None = None
    """A value to compare with, drawn as a line."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it needs."""
        return (*self.bars, *self.dots)


_FOCUS_CATEGORIES: Final = ("Committed", "Standard", "Dynamic")
_RUN_TIMES: Final = (
    Panel(axis="runs within the 80 % limit", dots=("within_80_pct",), unit="%", limit=80.0),
    Panel(axis="runs within the 90 % limit", dots=("within_90_pct",), unit="%", limit=90.0),
    Panel(axis="runs within a factor of 2", dots=("within_factor_2_pct",), unit="%", limit=100.0),
)
_MET: Final = Panel(axis="targets met", dots=("target_met_pct",), unit="%", limit=100.0)
_PANELS: Final[Mapping[str, Sequence[Panel]]] = {
    "cost": (
        Panel(axis="cost", bars=("jobs_usd", "idle_usd", "boot_usd", "unused_usd"), unit="USD"),
        Panel(axis="cost", bars=("held_usd", "idle_usd"), unit="USD"),
        Panel(axis="cost", bars=("cost_usd",), unit="USD"),
    ),
    "performance": (
        Panel(axis="wait", bars=("queue_p50_s",), dots=("queue_p95_s",), unit="s"),
        Panel(axis="run time", bars=("run_p50_s",), dots=("run_p95_s",), unit="s"),
        Panel(axis="wait and run time", bars=("queue_s", "run_s"), unit="s"),
        _MET,
    ),
    "savings": (
        Panel(axis="cost", bars=("cost_usd",), dots=("on_demand_usd",), unit="USD"),
        Panel(axis="saved", dots=("saved_pct",), unit="%", limit=0.0),
    ),
    "utilisation": (
        Panel(axis="machine time", bars=("held_pct", "idle_pct", "boot_pct"), unit="%", limit=100.0),
        Panel(axis="of the vCPUs", bars=("cpu_used_pct",), dots=("vcpus_held_pct",), unit="%", limit=100.0),
        Panel(axis="vCPU hours", bars=("used_cpu_h",), dots=("held_vcpu_h",), unit="h"),
        Panel(axis="cost", bars=("cost_usd",), unit="USD"),
    ),
    "commitments": (
        Panel(axis="committed hours", bars=("used_h", "unused_h"), unit="h"),
        Panel(axis="cost", bars=("cost_usd",), dots=("unused_usd",), unit="USD"),
        Panel(axis="paid off", dots=("saved_usd",), unit="USD", limit=0.0),
    ),
    "accuracy": (
        Panel(axis="error of predictions", bars=("mean_error_pct",), dots=("p90_error_pct",), unit="%"),
        Panel(axis="within the 80 % limits", dots=("within_limits_pct",), unit="%", limit=80.0),
        *_RUN_TIMES,
    ),
    "decisions": (
        Panel(axis="cost", bars=("best_cost_usd",), dots=("cost_usd",), unit="USD"),
        Panel(axis="cost", bars=("cost_usd",), dots=("regret_usd",), unit="USD"),
        Panel(axis="run time", bars=("best_run_s",), dots=("run_s",), unit="s"),
    ),
    "run-times": _RUN_TIMES,
    "focus": (
        Panel(axis="cost by pricing category", bars=("committed_usd", "standard_usd", "dynamic_usd"), unit="USD"),
    ),
    "right-sizing": (
        Panel(axis="vCPUs", bars=("needed_vcpus",), dots=("asked_vcpus",)),
        Panel(axis="memory", bars=("needed_memory_mib",), dots=("asked_memory_mib",), unit="MiB"),
        Panel(axis="cost", bars=("saved_usd",), dots=("cost_usd",), unit="USD"),
    ),
}
_ONE_OF: Final = frozenset({"cost"})
"""Reports of which only the first panel is drawn that has all its columns."""
_UNITS: Final = {"usd": "USD", "pct": "%", "s": "s", "h": "h"}


def report_figure(name: str, table: ReportTable, performance: ReportTable | None = None) -> Figure:
    """Draw a report. ``performance``: the performance report of the same rows, whose targets are drawn beside the cost.

    Raises BadInput if it has no rows, or nothing to draw.
    """
    tables = [_charges_by_day(table) if name == "focus" else table, *table.further]
    drawn = [(each, _panels_of(name, each)) for each in tables if each.rows]
    if performance is not None and drawn:
        with_targets = _with_targets(drawn[0][0], performance)
        drawn[0] = (with_targets, [*drawn[0][1], *([_MET] if _has_values(with_targets, _MET) else [])])
    drawn = [(each, panels) for each, panels in drawn if panels]
    if not drawn:
        raise BadInput(f"{table.title}: there is nothing to draw")
    heights = [1.35 + ROW_IN * min(len(each.rows), ROWS_MOST) for each, _ in drawn]
    figure = new_figure(sum(heights))
    parts = figure.subfigures(len(drawn), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, (each, panels) in zip(parts, drawn, strict=True):
        rows = _rows(each)
        shown = "" if len(rows) == len(each.rows) else f" ({len(rows)} of {len(each.rows)} rows)"
        part.suptitle(label(each.title, 100) + shown, x=0.01, ha="left", weight="bold")
        plots = part.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(plots, panels, strict=True):
            _draw(axes, panel, rows)
        name_rows(plots[0], [label(str(row[each.columns[0].name]), 36) for row in rows])
    return figure


def _charges_by_day(charges: ReportTable) -> ReportTable:
    """Return the sum of the effective cost of FOCUS charges by day (UTC) and pricing category."""
    names = [column.name for column in charges.columns]
    day, category, cost = (names.index(each) for each in ("ChargePeriodStart", "PricingCategory", "EffectiveCost"))
    sums = dict[str, dict[str, float]]()
    for row in charges.rows:
        by_category = sums.setdefault(str(row[day])[:10], dict.fromkeys(_FOCUS_CATEGORIES, 0.0))
        by_category[str(row[category])] += float(row[cost] or 0.0)
    return ReportTable(
        title=charges.title,
        columns=columns("day", *(f"{each.lower()}_usd" for each in _FOCUS_CATEGORIES)),
        rows=tuple((at, *by_category.values()) for at, by_category in sorted(sums.items())),
    )


def _panels_of(name: str, table: ReportTable) -> list[Panel]:
    """Return the panels whose columns the table has; of other reports one for each of its first units."""
    names = {column.name for column in table.columns}
    found = [panel for panel in _PANELS.get(name, ()) if names.issuperset(panel.columns)]
    found = [panel for panel in found if _has_values(table, panel)]
    if found:
        return found[:1] if name in _ONE_OF else found
    by_unit: dict[str, Panel] = {}
    for column in table.columns[1:]:
        shown, _, ending = column.name.rpartition("_")
        if (
            ending in _UNITS
            and shown
            and any(isinstance(row[table.columns.index(column)], float) for row in table.rows)
        ):
            axis = shown.replace("_", " ")
            by_unit.setdefault(ending, Panel(axis=axis, bars=(column.name,), unit=_UNITS[ending]))
    return list(by_unit.values())[:3]


def _has_values(table: ReportTable, panel: Panel) -> bool:
    """Return whether anything of it would be drawn: no job may have a target, no program a known need."""
    at = [index for index, column in enumerate(table.columns) if column.name in panel.columns]
    return any(isinstance(row[index], (int, float)) for row in table.rows for index in at)


def _with_targets(table: ReportTable, performance: ReportTable) -> ReportTable:
    """Return the table with the column of met targets; None where no job of a row has a target."""
    met = [column.name for column in performance.columns].index("target_met_pct")
    by_row = {row[0]: row[met] for row in performance.rows}
    return ReportTable(
        title=table.title,
        columns=(*table.columns, performance.columns[met]),
        rows=tuple((*row, by_row.get(row[0])) for row in table.rows),
    )


def _rows(table: ReportTable) -> list[dict[str, Value]]:
    names = [column.name for column in table.columns]
    chosen = table.rows[-ROWS_MOST:] if names[0] == "day" else table.rows[:ROWS_MOST]
    return [dict(zip(names, row, strict=True)) for row in chosen]


def _draw(axes: Axes, panel: Panel, rows: Sequence[Mapping[str, Value]]) -> None:
    values = {name: [_number(row[name]) for row in rows] for name in panel.columns}
    scale, unit = 1.0, panel.unit
    if unit == "s":
        scale, unit = time_unit(max([value for each in values.values() for value in each], default=0.0))
    left = [0.0] * len(rows)
    for number, name in enumerate(panel.bars):
        lengths = [value / scale for value in values[name]]
        axes.barh(range(len(rows)), lengths, 0.6, left=left, color=COLOURS[number], label=_legend(name))
        left = [base + more for base, more in zip(left, lengths, strict=True)]
    for name in panel.dots:
        known = [(row, each[name]) for row, each in enumerate(rows) if isinstance(each[name], (int, float))]
        axes.plot([_number(value) / scale for _, value in known], [row for row, _ in known], "o", color="black",
                  markersize=5, label=_legend(name))  # fmt: skip
    if panel.limit is not None:
        axes.axvline(panel.limit, color="#777777", linewidth=0.9)
    axes.set_xlabel(f"{panel.axis}, {unit}" if unit else panel.axis)
    axes.margins(x=0.06)
    axes.use_sticky_edges = False  # parts of no length would keep the longest bar at the edge
    axes.locator_params(axis="x", nbins=6)
    if panel.limit == 100.0:
        least = min([_number(value) for value in values[panel.columns[0]]], default=0.0)
        axes.set_xlim(0.0 if panel.bars else max(0.0, min(80.0, least - 5.0)), 103.0)
    elif panel.bars and all(value >= 0 for each in values.values() for value in each):
        axes.set_xlim(left=0)
    if len(panel.columns) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderpad=0.1, columnspacing=1.0)


def _number(value: Value) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


_LEGENDS: Final = {"queue_p50_s": "median", "run_p50_s": "median", "queue_p95_s": "95th percentile",
                   "run_p95_s": "95th percentile", "jobs_usd": "held by jobs", "held_usd": "held by jobs",
                   "cpu_used_pct": "CPU used", "vcpus_held_pct": "vCPUs held", "used_cpu_h": "CPU used",
                   "held_vcpu_h": "vCPUs held"}  # fmt: skip


def _legend(name: str) -> str:
    return _LEGENDS.get(name) or name.rpartition("_")[0].replace("_", " ") or name
