"""Jobs as futures of :mod:`concurrent.futures`, and the thread that sees them end."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hcloud.client.connection import WAITING_PATIENCE_S, Connection
from hcloud.client.outputs import copy_outputs
from hcloud.core.arrays import ids_text, ranges_of
from hcloud.core.errors import DaemonUnreachable, HCloudError

ENDED = ("succeeded", "failed", "cancelled")
LONGEST_WAIT_S = 5.0
"""How long one request waits for the end of a job."""
PAUSE_S = 0.5
"""Between two looks at several jobs; longer if looking takes longer."""
TASKS_PER_REQUEST = 500
_TASK = re.compile(r"(job-\d+)\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job ended."""

    id: str
    """``job-7``, or ``job-7[3]`` of a task."""
    name: str
    state: str
    """succeeded, failed or cancelled."""
    outcome: str
    """The same in words, with what went wrong."""
    submitted_at: float
    """Unix seconds (UTC)."""
    finished_at: float
    view: Mapping[str, Any] = field(repr=False)
    """All that the API says of it (``JobView`` in docs/openapi.json)."""


class JobFailed(HCloudError):
    """A job failed. ``result`` says how."""

    def __init__(self, result: JobResult) -> None:
        super().__init__(f"{result.id} {result.name}: {result.outcome}")
        self.result = result


class JobFuture(Future[JobResult]):
    """A job of which the end is waited for. Made by :class:`hcloud.client.Client`.

    ``result()`` raises JobFailed if it failed, concurrent.futures.CancelledError if it was cancelled, NotFound if the
    daemon does not know it, and DaemonUnreachable if no daemon answered for a minute; the job itself goes on then.
    """

    def __init__(self, connection: Connection, job_id: str) -> None:
        super().__init__()
        self.id = job_id
        """``job-7``, or ``job-7[3]`` of a task."""
        self._connection = connection

    def __repr__(self) -> str:
        state = "ended" if self.done() else "not ended"
        return f"<JobFuture {self.id}: {state}>"

    def view(self) -> Mapping[str, Any]:
        """Return what the API says of it now."""
        found: Mapping[str, Any] = self._connection.get(f"/v1/jobs/{self.id}")
        return found

    def running(self) -> bool:
        """Return whether it has been started on a machine and has not ended."""
        return not self.done() and self.view()["state"] in ("running", "stopping")

    def cancel(self) -> bool:
        """Request its cancellation, also while it runs; return False if it had ended. It ends a little later."""
        if self.done():
            return self.cancelled()
        view = self._connection.post(f"/v1/jobs/{self.id}/cancel")
        return self.id != view["id"] or view["state"] not in ("succeeded", "failed")

    def explain(self) -> Mapping[str, Any]:
        """Return its timeline: each decision about it and the numbers behind it."""
        found: Mapping[str, Any] = self._connection.get(f"/v1/jobs/{self.id}/explain")
        return found

    def output(self, stream: str = "stdout", *, rank: int = 0, attempt: int | None = None) -> bytes:
        """Return what it has written so far to ``stdout`` or ``stderr``; b"" if it has not run."""
        parts, offset, more = list[bytes](), 0, True
        while more:
            query = {"stream": stream, "rank": rank, "attempt": attempt, "offset": offset}
            answer = self._connection.send("GET", f"/v1/jobs/{self.id}/logs", query)
            parts.append(answer.content)
            offset = int(answer.headers["x-hcloud-next-offset"])
            attempt = attempt or int(answer.headers["x-hcloud-attempt"]) or None
            more = bool(answer.content) and answer.headers["x-hcloud-end"] != "true"
        return b"".join(parts)

    def copy_outputs(self, destination: str | Path, path: str = "", *, rank: int = 0) -> int:
        """Copy what it left of its ``outputs`` below ``destination`` (``path``: only that file or folder).

        Returns the number of files. Raises NotFound if it left none.
        """
        return copy_outputs(self._connection, self.id, Path(destination), path, rank=rank).files

    def end(self, view: Mapping[str, Any]) -> None:
        """Set the result from the API's view of the ended job."""
        result = JobResult(
            id=self.id,
            name=view["spec"]["name"],
            state=view["state"],
            outcome=view["outcome"],
            submitted_at=view["submitted_at"],
            finished_at=view["finished_at"],
            view=view,
        )
        if result.state == "cancelled":
            super().cancel()
            self.set_running_or_notify_cancel()
        elif result.state == "succeeded":
            self.set_result(result)
        else:
            self.set_exception(JobFailed(result))


class JobWatcher:
    """Looks at jobs whose end is waited for, in a thread that ends when nothing is waited for any more."""

    def __init__(self, connection: Connection) -> None:
        """Prepare. ``connection`` is used by the thread alone."""
        self._connection = connection
        connection.patience_s = WAITING_PATIENCE_S
        self._pending: dict[str, JobFuture] = {}
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, futures: Iterable[JobFuture]) -> None:
        """End these futures when their jobs have ended."""
        with self._lock:
            self._pending |= {each.id: each for each in futures}
            self._news.set()
            if self._thread is None and self._pending:
                self._thread = threading.Thread(target=self._run, name="hcloud jobs", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Look no more; futures that have not ended never do."""
        self._closed = True
        self._news.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * LONGEST_WAIT_S)

    def _run(self) -> None:
        while not self._closed:
            with self._lock:
                pending = dict(self._pending)
                self._news.clear()
                if not pending:
                    self._thread = None
                    return
            began_s = self._connection.clock.now()
            try:
                self._look(pending)
            except HCloudError as error:
                for each in pending.values():
                    self._give_up(each, error)
            if len(pending) > 1:
                self._news.wait(max(PAUSE_S, self._connection.clock.now() - began_s))

    def _look(self, pending: Mapping[str, JobFuture]) -> None:
        arrays: dict[str, dict[int, JobFuture]] = {}
        for job_id, future in pending.items():
            if (task := _TASK.fullmatch(job_id)) is not None:
                arrays.setdefault(task[1], {})[int(task[2])] = future
                continue
            try:
                view = self._connection.get(f"/v1/jobs/{job_id}", wait_s=LONGEST_WAIT_S if len(pending) == 1 else 0)
            except DaemonUnreachable:
                raise
            except HCloudError as error:
                self._give_up(future, error)
                continue
            if view["state"] in ENDED:
                self._end(future, view)
            if self._closed:
                return
        for array, tasks in arrays.items():
            for start in range(0, len(tasks), TASKS_PER_REQUEST):
                self._look_at_tasks(array, dict(sorted(tasks.items())[start : start + TASKS_PER_REQUEST]))

    def _look_at_tasks(self, array: str, tasks: Mapping[int, JobFuture]) -> None:
        named = f"{array}[{ids_text(ranges_of(tuple(tasks)))}]"
        for view in self._connection.get(f"/v1/jobs/{named}/tasks", state=ENDED, limit=len(tasks)):
            self._end(tasks[view["task"]], view)

    def _end(self, future: JobFuture, view: Mapping[str, Any]) -> None:
        self._forget(future)
        future.end(view)

    def _give_up(self, future: JobFuture, error: HCloudError) -> None:
        if not future.done():
            self._forget(future)
            future.set_exception(error)

    def _forget(self, future: JobFuture) -> None:
        with self._lock:
            if self._pending.get(future.id) is future:
                del self._pending[future.id]


def task_futures(connection: Connection, view: Mapping[str, Any]) -> Sequence[JobFuture]:
    """Return a future for each task of an array, in the order in which they start."""
    ranges = view["spec"]["tasks"]["ranges"]
    ids = (each for first, last, step in ranges for each in range(first, last + 1, step))
    return [JobFuture(connection, f"{view['id']}[{each}]") for each in ids]
