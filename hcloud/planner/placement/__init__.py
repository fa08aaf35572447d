"""Placement: which waiting jobs start on which running instances."""
