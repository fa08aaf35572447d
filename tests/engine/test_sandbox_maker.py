"""Sandboxes that keepers make themselves: a job finds what it finds in one of bubblewrap, and nothing more."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from hcloud.core.model import FailureCause
from hcloud.engine.prepared_roots import PreparedRoots
from hcloud.engine.sandbox_plan import SandboxMaker, SandboxPlan
from hcloud.engine.usage import descendants
from hcloud.provider import ExitRecord
from tests.engine.alone import run_alone
from tests.engine.site import Machine, Watch, new_unit_id
from tests.engine.test_idle_keepers import run, spec_of
from tests.machine import needs_bwrap, needs_cgroups_v1, needs_root
from tests.waiting import wait_until

FOUND = r"""
id; umask; ulimit -a; pwd; hostname; env | grep -v -e ^HCLOUD_UNIT -e ^HCLOUD_ATTEMPT | sort
cut -d" " -f5- /proc/self/mountinfo | sed "s# - .*##" | grep -v -e ^/proc/sys -e ^/dev/shm | sort
grep -E "^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Sig)" /proc/self/status
ls -l /dev | tr -s " " | cut -d" " -f1-6,10-; stat -c "%A %U" /dev/shm /dev/pts /proc /tmp ~ .; ls /proc/self/fd
for name in cgroup ipc mnt net pid uts; do
    test "$(readlink /proc/self/ns/$name)" = "$(echo "$OUTSIDE" | grep ^$name:)" && echo "shares $name"
done
touch /usr/x /x /dev/x /etc/x /sys/x; echo 1 >/proc/sysrq-trigger; kill -9 1; cat /proc/1/environ /proc/1/maps
python3 -c 'import multiprocessing; multiprocessing.Lock(); print("semaphores")'
printf "echo no interpreter is named" >plain; chmod +x plain; ./plain; touch closed; ./closed
python3 -c 'import ctypes, os; l = ctypes.CDLL(None, use_errno=True); print(l.ptrace(16, 1, 0, 0), ctypes.get_errno())'
"""


@needs_root
@needs_bwrap
@needs_cgroups_v1
def test_job_finds_the_same_in_a_sandbox_of_a_keeper_and_in_one_of_bwrap() -> None:
    outside = "\n".join(os.readlink(each) for each in Path("/proc/self/ns").iterdir())
    found = []
    for without in ((), ("maker",)):
        with tempfile.TemporaryDirectory(prefix="made-") as folder:
            Path(folder).chmod(0o711)
            env = {"OUTSIDE": outside, "QUOTED": 'it\'s "$HOME"\n', "PATH": "/job:/usr/bin:/bin"}
            outcome = run_alone(Path(folder), FOUND, without=without, env=env)
            found.append((outcome.stdout, "kill" in outcome.stderr, outcome.exit["exit_code"]))
    assert found[0][0] == found[1][0]
    said = found[0][0]
    assert "CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n" in said
    assert "uid=62000(job) gid=62000(job) groups=62000(job)\n" in said and "shares" not in said
    assert "semaphores\nno interpreter is named\n-1 1\n" in said


@pytest.mark.parametrize(
    ("command", "code", "cause", "said"),
    [
        (("./closed",), 126, FailureCause.EXIT_CODE, "Permission denied"),
        (("no-such",), 127, FailureCause.START_REFUSED, "there is no command no-such"),
        (("/job",), 126, FailureCause.EXIT_CODE, "Permission denied"),
    ],
)
@needs_root
@needs_bwrap
@needs_cgroups_v1
def test_command_that_cannot_be_run_is_said(
    tmp_path: Path, command: tuple[str, ...], code: int, cause: FailureCause, said: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="made-") as folder:
        Path(folder).chmod(0o711)
        outcome = run_alone(Path(folder), command, setup="touch closed")
    assert (outcome.exit["exit_code"], outcome.exit["cause"]) == (code, cause.value)
    assert said in outcome.stderr


def makers(keeper: int) -> set[int]:
    """Return the processes that make sandboxes for a keeper."""
    below = descendants(keeper, depth=1)
    return {pid for pid in below if b"sandbox_maker" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def kept_with_maker(watch: Watch, machine: Machine, code: str = "pass") -> tuple[int, ExitRecord]:
    """Run units until one was kept by a process with a maker; return that process and how the unit ended."""

    def found() -> tuple[int, ExitRecord] | None:
        pid, record = run(watch, machine, code)
        return (pid, record) if makers(pid) else None

    answer = wait_until(found, timeout_s=60)
    assert answer is not None
    return answer


@needs_bwrap
@needs_cgroups_v1
def test_keeper_whose_maker_is_killed_goes_on_without(watch: Watch, machine: Machine) -> None:
    keeper, record = kept_with_maker(watch, machine, "import sys; sys.exit(5)")
    assert (record.exit_code, record.cause) == (5, FailureCause.EXIT_CODE)
    (maker,) = makers(keeper)
    os.kill(maker, signal.SIGKILL)
    _, record = run(watch, machine, "print('still')")
    assert (record.exit_code, record.cause) == (0, None)


@needs_bwrap
@needs_cgroups_v1
def test_maker_ends_while_a_unit_runs_for_long(watch: Watch, machine: Machine) -> None:
    kept_with_maker(watch, machine)
    unit = spec_of(new_unit_id(), command=("sleep", "600"))
    watch.runner.start([unit])
    watch.running(unit)
    keeper = machine.keeper(unit.id)
    wait_until(lambda: len(descendants(keeper)) == 2, timeout_s=60)  # the first process inside, the command
    watch.runner.stop({unit.id: unit.instance_id}, cause=None)
    assert watch.ended(unit).detail == "stopped on request"
    assert run(watch, machine, "pass")[1].exit_code == 0


@needs_root
@needs_bwrap
def test_sandbox_and_maker_end_with_the_keeper_alone_killed(tmp_path: Path) -> None:
    for name in ("job", "home", "tmp"):
        (tmp_path / name).mkdir()
    reader, writer = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.umask(0o077)
        maker = SandboxMaker(filters_calls=True)
        plan = SandboxPlan(
            root=PreparedRoots(tmp_path).root(62000), files=tmp_path, uid=62000, has_own_network=True, groups=(),
            file_bytes=1 << 30, command=("sh", "-c", "umask; exec sleep 600"), environment={"PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        maker.start(plan, (writer, writer), writer)
        signal.pause()
    try:
        umask, below = os.read(reader, 100), descendants(keeper)
    finally:
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)
    assert (umask, len(below)) == (b"0022\n", 3)  # the maker, the first process inside, the command
    wait_until(lambda: not any(Path(f"/proc/{pid}/status").exists() for pid in below), timeout_s=60)
