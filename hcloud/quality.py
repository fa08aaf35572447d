"""Resource quality: how demanding a job is, how good a place is, and how well the two fit.

Interference is a vector of pressures 0..99 on the shared resources (Tarcil's scale; HCloud §8.3). Two measures of it:
the order-preserving code of Tarcil (Dissertation eq. 7.1-7.5), which ranks by the worst resource first, and ARQ's sum
(eq. 6.1), which sorts jobs into ten queues.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hcloud.errors import BadInput

PRESSURE_MAX = 99.0
CLASSES = 10
_BASE = 100.0


def encode(pressures: Sequence[float]) -> float:
    """Return the normalised code (0..1) of pressures on N resources, in any order (Dissertation eq. 7.1-7.2).

    The pressures, each 0..99 (100 counts as 99), are sorted in decreasing order and read as digits of base 100, then
    divided by the largest such number. Read as a fraction, so that many resources do not overflow. No resource: 0.

    Raises BadInput where a pressure is not a number from 0 to 100.
    """
    if not pressures:
        return 0.0
    digits = sorted((_pressure(each) for each in pressures), reverse=True)
    fraction = math.fsum(digit * _BASE**-place for place, digit in enumerate(digits, 1))
    return min(1.0, fraction / (1.0 - _BASE ** -len(digits)))


def target(caused: Sequence[float]) -> float:
    """Return ``Q_T`` (0..1): the quality a job needs, from the pressures 0..99 it causes (Dissertation eq. 7.2).

    Tarcil takes ``t = 99 - c``: who presses hard on a resource also suffers there, so the code of what a job causes is
    the code of what it cannot bear.
    """
    return encode(caused)


def offer(neighbours: Sequence[Sequence[float]]) -> float:
    """Return ``U_H`` (0..1): the quality a resource unit offers (Dissertation eq. 7.3-7.4).

    ``neighbours`` has one vector of caused pressures per *other* unit of the server, idle units included as zeros; each
    resource counts with their mean. No other unit: 1.

    Raises BadInput where the vectors differ in length or hold no pressures.
    """
    if not neighbours:
        return 1.0
    lengths = {len(vector) for vector in neighbours}
    if len(lengths) != 1:
        raise BadInput(
            f"neighbours name {sorted(lengths)} resources each; every neighbour needs one pressure per resource"
        )
    means = [math.fsum(map(_pressure, column)) / len(neighbours) for column in zip(*neighbours, strict=True)]
    return 1.0 - encode(means)


def match(offered: float, needed: float) -> float:
    """Return how well a unit of quality ``offered`` suits a job that needs ``needed`` (both 0..1), 1 being ideal.

    At or above the need: ``1 - (offered - needed)``, so that the tightest fit is best. Below it: ``offered``. The
    printed second branch of eq. 7.5 (``needed - offered``) would rank a worse violation higher and contradicts its own
    text. A satisfying unit is never below ``needed`` and a violating one always is, so every satisfying unit ranks
    above every violating one.

    Raises BadInput where a quality is not a number from 0 to 1.
    """
    for name, value in (("offered", offered), ("needed", needed)):
        if not 0.0 <= value <= 1.0:
            raise BadInput(f"quality {name} is {value}; it must be a number from 0 to 1")
    # At an offer of 1 the fit is exactly `needed`; rounding must not take it below.
    return max(needed, 1.0 - (offered - needed)) if offered >= needed else offered


def total(pressures: Sequence[float]) -> float:
    """Return ARQ's quality (0..1): the mean pressure over the full scale (Dissertation eq. 6.1, normalised).

    For a job the pressures it causes; for a server those it still tolerates.
    """
    return math.fsum(map(_pressure, pressures)) / (len(pressures) * PRESSURE_MAX) if pressures else 0.0


def quality_class(quality: float) -> int:
    """Return the ARQ class 0..9 of a quality 0..1: ``floor(10 Q)``, a quality of exactly 1 being in the top class."""
    if not 0.0 <= quality <= 1.0:
        raise BadInput(f"quality is {quality}; it must be a number from 0 to 1")
    return min(CLASSES - 1, int(CLASSES * quality))


def _pressure(value: float) -> float:
    if not 0.0 <= value <= 100.0:
        raise BadInput(f"pressure on a shared resource is {value}; it must be a number from 0 to 100")
    return min(PRESSURE_MAX, float(value))
