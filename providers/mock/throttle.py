"""Rate limit of API calls: a token bucket."""

from __future__ import annotations


class TokenBucket:
    """Holds up to ``burst`` calls and refills at ``calls_per_s`` (None: no limit)."""

    def __init__(self, calls_per_s: float | None, burst: int) -> None:
        self._calls_per_s = calls_per_s
        self._burst = burst
        self._left = float(burst)
        self._filled_at = float("-inf")

    def take(self, now: float) -> float:
        """Take one call; return 0 if it may pass, else the seconds until the next may."""
        if self._calls_per_s is None:
            return 0.0
        self._left = min(self._burst, self._left + (now - self._filled_at) * self._calls_per_s)
        self._filled_at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._calls_per_s
