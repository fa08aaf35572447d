"""A small deployment in this process: real store and planner, mock cloud, fake engine, a clock that tests move."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from hcloud.api import ApiContext, ApiServer, DaemonStatus, SocketPeer, build_app, serve
from hcloud.api.auth import Pages
from hcloud.api.telemetry import Telemetry
from hcloud.api.tokens import TokenFile
from hcloud.config import ApiSettings, Config
from hcloud.core.clock import ManualClock
from hcloud.core.errors import BadInput, Refused
from hcloud.core.model import JobSpec
from hcloud.fake_runner.runner import FakeRunner
from hcloud.fake_runner.work import WorkOf, read_work
from hcloud.forecast.use_history import UseHistory
from hcloud.planner.fit.job_run_times import JobRunTimes
from hcloud.preview import describe_preview
from hcloud.secret_keys import SecretKeys
from hcloud.store import Store
from providers.mock import MockProvider
from tests.assembled import assembled
from tests.databases import sqlite_url

OWNER = "hcloud-tests"
START_AT = 1_900_000_000.0
CLOUD: dict[str, object] = {
    "types": {
        "m.one": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 0.3},
        "m.two": {"vcpus": 8, "memory_mib": 16384, "usd_per_h": 1.2},
    },
    "zones": ["east-1a"],
    "markets": ["on_demand"],
    "boot": {"p50_s": 2, "p95_s": 2},
    "stop_s": 1,
}
POLICY: dict[str, object] = {"caps": {"max_instances": 4}, "retention": {"maximum_s": 10}}
# Users every Unix has, so that names can be checked without making any.
ROOT, SUBMITTER, READER, STRANGER = 0, 1, 2, 4_000_000_001
MOST_CYCLES = 500


class Deployment:
    """The parts, and ways to move them on. ``refusal``, where set, is why nothing may be submitted."""

    def __init__(
        self,
        home: Path,
        *,
        max_upload_bytes: int = 2**20,
        busy_timeout_s: float = 60.0,
        policy: Mapping[str, object] = POLICY,
        work: WorkOf = read_work,
        cloud: Mapping[str, object] = CLOUD,
    ) -> None:
        self.home = home
        self.clock = ManualClock(START_AT)
        self.store = Store.open(sqlite_url(home / "hcloud.db"), busy_timeout_s=busy_timeout_s)
        self.cloud = MockProvider("mock", cloud, self.clock, OWNER, str(home))
        self.engine = FakeRunner((self.cloud,), self.clock, work=work)
        self.policy_file = home / "policy.yaml"
        self.policy_file.write_text(json.dumps(policy))
        self.controller = assembled(home, self.store, self.cloud, self.engine, self.clock, policy, owner=OWNER)
        self.policy, self.logs = self.controller.policy, self.controller.observer.logs
        self.telemetry, self.use_history = Telemetry(["mock"]), UseHistory()
        self.controller.followers = (self.telemetry, self.use_history)
        self.refusal = ""
        self.unaccepted_changes: list[str] = []
        self.wakes = 0
        self._wake = threading.Event()
        for name in ("logs", "uploads"):
            (home / name).mkdir(exist_ok=True)
        self.context = ApiContext(
            store=self.store,
            runner=self.engine,
            clock=self.clock,
            wake=self._woken,
            status=self.status,
            offers=lambda: self.controller.offers.all,
            preview=self._preview,
            run_times=lambda: self.controller.last_snapshot.run_times,
            expected_run_time=lambda job: JobRunTimes(self.controller.last_snapshot).anew(job),
            planned_starts=lambda: self.controller.planned_starts,
            unprofiled=lambda: self.controller.unprofiled,
            due_times=lambda: self.controller.due_times.by_job,
            fair_share=self.controller.fair_share,
            admit=self._admit,
            accept=self._accept,
            seal=SecretKeys(None, home).seal,
            seen_at=lambda: self.controller.observer.seen_at,
            telemetry=self.telemetry,
            use_history=self.use_history,
            snapshot=lambda: self.controller.last_snapshot,
            classifications=lambda names: self.controller.beliefs.of_rows(names, None),
            uploads_dir=home / "uploads",
            logs_dir=home / "logs",
            outputs_dir=home / "outputs",
            checkpoints_dir=home / "checkpoints",
            readers=frozenset({_name(READER)}),
            max_upload_bytes=max_upload_bytes,
        )

    def _accept(self, changes: Sequence[str], actor: str) -> None:
        if list(changes) != self.unaccepted_changes:
            raise BadInput("what waits has changed since it was shown; look at it again")
        self.unaccepted_changes = []

    def _woken(self) -> None:
        self.wakes += 1
        self._wake.set()

    def _admit(self, specs: Sequence[JobSpec]) -> None:
        if self.refusal:
            raise Refused(self.refusal)

    def _preview(self, specs: Sequence[JobSpec]) -> list[Any]:
        return describe_preview(self.controller.preview(specs), self.policy)

    def status(self) -> DaemonStatus:
        """What the daemon would say of itself."""
        seen, spent, budgets = self.controller.last_seen, self.controller.last_spend, self.policy.budgets
        silent = self.controller.observer.silent & {each.id for each in self.store.live().instances}
        return {
            "started_at": START_AT,
            "leader": self.controller.lease is not None,
            "policy": {"name": self.policy.name, "digest": "0" * 64, "path": str(self.policy_file), "error": ""},
            "cycle": {"at": self.clock.now(), "duration_s": 0.01, "actions": 0, "refused": 0, "error": ""},
            "engine": {"reachable": seen.engine_reachable, "workers": len(seen.reachable), "silent": len(silent)},
            "providers": {"mock": {"ok": True, "error": "", "offers": len(self.controller.offers.all), "stopped": ""}},
            "spend": {
                "day_usd": spent.day_usd,
                "month_usd": spent.month_usd,
                "per_hour_limit_usd": budgets.per_hour_usd,
                "per_day_limit_usd": budgets.per_day_usd,
                "per_month_limit_usd": budgets.per_month_usd,
            },
            "event_seq": 0,
            "unaccepted_changes": list(self.unaccepted_changes),
        }

    def close(self) -> None:
        """Let go of the database."""
        self.store.close()

    # ------------------------------------------------------------------------------------------------------- moving on
    def cycle(self, count: int = 1, step_s: float = 1.0) -> None:
        """Run cycles, one every ``step_s`` of the clock."""
        for _ in range(count):
            self.controller.cycle()
            self.clock.advance(step_s)

    def cycle_until(self, condition: Callable[[], object]) -> None:
        """Run cycles until ``condition`` holds."""
        for _ in range(MOST_CYCLES):
            if condition():
                return
            self.cycle()
        raise AssertionError(f"still not so after {MOST_CYCLES} cycles: {self.store.live()}")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let cycles go on in a thread, at once when woken."""
        stop = threading.Event()

        def go_on() -> None:
            while not stop.is_set():
                self._wake.wait(0.02)
                self._wake.clear()
                self.cycle()

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    # --------------------------------------------------------------------------------------------------------- callers
    def client(self, uid: int, app: FastAPI | None = None) -> TestClient:
        """A client in this process, at the other end of whose socket the kernel would see ``uid``."""
        inner = app or build_app(self.context)

        async def connected(scope: Scope, receive: Receive, send: Send) -> None:
            scope["state"] = {"peer": SocketPeer(pid=1, uid=uid, gid=uid)}
            await inner(scope, receive, send)

        return TestClient(connected, raise_server_exceptions=False)

    def config(self, **api: Any) -> Config:
        """A configuration for a real server of this deployment."""
        return Config(owner=OWNER, state_dir=self.home, run_dir=self.home / "run", api=ApiSettings(**api))

    @contextmanager
    def served(self, *, pages: Pages | None = None, **api: Any) -> Iterator[ApiServer]:
        """A real server on a real socket."""
        config = self.config(**api)
        tcp = config.api.tcp
        server = serve(self.context, config, TokenFile(tcp.tokens_file) if tcp is not None else None, pages)
        try:
            yield server
        finally:
            server.stop()


def _name(uid: int) -> str:
    import pwd

    return pwd.getpwuid(uid).pw_name


def job(name: str = "sort", **changes: Any) -> dict[str, Any]:
    """One entry of a submission."""
    token = {"token": changes.pop("token")} if "token" in changes else {}
    return {"job": {"name": name, "command": ["sleep", "3"], **changes}, **token}


def sentence(response: Any) -> str:
    """The message of a failure, which must have the one form."""
    body = json.loads(response.content)
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"code", "message"}, body
    message: str = body["error"]["message"]
    assert message, body
    assert "\n" not in message, message
    return message


def with_refusal(context: ApiContext, admit: Callable[[Sequence[JobSpec]], None]) -> ApiContext:
    """The same desk under another policy."""
    return replace(context, admit=admit)
