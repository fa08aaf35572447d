"""Providers beyond what their port's contract suite asks."""
