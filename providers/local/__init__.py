"""Slices of this host as instances: real processes with private directories, limits, an expiry and nominal prices."""

from providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]
