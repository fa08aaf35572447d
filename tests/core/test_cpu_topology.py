"""CPUs of machines: what a machine may report, and how sets of CPUs are written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core.cpu_topology import (
    CPUS_MAX,
    CpuTopology,
    cpu_list,
    cpus_from,
    parse_cpu_list,
    regular_topology,
    topology_from,
    typical_topology,
)

TWO_BY_EIGHT = regular_topology(sockets=2, cores=8)


def test_two_sockets_of_eight_cores() -> None:
    assert typical_topology(16) == TWO_BY_EIGHT
    assert TWO_BY_EIGHT.words() == "2 sockets of 8 cores, 2 L3 caches, 2 NUMA nodes"
    assert TWO_BY_EIGHT.groups("l3") == {0: tuple(range(8)), 1: tuple(range(8, 16))}


def test_threads_of_a_core_are_numbered_apart_as_on_servers() -> None:
    topology = regular_topology(sockets=2, cores=4, threads=2, cores_of_cache=2)
    assert topology.groups("core")[0] == (0, 8)
    assert topology.words() == "2 sockets of 4 cores, 2 threads per core, 4 L3 caches, 2 NUMA nodes"
    assert regular_topology().words() == "1 socket, 1 core, 1 L3 cache, 1 NUMA node"


@given(st.integers(1, 300))
def test_what_an_honest_machine_reports_is_taken_whole(vcpus: int) -> None:
    topology = typical_topology(vcpus)
    assert len(topology.cpus) == vcpus
    assert topology_from(json.loads(json.dumps(topology.cpus))) == topology


@pytest.mark.parametrize(
    "rows",
    [
        None,
        [],
        "0-3",
        {"0": 1},
        [[0, 0, 0, 0]],
        [[0, 0, 0, 0, True]],
        [[0, 0, 0, 0, -1]],
        [[0, 0, 0, 0, 1e9]],
        [[10**9, 0, 0, 0, 0]],
        [[0, 0, 0, 0, "0"]],
        [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]],
        [[0, 0, 0, 0, 0], [0, 1, 0, 0, 0]],
        [[0, 0, 0, 0, 0], [1, 0, 1, 0, 0]],
        [[0, 0, 0, 0, 0], [1, 1, 0, 1, 0]],
        [[at, at, 0, 0, 0] for at in range(CPUS_MAX + 1)],
    ],
)
def test_what_no_machine_can_be_is_refused(rows: object) -> None:
    with pytest.raises(ValueError, match=r"topology|CPU"):
        topology_from(rows)


@given(st.frozensets(st.integers(0, 500), max_size=40))
def test_sets_of_cpus_are_written_as_the_kernel_writes_them(numbers: frozenset[int]) -> None:
    assert parse_cpu_list(cpu_list(numbers)) == tuple(sorted(numbers)) == cpus_from(list(numbers))


@pytest.mark.parametrize("numbers", [None, 3, ["0"], [True], [-1], [70_000], list(range(CPUS_MAX + 1))])
def test_what_is_no_set_of_cpus_is_refused(numbers: object) -> None:
    with pytest.raises(ValueError, match="CPUs"):
        cpus_from(numbers)


def test_ranges_are_bounded_before_they_are_made() -> None:
    assert cpu_list([8, 0, 1, 2]) == "0-2,8"
    with pytest.raises(ValueError, match="range"):
        parse_cpu_list("0-99999999999")


def test_groups_of_one_cpu() -> None:
    one = CpuTopology(typical_topology(4).cpus[1:2])
    assert (one.numbers, one.groups("node")) == ((1,), {0: (1,)})
