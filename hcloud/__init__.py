"""HCloud: a daemon that runs jobs with performance targets on the cheapest instances that meet them."""

__version__ = "0.1.0"
