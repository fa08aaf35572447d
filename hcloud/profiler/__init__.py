"""Profiling runs on an instance: isolate a copy of a program (``sandbox``), interfere (``sources``), measure."""
