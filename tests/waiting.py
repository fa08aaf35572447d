"""Wait for a condition with a deadline, or fail: the only place where tests wait."""

from collections.abc import Callable
from typing import TypeVar

from hcloud.core.clock import holds_within

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout_s: float, interval_s: float = 0.02) -> T:
    """Call `condition` until it returns something true, and return that.

    Raises:
        TimeoutError: the condition was still false after `timeout_s`; the message names it and its last value.
    """
    values: list[T] = []

    def holds() -> bool:
        """Keep the last value."""
        values[:] = [condition()]
        return bool(values[0])

    if not holds_within(holds, timeout_s, interval_s):
        name = getattr(condition, "__qualname__", repr(condition))
        raise TimeoutError(f"{name} was still {values[0]!r} after {timeout_s} s")
    return values[0]
