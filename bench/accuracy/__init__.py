"""How well applications are known from two runs, on real measurements nobody here wrote.

``python -m bench.accuracy [--data DIR]``; the data are read from ``../shared/data`` beside the repository.
"""
