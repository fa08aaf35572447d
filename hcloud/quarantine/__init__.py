"""Isolate what a defect of HCloud hits: exclude it, report it, retry it; everything else goes on.

* ``planning``: a plan without the jobs or stages that make planning fail.
* ``batches``: row changes and calls for many items, without the items that fail.
* ``registry``: the :class:`Quarantine` of one daemon: what is excluded, until when, and the events that report it.
"""

from hcloud.quarantine.batches import DEFECT_RETRY_S, bisect_failures, run_batch
from hcloud.quarantine.failures import CYCLE_ERRORS, Failure, Failures, call_provider
from hcloud.quarantine.planning import Planner, RecoveredPlan, plan_or_recover, plan_without_failing
from hcloud.quarantine.registry import QUARANTINE_S, Quarantine

__all__ = [
    "CYCLE_ERRORS",
    "DEFECT_RETRY_S",
    "QUARANTINE_S",
    "Failure",
    "Failures",
    "Planner",
    "Quarantine",
    "RecoveredPlan",
    "bisect_failures",
    "call_provider",
    "plan_or_recover",
    "plan_without_failing",
    "run_batch",
]
