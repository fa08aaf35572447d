"""The age from which on prices are shown with a warning; apart from all else, for commands that must start fast."""

PRICES_OLD_S = 30 * 86_400.0


def old_prices_warning(age_s: float) -> str:
    """Return a warning in brackets, with a blank before it, if prices of this age are too old; else an empty text."""
    return " (warning: over 30 days; update with `hcloud catalog refresh`)" if age_s > PRICES_OLD_S else ""
