"""Google Compute Engine: rents machines with the official client (extra ``gcp``), at the configured endpoint only."""

from providers.gce.provider import GceProvider

__all__ = ["GceProvider"]
