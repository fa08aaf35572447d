"""Why batch jobs lost their QoS: their machine type, their neighbours, or anything else.

A job's speed is the product of three factors: its speed on the machine type, the share that neighbours leave of it, and
the rest (drift, stragglers, phases). The smallest factor is the cause. Read from a finished simulation's log with the
world's truth.
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
    """One unit's run on one machine."""

    job_id: str
    instance_id: str
    began_at: float
    ended_at: float


@dataclass(slots=True)
class UnitRuns:
    """All unit runs of a simulation."""

    on: dict[str, list[UnitRun]] = field(default_factory=lambda: defaultdict(list))
    """By machine."""
    last: dict[str, UnitRun] = field(default_factory=dict)
    """The last run of each job."""
    types: dict[str, str] = field(default_factory=dict)
    """Type names by machine."""


def unit_runs(events: Iterable[Event]) -> UnitRuns:
    """Return the runs of all units that have ended."""
    runs, began_at = UnitRuns(), dict[tuple[object, ...], float]()
    for event in events:
        if event.kind is EventKind.INSTANCE_REQUESTED:
            runs.types[event.instance_id or ""] = str(event.fields["type"])
        elif event.kind in (EventKind.UNIT_STARTED, EventKind.UNIT_ENDED):
            job_id, instance_id = event.job_id or "", event.instance_id or ""
            key = (job_id, event.fields.get("attempt"), event.fields.get("rank"))
            if event.kind is EventKind.UNIT_STARTED:
                began_at[key] = event.at
            elif key in began_at:
                at = began_at.pop(key)
                run = UnitRun(job_id=job_id, instance_id=instance_id, began_at=at, ended_at=event.at)
                runs.on[instance_id].append(run)
                runs.last[job_id] = run
    return runs


def count_qos_losses(
    events: Iterable[Event], performances: Sequence[JobPerformance], specs: Mapping[str, JobSpec], world: World
) -> Counter[str]:
    """Return how many batch jobs lost their QoS by cause (TYPE, NEIGHBOURS or REST). ``specs``: by job id."""
    runs, losses = unit_runs(events), Counter[str]()
    for each in performances:
        if not each.kept and each.kind == "batch" and each.running > 0 and each.job_id in runs.last:
            run = runs.last[each.job_id]
            type_name = runs.types[run.instance_id].rpartition("/")[2]
            factors = {
                TYPE: world.relative_speed(specs[each.job_id], type_name),
                NEIGHBOURS: _neighbour_factor(runs, run, specs, world),
            }
            factors[REST] = each.running / math.prod(factors.values())
            losses[min(factors, key=factors.__getitem__)] += 1
    return losses


def _neighbour_factor(runs: UnitRuns, own: UnitRun, specs: Mapping[str, JobSpec], world: World) -> float:
    """Return the share (0..1] of a unit's speed that its neighbours left, averaged over its run."""
    model, left = world.program_model(specs[own.job_id]), 0.0
    for seconds, neighbours in _neighbour_periods(runs, own, specs):
        caused = [world.program_model(specs[each.job_id]).caused for each in neighbours]
        pressures = [min(100.0, sum(each)) for each in zip(NOTHING_CAUSED, *caused, strict=True)]
        left += seconds * model.performance_under(pressures)
    lasted_s = own.ended_at - own.began_at
    return left / lasted_s if lasted_s > 0 else 1.0


def _neighbour_periods(
    runs: UnitRuns, own: UnitRun, specs: Mapping[str, JobSpec]
) -> Iterator[tuple[float, list[UnitRun]]]:
    """Yield periods of a run with constant neighbours: the length in seconds, and the neighbours."""
    others = [
        each
        for each in runs.on[own.instance_id]
        if each is not own and each.job_id in specs and each.began_at < own.ended_at and each.ended_at > own.began_at
    ]
    began = {max(own.began_at, each.began_at) for each in others}
    ended = {min(own.ended_at, each.ended_at) for each in others}
    times = sorted({own.began_at, own.ended_at} | began | ended)
    for begin, end in itertools.pairwise(times):
        yield end - begin, [each for each in others if each.began_at <= begin and each.ended_at >= end]
