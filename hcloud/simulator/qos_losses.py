"""By what jobs lost their QoS: the type of their machine, their neighbours, or the machine itself and the moment.

Read out of a finished simulation's log with the world's truth: a job's speed is the product of what it has on its
type, what its neighbours leave of that, and the rest (drift, stragglers, phases that press differently from the mean).
The smallest of the three factors is to blame.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hcloud.core.model import Event, EventKind, JobSpec
from hcloud.simulator.performance import JobPerformance
from hcloud.simulator.program_models import NOTHING_CAUSED
from hcloud.simulator.world import World

TYPE, NEIGHBOURS, REST = "type", "neighbours", "rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRun:
    """One unit on one machine, from ``began_at`` to ``ended_at``."""

    job_id: str
    instance_id: str
    began_at: float
    ended_at: float


@dataclass(slots=True)
class UnitRuns:
    """Which job was where: ``on``: by machine; ``last``: the last stay of each job; ``types``: type names by
    machine."""

    on: dict[str, list[UnitRun]] = field(default_factory=lambda: defaultdict(list))
    last: dict[str, UnitRun] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)


def unit_runs(events: Iterable[Event]) -> UnitRuns:
    """Read the stays of all units that have ended."""
    found, began_at = UnitRuns(), dict[tuple[object, ...], float]()
    for event in events:
        if event.kind is EventKind.INSTANCE_REQUESTED:
            found.types[event.instance_id or ""] = str(event.fields["type"])
        elif event.kind in (EventKind.UNIT_STARTED, EventKind.UNIT_ENDED):
            job_id, instance_id = event.job_id or "", event.instance_id or ""
            key = (job_id, event.fields.get("attempt"), event.fields.get("rank"))
            if event.kind is EventKind.UNIT_STARTED:
                began_at[key] = event.at
            elif key in began_at:
                at = began_at.pop(key)
                stay = UnitRun(job_id=job_id, instance_id=instance_id, began_at=at, ended_at=event.at)
                found.on[instance_id].append(stay)
                found.last[job_id] = stay
    return found


def count_qos_losses(
    events: Iterable[Event], performances: Sequence[JobPerformance], specs: Mapping[str, JobSpec], world: World
) -> Counter[str]:
    """Count the batch jobs that lost their QoS, by what cost them most. ``specs``: by job id."""
    stays, found = unit_runs(events), Counter[str]()
    for each in performances:
        if not each.kept and each.kind == "batch" and each.running > 0 and each.job_id in stays.last:
            found[_main_cause(stays, each, specs, world)] += 1
    return found


def _main_cause(stays: UnitRuns, job: JobPerformance, specs: Mapping[str, JobSpec], world: World) -> str:
    stay, spec = stays.last[job.job_id], specs[job.job_id]
    type_name = stays.types[stay.instance_id].rpartition("/")[2]
    parts = {TYPE: world.relative_speed(spec, type_name), NEIGHBOURS: _neighbour_factor(stays, stay, specs, world)}
    parts[REST] = job.running / math.prod(parts.values())
    return min(parts, key=lambda name: parts[name])


def _neighbour_factor(stays: UnitRuns, own: UnitRun, specs: Mapping[str, JobSpec], world: World) -> float:
    """Return the part of its speed that its neighbours left a unit, over its whole stay."""
    model, left = world.program_model(specs[own.job_id]), 0.0
    for seconds, beside in _neighbour_periods(stays, own, specs):
        caused = [world.program_model(specs[each.job_id]).caused for each in beside]
        pressures = [min(100.0, sum(each)) for each in zip(NOTHING_CAUSED, *caused, strict=True)]
        left += seconds * model.performance_under(pressures)
    lasted_s = own.ended_at - own.began_at
    return left / lasted_s if lasted_s > 0 else 1.0


def _neighbour_periods(
    stays: UnitRuns, own: UnitRun, specs: Mapping[str, JobSpec]
) -> Iterator[tuple[float, list[UnitRun]]]:
    """Yield stretches of a stay with the same neighbours: how long each is, and which they were."""
    others = [
        each
        for each in stays.on[own.instance_id]
        if each is not own and each.job_id in specs and each.began_at < own.ended_at and each.ended_at > own.began_at
    ]
    began = {max(own.began_at, each.began_at) for each in others}
    ended = {min(own.ended_at, each.ended_at) for each in others}
    times = sorted({own.began_at, own.ended_at} | began | ended)
    for begin, end in itertools.pairwise(times):
        yield end - begin, [each for each in others if each.began_at <= begin and each.ended_at >= end]
