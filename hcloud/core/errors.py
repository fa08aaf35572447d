"""The whole error tree, each class named by the reaction it calls for::

HCloudError
|-- BadInput                 tell the user what, where, what would be right; exit 2
|   |-- ConfigError          a file, line and key are at fault
|   |-- Standstill           a simulation whose jobs can never run: tell it, go on with the other policies
|   |-- NoJobs               a workload without any job: tell whose it is, and by what it became so small
|   `-- InvalidTransition    a state machine was asked for a move its table forbids (a bug: carries the story)
|-- NotFound                 the caller named a thing that does not exist; exit 2
|-- Refused                  policy or budget says no; exit 4
|-- Unreachable              the daemon cannot be reached; exit 3
|-- Unmeasurable             profiling found no number here: note the sentence, go on without it
|-- StoreError               what was asked of it is at fault, or a row: a bug; others can be written
|   |-- StoreDamaged         the file itself is broken: stop, restore a copy
|   |-- StoreBusy            locked, full or gone for now: keep state as it is, try the cycle again
|   `-- StaleWrite           somebody else moved the row or holds the leader lease: drop this write
|-- ProviderError
|   |-- InsufficientCapacity stockout: remember it, go to the next offer
|   |-- QuotaExceeded        account limit: remember it for the whole region and type family
|   |-- Throttled            back off; the call was NOT carried out
|   |-- ProviderUnavailable  back off; a read says nothing about what exists
|   |-- OutcomeUnknown       a write may or may not have happened: repeat it with the same token
|   |-- LaunchRejected       this request can never succeed as it is: do not repeat it
|   `-- InstanceNotFound     treat as gone
`-- RunnerError
    |-- WorkerUnreachable    the outcome is unknown: ask again, or wait until the instance is confirmed gone
    `-- UnitRefused          definitely not started: the attempt may be ended
"""

from __future__ import annotations


class HCloudError(Exception):
    """Root of everything HCloud raises on purpose; ``exit_code`` is what the CLI ends with."""

    exit_code = 1


class BadInput(HCloudError):
    """The user's input is at fault; the message is one sentence: what, where, what would be right."""

    exit_code = 2


class ConfigError(BadInput):
    """A configuration, policy or job file is at fault. ``where`` is ``file:line: key``."""

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class SimulationStalled(BadInput):
    """A simulation stands still: what is left can never run on this cloud under this policy."""


class NoJobs(BadInput):
    """A workload has no job in it that could be simulated."""


class InvalidTransition(BadInput):
    """A state machine was asked for an illegal move; the message tells the subject's story so far."""

    exit_code = 1


class NotFound(HCloudError):
    """The caller named a job, instance or file that does not exist."""

    exit_code = 2


class Refused(HCloudError):
    """Policy or budget forbids it; the message says which rule and the numbers."""

    exit_code = 4


class DaemonUnreachable(HCloudError):
    """The daemon does not answer on its socket."""

    exit_code = 3


class Unmeasurable(HCloudError):
    """A profiled program gave no number; the message says why, in one sentence."""


class StoreError(HCloudError):
    """The database could not do what was asked."""


class StoreDamaged(StoreError):
    """The database itself is damaged, whatever is asked of it; it must be restored from a copy."""


class StoreBusy(StoreError):
    """Locked, full or gone for now; nothing was written. Try again later."""


class StaleWrite(StoreError):
    """The row moved on, or another daemon holds the leader lease; nothing was written."""


class ProviderError(HCloudError):
    """A cloud provider did not do what was asked."""


class InsufficientCapacity(ProviderError):
    """Stockout of this type in this zone. Normal; try the next offer."""


class QuotaExceeded(ProviderError):
    """An account limit; other zones of the region will say the same."""


class Throttled(ProviderError):
    """Too many calls; the call was not carried out. ``retry_after_s`` is a hint."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ProviderUnavailable(ProviderError):
    """The provider does not answer; nothing may be concluded about what exists."""


class OutcomeUnknown(ProviderError):
    """A write was sent but its reply was lost: repeat with the same token."""


class LaunchRejected(ProviderError):
    """The request is wrong in itself (unknown type, bad image); repeating it cannot help."""


class InstanceNotFound(ProviderError):
    """No such instance; treat as gone."""


class RunnerError(HCloudError):
    """The engine did not do what was asked."""


class WorkerUnreachable(RunnerError):
    """The worker on that instance does not answer; what happened there is unknown."""


class UnitRefused(RunnerError):
    """The worker definitely did not start the unit; the message says why."""


def missing_library(library: str, extra: str) -> str:
    """Return the sentence for a library that only an extra brings: what is missing and what installs it."""
    return (
        f"{library} is not installed; install HCloud with the extra '{extra}': "
        f"pip install '.[{extra}]' in a checkout, or pip install 'FILE.whl[{extra}]'"
    )
