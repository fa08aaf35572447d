"""A behaving ``Runner`` without programs, for tests and simulations."""
