"""How much processor time short commands take: what a shell prompt or a script that polls pays."""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.rows import Row
from tests.daemon.home import Home

RUNS = 7


def run() -> Iterator[Row]:
    """Measure commands against a daemon on the mock cloud with one job."""
    with tempfile.TemporaryDirectory(prefix="hcloud-bench-") as made:
        home = Home(Path(made))
        home.set_up()
        daemon = home.daemon()
        try:
            home.run("submit", "-q", "--", "sleep", "3600")
            for words, target in ((("status",), 0.15), (("queue",), 0.15), (("version",), None)):
                yield Row(
                    name=f"hcloud {' '.join(words)}, CPU time", value=_cpu_s(home, words), unit="s", target=target
                )
        finally:
            daemon.kill()
            daemon.wait()


def _cpu_s(home: Home, words: tuple[str, ...]) -> float:
    """Return the median CPU time of the installed program, in seconds."""
    program = Path(sys.executable).parent / "hcloud"
    taken = list[float]()
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment = {**os.environ, **home.environment}
        subprocess.run([program, *words], env=environment, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return sorted(taken)[RUNS // 2]
