"""Run times that the daemon learns from its event log and keeps in the store; a defect in it stops nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from hcloud.core.clock import Clock
from hcloud.core.errors import BadInput, StoreError, defect_text
from hcloud.core.model import Event
from hcloud.forecast.run_time_tracker import TRACKED_KINDS, RunTimeTracker
from hcloud.planner.run_times import NO_RUN_TIMES, RUN_TIMES, RunTimeForecasts
from hcloud.planner.snapshot import LeftOut
from hcloud.quarantine import Quarantine
from hcloud.store import LeaderLease, Store

_log = logging.getLogger("hcloud")
SAVED_AFTER_RUNS, SAVED_AFTER_S = 500, 3600.0
"""What was learnt is stored after so many runs, or so long after the first one that is not stored yet."""
_EVENTS_PER_CYCLE, _ROWS_PER_CYCLE = 1000, 50_000
"""Of the log at most so many events are taken in, and rows searched, in one cycle: leases must be renewed."""


@dataclass(slots=True)
class LearntRunTimes:
    """Follows the event log; returns what is known. What is not stored is read from the log again.

    If it fails because of a defect, it is quarantined: what was known before stays in use.
    """

    store: Store
    clock: Clock
    quarantine: Quarantine
    _tracker: RunTimeTracker | None = None
    """None: not read from the store yet, or it failed and may hold half of something."""
    _forecasts: RunTimeForecasts = field(default_factory=lambda: NO_RUN_TIMES)
    _saved_runs: int = 0
    """Number of runs in the stored state."""
    _unsaved_since: float | None = None
    """When the first run was learnt that is not stored; None: all are."""

    def follow(self, after_seq: int, events: Sequence[Event], lease: LeaderLease | None) -> None:
        """Take in all events after ``after_seq``; :meth:`update` reads from the store what is too much for a cycle."""

        def learn() -> None:
            tracker = self._tracker
            if tracker is None or tracker.seq < after_seq or not events:
                return
            # Of thousands of jobs submitted at once, the rest is read from the store in later cycles.
            if sum(event.kind in TRACKED_KINDS for event in events) <= _EVENTS_PER_CYCLE:
                tracker.follow(events)
                tracker.seq = max(tracker.seq, events[-1].seq)

        self._guarded(learn, lease)

    def update(self, last_seq: int, lease: LeaderLease | None) -> RunTimeForecasts:
        """Read a part of the log if not all up to ``last_seq`` was; return what is known, and store it if it is time.

        Raises StoreBusy, StaleWrite: the next call repeats the rest.
        """
        self._guarded(lambda: self._update(last_seq, lease), lease)
        return self._forecasts

    def _update(self, last_seq: int, lease: LeaderLease | None) -> None:
        tracker = self._tracker
        if tracker is None:
            tracker = self._tracker = self._restored()
        if tracker.seq < last_seq:
            self._catch_up(tracker, last_seq)
        if tracker.seq < last_seq:
            return
        learnt = tracker.snapshot(self.clock.now())
        if tracker.runs and learnt is not self._forecasts.predictor:
            self._forecasts = RunTimeForecasts(learnt)
        self._save_if_due(tracker, lease)

    def _restored(self) -> RunTimeTracker:
        state = self.store.run_times()
        if state is not None:
            try:
                tracker = RunTimeTracker.load(state)
            except BadInput as error:
                _log.warning("run times are learnt again from the event log: %s", error)
            else:
                self._saved_runs, self._unsaved_since = tracker.runs, None
                return tracker
        # Store what the recorded jobs teach as soon as all of them are read.
        self._saved_runs, self._unsaved_since = 0, -inf
        return RunTimeTracker()

    def _catch_up(self, tracker: RunTimeTracker, last_seq: int) -> None:
        until = min(last_seq, tracker.seq + _ROWS_PER_CYCLE)
        events = self.store.events(
            after_seq=tracker.seq, before_seq=until + 1, kinds=TRACKED_KINDS, limit=_EVENTS_PER_CYCLE
        )
        tracker.follow(events)
        if len(events) < _EVENTS_PER_CYCLE:
            tracker.seq = until

    def _save_if_due(self, tracker: RunTimeTracker, lease: LeaderLease | None) -> None:
        now, unsaved = self.clock.now(), tracker.runs - self._saved_runs
        if unsaved == 0:
            return
        if self._unsaved_since is None:
            self._unsaved_since = now
        if unsaved >= SAVED_AFTER_RUNS or now - self._unsaved_since >= SAVED_AFTER_S:
            with self.store.transaction(now, lease) as txn:
                txn.put_run_times(tracker.dump())
            self._saved_runs, self._unsaved_since = tracker.runs, None

    def _guarded(self, work: Callable[[], None], lease: LeaderLease | None) -> None:
        now = self.clock.now()
        if RUN_TIMES in self.quarantine.left_out(now).stages:
            return
        try:
            work()
        except StoreError:
            raise
        except Exception as defect:  # noqa: BLE001 any defect: plans with old run times are better than no plans
            _log.exception("learning run times failed; keeping earlier ones")
            self._tracker = None
            self.quarantine.exclude(LeftOut(stages={RUN_TIMES: defect_text(defect)}), now, lease)
