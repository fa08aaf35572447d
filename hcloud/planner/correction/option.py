"""A step that could be taken for a running job that misses its target, and what it is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hcloud.core.model import Number, Reason
from hcloud.planner.context import PlanContext
from hcloud.planner.correction.monitor import Assessment
from hcloud.planner.plan import Learnt


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A step that could be taken: by which factor it makes the job faster, and what it costs in its seconds.

    ``act`` adds the deed to the plan, given the reason that was noted with the job.
    """

    step: str
    text: str
    factor: float
    cost_s: float
    act: Callable[[Reason], None]
    instances: tuple[str, ...] = ()
    learnt: Learnt | None = None
    numbers: dict[str, Number] = field(default_factory=dict)


def remaining_s(context: PlanContext, found: Assessment) -> float:
    """Return how much longer the job takes as it is; a service, or where that is not known, a horizon's time."""
    return found.remaining_s if found.remaining_s is not None else context.policy.lease.horizon_s


def saved_s(context: PlanContext, found: Assessment, factor: float) -> float:
    """Return how many seconds earlier the job ends if it gets faster by ``factor``."""
    return remaining_s(context, found) * (1.0 - 1.0 / factor)
