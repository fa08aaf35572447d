"""Wait for a condition with a deadline: the only place in the tests that may sleep."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout_s: float, interval_s: float = 0.02) -> T:
    """Call `condition` until it returns something true, and return that.

    Raises:
        TimeoutError: the condition was still false after `timeout_s`; the message names it and its last value.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline_s:
            name = getattr(condition, "__qualname__", repr(condition))
            raise TimeoutError(f"{name} was still {value!r} after {timeout_s} s")
        time.sleep(interval_s)
