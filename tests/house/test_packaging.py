"""The package: what the wheel holds, the lock, the list of dependencies, the import contract, the entry points."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import hcloud
from hatch_build import SHIPPED
from tests.house import rules, tree

PROJECT = tomllib.loads((tree.ROOT / "pyproject.toml").read_text())


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_names(requirements: list[str]) -> set[str]:
    return {normalised(re.split(r"[\[<>=!~; ]", each)[0]) for each in requirements}


def all_dependencies() -> set[str]:
    project = PROJECT["project"]
    return requirement_names(project["dependencies"]).union(
        *(requirement_names(extra) for extra in project["optional-dependencies"].values())
    )


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(tree.ROOT)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = out.glob("*.whl")
    return built


def test_wheel_holds_all_code_and_all_shipped_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {tree.relative(path) for path in tree.python_files()} | {"hcloud/py.typed", "providers/py.typed"}
    for each in SHIPPED:
        found = [tree.ROOT / each] if each.endswith(".yaml") else (tree.ROOT / each).rglob("*")
        expected |= {f"hcloud/_shipped/{tree.relative(path)}" for path in found if path.is_file()}
    assert expected <= names


def test_laboratory_and_benchmarks_stay_out_of_the_wheel_and_come_with_the_source(wheel: Path) -> None:
    rooms = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {room for room in rooms if not room.endswith(".dist-info")} == {"hcloud", "providers"}
    assert {"/lab", "/bench", "/tests"} <= set(PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])


def test_shipped_files_are_found_in_an_unpacked_wheel(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        "import sys; from hcloud.config import package_data as data; print(*(data.path(each) for each in sys.argv[1:]))"
    )
    line = [sys.executable, "-c", program, *SHIPPED]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "hcloud" / "_shipped" / each) for each in SHIPPED]


def test_wheel_carries_the_version_of_the_package(wheel: Path) -> None:
    assert wheel.name.startswith(f"hcloud_daemon-{hcloud.__version__}-")


def test_lock_pins_every_dependency_with_hashes() -> None:
    lock = (tree.ROOT / "requirements.lock").read_text()
    pinned = {
        normalised(name) for name in re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==\S+ .*\\$", lock, flags=re.MULTILINE)
    }
    # Only `python -m bench.accuracy` compares with these, if they are installed; `make browser` installs its own.
    extras = PROJECT["project"]["optional-dependencies"]
    apart = requirement_names(extras["bench"]) | requirement_names(extras["browser"])
    assert all_dependencies() - apart <= pinned


def test_every_dependency_is_explained_and_none_is_explained_in_vain() -> None:
    text = (tree.ROOT / "docs" / "dependencies.md").read_text()
    python_part = text.split("## Programs of the system")[0]
    explained = {
        normalised(name) for name in re.findall(r"^\| (?:`\w+` \| )?([\w-]+) \|", python_part, flags=re.MULTILINE)
    }
    assert explained - {"package", "extra"} == all_dependencies()


def test_every_pure_room_stands_in_the_import_contract() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    [pure] = [contract for contract in contracts if contract["name"].startswith("Pure rooms")]
    assert {f"hcloud.{room}" for room in rules.PURE_ROOMS} == set(pure["source_modules"])


def test_entry_points_lead_to_classes_that_exist() -> None:
    points = PROJECT["project"]["entry-points"]["hcloud.providers"] | PROJECT["project"]["scripts"]
    for name, target in points.items():
        module, _, attribute = target.partition(":")
        assert callable(getattr(__import__(module, fromlist=[attribute]), attribute)), name
