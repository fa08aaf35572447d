"""A failure: an exception that a defect raised, described for events and logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from hcloud.core.errors import OutcomeUnknown, ProviderError, StaleWrite, StoreBusy, StoreDamaged, defect_text
from hcloud.core.model import JobId

_log = logging.getLogger("hcloud")
R = TypeVar("R")
CYCLE_ERRORS = (StoreBusy, StaleWrite, StoreDamaged)
"""Errors that end the cycle and are no item's fault: the database takes no writes, or none from this daemon."""


class Failure(NamedTuple):
    """One operation that failed because of a defect."""

    error: str
    """What went wrong, as :func:`hcloud.core.errors.defect_text` describes it."""
    exc_info: Exception | None
    """The exception, for the log."""
    job_id: JobId | None = None
    """The job that the operation was for, if it was for one."""

    @classmethod
    def from_error(cls, *, exc_info: Exception, job_id: JobId | None = None) -> Failure:
        """Return the failure that an exception stands for."""
        return cls(defect_text(exc_info), exc_info, job_id)


Failures = Mapping[str, Failure]
"""Failures by the operation that failed, in words: ``start of job-3``, ``report of job-1.1.0``."""


def call_provider(call: Callable[[], R], what: str, is_valid: Callable[[object], bool] = lambda _: True) -> R:
    """Return the answer of a provider call, checked by ``is_valid``. ``what`` names the call: ``aws.launch``.

    Raises ProviderError only: any other exception, or an invalid answer, becomes OutcomeUnknown.
    """
    try:
        answer = call()
    except ProviderError:
        raise
    except Exception as defect:  # a plug-in may raise anything, before or after the call took effect
        _log.exception("%s failed with an unexpected error", what)
        raise OutcomeUnknown(f"{what} failed with an unexpected error: {defect_text(defect)}") from defect
    if not is_valid(answer):
        raise OutcomeUnknown(f"{what} returned a {type(answer).__name__}, not what the port defines")
    return answer
