"""How long jobs run, as distributions learnt from the runs of similar jobs (3Sigma §4.1, ``algorithms.md`` §8)."""
