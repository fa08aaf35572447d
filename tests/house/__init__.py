"""House rules as tests: each rule is a function in `rules.py` that is also shown to fail on a bad snippet."""
