"""Provisioning: launching, eviction, and holding back for jobs that found no room."""
