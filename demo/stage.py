"""What the demo stands on: a temporary deployment, its processes, the command line, the search for leftovers."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from hcloud.core.clock import holds_within
from providers.local.slices import SliceDirectory

DEMO = Path(__file__).resolve().parent
STOP_TIMEOUT_S = 60
COMMAND_TIMEOUT_S = 120


class Stage:
    """One deployment in one directory. Every process started here is ended by ``take_down``."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._machines: set[str] = set()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HCLOUD_")}
        self._environment = {
            **kept,
            "HCLOUD_HOME": str(home),
            "HCLOUD_CONFIG": str(home / "config.yaml"),
            "NO_COLOR": "1",
        }

    # -------------------------------------------------------------------------------------------------------- commands
    def hcloud(self, *words: str) -> str:
        """Run one command; return what it printed, of `submit` also the plan. Raises RuntimeError when it fails."""
        done = self._run(*words)
        if done.returncode != 0:
            raise RuntimeError(f"hcloud {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        plan = done.stderr if words[0] == "submit" else ""
        return (plan + done.stdout).rstrip()

    def exit_code(self, *words: str) -> int:
        """Run one command and return its exit code."""
        return self._run(*words).returncode

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hcloud.cli.main", *words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    # --------------------------------------------------------------------------------------------------------- set up
    def init(self, policy: Path = DEMO / "policy.yaml") -> None:
        """Make a deployment as a new user would; only ports and policy are set."""
        require_python()
        self.hcloud("init", "--home", str(self.home))
        shutil.copy(policy, self.home / "policies" / "demo.yaml")
        self._set("policy", "policies/demo.yaml")
        self._set("  listen", f"127.0.0.1:{free_port()}")
        print(f"  {self.home}: configuration, keys of its own, policy 'demo'")

    def _set(self, key: str, value: str) -> None:
        path = self.home / "config.yaml"
        text, changed = re.subn(rf"^{key}: .*$", f"{key}: {value}", path.read_text(), count=1, flags=re.MULTILINE)
        if not changed:
            raise RuntimeError(f"{path} has no line '{key}:'")
        path.write_text(text)

    # ------------------------------------------------------------------------------------------------------- processes
    def start(self, name: str) -> None:
        """Start ``hcloud daemon`` in a session of its own."""
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "hcloud.cli.main", name],
                env=self._environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        print(f"  hcloud {name} runs as process {self._processes[name].pid}")

    def until_daemon_answers(self, timeout_s: float) -> None:
        """Wait for the daemon to serve its socket. Raises RuntimeError with its log."""
        daemon = self._processes["daemon"]
        over = holds_within(lambda: self.exit_code("status") == 0 or daemon.poll() is not None, timeout_s, every_s=0.2)
        if not over or daemon.poll() is not None:
            raise RuntimeError(f"the daemon does not answer:\n{(self.home / 'daemon.log').read_text()[-2000:]}")

    def kill(self, name: str) -> None:
        """Send KILL, and wait for the end."""
        self._processes[name].kill()
        self._processes.pop(name).wait()

    def stop(self, name: str) -> int:
        """Send TERM, as systemd does, and return the exit code."""
        process = self._processes.pop(name)
        process.terminate()
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def take_down(self) -> None:
        """End every process of the deployment, whatever state it is in."""
        for name in list(self._processes):
            self.kill(name)
        for path in self.home.glob("providers/local/instances/local-*"):
            SliceDirectory(path).power_off(reason="the demo is over", at=0.0)

    # ------------------------------------------------------------------------------------------------------- leftovers
    def note_machines(self) -> None:
        """Remember what the present machines' firewall tables are called: by device and inode of their directory."""
        for path in self.home.glob("providers/local/instances/local-*/machine"):
            with contextlib.suppress(FileNotFoundError):  # given back meanwhile
                place = path.stat()
                self._machines.add(f"{place.st_dev:x}_{place.st_ino:x}")

    def left_behind(self) -> dict[str, list[str]]:
        """Look for everything the deployment could have left, by kind."""
        slices = [path.name for path in self.home.glob("providers/local/instances/local-*")]
        groups = [path for name in slices for path in Path("/sys/fs/cgroup").glob(f"*/hcloud/{name}")]
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if str(self.home) in line]
        tables = [table for table in firewall_tables() if table.endswith(tuple(self._machines))]
        return {
            "processes": self._processes_left(),
            "control groups": [str(path) for path in groups],
            "mounts": mounts,
            "firewall tables": tables,
        }

    def _processes_left(self) -> list[str]:
        """Processes that carry the deployment's directory in their environment or on their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):  # ended meanwhile, or not ours to read
                    line = (entry / "cmdline").read_bytes()
                    if str(self.home).encode() in line + (entry / "environ").read_bytes():
                        found.append(f"{entry.name} {line.replace(bytes(1), b' ').decode()}")
        return found


def firewall_tables() -> list[str]:
    """Names of all firewall tables; none where they cannot be read (then none could be made either)."""
    nft = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if nft is None or os.geteuid() != 0:
        return []
    listed = subprocess.run([nft, "list", "tables"], capture_output=True, text=True, check=False).stdout
    return [line.split()[-1] for line in listed.splitlines()]


def require_python() -> None:
    """Refuse early where jobs would find no Python: in their sandbox they see the system's programs only."""
    places = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    found = shutil.which("python3", path=places)
    if found is None:
        sys.exit(
            "the demo's jobs need a python3 in /usr/bin or /usr/local/bin (Debian: apt-get install python3-minimal)"
        )


def free_port() -> int:
    """A port nobody listens on: above the range for workers, below those that any client may be given meanwhile."""
    for port in range(10_000 + os.getpid() % 10_000, 30_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port of 10000 to 29999 is free on this machine")
