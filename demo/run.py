"""See HCloud at work: real jobs on slices of this machine, a daemon killed half-way, and the reports at the end.

Run as ``make demo`` or ``.venv/bin/python demo/run.py``, as root or as an ordinary user. Ends with 0 only if every
check at the end holds. Everything happens in a temporary directory and on loopback addresses; nothing is left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from stage import DEMO, Stage

from hcloud.core.clock import holds_within

TIME_LIMIT_S = 220
POLL_S = 1.0
DEAD_S = 4.0
STILL_ENDING_S = 20.0
REPORTS = ("cost", "--by", "market"), ("cost", "--by", "tag:kind"), ("performance", "--by", "job"), ("savings",)


class Checks:
    """What must hold; each is printed, and remembered when it does not."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def that(self, holds: bool, text: str) -> None:
        """Print one check."""
        print(f"  {'ok  ' if holds else 'FAIL'} {text}")
        if not holds:
            self.failed.append(text)


def headline(text: str) -> None:
    """Print a headline."""
    print(f"\n== {text}", flush=True)


class Demo:
    """The acts, in order."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.checks = Checks()
        self.began_s = time.monotonic()
        self.units_seen: dict[str, set[str]] = {}

    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began_s

    # ------------------------------------------------------------------------------------------------------------ acts
    def open(self) -> None:
        """Set up, start engine and daemon, and show what this machine offers."""
        headline("a fresh deployment on this machine")
        self.stage.init()
        self.stage.start("engine")
        self.stage.start("daemon")
        self.stage.until_daemon_answers(90)
        (facts,) = (provider["facts"] for provider in self.status()["daemon"]["daemon"]["providers"].values())
        for key, text in facts.items():
            print(f"  {key:9} {text}")

    def submit(self) -> None:
        """Submit a service, then batch work; the command shows the priced plan first."""
        headline("submit a service under load, then 13 batch jobs of three kinds")
        print(self.stage.hcloud("submit", "-y", str(DEMO / "service.yaml")))
        print(self.stage.hcloud("submit", "-y", "-q", str(DEMO / "batch.yaml")))

    def watch(self, until: Callable[[dict[str, Any]], bool]) -> None:
        """Print how it goes until the condition holds."""
        lines = [""]

        def over() -> bool:
            """Look, and print what is new."""
            self.look_at_units()
            status = self.status()
            if (line := describe(status)) != lines[-1]:
                print(f"  {self.elapsed_s():4.0f} s  {line}", flush=True)
                lines.append(line)
            return until(status)

        if not holds_within(over, TIME_LIMIT_S - self.elapsed_s(), POLL_S):
            raise TimeoutError(f"not done after {TIME_LIMIT_S} s: {lines[-1]}")

    def kill_daemon(self) -> None:
        """Kill the daemon without warning; show that nothing else notices; start it again."""
        headline("kill -9 of the daemon, half-way")
        before = self.look_at_units()
        self.stage.kill("daemon")
        print(f"  the daemon is dead; running units: {', '.join(sorted(before)) or 'none'}")
        code = self.stage.exit_code("status")
        self.checks.that(code == 3, f"`hcloud status` ends with 3, daemon unreachable (it ended with {code})")
        time.sleep(DEAD_S)
        after = self.look_at_units()
        print(f"  {DEAD_S:.0f} s later: {len(before & after)} of these units go on, {len(before - after)} have ended")
        self.stage.start("daemon")
        self.stage.until_daemon_answers(90)
        print(f"  {self.elapsed_s():4.0f} s  the daemon is back")

    def report(self) -> None:
        """Show what users see at the end."""
        headline("hcloud status")
        print(self.stage.hcloud("status"))
        for words in REPORTS:
            headline(f"hcloud report {' '.join(words)}")
            print(self.stage.hcloud("report", *words))

    def explain(self) -> None:
        """Tell one job's story."""
        headline("hcloud explain (one of the jobs)")
        print(self.stage.hcloud("explain", self.jobs()[len(self.jobs()) // 2]["id"]))

    def judge(self) -> None:
        """Check every promise."""
        headline("checks")
        jobs = self.jobs()
        states = sorted({job["state"] for job in jobs})
        self.checks.that(
            len(jobs) == 14 and states == ["succeeded"], f"all {len(jobs)} jobs succeeded ({', '.join(states)})"
        )
        self.judge_runs(jobs)
        starts = [event for event in self.events("daemon") if event["fields"].get("what") == "started"]
        self.checks.that(len(starts) == 2, f"the daemon was started {len(starts)} times")
        failed = [event["fields"]["text"] for event in self.events("planning_trouble")]
        self.checks.that(not failed, "; ".join(["no plan failed", *failed]))
        met = [event for event in self.events("job_finished") if event["fields"].get("target_met") is False]
        self.checks.that(not met, f"targets met by all batch jobs ({len(met)} missed)")
        self.judge_service(jobs)
        spent = self.status()["daemon"]["daemon"]["spend"]["day_usd"]
        self.checks.that(0 < spent < 1, f"${spent:.4f} spent (nominal prices) of a budget of $1")

    def judge_runs(self, jobs: Sequence[dict[str, Any]]) -> None:
        """No job was lost and none ran twice, told by three witnesses that do not know of each other."""
        attempts = sum(job["attempts_made"] for job in jobs)
        self.checks.that(attempts == len(jobs), f"the store tells of {attempts} attempts for {len(jobs)} jobs")
        units = sum(len(each) for each in self.units_seen.values())
        known = len(self.units_seen) == len(jobs)
        self.checks.that(
            known and units == len(jobs),
            f"on the machines' disks there were {units} units of {len(self.units_seen)} jobs",
        )
        lines = [line for job in jobs for line in self.output(job) if line.startswith("run-log:")]
        ones = sum(line.startswith("run-log: start 1 of") for line in lines)
        self.checks.that(
            len(lines) == ones == len(jobs),
            f"the programs' own run logs tell of {ones} starts, {len(lines) - ones} repeated",
        )

    def judge_service(self, jobs: Sequence[dict[str, Any]]) -> None:
        """The p99 that HCloud measured, against the target and against what the clients saw."""
        (service,) = (job for job in jobs if job["spec"]["name"] == "service")
        samples = [event["fields"] for event in self.events("sample") if event["job_id"] == service["id"]]
        measured_ms = [sample["latency_ms_p99"] for sample in samples if "latency_ms_p99" in sample]
        rates = [sample["requests_per_s"] for sample in samples if sample.get("requests_per_s")]
        target = service["spec"]["target"]
        (seen,) = (json.loads(line.partition(":")[2]) for line in self.output(service) if line.startswith("clients:"))
        self.checks.that(len(measured_ms) >= 5, f"the service's p99 was measured {len(measured_ms)} times")
        self.checks.that(
            0 < middle(measured_ms) <= target["latency_ms"],
            f"median p99 {middle(measured_ms):.1f} ms at {middle(rates):.0f} requests/s; "
            f"promised: {target['latency_ms']:g} ms at {target['requests_per_s']:g} requests/s",
        )
        print(f"       over the whole run its clients saw {seen['requests']} answers, {seen['latency_ms']} ms")

    def close(self) -> None:
        """Let the planner give the machines back, stop, and prove that nothing is left."""
        headline("shut down")
        self.watch(lambda status: not live_instances(status))
        for name in ("daemon", "engine"):
            code = self.stage.stop(name)
            self.checks.that(code == 0, f"{name} stopped on request with {code}")
        holds_within(lambda: not any(self.stage.left_behind().values()), STILL_ENDING_S, POLL_S)
        for what, found in self.stage.left_behind().items():
            self.checks.that(not found, f"no {what} left{': ' + ', '.join(found) if found else ''}")

    # --------------------------------------------------------------------------------------------------------- looking
    def status(self) -> dict[str, Any]:
        """What `hcloud status` knows."""
        found: dict[str, Any] = json.loads(self.stage.hcloud("status", "-o", "json"))
        return found

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs, oldest first."""
        found: list[dict[str, Any]] = json.loads(self.stage.hcloud("queue", "-o", "json"))
        return sorted(found, key=lambda job: int(job["id"].partition("-")[2]))

    def events(self, kind: str) -> list[dict[str, Any]]:
        """All events of one kind."""
        found: list[dict[str, Any]] = json.loads(
            self.stage.hcloud("events", "--kind", kind, "-n", "10000", "-o", "json")
        )
        return found

    def output(self, job: dict[str, Any]) -> list[str]:
        """Lines a job printed."""
        return self.stage.hcloud("logs", job["id"]).splitlines()

    def look_at_units(self) -> set[str]:
        """Units running now, read from the machines' disks; every unit ever seen is remembered."""
        self.stage.note_machines()
        running = set()
        machines = "providers/local/instances/*/machine"
        # A unit that has ended, and been noted, leaves its name only.
        for path in self.stage.home.glob(f"{machines}/forgotten/job-*"):
            self.units_seen.setdefault(path.name.split(".")[0], set()).add(path.name)
        for path in self.stage.home.glob(f"{machines}/units/job-*"):
            self.units_seen.setdefault(path.name.split(".")[0], set()).add(path.name)
            if not (path / "exit.json").exists():
                running.add(path.name)
        return running


def middle(values: Sequence[float]) -> float:
    """The median, 0 for nothing."""
    return sorted(values)[len(values) // 2] if values else 0.0


def live_instances(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Machines that are not gone."""
    return [each for each in status["instances"] if each["state"] != "terminated"]


def job_counts(status: dict[str, Any]) -> dict[str, int]:
    """Number of jobs in each state that has any."""
    return {state: number for state, number in status["daemon"]["jobs"].items() if number}


def describe(status: dict[str, Any]) -> str:
    """One line of status."""
    jobs = ", ".join(f"{number} {state.replace('_', ' ')}" for state, number in sorted(job_counts(status).items()))
    spent = status["daemon"]["daemon"]["spend"]["day_usd"]
    now = status["daemon"]["price_usd_per_h"]
    return f"{jobs}; {len(live_instances(status))} machines at ${now:.4f}/h, ${spent:.5f} spent"


def half_way(status: dict[str, Any]) -> bool:
    """Whether some jobs have ended and some run (or it is too late for that)."""
    counts = job_counts(status)
    return all_ended(status) or (counts.get("succeeded", 0) >= 4 and counts.get("running", 0) >= 2)


def all_ended(status: dict[str, Any]) -> bool:
    """Whether no job is on its way any more."""
    return set(job_counts(status)) <= {"succeeded", "failed", "cancelled"}


def play(stage: Stage) -> list[str]:
    """Run all acts; return the checks that failed."""
    demo = Demo(stage)
    demo.open()
    demo.submit()
    headline("watch")
    demo.watch(half_way)
    demo.kill_daemon()
    demo.watch(all_ended)
    demo.report()
    demo.explain()
    demo.judge()
    demo.close()
    print(f"\n{demo.elapsed_s():.0f} s in all")
    return demo.checks.failed


def main() -> int:
    """Play, and take everything down whatever happens."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    home = Path(tempfile.mkdtemp(prefix="hcloud-demo-"))
    stage = Stage(home)
    failed = ["the demo did not come to its end"]
    try:
        failed = play(stage)
    finally:
        stage.take_down()
        if failed:
            print(f"\nFAILED: {'; '.join(failed)}\nlogs are in {home}", file=sys.stderr)
        else:
            shutil.rmtree(home)
            print("all is well; nothing is left running")
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "150")
    sys.exit(main())
