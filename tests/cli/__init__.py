"""Tests of hcloud.cli."""
