"""Facts in: listings, worker reports and samples are recorded as facts. Decides nothing."""
