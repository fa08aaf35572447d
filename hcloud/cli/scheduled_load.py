"""What the calendar of schedules adds to recorded load: runs of before a schedule was made, as if it had always run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from hcloud.core.cron import ENUMERATED_MOST, next_fire_at
from hcloud.core.errors import NotFound
from hcloud.planner.text import seconds
from hcloud.spec.validation import counted

NAMED_MOST: Final = 5


class Reader(Protocol):
    """Reads the API."""

    def get(self, path: str, **query: Any) -> Any:
        """Return the document at ``path``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedMachine:
    """A machine in the event log."""

    provider: str
    region: str
    type: str
    vcpus: float
    memory_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledLoad:
    """Changes of load in machines, by the machine whose like the runs need."""

    changes: Mapping[str, Sequence[tuple[float, float]]]
    notes: tuple[str, ...]


def scheduled_load(client: Reader, machines: Mapping[str, LaunchedMachine], since: float) -> ScheduledLoad:
    """Return what schedules would have added from ``since``, the first recorded load, until each was made.

    A run is taken to need what the schedule's last run took: the same share of such a machine, for as long.
    """
    changes, counted_ones, unknown = dict[str, list[tuple[float, float]]](), list[str](), list[str]()
    for schedule in client.get("/v1/schedules"):
        if schedule["paused_by"] or schedule["created_at"] <= since:
            continue
        held = _last_run(client, schedule["jobs"], machines)
        if not held:
            unknown.append(schedule["id"])
            continue
        rule, fires = schedule["recurrence"], 0
        at = next_fire_at(rule["cron"], rule["timezone"], since)
        while at is not None and at < schedule["created_at"] and fires < ENUMERATED_MOST:
            for machine, share, run_s in held:
                changes.setdefault(machine, []).extend(((at, share), (at + run_s, -share)))
            at, fires = next_fire_at(rule["cron"], rule["timezone"], at), fires + 1
        total, longest_s = sum(share for _, share, _ in held), max(run_s for *_, run_s in held)
        counted_ones.append(f"{schedule['id']} ({total:.2g} machines for {seconds(longest_s)}, {rule['cron']})")
    notes = list[str]()
    if counted_ones:
        named = ", ".join(counted_ones[:NAMED_MOST])
        notes.append(f"load includes runs of {counted(len(counted_ones), 'schedule')} as if always made: {named}")
    if unknown:
        named = ", ".join(unknown[:NAMED_MOST])
        notes.append(f"not included, as no run of theirs that was no array has ended yet: {named}")
    return ScheduledLoad(changes=changes, notes=tuple(notes))


def _last_run(
    client: Reader, jobs: Sequence[str], machines: Mapping[str, LaunchedMachine]
) -> list[tuple[str, float, float]]:
    """Return for each node of the last ended run: its machine, its share of that, its run time in seconds."""
    for job_id in reversed(jobs):
        try:
            attempt = client.get(f"/v1/jobs/{job_id}")["attempt"]
        except NotFound:  # pruned
            continue
        nodes = list[tuple[str, float, float]]()
        for each in attempt["allocations"] if attempt else ():
            machine = machines.get(each["instance_id"])
            if machine is not None and each["started_at"] is not None and each["ended_at"] is not None:
                took = each["resources"]
                share = max(took["vcpus"] / machine.vcpus, took["memory_mib"] / machine.memory_mib)
                nodes.append((each["instance_id"], min(1.0, share), each["ended_at"] - each["started_at"]))
        if nodes:
            return nodes
    return []
