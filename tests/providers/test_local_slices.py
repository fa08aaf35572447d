"""What slices of this host promise beyond the contract: nothing outlives them, runs twice or leaks."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.core.errors import ConfigError, InsufficientCapacity, LaunchRejected, ProviderUnavailable
from hcloud.core.model import Market
from hcloud.core.resources import Gpus
from hcloud.provider import CloudInstance, CloudState
from providers.local import LocalProvider
from providers.local.slices import ProcessIdentity, SliceDirectory, write_json
from tests.providers.local_bench import LocalBench
from tests.waiting import wait_until


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[LocalBench]:
    bench = LocalBench(tmp_path / "local")
    yield bench
    bench.close()


def gone(pid: int) -> bool:
    """Whether no live process has the id."""
    return ProcessIdentity.of(pid) is None


def hungry(bench: LocalBench, mib: int) -> list[str]:
    """A worker command that takes memory, touches all of it and then says so."""
    path = bench.state_dir / "hungry.py"
    path.write_text(
        "import json, pathlib, signal, sys\n"
        "home = pathlib.Path(json.loads(pathlib.Path(sys.argv[-1]).read_text())['state_dir'])\n"
        f"(home / 'tried').touch()\nheld = bytearray({mib} << 20)\nheld[::4096] = b'x' * len(held[::4096])\n"
        "(home / 'had').touch()\nsignal.pause()\n"
    )
    return [sys.executable, str(path)]


# ------------------------------------------------------------------------------------------------- worker and its units
def test_dead_worker_is_started_again_and_its_unit_goes_on(bench: LocalBench) -> None:
    machine = bench.provider.launch(bench.request())
    worker, unit = bench.worker_pid(machine), bench.unit_pid(machine)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: bench.worker_pid(machine) != worker, 60)
    assert not gone(unit)
    assert bench.sight(machine).state is CloudState.RUNNING  # type: ignore[union-attr]


def test_terminate_kills_detached_units_and_gives_everything_back(bench: LocalBench) -> None:
    machine = bench.provider.launch(bench.request())
    pids = [bench.worker_pid(machine), bench.unit_pid(machine)]
    directory = bench.directory(machine.provider_id)
    groups = directory.record().cgroup_paths.values()  # type: ignore[union-attr]
    bench.provider.terminate([machine.provider_id])
    assert all(gone(pid) for pid in pids)
    assert not directory.machine.exists()
    assert not any(Path(path).exists() for path in groups)
    assert bench.sight(machine).state is CloudState.TERMINATED  # type: ignore[union-attr]


@pytest.mark.parametrize("cgroups", [True, False], ids=["as the host allows", "without control groups"])
def test_dead_supervisor_takes_its_units_down_before_the_slice_is_called_ended(
    bench: LocalBench, cgroups: bool
) -> None:
    bench.provider = bench.build({"cgroups": cgroups, "worker_command": marked_units(bench)})
    machine = bench.provider.launch(bench.request())
    pids = [bench.worker_pid(machine), bench.unit_pid(machine)]
    supervisor = bench.directory(machine.provider_id).supervisor()
    assert supervisor is not None
    supervisor.signal(signal.SIGKILL)
    wait_until(lambda: not supervisor.alive(), 60)
    (ended,) = bench.listed()
    assert ended.state is CloudState.TERMINATED
    assert ended.detail == "its supervisor died"
    assert all(gone(pid) for pid in pids)
    assert machine.launched_at <= ended.terminated_at <= bench.clock.now()  # type: ignore[operator]


def marked_units(bench: LocalBench) -> list[str]:
    """The stand-in, with units that keep their environment (as those of the engine do)."""
    source = Path(__file__).with_name("stand_in_worker.py").read_text()
    path = bench.state_dir / "marked.py"
    path.write_text(source.replace('env={"PATH": os.environ["PATH"]}', "env=dict(os.environ)"))
    return [sys.executable, str(path)]


def test_units_without_group_or_mark_are_found_by_descent(bench: LocalBench) -> None:
    bench.provider = bench.build({"cgroups": False})
    machine = bench.provider.launch(bench.request())
    unit = bench.unit_pid(machine)
    bench.provider.terminate([machine.provider_id])
    assert gone(unit)


def test_worker_sees_its_slice_but_no_secret_of_the_daemon(bench: LocalBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-tell")
    machine = bench.provider.launch(bench.request())
    bench.worker_pid(machine)
    home = bench.directory(machine.provider_id).machine
    seen = json.loads((home / "environment.json").read_text())
    assert "AWS_SECRET_ACCESS_KEY" not in seen
    assert seen["HCLOUD_SLICE"] == str(home.parent)


def test_worker_is_bound_to_the_cpus_of_its_slice(bench: LocalBench) -> None:
    machine = bench.provider.launch(bench.request())
    bench.worker_pid(machine)
    directory = bench.directory(machine.provider_id)
    bound = json.loads((directory.machine / "cpus.json").read_text())
    orders = json.loads(directory.bootstrap_file.read_text())
    assert bound == orders["cpus"]
    assert len(bound) == 1
    assert orders["isolation"] == "best_effort"  # unless the configuration says otherwise


@pytest.mark.parametrize("cgroups", [True, False], ids=["as the host allows", "without control groups"])
def test_slice_cannot_take_more_memory_than_it_has(bench: LocalBench, cgroups: bool) -> None:
    limits = {"cgroups": cgroups, "worker_memory_mib": 36}  # with the type's 64: 100 MiB in all
    for mib, fits in ((20, True), (300, False)):
        provider = bench.build({**limits, "worker_command": hungry(bench, mib)})
        home = bench.directory(provider.launch(bench.request()).provider_id).machine
        if fits:
            wait_until((home / "had").exists, 60)
        else:
            log = home.parent / "supervisor.log"
            wait_until(lambda log=log: "the worker exited with" in log.read_text(), 60)  # type: ignore[misc]
            assert (home / "tried").exists()
            assert not (home / "had").exists()


# ----------------------------------------------------------------------------------------------------------- its record
def test_reused_process_id_is_not_taken_for_the_supervisor(bench: LocalBench) -> None:
    machine = bench.provider.launch(bench.request())
    directory = bench.directory(machine.provider_id)
    supervisor = directory.supervisor()
    assert supervisor is not None
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        supervisor.signal(signal.SIGKILL)
        wait_until(lambda: not supervisor.alive(), 60)
        content = {"pid": stranger.pid, "started_ticks": supervisor.started_ticks, "boot_id": supervisor.boot_id}
        write_json(directory.path / "supervisor.json", content)
        assert bench.sight(machine).state is CloudState.TERMINATED  # type: ignore[union-attr]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_restarted_host_has_ended_all_its_slices(bench: LocalBench) -> None:
    machine = bench.provider.launch(bench.request())
    directory = bench.directory(machine.provider_id)
    bench.local.terminate([machine.provider_id])
    (directory.path / "ended.json").unlink()
    (directory.path / "stop.json").unlink()
    record = directory.record()
    assert record is not None
    directory.write_record(replace(record, boot_id="another-run-of-the-kernel"))
    seen = bench.sight(machine)
    assert seen is not None
    assert (seen.state, seen.detail) == (CloudState.TERMINATED, "the host was restarted")
    assert bench.provider.offers()[0].available == bench.restarted().offers()[0].available


def test_unreadable_record_is_an_error_and_not_an_absence(bench: LocalBench) -> None:
    machine = bench.provider.launch(bench.request())
    path = bench.directory(machine.provider_id).path / "slice.json"
    whole = path.read_text()
    path.write_text(whole[:20])
    with pytest.raises(ProviderUnavailable, match=r"slice\.json"):
        bench.provider.instances(bench.owner)
    path.write_text(whole)
    assert bench.sight(machine) is not None


def test_slices_of_another_owner_are_not_terminated(bench: LocalBench) -> None:
    machine = bench.provider.launch(bench.request())
    bench.for_owner("somebody-else").terminate([machine.provider_id])
    assert bench.sight(machine).state is CloudState.RUNNING  # type: ignore[union-attr]


def test_record_of_a_long_ended_slice_is_deleted(bench: LocalBench) -> None:
    machine = bench.provider.launch(bench.request())
    bench.provider.terminate([machine.provider_id])
    assert bench.build({"keep_ended_s": 0.0}).instances(bench.owner).instances == ()
    assert not bench.directory(machine.provider_id).path.exists()


# ------------------------------------------------------------------------------------------------------------- its time
def test_renewed_slice_lives_beyond_its_first_expiry_and_ends_at_the_new_one(bench: LocalBench) -> None:
    for life_s in (2.5, 20.0, 200.0):  # as long as a launch and a renewal take on a busy machine
        first_at = bench.clock.now() + life_s
        machine = bench.provider.launch(bench.request(expires_at=first_at))
        second_at = first_at + 2
        write_json(bench.directory(machine.provider_id).machine / "renewal.json", {"expires_at": second_at})
        if bench.clock.now() < first_at - life_s / 2:
            break
        bench.provider.terminate([machine.provider_id])
    assert bench.sight(machine).expires_at == second_at  # type: ignore[union-attr]
    ended = bench.until_gone(machine)
    assert ended is not None
    assert ended.terminated_at >= second_at  # type: ignore[operator]
    assert "expired" in ended.detail


def test_worker_can_switch_its_slice_off(bench: LocalBench) -> None:
    machine = bench.provider.launch(bench.request())
    bench.worker_pid(machine)
    write_json(bench.directory(machine.provider_id).machine / "off.json", {"reason": "its lease was not renewed"})
    ended = bench.until_gone(machine)
    assert ended is not None
    assert ended.detail == "powered off by its worker: its lease was not renewed"


@pytest.mark.parametrize(("market", "wish"), [(Market.ON_DEMAND, "1"), (Market.SPOT, "soon")])
def test_operators_mistaken_wish_for_preemption_is_refused(bench: LocalBench, market: Market, wish: str) -> None:
    machine = bench.provider.launch(bench.request(offer=replace(bench.offer(), market=market)))
    directory = bench.directory(machine.provider_id).path
    (directory / "preempt").write_text(wish)
    wait_until((directory / "preempt.refused").exists, 60)
    seen = bench.sight(machine)
    assert seen is not None
    assert (seen.state, seen.preempt_at) == (CloudState.RUNNING, None)


# ------------------------------------------------------------------------------------------------------- room and rules
def test_host_is_shared_out_once_and_room_comes_back(bench: LocalBench) -> None:
    provider = bench.build({"vcpus": 0.25})
    machines = [provider.launch(bench.request()) for _ in range(2)]
    assert {each.available for each in provider.offers()} == {0}
    with pytest.raises(InsufficientCapacity, match=r"0\.05 vCPU and \d+ MiB are free"):
        provider.launch(bench.request())
    provider.terminate([machines[0].provider_id])
    assert provider.launch(bench.request()).state is not CloudState.TERMINATED


def test_only_types_that_fit_the_host_are_offered(bench: LocalBench) -> None:
    small = bench.build({"vcpus": 0.1, "oversubscription": 1.5})
    assert {each.instance_type.name for each in small.offers()} == {"local.tiny"}
    twice = bench.build({"vcpus": 0.1, "oversubscription": 2.0})
    assert {each.instance_type.name for each in twice.offers()} == {"local.tiny", "local.double"}


def test_a_full_disk_is_waited_for_and_makes_no_type_smaller_for_good(
    bench: LocalBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bench.provider.offers()
    assert all(each.available for each in before)
    full = shutil.disk_usage(bench.state_dir)._replace(free=50 << 20)
    with monkeypatch.context() as patch:
        patch.setattr("providers.local.host.shutil.disk_usage", lambda _: full)
        during = bench.build({}).offers()
    assert [each.available for each in during] == [0] * len(before)
    assert [each.instance_type for each in during] == [each.instance_type for each in before]
    assert all(each.available for each in bench.provider.offers())


def test_reserved_slices_are_as_many_as_set(bench: LocalBench) -> None:
    provider = bench.build({"reserved": {"local.tiny": 1}, "markets": ["on_demand"]})
    offers = {each.key[2:]: each for each in provider.offers()}
    assert set(offers) == {("local.tiny", "on_demand"), ("local.tiny", "reserved"), ("local.double", "on_demand")}
    reserved = offers["local.tiny", "reserved"]
    assert reserved.available == 1
    assert reserved.price_usd_per_h < offers["local.tiny", "on_demand"].price_usd_per_h
    provider.launch(bench.request(offer=reserved))
    with pytest.raises(InsufficientCapacity):
        provider.launch(bench.request(offer=reserved))
    with pytest.raises(LaunchRejected, match="no spot local"):
        provider.launch(bench.request(offer=replace(reserved, market=Market.SPOT)))


def test_one_slice_at_a_time_has_the_gpus_and_a_host_without_them_offers_none(
    bench: LocalBench, tmp_path: Path
) -> None:
    gpus = {"count": 2, "kind": "t4", "memory_gib": 16}
    types = {
        "local.gpu": {"vcpus": 0.1, "memory_mib": 64, "gpus": gpus},
        "local.tiny": {"vcpus": 0.1, "memory_mib": 64},
    }
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    settings = {"types": types, "gpu_root": str(tmp_path), "markets": ["on_demand"]}
    lacking = bench.build(settings)
    assert [each.instance_type.name for each in lacking.offers()] == ["local.tiny"]
    assert lacking.facts()["local.gpu"] == "not offered: its driver shows 1 of 2 GPUs"
    (tmp_path / "dev/nvidia1").touch()
    provider = bench.build(settings)
    offer = provider.offers()[0]
    assert offer.instance_type.capacity.gpus == Gpus(count=2, kind="t4", memory_gib=16.0) and offer.available == 1
    first = provider.launch(bench.request(offer=offer))
    gpu, tiny = provider.offers()
    assert gpu.available == 0 and tiny.available
    provider.terminate([first.provider_id])
    assert provider.offers()[0].available == 1


def test_slices_get_user_ranges_of_their_own(bench: LocalBench) -> None:
    machines = [bench.provider.launch(bench.request()) for _ in range(3)]
    orders = [json.loads(bench.directory(each.provider_id).bootstrap_file.read_text()) for each in machines]
    bases = sorted(each["unit_uid_base"] for each in orders)
    assert bases == [61000, 61064, 61128]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"types": {"x": {"vcpus": 1, "memory_mib": 64, "dsk_gib": 1}}}, "did you mean 'disk_gib'"),
        ({"types": {"x": {"vcpus": 0, "memory_mib": 64}}}, "vcpus must be a number above 0"),
        ({"types": {}}, "types must map names"),
        ({"types": {"x": {"vcpus": 1, "memory_mib": 64, "gpus": 2}}}, "gpus must be {count, kind, memory_gib}"),
        ({"markets": ["reserved"]}, "markets must be a list of"),
        ({"reserved": {"local.huge": 1}}, "reserved names the unknown type 'local.huge'"),
        ({"oversubscription": -1}, "oversubscription must be a number above 0"),
        ({"worker_command": "python"}, "worker_command must be a list"),
    ],
)
def test_bad_setting_is_said_in_one_sentence(bench: LocalBench, settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bench.build(settings)
    assert said in str(caught.value)
    assert str(caught.value).startswith("providers: local: settings")


def test_state_directory_that_cannot_be_made_is_a_config_error(bench: LocalBench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bench.state_dir, kept = tmp_path / "file" / "below", bench.state_dir
    with pytest.raises(ConfigError, match="cannot create"):
        bench.build({})
    bench.state_dir = kept


def test_facts_name_isolation_and_what_is_missing(bench: LocalBench) -> None:
    facts = bench.provider.facts()
    assert {"host", "user", "cgroups", "pinning", "sandbox", "missing"} <= set(facts)
    assert bench.build({"cgroups": False}).facts()["cgroups"].startswith("none (disabled by setting)")


# ----------------------------------------------------------------------------------------------------- kill -9 anywhere
EFFECTS = ("os.mkdir", "os.chmod", "os.rename", "os.link", "os.remove", "os.rmdir", "subprocess.Popen")
"""What leaves traces, by the names of Python's audit events; besides opening a file to write it."""


def _launch_until_effect(bench: LocalBench, token: str, last_effect: int) -> bool:
    """Launch in a forked process that kills itself before its n-th effect; return whether it came so far."""
    request = bench.request(token=token, instance_id="inst-1")
    pid = os.fork()
    if pid == 0:
        effects = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal effects
            if event == "os.kill":
                return
            effects += event in EFFECTS or (event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR)))  # type: ignore[operator]
            if effects >= last_effect:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        bench.provider.launch(request)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def _kill_everywhere(bench: LocalBench, step: int) -> set[CloudState | None]:
    """Cut a launch off before every ``step``-th effect, repeat it, check; return the states in which it was left."""
    seen, cut_off, last_effect = set(), True, 1
    while cut_off:
        token = f"token-{last_effect}"
        cut_off = _launch_until_effect(bench, token, last_effect)
        before = [each for each in bench.listed() if each.state is not CloudState.TERMINATED]
        seen.add(before[0].state if before else None)
        machine = bench.provider.launch(bench.request(token=token, instance_id="inst-1"))
        _assert_one_runs(bench, machine, before)
        bench.provider.terminate([machine.provider_id])
        last_effect += step
    return seen


@pytest.mark.parametrize(
    ("cgroups", "step"), [(False, 1), (True, 6)], ids=["without control groups", "as the host allows"]
)
def test_killed_launch_leaves_nothing_or_what_the_same_token_completes(
    bench: LocalBench, cgroups: bool, step: int
) -> None:
    bench.provider = bench.build({"cgroups": cgroups})
    # Never pending: a daemon takes what is listed for launched, and would not repeat its launch.
    assert _kill_everywhere(bench, step) == {None, CloudState.RUNNING}
    assert [path.name for path in (bench.state_dir / "instances").glob(".*")] == []


def test_killing_everywhere_finds_a_launch_that_forgets_its_token(
    bench: LocalBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(provider: LocalProvider, owner: str, token: str) -> SliceDirectory:
        return SliceDirectory(bench.state_dir / "instances" / f"local-{token}-{os.getpid()}")

    monkeypatch.setattr(LocalProvider, "_directory_of", forgetful)
    bench.provider = bench.build({"cgroups": False})
    with pytest.raises(AssertionError):
        _kill_everywhere(bench, 4)


def _assert_one_runs(bench: LocalBench, machine: CloudInstance, before: list[CloudInstance]) -> None:
    assert {each.provider_id for each in before} <= {machine.provider_id}
    bench.worker_pid(machine)
    running = [each for each in bench.listed() if each.state is not CloudState.TERMINATED]
    assert [(each.provider_id, each.state) for each in running] == [(machine.provider_id, CloudState.RUNNING)]
    log = (bench.directory(machine.provider_id).path / "supervisor.log").read_text()
    assert "the worker exited" not in log
