"""Facts in: listings, worker reports and samples become recorded facts. Decides nothing."""
