"""A profiling copy leaves no trace, whatever it tries, for root and for an ordinary user."""

import ctypes
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hcloud.core.errors import BadInput
from hcloud.engine.host import EngineHost
from hcloud.profiler.namespaces import loopback_network
from hcloud.profiler.sandbox import NOBODY_UID, Copy, CopyResult, live_copy, run_copy
from tests.other_user import as_ordinary_user
from tests.waiting import wait_until

UNTIDY = r"""
import os, signal, socket, sys
os.unlink("input.txt")
open("output.txt", "w").write("x" * 100000)
os.mkdir("made"); open("made/deep.txt", "w").write("y")
open("/tmp/hcloud-untidy", "w").write("z")
door = socket.socket(socket.AF_UNIX); door.bind("door"); door.listen()
seen = "none"
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20)
    seen = "reached"
except OSError:
    seen = "closed"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.pause()
    os._exit(0)
print(sorted(os.listdir(".")), seen, len([name for name in os.listdir("/proc") if name.isdigit()]) < 20)
"""


def tree(folder: Path) -> dict[str, bytes | None]:
    """All names below a directory with their content."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def workdir() -> Iterator[Path]:
    """A work directory that any user may reach (pytest's own are closed to others)."""
    with tempfile.TemporaryDirectory(prefix="profiled-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "input.txt").write_text("precious")
        (folder / "untidy.py").write_text(UNTIDY)
        yield folder


def owned(folder: Path, uid: int) -> None:
    """Change a directory's owner, as the engine does for a job."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid)


def run_copy_here(copy: Copy) -> CopyResult:
    """Run a copy on this machine with the engine's host."""
    return run_copy(copy, EngineHost())


def copy_of(workdir: Path, *command: str, **changes: Any) -> Copy:
    """A copy with the limits of these tests."""
    return Copy(**{"command": command, "workdir": workdir, "max_s": 30.0, **changes})


@pytest.mark.parametrize("owner", [0, 4321] if os.geteuid() == 0 else [os.geteuid()])
def test_untidy_program_leaves_no_trace(owner: int, workdir: Path, listener: int) -> None:
    if os.geteuid() == 0:
        owned(workdir, owner)
    before = tree(workdir)
    outcome = run_copy_here(copy_of(workdir, "python3", "untidy.py", str(listener)))
    assert outcome.exit_code == 0, outcome
    assert b"output.txt" in outcome.stdout
    assert b"input.txt" not in outcome.stdout
    assert not Path("/tmp/hcloud-untidy").exists()
    assert tree(workdir) == before
    assert ("copied in full" in str(outcome.lacks)) == (owner == 0 and os.geteuid() == 0)
    if not any("bubblewrap" in lack for lack in outcome.lacks):
        assert b"closed True" in outcome.stdout


def test_root_owned_directory_is_copied_and_that_is_said(workdir: Path) -> None:
    outcome = run_copy_here(copy_of(workdir, "id", "-u"))
    assert outcome.stdout.decode().strip() == str(os.geteuid() or NOBODY_UID)
    if os.geteuid() == 0:
        assert any("copied in full" in lack for lack in outcome.lacks)


@pytest.fixture
def listener() -> Iterator[int]:
    """A listening port on the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


TALKS_TO_ITSELF = """
import socket, sys
server = socket.create_server(("127.0.0.1", 8080))
near = socket.create_connection(("127.0.0.1", 8080))
near.sendall(b"x")
print(server.accept()[0].recv(1), sorted(name for _, name in socket.if_nameindex() if name == "lo"))
for address in (("127.0.0.1", int(sys.argv[1])), ("192.0.2.1", 80)):
    try:
        socket.create_connection(address, timeout=20)
        print("reached")
    except OSError as error:
        print(error.strerror)
"""


def _talk(workdir: Path, listener: int) -> str:
    with loopback_network(EngineHost()) as enter:
        assert enter is not None
        command = ("python3", "-c", TALKS_TO_ITSELF, str(listener))
        with live_copy(copy_of(workdir, "sleep", "60", enter=enter), EngineHost()) as other:
            outcome = run_copy_here(copy_of(workdir, *command, enter=enter))
            shared = os.stat(f"/proc/{other.pid}/ns/net").st_ino
        return f"{outcome.stdout.decode()}{outcome.stderr.decode()}{shared != os.stat('/proc/self/ns/net').st_ino}"


def test_networked_copy_has_loopback_and_nothing_else(workdir: Path, listener: int) -> None:
    said = _talk(workdir, listener)
    assert said.split("\n") == ["b'x' ['lo']", "Connection refused", "Network is unreachable", "True"]


def test_networked_copy_of_an_ordinary_user_has_the_same(workdir: Path, listener: int) -> None:
    if os.geteuid() == 0:
        owned(workdir, NOBODY_UID)

    def talk() -> str:
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
        return _talk(workdir, listener)

    assert str(as_ordinary_user(talk)).split("\n")[:3] == [
        "b'x' ['lo']",
        "Connection refused",
        "Network is unreachable",
    ]


def test_last_words_are_kept_however_late_they_are_read(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_copy(copy_of(workdir, "echo", "last words"), EngineHost()) as live:
        os.waitid(os.P_PID, live.pid, os.WEXITED | os.WNOWAIT)
        # As if all CPU were taken away for long whenever the time is asked for.
        stolen = SimpleNamespace(monotonic=itertools.count(0.0, 100.0).__next__)
        monkeypatch.setattr("hcloud.engine.launch.time", stolen)
        assert live.end().stdout == b"last words\n"


def test_endless_copy_is_killed_with_its_children(workdir: Path) -> None:
    outcome = run_copy_here(copy_of(workdir, "sh", "-c", "sleep 601 & sleep 602", max_s=1.0))
    assert outcome.timed_out
    assert outcome.exit_code == 137
    wait_until(lambda: not _running(b"sleep\x00601"), timeout_s=60)


def _running(command: bytes) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if command in path.read_bytes():
                return True
        except OSError:
            continue
    return False


def test_memory_hog_is_stopped_and_usage_is_told(workdir: Path) -> None:
    hog = "held = bytearray(400 << 20); print(len(held))"
    outcome = run_copy_here(copy_of(workdir, "python3", "-c", hog, memory_mib=100))
    assert outcome.exit_code != 0
    assert outcome.stdout == b""
    modest = run_copy_here(copy_of(workdir, "python3", "-c", "x = bytearray(50 << 20); sum(range(3000000))"))
    assert modest.exit_code == 0
    assert modest.memory_mib_max > 40
    assert modest.cpu_s > 0


def test_missing_program_is_told_apart(workdir: Path) -> None:
    outcome = run_copy_here(copy_of(workdir, "no-such-program-here"))
    assert (outcome.exit_code, outcome.missing) == (127, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"command": ()}, "needs a command"),
        ({"workdir": Path("/no/such/place")}, "not a directory"),
        ({"max_s": 0.0}, "max_s of a profiling copy is 0.0"),
        ({"memory_mib": -1}, "memory_mib"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(change: dict[str, Any], words: str, workdir: Path) -> None:
    with pytest.raises(BadInput, match=words):
        run_copy_here(Copy(**{"command": ("true",), "workdir": workdir, "max_s": 5.0, **change}))


def _untidy_as_user(workdir: Path, port: int) -> dict[str, Any]:
    # A process that changed its user is closed to itself in /proc until it says otherwise; one born so is not.
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
    done = run_copy_here(copy_of(workdir, "python3", "untidy.py", str(port)))
    return {"exit_code": done.exit_code, "stdout": done.stdout.decode(), "lacks": done.lacks}


def test_ordinary_user_gets_the_same(workdir: Path, listener: int) -> None:
    if os.geteuid() == 0:
        owned(workdir, NOBODY_UID)
    before = tree(workdir)
    outcome = as_ordinary_user(lambda: _untidy_as_user(workdir, listener))
    assert isinstance(outcome, dict), outcome
    assert outcome["exit_code"] == 0, outcome
    assert "output.txt" in outcome["stdout"]
    assert tree(workdir) == before
    assert any("not root" in lack for lack in outcome["lacks"])
    assert not any("copied in full" in lack for lack in outcome["lacks"])
