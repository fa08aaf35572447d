"""Corrections: running jobs that miss their target, stragglers, scaling."""
