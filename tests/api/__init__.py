"""Tests of hcloud.api."""
