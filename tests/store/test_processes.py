"""Several processes on one database, and processes that are killed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hcloud.core.model import EventKind
from hcloud.store import Store, verify_audit_log
from tests.store.samples import submit

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def other_process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `tests.store.other_process`; killed at the end if it has not ended."""
    command = [sys.executable, "-m", "tests.store.other_process", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    return iter(process.stdout)


def assert_chain_is_whole(url: str) -> None:
    """Assert that the event log's chain has no fork, gap or half-written link."""
    log = verify_audit_log(url)
    assert log is not None and log.fault == ""
    assert log.records == log.head.link > 0


def test_kill_while_writing_loses_nothing_committed_and_leaves_nothing_half_written(store_url: str) -> None:
    reported: list[str] = []
    for lives in (1, 20, 60):
        with other_process("submit", store_url) as process:
            lines = lines_of(process)
            reported += next(lines).split()
            for _ in range(lives):
                reported += next(lines).split()
            process.kill()
            reported += [job_id for line in lines for job_id in line.split()]
    store = Store.open(store_url)
    # First of all one of ours: what a database server still does for the dead comes before it.
    [own] = submit(store)
    *stored, last = [job.id for job in reversed(store.jobs(limit=100_000))]
    assert set(reported) <= set(stored)
    assert stored == [f"job-{n}" for n in range(1, len(stored) + 1)]
    assert len(stored) % 2 == 0, "jobs are submitted in pairs; half a pair was kept"
    assert [event.job_id for event in store.iter_events()] == [*stored, last]
    assert last == own.id == f"job-{len(stored) + 1}"
    store.close()
    assert_chain_is_whole(store_url)


def test_two_processes_number_jobs_without_gap_or_double(store_url: str) -> None:
    with other_process("some", store_url) as one, other_process("some", store_url) as other:
        ids = [line.strip() for process in (one, other) for line in lines_of(process)]
    assert sorted(ids) == sorted(f"job-{n}" for n in range(1, 101))
    assert_chain_is_whole(store_url)


def test_two_processes_never_both_lead(store_url: str) -> None:
    with other_process("contend", store_url, "a") as one, other_process("contend", store_url, "b") as other:
        assert [line for process in (one, other) for line in lines_of(process)] == ["done\n"] * 2
    store = Store.open(store_url)
    done = [(event.fields["epoch"], event.fields["holder"]) for event in store.iter_events(kinds=[EventKind.DAEMON])]
    store.close()
    assert done
    assert done == sorted(done), "a holder wrote after a later one had become leader"
    assert len(dict(done)) == len(set(done)), "one epoch had two leaders"
    assert_chain_is_whole(store_url)
