"""The vocabulary that every room and plug-in shares: model, errors, time, units, prices, estimates."""
