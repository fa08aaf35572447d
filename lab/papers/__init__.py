"""The papers' experiments by chapter; ``python -m lab.papers`` runs them and writes the results page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain

from lab.papers import (
    ablations,
    allocation,
    arq,
    classification,
    clusters,
    esp,
    fuller_servers,
    hybrid,
    mage,
    other_clusters,
    parallel_classification,
    peers,
    quasar,
    sensitivities,
    tarcil,
    three_sigma,
)
from lab.papers.study import Figure, RunSize, run_figure

__all__ = ["CHAPTERS", "Figure", "RunSize", "run_figure"]

CHAPTERS: Mapping[str, tuple[str, Callable[[], Iterable[Figure]]]] = {
    "hcloud": (
        "HCloud: hybrid provisioning",
        lambda: chain(hybrid.figures(), sensitivities.figures(), fuller_servers.figures()),
    ),
    "paragon": (
        "Paragon: interference and heterogeneity",
        lambda: chain(clusters.paragon(), allocation.figures(), other_clusters.cloud_figures()),
    ),
    "classification": (
        "Paragon, Quasar: how well unknown programs are known",
        lambda: chain(classification.figures(), parallel_classification.figures()),
    ),
    "arq": ("ARQ: admission by resource quality", lambda: chain(clusters.arq(), arq.figures())),
    "quasar": ("Quasar: joint sizing and placement", lambda: chain(clusters.quasar(), quasar.figures())),
    "ibench": ("iBench: interference alone", other_clusters.ibench_figures),
    "esp": ("ESP: neighbours by name", esp.figures),
    "mage": ("Mage: across and inside servers", mage.figures),
    "tarcil": ("Tarcil: placement by sample", tarcil.figures),
    "3sigma": ("3Sigma: deadlines by distributions of run times", three_sigma.figures),
    "peers": ("Beside today's tools", peers.figures),
    "parts": ("Parts of the world, and caution, one at a time", ablations.figures),
}
"""By name: the heading, and a function that yields the figures."""
