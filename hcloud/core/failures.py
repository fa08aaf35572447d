"""Why attempts and tasks fail."""

from __future__ import annotations

from enum import StrEnum


class FailureCause(StrEnum):
    """Why an attempt failed; the key of the retry table."""

    EXIT_CODE = "exit_code"  # the program ended with a non-zero code or a signal of its own
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_DISK = "out_of_disk"
    TIMEOUT = "timeout"  # it ran longer than max_runtime_s
    PREEMPTED = "preempted"  # the provider reclaimed the spot instance
    INSTANCE_LOST = "instance_lost"  # the instance failed or was confirmed gone
    START_REFUSED = "start_refused"  # the worker could not start it (command, sandbox, work directory)
    INPUTS = "inputs"  # its inputs could not be listed or fetched
    EVICTED = "evicted"  # the planner stopped it (budget, drain, priority)
