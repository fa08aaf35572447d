"""Know an application from two short runs: complete its row of the utility matrix, with an honest uncertainty.

:mod:`rows` holds measurements; :mod:`completion` the one interface of every estimator and the baselines;
:mod:`gaussian`, :mod:`neighbours`, :mod:`pqsgd` and :mod:`scaling` the estimators; :mod:`probes` chooses what to
measure; :mod:`library` is what is known of applications; :mod:`classify` answers the four questions about one.
"""
