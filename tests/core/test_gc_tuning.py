"""Reference cycles are looked for seldom while a block runs, and as before afterwards."""

import gc

from hcloud.core.gc_tuning import NEW_OBJECTS, infrequent_gc


def test_what_was_set_before_is_set_again() -> None:
    before = gc.get_threshold()
    with infrequent_gc(full_after=7):
        inside = gc.get_threshold()
    assert (inside[0], inside[2]) == (NEW_OBJECTS, 7)
    with infrequent_gc(new_objects=2 * NEW_OBJECTS):
        assert gc.get_threshold()[0] == 2 * NEW_OBJECTS
    assert gc.get_threshold() == before


def test_what_is_there_already_is_not_walked_through() -> None:
    there = [[number] for number in range(1000)]
    with infrequent_gc():
        assert gc.get_freeze_count() >= len(there)
    assert gc.get_freeze_count() == 0
