"""Tests of the lab commands."""
