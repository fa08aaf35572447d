"""Provisioning: what is launched, preempted, held back or consolidated for jobs without room."""
