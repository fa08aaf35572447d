"""Replays of recent jobs under another policy, run by a program of its own beside the daemon, one at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import IO

from hcloud.api.context import ApiContext
from hcloud.api.turns import Busy
from hcloud.core.clock import Clock
from hcloud.report.table import ReportTable
from hcloud.web.text import money

SHIPPED: tuple[str, ...] = ("no-spot", "cheapest", "default", "hf", "hm", "odf", "odm", "simple", "sr")
"""Shipped policies that can be tried; `hcloud plan policy` tries files, too."""
BRIEF = ("policy", "cost_usd", "target_met_pct", "wait_p50_s", "wait_p95_s", "launches", "succeeded", "jobs")
ALIKE = 0.005
"""Costs that differ by less, as a share, are called the same."""
LONGEST_S = 900.0
OUTPUT_MAX = 4 * 2**20
NICENESS = 15
PROGRESS = "HCLOUD_PROGRESS"
"""Environment variable with which a simulation writes how far it is, a JSON object a line, to standard error."""


@dataclass(slots=True, kw_only=True)
class WhatIfRun:
    """One replay."""

    owner: str
    policy: str
    since: str
    started_at: float
    ended_at: float | None = None
    progress: str = "reading the jobs"
    """How far it is, in words."""
    part: float | None = None
    """How much of the policy that is simulated now is done (0..1); None: not known."""
    table: ReportTable | None = None
    problem: str = ""
    _errors: list[str] = field(default_factory=list, repr=False)

    @property
    def brief(self) -> ReportTable | None:
        """The result with the columns that matter most."""
        table = self.table
        if table is None:
            return None
        names = [column.name for column in table.columns]
        kept = [names.index(name) for name in BRIEF if name in names]
        rows = tuple(tuple(row[at] for at in kept) for row in table.rows)
        return replace(table, columns=tuple(table.columns[at] for at in kept), rows=rows, total=None, notes=())

    @property
    def sentence(self) -> str:
        """What the other policy would have cost beside the one in force; empty: one of them could not run the jobs."""
        if self.table is None or len(self.table.rows) < 2:
            return ""
        at = [column.name for column in self.table.columns].index("cost_usd")
        ours, other = self.table.rows[0][at], self.table.rows[1][at]
        if not isinstance(ours, int | float) or not isinstance(other, int | float):
            return ""
        said = f"{self.policy} would have cost {money(other)}, the policy in force {money(ours)}"
        if not ours or abs(other - ours) < ALIKE * ours:
            return f"{said}: about the same"
        return f"{said}: {100 * abs(other - ours) / ours:.0f} % {'more' if other > ours else 'less'}"

    @property
    def is_over(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.ended_at is not None

    def read_progress(self, stream: IO[str]) -> None:
        """Take in what the program says until it ends."""
        for line in stream:
            try:
                said = json.loads(line)
                self.progress = f"{said['policy']}: {said['ended']} of {said['jobs']} jobs"
                self.part = said["ended"] / max(1, said["jobs"])
            except (ValueError, KeyError, TypeError):
                self._errors = [*self._errors[-4:], line.strip()]

    def finish(self, output: str, code: int, now: float) -> None:
        """Take in the result."""
        try:
            self.table = ReportTable.from_json(json.loads(output))
        except (ValueError, KeyError, TypeError):
            said = " ".join(self._errors).removeprefix("hcloud: ")
            self.problem = said or f"the replay ended with code {code} and no result"
        self.ended_at = now


class WhatIfRuns:
    """The last replay of each caller. One runs at a time: each takes a processor for a while."""

    def __init__(self, context: ApiContext, command: Sequence[str] = (sys.executable, "-m", "hcloud.cli.main")) -> None:
        """Prepare; ``command`` begins that of the program."""
        self._context, self._command = context, tuple(command)
        self._clock: Clock = context.clock
        self._by_owner: dict[str, WhatIfRun] = {}
        self._lock = threading.Lock()

    @property
    def is_possible(self) -> bool:
        """Whether programs can reach this daemon."""
        return self._context.socket_path is not None

    def latest(self, owner: str) -> WhatIfRun | None:
        """Return the caller's last replay."""
        return self._by_owner.get(owner)

    def start(self, owner: str, policy: str, since: str) -> WhatIfRun:
        """Start a replay. Raises Busy: one runs already."""
        with self._lock:
            running = next((each for each in self._by_owner.values() if not each.is_over), None)
            if running is not None:
                raise Busy(f"a replay under {running.policy} runs already; wait for it")
            run = WhatIfRun(owner=owner, policy=policy, since=since, started_at=self._clock.now())
            self._by_owner[owner] = run
        threading.Thread(target=self._replay, args=(run,), name="what-if", daemon=True).start()
        return run

    def _replay(self, run: WhatIfRun) -> None:
        command = ["nice", "-n", str(NICENESS), *self._command]
        command += ["plan", "policy", run.policy, "--since", run.since, "-o", "json"]
        environment = {**os.environ, "HCLOUD_SOCKET": str(self._context.socket_path), PROGRESS: "1"}
        environment.pop("HCLOUD_URL", None)
        output, code = "", -1
        try:
            with subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            ) as program:
                limit = threading.Timer(LONGEST_S, program.kill)
                limit.start()
                assert program.stdout is not None
                assert program.stderr is not None
                reader = threading.Thread(target=run.read_progress, args=(program.stderr,), daemon=True)
                reader.start()
                try:
                    output = program.stdout.read(OUTPUT_MAX)
                    code = program.wait()
                    reader.join()
                finally:
                    limit.cancel()
        except OSError as error:
            run.problem = f"the replay cannot be started: {error.strerror}"
        run.finish(output, code, self._clock.now())
