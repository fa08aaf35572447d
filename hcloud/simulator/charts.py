"""Charts of simulations as SVG: allocation over time, utilisation heat maps, costs, performance and waits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, groupby
from unicodedata import east_asian_width

from hcloud.core.pricing import HOUR_S
from hcloud.simulator.outcome import SimulationResult
from hcloud.simulator.performance import mean, quantile
from hcloud.simulator.seeds import Mean
from hcloud.simulator.utilisation import COLUMNS

WIDTH, PLOT_LEFT, PLOT_WIDTH, PLOT_HEIGHT, GAP, BOX_LEFT = 860, 64, 560, 150, 46, 220
COLOURS = {"reserved": "#4878a8", "on_demand": "#e08a3c", "spot": "#8fb85c"}
BAR_LEFT, BAR, BAR_ROW = 260, 430, 22
LINES = ("#4878a8", "#e08a3c", "#8fb85c", "#a05a9c", "#c44e52", "#6b6b6b", "#3ca0a0", "#b8a03c")
DASHES = ("", "6 3", "2 2")
"""Distinguish lines of the same colour."""
CHARACTER = 6.5
"""Mean width of a character in pixels; characters of East Asian scripts are twice as wide."""
HEAT_COLOURS = (
    "#eef3f8",
    "#d5e2ee",
    "#b9cfe3",
    "#9bbad6",
    "#7ea5c8",
    "#6390b9",
    "#4878a8",
    "#356393",
    "#244d7c",
    "#143763",
)
"""From empty to full, one per tenth."""
KINDS = {"batch": "#4878a8", "service": "#e08a3c"}


def allocation_svg(outcomes: Sequence[SimulationResult]) -> str:
    """Return vCPUs up by market (areas) and vCPUs held by jobs (line) over time, for each outcome on the same
    scales."""
    by_market = [each.series.up_vcpus.values() for each in outcomes]
    most = max((sum(vcpus) for markets in by_market for vcpus in zip(*markets, strict=True)), default=1.0)
    span_s = max((each.span_s for each in outcomes), default=1.0)
    parts: list[str] = []
    for number, each in enumerate(outcomes):
        parts += _allocation(each, GAP + number * (PLOT_HEIGHT + GAP), max(most, 1.0), max(span_s, 1.0))
    return _document(parts, GAP + len(outcomes) * (PLOT_HEIGHT + GAP))


def cost_svg(outcomes: Sequence[SimulationResult]) -> str:
    """Return a bar per outcome, committed and metered cost, labelled with the percentage of targets met."""
    most = max([each.cost_usd for each in outcomes] + [1e-9])
    labels = {"reserved": "reserved (used or not)", "on_demand": "metered"}
    kinds = ", ".join(f'<tspan fill="{COLOURS[kind]}">{text}</tspan>' for kind, text in labels.items())
    parts = [f'<text x="8" y="18">cost in USD: {kinds}; targets met</text>']
    for number, each in enumerate(outcomes):
        top, x = 34 + number * 30, 220.0
        parts.append(f'<text x="8" y="{top + 15}">{_fit_text(each.name, x - 16)}</text>')
        for usd, colour in ((each.committed_usd, COLOURS["reserved"]), (each.metered_usd, COLOURS["on_demand"])):
            width = 400 * usd / most
            parts.append(f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="20" fill="{colour}"/>')
            x += width
        met = "" if each.target_met_pct is None else f", {each.target_met_pct:.1f} %"
        digits = 2 if each.cost_usd >= 1 or each.cost_usd == 0 else 4  # as in tables
        parts.append(f'<text x="{x + 6:.1f}" y="{top + 15}">${each.cost_usd:.{digits}f}{met}</text>')
    return _document(parts, 50 + 30 * len(outcomes))


def limits_svg(title: str, means: Mapping[str, Mean]) -> str:
    """Return a bar per case with its 95 % limits."""
    most = max([each.value + (each.half_width or 0.0) for each in means.values()] + [1e-9])
    parts = [f'<text x="8" y="18">{escape(title)}</text>']
    for number, (label, each) in enumerate(means.items()):
        parts += _bar(label, each, 30 + BAR_ROW * number, most)
    return _document(parts, 44 + BAR_ROW * len(means))


def _bar(label: str, each: Mean, top: int, most: float) -> Iterator[str]:
    width, half = BAR * each.value / most, BAR * (each.half_width or 0.0) / most
    yield f'<text x="8" y="{top + 13}">{_fit_text(label, BAR_LEFT - 8)}</text>'
    yield f'<rect x="{BAR_LEFT}" y="{top}" width="{width:.1f}" height="{BAR_ROW - 6}" fill="#4878a8"/>'
    middle = top + (BAR_ROW - 6) / 2
    yield (
        f'<line x1="{BAR_LEFT + max(0.0, width - half):.1f}" y1="{middle}" x2="{BAR_LEFT + width + half:.1f}" '
        f'y2="{middle}" stroke="black" stroke-width="1.5"/>'
    )
    yield f'<text x="{BAR_LEFT + width + half + 8:.1f}" y="{top + 13}">{escape(each.text())}</text>'


def fullness_svg(outcomes: Sequence[SimulationResult]) -> str:
    """Return, for each outcome, a heat map of its machines (rows) over time: darker means more of their vCPUs held.

    Cells are white while no machine was up. The strip on the left shows the market.
    """
    parts, legend_x = ['<text x="8" y="18">vCPUs held by jobs / vCPUs up:</text>'], 210
    for number, colour in enumerate(HEAT_COLOURS):
        parts.append(f'<rect x="{legend_x + 24 * number}" y="6" width="24" height="14" fill="{colour}"/>')
    parts.append(f'<text x="{legend_x + 24 * len(HEAT_COLOURS) + 8}" y="18">0 to 100 %</text>')
    for number, each in enumerate(outcomes):
        parts += _heat_map(each, 20 + GAP + number * (PLOT_HEIGHT + GAP))
    return _document(parts, 20 + GAP + len(outcomes) * (PLOT_HEIGHT + GAP))


def performance_svg(outcomes: Sequence[SimulationResult]) -> str:
    """Return box plots of performance relative to the ideal, by outcome and kind of job.

    The box covers half of the jobs and the whiskers 90 %; the line is the median, the dot the mean.
    """
    drawn = [(each, kind) for each in outcomes for kind in KINDS if mean(each.performance, kind) is not None]
    most = max([quantile(each.performance, 0.95, kind) or 0.0 for each, kind in drawn] + [1.0])
    bottom = 40 + 26 * max(1, len(drawn))
    parts = ['<text x="8" y="18">performance / ideal: percentiles 5, 25, 50, 75, 95 of the jobs, and the mean</text>']
    for percent in range(0, math.floor(100 * most) + 1, 20):
        x = _part_x(percent / 100, most)
        parts.append(f'<line x1="{x:.1f}" y1="34" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{percent} %</text>')
    if not drawn:
        parts.append('<text x="8" y="54">no job has a target</text>')
    for number, (each, kind) in enumerate(drawn):
        parts += _box(each, kind, 40 + 26 * number, most)
    return _document(parts, bottom + 30)


def waits_svg(outcomes: Sequence[SimulationResult]) -> str:
    """Return the distribution of waits until the first start, on a logarithmic scale from one second."""
    longest = max([each.wait_s[-1] for each in outcomes if each.wait_s] + [10.0])
    top, bottom = 34, 34 + 220
    parts = ['<text x="8" y="18">cumulative share of jobs by wait until the first start</text>']
    for seconds in (1, 10, 60, 600, 3600, 36000):
        if seconds <= longest:
            x = _log_x(seconds, longest)
            parts.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
            parts.append(f'<text x="{x - 10:.1f}" y="{bottom + 16}">{seconds} s</text>')
    for share in (0.0, 0.5, 0.95, 1.0):
        y = bottom - (bottom - top) * share
        parts.append(f'<line x1="{PLOT_LEFT}" y1="{y:.1f}" x2="{PLOT_LEFT + PLOT_WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
        # 95 and 100 % are 11 apart, less than letters are high.
        parts.append(f'<text x="8" y="{y + (9 if share == 0.95 else 0 if share == 1 else 4):.1f}">{share:.0%}</text>')
    for number, each in enumerate(outcomes):
        colour, dashes = LINES[number % len(LINES)], DASHES[number // len(LINES) % len(DASHES)]
        shares = [n / 100 for n in range(101)]
        waits = [(each.wait_quantile_s(s), s) for s in shares]
        points = [(_log_x(wait_s, longest), bottom - (bottom - top) * s) for wait_s, s in waits if wait_s is not None]
        parts.append(_line(points, colour, dashes))
        x, y = PLOT_LEFT + PLOT_WIDTH + 12, top + 16 + 18 * number
        parts.append(_line([(x, y - 4), (x + 20, y - 4)], colour, dashes))
        parts.append(f'<text x="{x + 26}" y="{y}" fill="{colour}">{_fit_text(each.name, WIDTH - x - 34)}</text>')
    return _document(parts, max(bottom + 30, top + 30 + 18 * len(outcomes)))


def _heat_map(outcome: SimulationResult, top: int) -> Iterator[str]:
    full = outcome.fullness
    name, high = _fit_text(outcome.name, PLOT_WIDTH - 60), PLOT_HEIGHT / max(1, len(full.shares))
    machines = "1 machine" if full.machines == 1 else f"{full.machines} machines"
    yield f'<text x="{PLOT_LEFT}" y="{top - 8}">{name}: {machines}, in launch order</text>'
    for row, (market, shares) in enumerate(zip(full.markets, full.shares, strict=True)):
        y = top + row * high
        strip = f'x="{PLOT_LEFT - 10}" y="{y:.2f}" width="6" height="{high:.2f}"'
        yield f'<rect {strip} fill="{COLOURS[market]}"/>'
        for first, until, level in _level_runs(shares):
            x, width = PLOT_LEFT + PLOT_WIDTH * first / COLUMNS, PLOT_WIDTH * (until - first) / COLUMNS
            place = f'x="{x:.1f}" y="{y:.2f}" width="{width:.1f}" height="{high:.2f}"'
            yield f'<rect {place} fill="{HEAT_COLOURS[level]}" shape-rendering="crispEdges"/>'
    for number, market in enumerate(market for market in COLOURS if market in full.markets):
        x, y = PLOT_LEFT + PLOT_WIDTH + 16, top + 14 + 18 * number
        yield f'<text x="{x}" y="{y}" fill="{COLOURS[market]}">{market.replace("_", "-")}</text>'
    bottom = top + PLOT_HEIGHT
    yield f'<line x1="{PLOT_LEFT}" y1="{bottom}" x2="{PLOT_LEFT + PLOT_WIDTH}" y2="{bottom}" stroke="black"/>'
    yield f'<text x="{PLOT_LEFT + PLOT_WIDTH - 40}" y="{bottom + 16}">{_span(outcome.span_s)}</text>'


def _level_runs(shares: Sequence[float | None]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of columns with the same level (0..9) while machines were up: first column, end column, level."""
    levels = [None if part is None else min(len(HEAT_COLOURS) - 1, int(part * len(HEAT_COLOURS))) for part in shares]
    for level, columns in groupby(range(len(levels)), key=levels.__getitem__):
        at = list(columns)
        if level is not None:
            yield at[0], at[-1] + 1, level


def _part_x(part: float, most: float) -> float:
    return BOX_LEFT + (WIDTH - BOX_LEFT - 60) * part / most


def _box(outcome: SimulationResult, kind: str, top: int, most: float) -> Iterator[str]:
    found, colour, y = outcome.performance, KINDS[kind], top + 10
    low, first, middle, third, high, dot = (
        _part_x(part or 0.0, most)
        for part in (*(quantile(found, share, kind) for share in (0.05, 0.25, 0.5, 0.75, 0.95)), mean(found, kind))
    )
    yield f'<text x="8" y="{y + 4}">{_fit_text(outcome.name, BOX_LEFT - 70)}, {kind}</text>'
    yield f'<line x1="{low:.1f}" y1="{y}" x2="{high:.1f}" y2="{y}" stroke="{colour}"/>'
    box = f'x="{first:.1f}" y="{top}" width="{third - first:.1f}" height="20"'
    yield f'<rect {box} fill="{colour}" fill-opacity="0.4" stroke="{colour}"/>'
    yield f'<line x1="{middle:.1f}" y1="{top}" x2="{middle:.1f}" y2="{top + 20}" stroke="black" stroke-width="2"/>'
    yield f'<circle cx="{dot:.1f}" cy="{y}" r="3" fill="black"/>'


def _log_x(seconds: float, longest: float) -> float:
    return PLOT_LEFT + PLOT_WIDTH * math.log10(max(seconds, 1.0)) / max(math.log10(longest), 1e-9)


def _allocation(outcome: SimulationResult, top: int, most: float, span_s: float) -> Iterator[str]:
    bottom, series = top + PLOT_HEIGHT, outcome.series

    def place(at_s: float, vcpus: float) -> tuple[float, float]:
        """Return pixel coordinates; y grows downwards."""
        return PLOT_LEFT + PLOT_WIDTH * at_s / span_s, bottom - PLOT_HEIGHT * vcpus / most

    name = _fit_text(outcome.name, PLOT_WIDTH - 60)
    yield f'<text x="{PLOT_LEFT}" y="{top - 8}">{name}: vCPUs up (areas) and held by jobs (line)</text>'
    below = [0.0] * len(series.at_s)
    for number, market in enumerate(name for name in COLOURS if name in series.up_vcpus):
        above = [base + more for base, more in zip(below, series.up_vcpus[market], strict=True)]
        edge = [place(at, v) for at, v in zip(series.at_s, above, strict=True)]
        edge += [place(at, v) for at, v in reversed(list(zip(series.at_s, below, strict=True)))]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
        yield f'<polygon points="{points}" fill="{COLOURS[market]}" fill-opacity="0.75"/>'
        x, y = PLOT_LEFT + PLOT_WIDTH + 16, top + 14 + 18 * number
        yield f'<text x="{x}" y="{y}" fill="{COLOURS[market]}">{market.replace("_", "-")}</text>'
        below = above
    yield _line([place(at, v) for at, v in zip(series.at_s, series.held_vcpus, strict=True)], "black")
    yield f'<line x1="{PLOT_LEFT}" y1="{bottom}" x2="{PLOT_LEFT + PLOT_WIDTH}" y2="{bottom}" stroke="black"/>'
    yield f'<text x="8" y="{top + 10}">{most:.0f}</text><text x="8" y="{bottom}">0</text>'
    yield f'<text x="{PLOT_LEFT + PLOT_WIDTH - 40}" y="{bottom + 16}">{_span(span_s)}</text>'


def _fit_text(name: str, width: float) -> str:
    """Return a name shortened to ``width`` pixels, as XML. Both ends are kept, since file names differ there."""
    most = int(width / CHARACTER)
    end = most // 2
    if sum(map(_character_width, name)) <= most:
        return escape(name)
    return escape(f"{_prefix(name, most - end - 1)}\u2026{_prefix(name[::-1], end)[::-1]}")


def _prefix(text: str, most: int) -> str:
    ends = accumulate(map(_character_width, text))
    return text[: sum(end <= most for end in ends)]


def _character_width(letter: str) -> int:
    return 2 if east_asian_width(letter) in "WF" else 1


def _span(seconds: float) -> str:
    return f"{seconds / HOUR_S:.1f} h" if seconds >= 0.1 * HOUR_S else f"{seconds:.0f} s"


def _line(points: Sequence[tuple[float, float]], colour: str, dashes: str = "") -> str:
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawn = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.5"{drawn}/>'


def _document(parts: Sequence[str], height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )
