"""Many jobs in one request: submitted, none twice and all that depend on each other together, or cancelled."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hcloud.client.connection import Connection
from hcloud.core.errors import BadInput

BATCH = 2000
TOGETHER_MOST = 10_000
"""Jobs of one request at most."""
CANCELLED_TOGETHER = 1000


def send(client: Connection, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Submit jobs in batches. Each has a token of its own, so a repeated request submits nothing twice."""
    requests = [{"job": job, "token": f"client-{uuid.uuid4()}"} for job in jobs]
    submitted: list[dict[str, Any]] = []
    size = batch_size(jobs)
    for start in range(0, len(requests), size):
        submitted += posted(client, "/v1/jobs", requests[start : start + size])
    return submitted


def save_schedules(client: Connection, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Make schedules of jobs, or replace those of the same names; return them like submitted jobs."""
    if not jobs:
        return []
    saved = posted(client, "/v1/schedules", [{"job": job} for job in jobs])
    none = dict.fromkeys(("submitted_at", "deadline_at", "tasks"))
    return [
        {**none, "id": each["id"], "name": each["name"], "state": "scheduled", "next_at": each["next_at"]}
        for each in saved
    ]


def batch_size(jobs: Sequence[Mapping[str, Any]]) -> int:
    """Return how many jobs go into one request: all, if any waits for another one. Raises BadInput: too many."""
    if not any(job.get("after") for job in jobs):
        return BATCH
    if len(jobs) > TOGETHER_MOST:
        raise BadInput(
            f"{len(jobs)} jobs with `after` among them are submitted together; at most {TOGETHER_MOST:,} are possible"
        )
    return TOGETHER_MOST


def cancelled(client: Connection, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Request the cancellation of jobs and tasks, all or none of each 1,000; yield what the API says of each then."""
    for start in range(0, len(ids), CANCELLED_TOGETHER):
        yield from client.post("/v1/jobs/cancel", ids[start : start + CANCELLED_TOGETHER])


def posted(client: Connection, path: str, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Send requests about jobs. Errors name the job instead of its place in the body."""
    try:
        answer: list[dict[str, Any]] = client.post(path, requests)
        return answer
    except BadInput as error:
        place = re.match(r"body\[(\d+)\]\.(?:job\.)?", str(error))
        if place is None:
            raise
        raise BadInput(f"job {requests[int(place[1])]['job']['name']}: {str(error)[place.end() :]}") from error
