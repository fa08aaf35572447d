"""A mean over seeds, and how far it may be from what many more seeds would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean over seeds and how far its 95 % limits are from it (None: there was only one seed)."""

    value: float
    half_width: float | None

    def text(self) -> str:
        """Return it as people write it."""
        return f"{self.without_dust:.3g}" + ("" if self.half_width is None else f" ±{self.half_width:.2g}")

    @property
    def without_dust(self) -> float:
        """The value; 0 where it differs from that by what adding up floats leaves behind only."""
        return round(self.value, 9) + 0.0


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean with its 95 % limits (Student's t). Raises ValueError without values."""
    if not values:
        raise ValueError("no values, no mean")
    if len(values) == 1:
        return Mean(value=values[0], half_width=None)
    reach = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / len(values) ** 0.5
    return Mean(value=fmean(values), half_width=reach)
