"""The error tree. Each class stands for one reaction of the caller::

HCloudError
|-- BadInput                 the user's input: report what, where, and what would be right; exit 2
|   |-- ConfigError          a key of a configuration, policy or job file
|   |-- SimulationStalled    the remaining jobs can never run: report it, continue with the other policies
|   |-- NoJobs               a workload without jobs
|   `-- InvalidTransition    a bug: a state machine was asked for a transition that is not allowed
|-- NotFound                 the caller named something that does not exist; exit 2
|-- Refused                  forbidden by policy or budget; exit 4
|-- DaemonUnreachable        the daemon does not answer; exit 3
|-- SecretUnreadable         a secret's key is missing or unusable: its job cannot start; everything else goes on
|-- Unmeasurable             profiling got no number: note why, continue without it
|-- StoreError               a bug in one write or row; other writes can succeed
|   |-- StoreDamaged         the database file is corrupt: stop, restore a backup
|   |-- StoreBusy            locked, full or unavailable: nothing was written, retry the cycle
|   `-- StaleWrite           another daemon changed the row or holds the leader lease: drop the write
|-- ProviderError
|   |-- InsufficientCapacity stockout: back off this offer, try the next one
|   |-- QuotaExceeded        account limit: back off the type family in the whole region
|   |-- Throttled            back off; the call was NOT executed
|   |-- ProviderUnavailable  back off; a failed read says nothing about what exists
|   |-- OutcomeUnknown       a write may have been executed: repeat it with the same token
|   |-- LaunchRejected       the request can never succeed: do not repeat it
|   |   `-- AccountRejected  nor can any other launch there: stop the provider until somebody fixes it
|   `-- InstanceNotFound     treat the instance as gone
`-- RunnerError
    |-- WorkerUnreachable    outcome unknown: ask again, or wait until the instance is confirmed gone
    `-- UnitRefused          certainly not started: the attempt may be ended
        `-- InputsFailed     its inputs did not come; another try may get them
"""

from __future__ import annotations


class HCloudError(Exception):
    """Base of all errors that HCloud raises on purpose."""

    exit_code = 1
    """Exit code of a command that fails with this error."""


class BadInput(HCloudError):
    """The user's input is wrong. The message is one sentence: what, where, and what would be right."""

    exit_code = 2


class ConfigError(BadInput):
    """A configuration, policy or job file is wrong. ``where`` is ``file:line: key``, or a part of it."""

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class SimulationStalled(BadInput):
    """A simulation makes no progress: the remaining jobs can never run on this cloud under this policy."""


class NoJobs(BadInput):
    """A workload contains no job that can be simulated."""


class InvalidTransition(BadInput):
    """A state transition is not allowed. The message includes the history of the job or instance."""

    exit_code = 1


class NotFound(HCloudError):
    """The caller named a job, instance or file that does not exist."""

    exit_code = 2


class Refused(HCloudError):
    """Policy or budget forbids it. The message names the rule and the numbers."""

    exit_code = 4


class DaemonUnreachable(HCloudError):
    """The daemon does not answer on its socket."""

    exit_code = 3


class SecretUnreadable(HCloudError):
    """A secret cannot be encrypted or decrypted. The message names the key's location, and no secret."""


class Unmeasurable(HCloudError):
    """Profiling a program gave no number. The message is one sentence that says why."""


class StoreError(HCloudError):
    """The database could not execute a request."""


class StoreDamaged(StoreError):
    """The database file is corrupt; it must be restored from a backup."""


class StoreBusy(StoreError):
    """The database is locked, full or unavailable. Nothing was written; try again later."""


class StaleWrite(StoreError):
    """The row has a newer revision, or another daemon holds the leader lease. Nothing was written."""


class ProviderError(HCloudError):
    """A call to a cloud provider failed."""


class InsufficientCapacity(ProviderError):
    """Stockout of this type in this zone. Expected; try the next offer."""


class QuotaExceeded(ProviderError):
    """An account limit, which applies to all zones of the region."""


class Throttled(ProviderError):
    """Too many calls; this one was not executed. ``retry_after_s`` is a hint."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ProviderUnavailable(ProviderError):
    """The provider does not answer; nothing can be concluded about what exists."""


class OutcomeUnknown(ProviderError):
    """A write was sent but its reply was lost. Repeat it with the same token."""


class LaunchRejected(ProviderError):
    """The request itself is wrong (unknown type, bad image); repeating it cannot succeed."""


class AccountRejected(LaunchRejected):
    """Account or configuration refuse launches whatever the offer: a permission, a role, a tag, an address."""


class InstanceNotFound(ProviderError):
    """There is no such instance; treat it as gone."""


class RunnerError(HCloudError):
    """A call to the engine failed."""


class WorkerUnreachable(RunnerError):
    """The worker on that instance does not answer; the outcome is unknown."""


class UnitRefused(RunnerError):
    """The worker certainly did not start the unit. The message says why."""


class InputsFailed(UnitRefused):
    """A unit's inputs could not be fetched."""


def error_text(error: BaseException, *, with_type: bool = False) -> str:
    """Return an error's message for use in a sentence, or the name of its type where it has none.

    ``with_type`` puts the type first, for errors of which the message alone says little (``KeyError: 'zone'``).
    """
    name, message = type(error).__name__, str(error)
    return f"{name}: {message}" if with_type and message else message or name


def defect_text(defect: BaseException) -> str:
    """Return a defect's type, message and innermost function, for use in a sentence."""
    trace, where = defect.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        where = f" in {code.co_filename.rpartition('/')[2]}, {code.co_name}"
        trace = trace.tb_next
    return f"{type(defect).__name__}: {defect}{where}"


def printable(text: str) -> str:
    """Return text on one line, in which what could steer a terminal is shown, not sent."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def missing_library(library: str, extra: str) -> str:
    """Return the sentence for a library that only an extra brings: what is missing and what installs it."""
    return (
        f"{library} is not installed; install HCloud with the extra '{extra}': "
        f"pip install '.[{extra}]' in a checkout, or pip install 'FILE.whl[{extra}]'"
    )
