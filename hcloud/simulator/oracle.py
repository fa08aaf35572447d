"""A planner that knows the truth: its losses are not due to the classifier or its probes.

Everything else stays as it is: jobs are profiled and wait for that, and the planner reads the same records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hcloud.classifier.applications import row_name
from hcloud.core.estimates import Classification, Estimate
from hcloud.planner.plan import Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.quarantine.planning import Planner
from hcloud.simulator.program_models import SOURCES, ProgramModel
from hcloud.simulator.world import World
from hcloud.spec.policy import Policy


def with_true_beliefs(world: World, planner: Planner) -> Planner:
    """Return ``planner`` for which speeds on types and tolerated and caused pressures are the world's own."""

    def plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        """Plan as always, on a snapshot with true beliefs."""
        beliefs = {key: corrected(world, key, each) for key, each in snapshot.applications.items()}
        return planner(replace(snapshot, applications=beliefs), policy, rng)

    return plan


def corrected(world: World, key: str, belief: Classification) -> Classification:
    """Return a belief with the truth in its place; only the unit of performance, a job's scale, is as it was measured.

    ``key``: a job's ``application``. A program the world has not met stays as believed.
    """
    model = world.known_program(row_name(key).rpartition("~")[0])
    if model is None:
        return belief
    return replace(
        belief,
        by_type=_by_type(world, model, belief.by_type),
        tolerated={name: _exact(min(100.0, each)) for name, each in zip(SOURCES, model.tolerated, strict=True)},
        caused={name: _exact(each) for name, each in zip(SOURCES, model.caused, strict=True)},
    )


def _by_type(world: World, model: ProgramModel, believed: Mapping[str, Estimate]) -> dict[str, Estimate]:
    true = {column: world.speed_on_type(model, column.rpartition("/")[2]) for column in believed}
    measured = [column for column, each in believed.items() if each.observed] or list(believed)
    scale = math.exp(sum(math.log(believed[each].value / true[each]) for each in measured) / max(1, len(measured)))
    return {column: _exact(scale * speed) for column, speed in true.items()}


def _exact(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value, observed=True)
