"""Tests of what is recorded as fact."""
