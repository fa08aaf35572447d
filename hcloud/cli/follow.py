"""Following: output as it appears, across attempts, and waiting for jobs to end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from hcloud.cli.client import Client
from hcloud.cli.output import printable, stop_when_unread
from hcloud.core.errors import HCloudError, NotFound

WAIT_S = 5.0
ENDED = frozenset({"succeeded", "failed", "cancelled"})


class TimedOut(HCloudError):
    """The jobs were still running when the time was up; they go on."""


def copy_output(client: Client, job_id: str, *, stream: str, rank: int, attempt: int | None) -> None:
    """Write what there is of one attempt's output."""
    offset, end = 0, False
    while not end:
        content, offset, end, _ = _part(client, job_id, stream, rank, attempt, offset, 0)
        if not content:
            return
        _write(content)


def follow_output(
    client: Client,
    job_id: str,
    *,
    stream: str = "stdout",
    rank: int = 0,
    attempt: int | None = None,
    onwards: bool = True,
    timeout_s: float | None = None,
) -> None:
    """Write output as it appears, from ``attempt`` (None: the present one); ``onwards``: until the job has ended, with
    the output of every later attempt, else of this one only.

    Raises:
        TimedOut: after ``timeout_s``.
        Unreachable: no daemon has answered for a minute, or when the time was up.
    """
    client.be_patient(timeout_s)
    offset = 0
    while True:
        stop_when_unread()
        wait_s = _left(client, [job_id])
        try:
            content, offset, end, number = _part(client, job_id, stream, rank, attempt, offset, wait_s)
        except NotFound:  # an attempt whose output was lost with its machine
            if not onwards or attempt is None or client.get(f"/v1/jobs/{job_id}")["attempts_made"] <= attempt:
                raise
            attempt, offset = attempt + 1, 0
            continue
        _write(content)
        attempt = number or attempt
        if not end:
            continue
        if not onwards:
            return
        # This attempt is over; its job may have made, or may yet make, another one with output of its own.
        job = client.get(f"/v1/jobs/{job_id}")
        if job["state"] in ENDED and number >= job["attempts_made"]:
            return
        attempt, offset = number + 1, 0


def wait_for(client: Client, ids: Sequence[str], *, timeout_s: float | None = None) -> int:
    """Wait until all jobs have ended, saying how each did; return 0, or 1 when one did not succeed.

    Raises:
        TimedOut: after ``timeout_s``.
        Unreachable: no daemon has answered for a minute, or when the time was up.
    """
    client.be_patient(timeout_s)
    failed = 0
    for position, job_id in enumerate(ids):
        job = client.get(f"/v1/jobs/{job_id}", wait_s=0)
        while job["state"] not in ENDED:
            job = client.get(f"/v1/jobs/{job_id}", wait_s=_left(client, ids[position:]))
        click.echo(_ending(job), err=True)
        failed += job["state"] != "succeeded"
    return 1 if failed else 0


def _ending(job: dict[str, Any]) -> str:
    outcome = f": {printable(job['outcome'])}" if job["outcome"] else ""
    return f"{job['id']} {job['spec']['name']} {job['state']}{outcome}"


def _part(
    client: Client, job_id: str, stream: str, rank: int, attempt: int | None, offset: int, wait_s: float
) -> tuple[bytes, int, bool, int]:
    """Return content, next offset, whether it is complete, and the attempt it is of."""
    parameters = {"stream": stream, "rank": rank, "attempt": attempt or None, "offset": offset, "wait_s": wait_s}
    response = client.send("GET", f"/v1/jobs/{job_id}/logs", parameters)
    headers = response.headers
    return (
        response.content,
        int(headers["X-HCloud-Next-Offset"]),
        headers["X-HCloud-End"] == "true",
        int(headers["X-HCloud-Attempt"]),
    )


def _write(content: bytes) -> None:
    if content:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def _left(client: Client, ids: Sequence[str]) -> float:
    """Return how long the next request may wait."""
    left_s = client.left_s()
    if left_s <= 0:
        raise TimedOut(f"the time is up; still running: {' '.join(ids)}")
    return min(WAIT_S, left_s)
