"""One suite of tests per port, run on every implementation of it."""
