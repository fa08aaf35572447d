"""A correction step that could be taken for a running job, and what it is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hcloud.core.model import Number, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.correction.monitor import Assessment
from hcloud.planner.plan import Learnt


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A correction step that could be taken."""

    step: str
    text: str
    """What the step does, for the reason."""
    factor: float
    """Speed-up of the job."""
    cost_s: float
    """Cost in seconds of the job's work."""
    act: Callable[[Reason], None]
    """Adds the actions to the plan, given the reason recorded with the job."""
    instances: tuple[str, ...] = ()
    """Instances concerned."""
    learnt: Learnt | None = None
    """New estimates; None: unchanged."""
    numbers: dict[str, Number] = field(default_factory=dict)
    """Numbers for the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOption:
    """Why a correction step cannot be taken, or would not help."""

    step: str
    code: str
    text: str


def remaining_s(context: PlanContext, assessment: Assessment) -> float:
    """Return the remaining run time in seconds as things are; a lease horizon for services and where it is unknown."""
    return assessment.remaining_s if assessment.remaining_s is not None else context.policy.lease.horizon_s


def saved_s(context: PlanContext, assessment: Assessment, factor: float) -> float:
    """Return how many seconds earlier the job ends with a speed-up of ``factor``."""
    return remaining_s(context, assessment) * (1.0 - 1.0 / factor)
