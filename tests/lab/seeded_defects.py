"""Daemons with one seeded bug each in their fault isolation, for soak runs; see ``seeded_bugs``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hcloud.apply.applier
from hcloud.controller import Controller
from hcloud.core.errors import Refused
from hcloud.core.model import Intent, JobState
from hcloud.observe.observer import FactBatch, Observer
from hcloud.planner import make_plan
from hcloud.planner.plan import Action, Plan
from hcloud.planner.snapshot import LeftOut, Snapshot
from hcloud.quarantine import Planner, Quarantine
from hcloud.spec.policy import Policy
from hcloud.store import LeaderLease, Transaction
from lab.soak.planted_defects import Planted


def fails_planning_running_jobs(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    def planner(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        if any(job.state is JobState.RUNNING and job.id not in snapshot.left_out.jobs for job in snapshot.jobs):
            raise Planted("a bug")
        return make_plan(snapshot, policy, rng)

    daemon.planner = planner


def quarantines_nothing(_: Controller, patch: pytest.MonkeyPatch) -> None:
    def plan(_: Quarantine, planner: Planner, snapshot: Snapshot, policy: Policy, rng: Any, keep_lease: Any) -> Plan:
        return planner(snapshot, policy, rng)

    patch.setattr(Quarantine, "plan", plan)


def commits_half_of_failed_actions(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    honest = daemon.applier._record

    def record(actions: Any, refused: Any, lease: Any, recording: Any) -> Any:
        def half(txn: Transaction, action: Action) -> Any:
            try:
                return recording()(txn, action)
            except Planted as defect:
                raise Refused(str(defect)) from defect

        return honest(actions, refused, lease, lambda: half)

    daemon.applier._record = record  # type: ignore[method-assign]


def forgets_unrecorded_ends(_: Controller, patch: pytest.MonkeyPatch) -> None:
    honest = Observer._skip_failed

    def skip(self: Observer, failed: FactBatch, defect: Exception) -> FactBatch | None:
        ended = dict(self._round.ended)
        instead = honest(self, failed, defect)
        self._round.ended = ended
        return instead

    patch.setattr(Observer, "_skip_failed", skip)


def drops_failing_intents(daemon: Controller, _: pytest.MonkeyPatch) -> None:
    applier = daemon.applier

    def drop(intent: Intent, trouble: Any, lease: Any) -> None:
        with applier.store.transaction(applier.clock.now(), lease) as txn:
            txn.close_intent(intent.token)

    applier._postpone = drop  # type: ignore[method-assign]


def stops_at_first_failing_intent(_: Controller, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hcloud.apply.applier, "bisect_failures", lambda items, do, fails: do(items))


def blames_other_jobs(_: Controller, patch: pytest.MonkeyPatch) -> None:
    honest = Quarantine.exclude

    def exclude(self: Quarantine, left_out: LeftOut, now: float, lease: LeaderLease | None) -> None:
        honest(self, replace(left_out, jobs=dict.fromkeys(["job-1", "job-2", "job-3"], "a bug")), now, lease)

    patch.setattr(Quarantine, "exclude", exclude)
