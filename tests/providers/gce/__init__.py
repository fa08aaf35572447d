"""Tests of the GCE provider, on a fake Compute Engine over real HTTP."""
