"""A tiny container image, made from files of this host, run in the sandbox."""

import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.alone import run_alone
from tests.machine import needs_podman

IMAGE = "localhost/hcloud-test-tiny:1"


def podman(*words: str) -> None:
    subprocess.run(["podman", *words], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image that holds one program with its libraries, a file, and not even a shell."""
    folder = tmp_path_factory.mktemp("image")
    listed = subprocess.run(["ldd", "/usr/bin/cat"], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in listed.split() if word.startswith("/")]
    (folder / "note").write_text("inside the image\n")
    with tarfile.open(folder / "root.tar", "w") as target:
        for path in ("/usr/bin/cat", *libraries):
            target.add(os.path.realpath(path), arcname=path.replace("/usr/bin", "/bin"))
        target.add(folder / "note", arcname="/note")
    podman("import", "--change", "ENV NOTE=/note", str(folder / "root.tar"), IMAGE)
    yield IMAGE
    podman("rmi", "--force", IMAGE)


@needs_podman
def test_command_runs_in_the_image_with_our_own_sandbox(tmp_path: Path, image: str) -> None:
    found = run_alone(tmp_path, ("/bin/cat", "/note", "/proc/self/status"), image=image)
    assert found.exit["exit_code"] == 0, found
    assert found.stdout.startswith("inside the image\n")
    assert "Uid:\t62000" in found.stdout and "CapBnd:\t0000000000000000" in found.stdout
    listed = subprocess.run(["podman", "ps", "--all", "--quiet"], capture_output=True, text=True, check=True)
    assert listed.stdout == ""


@needs_podman
def test_image_is_not_changed_by_a_job(tmp_path: Path, image: str) -> None:
    found = run_alone(tmp_path, ("/bin/cat", "/usr/bin/python3"), image=image)
    assert found.exit["exit_code"] == 1 and "No such file" in found.stderr


@needs_podman
def test_command_that_the_image_lacks_is_said(tmp_path: Path, image: str) -> None:
    found = run_alone(tmp_path, ("python3",), image=image)
    assert found.exit["cause"] == "start_refused" and "'python3'" in found.exit["detail"]


def test_image_without_podman_is_refused_in_one_sentence(tmp_path: Path) -> None:
    found = run_alone(tmp_path, ("/bin/cat", "/note"), image=IMAGE, without=("podman",))
    assert "container images need podman" in found.refused
