"""Which units are on which instance, and which instances changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hcloud.core.model import JOB_ON_INSTANCE, Allocation, Instance, InstanceState, Job, Resources
from hcloud.core.rows import row_changes

UnitOwner = tuple[Job, Allocation]
"""Whose unit it is."""


@dataclass(slots=True)
class UnitIndex:
    """Which units are on which machine; follows the live rows, at the cost of those that changed.

    ``machines``: rows of live machines by id. ``owners``: unreleased allocations of jobs on machines, by machine and
    unit id. ``touched``: machines whose row, or whose holders, are others than when whoever followed last took it.
    """

    machines: dict[str, Instance] = field(default_factory=dict)
    owners: dict[str, dict[str, UnitOwner]] = field(default_factory=dict)
    changed_machines: set[str] = field(default_factory=set)
    _on: dict[str, dict[str, Job]] = field(default_factory=dict)
    """By machine, the jobs that hold part of it, whatever their state."""
    _jobs: Sequence[Job] = ()
    _instances: Sequence[Instance] = ()

    def follow(self, jobs: Sequence[Job], instances: Sequence[Instance]) -> None:
        """Take in all live jobs and machines as they are now."""
        for was, job in row_changes(self._jobs, jobs):
            if was is not None:
                self._count(was, -1)
            if job is not None:
                self._count(job, 1)
        for before, instance in row_changes(self._instances, instances):
            if instance is not None:
                self.machines[instance.id] = instance
                self.changed_machines.add(instance.id)
            elif before is not None:
                del self.machines[before.id]
                self.changed_machines.add(before.id)
        self._jobs, self._instances = jobs, instances

    def take_changed_machines(self) -> set[str]:
        """Return the machines that are ``touched``; from here on none is."""
        taken, self.changed_machines = self.changed_machines, set()
        return taken

    def is_busy(self, instance_id: str) -> bool:
        """Return whether anything of a machine is held."""
        return instance_id in self._on

    def jobs_on(self, instance_id: str) -> list[Job]:
        """Return the jobs that hold part of a machine, in order of their number."""
        return sorted(self._on.get(instance_id, {}).values(), key=lambda job: int(job.id.rpartition("-")[2]))

    def free_resources(self, names: Iterable[str]) -> dict[str, Resources]:
        """Return what is left on each of these machines that is READY."""
        machines = [self.machines[name] for name in names if name in self.machines]
        return {each.id: self._left(each) for each in machines if each.state is InstanceState.READY}

    def _left(self, machine: Instance) -> Resources:
        left, name = machine.capacity, machine.id
        for attempt in [job.attempt for job in self.jobs_on(name)]:
            for held in attempt.allocations if attempt is not None else ():
                if held.instance_id == name and not held.released:
                    left = left.minus(held.resources)
        return left

    def _count(self, job: Job, by: int) -> None:
        attempt = job.attempt
        for held in attempt.allocations if attempt is not None else ():
            if held.released:
                continue
            name = held.instance_id
            self.changed_machines.add(name)
            if by > 0:
                self._on.setdefault(name, {})[job.id] = job
            elif (here := self._on.get(name)) is not None:
                here.pop(job.id, None)
                if not here:
                    del self._on[name]
            if attempt is None or job.state not in JOB_ON_INSTANCE:
                continue
            if by > 0:
                self.owners.setdefault(name, {})[attempt.unit_id(held.rank)] = (job, held)
                continue
            self.owners[name].pop(attempt.unit_id(held.rank), None)
            if not self.owners[name]:
                del self.owners[name]
