"""Provisioning: launching, eviction, holding back and consolidation for jobs that found no room."""
