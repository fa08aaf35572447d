"""What real jobs leave comes back: with ``run``, with ``cp``, and when daemon and agent are killed half-way."""

import hashlib
import io
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.client.outputs import members
from hcloud.core.errors import BadInput
from tests.daemon.home import PATIENCE_S, Home
from tests.waiting import wait_until

SMALL = ("--memory", "64MiB", "--vcpus", "0.5")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A daemon that runs real programs on slices of this host."""
    made = Home(tmp_path_factory.mktemp("outputs") / "home")
    made.set_up_local()
    made.daemon()
    yield made
    made.run("destroy", "--all", "--yes", "--wait", str(PATIENCE_S))
    made.end()


def test_run_brings_results_to_where_the_work_directory_is(home: Home, tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("one two")
    script = "mkdir -p results; wc -w < input.txt > results/words; echo done > log.txt; echo x > other"
    options = ("--workdir", str(tmp_path), "--outputs", "results", "--outputs", "*.txt", "--outputs", "model.pt")
    told = home.run("run", "-y", "-q", *options, *SMALL, "--", "sh", "-c", script)
    assert (tmp_path / "results" / "words").read_text() == "2\n"
    assert (tmp_path / "log.txt").read_text() == "done\n" and not (tmp_path / "other").exists()
    assert "3 files in" in told and "nothing matched 'model.pt'" in told and "has not run" not in told
    assert not list(tmp_path.glob(".hcloud-cp-*"))


def test_a_failed_job_s_outputs_come_too_and_parts_of_them_can_be_copied(home: Home, tmp_path: Path) -> None:
    script = "mkdir -p a/deep b; echo 1 > a/deep/x; echo 2 > a/y; echo 3 > b/z; exit 3"
    job = home.run("submit", "-y", "-q", "--outputs", "a/", "--outputs", "b/", *SMALL, "--", "sh", "-c", script).split()
    home.run("wait", job[0], exit_code=1)
    listed = home.run("cp", "--list", job[0], "-o", "csv").splitlines()
    assert listed == ["name,bytes", "a/deep/x,2", "a/y,2", "b/z,2"]
    home.run("cp", f"{job[0]}:a/deep", str(tmp_path / "new"))
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["new/deep/x"]
    missing = home.run("cp", f"{job[0]}:c", str(tmp_path), exit_code=2)
    assert f"{job[0]} left nothing named 'c'" in missing


def test_bad_input_is_one_sentence(home: Home, tmp_path: Path) -> None:
    plain = home.run("submit", "-y", "-q", *SMALL, "--", "true").split()[0]
    home.run("wait", plain)
    assert "asked for no outputs; name them in its job file" in home.run("cp", plain, str(tmp_path), exit_code=2)
    for pattern in ("/etc/passwd", "../x", "a/../../b", "~/x"):
        told = home.run("submit", "-y", "--outputs", pattern, "--", "true", exit_code=2)
        assert "must be below the work directory" in told and "(--outputs)" in told
    (tmp_path / "file").write_text("")
    assert "is not a folder" in home.run("cp", plain, str(tmp_path / "file"), exit_code=2)


def test_a_job_goes_on_from_its_checkpoint_when_its_machine_is_taken_back(home: Home) -> None:
    script = (
        "n=$(cat state/n 2>/dev/null || echo 0); echo from $n after attempt $HCLOUD_RESTORED; mkdir -p state; "
        "[ $n = 0 ] || exit 0; echo 7 > state/.n; mv state/.n state/n; echo up; sleep 300"
    )
    job = home.run("submit", "-y", "-q", "--checkpoint", "state", *SMALL, "--", "sh", "-c", script).split()[0]
    wait_until(lambda: "up" in home.run("logs", job), PATIENCE_S)
    for folder in home.path.glob("providers/local/instances/local-*"):
        (folder / "preempt").write_text("4")
    home.run("wait", job)
    assert home.run("logs", job) == "from 7 after attempt 1\n"


def test_outputs_survive_a_daemon_and_an_agent_killed_while_they_are_copied(home: Home, tmp_path: Path) -> None:
    script = "yes 0123456789 | head -c 60000000 > big"
    options = ("--outputs", "big", "--vcpus", "0.5", "--memory", "64MiB", "--disk", "200MiB")
    job = home.run("submit", "-y", "-q", *options, "--", "sh", "-c", script).split()[0]
    outputs = home.path / "outputs"
    wait_until(lambda: outputs.exists() and list(outputs.glob(f"{job}.*")), PATIENCE_S)
    subprocess.run(["pkill", "-KILL", "-f", f"hcloud.engine.link {home.path}/"], check=True)
    home.started[-1].send_signal(signal.SIGKILL)
    home.started[-1].wait()
    home.daemon()
    home.run("wait", job)
    home.run("cp", job, str(tmp_path))
    whole = (b"0123456789\n" * (60_000_000 // 11 + 1))[:60_000_000]
    assert hashlib.sha256((tmp_path / "big").read_bytes()).digest() == hashlib.sha256(whole).digest()
    assert not list(outputs.glob("*.part"))


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "link", "device"])
def test_an_archive_that_leads_outside_is_refused(name: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.type = {"link": tarfile.SYMTYPE, "device": tarfile.CHRTYPE}.get(name, tarfile.REGTYPE)
        member.linkname = "/etc/passwd"
        tar.addfile(member)
    archive.seek(0)
    with pytest.raises(BadInput, match="no plain file below a folder; nothing was written"):
        list(members(archive, ""))
