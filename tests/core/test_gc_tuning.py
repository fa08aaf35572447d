"""Garbage collection is infrequent inside the block and as before afterwards."""

import gc

from hcloud.core.gc_tuning import NEW_OBJECTS, infrequent_gc


def test_thresholds_are_restored() -> None:
    before = gc.get_threshold()
    with infrequent_gc(full_after=7):
        inside = gc.get_threshold()
    assert (inside[0], inside[2]) == (NEW_OBJECTS, 7)
    with infrequent_gc(new_objects=2 * NEW_OBJECTS):
        assert gc.get_threshold()[0] == 2 * NEW_OBJECTS
    assert gc.get_threshold() == before


def test_existing_objects_are_frozen() -> None:
    existing = [[number] for number in range(1000)]
    with infrequent_gc():
        assert gc.get_freeze_count() >= len(existing)
    assert gc.get_freeze_count() == 0
