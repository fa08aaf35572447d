"""Tests of the demo that start no process."""
