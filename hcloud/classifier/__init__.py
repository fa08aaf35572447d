"""Classify applications from two short profiling runs: complete each row of the utility matrix, with uncertainty.

Modules: ``applications`` (identify programs, learn from runs), ``library`` (measured rows), ``utility_matrix`` and
``estimator`` (data and interface), ``gaussian``, ``neighbours`` and ``scaling`` (estimators), ``source_selection`` and
``type_selection`` (what to measure next), ``classify`` (all questions at once), ``belief_store`` (results per
application).
"""
