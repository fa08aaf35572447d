"""A real daemon with real jobs, ``hcloud web`` before it, and a browser."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import axe_playwright_python
import httpx2
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.api.certificates import write_certificate

PATIENCE_S = 30.0
FLAGS = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
HOSTILE = "<script>document.title='owned'</script> \u202egnp.exe \x1b[31mred"
ADAS_TOKEN = "a token of twenty letters and more"
TLS_FILES = "certificate: c.pem, key: k.pem, tokens_file: tokens"
SEARCH = "for i in 1 2 3; do echo step $i; seq 1 20000 | sha256sum; sleep 0.3; done"


@dataclass
class Fleet:
    """A deployment in a directory of its own, on slices of this machine."""

    home: Path
    tls_port: int
    started: list[subprocess.Popen[Any]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What commands need to reach it."""
        config = str(self.home / "config.yaml")
        return {**os.environ, "HCLOUD_CONFIG": config, "HCLOUD_HOME": str(self.home)}

    def run(self, *arguments: str) -> str:
        """Run a command to its end; return what it wrote."""
        command = [sys.executable, "-m", "hcloud.cli.main", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the daemon on its socket; return the answer."""
        transport = httpx2.HTTPTransport(uds=str(self.home / "run" / "hcloud.sock"))
        with httpx2.Client(transport=transport, base_url="http://hcloud", timeout=PATIENCE_S) as client:
            answer = client.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def submit(self, name: str, command: Any, *, vcpus: float = 1, team: str = "", **more: Any) -> str:
        """Submit a job; return its id."""
        tags = {"team": team} if team else {}
        job = {"name": name, "command": command, "resources": {"vcpus": vcpus}, "tags": tags, **more}
        return str(self.call("POST", "/v1/jobs", [{"job": job}])[0]["id"])

    def machines(self) -> list[Any]:
        """Return the machines that are there."""
        return [each for each in self.call("GET", "/v1/instances") if each["state"] != "terminated"]

    def job(self, job_id: str) -> Any:
        """Return a job."""
        return self.call("GET", f"/v1/jobs/{job_id}")

    def state(self, job_id: str) -> str:
        """Return the state of a job."""
        return str(self.job(job_id)["state"])

    def cancel(self, job_id: str) -> None:
        """Cancel a job."""
        self.call("POST", f"/v1/jobs/{job_id}/cancel")

    def start(self, *arguments: str) -> subprocess.Popen[Any]:
        """Begin a command that goes on."""
        with (self.home / f"{arguments[0]}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "hcloud.cli.main", *arguments],
                env={**self.environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process

    def stop(self) -> None:
        """End the machines, and what was started, the last first."""
        if self.started and self.started[0].poll() is None:
            self.run("destroy", "--all", "-y", "--wait", "30")
        for process in reversed(self.started):
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Return what ``condition`` returns once that is true."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, f"still not so: {what}"
        time.sleep(0.05)
    return found


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def set_up(fleet: Fleet) -> Fleet:
    """Start a daemon with four slices of this machine, and give it jobs: the seventh has to wait."""
    home = fleet.home
    fleet.run("init", "--home", str(home), "--provider", "local")
    config = home / "config.yaml"
    text = config.read_text().replace("127.0.0.1:8786", f"127.0.0.1:{free_port()}")
    for slow, quick in (
        ("settings: {}", "settings: {cgroups: false, vcpus: 4, memory_mib: 4096}"),
        ("interval_s: 1.0", "interval_s: 0.2"),
        ("poll_s: 2.0", "poll_s: 0.2"),
        ("tcp: null", f"tcp: {{listen: '127.0.0.1:{fleet.tls_port}', {TLS_FILES}}}"),
    ):
        assert slow in text
        text = text.replace(slow, quick)
    config.write_text(text)
    write_certificate(home / "c.pem", home / "k.pem")
    (home / "tokens").write_text(f"ada:{sha256(ADAS_TOKEN.encode()).hexdigest()}:reader\n")
    fleet.start("daemon")
    wait_for(lambda: (home / "run" / "hcloud.sock").exists(), "the daemon listens")
    fleet.start("web")
    fleet.submit("index", SEARCH, team="search")
    fleet.submit("index", SEARCH, team="search")
    fleet.submit("hostile", ["printf", "%s", HOSTILE], team=HOSTILE)
    wait_for(lambda: all(fleet.state(f"job-{at}") == "succeeded" for at in (1, 2, 3)), "the first jobs have ended")
    for at in (1, 2, 3):
        fleet.submit(f"serve-{at}", "sleep 600", team="ads")
    fleet.submit("big", "sleep 600", vcpus=2)
    wait_for(lambda: fleet.job("job-7")["wait_text"] and fleet.state("job-6") == "running", "the seventh job waits")
    return fleet


@pytest.fixture(scope="session")
def coming_fleet() -> Iterator[Future[Fleet]]:
    """The deployment while it starts, for what can be done meanwhile."""
    with tempfile.TemporaryDirectory(prefix="hcloud-browser-") as made, ThreadPoolExecutor(1) as pool:
        begun = Fleet(Path(made), free_port())
        coming = pool.submit(set_up, begun)
        yield coming
        wait([coming])
        begun.stop()


@pytest.fixture(scope="session")
def fleet(coming_fleet: Future[Fleet]) -> Fleet:
    """The deployment that all tests look at."""
    return coming_fleet.result()


@pytest.fixture(scope="session")
def address(fleet: Fleet) -> str:
    """The address that ``hcloud web`` prints."""
    log = fleet.home / "web.log"
    line = wait_for(lambda: next((x for x in log.read_text().splitlines() if x.startswith("open ")), ""), "an address")
    return str(line.removeprefix("open "))


@pytest.fixture(scope="session")
def chromium(coming_fleet: Future[Fleet]) -> Iterator[Browser]:
    """Debian's browser, which starts beside the deployment."""
    with sync_playwright() as playwright:
        found = shutil.which("chromium")
        assert found is not None, "chromium is not installed; 'make browser' installs it"
        flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = playwright.chromium.launch(executable_path=found, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def login(chromium: Browser, address: str) -> Any:
    """The cookie of the browser that opened the address first."""
    context = chromium.new_context()
    page = context.new_page()
    page.goto(address)
    assert page.title() == "Now · HCloud"
    state = context.storage_state()
    context.close()
    return state


@dataclass
class Reader:
    """Somebody before a browser."""

    base: str
    page: Page
    clicks: int = 0
    said: list[str] = field(default_factory=list)
    """What the browser complained about."""

    def open(self, path: str) -> None:
        """Go to a page."""
        answer = self.page.goto(self.base + path, wait_until="load")
        assert answer is not None
        assert answer.status == 200, path

    def look(self, width: int, scheme: Any, motion: Any) -> None:
        """Change the width of the window, the colour scheme, and whether things may move."""
        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.emulate_media(color_scheme=scheme, reduced_motion=motion)

    def click(self, selector: str) -> None:
        """Click once."""
        self.page.locator(selector).first.click()
        self.clicks += 1

    def text(self, selector: str = "main") -> str:
        """What is to be read there."""
        return self.page.locator(selector).first.inner_text()

    def until(self, text: str, selector: str = "main") -> str:
        """Wait until a text can be read; return all that is there."""
        wait_for(lambda: text in self.text(selector), f"{text!r} on {self.page.url}")
        return self.text(selector)


@pytest.fixture(scope="session")
def only_reader(chromium: Browser, address: str, login: Any) -> Iterator[Reader]:
    """The reader of all tests: to open a browser's context and page for each takes as long as the test."""
    context = chromium.new_context(storage_state=login)
    context.set_default_timeout(15_000)
    page = context.new_page()
    made = Reader(address.partition("/start")[0], page)
    page.on("console", lambda each: made.said.append(each.text) if each.type in ("error", "warning") else None)
    page.on("pageerror", lambda each: made.said.append(str(each)))
    yield made
    context.close()


@pytest.fixture
def reader(only_reader: Reader) -> Iterator[Reader]:
    """A reader at the first page, whose browser complains of nothing."""
    only_reader.look(1280, "light", "no-preference")
    only_reader.open("/")
    only_reader.clicks = 0
    yield only_reader
    said, only_reader.said = only_reader.said, []
    assert said == []
