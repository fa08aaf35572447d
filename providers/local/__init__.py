"""Slices of this host as instances: real processes with private directories, limits and an end, at nominal prices."""

from providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]
