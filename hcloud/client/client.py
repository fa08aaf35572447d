"""A daemon as programs see it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hcloud.client.connection import Connection, Endpoint, find_endpoint
from hcloud.client.futures import JobFuture, JobWatcher, task_futures
from hcloud.client.submission import batch_size, cancelled, posted, send
from hcloud.client.workdir import with_files_sent
from hcloud.core.errors import BadInput


class Client:
    """One daemon, found as the command line finds it unless it is named. Safe to use from several threads."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        ca_file: str | None = None,
        socket: str | Path | None = None,
    ) -> None:
        """Prepare; nothing is sent yet.

        ``url`` (https://), ``token`` and ``ca_file`` name a daemon elsewhere, ``socket`` one on this machine. Without
        both, $HCLOUD_URL, $HCLOUD_TOKEN, $HCLOUD_CA_FILE, $HCLOUD_SOCKET or the configuration do.

        Raises:
            BadInput: both are given, or the URL is not https.
        """
        if url is not None and socket is not None:
            raise BadInput("name url or socket, not both")
        if url is not None and not url.startswith("https://"):
            raise BadInput(f"url must begin with https://, not {url!r}")
        if url is not None:
            self.endpoint = Endpoint(url=url.rstrip("/"), token=token, ca_file=ca_file)
        else:
            self.endpoint = find_endpoint() if socket is None else Endpoint(socket=Path(socket))
        self._connection = Connection(self.endpoint)
        self._watcher = JobWatcher(Connection(self.endpoint))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop waiting for jobs. They go on."""
        self.close()

    def close(self) -> None:
        """Stop waiting for jobs. They go on."""
        self._watcher.close()

    # ------------------------------------------------------------------------------------------------------- submission
    def submit(self, job: Mapping[str, Any] | None = None, /, **keys: Any) -> JobFuture:
        """Submit a job, or an array as one, described as in a job file; ``keys`` win over ``job``.

        A ``workdir``, and ``inputs`` of this machine, are sent along. A lost connection submits nothing twice. Raises
        BadInput if something is wrong with it (named), Refused, DaemonUnreachable.
        """
        return self.submit_all([_described(job, **keys)])[0]

    def submit_all(self, jobs: Sequence[Mapping[str, Any]]) -> list[JobFuture]:
        """Submit several jobs, which may wait for each other by name (``after``); all or none of each 2,000."""
        submitted = send(self._connection, self._documents(jobs))
        futures = [JobFuture(self._connection, each["id"]) for each in submitted]
        self._watcher.watch(futures)
        return futures

    def submit_array(self, job: Mapping[str, Any] | None = None, /, **keys: Any) -> list[JobFuture]:
        """Submit an array (``array`` or ``matrix``); return a future for each of its tasks, in order."""
        document = _described(job, **keys)
        if not document.get("array") and not document.get("matrix"):
            raise BadInput("array: is missing; write the ids of the tasks, such as array='0-99', or a matrix")
        (submitted,) = send(self._connection, self._documents([document]))
        return self.tasks(submitted["id"])

    def submit_file(self, path: str | Path) -> list[JobFuture]:
        """Submit the jobs of a job file (YAML, several documents)."""
        from hcloud.config import load_job

        return self.submit_all([each.model_dump(mode="json", exclude_unset=True) for each in load_job(Path(path))])

    def plan(self, *jobs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return what the next plan would do with jobs, and at what price; nothing is submitted."""
        documents = [with_files_sent(self._connection, _described(each), {}, upload=False) for each in jobs]
        size, planned = batch_size(documents), list[Mapping[str, Any]]()
        for start in range(0, len(documents), size):
            planned += posted(self._connection, "/v1/plan", [{"job": each} for each in documents[start : start + size]])
        return planned

    def _documents(self, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return jobs as the API takes them, their work directories sent."""
        sent: dict[tuple[Any, ...], dict[str, str]] = {}
        return [with_files_sent(self._connection, _described(job), sent) for job in jobs]

    # ------------------------------------------------------------------------------------------------------------- jobs
    def job(self, job_id: str) -> JobFuture:
        """Return the future of a job, array or task (``job-7[3]``) that was submitted before."""
        future = JobFuture(self._connection, job_id)
        self._watcher.watch([future])
        return future

    def tasks(self, array_id: str) -> list[JobFuture]:
        """Return a future for each task of an array that was submitted before. Raises NotFound, BadInput."""
        view = self._connection.get(f"/v1/jobs/{array_id}")
        if view["tasks"] is None:
            raise BadInput(f"{array_id} is no array")
        futures = list(task_futures(self._connection, view))
        self._watcher.watch(futures)
        return futures

    def cancel(self, jobs: Iterable[JobFuture]) -> None:
        """Request the cancellation of jobs and tasks, also of those that run: all or none of each 1,000.

        What has ended is left alone. Raises NotFound, Refused.
        """
        deque(cancelled(self._connection, [each.id for each in jobs]), maxlen=0)

    def jobs(
        self,
        *,
        state: str | Sequence[str] | None = None,
        user: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        limit: int = 100,
    ) -> list[Mapping[str, Any]]:
        """Return what the API says of jobs, the newest first. ``tag``: a key, or key=value."""
        found: list[Mapping[str, Any]] = self._connection.get(
            "/v1/jobs", state=state, user=user, name=name, tag=tag, limit=limit
        )
        return found

    def report(self, name: str, **parameters: Any) -> Mapping[str, Any]:
        """Return a report as ``hcloud report NAME -o json`` prints it: cost, performance, utilisation, decisions ..."""
        found: Mapping[str, Any] = self._connection.get(f"/v1/reports/{name}", **parameters)
        return found


def _described(job: Mapping[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """Return a job as its file would have it, with the name it has without one. Raises BadInput: it is no mapping."""
    if job is not None and not isinstance(job, Mapping):
        raise BadInput(
            f"a job must be a mapping of job file keys, such as {{'command': 'echo hello'}}, not {job!r:.80}"
        )
    return {"name": "job", **(job or {}), **keys}
