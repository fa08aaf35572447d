"""A simulated ``Runner`` without processes, for tests and simulations."""
