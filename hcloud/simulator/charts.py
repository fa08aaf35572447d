"""Pictures of simulations: allocation over time, fullness of machines, costs and targets, performance and waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hcloud.plots import (
    BLUE,
    COLOURS,
    DASHES,
    MARKETS,
    ORANGE,
    ROW_IN,
    draw_limits,
    label,
    name_rows,
    new_figure,
    time_unit,
)
from hcloud.simulator.outcome import SimulationResult
from hcloud.simulator.performance import mean, quantile
from hcloud.simulator.seeds import Mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {"batch": BLUE, "service": ORANGE}
WAIT_TICKS = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 36_000: "10 h", 360_000: "100 h"}
_PANEL_IN = 2.1
"""Height of the panel of one outcome."""


def allocation_figure(outcomes: Sequence[SimulationResult]) -> Figure:
    """Draw vCPUs up by market (areas) and vCPUs held by jobs (line) over time, all outcomes on the same scales."""
    figure = new_figure(0.5 + _PANEL_IN * len(outcomes), "vCPUs paid (areas) and held by jobs (line)")
    panels = figure.subplots(len(outcomes), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    unit_s, unit = time_unit(max((each.span_s for each in outcomes), default=1.0))
    for axes, each in zip(panels, outcomes, strict=True):
        at = np.array(each.series.at_s) / unit_s
        markets = [name for name in MARKETS if name in each.series.up_vcpus]
        below = np.zeros(len(at))
        for name in markets:
            above = below + np.array(each.series.up_vcpus[name])
            axes.fill_between(
                at, below, above, color=MARKETS[name], label=name.replace("_", "-"), alpha=0.75, linewidth=0
            )
            below = above
        axes.plot(at, each.series.held_vcpus, color="black", label="held by jobs", linewidth=1.0)
        axes.set_title(label(each.name, 90))
        axes.set_ylabel("vCPUs")
        axes.margins(x=0)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    panels[-1].set_xlabel(f"time, {unit}")
    panels[0].set_ylim(bottom=0)
    return figure


def cost_figure(outcomes: Sequence[SimulationResult]) -> Figure:
    """Draw the cost of each outcome, committed and metered, and beside it the share of targets met."""
    names = [each.name for each in outcomes]
    met = {each.name: None if each.target_met_pct is None else Mean(value=each.target_met_pct, half_width=None)
           for each in outcomes}  # fmt: skip
    figure, costs = _cost_and_targets(names, [met[name] for name in names])
    rows = np.arange(len(outcomes))
    committed = np.array([each.committed_usd for each in outcomes])
    metered = np.array([each.metered_usd for each in outcomes])
    costs.barh(rows, committed, 0.6, color=MARKETS["reserved"], label="committed, used or not")
    costs.barh(rows, metered, 0.6, left=committed, color=MARKETS["on_demand"], label="metered")
    for row, each in enumerate(outcomes):
        _say(costs, row, each.cost_usd, dollars_text(each.cost_usd))
    costs.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return figure


def means_figure(costs: Mapping[str, Mean], targets: Mapping[str, Mean]) -> Figure:
    """Draw the mean cost of each policy over several seeds, and the targets met, both with their 95 % limits."""
    names = list(costs)
    figure, axes = _cost_and_targets(names, [targets.get(name) for name in names])
    axes.set_title("mean of all seeds, 95 % limits")
    draw_means(axes, list(costs.values()), money=True)
    return figure


def draw_means(axes: Axes, means: Sequence[Mean], *, money: bool = False) -> None:
    """Draw a bar with its 95 % limits for each mean, from top to bottom, and the number behind it."""
    axes.barh(range(len(means)), [each.value for each in means], 0.6, color=BLUE)
    for row, each in enumerate(means):
        half = each.half_width or 0.0
        if each.half_width is not None:
            draw_limits(axes, row, each.value, each.value - half, each.value + half)
        _say(axes, row, max(0.0, each.value + half), f"${each.text()}" if money else each.text())
    axes.margins(x=0.3)  # room for the numbers
    if all(each.value >= 0 for each in means):
        axes.set_xlim(left=0)


def dollars_text(usd: float) -> str:
    """Return an amount as in tables."""
    return f"${usd:.{2 if usd >= 1 or usd == 0 else 4}f}"


def _cost_and_targets(names: Sequence[str], targets: Sequence[Mean | None]) -> tuple[Figure, Axes]:
    """Return a figure with empty axes for costs, and the targets met drawn beside them, if there are any."""
    figure = new_figure(1.3 + ROW_IN * 1.3 * len(names))
    known = [each for each in targets if each is not None]
    if known:
        costs, met = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        for row, each in enumerate(targets):
            if each is None:
                met.text(50.0, row, "no job has a target", va="center", ha="center", color="#777777")
                continue
            half = each.half_width or 0.0
            draw_limits(met, row, each.value, each.value - half, min(100.0, each.value + half), marker="o")
            met.annotate(f"{each.value:.1f} %", (each.value, row), (0, 7), textcoords="offset points", ha="center")
        met.set_xlabel("targets met, %")
        low = min(each.value - (each.half_width or 0.0) for each in known)
        met.set_xlim(max(0.0, min(80.0, low - 5.0)), 103.0)
        met.axvline(100.0, color="#999999", linewidth=0.8)
    else:
        costs = figure.subplots()
    costs.set_xlabel("cost, USD")
    costs.margins(x=0.18)
    name_rows(costs, [label(each) for each in names])
    return figure, costs


def _say(axes: Axes, row: int, at: float, text: str) -> None:
    axes.annotate(text, (at, row), (5, 0), textcoords="offset points", va="center")


def fullness_figure(outcomes: Sequence[SimulationResult]) -> Figure:
    """Draw a heat map of each outcome's machines over time: darker means more of their vCPUs held by jobs.

    Cells are white while no machine was up. The strip on the left shows the market.
    """
    from matplotlib.patches import Patch

    figure = new_figure(0.9 + _PANEL_IN * len(outcomes), "How full machines were: vCPUs held by jobs / vCPUs up")
    panels = figure.subplots(len(outcomes), 1, squeeze=False)[:, 0]
    image = None
    for axes, each in zip(panels, outcomes, strict=True):
        full, (unit_s, unit) = each.fullness, time_unit(each.span_s)
        axes.set_title(label(f"{each.name}: {full.machines} machine{'s' if full.machines != 1 else ''}", 90))
        axes.set_xlabel(f"time, {unit}")
        axes.set_ylabel("machines, in launch order")
        axes.set_yticks([])
        axes.grid(visible=False)
        if not full.shares:
            continue
        cells = np.array([[np.nan if part is None else part for part in shares] for shares in full.shares], float)
        end = each.span_s / unit_s
        extent = (0.0, end, float(len(cells)), 0.0)
        image = axes.imshow(cells, aspect="auto", extent=extent, cmap="Blues", vmin=-0.15, vmax=1.0,
                            interpolation="nearest")  # fmt: skip
        for row, market in enumerate(full.markets):
            axes.axhspan(row, row + 1, 0.0, 0.008, color=MARKETS[market], linewidth=0)
        axes.set_xlim(-0.012 * end, end)
    if image is not None:
        bar = figure.colorbar(
            image, ax=list(panels), boundaries=np.linspace(0.0, 1.0, 41), ticks=[0, 0.25, 0.5, 0.75, 1]
        )
        bar.ax.set_yticklabels(["0 %", "25 %", "50 %", "75 %", "100 %"])
    used = [market for market in MARKETS if any(market in each.fullness.markets for each in outcomes)]
    patches = [Patch(color=MARKETS[market], label=market.replace("_", "-")) for market in used]
    if patches:
        figure.legend(handles=patches, loc="outside lower left", ncols=len(patches))
    return figure


def performance_figure(outcomes: Sequence[SimulationResult]) -> Figure:
    """Draw box plots of performance relative to the ideal, by outcome and kind of job.

    The box covers half of the jobs and the whiskers 90 %; the line is the median, the dot the mean.
    """
    drawn = [(each, kind) for each in outcomes for kind in KINDS if mean(each.performance, kind) is not None]
    figure = new_figure(1.3 + ROW_IN * 1.3 * max(1, len(drawn)))
    axes = figure.subplots()
    axes.set_xlabel("performance of jobs with a target, % of the ideal")
    axes.set_title("boxes: half of the jobs; whiskers: 90 %; line: median; dot: mean")
    if not drawn:
        axes.text(0.5, 0.5, "no job has a target", transform=axes.transAxes, ha="center", va="center")
        axes.set_yticks([])
        return figure
    for row, (each, kind) in enumerate(drawn):
        low, first, middle, third, high, dot = (
            100.0 * (part or 0.0)
            for part in (
                *(quantile(each.performance, share, kind) for share in (0.05, 0.25, 0.5, 0.75, 0.95)),
                mean(each.performance, kind),
            )
        )
        axes.plot([low, high], [row, row], color=KINDS[kind])
        axes.barh(row, third - first, 0.6, left=first, color=KINDS[kind], alpha=0.45)
        axes.plot([middle, middle], [row - 0.3, row + 0.3], color="black", linewidth=2)
        axes.plot([dot], [row], "o", color="black", markersize=4.5)
    axes.axvline(100.0, color="#999999", linewidth=0.8)
    name_rows(axes, [f"{label(each.name, 34)}, {kind}" for each, kind in drawn])
    least = min(100.0 * (quantile(each.performance, 0.05, kind) or 0.0) for each, kind in drawn)
    axes.set_xlim(left=max(0.0, min(80.0, least - 5.0)))
    return figure


def waits_figure(outcomes: Sequence[SimulationResult]) -> Figure:
    """Draw the distribution of waits until the first start, on a logarithmic scale from one second."""
    longest = max([each.wait_s[-1] for each in outcomes if each.wait_s] + [10.0])
    figure = new_figure(max(3.2, 1.0 + 0.2 * len(outcomes)))
    axes = figure.subplots()
    shares = np.arange(101) / 100.0
    for number, each in enumerate(outcomes):
        waits = [max(each.wait_quantile_s(float(share)) or 0.0, 1.0) for share in shares]
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
        axes.plot(waits, 100.0 * shares, color=colour, linestyle=dashes, label=label(each.name))
    axes.set_xscale("log")
    axes.set_xlim(1.0, max(longest, 10.0) * 1.05)
    ticks = [at for at in WAIT_TICKS if at <= longest * 1.05]
    axes.set_xticks(ticks, [WAIT_TICKS[at] for at in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 101)
    axes.set_yticks([0, 25, 50, 75, 95, 100])
    axes.set_xlabel("wait until the first start (a second or less at the left edge)")
    axes.set_ylabel("jobs that waited at most so long, %")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
