"""Tests of buckets."""
