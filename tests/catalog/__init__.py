"""Tests of hcloud.catalog."""
