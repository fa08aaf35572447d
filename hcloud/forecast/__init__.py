"""Forecasts from observed history: load, boot times, time until a server is free, and job progress."""
