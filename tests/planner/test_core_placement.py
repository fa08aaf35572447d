"""Which CPUs of a machine are better for one unit, by what its neighbours press on there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.cpu_topology import CpuTopology, regular_topology, typical_topology
from hcloud.planner.fit import core_placement
from hcloud.planner.fit.core_placement import HARM, CpuAssignment, CpuSharing, CpuUnit, better_cpus

TWO_BY_EIGHT = regular_topology(sockets=2, cores=8)
TWO_CPUS = regular_topology(cores=2)
SMT = regular_topology(cores=4, threads=2)


def unit(name: str, *cpus: int, of: CpuTopology = TWO_BY_EIGHT, vcpus: float = 1.0, **changes: object) -> CpuUnit:
    plain = CpuUnit(name=name, vcpus=vcpus, use=vcpus, cpus=cpus or of.numbers, has_target=name.startswith("svc"))
    return replace(plain, **changes)  # type: ignore[arg-type]


def slowdown(topology: CpuTopology, *units: CpuUnit) -> float:
    return float(CpuSharing(topology).slowdowns(units)[0])


FEELS = {"llc-capacity": 10.0, "memory-bandwidth": 10.0, "l2": 10.0, "storage-bandwidth": 10.0}


@pytest.mark.parametrize(
    ("source", "slowed_on"),
    [
        ("l2", {"same core"}),
        ("llc-capacity", {"same core", "same cache"}),
        ("memory-bandwidth", {"same core", "same cache", "same node"}),
        ("storage-bandwidth", {"same core", "same cache", "same node", "other socket"}),
    ],
)
def test_neighbours_press_the_more_the_closer_they_are(source: str, slowed_on: set[str]) -> None:
    topology = regular_topology(sockets=2, cores=4, threads=2, cores_of_cache=2)
    places = {"same core": 8, "same cache": 1, "same node": 2, "other socket": 4}
    svc = unit("svc", 0, tolerated=FEELS)
    found = {place: slowdown(topology, svc, unit("hog", cpu, caused={source: 100.0})) for place, cpu in places.items()}
    assert {place for place, times in found.items() if times > 1.2} == slowed_on
    assert all(times == pytest.approx(1.0) for place, times in found.items() if place not in slowed_on)


def test_units_on_one_cpu_take_turns() -> None:
    assert slowdown(TWO_CPUS, unit("svc", 0), unit("hog", 0)) == pytest.approx(2.0)
    assert slowdown(TWO_CPUS, unit("svc", 0), unit("hog", 1)) == pytest.approx(1.0)
    assert slowdown(TWO_CPUS, unit("svc", 0, use=0.3), unit("hog", 0, 1)) == pytest.approx(1.5)
    assert slowdown(TWO_CPUS, unit("svc", 0, vcpus=2.0)) == pytest.approx(2.0)


def test_a_unit_leaves_the_cpu_that_another_is_on() -> None:
    units = [unit("svc", 0, of=TWO_CPUS), unit("hog", 0, of=TWO_CPUS)]
    found = better_cpus(TWO_CPUS, units, "svc", 1.05)
    assert found is not None
    assert (found.cpus, found.speedup) == ({"svc": (1,)}, pytest.approx(2.0))


def test_a_unit_that_feels_memory_goes_to_the_other_socket() -> None:
    hogs = [unit(f"hog{at}", at, caused={"memory-bandwidth": 60.0}) for at in range(1, 4)]
    found = better_cpus(TWO_BY_EIGHT, [unit("svc", 0, tolerated=FEELS), *hogs], "svc", 1.05)
    assert found is not None
    assert set(found.cpus) == {"svc"} and set(found.cpus["svc"]) <= set(range(8, 16))
    assert found.slowdown == pytest.approx(1.0)


def test_neighbours_that_run_anywhere_are_kept_off_its_cpus() -> None:
    units = [unit("svc", of=TWO_CPUS), unit("hog", of=TWO_CPUS)]
    found = better_cpus(TWO_CPUS, units, "svc", 1.05)
    assert found is not None
    assert sorted(found.cpus.values()) == [(0,), (1,)]


def test_a_neighbour_that_feels_nothing_is_kept_off_a_socket_where_that_helps() -> None:
    hog = unit("hog", vcpus=4.0, caused={"llc-capacity": 100.0})
    found = better_cpus(TWO_BY_EIGHT, [unit("svc", tolerated=FEELS), hog], "svc", 1.05)
    assert found is not None
    sockets = {name: {cpu // 8 for cpu in cpus} for name, cpus in found.cpus.items()}
    assert sockets["svc"].isdisjoint(sockets["hog"]) and len(found.cpus["hog"]) >= 4


def test_what_was_observed_of_two_programs_counts_by_the_cache_they_share() -> None:
    beside = unit("svc", 0, observed={"hog": 0.5})
    assert slowdown(TWO_BY_EIGHT, beside, unit("hog", 1)) == pytest.approx(1.5)
    assert slowdown(TWO_BY_EIGHT, beside, unit("hog", 9)) == pytest.approx(1.0)
    found = better_cpus(TWO_BY_EIGHT, [beside, unit("hog", 1)], "svc", 1.05)
    assert found is not None and found.cpus["svc"] == (8,)


def test_no_unit_with_a_target_is_slowed_for_another() -> None:
    units = [unit("svc", 0, of=TWO_CPUS), unit("hog", 0, of=TWO_CPUS), unit("svc2", 1, of=TWO_CPUS)]
    assert better_cpus(TWO_CPUS, units, "svc", 1.05) is None


def test_best_effort_is_squeezed_only_where_that_is_asked_for() -> None:
    units = [unit("svc", of=TWO_CPUS), unit("hog", of=TWO_CPUS, vcpus=2.0)]
    assert better_cpus(TWO_CPUS, units, "svc", 1.2) is None
    found = better_cpus(TWO_CPUS, units, "svc", 1.2, squeeze=True)
    assert found is not None
    assert sorted(found.cpus.values()) == [(0,), (1,)]


def test_a_unit_that_cannot_be_pinned_now_stays() -> None:
    units = [unit("svc", of=TWO_CPUS), unit("hog", of=TWO_CPUS, may_move=False)]
    assert better_cpus(TWO_CPUS, units, "svc", 1.05) is None


@st.composite
def machines(draw: st.DrawFn) -> tuple[CpuTopology, list[CpuUnit]]:
    topology = draw(st.sampled_from([TWO_CPUS, SMT, TWO_BY_EIGHT, typical_topology(32)]))
    amounts = st.dictionaries(st.sampled_from(sorted(FEELS)), st.floats(1.0, 100.0), max_size=3)
    units = [
        unit(
            f"{'svc' if draw(st.booleans()) else 'hog'}{number}",
            *draw(st.lists(st.sampled_from(topology.numbers), max_size=4, unique=True).map(sorted)),
            of=topology,
            vcpus=draw(st.sampled_from([0.25, 1.0, 1.5, 3.0])),
            caused=draw(amounts),
            tolerated=draw(amounts),
        )
        for number in range(draw(st.integers(1, 5)))
    ]
    return topology, [replace(units[0], has_target=True), *units[1:]]


@settings(max_examples=30, deadline=None)
@given(machines(), st.booleans())
def test_what_is_proposed_keeps_its_promises(given_: tuple[CpuTopology, list[CpuUnit]], squeeze: bool) -> None:
    topology, units = given_
    found = better_cpus(topology, units, units[0].name, 1.05, squeeze=squeeze)
    if found is not None:
        keeps_its_promises(topology, units, found, squeeze=squeeze)


def test_seeded_fault_a_service_slowed_for_another_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_placement, "HARM", 1e9)
    hog = unit("hog", 0, 1, of=TWO_CPUS, may_move=False)
    units = [unit("svc", 0, of=TWO_CPUS), unit("svc2", 1, of=TWO_CPUS, use=0.1), replace(hog, cpus=(0,))]
    found = better_cpus(TWO_CPUS, units, "svc", 1.05)
    assert found is not None
    with pytest.raises(AssertionError):
        keeps_its_promises(TWO_CPUS, units, found)


def keeps_its_promises(
    topology: CpuTopology, units: list[CpuUnit], found: CpuAssignment, *, squeeze: bool = False
) -> None:
    moved = [replace(each, cpus=found.cpus.get(each.name, each.cpus)) for each in units]
    before, after = (CpuSharing(topology).slowdowns(some) for some in (units, moved))
    assert after[0] == pytest.approx(found.slowdown) and before[0] >= 1.05 * after[0] - 1e-9
    for at, (was, each) in enumerate(zip(units, moved, strict=True)):
        assert each.cpus and set(each.cpus) <= set(topology.numbers)
        if each.cpus != was.cpus and not (squeeze and not each.has_target):
            assert len(each.cpus) >= min(each.size, len(topology.cpus))
        if at and each.has_target:
            assert after[at] <= before[at] * (1.0 + HARM) + 1e-9
