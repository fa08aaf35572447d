"""When Python looks for reference cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS, TIMES = 100_000, 20
"""Young objects are looked at after so many new ones, older ones every so many times. Python's own: 700 and 10."""


@contextmanager
def infrequent_gc(full_after: int = TIMES, new_objects: int = NEW_OBJECTS) -> Iterator[None]:
    """Look for reference cycles seldom, and never in what is there already: for a block.

    Facts, plans and the log are large and hold no cycles, yet Python walks through them after every 700 new objects:
    that took half of the time of admitting a long queue, and a quarter of a simulation. What is not part of a cycle,
    nearly everything, is let go of at once in any case. ``full_after``: the oldest are looked at every so many times;
    ``new_objects``: the youngest after so many of them.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(new_objects, TIMES, full_after)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
