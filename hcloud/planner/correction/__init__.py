"""Corrections of running jobs that miss their target: learning, resizing, scaling out, eviction and moving."""
