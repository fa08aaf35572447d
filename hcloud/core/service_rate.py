"""What a service achieves: the requests it serves within the latency that it promises, of those it is offered.

Profiling and readings of running services both mean this by performance, so that they compare.
"""

from __future__ import annotations


def rate_in_time(requests_per_s: float, tail_ms: float | None, promised_ms: float | None) -> float:
    """Return the requests per second that a service serves within its promised latency.

    Late requests count in proportion: an instance that is too small may serve all, each late. ``tail_ms``: its latency
    at the promised percentile; None, for either: unknown, all are in time.
    """
    if not tail_ms or promised_ms is None:
        return requests_per_s
    return requests_per_s * min(1.0, promised_ms / tail_ms)
