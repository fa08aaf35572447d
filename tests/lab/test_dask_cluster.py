"""The papers' experiments on a Dask cluster: a real scheduler and a real worker, on loopback."""

import socket
from collections.abc import Iterator

import pytest
from distributed import LocalCluster

from hcloud.core.errors import BadInput
from lab.papers.clusters import scheduler
from lab.papers.dask_cluster import dask_executor
from lab.papers.study import Case, Figure, FinishedRuns, RunSize, run_figure

SIZE = RunSize(share=0.03, hours=0.1, seeds=1)
FIGURE = Figure(
    name="little",
    title="Two schedulers",
    source="nowhere",
    cases=tuple(
        Case(label=order, experiment="paragon-small-low", policy=scheduler(order))
        for order in ("least_loaded", "paragon")
    ),
    columns=("qos_kept_pct",),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp://", dashboard_address=":0"
    ) as cluster:
        yield cluster


def test_a_cluster_gives_the_numbers_that_this_machine_gives(cluster: LocalCluster) -> None:
    here: FinishedRuns = {}
    there: FinishedRuns = {}
    run_figure(FIGURE, SIZE, 1, here, lambda label: None)
    run_figure(FIGURE, SIZE, cluster.scheduler_address, there, lambda label: None)
    assert there == here and there["paragon"][0]["jobs"] > 0


def test_a_cluster_without_workers_runs_nothing(cluster: LocalCluster) -> None:
    with LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=0, processes=False, protocol="tcp://", dashboard_address=":0"
    ) as empty:
        with pytest.raises(BadInput, match="it has no workers; start some with `dask worker tcp://127"):
            with dask_executor(empty.scheduler_address):
                pass


@pytest.mark.parametrize("address", ["nonsense", "tcp://10.0.0.5", "tcp://10.0.0.5:many"])
def test_an_address_without_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(BadInput, match=f"--scheduler '{address}': must be an address such as tcp://"):
        with dask_executor(address):
            pass


def test_a_scheduler_that_does_not_answer_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(BadInput, match=f"--scheduler 'tcp://127.0.0.1:{port}': no Dask scheduler answers: .*refused"):
        with dask_executor(f"tcp://127.0.0.1:{port}"):
            pass
