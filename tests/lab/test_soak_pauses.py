"""Soak runs in which units are paused and resumed all the time: nothing else goes wrong for that, whatever fails."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import pytest

from hcloud.apply.pauses import PauseActions
from hcloud.core.model import Intent, Reason
from hcloud.planner import make
from hcloud.planner.co_scheduling import can_pause
from hcloud.planner.context import PlanContext
from hcloud.planner.plan import Pause
from hcloud.store import LeaderLease
from lab.soak.run import run_seed

TURN_S = 4.0
paused = list[str]()


def pause_at_random(context: PlanContext) -> None:
    """Pause a third of what may be paused, others in each turn."""
    if not context.snapshot.engine_reachable or context.snapshot.paused:
        return
    turn = int(context.now / TURN_S)
    for at in context.fleet.staying:
        for job, held in context.fleet.holdings[at]:
            is_paused, may = held.paused_at is not None, can_pause(job, held)
            wanted = may and crc32(f"{job.id} {turn}".encode()) % 3 == 0
            if job.id not in context.decisions.stopping and wanted is not is_paused:
                reason = Reason(code="test", text="because the test says so")
                context.decisions.add(
                    Pause(job_id=job.id, rank=held.rank, instance_id=held.instance_id, reason=reason, undo=is_paused)
                )
                paused.append(job.id)
    context.decisions.look_at_pauses((turn + 1) * TURN_S)


@pytest.fixture(autouse=True)
def random_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    paused.clear()
    monkeypatch.setattr(make, "STAGES", {**make.STAGES, "co_scheduling": pause_at_random})


@pytest.mark.parametrize("seed", [2, 4, 6])
def test_no_invariant_is_violated_while_units_are_paused_and_resumed(seed: int) -> None:
    verdict = run_seed(seed)
    assert verdict.violations == (), verdict.replay
    assert len(paused) > 5


def test_a_daemon_that_records_pauses_and_never_sends_them_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: PauseActions, intents: Sequence[Intent], lease: LeaderLease | None) -> None:
        with self.store.transaction(self.clock.now(), lease) as txn:
            for intent in intents:
                txn.close_intent(intent.token)

    monkeypatch.setattr(PauseActions, "drive", forget)
    assert any(each.startswith("paused: ") for each in run_seed(6).violations)
