"""What the packing benchmark says of units and servers that can be packed by hand."""

from __future__ import annotations

from bench.packing import STEP_S, Held, Servers, by_length, by_start, packed_s, servers_of, units_of
from hcloud.core.model import Event, EventKind


def told(kind: EventKind, at: float, job: str | None = None, instance: str | None = None, **fields: object) -> Event:
    return Event(seq=int(at), at=at, kind=kind, job_id=job, instance_id=instance, fields=fields)


def test_what_fits_on_reserved_servers_rents_nothing_and_the_rest_shares_one() -> None:
    units = [Held(0.0, 100.0, 8.0), Held(0.0, 100.0, 8.0), Held(50.0, 150.0, 16.0), Held(0.0, 100.0, 8.0)]
    assert packed_s(by_start(units), (16.0,), 16.0) == 2 * (100.0 + STEP_S)
    assert packed_s(by_start(units), (16.0, 16.0, 16.0), 16.0) == 0.0
    assert packed_s(by_length(units[:3]), (16.0,), 16.0) == 100.0 + STEP_S


def test_a_unit_goes_where_a_server_is_needed_anyway() -> None:
    units = [Held(0.0, 100.0, 10.0), Held(0.0, 20.0, 10.0), Held(30.0, 90.0, 6.0)]
    assert packed_s(by_start(units), (), 16.0) == 100.0 + STEP_S + 20.0 + STEP_S


def test_units_and_servers_are_read_from_the_log() -> None:
    log = [
        told(EventKind.INSTANCE_REQUESTED, 1.0, instance="inst-1", market="reserved", vcpus=16.0),
        told(EventKind.INSTANCE_LAUNCHED, 2.0, instance="inst-1"),
        told(EventKind.INSTANCE_REQUESTED, 3.0, instance="inst-2", market="on_demand", vcpus=16.0),
        told(EventKind.INSTANCE_LAUNCHED, 4.0, instance="inst-2"),
        told(EventKind.UNIT_STARTED, 5.0, "job-1", "inst-1", rank=0, vcpus=2.0),
        told(EventKind.UNIT_RESIZED, 9.0, "job-1", "inst-1", rank=0, vcpus=4.0),
        told(EventKind.UNIT_ENDED, 12.0, "job-1", "inst-1", rank=0),
        told(EventKind.INSTANCE_TERMINATED, 20.0, instance="inst-2"),
    ]
    assert units_of(log) == [Held(5.0, 9.0, 2.0), Held(9.0, 12.0, 4.0)]
    assert servers_of(log) == Servers((16.0,), (Held(4.0, 20.0, 16.0),))
