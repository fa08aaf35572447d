"""How full the servers that HF rents could be: the units it ran, packed again by one who knew how long each would take,
and had no neighbours to mind. Says how much of HF's cost is a matter of placing, not of what nobody can know."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.rows import Row
from hcloud.core.model import Event, EventKind
from hcloud.core.pricing import HOUR_S
from hcloud.planner.fleet import SLACK
from hcloud.simulator.run import simulated
from lab.papers.fuller_servers import FULL_HF, WHOLE, case_of
from lab.papers.study import RunSize, setting_of

SEEDS = (0, 1, 2)
CYCLE_S, STEP_S = 5.0, 5.0
TOLERANCE = dict(WHOLE)[FULL_HF]


class Held(NamedTuple):
    """What a unit held, in vCPUs, and from when to when, in seconds of the simulation."""

    since: float
    until: float
    vcpus: float


class Servers(NamedTuple):
    """Servers of a run: vCPUs of those that are reserved, and from when to when each other one was paid for."""

    reserved: tuple[float, ...]
    rented: tuple[Held, ...]


def run() -> Iterator[Row]:
    """Simulate HF with filled servers, and pack what it ran again."""
    for seed in SEEDS:
        setting = replace(setting_of(case_of(FULL_HF, TOLERANCE), seed, RunSize()), cycle_s=CYCLE_S)
        with tempfile.TemporaryDirectory() as folder, simulated(setting, Path(folder)) as simulation:
            simulation.run()
            events = tuple(simulation.events())
        units, servers = units_of(events), servers_of(events)
        size = servers.rented[0].vcpus
        paid_h = sum(each.until - each.since for each in servers.rented) / HOUR_S
        yield Row(name=f"HF, seed {seed}: servers rented", value=paid_h, unit="h", note=f"of {size:g} vCPUs")
        for name, order in (("as they come", by_start), ("the longest first", by_length)):
            packed_h = packed_s(order(units), servers.reserved, size) / HOUR_S
            note = f"{1 - packed_h / paid_h:.0%} fewer; packed by who knows how long each unit takes"
            yield Row(name=f"the same units, {name}", value=packed_h, unit="h", note=note)


def units_of(events: Iterable[Event]) -> list[Held]:
    """Return what each unit held; one that was resized is another one from then on."""
    open_ones: dict[tuple[str | None, object], tuple[float, float]] = {}
    found: list[Held] = []
    for event in events:
        key = (event.job_id, event.fields.get("rank"))
        if event.kind in (EventKind.UNIT_ENDED, EventKind.UNIT_RESIZED) and key in open_ones:
            since, vcpus = open_ones.pop(key)
            found.append(Held(since, event.at, vcpus))
        if event.kind in (EventKind.UNIT_STARTED, EventKind.UNIT_RESIZED):
            open_ones[key] = (event.at, float(str(event.fields["vcpus"])))
    return [each for each in found if each.until > each.since]


def servers_of(events: Sequence[Event]) -> Servers:
    """Return the servers that there were, reserved or rented."""
    asked = {e.instance_id: e.fields for e in events if e.kind is EventKind.INSTANCE_REQUESTED}
    since = {e.instance_id: e.at for e in events if e.kind is EventKind.INSTANCE_LAUNCHED}
    until = {e.instance_id: e.at for e in events if e.kind is EventKind.INSTANCE_TERMINATED}
    size = {name: float(str(fields["vcpus"])) for name, fields in asked.items()}
    reserved = tuple(size[name] for name in since if asked[name]["market"] == "reserved")
    end_at = max(event.at for event in events)
    rented = [Held(at, until.get(name, end_at), size[name]) for name, at in since.items()
              if asked[name]["market"] != "reserved"]  # fmt: skip
    return Servers(reserved, tuple(rented))


def by_start(units: Sequence[Held]) -> list[Held]:
    """Return them as they come."""
    return sorted(units)


def by_length(units: Sequence[Held]) -> list[Held]:
    """Return the longest first."""
    return sorted(units, key=lambda each: (each.since - each.until, each))


def packed_s(units: Sequence[Held], reserved: Sequence[float], size: float) -> float:
    """Return for how many server seconds servers of ``size`` vCPUs are needed beside the reserved ones (which may stand
    idle), each unit going where it makes that least longer, in steps of STEP_S."""
    began_at = min(each.since for each in units)
    steps = int((max(each.until for each in units) - began_at) / STEP_S) + 2
    free = [np.full(steps, vcpus) for vcpus in reserved]
    for unit in units:
        first, last = int((unit.since - began_at) / STEP_S), int((unit.until - began_at) / STEP_S) + 1
        least, best = last - first + 1, len(free)
        for at, left in enumerate(free):
            part = left[first:last]
            if part.min() < unit.vcpus - SLACK:
                continue
            more = 0 if at < len(reserved) else int(np.count_nonzero(part >= size - SLACK))
            if more < least:
                least, best = more, at
            if more == 0:
                break
        if best == len(free):
            free.append(np.full(steps, size))
        free[best][first:last] -= unit.vcpus
    return STEP_S * float(sum(np.count_nonzero(left < size - SLACK) for left in free[len(reserved) :]))
