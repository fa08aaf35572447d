"""HCloud: a daemon that runs jobs with performance targets on the cheapest instances that keep those targets."""

__version__ = "0.1.0"
