"""Profiling runs on an instance: isolate a copy of a program (``sandbox``), apply interference (``sources``), measure.
"""
