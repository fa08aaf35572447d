"""Put the shipped data into the wheel, for `hcloud.config.package_data`; an editable install reads the checkout."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIPPED = ("policies", "profiles", "deploy", "config.example.yaml")


class ShippedData(BuildHookInterface[Any]):
    """Adds every entry of SHIPPED under ``hcloud/_shipped``; the build fails when one does not exist."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before the wheel is written; `version` is "standard" or "editable"."""
        if version == "standard":
            build_data["force_include"].update({name: f"hcloud/_shipped/{name}" for name in SHIPPED})
