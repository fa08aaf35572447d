"""Benchmarks: what is measured rather than tested, each figure beside its target."""
