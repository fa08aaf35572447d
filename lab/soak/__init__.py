"""Small random worlds full of faults; every promise is checked after each cycle of the real controller."""
