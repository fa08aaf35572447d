"""What runs on a rented machine: the worker, with the profiler that it measures units with.

``python -m hcloud.agent worker --bootstrap FILE [--end]`` needs neither the command line's packages nor those of
classification; ``hcloud.engine.bundle`` packs what it imports. ``check`` loads all of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hcloud import __version__
from hcloud.core.errors import HCloudError
from hcloud.core.estimates import Findings
from hcloud.engine import worker
from hcloud.engine.host import EngineHost
from hcloud.provider import UnitSpec


def run_worker(bootstrap: Path, *, end: bool = False) -> int:
    """Run an instance's worker until SIGTERM or its machine's end, and return the exit code.

    ``end``: run nothing; kill all units of the instance and clean up after them. Raises ConfigError: the bootstrap
    file is not right.
    """
    if end:
        worker.end_units(bootstrap)
        return 0
    return worker.serve(bootstrap, profile=profile_unit)


def profile_unit(spec: UnitSpec, workdir: Path, host: EngineHost, tell: Callable[[Findings], None]) -> Findings:
    """Measure what a unit would run: the bridge between the engine and the profiler, which do not know each other."""
    # Only the process that measures needs the profiler.
    from hcloud.profiler.in_place import measure_in_place
    from hcloud.profiler.measure import Subject, measure
    from hcloud.profiler.reference_runs import measure_reference

    assert spec.profile is not None
    subject = Subject(
        name=spec.id,
        command=spec.command,
        workdir=workdir,
        env=spec.env,
        network=spec.network == "host",
        progress=spec.progress,
        metrics=spec.metrics,
        memory_mib=spec.resources.memory_mib,
        disk_mib=max(1, int(spec.resources.disk_gib * 1024)),
        stateful=spec.profile.warm_up_s > 0,
        warm_up_s=spec.profile.warm_up_s,
        promised_ms=spec.profile.promised_ms,
    )
    if host.running is not None:
        return measure_in_place(spec.profile, subject, host, report=tell)
    return (measure if spec.profile.job_id else measure_reference)(spec.profile, subject, host, report=tell)


def check() -> int:
    """Load all that an agent may need, and return the exit code; what is missing is one sentence on standard error.

    A machine that cannot run its agent is found by this while it boots.
    """
    try:
        from hcloud.engine import link
        from hcloud.profiler import in_place, measure, reference_runs
    except ImportError as error:
        print(f"hcloud: {error}", file=sys.stderr)
        return 1
    loaded = (worker, link, in_place, measure, reference_runs)
    print(f"hcloud {__version__}: {len(loaded)} parts can be loaded")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; what is wrong with the input is one sentence and code 2."""
    parser = argparse.ArgumentParser(prog="hcloud", description="HCloud's agent on a rented machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("worker", help="run this instance's worker")
    command.add_argument("--bootstrap", type=Path, required=True, help="the file the provider wrote at launch")
    command.add_argument("--end", action="store_true", help="kill all units of this instance and clean up after them")
    commands.add_parser("check", help="check that the agent's modules can be loaded on this machine")
    given = parser.parse_args(arguments)
    try:
        if given.command == "check":
            return check()
        return run_worker(given.bootstrap, end=given.end)
    except HCloudError as error:
        print(f"hcloud: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
