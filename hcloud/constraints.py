"""Where a job may run, beside types and size: zones, labels of machines, whom to keep apart from, how nodes spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Spread = Literal["none", "host", "zone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What a user demands of the machines of a job. Patterns know ``*`` and ``?``; empty: no demand.

    ``zones``: patterns of zones. ``labels``: names a machine must have, each with a pattern of its value.
    ``apart_from``: patterns of names of jobs of the same user, with which it shares no machine (and they none with it);
    where that includes its own name, its own nodes share none either. ``spread``: no two of its nodes on one machine
    (``host``), or in one zone (``zone``).
    """

    zones: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    apart_from: tuple[str, ...] = ()
    spread: Spread = "none"

    def in_zone(self, zone: str) -> bool:
        """Return whether machines of ``zone`` will do."""
        return not self.zones or matches(zone, self.zones)

    def labelled(self, labels: Mapping[str, str]) -> bool:
        """Return whether machines with these ``labels`` will do."""
        return all(name in labels and fnmatchcase(labels[name], wanted) for name, wanted in self.labels)

    def words(self, name: str) -> str:
        """Return one of the demands as its author wrote it, for a sentence."""
        if name == "labels":
            return ", ".join(f"{key}={value}" for key, value in self.labels)
        return self.spread if name == "spread" else ", ".join(getattr(self, name))


def matches(text: str, patterns: Sequence[str]) -> bool:
    """Return whether one of ``patterns`` describes ``text``."""
    return any(fnmatchcase(text, pattern) for pattern in patterns)
