"""The agent bundle: what is in it, that it is made the same again, and that a bare Python runs units from it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hcloud.core.errors import ConfigError
from hcloud.engine.bundle import (
    KEPT,
    PACKAGES,
    AgentBundle,
    agent_files,
    available,
    build,
    distribution_files,
    imported_modules,
    write,
)
from hcloud.provider import UnitSpec
from tests.engine.conftest import NAME
from tests.engine.site import SMALL, Machine, Site, Watch, new_unit_id
from tests.engine.test_profiling import in_time, profiled

FILES = {"hcloud/one.py": b"1\n", "hcloud/two.py": b"2\n"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> AgentBundle:
    """The bundle of this installation."""
    return build(tmp_path_factory.mktemp("agents"))


@pytest.fixture(scope="module")
def unpacked(bundle: AgentBundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its content."""
    directory = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(bundle.path) as archive:
        archive.extractall(directory)
    return directory


def names_in(bundle: AgentBundle) -> list[str]:
    with tarfile.open(bundle.path) as archive:
        return archive.getnames()


# -------------------------------------------------------------------------------------------------------- what it holds
def test_bundle_holds_the_agent_its_packages_and_nothing_else(bundle: AgentBundle) -> None:
    names = names_in(bundle)
    assert names == sorted(names)
    of_hcloud = {name.removeprefix("lib/hcloud/") for name in names if name.startswith("lib/hcloud/")}
    assert {name.partition("/")[0] for name in of_hcloud} == {
        *("__init__.py", "agent.py", "provider.py", "sd_notify.py"),
        *("core", "engine", "profiler"),
    }
    assert not {"engine/gateway.py", "engine/runner.py", "engine/bundle.py", "profiler/recipes.py"} & of_hcloud
    assert {"engine/link.py", "engine/worker.py", "profiler/measure.py", "profiler/sources.py"} <= of_hcloud
    others = {name.split("/")[1] for name in names if name.startswith("lib/")} - {"hcloud"}
    packages = {name for name in others if not name.endswith((".dist-info", ".so"))}
    assert packages == {"grpc", "google", "cryptography", "cffi", "pycparser", "typing_extensions.py"}
    assert {name.split("/")[2] for name in names if name.startswith("lib/google/")} == {"protobuf", "_upb"} | {
        name.split("/")[2] for name in names if name.startswith("lib/google/_upb")
    }
    assert [name for name in names if not name.startswith("lib/")] == ["bin/hcloud"]
    assert not [name for name in names if name.endswith((".pyc", "RECORD"))]


def test_every_package_comes_with_its_licence(bundle: AgentBundle) -> None:
    licensed = {name.split("/")[1] for name in names_in(bundle) if "LICENSE" in name}
    distributions = {name.split("/")[1] for name in names_in(bundle) if ".dist-info/" in name}
    assert licensed == distributions
    assert len(licensed) == len(PACKAGES) + 1


def test_packages_cover_what_the_agent_imports_and_what_they_require() -> None:
    code = {name: content.decode() for name, content in agent_files().items() if name.endswith(".py")}
    imported = {module.partition(".")[0] for source in code.values() for module in imported_modules(source)}
    own = {"hcloud"} | sys.stdlib_module_names
    assert imported - own == {"grpc", "google", "cryptography"}
    for package in PACKAGES:
        for text in distribution(package).requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert needed.name.replace("-", "_") in PACKAGES, package


def test_imports_for_types_only_are_not_followed() -> None:
    source = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\nelse:\n    import b.c\n"
        "def f():\n    from d import e\n"
    )
    assert set(imported_modules(source)) == {"typing", "typing.TYPE_CHECKING", "b.c", "d", "d.e"}


def test_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ConfigError, match="the package no-such-package is not installed; agents need it"):
        distribution_files("no-such-package")


# ------------------------------------------------------------------------------------------------------- the directory
def made(directory: Path, *, python: str = "3.11", **files: bytes) -> AgentBundle:
    return write(directory, {**FILES, **files}, arch="x86_64", python=python)


def test_equal_files_make_the_same_archive_whatever_their_order(tmp_path: Path) -> None:
    one, two = (
        made(tmp_path / "one"),
        write(tmp_path / "two", dict(reversed(FILES.items())), arch="x86_64", python="3.11"),
    )
    assert one.path.read_bytes() == two.path.read_bytes()
    assert one.sha256 == two.sha256 != made(tmp_path / "one", python="3.12").sha256
    with tarfile.open(one.path) as archive:
        assert {(each.mtime, each.uid, each.gid, each.uname) for each in archive} == {(0, 0, 0, "")}
        assert {each.name: each.mode for each in archive} == {
            "bin/hcloud": 0o755,
            "lib/hcloud/one.py": 0o644,
            "lib/hcloud/two.py": 0o644,
        }


def test_bundle_that_is_there_is_not_written_again(bundle: AgentBundle) -> None:
    written = bundle.path.stat().st_mtime_ns
    assert build(bundle.path.parent) == bundle
    assert bundle.path.stat().st_mtime_ns == written
    assert available(bundle.path.parent) == (bundle,)
    assert re.fullmatch(r"[0-9a-f]{64}\.tar\.gz", bundle.path.name)


def test_newest_of_each_name_is_available_and_few_older_ones_are_kept(tmp_path: Path) -> None:
    other = made(tmp_path, python="3.12")
    for number in range(KEPT + 2):
        newest = made(tmp_path, **{"hcloud/number.py": b"%d\n" % number})
        os.utime(newest.path, (number, number))
    assert available(tmp_path) == (newest, other)
    assert len(list(tmp_path.glob("*.tar.gz"))) == len(list(tmp_path.glob("*.json"))) == KEPT + 1


def test_what_is_no_usable_bundle_is_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = made(tmp_path)
    damaged, old, unlabelled, odd = (made(tmp_path, python=f"3.{minor}") for minor in (12, 13, 14, 15))
    damaged.path.write_bytes(damaged.path.read_bytes()[:-1])
    label = old.path.parent / f"{old.sha256}.json"
    label.write_text(json.dumps({**json.loads(label.read_text()), "hcloud": "0.0.1"}))
    (unlabelled.path.parent / f"{unlabelled.sha256}.json").unlink()
    (odd.path.parent / f"{odd.sha256}.json").write_text("[]")
    (tmp_path / "notes.txt").write_text("of somebody else")
    assert available(tmp_path) == (good,)
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert f"{damaged.path} is not used as an agent bundle: its content has another SHA-256" in said
    assert "it is of HCloud 0.0.1, and this is" in said
    assert f"{unlabelled.sha256}.json beside it is missing" in said
    assert f"{odd.sha256}.json beside it lacks 'arch'" in said
    assert available(tmp_path / "nowhere") == ()


def test_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "agents").write_text("a file")
    with pytest.raises(ConfigError, match=r"agents: the agent bundle cannot be written: "):
        made(tmp_path / "agents")


# ---------------------------------------------------------------------------------------------------- the start program
def bare_python(folder: Path) -> dict[str, str]:
    """An environment with the system's programs and a Python that has no packages."""
    folder.mkdir()
    python = "python{}.{}".format(*sys.version_info)
    (folder / python).symlink_to(os.path.realpath(sys.executable))
    return {"PATH": f"{folder}:/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin"}


@pytest.fixture(scope="module")
def machine(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Watch]]:
    """A machine that runs the agent of the bundle, and what is seen of it."""
    folder = tmp_path_factory.mktemp("site")
    site = Site(folder, isolation="best_effort")
    try:
        machine = Machine(folder, NAME, site.address, site.tls_dir, isolation="best_effort")
        machine.program, machine.environment = (str(unpacked / "bin/hcloud"),), bare_python(folder / "bin")
        site.machines[NAME] = machine
        site.admit(NAME)
        machine.start()
        watch = Watch(site.runner())
        watch.registered(NAME)
        yield machine, watch
    finally:
        site.close()


def test_agent_of_the_bundle_runs_a_unit_with_a_bare_python(machine: tuple[Machine, Watch], unpacked: Path) -> None:
    agent, watch = machine
    command = ("/bin/sh", "-c", "echo $((6 * 7)); env")
    unit = UnitSpec(id=new_unit_id(), instance_id=NAME, rank=0, command=command, resources=SMALL)
    record, output = watch.run(unit)
    assert (record.exit_code, output.splitlines()[0]) == (0, "42")
    assert "PYTHONPATH" not in output
    loaded = compiled_packages(agent.link())
    assert "cygrpc" in " ".join(path.name for path in loaded)
    assert [path for path in loaded | compiled_packages(agent.supervisor.pid) if unpacked not in path.parents] == []


def compiled_packages(process: int) -> set[Path]:
    """Compiled modules of packages that a process has loaded."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    paths = {Path(line.split()[-1]) for line in lines if re.search(r"\.(cpython|abi3)[^/]*\.so$", line)}
    return {path for path in paths if "lib-dynload" not in path.parts}


def test_agent_of_the_bundle_measures_a_unit(machine: tuple[Machine, Watch]) -> None:
    _, watch = machine
    script = "i=0; while :; do i=$((i + 1)); echo $i > progress; done"
    found = in_time(lambda total_s: watch.run(profiled(script, total_s=total_s))[0]).findings
    assert found is not None
    assert [each.question for each in found.readings] != [], found.notes


def test_start_program_without_its_python_says_which_one_it_needs(unpacked: Path, tmp_path: Path) -> None:
    for name in ("readlink", "dirname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    (tmp_path / "python3").write_text("#!/bin/sh\necho 2.7\n")
    (tmp_path / "python3").chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(unpacked / "bin/hcloud"), "worker"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    version = "{}.{}".format(*sys.version_info)
    sentence = f"hcloud: this agent needs Python {version}, which this machine does not have\n"
    assert (done.returncode, done.stderr) == (2, sentence)


def test_check_loads_all_parts_and_names_what_cannot_be_loaded(unpacked: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(unpacked, broken)
    next(broken.glob("lib/grpc/_cython/cygrpc*.so")).unlink()
    environment = bare_python(tmp_path / "bin")
    for directory, code, said in (
        (unpacked, 0, "parts can be loaded"),
        (broken, 1, "hcloud: cannot import name 'cygrpc'"),
    ):
        command = [str(directory / "bin/hcloud"), "check"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done


def test_wrong_bootstrap_file_is_one_sentence(unpacked: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(unpacked / "bin/hcloud"), "worker", "--bootstrap", str(tmp_path / "none.json")],
        env=bare_python(tmp_path / "bin"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"hcloud: {tmp_path}/none.json: no readable JSON file here; the provider writes it at launch\n"
    )
