"""The age from which on prices are shown with a warning; apart from all else, for commands that must start fast."""

PRICES_OLD_S = 30 * 86_400.0
