"""A program's CPU demand is derived from its CPU time and its time waiting for a CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hcloud.engine.usage import tree_usage
from hcloud.profiler.subject import busy_alone
from tests.machine import needs
from tests.waiting import wait_until

SPIN = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"


@pytest.mark.parametrize(
    ("cpu_s", "waited_s", "vcpus", "busy"),
    [
        (0.99, 0.0, 1.0, 0.99),  # no other work
        (0.5, 0.5, 1.0, 1.0),  # always runnable, other work ran half of the time
        (0.3, 0.4, 1.0, 0.5),  # half of the time it did not wait it was busy
        (0.0, 0.7, 1.0, 0.0),  # it got nothing, so nothing is known
        (1.2, 2.8, 4.0, 4.0),  # four threads that took turns on little more than one CPU
        (1.0, 3.0, 2.0, 2.0),  # four threads on two CPUs want no more than there is
        (0.5, 0.5, 0.5, 0.5),  # with a limit of half a CPU it waits for its own quota
        (0.6, -0.3, 1.0, 0.6),  # a thread that waited has ended
    ],
)
def test_what_others_took_counts_as_wanted(cpu_s: float, waited_s: float, vcpus: float, busy: float) -> None:
    assert busy_alone(cpu_s, waited_s, 1.0, vcpus) == pytest.approx(busy)


@needs(os.path.exists("/proc/self/schedstat"), "this kernel does not tell who waits")
def test_two_programs_on_one_cpu_are_seen_to_wait_for_it() -> None:
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2)]
    try:
        wait_until(lambda: min(tree_usage([each.pid]).waited_s for each in spinning) > 0.05, 60)
    finally:
        for each in spinning:
            each.kill()
            each.wait()
