"""How often Python's garbage collector looks for reference cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS, TIMES = 100_000, 20
"""Collect the youngest generation after this many new objects, the next one after this many collections."""


@contextmanager
def infrequent_gc(full_after: int = TIMES, new_objects: int = NEW_OBJECTS) -> Iterator[None]:
    """Collect garbage less often inside a ``with`` block, and never among the objects that exist already.

    ``new_objects`` and ``full_after`` are the thresholds of the youngest and the oldest generation.
    """
    # Snapshots, plans and events are many and hold no cycles; reference counting frees them at once. With Python's
    # thresholds (700 and 10), walking through them took a large part of a simulation.
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(new_objects, TIMES, full_after)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
