"""Following jobs: their output as it appears, across attempts, and waiting for their end."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any

import click

from hcloud.cli.client import Client
from hcloud.cli.output import json_text, printable, stop_when_unread
from hcloud.core.errors import HCloudError, NotFound

WAIT_S = 5.0
Write = Callable[[bytes, int, int], None]
"""Writes a part of a job's output: its bytes, the attempt, the offset of the first byte."""
ENDED = frozenset({"succeeded", "failed", "cancelled"})


class TimedOut(HCloudError):
    """The jobs were still running at the timeout; they go on."""


def write_bytes(content: bytes, attempt: int, offset: int) -> None:
    """Write output as it is."""
    if content:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def write_part(content: bytes, attempt: int, offset: int) -> None:
    """Write output as one line of JSON; bytes that are no UTF-8 are replaced."""
    if content:
        part = {"attempt": attempt, "offset": offset, "content": content.decode(errors="replace")}
        click.echo(json_text(part))


def copy_output(
    client: Client, job_id: str, *, stream: str, rank: int, attempt: int | None, write: Write = write_bytes
) -> None:
    """Write the output that one attempt has so far."""
    offset, end = 0, False
    while not end:
        begin = offset
        content, offset, end, number = _part(client, job_id, stream, rank, attempt, offset, 0)
        if not content:
            return
        write(content, number, begin)


def follow_output(
    client: Client,
    job_id: str,
    *,
    stream: str = "stdout",
    rank: int = 0,
    attempt: int | None = None,
    onwards: bool = True,
    timeout_s: float | None = None,
    write: Write = write_bytes,
) -> None:
    """Write output as it appears, from ``attempt`` (None: the current one) on.

    ``onwards``: until the job has ended, with the output of every later attempt; else of this attempt only.

    Raises:
        TimedOut: after ``timeout_s``.
        DaemonUnreachable: no daemon has answered for a minute, or at the timeout.
    """
    client.be_patient(timeout_s)
    offset = 0
    while True:
        stop_when_unread()
        wait_s = _left(client, [job_id])
        try:
            begin = offset
            content, offset, end, number = _part(client, job_id, stream, rank, attempt, offset, wait_s)
        except NotFound:  # an attempt whose output was lost with its machine
            if not onwards or attempt is None or client.get(f"/v1/jobs/{job_id}")["attempts_made"] <= attempt:
                raise
            attempt, offset = attempt + 1, 0
            continue
        write(content, number, begin)
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


def wait_for(
    client: Client,
    ids: Sequence[str],
    *,
    timeout_s: float | None = None,
    ended: MutableSequence[dict[str, Any]] | None = None,
) -> int:
    """Wait until all jobs have ended and report each on standard error; return 0, or 1 if one did not succeed.

    ``ended``: gets the API's document of each job when it has ended.

    Raises:
        TimedOut: after ``timeout_s``.
        DaemonUnreachable: no daemon has answered for a minute, or at the timeout.
    """
    client.be_patient(timeout_s)
    failed = 0
    for position, job_id in enumerate(ids):
        job = client.get(f"/v1/jobs/{job_id}", wait_s=0)
        while job["state"] not in ENDED:
            job = client.get(f"/v1/jobs/{job_id}", wait_s=_left(client, ids[position:]))
        outcome = printable(job["outcome"])
        ending = outcome if outcome.startswith(job["state"]) else f"{job['state']}: {outcome}".removesuffix(": ")
        click.echo(f"{job['id']} {job['spec']['name']} {ending}", err=True)
        if ended is not None:
            ended.append(job)
        failed += job["state"] != "succeeded"
    return 1 if failed else 0


def _part(
    client: Client, job_id: str, stream: str, rank: int, attempt: int | None, offset: int, wait_s: float
) -> tuple[bytes, int, bool, int]:
    """Return content, next offset, whether it is complete, and the attempt it is of."""
    parameters = {"stream": stream, "rank": rank, "attempt": attempt or None, "offset": offset, "wait_s": wait_s}
    response = client.send("GET", f"/v1/jobs/{job_id}/logs", parameters)
    headers = response.headers
    return (
        response.content,
        int(headers["x-hcloud-next-offset"]),
        headers["x-hcloud-end"] == "true",
        int(headers["x-hcloud-attempt"]),
    )


def _left(client: Client, ids: Sequence[str]) -> float:
    """Return for how long the next request may wait. Raises TimedOut."""
    left_s = client.left_s()
    if left_s <= 0:
        raise TimedOut(f"timed out; still running: {' '.join(ids)}")
    return min(WAIT_S, left_s)
