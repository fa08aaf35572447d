"""``python -m bench.mission``: real programs under the whole mission and under simple rules, side by side on this host.

Ten programs that the library does not know run twice each on slices of this host, in their sandbox: a first round when
nothing is known of them, and a second one. Every job asks for one vCPU, which some need and others do not; HCloud may
choose between a quarter and two. Both sides get the same jobs, one side after the other. Cost includes profiling.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.rows import Row, machine
from hcloud.core.clock import holds_within

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "demo"))

from stage import Stage  # noqa: E402  the demo's deployment

COMMON = "\nbudgets: {per_hour_usd: 1.0}\nretention: {maximum_s: 6}\nstockout: {backoff_s: 2, backoff_cap_s: 5}\n"
SIDES = {"simple": (ROOT / "policies" / "simple.yaml").read_text(), "mission": "name: mission"}
"""Policies by name; the mission is the default of every key."""
LIMIT_S = 1800.0
LOOP = "i=0; while [ $i -lt {count} ]; do {work}; i=$((i+1)); done"


@dataclass(frozen=True, slots=True)
class Program:
    """One program, whose work grows with ``count``."""

    name: str
    work: str
    """A shell command, repeated."""
    count: int
    """Repetitions that take about 12 s of work on one vCPU, or 12 s of waiting."""
    is_long: bool = False

    def command(self, scale: float) -> list[str]:
        """Return the command of a job; long programs do five times the work."""
        count = max(1, round(self.count * scale * (5 if self.is_long else 1)))
        return ["sh", "-c", LOOP.format(count=count, work=self.work)]


PROGRAMS = (
    Program("bzip2", "head -c 4000000 /usr/bin/perl | bzip2 -9 > /dev/null", 55),
    Program("xz", "head -c 3000000 /usr/bin/perl | xz -6 -T1 > /dev/null", 11, is_long=True),
    Program("md5", "head -c 300000000 /dev/zero | md5sum > /dev/null", 24),
    Program("b2", "head -c 300000000 /dev/zero | b2sum > /dev/null", 26, is_long=True),
    Program("perl", "perl -e 'my $x=0; for (1..20000000) { $x += $_ % 7 }'", 10),
    Program("factor", "seq 1000000000 1000400000 | factor > /dev/null", 40, is_long=True),
    Program("poll", "sleep 0.5; date > /dev/null", 24, is_long=True),
    Program("fetch", "head -c 20000000 /dev/urandom > part; sync part; sleep 0.4; cat part > /dev/null", 20),
    Program("bc", "echo 'scale=2000; a(1)*4' | bc -lq > /dev/null", 10),
    Program("lz4", "head -c 100000000 /dev/urandom | lz4 -9 > /dev/null", 5, is_long=True),
)


@dataclass(frozen=True, slots=True)
class Side:
    """What one policy made of the jobs."""

    cost_usd: float
    makespan_s: float
    """Of both rounds together."""
    start_s: tuple[float, ...]
    """By job of the first round: from submission to its start."""
    sizes: dict[str, float]
    """vCPUs of each job of the second round, by program."""
    run_s: dict[tuple[str, int], float]
    """Run time by program and round."""
    profiled: frozenset[str]
    """Programs that were profiled."""
    errors: tuple[float, ...]
    """Relative errors of predicted performance of whole runs."""
    within: float
    """Fraction of the predictions within their limits."""


def measure(name: str, scale: float) -> Side:
    """Run both rounds on a deployment of its own under policy ``name``."""
    home = Path(tempfile.mkdtemp(prefix=f"hcloud-mission-{name}-"))
    stage = Stage(home)
    try:
        policy = home.with_suffix(".yaml")
        policy.write_text(SIDES[name] + COMMON)
        stage.init(policy)
        stage.start("daemon")
        stage.until_daemon_answers(90)
        makespan_s = sum(_round(stage, number, scale) for number in (1, 2))
        _until(
            lambda: not [each for each in hcloud_json(stage, "status")["instances"] if each["state"] != "terminated"]
        )
        return _read(stage, makespan_s)
    finally:
        stage.take_down()
        shutil.rmtree(home, ignore_errors=True)


def _round(stage: Stage, number: int, scale: float) -> float:
    """Submit every program once; return the seconds until the last one has ended."""
    began_s = time.monotonic()
    for program in PROGRAMS:
        job = {
            "name": program.name,
            "command": program.command(scale),
            "target": "batch",
            "resources": {"vcpus": 1, "vcpus_min": 0.25, "vcpus_max": 2, "memory": "256MiB", "disk": "1GiB"},
            "tags": {"round": str(number)},
        }
        path = stage.home / "job.json"
        path.write_text(json.dumps(job))
        stage.hcloud("submit", "-y", "-q", str(path))
    _until(lambda: all(job["finished_at"] for job in _jobs(stage)))
    return time.monotonic() - began_s


def _until(condition: Any) -> None:
    if not holds_within(condition, LIMIT_S, every_s=1.0):
        raise TimeoutError(f"not done after {LIMIT_S:g} s")


def hcloud_json(stage: Stage, *words: str) -> Any:
    """Return what one command prints as JSON."""
    return json.loads(stage.hcloud(*words, "-o", "json"))


def _jobs(stage: Stage) -> list[dict[str, Any]]:
    """Return the jobs that were submitted, without profiling runs."""
    return [
        job for job in hcloud_json(stage, "queue", "-n", "1000") if "round" in job["spec"]["tags"] and not _is_run(job)
    ]


def _is_run(job: dict[str, Any]) -> bool:
    return "hcloud.profile" in job["spec"]["tags"]


def _read(stage: Stage, makespan_s: float) -> Side:
    jobs = _jobs(stage)
    failed = [job["id"] for job in jobs if job["state"] != "succeeded"]
    if failed:
        raise RuntimeError(f"{', '.join(failed)} did not succeed: {stage.hcloud('explain', failed[0])}")
    first = [job for job in jobs if job["spec"]["tags"]["round"] == "1"]
    second = [job for job in jobs if job["spec"]["tags"]["round"] == "2"]
    predictions = [event["fields"] for event in hcloud_json(stage, "events", "--kind", "prediction", "-n", "10000")]
    whole = [each for each in predictions if each.get("question") == "run"]
    held = [each["low"] <= each["measured"] <= each["high"] for each in whole]
    profiled = {event["job_id"] for event in hcloud_json(stage, "events", "--kind", "job_profiled", "-n", "10000")}
    return Side(
        cost_usd=hcloud_json(stage, "status")["daemon"]["daemon"]["spend"]["day_usd"],
        makespan_s=makespan_s,
        start_s=tuple(_allocation(job)["started_at"] - job["submitted_at"] for job in first),
        sizes={job["spec"]["name"]: _allocation(job)["resources"]["vcpus"] for job in second},
        run_s={
            (job["spec"]["name"], int(job["spec"]["tags"]["round"])): _allocation(job)["ended_at"]
            - _allocation(job)["started_at"]
            for job in jobs
        },
        profiled=frozenset(job["spec"]["name"] for job in jobs if job["id"] in profiled),
        errors=tuple(abs(each["predicted"] / each["measured"] - 1) for each in whole),
        within=statistics.fmean(held) if held else 0.0,
    )


def _allocation(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["attempt"]["allocations"][0]
    return found


def rows(simple: Side, mission: Side) -> Iterator[Row]:
    """Yield the comparison."""
    ratio = mission.cost_usd / simple.cost_usd
    note = f"${mission.cost_usd:.6f} and ${simple.cost_usd:.6f}"
    yield Row(name="cost of both rounds, mission over simple", value=ratio, unit="x", target=1.0, note=note)
    longer, note = mission.makespan_s / simple.makespan_s, f"{mission.makespan_s:.0f} s and {simple.makespan_s:.0f} s"
    yield Row(name="makespan, mission over simple", value=longer, unit="x", target=1.1, note=note)
    yield Row(name="programs profiled", value=len(mission.profiled), unit="of 10", target=8, better="higher")
    differ = sum(abs(mission.sizes[name] - size) > 0.01 for name, size in simple.sizes.items())
    yield Row(name="decisions that differ (vCPUs, second round)", value=differ, unit="of 10", target=5, better="higher")
    later_s = _p90(mission.start_s) - _p90(simple.start_s)
    yield Row(name="start after submission at p90, later than simple", value=later_s, unit="s", target=1.0)
    if mission.errors:
        error = 100 * statistics.fmean(mission.errors)
        count = f"{len(mission.errors)} predictions"
        yield Row(name="error of predicted performance, mean", value=error, unit="%", target=15.0, note=count)
        inside = 100 * mission.within
        yield Row(name="predictions within their limits", value=inside, unit="%", target=75.0, better="higher")


def _p90(values: Sequence[float]) -> float:
    return sorted(values)[int(0.9 * (len(values) - 1))]


def main() -> int:
    """Measure and print; end with 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.mission", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the work of each program")
    scale = parser.parse_args().scale
    print(f"machine: {machine()}")
    sides = {name: measure(name, scale) for name in SIDES}
    for (name, number), run_s in sorted(sides["mission"].run_s.items()):
        size = f", {sides['mission'].sizes[name]:g} vCPUs" if number == 2 else ""
        print(f"  {name:8} round {number}: {run_s:6.1f} s, simple {sides['simple'].run_s[name, number]:6.1f} s{size}")
    found = list(rows(sides["simple"], sides["mission"]))
    for row in found:
        print(row.line())
    return 1 if any(row.holds is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
