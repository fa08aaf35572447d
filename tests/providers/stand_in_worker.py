"""In place of the HCloud worker: starts one detached process (a "unit") once, and waits to be killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

orders = json.loads(Path(sys.argv[sys.argv.index("--bootstrap") + 1]).read_text())
home = Path(orders["state_dir"])
(home / "environment.json").write_text(json.dumps(dict(os.environ)))
(home / "cpus.json").write_text(json.dumps(sorted(os.sched_getaffinity(0))))
if not (home / "unit.pid").exists():
    # As units are: a session of its own, and (by the double fork of the shell) no child of ours.
    script = f"sleep 1000 & echo $! > {home}/unit.draft; mv {home}/unit.draft {home}/unit.pid"
    subprocess.run(["setsid", "sh", "-c", script], check=True, env={"PATH": os.environ["PATH"]})
(home / "worker.draft").write_text(str(os.getpid()))
(home / "worker.draft").rename(home / "worker.pid")
signal.pause()
