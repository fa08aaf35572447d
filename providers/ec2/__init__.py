"""Provider for Amazon EC2 (extra ``aws``). The AWS library is imported only when such a provider is built."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import cast

from hcloud.core.clock import Clock
from hcloud.core.errors import ConfigError, missing_library
from hcloud.provider import Provider
from providers.ec2.settings import parse_regions

__all__ = ["factory"]


class Ec2Factory:
    """Builds EC2 providers. The package's entry point refers to an object of this class."""

    def __call__(
        self, name: str, settings: Mapping[str, object], clock: object, owner: str, state_dir: str
    ) -> Provider:
        """Build a provider for one region, or for several when ``regions`` is set.

        Raises ConfigError: a setting is wrong, or the AWS library is not installed.
        """
        self.check_settings(name, settings)
        from providers.ec2.multi_region import Ec2Regions
        from providers.ec2.provider import Ec2Provider

        parsed = parse_regions(name, settings)
        if "regions" in settings:
            return Ec2Regions(name, parsed, cast(Clock, clock), owner, state_dir)
        (only,) = parsed.values()
        return Ec2Provider(name, only, cast(Clock, clock), owner, state_dir)

    def check_settings(self, name: str, settings: Mapping[str, object]) -> None:
        """Check settings without calling AWS and without writing anything. Raises ConfigError."""
        parse_regions(name, settings)
        if not _installed("boto3"):
            raise ConfigError(
                missing_library("boto3, which type ec2 needs,", "aws"),
                where=f"providers.{name}.type",
            )


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # treat a broken installation as absent
        return False


factory = Ec2Factory()
