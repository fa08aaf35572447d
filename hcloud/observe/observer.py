"""One round of observation: what providers and the engine report is recorded as facts. Decides nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hcloud.apply.unit_index import UnitIndex
from hcloud.core.clock import Clock
from hcloud.core.errors import StoreError
from hcloud.core.model import InstanceId, InstanceState, UnitId
from hcloud.core.rows import number_of
from hcloud.observe import facts
from hcloud.observe.facts import FactBatch, ObservationRound, UnitEnd
from hcloud.observe.instances import InstanceObserver
from hcloud.observe.log_archive import LogArchive
from hcloud.observe.output_archive import OutputArchive
from hcloud.observe.sampling import SampleChange
from hcloud.observe.units import UnitObserver
from hcloud.quarantine import Failure, Failures, run_batch
from hcloud.spec.policy import Policy
from hcloud.store import LeaderLease, LiveView, Store, Transaction

FORGET_EVERY_S = 600.0
"""How often memory of instances and units that no longer exist is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one round has seen."""

    reachable: frozenset[InstanceId]
    """Instances that answered."""
    engine_reachable: bool
    moved: bool
    """Whether rows changed. New samples do not count: the plan of the same cycle uses them already."""
    answered: frozenset[UnitId] = frozenset()
    """Units whose pending start or resize has been answered."""
    failing: Failures = field(default_factory=dict)
    """Reports that could not be processed or recorded because of a defect; they are retried in each round."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """By kind, how often the engine refused what came to it."""


@dataclass(slots=True)
class Observer:
    """Records what :class:`InstanceObserver` and :class:`UnitObserver` find. Its memory may be lost without harm."""

    store: Store
    clock: Clock
    instances: InstanceObserver
    units: UnitObserver
    unit_index: UnitIndex
    """Follows the rows; shared with ``instances`` and ``units``, and with the applier."""
    silent: frozenset[InstanceId] = frozenset()
    """Instances that did not answer in the last round."""
    seen_at: dict[InstanceId, float] = field(default_factory=dict)
    """When each worker last answered (Unix seconds)."""
    _maybe_idle: set[InstanceId] = field(default_factory=set)
    """Instances that changed in this round, and may have become idle."""
    _round: ObservationRound = field(default_factory=ObservationRound)
    _forgot_at: float = -math.inf

    @property
    def logs(self) -> LogArchive:
        """The archive of unit output."""
        return self.units.logs

    @property
    def outputs(self) -> OutputArchive | None:
        """The archive of what units left; None: there is none."""
        return self.units.outputs

    @property
    def storing_trouble(self) -> str:
        """Why output or outputs of ended units cannot be stored; empty if they can."""
        return self.logs.trouble or (self.outputs.trouble if self.outputs is not None else "")

    def observe(self, policy: Policy, lease: LeaderLease | None = None) -> Observation:
        """Read everything that is due, record what changed, and return what was seen."""
        observed = self._round = ObservationRound()
        self.logs.trouble = ""
        listings = self.instances.listings(self.silent, lease)
        engine = self.units.read(observed)
        self.silent, observed.answering = engine.silent, frozenset([each.instance_id for each in engine.workers])
        # Rows are read after the listings: a listed instance was recorded before it was launched.
        view, now = self._follow(), self.clock.now()
        forgets = engine.reachable and now >= self._forgot_at + FORGET_EVERY_S
        batches = [
            batch
            for name, listing in listings.items()
            for batch in self.instances.listing_facts(name, listing, view, now, policy, observed)
        ]
        if engine.reachable:
            self.seen_at.update(dict.fromkeys(observed.answering, now))
            batches += self.units.report_facts(engine, now, policy, observed)
        if forgets:
            batches += self.instances.expired_facts(view, now, policy, observed)
        moved = self._record(batches, lease)
        # Rows are read again: what ended just now leaves its instance idle from this round on.
        self._follow()
        moved = self._record(list(self._idle_facts()), lease) or moved
        self._maybe_idle.clear()
        self.units.forget_ended(observed)
        if now >= self._forgot_at + FORGET_EVERY_S:
            self._forget_vanished(now)
        return Observation(
            reachable=observed.answering,
            engine_reachable=engine.reachable,
            moved=moved,
            answered=engine.answered,
            failing=observed.failing,
            refused=engine.refused,
        )

    def _follow(self) -> LiveView:
        """Return the rows as they are now, after the index and all memory has followed them."""
        view = self.store.live()
        self.unit_index.follow(view.jobs, view.instances)
        changed = self.unit_index.take_changed_machines()
        self.instances.note_changes(changed)
        self.units.note_changes(changed)
        self._maybe_idle |= changed
        return view

    def _record(self, batches: Sequence[FactBatch], lease: LeaderLease | None) -> bool:
        """Record batches in one transaction, but those that fail; return whether anything but samples was recorded."""
        if not batches:
            return False

        def write(txn: Transaction, batch: FactBatch) -> None:
            for change in batch.changes:
                change(txn)

        try:
            done = run_batch(self.store, self.clock, lease, batches, lambda: write, self._skip_failed)
        except StoreError:  # nothing was recorded: the next round reads all of it again
            for batch in batches:
                self.units.unsettle(batch.instance_id)
                self.units.forget_samples([change for change in batch.changes if isinstance(change, SampleChange)])
            raise
        return not all(isinstance(change, SampleChange) for batch, _ in done for change in batch.changes)

    def _skip_failed(self, failed: FactBatch, defect: Exception) -> FactBatch | None:
        """Note a batch that cannot be recorded; return it without the feedback of a unit's end, which matters less."""
        name, source, changes = failed
        end = next((change for change in changes if isinstance(change, UnitEnd)), None)
        job_id = end.job_id if end is not None else None
        failure = Failure.from_error(exc_info=defect, job_id=job_id)
        self._round.failing[f"recording the report of {source}"] = failure
        self.instances.unsettle(name)
        self.units.unsettle(name)
        if end is not None and end.with_feedback:
            without = replace(end, with_feedback=False)
            return FactBatch(name, source, tuple(without if each is end else each for each in changes))
        self._round.ended = {unit: where for unit, where in self._round.ended.items() if where != name}
        return None

    def _idle_facts(self) -> Iterator[FactBatch]:
        for name in sorted(self._maybe_idle, key=number_of):
            instance = self.unit_index.machines.get(name)
            if instance is None or instance.idle_since is not None or self.unit_index.is_busy(name):
                continue
            if instance.state in (InstanceState.READY, InstanceState.DRAINING):
                yield FactBatch(name, name, (facts.instance_idle(name),))

    def _forget_vanished(self, now: float) -> None:
        self._forgot_at = now
        machines = self.unit_index.machines.keys()
        self.seen_at = {name: at for name, at in self.seen_at.items() if name in machines}
        self.instances.forget_others(machines, now - FORGET_EVERY_S)
        self.units.forget_others(machines)
