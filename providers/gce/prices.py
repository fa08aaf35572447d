"""Prices of machine types, from the file that ``hcloud catalog refresh`` writes.

The file holds ``{region: {type: {"on_demand": usd, "spot": usd, "commit_1y": usd, "at": time}}}``, also ``commit_3y``.
Without ``at`` the file's modification time counts. A price that is missing, zero, negative or not a number counts as
unknown: the type is not offered.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hcloud.core.errors import ProviderUnavailable
from hcloud.core.model import Market


class PriceFile:
    """Prices as of the file's last change."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_of: tuple[int, int] | None = None
        self._regions: dict[str, Any] = {}
        self._written_at = 0.0

    def refresh(self) -> None:
        """Read the file if it has changed. Raises ProviderUnavailable: it cannot be read; earlier prices stay."""
        try:
            stat = self._file.stat()
            if (stat.st_mtime_ns, stat.st_size) == self._read_of:
                return
            plain = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ProviderUnavailable(f"cannot read the prices in {self._file}: {error}") from error
        if not isinstance(plain, dict):
            raise ProviderUnavailable(f"the prices in {self._file} are not a mapping of regions")
        self._regions, self._read_of, self._written_at = plain, (stat.st_mtime_ns, stat.st_size), stat.st_mtime

    def usd_per_h(self, region: str, type_name: str, market: Market) -> float | None:
        """Return the price of a type, or None if unknown. A reserved instance costs the on-demand price."""
        return _positive(self._cell(region, type_name).get("spot" if market is Market.SPOT else "on_demand"))

    def committed_usd_per_h(self, region: str, type_name: str, plan: str) -> float | None:
        """Return the price of a type under committed use (``commit_1y``, ``commit_3y``), or None if unknown."""
        return _positive(self._cell(region, type_name).get(plan))

    def priced_at(self, region: str, type_name: str) -> float:
        """Return when the prices of a type were read (Unix seconds)."""
        return _positive(self._cell(region, type_name).get("at")) or self._written_at

    def _cell(self, region: str, type_name: str) -> dict[str, Any]:
        types = self._regions.get(region)
        cell = types.get(type_name) if isinstance(types, dict) else None
        return cell if isinstance(cell, dict) else {}


def _positive(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return None
    return float(value)
