"""``python -m bench.preemption_storm``: jobs with checkpoints on spot machines of ``local`` that are taken back all the
time, each announced before. Says how many finish, and how much of their work is done twice."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
from pathlib import Path

from bench.rows import machine
from demo.stage import Stage
from hcloud.config import package_data
from hcloud.core.clock import SystemClock

LOOP = """
done=$(cat state/done 2>/dev/null || echo 0)
mkdir -p state
while [ $done -lt {steps} ]; do
    sleep 0.5
    done=$((done + 1))
    echo step $done
    echo $done > state/.done
    mv state/.done state/done
done
"""
FINISHED = ("succeeded", "failed", "cancelled")


def take_back(stage: Stage, after_s: float, notice_s: float, over: threading.Event) -> None:
    """Announce to each machine that it is taken back, ``after_s`` after it was made."""
    announced, clock = set[Path](), SystemClock()
    while not over.wait(0.5):
        for folder in stage.home.glob("providers/local/instances/local-*"):
            started = folder / "supervisor.json"
            if folder not in announced and started.exists() and clock.now() - started.stat().st_mtime >= after_s:
                (folder / "preempt").write_text(f"{notice_s:g}")
                announced.add(folder)


def main() -> int:
    """Run the storm; 1: a job did not finish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--run", type=float, default=600.0, help="seconds of work of each job")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between checkpoints")
    parser.add_argument("--preempt", type=float, default=60.0, help="seconds after which each machine is taken back")
    parser.add_argument("--notice", type=float, default=30.0, help="seconds of notice before it is")
    options = parser.parse_args()
    steps = int(2 * options.run)
    folder = Path(tempfile.mkdtemp(prefix="hcloud-storm-"))
    stage, over = Stage(folder / "home"), threading.Event()
    print(machine())
    try:
        stage.init(package_data.path("policies") / "default.yaml")
        stage.start("daemon")
        stage.until_daemon_answers(60.0)
        job = {
            "name": "storm",
            "command": LOOP.format(steps=steps),
            "checkpoint": {"path": "state", "every": options.every},
            "resources": {"vcpus": 0.25, "memory": "64MiB"},
            "retries": {"preempted": 1000, "evicted": 1000, "instance_lost": 1000},
        }
        (folder / "job.json").write_text(json.dumps(job))
        storm = threading.Thread(target=take_back, args=(stage, options.preempt, options.notice, over), daemon=True)
        storm.start()
        names = [stage.hcloud("submit", "-y", "-q", str(folder / "job.json")).split()[0] for _ in range(options.jobs)]
        finished, did, attempts = 0, 0, 0
        for name in names:
            while True:
                row = {each["id"]: each for each in json.loads(stage.hcloud("queue", "-o", "json"))}[name]
                if row["state"] in FINISHED:
                    break
                over.wait(2.0)
            finished += row["state"] == "succeeded"
            made = int(row["attempts_made"])
            attempts += made
            for attempt in range(1, made + 1):
                did += stage.hcloud("logs", name, "--attempt", str(attempt)).count("step ")
        work = options.jobs * steps
        print(f"{finished} of {options.jobs} jobs finished in {attempts} attempts; {did} steps for {work}")
        print(f"done twice: {100.0 * (did - work) / work:.1f} %")
        return 0 if finished == options.jobs else 1
    finally:
        over.set()
        stage.take_down()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
