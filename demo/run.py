"""See HCloud at work, in two acts: real jobs on slices of this machine, and half a simulated day of a hybrid fleet.

Act 1 runs programs that nothing is known of, kills the daemon half-way, profiles copies beside a running job, runs each
program again, and shows what was predicted beside what was measured. Act 2 compares the former simple rules with the
default policy on the same simulated load, in dollars and met targets, and draws it.

Run as ``make demo`` or ``.venv/bin/python demo/run.py``, as root or as an ordinary user. Ends with 0 only if every
check at the end holds. Everything happens in a temporary directory and on loopback addresses; nothing is left behind
but the picture of act 2.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fleet
import rounds
from stage import DEMO, Stage

from hcloud.core.clock import holds_within
from hcloud.core.errors import BadInput

TIME_LIMIT_S = 220
POLL_S = 1.0
DEAD_S = 4.0
STILL_ENDING_S = 20.0
REPORTS = ("cost", "--by", "market"), ("cost", "--by", "tag:kind"), ("performance", "--by", "job"), ("savings",)
PICTURE = DEMO.parent / "build" / "demo-fleet-day.svg"
LOCK = Path(tempfile.gettempdir()) / f"hcloud-demo-{os.getuid()}.lock"
FIRST, SECOND = 14, 5
"""Jobs of the two rounds."""
LEAST_PREDICTED = 3
"""Programs of round 2 whose run time must have been predicted; a run of a second may end without a reading."""


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
        self.stage.start("daemon")
        self.stage.until_daemon_answers(90)
        (facts,) = (provider["facts"] for provider in self.status()["daemon"]["daemon"]["providers"].values())
        for key, text in facts.items():
            print(f"  {key:9} {text}")

    def submit(self) -> None:
        """Submit a service, then batch work; the command shows the priced plan first."""
        headline(
            "act 1, round 1: a service under load and 13 batch jobs, all unknown; each starts as soon as there is room"
        )
        print("  as these programs run for seconds, the demo's policy profiles what is expected to cost as much as the")
        print("  profiling itself (profiling.expected_saving 1); the default profiles only what saves 20 times as much")
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

    def submit_again(self) -> None:
        """Submit one job of each program again."""
        headline("act 1, round 2: one job of each program again, now known; HCloud chooses the vCPUs")
        print(self.stage.hcloud("submit", "-y", "-q", str(DEMO / "again.yaml")))

    def compare(self) -> list[rounds.Learnt]:
        """Show for each program what was learnt, predicted and measured; return it."""
        headline("act 1: what was learnt, and what it was good for")
        rows = json.loads(self.stage.hcloud("report", "cost", "--by", "job", "-o", "json"))["rows"]
        facts = rounds.Facts(
            jobs=self.jobs(),
            predictions=self.events("prediction"),
            profiled=self.events("job_profiled"),
            classified=self.events("job_classified"),
            types={each["instance_id"]: each["fields"]["type"] for each in self.events("instance_requested")},
            cost_usd={each["job"]: each["cost_usd"] for each in rows if each["job"]},
        )
        found = list(rounds.rounds(facts))
        for line in rounds.table(found):
            print(f"  {line}")
        inside, predicted = (
            sum(found) for found in ([e.is_within for e in found], [bool(e.predicted_s) for e in found])
        )
        print(f"  {inside} of {predicted} run times are within the 80 % limits of their prediction")
        print("  start: after submission; more than a boot (3 s) where this machine had no room for another slice")
        return found

    def report(self) -> None:
        """Show what users see at the end."""
        headline("hcloud status")
        print(self.stage.hcloud("status"))
        for words in REPORTS:
            headline(f"hcloud report {' '.join(words)}")
            print(self.stage.hcloud("report", *words))

    def explain(self) -> None:
        """Show every decision about one job."""
        headline("hcloud explain (the first job of round 2)")
        print(self.stage.hcloud("explain", self.jobs_submitted()[FIRST]["id"]))

    def judge(self, learnt: Sequence[rounds.Learnt]) -> None:
        """Check every promise."""
        headline("checks")
        jobs = self.jobs_submitted()
        states = sorted({job["state"] for job in jobs})
        self.checks.that(
            len(jobs) == FIRST + SECOND and states == ["succeeded"],
            f"all {len(jobs)} jobs succeeded ({', '.join(states)})",
        )
        self.judge_runs(jobs)
        starts = [event for event in self.events("daemon") if event["fields"].get("what") == "started"]
        self.checks.that(len(starts) == 2, f"the daemon was started {len(starts)} times")
        failed = [event["fields"]["text"] for event in self.events("planning_trouble")]
        self.checks.that(not failed, "; ".join(["no plan failed", *failed]))
        met = [event for event in self.events("job_finished") if event["fields"].get("target_met") is False]
        self.checks.that(not met, f"targets met by all batch jobs ({len(met)} missed)")
        self.judge_service(jobs)
        self.judge_knowledge(learnt)
        spent = self.status()["daemon"]["daemon"]["spend"]["day_usd"]
        self.checks.that(0 < spent < 1, f"${spent:.4f} spent (nominal prices) of a budget of $1")

    def judge_runs(self, jobs: Sequence[dict[str, Any]]) -> None:
        """No job was lost and none ran twice, told by three witnesses that do not know of each other."""
        attempts = sum(job["attempts_made"] for job in jobs)
        self.checks.that(attempts == len(jobs), f"the store tells of {attempts} attempts for {len(jobs)} jobs")
        seen = [self.units_seen.get(job["id"], set()) for job in jobs]
        units, with_units = sum(map(len, seen)), sum(map(bool, seen))
        self.checks.that(
            units == with_units == len(jobs), f"on the machines' disks there were {units} units of {with_units} jobs"
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

    def judge_knowledge(self, learnt: Sequence[rounds.Learnt]) -> None:
        """What round 1 taught is there when round 2 is submitted."""
        profiled = [each.program for each in learnt if each.profiles]
        self.checks.that(bool(profiled), f"copies were profiled beside a running job ({', '.join(profiled) or 'none'})")
        known = sum(each.source != "prior" for each in learnt)
        self.checks.that(known == SECOND, f"{known} of {SECOND} programs were known when they were submitted again")
        predicted = sum(each.predicted_s is not None for each in learnt)
        self.checks.that(predicted >= LEAST_PREDICTED, f"the run times of {predicted} of them were predicted")

    def close(self) -> None:
        """Let the planner give the machines back, stop, and prove that nothing is left."""
        headline("shut down")
        self.watch(lambda status: not live_instances(status))
        code = self.stage.stop("daemon")
        self.checks.that(code == 0, f"the daemon stopped on request with {code}")
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

    def jobs_submitted(self) -> list[dict[str, Any]]:
        """The jobs of both rounds, without profiling runs."""
        return [job for job in self.jobs() if not rounds.is_profiling_run(job)]

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


def show_fleet() -> Iterator[str]:
    """Yield the lines of act 2; the picture is written on the way."""
    day = fleet.Day()
    yield f"  {fleet.SCENARIO} load x {day.share:g} over {day.hours:g} h, seed {day.seed}; users guess sizes"
    yield f"  both policies have the same reserved servers ({fleet.reserved(day)}) and rent the rest"
    outcomes = fleet.simulate_both(day)
    yield from (f"  {line}" for line in fleet.table(outcomes))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(fleet.picture(outcomes))
    yield f"  picture: {PICTURE}"


def play(stage: Stage) -> list[str]:
    """Run both acts; return the checks that failed."""
    demo = Demo(stage)
    demo.open()
    demo.submit()
    headline("watch")
    demo.watch(half_way)
    demo.kill_daemon()
    demo.watch(all_ended)
    demo.submit_again()
    demo.watch(all_ended)
    demo.report()
    demo.explain()
    learnt = demo.compare()
    demo.judge(learnt)
    demo.close()
    headline("act 2: half a simulated day of a hybrid fleet, simple rules and the mission (HCloud's default policy)")
    for line in show_fleet():
        print(line, flush=True)
    print(f"\n{demo.elapsed_s():.0f} s in all")
    return demo.checks.failed


@contextmanager
def only_demo(lock: Path = LOCK) -> Iterator[None]:
    """Hold a lock for a block, as two demos would take each other's processors. Raises BadInput if another has it."""
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput("another demo runs on this machine; start this one when it has ended") from None
        yield


def require_programs() -> None:
    """Raise BadInput if a program that the demo needs is missing."""
    if shutil.which("stress-ng") is None:
        raise BadInput("the demo profiles with stress-ng, which is not installed (Debian: apt-get install stress-ng)")


def main() -> int:
    """Play, and take everything down whatever happens."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        require_programs()
        with only_demo():
            return play_in_temporary_home()
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2


def play_in_temporary_home() -> int:
    """Play in a temporary directory, which stays if a check failed; return the exit code."""
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
