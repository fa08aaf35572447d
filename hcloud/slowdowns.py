"""What neighbours cost, learnt from the co-run records of the store; a defect in it stops nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field

from hcloud.classifier.slowdown.forecasts import NOTHING_OBSERVED, SlowdownForecasts, fit_slowdowns
from hcloud.core.clock import Clock
from hcloud.core.co_runs import MOST_CO_RUNS, MOST_COUNTED, CoRun, CoRunKey
from hcloud.core.errors import StoreError, defect_text
from hcloud.core.estimates import Classification
from hcloud.planner.snapshot import LeftOut
from hcloud.quarantine import Quarantine
from hcloud.store import LeaderLease, Store

_log = logging.getLogger("hcloud")
SLOWDOWNS = "slowdowns"
"""Name of the learning of slowdowns in the quarantine. It precedes planning, and no stage of plans depends on it."""
READ_EVERY_S = 60.0
"""How often new records are read."""
REFIT_SHARE = 0.5
"""Models are fitted again once so much is new, as a share of what they were fitted to: a new record counts as one, a
further period of an old one as its share of that record's moving average. Fitting takes a second of CPU time."""
Classify = Callable[[Collection[str]], Mapping[str, Classification]]
"""Returns the classifications of applications, by name of their row, as far as there are."""


@dataclass(slots=True)
class LearntSlowdowns:
    """Reads the records that changed, and fits models to them, a part of the work in each cycle.

    If it fails because of a defect, it is quarantined: what was known before stays in use.
    """

    store: Store
    clock: Clock
    quarantine: Quarantine
    _forecasts: SlowdownForecasts = field(default_factory=lambda: NOTHING_OBSERVED)
    _records: dict[CoRunKey, CoRun] = field(default_factory=dict)
    _revision: int = -1
    """Revision of the last record that was read."""
    _news: float = 0.0
    """How many records' worth of what is known the fitted models do not know."""
    _read_at: float | None = None
    _fitting: Generator[None, None, SlowdownForecasts] | None = None

    def update(self, classify: Classify, lease: LeaderLease | None) -> SlowdownForecasts:
        """Go on learning, and return what is known.

        Raises StoreBusy, StaleWrite: the next call repeats the rest.
        """
        now = self.clock.now()
        if SLOWDOWNS in self.quarantine.left_out(now).stages:
            return self._forecasts
        try:
            self._learn(classify, now)
        except StoreError:
            raise
        except Exception as defect:  # noqa: BLE001 any defect: plans by pressures are better than no plans
            _log.exception("learning slowdowns failed; keeping earlier ones")
            # All is read and fitted again once the quarantine is over.
            self._fitting = self._read_at = None
            self._records, self._revision, self._news = {}, -1, 0.0
            self.quarantine.exclude(LeftOut(stages={SLOWDOWNS: defect_text(defect)}), now, lease)
        return self._forecasts

    def _learn(self, classify: Classify, now: float) -> None:
        if self._fitting is not None:
            try:
                next(self._fitting)
            except StopIteration as done:
                self._forecasts, self._fitting = done.value, None
            return
        # The clock may have been set back.
        if self._read_at is not None and self._read_at <= now < self._read_at + READ_EVERY_S:
            return
        self._read_at = now
        for revision, record in self.store.co_runs(self._revision):
            self._news += _share_of_news(self._records.get(record.key), record)
            self._records[record.key], self._revision = record, max(self._revision, revision)
        for old in sorted(self._records.values(), key=lambda each: (each.observed_at, each.key))[:-MOST_CO_RUNS]:
            del self._records[old.key]
        if self._news > REFIT_SHARE * max(0.0, len(self._records) - self._news):
            self._news = 0.0
            records = list(self._records.values())
            names = sorted({name for each in records for name in (each.application, *each.neighbours)})
            self._fitting = fit_slowdowns(records, classify(names))


def _share_of_news(before: CoRun | None, now: CoRun) -> float:
    """Return which share (0..1) of a record's moving average is new."""
    seen = before.periods if before is not None else 0
    return min(1.0, max(0, now.periods - seen) / min(now.periods, MOST_COUNTED))
