"""Provider for Google Compute Engine, through the official client library (extra ``gcp``)."""

from providers.gce.provider import GceProvider

__all__ = ["GceProvider"]
