"""What the pages cost the daemon with 10,000 jobs and 1,000 machines, and what 100 open pages cost its cycles."""

from __future__ import annotations

import re
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from starlette.testclient import TestClient

from bench.rows import Row
from hcloud.api import build_app
from hcloud.web.money import FRESH_S
from hcloud.web.pages import WebPages
from tests.api.deployment import CLOUD, ROOT, Deployment
from tests.daemon.home import Home
from tests.waiting import wait_until

JOBS, MACHINES = 10_000, 1000
PAGES = (
    *("/", "/jobs", "/jobs?state=waiting", "/jobs?state=running", "/jobs/job-1"),
    *("/machines", "/machines/inst-1", "/applications", "/money"),
)
REPORTS = "/money/reports"
ROUNDS = 15
VIEWERS = 100
WINDOW_S = 40.0
PATIENCE_S = 300.0
POLICY: dict[str, object] = {
    "caps": {"max_instances": MACHINES, "max_vcpus": 20_000},
    "retention": {"maximum_s": 36_000},
    "profiling": {"when": "never"},
    "admission": {"queues": "one"},
}
TYPES = {"m.eight": {"vcpus": 8, "memory_mib": 16384, "usd_per_h": 1.1}}


def run() -> Iterator[Row]:
    """Measure pages in this process, then cycles of a daemon with and without viewers."""
    with tempfile.TemporaryDirectory(prefix="hcloud-bench-") as made:
        yield from _page_rows(Path(made))
    yield from _viewer_rows()


# ----------------------------------------------------------------------------------------------------------- each page
def _job(number: int) -> dict[str, Any]:
    return {
        "name": f"bench-{number % 50}",
        "command": ["sleep", "36000"],
        "resources": {"vcpus": (0.5, 1, 2)[number % 3]},
        "tags": {"team": ("search", "ads", "maps")[number % 3]},
    }


def _page_rows(home: Path) -> Iterator[Row]:
    deployment = Deployment(home, policy=POLICY, cloud={**CLOUD, "types": TYPES})
    try:
        client = deployment.client(ROOT, build_app(deployment.context, pages=WebPages()))
        for first in range(0, JOBS, 1000):
            jobs = [{"job": _job(number)} for number in range(first, first + 1000)]
            client.post("/v1/jobs", json=jobs).raise_for_status()
        deployment.cycle(40)
        running = sum(each.attempt is not None for each in deployment.store.live().jobs)
        note = f"{running} of {JOBS} jobs run on {len(deployment.store.live().instances)} machines"
        base_ms = _cpu_ms(deployment, client, "/static/icon.svg")
        for path in PAGES:
            value = _cpu_ms(deployment, client, path) - base_ms
            yield Row(name=f"page {path}, CPU (median)", value=value, unit="ms", target=20.0, note=note)
            note = ""
        value = _cpu_ms(deployment, client, REPORTS, step_s=2.0 * FRESH_S) - base_ms
        yield Row(name="the reports of Money, at most once a minute, CPU (median)", value=value, unit="ms")
    finally:
        deployment.close()


def _cpu_ms(deployment: Deployment, client: TestClient, path: str, *, step_s: float = 2.0) -> float:
    """Return the median CPU time of a page that is made anew, with that of the client."""
    found = []
    for _ in range(ROUNDS):
        deployment.cycle(step_s=step_s)  # nothing of the last view is kept
        began_s = time.process_time()
        answer = client.get(path)
        found.append(1000.0 * (time.process_time() - began_s))
        answer.raise_for_status()
    return statistics.median(found)


# ------------------------------------------------------------------------------------------------------------- viewers
def _viewer_rows() -> Iterator[Row]:
    """Measure cycles of a real daemon with a busy fleet: alone, with viewers, and alone again."""
    with busy_daemon() as (home, pid):
        before = _window(home, pid)
        with _viewers(home) as viewers:
            time.sleep(5.0)
            beside = _window(home, pid)
            left = sum(each.is_alive() for each in viewers)
        after = _window(home, pid)
    alone_s = (before[0] + after[0]) / 2.0
    note = f"{1000 * alone_s:.0f} ms without, {1000 * beside[0]:.0f} ms with; {before[2]} cycles"
    note += f"; {left} viewers at the end"
    grown = 100.0 * (beside[0] / alone_s - 1.0)
    yield Row(name=f"cycle with {VIEWERS} viewers, longer by", value=grown, unit="%", target=10.0, note=note)
    cpu = 100.0 * (beside[1] - (before[1] + after[1]) / 2.0) / WINDOW_S
    yield Row(name=f"{VIEWERS} viewers, CPU of the daemon", value=cpu, unit="% of one")


@contextmanager
def busy_daemon() -> Iterator[tuple[Home, int]]:
    """Run a daemon with JOBS jobs and MACHINES machines; return its home and its process."""
    with tempfile.TemporaryDirectory(prefix="hcloud-bench-") as made:
        home = Home(Path(made) / "home")
        home.set_up()
        config = home.path / "config.yaml"
        types = "{m.eight: {vcpus: 8, memory_mib: 16384, usd_per_h: 1.1}}"
        text = config.read_text().replace("markets: [on_demand]", f"markets: [on_demand], types: {types}")
        config.write_text(text.replace("cycle_interval_s: 0.1", "cycle_interval_s: 1.0"))
        policy = home.path / "policies" / "default.yaml"
        policy.write_text(
            "name: bench\ncaps: {max_instances: 1000, max_vcpus: 20000}\nretention: {maximum_s: 36000}\n"
            "profiling: {when: never}\nadmission: {queues: one}\nbudgets: {per_hour_usd: 3000, per_day_usd: 60000, "
            "per_month_usd: 900000}\n"
        )
        try:
            process = home.daemon()
            with _client(home) as client:
                for first in range(0, JOBS, 500):
                    jobs = [{"job": _job(number)} for number in range(first, first + 500)]
                    client.post("/v1/jobs", json=jobs).raise_for_status()
                wait_until(lambda: _running(client) > 0.6 * JOBS, PATIENCE_S, interval_s=1.0)
            yield home, process.pid
        finally:
            home.end()


def _client(home: Home) -> httpx2.Client:
    return httpx2.Client(
        transport=httpx2.HTTPTransport(uds=str(home.socket)), base_url="http://hcloud", timeout=PATIENCE_S
    )


def _metrics(client: httpx2.Client) -> str:
    return client.get("/metrics").raise_for_status().text


def _sample(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def _running(client: httpx2.Client) -> float:
    return _sample(_metrics(client), 'hcloud_jobs{state="running"}')


def _window(home: Home, pid: int) -> tuple[float, float, int]:
    """Return the mean duration of a cycle, the daemon's CPU seconds, and the number of cycles in a window of time."""
    with _client(home) as client:
        first, cpu_s = _metrics(client), _cpu_s(pid)
        time.sleep(WINDOW_S)
        last, cpu_s = _metrics(client), _cpu_s(pid) - cpu_s
    seconds, cycles = (
        _sample(last, f"hcloud_cycle_seconds_{each}") - _sample(first, f"hcloud_cycle_seconds_{each}")
        for each in ("sum", "count")
    )
    return seconds / cycles, cpu_s, round(cycles)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100.0


@contextmanager
def _viewers(home: Home) -> Iterator[Sequence[threading.Thread]]:
    """Keep pages open: half of them the first page, a quarter jobs, a quarter machines, which ask anew for changes."""
    is_over = threading.Event()
    parts = (
        [("now", "")] * (VIEWERS // 2) + [("list", "/jobs")] * (VIEWERS // 4) + [("list", "/machines")] * (VIEWERS // 4)
    )
    threads = [threading.Thread(target=_view, args=(home, *part, is_over), daemon=True) for part in parts]
    for each in threads:
        each.start()
    try:
        yield threads
    finally:
        is_over.set()
        for each in threads:
            each.join(20.0)


def _view(home: Home, topic: str, part: str, is_over: threading.Event) -> None:
    """Follow a topic as a browser does: read a part of the page again when something has changed."""
    with _client(home) as client, client.stream("GET", "/live", params={"topic": topic}) as answer:
        for line in answer.iter_lines():
            if is_over.is_set():
                return
            if part and line.startswith("event: changed"):
                client.get(part, headers={"HX-Request": "true"}).raise_for_status()
