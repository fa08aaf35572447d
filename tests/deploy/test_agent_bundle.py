"""``scripts/agent-bundle``, with a stand-in for pip: what it asks for, and what it makes of the wheels."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hcloud.engine.bundle import PACKAGES, available
from tests.engine.test_bundle import names_in
from tests.house.tree import ROOT

PIP = """
import json, os, pathlib, sys, zipfile
words = sys.argv[1:]
of = lambda name: [after for word, after in zip(words, words[1:]) if word == name]
lines = pathlib.Path(of("--requirement")[0]).read_text().splitlines()
asked = {"words": words, "lines": lines, "platforms": of("--platform")}
pathlib.Path(os.environ["NOTES"]).write_text(json.dumps(asked))
for line in lines:
    name = line.split("==")[0].replace("-", "_")
    with zipfile.ZipFile(pathlib.Path(of("--dest")[0], f"{name}-1-py3-none-any.whl"), "w") as wheel:
        for path in (f"{name}/code.py", f"{name}-1.dist-info/RECORD", f"{name}-1.dist-info/licenses/LICENSE"):
            wheel.writestr(path, name)
        if os.environ.get("DATA"):
            wheel.writestr(f"{name}-1.data/scripts/program", name)
sys.exit(int(os.environ.get("PIP_EXIT", "0")))
"""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "pip").mkdir(exist_ok=True)
    (folder / "pip/__init__.py").touch()
    (folder / "pip/__main__.py").write_text(PIP)
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts/agent-bundle"), *arguments],
        env={**os.environ, "PYTHONPATH": str(folder), "NOTES": str(folder / "notes"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def wanted(tmp_path: Path) -> tuple[str, ...]:
    return ("--arch", "aarch64", "--python", "3.12", "--into", str(tmp_path / "agents"))


def test_archive_for_another_machine_is_made_of_pinned_wheels(tmp_path: Path, wanted: tuple[str, ...]) -> None:
    done = run(tmp_path, *wanted)
    assert done.returncode == 0, done.stderr
    (made,) = available(tmp_path / "agents")
    assert (made.name, str(made.path) in done.stdout) == ("aarch64-3.12", True)
    names = names_in(made)
    assert {"lib/hcloud/agent.py", "lib/grpcio/code.py", "lib/grpcio-1.dist-info/licenses/LICENSE"} <= set(names)
    assert not [name for name in names if name.endswith("RECORD")]
    asked = json.loads((tmp_path / "notes").read_text())
    assert [line.split("==")[0].replace("-", "_") for line in asked["lines"]] == list(PACKAGES)
    assert all(" --hash=sha256:" in line and "\\" not in line for line in asked["lines"])
    assert {"--require-hashes", "--no-deps", "cp312", "abi3"} <= set(asked["words"])
    assert {"manylinux2014_aarch64", "manylinux_2_28_aarch64"} <= set(asked["platforms"])


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"PIP_EXIT": "1"}, "pip could not download the wheels for aarch64 and Python 3.12"),
        ({"DATA": "1"}, "has files that are not beside modules: cffi-1.data/scripts/program"),
    ],
)
def test_wheels_that_cannot_be_used_end_it_with_a_sentence(
    tmp_path: Path, wanted: tuple[str, ...], environment: dict[str, str], sentence: str
) -> None:
    done = run(tmp_path, *wanted, **environment)
    assert done.returncode == 2
    assert done.stderr.startswith("agent-bundle: ") and sentence in done.stderr
    assert not (tmp_path / "agents").exists()


def test_python_without_agents_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--arch", "x86_64", "--python", "3.8", "--into", str(tmp_path))
    assert done.returncode == 2
    assert "--python must be 3.11 or later, such as 3.12, not 3.8" in done.stderr
