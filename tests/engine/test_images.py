"""A tiny container image, made from files of this host, run in the sandbox."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hcloud.core.image_names import IMAGE_LOGIN
from tests.engine.alone import run_alone
from tests.engine.test_gpus import machine_root
from tests.engine.tiny_image import containers_of, podman, tiny_image
from tests.machine import needs_podman
from tests.registry import FakeRegistry

IMAGE = "localhost/hcloud-test-tiny:1"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image that holds one program with its libraries, a file, and not even a shell."""
    with tiny_image(tmp_path_factory.mktemp("image"), IMAGE, ["cat"]) as name:
        yield name


@needs_podman
def test_command_runs_in_the_image_with_our_own_sandbox(tmp_path: Path, image: str) -> None:
    found = run_alone(tmp_path, ("/bin/cat", "/note", "/proc/self/status"), image=image)
    assert found.exit["exit_code"] == 0, found
    assert found.stdout.startswith("inside the image\n")
    assert "Uid:\t62000" in found.stdout and "CapBnd:\t0000000000000000" in found.stdout
    assert containers_of(image) == ""


@needs_podman
def test_image_is_not_changed_by_a_job(tmp_path: Path, image: str) -> None:
    found = run_alone(tmp_path, ("/bin/cat", "/usr/bin/python3"), image=image)
    assert found.exit["exit_code"] == 1 and "No such file" in found.stderr


@needs_podman
def test_command_that_the_image_lacks_is_said(tmp_path: Path, image: str) -> None:
    found = run_alone(tmp_path, ("python3",), image=image)
    assert found.exit["cause"] == "start_refused" and "'python3'" in found.exit["detail"]


@needs_podman
def test_a_unit_with_gpus_finds_the_driver_of_its_machine_in_an_image(tmp_path: Path, image: str) -> None:
    root = machine_root(tmp_path / "host")
    libraries = root / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / "libcuda.so.535.1").write_text("the driver's\n")
    (libraries / "libcuda.so.1").symlink_to("libcuda.so.535.1")
    (libraries / "libc.so.6").touch()
    for name in ("with", "libc", "without"):
        (tmp_path / name).mkdir()
    unit: dict[str, Any] = {"image": image, "settings": {"gpu_root": str(root)}, "env": {"LD_LIBRARY_PATH": "/own"}}
    files = ("/.hcloud/nvidia/libcuda.so.1", "/proc/self/environ")
    found = run_alone(tmp_path / "with", ("/bin/cat", *files), gpus=(1,), **unit)
    assert found.stdout.startswith("the driver's\n") and "LD_LIBRARY_PATH=/.hcloud/nvidia:/own\0" in found.stdout
    assert run_alone(tmp_path / "libc", ("/bin/cat", "/.hcloud/nvidia/libc.so.6"), gpus=(1,), **unit).stdout == ""
    without = run_alone(tmp_path / "without", ("/bin/cat", *files), **unit)
    assert "the driver's" not in without.stdout and "LD_LIBRARY_PATH=/own\0" in without.stdout


def test_image_without_podman_is_refused_in_one_sentence(tmp_path: Path) -> None:
    found = run_alone(tmp_path, ("/bin/cat", "/note"), image=IMAGE, without=("podman",))
    assert "container images need podman" in found.refused


@needs_podman
def test_an_image_of_a_registry_is_fetched_with_the_job_s_login_which_its_program_does_not_see(
    tmp_path: Path, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    podman("push", image, f"dir:{tmp_path / 'pushed'}")
    with FakeRegistry({"team/tool": tmp_path / "pushed"}, login="ann:correct-horse").serve() as registry:
        (tmp_path / "registries.conf").write_text(f'[[registry]]\nlocation = "{registry.address}"\ninsecure = true\n')
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
        name = f"{registry.address}/team/tool:1"
        try:
            for login, code in (("ann:guess", None), ("ann:correct-horse", 0)):
                folder = tmp_path / login.replace(":", "-")
                folder.mkdir()
                found = run_alone(folder, ("/bin/cat", "/proc/self/environ"), image=name, env={IMAGE_LOGIN: login})
                assert found.exit.get("exit_code") == code
                assert login not in found.stdout
                assert "guess" not in str(found.exit.get("detail"))
        finally:
            podman("rmi", "--force", name)
