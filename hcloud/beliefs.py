"""What is believed of applications, kept up to date for plans and previews; a failing classifier stops neither."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from hcloud.classifier.applications import identify, key_of, known_as
from hcloud.classifier.belief_store import BeliefStore
from hcloud.classifier.source_selection import SourcePrior
from hcloud.classifier.type_selection import TypePrior
from hcloud.core.clock import Clock
from hcloud.core.errors import defect_text
from hcloud.core.estimates import Application, Classification
from hcloud.core.model import EventKind, Job, JobState
from hcloud.core.rows import FilteredRows
from hcloud.planner.snapshot import LeftOut, Snapshot
from hcloud.quarantine import Quarantine
from hcloud.quarantine.registry import CLASSIFICATION
from hcloud.spec.policy import Policy
from hcloud.store import LeaderLease, LiveView, Store

_log = logging.getLogger("hcloud")
T = TypeVar("T")


class CurrentBeliefs(NamedTuple):
    """The fields of a :class:`Snapshot` that come from classification."""

    applications: Mapping[str, Classification]
    programs: Mapping[str, tuple[Application, ...]]
    source_prior: SourcePrior | None
    type_prior: TypePrior | None


def _needs_classification(job: Job) -> bool:
    return job.state is JobState.SUBMITTED and job.spec.profile is None


@dataclass(slots=True)
class Beliefs:
    """Access to the :class:`BeliefStore` for the cycle, and for previews on other threads.

    If classification fails because of a defect, it is quarantined: plans use what was believed before.
    """

    store: Store
    clock: Clock
    quarantine: Quarantine
    belief_store: BeliefStore
    _submitted: FilteredRows[Job] = field(default_factory=lambda: FilteredRows(_needs_classification))
    _last: Mapping[str, Classification] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while ``belief_store`` is used: previews call it from threads of their own."""
    _is_broken: bool = False
    """Whether a call failed: ``belief_store`` may hold half of something, and must be replaced before its next use."""

    def update(self, view: LiveView, policy: Policy, lease: LeaderLease | None) -> CurrentBeliefs:
        """Take in the applications' rows; return beliefs about all that live jobs are, or submitted jobs may be."""
        submitted = self._submitted.of(view.jobs)

        def classify() -> Mapping[str, Classification]:
            self.belief_store.follow(view.applications)
            if not view.applications:
                return {}
            wanted = dict.fromkeys([job.application for job in view.jobs])
            wanted.pop("", None)
            return self.belief_store.believe(wanted | self._possible_applications(submitted))

        self._last = self._guarded(classify, self._last, lease)
        source_prior: SourcePrior | None = None
        if _needs_source_prior(policy, view.jobs):
            source_prior = self._guarded(lambda: self.belief_store.source_prior(), None, lease)
        type_prior: TypePrior | None = None
        if _needs_type_prior(policy, view.jobs):
            type_prior = self._guarded(lambda: self.belief_store.type_prior(), None, lease)
        return CurrentBeliefs(self._last, self.belief_store.programs, source_prior, type_prior)

    def of_rows(self, names: Collection[str], lease: LeaderLease | None) -> Mapping[str, Classification]:
        """Return the classifications of applications by name of their row, as far as there are."""
        return self._guarded(lambda: self.belief_store.of_rows(names), {}, lease)

    def extend(self, snapshot: Snapshot, jobs: Sequence[Job], policy: Policy) -> Snapshot:
        """Return ``snapshot`` with beliefs about what hypothetical ``jobs`` may be; any thread may call it.

        Returns ``snapshot`` itself if classification fails or is quarantined. Writes nothing.
        """
        submitted = [job for job in jobs if _needs_classification(job)]
        if CLASSIFICATION in self.quarantine.left_out(snapshot.now).stages:
            return snapshot
        with self._lock:
            try:
                believed = self.belief_store.believe(self._possible_applications(submitted))
                needs_source, needs_type = _needs_source_prior(policy, jobs), _needs_type_prior(policy, jobs)
                return replace(
                    snapshot,
                    programs=self.belief_store.programs,
                    applications={**snapshot.applications, **believed},
                    source_prior=self.belief_store.source_prior() if needs_source else None,
                    type_prior=self.belief_store.type_prior() if needs_type else None,
                )
            except Exception:  # noqa: BLE001 any defect: a preview is for information only
                _log.exception("classification failed in a preview")
                self._is_broken = True
                return snapshot

    def record_prediction_errors(self, lease: LeaderLease | None) -> None:
        """Write a PREDICTION event for each cell that profiling measured after it had been estimated."""
        errors, self.belief_store.surprises = self.belief_store.surprises, []
        if not errors:
            return
        with self.store.transaction(self.clock.now(), lease) as txn:
            for each in errors:
                row, is_type = each.application, each.question == "type"
                txn.emit(
                    EventKind.PREDICTION,
                    user=row.program.partition(":")[0],
                    application=row.name,
                    question=each.question,
                    measure=None if row.measure is None else row.measure.value,
                    instance_type=each.column if is_type else row.type_column,
                    column=each.column,
                    nodes=int(each.column) if each.question == "nodes" else 1,
                    vcpus=row.reference_vcpus,
                    predicted=each.estimate.value,
                    low=each.estimate.low,
                    high=each.estimate.high,
                    measured=each.measured,
                    alone=True,
                )

    def _guarded(self, work: Callable[[], T], fallback: T, lease: LeaderLease | None) -> T:
        """Return what ``work`` returns; ``fallback`` if it fails, and while classification is quarantined."""
        now = self.clock.now()
        if CLASSIFICATION in self.quarantine.left_out(now).stages:
            return fallback
        try:
            with self._lock:
                if self._is_broken:
                    self.belief_store = BeliefStore(library=self.belief_store.library)
                    self._is_broken = False
                return work()
        except Exception as defect:  # noqa: BLE001 any defect: plans with old beliefs are better than no plans
            _log.exception("classification failed; keeping earlier beliefs")
            self._is_broken = True
            failed = LeftOut(stages={CLASSIFICATION: defect_text(defect)})
        self.quarantine.exclude(failed, now, lease)
        return fallback

    def _possible_applications(self, submitted: Iterable[Job]) -> dict[str, None]:
        """Return the keys of the applications that submitted jobs may be classified as, in the jobs' order."""
        keys = dict[str, None]()
        for job in submitted:
            identity = identify(job.spec)
            known = known_as(identity, self.belief_store.programs.get(identity.program, ()), own_runs=True)
            keys[key_of(known, identity) if known is not None else identity.name] = None
        return keys


def _needs_type_prior(policy: Policy, jobs: Sequence[Job]) -> bool:
    """Return whether one of ``jobs`` may be profiled: a new one, or a running one of which a copy is."""
    return bool(jobs) and policy.profiles_jobs


def _needs_source_prior(policy: Policy, jobs: Sequence[Job]) -> bool:
    return policy.profiling.sources is None and _needs_type_prior(policy, jobs)
