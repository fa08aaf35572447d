"""Following jobs: their output as it appears, across attempts, and waiting for their end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from typing import Any

import click

from hcloud.cli.output import json_text, stop_when_unread
from hcloud.cli.waiting_line import WaitingLine
from hcloud.client.connection import Connection
from hcloud.core.errors import HCloudError, NotFound, printable

WAIT_S = 5.0
Write = Callable[[str, bytes, int, int], None]
"""Writes a part of a job's output: the stream, its bytes, the attempt, the offset of the first byte."""
ENDED = frozenset({"succeeded", "failed", "cancelled"})
BOTH = ("stdout", "stderr")
TAIL_BYTES, TAIL_LINES = 4096, 10


class TimedOut(HCloudError):
    """The jobs were still running at the timeout; they go on."""


def write_bytes(stream: str, content: bytes, attempt: int, offset: int) -> None:
    """Write output as it is."""
    if content:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def write_part(stream: str, content: bytes, attempt: int, offset: int, task: str = "") -> None:
    """Write output as one line of JSON, of several tasks with each one's id; bytes that are no UTF-8 are replaced."""
    if content:
        text = content.decode(errors="replace")
        named = {"task": task} if task else {}
        click.echo(json_text({**named, "attempt": attempt, "stream": stream, "offset": offset, "content": text}))


class PrefixWriter:
    """Writes standard output as it is, and standard error to standard error, each line marked."""

    def __init__(self) -> None:
        self._begins_line = True

    def __call__(self, stream: str, content: bytes, attempt: int, offset: int) -> None:
        """Write one part."""
        if stream == "stdout":
            write_bytes(stream, content, attempt, offset)
            return
        for line in content.splitlines(keepends=True):
            sys.stderr.buffer.write((b"stderr: " if self._begins_line else b"") + line)
            self._begins_line = line.endswith((b"\n", b"\r"))
        sys.stderr.buffer.flush()


class LastLines:
    """Keeps the last lines of one stream of output; ``flush`` writes them."""

    def __init__(self, count: int, write: Write) -> None:
        self._count, self._write = count, write
        self._kept, self._stream, self._attempt, self._end = b"", "", 0, 0

    def __call__(self, stream: str, content: bytes, attempt: int, offset: int) -> None:
        """Take one part."""
        lines = (self._kept + content).splitlines(keepends=True)
        self._kept = b"".join(lines[max(0, len(lines) - self._count) :])
        self._stream, self._attempt, self._end = stream, attempt, offset + len(content)

    def flush(self) -> None:
        """Write what is kept."""
        if self._kept:
            self._write(self._stream, self._kept, self._attempt, self._end - len(self._kept))


def copy_output(
    client: Connection,
    job_id: str,
    *,
    stream: str,
    rank: int,
    attempt: int | None,
    write: Write = write_bytes,
    may_come: bool = False,
) -> tuple[int, int]:
    """Write the output that one attempt has so far; return which attempt, and where its output goes on.

    ``may_come``: it is no news that there is none yet.
    """
    offset, end, number = 0, False, 0
    while not end:
        begin = offset
        content, offset, end, number = _part(client, job_id, stream, rank, attempt, offset, 0)
        if not content and begin == 0 and not may_come:
            _report_not_run(client.get(f"/v1/jobs/{job_id}"), attempt)
        if not content:
            break
        write(stream, content, number, begin)
    return number, offset


def _report_not_run(job: Mapping[str, Any], attempt: int | None) -> None:
    """Write on standard error that there is no output because the attempt (None: any) was never made."""
    made = job["attempts_made"]
    if (attempt or 1) > made:
        click.echo(f"{job['id']} has not run" + (f" attempt {attempt}, only {made}" if made else ""), err=True)


def last_lines(client: Connection, job: Mapping[str, Any]) -> str:
    """Return the last lines of a failed job: of standard error, or of its output if there are none."""
    if job["state"] != "failed" or not job["attempts_made"]:
        return ""
    held = job["attempt"]["allocations"] if job["attempt"] else ()
    rank = next((each["rank"] for each in held if each["cause"]), 0)
    for stream in ("stderr", "stdout"):
        parameters = {"stream": stream, "rank": rank, "tail": TAIL_BYTES}
        try:
            content = client.send("GET", f"/v1/jobs/{job['id']}/logs", parameters).content
        except HCloudError:  # of another user, or deleted
            return ""
        if lines := content.decode(errors="replace").splitlines():
            return "\n".join(printable(line) for line in lines[-TAIL_LINES:])
    return ""


def follow_output(
    client: Connection,
    job_id: str,
    *,
    streams: Sequence[str] = BOTH,
    rank: int = 0,
    attempt: int | None = None,
    onwards: bool = True,
    timeout_s: float | None = None,
    write: Write | None = None,
    offsets: Mapping[str, int] | None = None,
    line: WaitingLine | None = None,
) -> None:
    """Write output as it appears, from ``attempt`` (None: the current one) on; two streams as they come.

    ``onwards``: until the job has ended, with the output of every later attempt; else of this attempt only.
    ``write``: None marks what is of standard error. ``offsets``: where to begin in ``attempt``, by stream; None: at
    its beginning. ``line``: says what the job waits for until there is output.

    Raises:
        TimedOut: after ``timeout_s``.
        DaemonUnreachable: no daemon has answered for a minute, or at the timeout.
    """
    client.be_patient(timeout_s)
    write = write or PrefixWriter()
    write = write if line is None else line.before(write)
    asked = attempt
    left = dict(offsets or dict.fromkeys(streams, 0))  # offsets of the streams that are not complete
    while True:
        stop_when_unread()
        wait_s = _left(client, [job_id])
        wait_s = wait_s if line is None else min(wait_s, line.refresh(job_id))
        try:
            number = _write_more(client, job_id, left, rank, attempt, wait_s, write)
        except NotFound:  # an attempt whose output was lost with its machine
            if not onwards or attempt is None or client.get(f"/v1/jobs/{job_id}")["attempts_made"] <= attempt:
                raise
            attempt, left = attempt + 1, dict.fromkeys(streams, 0)
            continue
        attempt = number or attempt
        if left:
            continue
        if not onwards:
            _report_not_run(client.get(f"/v1/jobs/{job_id}"), attempt)
            return
        # This attempt is over; its job may have made, or may yet make, another one with output of its own.
        job = client.get(f"/v1/jobs/{job_id}")
        if job["state"] in ENDED and number >= job["attempts_made"]:
            _report_not_run(job, asked)
            return
        attempt, left = number + 1, dict.fromkeys(streams, 0)


def _write_more(
    client: Connection, job_id: str, left: dict[str, int], rank: int, attempt: int | None, wait_s: float, write: Write
) -> int:
    """Write what there is of the streams in ``left``, or what comes within ``wait_s``; return the attempt it is of.

    Complete streams are removed from ``left``.
    """
    number = 0
    for position, stream in enumerate(tuple(left)):
        begin, others = left[stream], [offset for each, offset in left.items() if each != stream]
        beside = others[0] if others and position == 0 else None
        this = attempt if position == 0 else number or attempt
        wait_s = wait_s if position == 0 else 0.0
        content, left[stream], end, number = _part(client, job_id, stream, rank, this, begin, wait_s, beside)
        write(stream, content, number, begin)
        if end:
            del left[stream]
    return number


def wait_for(
    client: Connection,
    ids: Sequence[str],
    *,
    timeout_s: float | None = None,
    ended: MutableSequence[dict[str, Any]] | None = None,
    line: WaitingLine | None = None,
) -> int:
    """Wait until all jobs have ended and report each on standard error; return 0, or 1 if one did not succeed.

    ``ended``: gets the API's document of each job when it has ended. ``line``: says what is waited for.

    Raises:
        TimedOut: after ``timeout_s``.
        DaemonUnreachable: no daemon has answered for a minute, or at the timeout.
    """
    client.be_patient(timeout_s)
    failed = 0
    for position, job_id in enumerate(ids):
        job = client.get(f"/v1/jobs/{job_id}", wait_s=0)
        done = f"{position} of {len(ids)} ended; " if len(ids) > 1 else ""
        try:
            while job["state"] not in ENDED:
                wait_s = _left(client, ids[position:])
                wait_s = wait_s if line is None else min(wait_s, line.refresh(job_id, done))
                job = client.get(f"/v1/jobs/{job_id}", wait_s=wait_s)
        finally:
            if line is not None:
                line.clear()
        outcome = printable(job["outcome"])
        ending = outcome if outcome.startswith(job["state"]) else f"{job['state']}: {outcome}".removesuffix(": ")
        name = job["id"] if job["task"] is None else job_id
        click.echo(f"{name} {job['spec']['name']} {ending}", err=True)
        if ended is not None:
            ended.append(job)
        failed += job["state"] != "succeeded"
    return 1 if failed else 0


def _part(
    client: Connection,
    job_id: str,
    stream: str,
    rank: int,
    attempt: int | None,
    offset: int,
    wait_s: float,
    other_offset: int | None = None,
) -> tuple[bytes, int, bool, int]:
    """Return content, next offset, whether it is complete, and the attempt it is of.

    It is waited for until there is some, or the other stream has more from ``other_offset`` on.
    """
    parameters = {"stream": stream, "rank": rank, "attempt": attempt or None, "offset": offset, "wait_s": wait_s}
    parameters |= {"other_offset": other_offset}
    response = client.send("GET", f"/v1/jobs/{job_id}/logs", parameters)
    headers = response.headers
    return (
        response.content,
        int(headers["x-hcloud-next-offset"]),
        headers["x-hcloud-end"] == "true",
        int(headers["x-hcloud-attempt"]),
    )


def _left(client: Connection, ids: Sequence[str]) -> float:
    """Return for how long the next request may wait. Raises TimedOut."""
    left_s = client.left_s()
    if left_s <= 0:
        raise TimedOut(f"timed out; still running: {' '.join(ids)}")
    return min(WAIT_S, left_s)
