"""Dask, MPI and torchrun on a gang of two nodes: real programs in real sandboxes, or their command line at least."""

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.core.model import FailureCause
from hcloud.engine import gang_network
from hcloud.engine.gang_credential import gang_of, gang_pem, gang_port
from hcloud.engine.gang_launcher import Gang, Line, Stopped, torchrun_command
from tests.engine.gangs import DASK_CLIENT, MPI_PROGRAM, NODES, gang, needs_same_python, run, watched, work_directory
from tests.engine.site import PATIENCE_S, Site, Watch, free_port
from tests.machine import needs_bwrap, needs_mpirun, needs_root, needs_torchrun
from tests.waiting import wait_until

TORCH_PROGRAM = """
import torch, torch.distributed as gang
gang.init_process_group("gloo")
part = torch.tensor([gang.get_rank() + 1])
gang.all_reduce(part)
print(gang.get_rank(), "of", f"{gang.get_world_size()}: {part.item()}")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An engine with two machines."""
    site = Site(tmp_path_factory.mktemp("gangs"), isolation="best_effort")
    try:
        for name in NODES:
            site.machine(name)
        yield site
    finally:
        site.close()


@pytest.fixture(scope="module")
def watch(site: Site) -> Watch:
    """What the engine says."""
    return watched(site)


@needs_bwrap
@needs_same_python
def test_dask_runs_the_command_as_client_of_workers_on_all_nodes(watch: Watch, tmp_path: Path) -> None:
    dask = '#!/bin/sh\nexec python3 -m dask "$@"\n'
    archive = work_directory(tmp_path / "dask.tar.gz", ("distributed",), {"dask": dask})
    units = gang("dask", "python3", "-c", DASK_CLIENT, workdir=archive)
    own = [replace(each, network="none") for each in units]
    assert run(watch, own) == [7, 0], watch.output(own[0], "stderr")
    assert watch.output(own[0]) == "['rank-0', 'rank-1'] 4950 tls\n"


@needs_bwrap
@needs_same_python
@needs_mpirun
def test_mpi_runs_processes_on_all_nodes_and_ends_with_their_exit_code(watch: Watch, tmp_path: Path) -> None:
    archive = work_directory(tmp_path / "mpi.tar.gz", ("mpi4py",))
    units = [replace(each, network="none") for each in gang("mpi", "python3", "-c", MPI_PROGRAM, workdir=archive)]
    assert run(watch, units) == [3, 0], watch.output(units[0], "stderr")
    told = sorted(watch.output(units[0]).splitlines())
    assert told == [f"{rank} of 4 on node {rank // 2} sum 10" for rank in range(4)]


LOOK_ROUND = """#!/usr/bin/python3
import os, socket
rank = os.environ["HCLOUD_RANK"]
with socket.socket() as probe:
    print(rank, os.readlink("/proc/self/ns/net"), [name for _, name in socket.if_nameindex()],
          probe.connect_ex(("127.0.0.1", int(os.environ["OUTSIDE"]))), probe.connect_ex(("192.0.2.1", 9)), flush=True)
"""


@needs_bwrap
@needs_root
def test_ranks_of_one_host_have_a_loopback_of_their_own_and_reach_nothing_else(watch: Watch, tmp_path: Path) -> None:
    archive = work_directory(tmp_path / "look.tar.gz", programs={"torchrun": LOOK_ROUND})
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = {"OUTSIDE": str(outside.getsockname()[1])}
        units = gang("torchrun", "look.py", workdir=archive)
        units = [replace(each, network="none", env={**each.env, **port}) for each in units]
        assert run(watch, units) == [0, 0], watch.output(units[0], "stderr")
    looks = [watch.output(unit).strip().partition(" ")[2] for unit in units]
    assert looks[0] == looks[1] and os.readlink("/proc/self/ns/net") not in looks[0]
    assert looks[0].endswith(f"['lo'] {errno.ECONNREFUSED} {errno.ENETUNREACH}")


@needs_bwrap
@needs_root
def test_a_rank_that_waits_for_its_gang_s_network_ends_when_it_is_stopped(watch: Watch) -> None:
    unit = replace(gang("torchrun", "train.py")[1], network="none")
    watch.runner.start([unit])
    watch.running(unit)
    watch.runner.stop({unit.id: unit.instance_id}, cause=FailureCause.EVICTED)
    assert watch.ended(unit).cause is FailureCause.EVICTED


GIVE = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as listener, open("/proc/self/ns/net") as network:
    listener.bind(b"\\0" + sys.argv[1].encode())
    listener.listen()
    print("listening", flush=True)
    socket.send_fds(listener.accept()[0], [b"1"], [network.fileno()])
"""


@needs_root
@pytest.mark.parametrize("uid", [0, 65534])
def test_a_gang_s_network_is_taken_from_root_only(uid: int) -> None:
    name = f"hcloud-gang-test-{os.getpid()}-{uid}"
    with subprocess.Popen([sys.executable, "-c", GIVE, name, str(uid)], stdout=subprocess.PIPE) as giver:
        assert giver.stdout is not None and giver.stdout.readline() == b"listening\n"
        found = gang_network._received(b"\0" + name.encode(), lambda: True)
        giver.kill()
    assert (found is None) == (uid != 0)
    if found is not None:
        os.close(found)


@needs_bwrap
@needs_torchrun
def test_processes_of_torchrun_on_all_nodes_meet_and_add_up(watch: Watch, tmp_path: Path) -> None:
    archive = work_directory(tmp_path / "sum.tar.gz", programs={"sum.py": TORCH_PROGRAM})
    # Debian's PyTorch 1.13 fails with Python 3.11 unless both are set; it puts the process before each line.
    own = {"PET_REDIRECTS": "1", "PET_TEE": "1"}
    units = [replace(each, env={**each.env, **own}) for each in gang("torchrun", "bin/sum.py", workdir=archive)]
    assert run(watch, units) == [0, 0], watch.output(units[0], "stderr")
    assert [watch.output(unit) for unit in units] == [f"[default0]:{rank} of 2: 3\n" for rank in (0, 1)]


@needs_bwrap
def test_torchrun_is_called_on_each_node_with_the_address_of_the_first(watch: Watch, tmp_path: Path) -> None:
    program = '#!/bin/sh\necho "$@" at $MASTER_ADDR:$MASTER_PORT $NODE_RANK/$NNODES; exit 5\n'
    archive = work_directory(tmp_path / "torch.tar.gz", programs={"torchrun": program})
    units = gang("torchrun", "train.py", "--lr", "1", workdir=archive)
    assert run(watch, units) == [5, 5]
    told = [watch.output(unit).strip() for unit in units]
    port = told[0].partition("--master_port=")[2].partition(" ")[0]
    for rank, line in enumerate(told):
        where = f"--nnodes=2 --node_rank={rank} --master_addr=127.0.0.1 --master_port={port}"
        assert line == f"{where} train.py --lr 1 at 127.0.0.1:{port} {rank}/2"


def test_torchrun_runs_what_is_no_script_of_python_as_a_program(tmp_path: Path) -> None:
    first = rank_of(tmp_path, 0, gang_pem(b"key", "job-1.1_a"), 20_000)
    assert torchrun_command(first, ("sh", "-c", "train"), 1)[-4:] == ["--no_python", "sh", "-c", "train"]


@needs_bwrap
def test_a_missing_program_is_named(watch: Watch, tmp_path: Path) -> None:
    archive = work_directory(
        tmp_path / "python.tar.gz", programs={"python3": '#!/bin/sh\nexec /usr/bin/python3 "$@"\n'}
    )
    units = gang("torchrun", "train.py", workdir=archive)
    units = [replace(each, env={**each.env, "PATH": "/job/bin"}) for each in units]  # this host may have torchrun
    watch.runner.start(units)
    for record in map(watch.ended, units):
        assert record.cause is FailureCause.START_REFUSED
        assert record.detail == "framework torchrun: there is no program torchrun on this instance"


@needs_bwrap
def test_a_gang_that_waits_for_a_rank_ends_when_it_is_stopped(site: Site, watch: Watch, tmp_path: Path) -> None:
    archive = work_directory(tmp_path / "torch.tar.gz", programs={"torchrun": "#!/bin/sh\n"})
    units = gang("torchrun", "train.py", workdir=archive)
    watch.runner.start(units[:1])
    folder = site.machines[NODES[0]].unit(units[0].id).path / "root" / "tmp" / ".hcloud-gang"
    wait_until(folder.exists, PATIENCE_S)  # before that nothing of it could be stopped gently
    watch.runner.stop({units[0].id: units[0].instance_id}, cause=FailureCause.EVICTED)
    assert watch.ended(units[0]).cause is FailureCause.EVICTED


def test_the_certificate_of_an_attempt_is_always_the_same_and_no_other_s() -> None:
    assert gang_pem(b"key", "job-7.1_a") == gang_pem.__wrapped__(b"key", "job-7.1_a")
    assert len({gang_pem(b"key", "job-7.1_a"), gang_pem(b"key", "job-7.2_a"), gang_pem(b"yek", "job-7.1_a")}) == 3
    assert gang_of("job-7.1.0_a") == gang_of("job-7.1.12_a") == "job-7.1_a" != gang_of("job-7.1.0_b")
    assert 20_000 <= gang_port("job-7.1_a") < 30_000


def rank_of(folder: Path, rank: int, pem: str, port: int) -> Gang:
    """One rank's launcher, in this process."""
    given = {"HCLOUD_RANK": str(rank), "HCLOUD_NODES": "2", "HCLOUD_GANG_ADDRESSES": "127.0.0.1,127.0.0.1"}
    given |= {"HCLOUD_GANG_PEM": pem, "HCLOUD_GANG_PORT": str(port)}
    given |= {"TMPDIR": str(folder), "HCLOUD_VCPUS": "0.5", "HCLOUD_MEMORY_MIB": "64"}
    return Gang(given)


def connected(port: int) -> socket.socket | None:
    """A connection to that port; None: nothing listens there yet."""
    with suppress(OSError):
        return socket.create_connection(("127.0.0.1", port))
    return None


def test_another_gang_at_the_same_port_is_passed_by_and_let_in_by_none(tmp_path: Path) -> None:
    port = free_port()
    ours, theirs = gang_pem(b"key", "job-1.1_a"), gang_pem(b"key", "job-2.1_a")
    their_first, our_first = rank_of(tmp_path, 0, theirs, port), rank_of(tmp_path, 0, ours, port)
    threads = [threading.Thread(target=each.accept, daemon=True) for each in (their_first, our_first)]
    for each in threads:
        each.start()
    stranger = wait_until(lambda: connected(port), PATIENCE_S)  # says nothing at all
    assert stranger is not None
    with stranger:
        line = rank_of(tmp_path, 1, ours, port).connect()
        assert isinstance(line, Line)
        threads[1].join()
        assert set(our_first.others) == {1} and not their_first.others
    our_first.others[1].send(end=True)
    assert line.receive(5.0) == {"end": True}
    late = rank_of(tmp_path, 1, ours, port)
    late.stopping.set()
    with pytest.raises(Stopped):
        late.connect()
    rank_of(tmp_path, 1, theirs, port).connect()
    for each in threads:
        each.join()
