"""Due times of jobs that others wait for, kept from cycle to cycle, and applied to the rows that are planned."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from hcloud.core.model import Job, JobId
from hcloud.core.rows import RowOverlay, number_of
from hcloud.planner.due_times import DueTime, due_times, planned_by
from hcloud.planner.run_times import RunTimeForecasts

PREDICTED_MOST = 500
"""Run times predicted in one cycle; those of other jobs count as unknown until a later one."""


class DueTimes:
    """Computed again only when a job begins or ceases to wait, so that a cycle costs what changed."""

    def __init__(self) -> None:
        self.by_job: Mapping[JobId, DueTime] = {}
        """By job that others wait for, as of the last cycle."""
        self._held: Sequence[Job] = ()
        self._run_s: dict[JobId, float | None] = {}
        self._is_complete = True
        """Whether all run times were predicted."""
        self._planned = RowOverlay[Job]()
        self._replaced: dict[int, Job] = {}

    def apply(
        self, jobs: tuple[Job, ...], held: Sequence[Job], arrays: Sequence[Job], run_times: RunTimeForecasts
    ) -> tuple[Job, ...]:
        """Return ``jobs`` as they are planned; ``held`` wait for some of them, or for ``arrays``.

        All are given by number.
        """
        if held is not self._held or not self._is_complete:
            self._update(held, run_times)
        if not self.by_job and not self._replaced:
            return jobs
        replaced = {number_of(job.id): planned_by(job, due) for job, due in self._live(jobs, arrays)}
        # A row that was replaced, and is not any more, is put back as it is.
        restored = [at for at in self._replaced if at not in replaced]
        rows = {at: job for at in restored if (job := _find(jobs, at)) is not None}
        self._replaced = replaced
        return self._planned.of(jobs, {**rows, **replaced})

    def _update(self, held: Sequence[Job], run_times: RunTimeForecasts) -> None:
        known = {job.id: self._run_s[job.id] for job in held if job.id in self._run_s}
        unknown = [job for job in held if job.id not in known]
        for job in unknown[:PREDICTED_MOST]:
            known[job.id] = median_s(run_times, job)
        self._held, self._run_s, self._is_complete = held, known, len(unknown) <= PREDICTED_MOST
        self.by_job = due_times(held, lambda job: known.get(job.id))

    def _live(self, jobs: Sequence[Job], arrays: Sequence[Job]) -> list[tuple[Job, DueTime]]:
        """Return the live rows with a due time: jobs, and the tasks of arrays."""
        found = list[tuple[Job, DueTime]]()
        of_arrays = {job.id: job for job in arrays}
        for name, due in self.by_job.items():
            first = last = number_of(name)
            array = of_arrays.get(name)
            if array is not None and array.spec.tasks is not None:
                first, last = first + 1, last + len(array.spec.tasks)
            start, stop = (bisect_left(jobs, at, key=_number) for at in (first, last + 1))
            found += [(job, due) for job in jobs[start:stop]]
        return found


def median_s(run_times: RunTimeForecasts, job: Job) -> float | None:
    """Return the median of a job's run time by past runs, in seconds; None: not known."""
    found = run_times.of_job(job)
    return None if found is None else found.quantile(0.5)


def _number(job: Job) -> int:
    return number_of(job.id)


def _find(jobs: Sequence[Job], number: int) -> Job | None:
    at = bisect_left(jobs, number, key=_number)
    return jobs[at] if at < len(jobs) and number_of(jobs[at].id) == number else None
