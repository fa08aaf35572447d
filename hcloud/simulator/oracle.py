"""A planner with perfect knowledge, to separate losses of the planner from errors of the classifier.

Everything else is unchanged: jobs are still profiled and wait for that, and the planner reads the same records.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hcloud.classifier.applications import row_name
from hcloud.core.estimates import Classification, Estimate
from hcloud.planner.plan import Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.quarantine.planning import Planner
from hcloud.simulator.program_models import SOURCES
from hcloud.simulator.world import World
from hcloud.spec.policy import Policy


def with_true_beliefs(world: World, planner: Planner) -> Planner:
    """Return ``planner`` with every belief about speeds and interference replaced by the world's truth."""

    def plan(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        beliefs = {key: corrected(world, key, each) for key, each in snapshot.applications.items()}
        return planner(replace(snapshot, applications=beliefs), policy, rng)

    return plan


def corrected(world: World, key: str, belief: Classification) -> Classification:
    """Return a belief with the true speeds and pressures. The unit of performance (a job's scale) stays as measured.

    ``key`` is a job's ``application``. The belief about a program that the world has not seen is returned unchanged.
    """
    model = world.known_program(row_name(key).rpartition("~")[0])
    if model is None:
        return belief
    # Known programs may have run on types that this world does not have.
    believed = {column: each for column, each in belief.by_type.items() if column.rpartition("/")[2] in world.types}
    true = {column: world.speed_on_type(model, column.rpartition("/")[2]) for column in believed}
    measured = [column for column, each in believed.items() if each.observed] or list(believed)
    # The geometric mean of believed over true speeds converts speeds into the job's unit of performance.
    scale = math.exp(sum(math.log(believed[each].value / true[each]) for each in measured) / max(1, len(measured)))
    return replace(
        belief,
        by_type={**belief.by_type, **{column: _exact(scale * speed) for column, speed in true.items()}},
        tolerated={name: _exact(min(100.0, each)) for name, each in zip(SOURCES, model.tolerated, strict=True)},
        caused={name: _exact(each) for name, each in zip(SOURCES, model.caused, strict=True)},
    )


def _exact(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value, observed=True)
