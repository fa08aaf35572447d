"""Find the intensity of a source at which performance falls by 5 %, with as few measurements as possible.

Effects of iBench's sources are about linear in intensity (Dissertation §5.3). The loss at full intensity brackets the
point, the line through it gives the next intensity, and interpolation between the two neighbours gives the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hcloud.profiler.repeats import Interval

LOSS = 0.05
"""Loss up to which quality of service counts as kept (Paragon §2.2)."""
FULL = 100.0
INTENSITY_MIN = 2.0
POINTS_MAX = 4
NEAR = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Performance lost at an intensity (0..100), as a fraction of isolated performance; noise may make it negative."""

    intensity: float
    loss: Interval


def next_intensity(points: Sequence[Loss], highest: float) -> float | None:
    """Return the next intensity to measure, up to ``highest``; None when more points would not help."""
    if not points:
        return highest
    if len(points) >= POINTS_MAX or max(point.loss.high for point in points) < LOSS:
        return None
    wanted = max(INTENSITY_MIN, min(highest, crossing([(each.intensity, each.loss.value) for each in points])))
    if any(abs(point.intensity - wanted) <= max(INTENSITY_MIN, NEAR * wanted) for point in points):
        return None
    return wanted


def tolerated(points: Sequence[Loss]) -> Interval:
    """Return the intensity at which 5 % is lost, 100 if never, with its limits. Raises ValueError without points."""
    runs = sum(point.loss.runs for point in points)
    value, low, high = (
        crossing([(point.intensity, getattr(point.loss, edge)) for point in points])
        for edge in ("value", "high", "low")
    )
    return Interval(value=value, low=min(low, value), high=max(high, value), runs=runs)


def crossing(curve: Sequence[tuple[float, float]], loss: float = LOSS) -> float:
    """Return the intensity (0..100) at which a curve of (intensity, loss) reaches ``loss``.

    The curve starts at (0, 0), is made non-decreasing (more pressure never helps), is linear between points, and
    continues after the last one along the line from the origin.
    """
    before_x = before_y = 0.0
    for x, measured in sorted(curve):
        y = max(before_y, measured)
        if y >= loss:
            return min(FULL, before_x + (x - before_x) * (loss - before_y) / (y - before_y))
        before_x, before_y = x, y
    if not curve:
        raise ValueError("no points, no crossing")
    return min(FULL, before_x * loss / before_y) if before_y > 0 else FULL
