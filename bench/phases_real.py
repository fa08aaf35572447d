"""``python -m bench.phases_real``: changes of phase of real programs, noticed by a daemon on slices of this host.

Programs that change in the middle, from arithmetic to copying memory or back, and programs that do not, run one after
the other. A daemon with the shipped intervals divided by ``--faster`` notes what it finds. Needs a machine with nothing
else at work.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.mission import Stage, hcloud_json
from bench.rows import Row, machine
from hcloud.core.clock import holds_within

SCRIPT = """
import sys, time
steps, change, first, second = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
block, number = bytearray(48 << 20), 0
with open("progress", "w") as progress:
    for step in range(steps):
        until = time.process_time() + 0.05
        work = first if step < change * steps else second
        if work == "arithmetic":
            for each in range(600_000):
                number = (number * 31 + each) % 1_000_003
        else:
            for _ in range(4):
                block = bytearray(block)
        progress.write(f"{step + 1}/{steps}\\n")
        progress.flush()
"""
POLICY = """
name: phases
budgets: {{per_hour_usd: 1.0}}
profiling:
  {{when: before, run_s: 3, total_s: 30, types: 1, skip_if_shorter_than_s: 0, instance_types: [local.large],
   sources: [memory-bandwidth, llc-capacity]}}
correction:
  {{sample_share: 1.0, long_running_s: {long_s}, sample_every_s: {every_s}, settle_s: {settle_s}}}
timing: {{sample_every_s: {sample_s}}}
"""
LIMIT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Program:
    """One program: what it does at first, and after the change."""

    first: str
    second: str
    steps: int

    @property
    def name(self) -> str:
        """What it does, as a name."""
        return self.first if self.first == self.second else f"{self.first}-then-{self.second}"


PROGRAMS = (
    Program("arithmetic", "copying", 3000),
    Program("copying", "arithmetic", 3000),
    Program("arithmetic", "arithmetic", 3000),
    Program("copying", "copying", 3000),
)


@dataclass(frozen=True, slots=True)
class Noticed:
    """What was noted of one run."""

    program: Program
    changed_at: float
    run_s: float
    corrections: tuple[tuple[float, str], ...]
    """When, and the reason's code."""
    checks: tuple[tuple[float, float, bool, str], ...]
    """Of each run in place its begin and end, whether it found a change, and its text."""


def watch(stage: Stage, program: Program, number: int) -> Noticed:
    """Run one program to its end; return what was noted of it."""
    path = stage.home / "job.json"
    job = {
        "name": f"{program.name}-{number}",
        "command": ["python3", "-c", SCRIPT, str(program.steps), "0.5", program.first, program.second],
        "target": "batch",
        "resources": {"vcpus": 1, "memory": "384MiB", "disk": "1GiB"},
        "instance_types": ["local.large"],
        "progress": {"file": "progress"},
    }
    path.write_text(json.dumps(job))
    stage.hcloud("submit", "-y", "-q", str(path))
    name = str(job["name"])

    def ended() -> bool:
        return bool(_job(stage, name)["finished_at"])

    if not holds_within(ended, LIMIT_S, every_s=1.0):
        raise TimeoutError(f"{program.name} did not end within {LIMIT_S:g} s")
    ran = _job(stage, name)
    held, job_id = ran["attempt"]["allocations"][0], ran["id"]
    events = [each for each in _events(stage, "correction") if each["job_id"] == job_id]
    profiled = [each for each in _events(stage, "job_profiled") if each["job_id"] == job_id]
    samples = [each for each in _events(stage, "sample") if each["job_id"] == job_id]
    half = [each["at"] for each in samples if float(each["fields"].get("progress") or 0.0) >= 0.5]
    return Noticed(
        program=program,
        changed_at=min(half, default=held["ended_at"]),
        run_s=held["ended_at"] - held["started_at"],
        corrections=tuple((each["at"], each["fields"]["code"]) for each in events),
        checks=tuple(
            (
                each["at"] - each["fields"]["duration_s"],
                each["at"],
                bool(each["fields"]["changed"]),
                each["fields"]["text"],
            )
            for each in profiled
            if each["fields"].get("in_place")
        ),
    )


def _job(stage: Stage, name: str) -> dict[str, Any]:
    return next(job for job in hcloud_json(stage, "queue", "-n", "1000") if job["spec"]["name"] == name)


def _events(stage: Stage, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = hcloud_json(stage, "events", "--kind", kind, "-n", "100000")
    return found


def main() -> int:
    """Measure and print; end with 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.phases_real", description=__doc__)
    parser.add_argument("--faster", type=float, default=10.0, help="by what the shipped intervals are divided")
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    if given.faster < 1 or given.rounds < 1:
        parser.error("--faster and --rounds must be at least 1")
    print(f"machine: {machine()}")
    home = Path(tempfile.mkdtemp(prefix="hcloud-phases-"))
    stage, found = Stage(home), list[Noticed]()
    try:
        policy = home.with_suffix(".yaml")
        faster = given.faster
        policy.write_text(
            POLICY.format(long_s=600 / faster, every_s=600 / faster, settle_s=60 / faster, sample_s=10 / faster)
        )
        stage.init(policy)
        stage.start("daemon")
        stage.until_daemon_answers(90)
        for number in range(given.rounds):
            for program in PROGRAMS:
                found.append(watch(stage, program, number))
                _print(found[-1])
    finally:
        stage.take_down()
        shutil.rmtree(home, ignore_errors=True)
    rows = list(_rows(found))
    for row in rows:
        print(row.line())
    return 1 if any(row.holds is False for row in rows) else 0


def _print(run: Noticed) -> None:
    print(f"  {run.program.name}: {run.run_s:.0f} s")
    notes = [(at, code) for at, code in run.corrections] + [(at, text) for _, at, _, text in run.checks]
    for at, text in sorted(notes):
        print(f"    {at - run.changed_at:+7.1f} s after the middle: {text}", flush=True)


def _rows(found: list[Noticed]) -> Iterator[Row]:
    slower = [run for run in found if run.program.first == "arithmetic" != run.program.second]
    noticed = [
        run
        for run in slower
        if any(at > run.changed_at for at, code in run.corrections if code != "profiling_in_place")
    ]
    yield Row(name="slowdowns noticed", value=100 * len(noticed) / len(slower), unit="%", target=90, better="higher")
    changed, right, same, wrong = 0, 0, 0, 0
    for run in found:
        for began_at, ended_at, found_change, _ in run.checks:
            if run.program.first == run.program.second or ended_at < run.changed_at:
                same, wrong = same + 1, wrong + found_change
            elif began_at >= run.changed_at:
                changed, right = changed + 1, right + found_change
                break
    if changed:
        yield Row(
            name="changes found by the first check after",
            value=100 * right / changed,
            unit="%",
            target=70,
            better="higher",
        )
    if same:
        yield Row(name="checks of the same phase that found a change", value=100 * wrong / same, unit="%", target=8)


if __name__ == "__main__":
    sys.exit(main())
