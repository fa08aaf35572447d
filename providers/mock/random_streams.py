"""Repeatable random streams: each draw depends on the seed and its purpose, not on the order of calls."""

from __future__ import annotations

import math
import zlib

import numpy as np

Z_95 = 1.6448536269514722


def draws_for(seed: int, *what: str | int) -> np.random.Generator:
    """Return the generator for one purpose, e.g. ``draws_for(seed, "boot", "inst-7")``."""
    words = [word if isinstance(word, int) else zlib.crc32(word.encode()) for word in what]
    return np.random.default_rng([seed, *words])


def lognormal_s(draws: np.random.Generator, p50_s: float, p95_s: float) -> float:
    """Draw a duration from the lognormal with this median (> 0) and 95th percentile."""
    sigma = max(0.0, math.log(max(p95_s, p50_s) / p50_s) / Z_95)
    return float(p50_s * math.exp(sigma * draws.standard_normal()))


def waiting_s(draws: np.random.Generator, events_per_h: float) -> float:
    """Draw the time until the first event of a Poisson process with ``events_per_h`` > 0."""
    return float(draws.exponential(3600.0 / events_per_h))


def walk(seed: int, name: str, step: int, memory: int = 24, persistence: float = 0.85) -> float:
    """Return a random walk of unit variance at a time step; a pure function of its arguments.

    It is an autoregressive walk cut off after ``memory`` steps: the sum over j of persistence^j times the noise of
    step - j.
    """
    noise = np.array([_noise(seed, name, step - j) for j in range(memory)])
    weights = persistence ** np.arange(memory)
    return float(noise @ weights / math.sqrt(float(weights @ weights)))


def _noise(seed: int, name: str, step: int) -> float:
    # Uniform with mean 0 and variance 1.
    hashed = zlib.crc32(f"{seed}/{name}/{step}".encode())
    mixed = (hashed * 2654435761) & 0xFFFFFFFF
    return (mixed / 0xFFFFFFFF - 0.5) * math.sqrt(12.0)
