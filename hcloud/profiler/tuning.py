"""At which intensity of a source performance falls by 5 %, from as few measured intensities as will do.

Effects of iBench's sources are about linear in intensity (Dissertation §5.3), so the loss at full intensity brackets
the point, the line through it gives the next measurement, and interpolation between the two neighbours gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hcloud.profiler.repeats import Interval

LOSS = 0.05
"""Quality of service is kept up to here (Paragon §2.2)."""
FULL = 100.0
INTENSITY_MIN = 2.0
POINTS_MAX = 4
NEAR = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Performance lost at an intensity (0..100), as a fraction of that alone; negative where noise says so."""

    intensity: float
    loss: Interval


def next_intensity(points: Sequence[Loss], highest: float) -> float | None:
    """Return where to measure next, up to ``highest``; None when more points would not help."""
    if not points:
        return highest
    if len(points) >= POINTS_MAX or max(point.loss.high for point in points) < LOSS:
        return None
    wanted = max(INTENSITY_MIN, min(highest, crossing([(each.intensity, each.loss.value) for each in points])))
    if any(abs(point.intensity - wanted) <= max(INTENSITY_MIN, NEAR * wanted) for point in points):
        return None
    return wanted


def tolerated(points: Sequence[Loss]) -> Interval:
    """Return the intensity at which 5 % are lost, 100 if never, and its limits. Raises ValueError without points."""
    runs = sum(point.loss.runs for point in points)
    value, low, high = (
        crossing([(point.intensity, getattr(point.loss, edge)) for point in points])
        for edge in ("value", "high", "low")
    )
    return Interval(value=value, low=min(low, value), high=max(high, value), runs=runs)


def crossing(curve: Sequence[tuple[float, float]], loss: float = LOSS) -> float:
    """Return the intensity at which a curve of (intensity, loss) reaches ``loss``, 0..100.

    The curve begins at no loss without a source, never falls (it is made so: more pressure does no good), is straight
    between points, and goes on behind the last one as straight as from the beginning to there.
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
