"""Tests of hcloud.core."""
