"""Jobs that try to get at what is not theirs, and jobs that try to take the machine down."""

import os
import platform
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hcloud.core.processes import reap
from hcloud.engine.sandbox import working_bwrap
from hcloud.engine.unit import Unit
from tests.engine.alone import METADATA, SECRET, Outcome, run_alone
from tests.machine import ROOT, needs_bwrap, needs_root, needs_two_cpus
from tests.waiting import wait_until

NOBODY = 65534
KINDS: dict[str, dict[str, object]] = {
    "root": {},
    "root_without_cgroup": {"without": ("cgroup",)},
    "root_without_sandbox": {"without": ("bwrap",)},
    "root_with_nothing": {"without": ("bwrap", "cgroup")},
    "ordinary_user": {"uid": NOBODY},
    "ordinary_user_without_sandbox": {"uid": NOBODY, "without": ("bwrap",)},
}
"""Ways in which units are kept, by what the machine offers. As an ordinary user, only that user's are shown."""
if not ROOT:
    KINDS = {name: {**how, "uid": 0} for name, how in KINDS.items() if name.startswith("ordinary")}
SANDBOXED = [name for name in KINDS if name in ("root", "root_without_cgroup", "ordinary_user")]
FETCH = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://%s\", timeout=30).read())'"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that every user may pass through (pytest's own are closed again by the next pytest that begins)."""
    with tempfile.TemporaryDirectory(prefix="isolated-") as name:
        place = Path(name)
        place.chmod(0o711)
        yield place


@pytest.mark.parametrize("how_it_ends", ["exit 0", "kill -9 $$"])
def test_looking_for_bwrap_leaves_no_process(folder: Path, monkeypatch: pytest.MonkeyPatch, how_it_ends: str) -> None:
    for name, script in {"bwrap": f"sleep 1000 & echo $! > {folder}/inner; {how_it_ends}", "setpriv": "exit 0"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    found = working_bwrap(root=ROOT)
    assert found == (str(folder / "bwrap") if how_it_ends == "exit 0" else None)
    inner = Path(f"/proc/{(folder / 'inner').read_text().strip()}/cmdline")
    wait_until(lambda: not inner.exists() or not inner.read_bytes(), timeout_s=60)  # a zombie has no command line


@needs_two_cpus
def test_without_control_groups_each_process_is_pinned(folder: Path) -> None:
    here = "grep -q 'Cpus_allowed_list:.1$' /proc/self/status"
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(run_alone, folder, f"until {here}; do sleep 0.1; done", without=("cgroup",), cpus=(0,))
        (started,) = wait_until(lambda: list(folder.glob("machine/units/*/started.json")), timeout_s=60)
        Unit(started.parent).take_bounds_of(1, (1,))
        assert run.result().exit["exit_code"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_job_inherits_no_descriptor_but_its_standard_streams(folder: Path, kind: str) -> None:
    found = run(folder, kind, "exec python3 -Sc 'import os; print(sorted(map(int, os.listdir(\"/proc/self/fd\"))))'")
    assert found.stdout == "[0, 1, 2, 3]\n"  # the last one is the listing's own


@needs_root
@needs_bwrap
def test_job_of_a_root_agent_has_shared_memory_of_its_own(folder: Path) -> None:
    found = run(
        folder, "root", "ls -A /dev/shm; exec python3 -c 'import multiprocessing; multiprocessing.Lock(); print(1)'"
    )
    assert found.stdout == "1\n"


def run(folder: Path, kind: str, command: str, **changes: object) -> Outcome:
    return run_alone(folder, command, **{**KINDS[kind], **changes})  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------- what is not theirs
@needs_bwrap
@pytest.mark.parametrize("kind", SANDBOXED)
def test_sandboxed_job_sees_neither_keys_nor_state_nor_other_processes(folder: Path, kind: str) -> None:
    found = run(folder, kind, f"cat {folder}/machine/tls/agent.key; ls {folder} /root /run; echo pids: /proc/[0-9]*")
    assert SECRET not in found.stdout
    assert found.stdout.startswith("pids:") and len(found.stdout.split()) <= 5
    assert found.exit["exit_code"] == 0


@needs_root
def test_unsandboxed_job_under_another_user_cannot_read_keys(folder: Path) -> None:
    found = run(folder, "root_with_nothing", f"cat {folder}/machine/tls/agent.key; id -u")
    assert found.stdout.strip() == "62000"
    assert "Permission denied" in found.stderr


@needs_root
@pytest.mark.parametrize("target", [METADATA, "127.0.0.1:18786"])
@pytest.mark.parametrize("network", ["none", "host"])
def test_job_reaches_neither_metadata_nor_engine(folder: Path, network: str, target: str) -> None:
    found = run(folder, "root", FETCH % target, metadata=True, network=network)
    assert SECRET not in found.stdout
    assert "refused" in found.stderr or "unreachable" in found.stderr, found.stderr
    assert found.exit["cause"] == "exit_code"


@needs_root
def test_fault_without_firewall_a_job_on_the_host_network_would_reach_metadata(folder: Path) -> None:
    """Shows that the test above can fail: the false metadata service does answer."""
    found = run(folder, "root", FETCH % METADATA, metadata=True, network="host", without=("firewall",))
    assert SECRET in found.stdout


@needs_bwrap
@pytest.mark.parametrize("kind", SANDBOXED)
def test_sandboxed_job_has_a_loopback_of_its_own(folder: Path, kind: str) -> None:
    found = run(folder, kind, "cat /proc/net/dev | grep -c : ; hostname; id -un; touch /tmp/x ~/y z && echo written")
    assert found.stdout.split() == ["1", "unit", "job", "written"]


@needs_root
def test_setuid_programs_give_a_job_nothing(folder: Path) -> None:
    found = run(folder, "root", "grep -E 'Cap(Eff|Bnd)|NoNewPrivs' /proc/self/status")
    assert found.stdout.split() == ["CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]


TRIES = """
import ctypes, os, sys, threading
call = ctypes.CDLL(None, use_errno=True).syscall
for number in map(int, sys.argv[1:]):
    print(call(number, 0x10000000, 0, 0, 0, 0) >= 0 or os.strerror(ctypes.get_errno()))
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
print(os.popen("echo child").read(), sorted(os.listdir("/proc/self/fd"))[:4])
"""
UNSHARE, KEYCTL, IO_URING_SETUP = (272, 250, 425) if platform.machine() == "x86_64" else (97, 219, 425)


@needs_bwrap
@pytest.mark.parametrize("kind", SANDBOXED)
def test_sandboxed_job_makes_no_namespaces_and_no_calls_that_have_led_to_root(folder: Path, kind: str) -> None:
    command = f"unshare -Ur id -u; python3 -c '{TRIES}' {UNSHARE} {KEYCTL} {IO_URING_SETUP}"
    found = run(folder, kind, command)
    assert "Operation not permitted" in found.stderr
    refused, unknown = "Operation not permitted", "Function not implemented"
    assert found.stdout.splitlines() == [refused, refused, unknown, "thread", "child", " ['0', '1', '2', '3']"]


@needs_root
@needs_bwrap
def test_fault_without_its_filter_a_job_would_be_root_of_a_namespace(folder: Path) -> None:
    found = run(folder, "root", "unshare -Ur id -u", without=("filters_calls",))
    assert found.stdout == "0\n"


def test_required_isolation_refuses_what_it_cannot_keep(folder: Path) -> None:
    kind = "root" if ROOT else "ordinary_user"
    bare = run(folder, kind, "true", without=("bwrap",), mode="require")
    assert "isolation is required" in bare.refused or "sandbox" in bare.refused


def test_required_isolation_refuses_an_unguarded_host_network(folder: Path) -> None:
    found = run(folder, "ordinary_user", "true", mode="require", network="host")
    assert "network 'host' is refused" in found.refused and "only root" in found.refused


# ---------------------------------------------------------------------------------- taking the machine
@pytest.mark.parametrize("kind", KINDS)
def test_daemonised_child_does_not_outlive_its_unit(folder: Path, kind: str) -> None:
    found = run(folder, kind, "setsid sh -c 'trap \"\" TERM HUP; sleep 300' >/dev/null 2>&1 & echo started")
    assert found.stdout == "started\n" and found.exit["exit_code"] == 0
    assert found.left == ()


@pytest.mark.parametrize("kind", KINDS)
def test_fork_bomb_is_contained(folder: Path, kind: str) -> None:
    bomb = "f() { f | f & }; f 2>/dev/null; sleep 1; echo over"
    found = run(folder, kind, bomb, settings={"pids_max": "60"}, max_runtime_s=5.0)
    assert found.left == ()


@pytest.mark.parametrize("kind", KINDS)
def test_memory_hog_ends_as_out_of_memory(folder: Path, kind: str) -> None:
    hog = "exec python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'"
    found = run(folder, kind, hog, max_runtime_s=60.0)
    assert found.exit["cause"] in ("out_of_memory", "exit_code")
    assert found.exit["memory_mib_max"] < 400
    if kind == "root":
        assert found.exit["cause"] == "out_of_memory" and "128 MiB" in found.exit["detail"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_huge_file_ends_as_out_of_disk(folder: Path, kind: str) -> None:
    found = run(folder, kind, "exec dd if=/dev/zero of=big bs=1M count=500")
    assert found.exit["cause"] == "out_of_disk", found.exit
    assert not next((folder / "machine/units").rglob("big")).stat().st_size > 60 << 20


@pytest.mark.parametrize("kind", KINDS)
def test_many_files_end_as_out_of_disk(folder: Path, kind: str) -> None:
    fill = "i=0; while :; do dd if=/dev/zero of=f$i bs=1M count=4 2>/dev/null; i=$((i+1)); sleep 0.05; done"
    found = run(folder, kind, fill, max_runtime_s=60.0)
    assert found.exit["cause"] == "out_of_disk", found.exit


@pytest.mark.parametrize("kind", KINDS)
def test_job_that_ignores_term_is_killed_after_its_grace(folder: Path, kind: str) -> None:
    stubborn = "trap '' TERM; echo ready; while :; do sleep 60; done"
    found = run(folder, kind, stubborn, max_runtime_s=2.0)
    if not found.stdout:  # it had not even begun to ignore anything
        again = folder / "again"
        again.mkdir()
        again.chmod(0o711)
        found = run(again, kind, stubborn, max_runtime_s=30.0)
    assert found.exit["cause"] == "timeout" and found.left == ()
    assert found.stdout == "ready\n"


@pytest.mark.parametrize("kind", KINDS)
def test_command_that_does_not_exist_is_said_in_one_sentence(folder: Path, kind: str) -> None:
    found = run_alone(folder, ("no-such-program", "x"), **KINDS[kind])  # type: ignore[arg-type]
    assert found.exit["cause"] == "start_refused"
    assert found.exit["detail"] == "there is no command 'no-such-program' on this instance"


@pytest.mark.parametrize("kind", KINDS)
def test_exit_codes_and_signals_are_told_alike(folder: Path, kind: str) -> None:
    found = run(folder, kind, "kill -SEGV $$")
    assert (found.exit["exit_code"], found.exit["cause"]) == (139, "exit_code")
    assert "SIGSEGV" in found.exit["detail"]


def test_a_killed_process_is_reaped_though_an_interrupted_wait_holds_its_lock() -> None:
    process = subprocess.Popen(["sleep", "600"])
    process._waitpid_lock.acquire()  # type: ignore[attr-defined]  # as an exception between this and its `try` leaves it
    process.kill()
    reap(process)
    assert process.returncode == -signal.SIGKILL
    reap(process)
