"""Forked workers run every test once and show what pytest itself shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TWO_FILES = {
    "test_one.py": """
import os, pathlib, pytest, warnings

@pytest.fixture(scope="module")
def made():
    yield 1
    pathlib.Path("torn_down").touch()

def test_passes(made, tmp_path):
    pathlib.Path("one").write_text(str(os.getpid()))

def test_fails(made):
    print("what it printed")
    assert 1 + made == 3

def test_warns():
    warnings.warn("old", DeprecationWarning)

@pytest.mark.skip(reason="not here")
def test_is_skipped():
    pass
""",
    "test_two.py": """
import os, pathlib, time

def test_runs_in_another_process(tmp_path):
    pathlib.Path("two").write_text(str(os.getpid()))
    deadline = time.monotonic() + 60
    while not pathlib.Path("one").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pathlib.Path("one").read_text() != str(os.getpid())
""",
}


def run(folder: Path, files: dict[str, str], *options: str) -> tuple[int, str]:
    """Run tests by two workers in a process of its own; return the exit code and what is shown."""
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-rfEs", "-p", "tests.workers", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--rootdir={folder}", f"--basetemp={folder / 'temporary'}", "--workers=2", *options],
        cwd=folder,
        # Without the plug-ins of everything installed, whose import takes most of the time.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def test_tests_pass_fail_and_warn_as_without_workers(tmp_path: Path) -> None:
    code, shown = run(tmp_path, TWO_FILES)
    assert code == 1, shown
    assert re.search(r"1 failed, 3 passed, 1 skipped, 1 warning in ", shown), shown
    assert "FAILED test_one.py::test_fails - assert (1 + 1) == 3" in shown
    assert "SKIPPED [1] test_one.py:19: not here" in shown
    assert "what it printed" in shown and "DeprecationWarning: old" in shown
    assert (tmp_path / "torn_down").exists()
    assert {path.name for path in (tmp_path / "temporary").iterdir()} == {"worker1", "worker2"}


def test_session_stops_at_the_first_failure_if_asked_to(tmp_path: Path) -> None:
    endless = "import pathlib, time\ndef test_endless():\n  try:\n    time.sleep(600)\n  finally:\n"
    endless += "    pathlib.Path('ended').touch()\n"
    code, shown = run(tmp_path, {"test_a.py": "def test_fails():\n  assert 0\n", "test_b.py": endless}, "-x")
    assert code == 2 or "stopping after 1 failures" in shown, (code, shown)


def test_session_stops_though_a_test_keeps_the_interrupt_to_itself(tmp_path: Path) -> None:
    fails = "import pathlib, time\ndef test_fails():\n  end = time.monotonic() + 60\n"
    fails += "  while not pathlib.Path('begun').exists() and time.monotonic() < end:\n    time.sleep(0.01)\n"
    endless = "import pathlib, time\ndef test_endless():\n  pathlib.Path('begun').touch()\n  try:\n"
    endless += "    time.sleep(600)\n  except KeyboardInterrupt:\n    pass\ndef test_also():\n  time.sleep(600)\n"
    # The worker that fails has taken the second file already; the third is the other's.
    files = {"test_a.py": f"{fails}  assert 0\n", "test_b.py": "def test_b(): pass\n", "test_c.py": endless}
    code, shown = run(tmp_path, files, "-x")
    assert code == 2 or "stopping after 1 failures" in shown, (code, shown)


def test_test_that_ends_its_worker_fails_and_the_others_run(tmp_path: Path) -> None:
    killed = "import os\ndef test_before(): pass\ndef test_kills(): os.kill(os.getpid(), 9)\ndef test_after(): pass\n"
    code, shown = run(tmp_path, {"test_a.py": killed, "test_b.py": "def test_other(): pass\n"})
    assert code == 1, shown
    assert "1 failed, 3 passed" in shown
    assert "FAILED test_a.py::test_kills - the process that ran this test ended with code -9" in shown


def test_tests_of_one_file_are_shared_if_asked_to(tmp_path: Path) -> None:
    # A worker takes its next test before it runs one: the first has two, and the third is the other's.
    meets = "import pathlib, time\ndef meet(mine, other):\n  pathlib.Path(mine).touch()\n"
    meets += "  end = time.monotonic() + 60\n  while not pathlib.Path(other).exists():\n"
    meets += "    assert time.monotonic() < end\n    time.sleep(0.01)\n"
    three = meets + "def test_a(): meet('a', 'c')\ndef test_b(): pass\ndef test_c(): meet('c', 'a')\n"
    code, shown = run(tmp_path, {"test_a.py": three}, "--test-by-test")
    assert (code, "3 passed" in shown) == (0, True), shown


def test_defect_outside_tests_ends_the_session(tmp_path: Path) -> None:
    plugin = "import pytest\n@pytest.hookimpl(tryfirst=True)\n"
    plugin += "def pytest_runtest_protocol(item):\n  raise KeyError('here')\n"
    files = {"conftest.py": plugin, "test_a.py": "def test_a(): pass\n", "test_b.py": "def test_b(): pass\n"}
    code, shown = run(tmp_path, files)
    assert code == 3, shown
    assert "KeyError: 'here'" in shown
