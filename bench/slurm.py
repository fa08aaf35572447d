"""Slurm of Debian's packages on this machine, as quick as it can be configured, for the time of a measurement.

It has as many CPUs as are asked for, whatever the machine has: its scheduler starts few jobs at once, but often waits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engine.site import free_port
from tests.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
PATIENCE_S = 60.0
_PLACES = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_CONFIGURATION = """
ClusterName=bench
SlurmctldHost=localhost
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MaxArraySize=100001
MaxJobCount=100001
ReturnToService=2
NodeName=localhost CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def missing_programs() -> list[str]:
    """Return what is missing of Slurm and its authentication: programs, or ``root``, which this user is not."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_PLACES) is None]
    return missing if os.geteuid() == 0 else [*missing, "root"]


@contextmanager
def slurm(cpus: int) -> Iterator[dict[str, str]]:
    """Run a controller and one node with ``cpus`` CPUs; enter with the environment that its commands need."""
    with tempfile.TemporaryDirectory(prefix="hcloud-slurm-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        for name in ("state", "spool", "munge"):
            (folder / name).mkdir(mode=0o755)
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        settings = folder / "slurm.conf"
        ports = {"controller_port": free_port(), "node_port": free_port()}
        settings.write_text(_CONFIGURATION.format(folder=folder, cpus=cpus, **ports))
        environment = {**os.environ, "PATH": _PLACES, "SLURM_CONF": str(settings)}
        munge = [f"--{name}={folder}/munge/{name.partition('-')[0]}" for name in
                 ("socket", "key-file", "pid-file", "log-file", "seed-file")]  # fmt: skip
        commands = (
            ["munged", "--foreground", "--force", *munge],
            ["slurmctld", "-D", "-c", "-f", str(settings)],
            ["slurmd", "-D", "-f", str(settings), "-N", "localhost"],
        )
        started = list[subprocess.Popen[bytes]]()
        try:
            for command in commands:
                with (folder / f"{command[0]}.out").open("wb") as out:
                    started.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
            wait_until(lambda: _is_idle(environment), PATIENCE_S, interval_s=0.2)
            yield environment
        finally:
            for each in reversed(started):
                each.terminate()
                each.wait()


def _is_idle(environment: dict[str, str]) -> bool:
    shown = subprocess.run(["sinfo", "--noheader", "--format", "%T"], env=environment, capture_output=True, text=True)
    return shown.stdout.strip() == "idle"
