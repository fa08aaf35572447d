"""What a unit's samples say of the machine that it runs on."""

import os
import subprocess
from pathlib import Path

from tests.engine.alone import run_alone
from tests.machine import needs_root

ENDLESS = "while :; do :; done"


@needs_root
def test_samples_of_a_unit_say_how_much_of_its_promised_cpu_time_the_host_gave_to_others(tmp_path: Path) -> None:
    others = [
        subprocess.Popen(["/bin/sh", "-c", ENDLESS], start_new_session=True) for _ in range(3 * (os.cpu_count() or 1))
    ]
    try:
        outcome = run_alone(tmp_path, f"timeout 3 sh -c '{ENDLESS}'; true")
    finally:
        for each in others:
            each.kill()
            each.wait()
    # A look at 0.5 s, one 2 s later: meanwhile at least three others wanted each CPU.
    assert outcome.sample["taken_s"] > 0.2 * outcome.sample["cpu_s"]
