"""Soak runs: the real controller in small random worlds full of faults, with every invariant checked after each
cycle."""
