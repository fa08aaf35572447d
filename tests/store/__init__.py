"""Tests of the store beyond its contract: schema, faults, opening, and a model-based property test."""
