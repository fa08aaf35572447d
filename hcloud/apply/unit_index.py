"""Which units are on which instance, and which instances changed.

The index follows rows through :func:`hcloud.core.rows.row_changes`, as all followers of rows do: the cost is that of
the rows that changed since it last followed, not of all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hcloud.core.model import JOB_ON_INSTANCE, Allocation, Instance, InstanceState, Job, Resources
from hcloud.core.rows import row_changes

UnitOwner = tuple[Job, Allocation]
"""The job and allocation that a unit belongs to."""


@dataclass(slots=True)
class UnitIndex:
    """Units by instance; one index is shared by observer and applier."""

    machines: dict[str, Instance] = field(default_factory=dict)
    """Rows of live instances by id."""
    owners: dict[str, dict[str, UnitOwner]] = field(default_factory=dict)
    """Unreleased allocations of jobs on instances, by instance and unit id."""
    changed_machines: set[str] = field(default_factory=set)
    """Instances whose row or units changed since this set was last taken."""
    _on: dict[str, dict[str, Job]] = field(default_factory=dict)
    """By instance, the jobs that hold part of it, in any state."""
    _jobs: Sequence[Job] = ()
    _instances: Sequence[Instance] = ()

    def follow(self, jobs: Sequence[Job], instances: Sequence[Instance]) -> None:
        """Take in all live jobs and instances as they are now."""
        for before, job in row_changes(self._jobs, jobs):
            if before is not None:
                self._count(before, -1)
            if job is not None:
                self._count(job, 1)
        for previous, instance in row_changes(self._instances, instances):
            if instance is not None:
                self.machines[instance.id] = instance
                self.changed_machines.add(instance.id)
            elif previous is not None:
                del self.machines[previous.id]
                self.changed_machines.add(previous.id)
        self._jobs, self._instances = jobs, instances

    def take_changed_machines(self) -> set[str]:
        """Return ``changed_machines`` and clear it."""
        taken, self.changed_machines = self.changed_machines, set()
        return taken

    def is_busy(self, instance_id: str) -> bool:
        """Return whether any unit holds part of an instance."""
        return instance_id in self._on

    def jobs_on(self, instance_id: str) -> list[Job]:
        """Return the jobs that hold part of an instance, by number."""
        return sorted(self._on.get(instance_id, {}).values(), key=lambda job: int(job.id.rpartition("-")[2]))

    def free_resources(self, names: Iterable[str]) -> dict[str, Resources]:
        """Return the free resources of those of the named instances that are READY."""
        machines = [self.machines[name] for name in names if name in self.machines]
        return {each.id: self._left(each) for each in machines if each.state is InstanceState.READY}

    def gpus_in_use(self, names: Iterable[str]) -> dict[str, set[int]]:
        """Return the numbers of the GPUs that units hold, of each of the named instances."""
        return {name: set(self._held_gpus(name)) for name in names}

    def _held_gpus(self, name: str) -> Iterator[int]:
        for attempt in [job.attempt for job in self.jobs_on(name)]:
            for held in attempt.allocations if attempt is not None else ():
                if held.instance_id == name and not held.released:
                    yield from held.gpus

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
            elif (jobs := self._on.get(name)) is not None:
                jobs.pop(job.id, None)
                if not jobs:
                    del self._on[name]
            if attempt is None or job.state not in JOB_ON_INSTANCE:
                continue
            if by > 0:
                self.owners.setdefault(name, {})[attempt.unit_id(held.rank)] = (job, held)
                continue
            self.owners[name].pop(attempt.unit_id(held.rank), None)
            if not self.owners[name]:
                del self.owners[name]
