"""The papers' experiments by chapter; ``hcloud reproduce`` runs them and writes the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain

from hcloud.simulator.reproduce import clusters, fuller, hybrid, parts, peers, sensitivities
from hcloud.simulator.reproduce.study import Figure, RunSize, run_figure

__all__ = ["CHAPTERS", "Figure", "RunSize", "run_figure"]

CHAPTERS: Mapping[str, tuple[str, Callable[[], Iterable[Figure]]]] = {
    "hcloud": (
        "HCloud: hybrid provisioning",
        lambda: chain(hybrid.figures(), sensitivities.figures(), fuller.figures()),
    ),
    "paragon": ("Paragon: interference and heterogeneity", clusters.paragon),
    "arq": ("ARQ: admission by resource quality", clusters.arq),
    "quasar": ("Quasar: joint sizing and placement", clusters.quasar),
    "peers": ("Beside today's tools", peers.figures),
    "parts": ("Parts of the world, and caution, one at a time", parts.figures),
}
"""By name: the heading, and its figures."""
