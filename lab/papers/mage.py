"""The chapter of Mage (PACT 2018): a new program from few probes, which programs share a machine, and types of servers.

The first two follow from ESP's measurements: Mage's own are not to be had. Its contentious kernels are neighbours here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from bench.neighbours import PAIR_TABLE, joined
from hcloud.simulator.clusters import Server, cluster
from lab.mage import AVERAGE, ONE_SENSITIVITY, PRODUCTS, RANDOM, STAGED, WORST, new_program_errors, placements
from lab.papers.clusters import scheduler
from lab.papers.measured import measured_groups
from lab.papers.study import (
    Case,
    Claim,
    Effect,
    Figure,
    Numbers,
    computed_cases,
    given,
)

PROBES = (2, 3)
METHODS = (AVERAGE, ONE_SENSITIVITY, STAGED, PAIR_TABLE)
ERROR_ALONE, ERROR_TWO = 45.0, 4.7
"""Published errors in percent with a run alone, and with two kernels beside it (Mage §6.4, fig. 10a)."""
COUNT = 12
"""Programs that are placed in groups of the largest size that was measured."""
TEN_TYPES = "paragon-small-medium"
TWO_TYPES = (
    Server(name="core.e5345", vcpus=4, memory_gib=32, count=36),
    Server(name="westmere.x5670", vcpus=12, memory_gib=48, count=3),
)
"""As many vCPUs as the small cluster of ten types has, to three."""
GREEDY, LOADED, OURS = "largest first", "least loaded", "least loss"


def figures() -> Iterator[Figure]:
    """Yield the figures."""
    yield _new_programs()
    yield _placements()
    yield _types()


# --------------------------------------------------------------------------------------------------------- new programs
@cache
def _errors(folder: Path, probes: int, seed: int | None) -> Mapping[str, float]:
    """Return errors by method with probes drawn by a seed; None: those that cost others most."""
    groups = measured_groups(folder)
    small, rng = joined([groups[2], groups[3]]), np.random.default_rng(seed or 0)
    return new_program_errors(small, probes, rng, at_random=seed is not None)


def new_program_numbers(method: str, folder: Path | None, seed: int) -> Numbers:
    """Return a method's errors by probes."""
    found = {}
    for probes in PROBES:
        found[f"{probes}_probes_error_pct"] = _errors(given(folder), probes, None)[method]
        found[f"{probes}_random_probes_error_pct"] = _errors(given(folder), probes, seed)[method]
    return found


def _new_programs() -> Figure:
    def error(method: str) -> Claim:
        return Claim(
            text=f"{method}: error of a new program with two probes",
            published=f"{ERROR_TWO:g} % in simulation, 1.7 % on a cluster",
            ours=lambda seed: seed[method]["2_probes_error_pct"],
            holds=lambda value: value <= ERROR_TWO,
            unit="%",
            why="kernels press one resource each and as hard as wanted; other programs, measured as they are, say less",
        )

    def saved(method: str) -> Claim:
        return Claim(
            text=f"{method}: two probes lower the error of who knows the run alone",
            published=f"{ERROR_ALONE:g} to {ERROR_TWO:g} %, 90 % lower",
            ours=lambda seed: 100.0 * (1.0 - seed[method]["2_probes_error_pct"] / seed[AVERAGE]["2_probes_error_pct"]),
            effect=Effect(100.0 * (1.0 - ERROR_TWO / ERROR_ALONE)),
            unit="% lower",
        )

    return Figure(
        name="mage-new-programs",
        title="A new program known alone and beside two or three neighbours: error of its speed in groups of three",
        source="Mage §3.2, §6.4, fig. 10",
        cases=computed_cases(new_program_numbers, METHODS),
        columns=tuple(f"{probes}{drawn}_probes_error_pct" for probes in PROBES for drawn in ("", "_random")),
        claims=(error(STAGED), error(PAIR_TABLE), saved(STAGED), saved(PAIR_TABLE)),
        drawn="2_probes_error_pct",
        published={STAGED: ERROR_TWO, AVERAGE: ERROR_ALONE},
        of_data=measured_groups,
    )


# ----------------------------------------------------------------------------------------------------------- placements
@cache
def _shares(folder: Path, seed: int) -> Mapping[str, float]:
    groups = measured_groups(folder)
    return placements(groups, max(groups), COUNT, np.random.default_rng(seed))


def placement_numbers(model: str, folder: Path | None, seed: int) -> Numbers:
    """Return the geometric mean of speeds that a model's placement reaches, in percent of the best one's."""
    return {f"{COUNT}_programs_pct": _shares(given(folder), seed)[model]}


def _placements() -> Figure:
    def over_random(seed: Mapping[str, Numbers]) -> float:
        return 100.0 * (seed[PAIR_TABLE]["12_programs_pct"] / seed[RANDOM]["12_programs_pct"] - 1.0)

    return Figure(
        name="mage-placements",
        title="Which of 12 programs share a machine, in the largest groups of the data, learnt from smaller ones",
        source="Mage §6.1, fig. 4",
        cases=computed_cases(placement_numbers, (PAIR_TABLE, PRODUCTS, RANDOM, WORST)),
        columns=(f"{COUNT}_programs_pct",),
        claims=(
            Claim(
                text="12 programs: who knows the neighbours does better than who does not (full machines of one type)",
                published="30 % better than greedy on a cluster (38 % in simulation)",
                ours=over_random,
                effect=Effect(30.0),
                unit="% better",
                why="machines are all alike here, so that only neighbours are chosen; Mage gains by types, too",
            ),
            Claim(
                text="12 programs: the pair table's placement comes near the best of all ways",
                published="-",
                ours=lambda seed: seed[PAIR_TABLE]["12_programs_pct"],
                holds=lambda value: value >= 97.0,
                unit="% of the best",
                why="learnt from pairs alone, groups of three lack what two neighbours cost together",
            ),
        ),
        drawn="12_programs_pct",
        of_data=measured_groups,
    )


# ---------------------------------------------------------------------------------------------------------------- types
def _types() -> Figure:
    room = tuple((each.name, float(each.count * each.vcpus)) for each in TWO_TYPES)
    cases = []
    for label, order in ((GREEDY, "largest_first"), (LOADED, "least_loaded"), (OURS, "least_loss")):
        ten = Case(label=f"{label}, ten types", experiment=TEN_TYPES, policy=scheduler(order))
        cases += [ten, replace(ten, label=f"{label}, two types", cloud=cluster(TWO_TYPES), truth={"room": room})]

    def gain(types: str) -> Claim:
        published = {"ten": 75.0, "two": 15.0}[types]
        return Claim(
            text=f"{types} types of servers: least loss does better than the largest server first",
            published=f"{published:g} % better than the largest server first",
            ours=lambda seed: (
                100.0
                * (
                    seed[f"{OURS}, {types} types"]["performance_pct"]
                    / seed[f"{GREEDY}, {types} types"]["performance_pct"]
                    - 1.0
                )
            ),
            effect=Effect(published),
            unit="% better",
            why="performance is at most 100 %, and a job on the wrong type loses less here",
        )

    return Figure(
        name="mage-types",
        title="Two and ten types of servers: 178 jobs on 40 servers, every 10 s",
        source="Mage §6.3, fig. 8",
        cases=tuple(cases),
        columns=("performance_pct", "p5_pct", "qos_kept_pct", "turnaround_pct"),
        claims=(gain("ten"), gain("two")),
        drawn="performance_pct",
    )  # fmt: skip
