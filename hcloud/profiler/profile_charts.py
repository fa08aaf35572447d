"""A profile as an SVG chart: performance by size, and interference tolerated and caused.

The right half shows performance kept by intensity of each source, from the measured 5 % point by the linear law that
predictions use (``hcloud.classifier.interference``), with the limits of that point as a band.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

from hcloud.classifier.interference import kept
from hcloud.classifier.library import Question
from hcloud.classifier.profiles import Cell, PressureCell, ReferenceProfile

ROW, LEFT, BAR, GAP, CURVE = 26, 150, 190, 24, 130
TOP = 64
SIZES_BAR = 300
KEPT_FLOOR = 0.4
"""Performance kept at a curve's lower edge; the upper edge is 1."""
COLOURS = {Question.TOLERATED: "#4682b4", Question.CAUSED: "#cd5c5c"}


def svg(profile: ReferenceProfile) -> str:
    """Return a profile's chart: bars of performance, then a row per source (tolerated, caused, sensitivity curve)."""
    sources = list(profile.cells.tolerated) or list(profile.cells.caused)
    sizes = list(_sizes(profile))
    sources_top = TOP + ROW * len(sizes) + (44 if sizes else 0)
    height = sources_top + ROW * len(sources) + 20
    width = LEFT + 2 * (BAR + GAP) + CURVE + 30
    parts = [f'<text x="8" y="22" font-size="15" font-weight="bold">{escape(profile.profile)}</text>']
    about, fitted = profile.provenance, profile.fitted
    subtitle = f"{profile.group}; fitted {fitted.fitted_at} to {fitted.source}" if fitted is not None else profile.group
    if about is not None:
        subtitle += f"; {about.cpu}, {about.cores} CPUs, {about.measured_at}, load {about.load_average:g}"
    parts.append(f'<text x="8" y="40" fill="#555">{escape(subtitle)}</text>')
    parts += _drawn_sizes(sizes, profile.units.performance)
    if sources:
        parts += _heads(sources_top)
    for at, source in enumerate(sources):
        parts += _drawn_source(profile, source, sources_top + ROW * at)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _sizes(profile: ReferenceProfile) -> Iterator[tuple[str, Cell]]:
    """Yield columns to draw. Types that are slices of one machine repeat its steps, so steps are preferred."""
    chosen: Mapping[str, Cell] = profile.cells.step or profile.cells.type
    yield from chosen.items()
    yield from ((f"{nodes} nodes", cell) for nodes, cell in profile.cells.nodes.items())


def _drawn_sizes(sizes: Sequence[tuple[str, Cell]], unit: str) -> Iterator[str]:
    most = max((max(cell.high, cell.value) for _, cell in sizes), default=1.0)
    for at, (column, cell) in enumerate(sizes):
        top = TOP + ROW * at
        yield _label(column, top)
        yield from _bar(LEFT, top, SIZES_BAR, cell, most, "#6b8e23")
        yield f'<text x="{LEFT + SIZES_BAR + 10}" y="{top + 16}">{cell.value:.4g} {escape(unit)}</text>'


def _heads(top: int) -> Iterator[str]:
    line = top - 10
    yield f'<text x="{LEFT}" y="{line}" fill="{COLOURS[Question.TOLERATED]}">tolerated, %</text>'
    yield f'<text x="{LEFT + BAR + GAP}" y="{line}" fill="{COLOURS[Question.CAUSED]}">caused, %</text>'
    yield f'<text x="{LEFT + 2 * (BAR + GAP)}" y="{line}">performance kept</text>'


def _drawn_source(profile: ReferenceProfile, source: str, top: int) -> Iterator[str]:
    yield _label(source, top)
    for at, question in enumerate((Question.TOLERATED, Question.CAUSED)):
        cell, left = profile.cells.of(question).get(source), LEFT + at * (BAR + GAP)
        yield f'<rect x="{left}" y="{top + 4}" width="{BAR}" height="{ROW - 10}" fill="#f2f2f2"/>'
        if cell is not None:
            yield from _bar(left, top, BAR, cell, 100.0, COLOURS[question])
            # White on a long bar, black behind a short one.
            inside = cell.value > 25
            x = left + 5 if inside else left + BAR * max(cell.value, cell.high) / 100 + 5
            x = min(x, left + BAR - 22)
            yield f'<text x="{x:.1f}" y="{top + 16}" fill="{"white" if inside else "black"}">{cell.value:.0f}</text>'
    tolerated = profile.cells.tolerated.get(source)
    if tolerated is not None:
        yield from _curve(tolerated, LEFT + 2 * (BAR + GAP), top)


def _label(text: str, top: int) -> str:
    return f'<text x="8" y="{top + 16}">{escape(text)}</text>'


def _bar(left: int, top: int, full: int, cell: Cell, most: float, colour: str) -> Iterator[str]:
    """Draw a value from the left, and its 95 % limits as a whisker."""
    low, value, high = (full * min(1.0, max(0.0, each / most)) for each in (cell.low, cell.value, cell.high))
    below = top + ROW - 7.5  # under the number, so that both can be read
    yield f'<rect x="{left}" y="{top + 4}" width="{value:.1f}" height="{ROW - 10}" fill="{colour}"/>'
    yield f'<path d="M{left + low:.1f},{below} H{left + high:.1f}" stroke="black" stroke-width="1.2"/>'


def _curve(tolerated: PressureCell, left: int, top: int) -> Iterator[str]:
    upper = [_point(at, tolerated.high, left, top) for at in range(0, 101, 5)]
    lower = [_point(at, tolerated.low, left, top) for at in range(100, -1, -5)]
    line = [_point(at, tolerated.value, left, top) for at in range(0, 101, 5)]
    yield f'<rect x="{left}" y="{top + 2}" width="{CURVE}" height="{ROW - 5}" fill="#f8f8f8"/>'
    yield f'<polygon points="{" ".join(upper + lower)}" fill="#4682b4" fill-opacity="0.2"/>'
    yield f'<polyline points="{" ".join(line)}" fill="none" stroke="#4682b4" stroke-width="1.5"/>'


def _point(intensity: float, tolerated: float, left: int, top: int) -> str:
    share = max(0.0, (kept(intensity, tolerated) - KEPT_FLOOR) / (1.0 - KEPT_FLOOR))
    return f"{left + CURVE * intensity / 100:.1f},{top + 2 + (ROW - 5) * (1.0 - share):.1f}"
