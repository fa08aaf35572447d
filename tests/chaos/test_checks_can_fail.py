"""Each promise checked after a kill is shown to be broken by a daemon or cloud with one seeded bug."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hcloud.apply import Applier, Refusal
from hcloud.apply.machines import LaunchBudgetView
from hcloud.apply.transitions import transition_instance
from hcloud.apply.units import UnitActions
from hcloud.controller import Controller
from hcloud.core.model import Allocation, Attempt, InstanceState, Intent, Job, Offer, Reason, UnitId
from hcloud.planner.plan import Action, Launch, Plan, Profile
from hcloud.provider import CloudInstance, LaunchRequest, Listing, UnitSpec
from hcloud.spec.policy import Policy
from hcloud.store import LeaderLease, Submission
from providers.mock import MockProvider
from tests.assembled import applies_as, of_kind
from tests.chaos.lives import Build, broken_after_kills, crash_and_recover, fresh_home, live
from tests.chaos.scene import PROFILED, CrashPoints, Scene, build

NO_BUDGETS: dict[str, object] = {"budgets": {}}


class HonestCloud:
    """The mock cloud as it is; each bug overrides one call."""

    def __init__(self, cloud: MockProvider) -> None:
        self.cloud = cloud
        self.name = cloud.name
        self.facts = cloud.facts

    def offers(self) -> tuple[Offer, ...]:
        return self.cloud.offers()

    def launch(self, request: LaunchRequest) -> CloudInstance:
        return self.cloud.launch(request)

    def instances(self, owner: str) -> Listing:
        return self.cloud.instances(owner)

    def terminate(self, provider_ids: Sequence[str]) -> None:
        self.cloud.terminate(provider_ids)


class IgnoresTokens(HonestCloud):
    """A launch repeated is a second machine."""

    def launch(self, request: LaunchRequest) -> CloudInstance:
        known = any(m.token == request.token for m in self.cloud.machines(math.inf))
        return self.cloud.launch(replace(request, token=f"{request.token}-again") if known else request)


class NeverTerminates(HonestCloud):
    """Says yes and does nothing."""

    def terminate(self, provider_ids: Sequence[str]) -> None:
        return


class ForgetsIntents(Applier):
    """Does not repeat what an earlier life left open."""

    def resume(
        self,
        intents: Sequence[Intent],
        policy: Policy,
        lease: LeaderLease | None = None,
        answered: Set[UnitId] = frozenset(),
    ) -> int:
        return 0


class RenamesUnits(UnitActions):
    """Gives a unit another id whenever a new process starts it, so that the engine's fence does not know it again."""

    def unit_spec(self, job: Job, attempt: Attempt, allocation: Allocation) -> UnitSpec:
        spec = UnitActions.unit_spec(self, job, attempt, allocation)
        return replace(spec, id=f"{job.id}.{os.getpid()}.{allocation.rank}")


class BelievesBeforeItLaunches(Applier):
    """Writes that a machine was launched, and never asks for it."""

    def _launches(
        self, plan: Plan, policy: Policy, offers: Sequence[Offer], refused: list[Refusal], lease: LeaderLease | None
    ) -> list[Action]:
        for action in plan.actions:
            if isinstance(action, Launch):
                with self.store.transaction(self.clock.now(), lease) as txn:
                    row = self.machines.record_launch(
                        txn, action, policy, LaunchBudgetView.of(self.store.live().instances), 1.0
                    )
                    believed = replace(row, launched_at=txn.now, provider_id=f"mock-{row.id}")
                    reason = Reason(code="launched", text="surely it will be")
                    transition_instance(txn, believed, InstanceState.BOOTING, reason)
                    txn.close_intent(row.token)
        return []


class ForgetsWhoseRunsTheyAre(Applier):
    """Submits profiling runs without noting them with their job."""

    def _rows(self, plan: Plan, refused: list[Refusal], lease: LeaderLease | None) -> list[Action]:
        for action in plan.actions:
            if isinstance(action, Profile):
                self.store.submit([Submission(spec=spec, actor="hcloud") for spec in action.runs], self.clock.now())
        honest = tuple(action for action in plan.actions if not isinstance(action, Profile))
        return super()._rows(replace(plan, actions=honest), refused, lease)


def renames_units(controller: Controller) -> None:
    """Let a daemon start units through :class:`RenamesUnits`."""
    controller.applier.units = of_kind(controller.applier.units, RenamesUnits)


def build_that_drops_a_job(home: Path, crash: CrashPoints) -> Scene:
    """Open a store that takes a job in, says so, and keeps nothing of it."""
    scene = build(home, crash)
    honest = scene.store.submit

    def submit(submissions: Sequence[Submission], now: float) -> tuple[Job, ...]:
        return honest(submissions[1:], now)

    scene.store.submit = submit  # type: ignore[method-assign]
    return scene


def life_with(bug: Build, killed_after: str | None) -> tuple[str, ...]:
    """Return the promises broken in a life with ``bug``, killed the first time the moment ``killed_after`` comes."""
    if killed_after is None:
        with fresh_home() as home:
            return live(home, bug).violations
    with fresh_home() as home:
        number = live(home, build).passed.index(killed_after) + 1
    with fresh_home() as home:
        return crash_and_recover(home, bug, number).violations


BUGS: dict[str, tuple[Build, str | None, str]] = {
    "a second machine for one token": (
        partial(build, provider_of=IgnoresTokens, cloud_settings={"chances": {"list_late": 1.0}}),
        "provider.launch:after",
        "has no record",
    ),
    "a record without a machine": (
        partial(build, bug=applies_as(BelievesBeforeItLaunches)),
        None,
        "was never a machine",
    ),
    "a unit run twice": (partial(build, bug=renames_units), "runner.start:after", "was started 2 times"),
    "a start forgotten": (partial(build, bug=applies_as(ForgetsIntents)), "runner.start:before", "is placed, not"),
    "a job dropped": (build_that_drops_a_job, None, "job quick was lost"),
    "profiling runs of nobody": (
        partial(build, cast_of=PROFILED, bug=applies_as(ForgetsWhoseRunsTheyAre)),
        None,
        "is a profiling run of nobody",
    ),
    "machines that never end, unbudgeted": (
        partial(build, provider_of=NeverTerminates, policy=NO_BUDGETS),
        None,
        "USD were billed",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_seen(name: str) -> None:
    bug, killed_after, wanted = BUGS[name]
    assert [v for v in life_with(bug, killed_after) if wanted in v] != []


def test_the_quicker_way_to_go_on_after_a_kill_overlooks_nothing() -> None:
    bug, killed_after, _ = BUGS["a second machine for one token"]
    with fresh_home() as home:
        number = live(home, build).passed.index(str(killed_after)) + 1
    assert broken_after_kills(bug, [1, number])[number] == life_with(bug, killed_after)


def test_a_cloud_that_never_terminates_can_neither_overspend_nor_leak() -> None:
    broken = life_with(partial(build, provider_of=NeverTerminates), None)
    # Its machines stay paid for until they expire, so some job may find no money left; nothing else may go wrong.
    assert [v for v in broken if not ("not succeeded" in v or "not settled" in v)] == []
