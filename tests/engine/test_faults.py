"""Whatever part of the engine dies, units go on, are found again, or are honestly said to be lost."""

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hcloud.core.clock import SystemClock
from hcloud.core.model import FailureCause, Resources
from hcloud.core.task_runs import UnitTasks
from hcloud.engine.bootstrap import POWERED_OFF_EXIT, Bootstrap, load_bootstrap
from hcloud.engine.sandbox import Isolation
from hcloud.engine.tls import make_ca
from hcloud.engine.unit import read_json
from hcloud.engine.wire import unit_to_wire
from hcloud.engine.worker import WorkerSupervisor
from hcloud.provider import UnitSpec, UnitState
from tests.engine.conftest import NAME
from tests.engine.site import PATIENCE_S, SMALL, Machine, Site, Watch, kill, new_unit_id
from tests.machine import needs_two_cpus
from tests.waiting import wait_until


def unit(script: str, name: str = NAME, **changes: object) -> UnitSpec:
    spec = UnitSpec(
        id=new_unit_id(),
        instance_id=name,
        rank=0,
        command=("/bin/sh", "-c", script),
        resources=SMALL,
        stop_grace_s=1.0,
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def archive(folder: Path, **files: str) -> Path:
    """A work directory as the command line uploads it."""
    path = folder / "upload.tar.gz"
    with tarfile.open(path, "w:gz") as target:
        for name, content in files.items():
            (folder / name).write_text(content)
            target.add(folder / name, arcname=name.replace("_", "."))
    return path


# ---------------------------------------------------------------------------------------------- deaths
def test_unit_outlives_link_supervisor_and_scheduler(site: Site, machine: Machine, watch: Watch) -> None:
    long = unit("echo ready; while [ ! -e go ]; do sleep 0.05; done; echo done")
    watch.runner.start([long])
    watch.says(long, "ready")
    kill(machine.link())
    machine.supervisor.kill()
    machine.supervisor.wait()
    site.kill_engine()
    site.start_engine()
    machine.start()
    watch.registered(NAME)
    assert watch.running(long).exit is None
    (machine.unit(long.id).path / "root/job/go").touch()
    assert watch.ended(long).exit_code == 0
    assert watch.output(long) == "ready\ndone\n"


@needs_two_cpus
def test_pinned_unit_stays_on_its_cpus_when_its_worker_dies(site: Site, machine: Machine, watch: Watch) -> None:
    long = unit("echo ready; while [ ! -e go ]; do sleep 0.05; done; grep Cpus_allowed_list /proc/self/status")
    watch.runner.start([long])
    watch.says(long, "ready")
    pinned = watch.runner.resize({long.id: (NAME, long.resources)}, cpus={long.id: (1,)})
    assert pinned[long.id].outcome == "resized"
    kill(machine.link())
    machine.supervisor.kill()
    machine.supervisor.wait()
    machine.start()
    watch.registered(NAME)
    wait_until(lambda: (sample := watch.running(long).sample) is not None and sample.cpus == (1,), PATIENCE_S)
    (machine.unit(long.id).path / "root/job/go").touch()
    assert watch.ended(long).exit_code == 0
    assert watch.output(long).split() == ["ready", "Cpus_allowed_list:", "1"]


def test_a_worker_keeps_no_name_of_what_it_was_told_to_forget_for_ever(machine: Machine, watch: Watch) -> None:
    forgotten = machine.state_dir / "forgotten"
    (forgotten / "job-1.1.0").touch()
    os.utime(forgotten / "job-1.1.0", (0, 0))
    short = unit("true")
    watch.runner.start([short])
    assert watch.ended(short).exit_code == 0
    watch.runner.forget({short.id: NAME})
    wait_until(lambda: [path.name for path in forgotten.iterdir()] == [short.id], PATIENCE_S)


def test_unit_that_ended_while_no_worker_was_there_is_reported(machine: Machine, watch: Watch) -> None:
    short = unit("echo ready; while [ ! -e go ]; do sleep 0.05; done; exit 3")
    watch.runner.start([short])
    watch.says(short, "ready")
    kill(machine.link())
    machine.supervisor.kill()
    machine.supervisor.wait()
    (machine.unit(short.id).path / "root/job/go").touch()
    wait_until(lambda: machine.unit(short.id).ended, PATIENCE_S)
    machine.start()
    watch.registered(NAME)
    assert watch.ended(short).exit_code == 3


def test_unit_dies_with_its_keeper_and_is_said_to_be_lost(machine: Machine, watch: Watch) -> None:
    long = unit("echo ready; setsid sleep 300 & sleep 300")
    watch.runner.start([long])
    watch.says(long, "ready")
    os.kill(machine.keeper(long.id), signal.SIGKILL)
    record = watch.ended(long)
    assert (record.cause, record.exit_code) == (FailureCause.INSTANCE_LOST, None)
    assert "keeper was killed" in record.detail
    assert not _processes_naming(long.id)


def test_tasks_of_a_unit_run_once_whatever_is_killed(site: Site, machine: Machine, watch: Watch) -> None:
    """Link, supervisor and gateway are killed while it runs; then its keeper, which takes one task with it."""
    script = "echo $HCLOUD_TASK_ID; case $HCLOUD_TASK_ID in [24]0) while [ ! -e go ]; do sleep 0.05; done;; esac"
    many = unit(script, tasks=UnitTasks(positions=((0, 49),), ids=tuple(range(50)), first_job=2))
    watch.runner.start([many])
    root = machine.unit(many.id).path / "root/job"
    watch.says(many, "20")
    kill(machine.link())
    machine.supervisor.kill()
    machine.supervisor.wait()
    site.kill_engine()
    site.start_engine()
    (root / "go").touch()
    machine.start()
    watch.registered(NAME)
    watch.says(many, "40")
    os.kill(machine.keeper(many.id), signal.SIGKILL)
    assert watch.ended(many).cause is FailureCause.INSTANCE_LOST
    assert watch.output(many).split() == [str(each) for each in range(41)]
    progress = watch.report(many).tasks
    assert progress is not None and progress.begun == ((40, 40),)
    assert [(each.first, each.last) for each in progress.ended] == [(0, 39)]


def test_units_of_before_a_reboot_are_lost(machine: Machine, watch: Watch) -> None:
    long = unit("echo ready; sleep 300")
    watch.runner.start([long])
    watch.says(long, "ready")
    machine.kill()
    spec = machine.unit(long.id).read("spec.json")
    assert spec is not None
    machine.unit(long.id).write("spec.json", {**spec, "boot_id": "another boot"})
    machine.start()
    watch.registered(NAME)
    record = watch.ended(long)
    assert record.cause is FailureCause.INSTANCE_LOST and "restarted" in record.detail


def test_stop_of_a_unit_whose_keeper_died_keeps_its_cause(machine: Machine, watch: Watch) -> None:
    long = unit("trap '' TERM; echo ready; while :; do sleep 0.1; done", stop_grace_s=60.0)
    watch.runner.start([long])
    watch.says(long, "ready")
    watch.runner.stop({long.id: NAME}, cause=FailureCause.PREEMPTED)
    os.kill(machine.keeper(long.id), signal.SIGKILL)
    assert watch.ended(long).cause is FailureCause.PREEMPTED


# ------------------------------------------------------------------------------------ expiry and lease
def test_expired_machine_stops_its_units_and_stays_off(site: Site) -> None:
    machine = site.machine("inst-expiring")
    watch = Watch(site.runner())
    watch.registered(machine.name)
    long = unit("echo ready; sleep 300", machine.name)
    watch.runner.start([long])
    watch.says(long, "ready")
    watch.runner.renew({machine.name: SystemClock().now() + 0.5})
    assert machine.supervisor.wait(timeout=PATIENCE_S) == POWERED_OFF_EXIT
    record = machine.unit(long.id).read("exit.json")
    assert record is not None and record["cause"] == "instance_lost"
    assert "expired" in (read_json(machine.state_dir / "off.json") or {})["reason"]
    machine.start()
    assert machine.supervisor.wait(timeout=PATIENCE_S) == POWERED_OFF_EXIT


def test_renewal_outlives_the_supervisor(site: Site) -> None:
    machine = site.machine("inst-renewed")
    runner = site.runner()
    Watch(runner).registered(machine.name)
    assert runner.renew({machine.name: SystemClock().now() + 3600}) == {machine.name}
    link = machine.link()
    machine.supervisor.kill()
    machine.supervisor.wait()
    kill(link)
    told_at_launch = json.loads(machine.bootstrap_file.read_text())
    machine.bootstrap_file.write_text(json.dumps({**told_at_launch, "expires_at": SystemClock().now() - 60}))
    machine.start()
    Watch(site.runner()).registered(machine.name)
    assert machine.supervisor.poll() is None
    machine.clean()


def test_machine_whose_lease_is_not_renewed_switches_itself_off(site: Site) -> None:
    machine = site.machine("inst-left-alone", lease_s=4)
    assert machine.supervisor.wait(timeout=PATIENCE_S) == POWERED_OFF_EXIT
    assert "lease" in (read_json(machine.state_dir / "off.json") or {})["reason"]


def test_poweroff_command_of_a_real_machine_is_run(site: Site, tmp_path: Path) -> None:
    mark = tmp_path / "off"
    machine = site.machine("inst-with-a-switch", lease_s=0.1, poweroff=["touch", str(mark)])
    machine.supervisor.wait(timeout=PATIENCE_S)
    assert mark.exists()


def test_second_worker_on_one_machine_ends_at_once(machine: Machine, watch: Watch) -> None:
    command = [sys.executable, "-m", "hcloud.agent", "worker", "--bootstrap", str(machine.bootstrap_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1 and "another worker runs" in done.stderr
    watch.registered(NAME)


# -------------------------------------------------------------------------------------- work directory
def test_work_directory_arrives_whole_however_large(watch: Watch, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(os.urandom(3 << 20))
    upload = archive(tmp_path, run_sh="wc -c < noise; exit 5", hello="hi")
    with tarfile.open(upload, "w:gz") as target:
        target.add(tmp_path / "noise", arcname="noise")
        target.add(tmp_path / "run_sh", arcname="run.sh")
    record, output = watch.run(unit("sh run.sh", workdir=str(upload)))
    assert (record.exit_code, output.strip()) == (5, str(3 << 20))
    again, _ = watch.run(unit("test -f noise", workdir=str(upload)))
    assert again.exit_code == 0


@pytest.mark.parametrize("name", ["/etc/evil", "../evil", "a/../../evil"])
def test_archive_that_leads_outside_is_refused(watch: Watch, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as target:
        member = target.gettarinfo(tmp_path / "file")
        member.name = name
        target.addfile(member, (tmp_path / "file").open("rb"))
    record, _ = watch.run(unit("true", workdir=str(tmp_path / "evil.tar.gz")))
    assert record.cause is FailureCause.START_REFUSED and "archive" in record.detail


def test_archive_that_unpacks_to_more_than_the_disk_is_refused(watch: Watch, tmp_path: Path) -> None:
    (tmp_path / "zeros").write_bytes(bytes(50 << 20))
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz") as target:
        target.add(tmp_path / "zeros", arcname="zeros")
    small = Resources(vcpus=0.5, memory_mib=128, disk_gib=0.02)
    record, _ = watch.run(unit("true", workdir=str(tmp_path / "bomb.tar.gz"), resources=small))
    assert record.cause is FailureCause.START_REFUSED and "20 MiB" in record.detail


def test_failing_setup_ends_the_unit_before_its_command(watch: Watch) -> None:
    record, output = watch.run(unit("echo command", setup="echo setup; exit 9"))
    assert (record.exit_code, record.cause, output) == (9, FailureCause.EXIT_CODE, "setup\n")
    assert "setup" in record.detail


def test_output_over_its_limit_says_what_was_dropped(site: Site) -> None:
    machine = site.machine("inst-small-logs", settings={"max_log_mib": "1"})
    watch = Watch(site.runner())
    watch.registered(machine.name)
    loop = "i=0; while [ $i -lt 60000 ]; do echo line number $i xxxxxxxxxxxxxxxxxx; i=$((i+1)); done"
    record, output = watch.run(unit(loop, machine.name))
    assert record.exit_code == 0
    assert output.startswith("[hcloud: ") and "older output were dropped" in output.splitlines()[0]
    assert output.rstrip().endswith("line number 59999 xxxxxxxxxxxxxxxxxx")
    assert len(output) < 1.2 * (1 << 20)
    machine.clean()


def test_unit_ids_that_are_no_names_are_refused(watch: Watch) -> None:
    bad = unit("true", id="../../evil")
    result = watch.runner.start([bad])[bad.id]
    assert result.outcome == "refused" and "cannot be a unit id" in result.detail


def test_unit_that_a_worker_refused_never_starts_there(tmp_path: Path) -> None:
    make_ca(tmp_path)
    machine = Machine(tmp_path, NAME, "127.0.0.1:1", tmp_path, isolation="best_effort")
    bootstrap = load_bootstrap(machine.bootstrap_file)
    bare = Isolation(root=False, bwrap=None, firewall=False, cgroup=None, podman=None, pinned=False)
    bad = unit_to_wire(unit("true", image="debian:12"))
    refused = _as_told(bootstrap, machine, bare, bad)
    assert "image 'debian:12' cannot be run here" in refused["refused"]
    assert _as_told(bootstrap, machine, bare, {**bad, "image": None}) == refused
    exit_record = machine.unit(bad["id"]).report()["exit"]
    assert (exit_record["cause"], exit_record["detail"]) == (FailureCause.START_REFUSED, refused["refused"])


def _as_told(bootstrap: Bootstrap, machine: Machine, isolation: Isolation, spec: dict[str, Any]) -> dict[str, Any]:
    """What a supervisor that is only now started answers to a start."""
    supervisor = WorkerSupervisor(bootstrap, machine.bootstrap_file, isolation, SystemClock())
    return supervisor._answer({"op": "start", "spec": spec, "archive": None})


def test_image_that_cannot_be_had_is_said_in_one_sentence(watch: Watch) -> None:
    bad = unit("true", image="localhost/hcloud-no-such-image:1")
    result = watch.runner.start([bad])[bad.id]
    detail = result.detail if result.outcome == "refused" else watch.ended(bad).detail
    assert "image 'localhost/hcloud-no-such-image:1'" in detail


def test_unit_spec_that_is_running_is_seen_running_after_many_observations(watch: Watch) -> None:
    long = unit("echo ready; sleep 300")
    watch.runner.start([long])
    watch.says(long, "ready")
    states = {report.state for report in (watch.report(long) for _ in range(20)) if report is not None}
    assert states <= {UnitState.RUNNING}
    watch.runner.stop({long.id: NAME}, cause=None)
    watch.ended(long)


def _open_files(pid: int) -> Iterator[str]:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            yield os.readlink(entry)


def _processes_naming(unit_id: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"HCLOUD_UNIT_ID={unit_id}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_call_that_was_told_as_unknown_is_not_carried_out_when_the_worker_wakes(
    site: Site, machine: Machine, watch: Watch
) -> None:
    first, (hasty, other) = unit("echo first"), (site.runner({"call_timeout_s": 3.0}) for _ in range(2))
    watch.run(first)
    link = machine.link()
    os.kill(link, signal.SIGSTOP)
    try:
        late = unit("echo late")
        other.forget({first.id: NAME})  # nobody waits for it, but its time is over before the other's
        assert hasty.start([late])[late.id].outcome in ("unknown", "not_sent")
    finally:
        os.kill(link, signal.SIGCONT)
    record, output = watch.run(unit("echo after"))
    assert (record.exit_code, output) == (0, "after\n")
    assert watch.output(first) == "first\n" and watch.report(late) is None
    assert watch.run(late)[1] == "late\n"


def test_reconnecting_again_and_again_leaves_no_watch_open(site: Site, machine: Machine, watch: Watch) -> None:
    def watches() -> int:
        return sum("inotify" in target for target in _open_files(machine.link()))

    for _ in range(3):
        site.kill_engine()
        wait_until(lambda: not watch.runner.observe().reachable, PATIENCE_S)
        site.start_engine()
        watch.registered(NAME)
        watch.run(unit("echo once more"))
    wait_until(lambda: watches() <= 1, PATIENCE_S)
