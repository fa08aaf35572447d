"""The geometry of the small drawings on pages, which templates write as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from hcloud.core.estimates import Estimate
from hcloud.web.text import share, visible

RADIUS = 90.0
PRESSURE_MAX = 100.0


def pressures(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """Return the values of estimates by name."""
    return {name: each.value for name, each in estimates.items()}


def radar(values: Mapping[str, float], axes: Sequence[str], largest: float = PRESSURE_MAX) -> str:
    """Return the corners of a polygon around (0, 0), as SVG writes them: one for each axis, clockwise from the top.

    A value of ``largest`` lies on the circle with radius ``RADIUS``.
    """
    corners = []
    for at, axis in enumerate(axes):
        length = RADIUS * min(1.0, max(0.0, values.get(axis, 0.0) / largest))
        corners.append(point(at, len(axes), length))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def point(at: int, count: int, length: float = RADIUS) -> tuple[float, float]:
    """Return the end of an axis of this length; the first points up."""
    angle = 2.0 * math.pi * at / max(1, count) - math.pi / 2.0
    return round(length * math.cos(angle), 1), round(length * math.sin(angle), 1)


def heat(share: float) -> int:
    """Return the colour of a share (0..1): 0 for nothing, 10 for all."""
    return max(0, min(10, round(10 * share)))


def column(value: float, low: float, high: float, width: float = 100.0) -> float:
    """Return where on a scale from ``low`` to ``high`` that is ``width`` long a value lies."""
    return 0.0 if high <= low else round(width * min(1.0, max(0.0, (value - low) / (high - low))), 2)


def bar(part: float, label: str = "", tone: str = "") -> Markup:
    """Return a bar of which a share (0..1) is filled; ``tone`` is a class of its own, such as ``hot``."""
    words = escape(visible(label) or share(part))
    return Markup(
        f'<svg class="bar {tone}" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="{words}">'
        f'<rect class="all" width="100" height="6"/><rect class="part" width="{column(part, 0, 1)}" height="6"/></svg>'
    )
