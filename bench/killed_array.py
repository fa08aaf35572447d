"""Ten thousand tasks of one array while daemon, gateway, agents and workers are killed again and again (SIGKILL).

Each task reports over TCP what it did; a run log on disk counts that. Each task's effect must be there once.
"""

from __future__ import annotations

import os
import signal
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from bench.rows import Row
from bench.short_tasks import PARTS, _processes, home_with_cgroups
from hcloud.core.model import JOB_ENDED, EventKind
from hcloud.store import Store
from tests.daemon.home import PATIENCE_S, Home
from tests.waiting import wait_until

TASKS = int(os.environ.get("BENCH_TASKS", "10000"))
KILLS = int(os.environ.get("BENCH_KILLS", "20"))
PROCESSES = ("daemon", "gateway", "agent", "worker", "all")
EFFECT = "exec 3<>/dev/tcp/127.0.0.1/{port} && echo $HCLOUD_TASK_ID $HCLOUD_UNIT_ID >&3 && read -r _ <&3"


def run() -> Iterator[Row]:
    """Run the array to its end with a kill after each part of it; report what the run log and the record hold."""
    with home_with_cgroups() as home, _run_log(home.path.parent / "runs.log") as (port, log):
        home.daemon()
        size = ("--vcpus", "0.9", "--memory", "64MiB", "--disk", "50MiB", "--network", "host")
        began = time.perf_counter()
        home.run("submit", "-y", "-q", *size, "--array", f"0-{TASKS - 1}", "--", "bash", "-c", EFFECT.format(port=port))
        with closing(Store.open(f"sqlite:///{home.path}/hcloud.db")) as store:
            kills = _kill_until_ended(home, store)
            record = store.job("job-1").task_record
            units = sum(1 for _ in store.iter_events(kinds=[EventKind.UNIT_STARTED]))
        assert record is not None
        took_s = time.perf_counter() - began
        lines = log.read_text().splitlines()
    effects = Counter(int(line.split()[0]) for line in lines)
    for line in lines:
        if effects[int(line.split()[0])] > 1:
            print(f"  more than once: task and unit {line}")
    lost, twice = TASKS - len(effects), sum(count > 1 for count in effects.values())
    succeeded = sum(last - first + 1 for first, last in record.succeeded)
    yield Row(name=f"{TASKS:,} tasks, {kills}", value=TASKS / took_s, unit="tasks/s")
    yield Row(name="  recorded as succeeded", value=succeeded, unit="", target=TASKS, better="higher")
    yield Row(name="  without an effect", value=lost, unit="tasks", target=0)
    yield Row(name="  with more than one", value=twice, unit="tasks", target=0)
    yield Row(name="  units", value=units, unit="")


def _kill_until_ended(home: Home, store: Store) -> str:
    """Kill each kind of process in turn, one after each part of the tasks; return how often each was."""
    killed = Counter[str]()

    def ended() -> int:
        """Return how many tasks are recorded, all once the array is over."""
        job = store.job("job-1")
        return TASKS if job.state in JOB_ENDED else job.task_record.ended if job.task_record is not None else 0

    for number in range(1, KILLS + 1):
        wait_until(lambda: ended() >= TASKS * number / (KILLS + 1), PATIENCE_S * 5, interval_s=0.1)  # noqa: B023
        if ended() == TASKS:
            break
        process = PROCESSES[(number - 1) % len(PROCESSES)]
        _kill(home, process)
        killed[process] += 1
    wait_until(lambda: store.job("job-1").state in JOB_ENDED, PATIENCE_S * 5, interval_s=0.2)
    return "killed: " + ", ".join(f"{process} {count}" for process, count in killed.items())


def _kill(home: Home, process: str) -> None:
    links = [pid for pid, command in _processes(home) if PARTS["agents' links"] in command]
    victims = {
        "gateway": [pid for pid, command in _processes(home) if PARTS["gateway"] in command],
        "agent": links,
        # Keepers have the worker's command line, but only the worker starts a link.
        "worker": [parent for pid in links if (parent := _parent(pid)) is not None],
    }
    for name in victims if process == "all" else {process} & victims.keys():
        for pid in victims[name]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if process in ("daemon", "all"):
        daemon = home.started[-1]
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        home.daemon()


def _parent(pid: int) -> int | None:
    """Return the worker that started a link; None: it is dead, and what took its place is the machine."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        is_worker = PARTS["workers and units"] in Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return None
    return parent if is_worker else None


class _Runs(socketserver.StreamRequestHandler):
    """Writes what a task says to the log, then answers."""

    def handle(self) -> None:
        """Take one line."""
        line = self.rfile.readline()
        os.write(self.server.log, line)  # type: ignore[attr-defined]
        self.wfile.write(b"noted\n")


class _RunServer(socketserver.ThreadingTCPServer):
    """Takes the connections of tasks."""

    daemon_threads, request_queue_size = True, 256
    log: int


@contextmanager
def _run_log(path: Path) -> Iterator[tuple[int, Path]]:
    """Serve the log at ``path``; enter with the port and the path."""
    with _RunServer(("127.0.0.1", 0), _Runs) as server:
        server.log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], path
        server.shutdown()
        os.close(server.log)
