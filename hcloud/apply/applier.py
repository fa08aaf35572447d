"""Apply is the judge: each action of a plan is re-checked on fresh rows, then carried out as intent, effect, result.

Rows change in short transactions; providers and the engine are called outside them. A daemon killed anywhere in between
finds its open intents again and repeats them with the same token (architecture.md, ground rules 3 and 4).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path
from typing import TypeVar

from hcloud.apply.jobs import classify, correct, enqueue, finish, mark_preempted, profile, wait
from hcloud.apply.machines import LaunchBudgetView, MachineActions, drain, emit_provider_error, on_demand_price, renew
from hcloud.apply.unit_index import UnitIndex
from hcloud.apply.units import UnitActions
from hcloud.core.clock import Clock
from hcloud.core.errors import InvalidTransition, NotFound, Refused
from hcloud.core.model import Instance, Intent, IntentKind, Offer, Resources
from hcloud.planner.plan import (
    Action,
    Classify,
    Correct,
    Drain,
    Enqueue,
    Finish,
    Launch,
    Place,
    Plan,
    Preempted,
    Profile,
    Renew,
    Resize,
    StopAttempt,
    StopRank,
    Terminate,
    Wait,
)
from hcloud.provider import Provider, Runner, WorkerBootstrap
from hcloud.quarantine import DEFECT_RETRY_S, Failure, Failures, bisect_failures, error_text, run_batch
from hcloud.spec.policy import Policy
from hcloud.store import LeaderLease, Store, Transaction

__all__ = ["Applier", "ApplyResult", "Refusal", "emit_provider_error"]

_log = logging.getLogger("hcloud")
A = TypeVar("A", bound=Action)
R = TypeVar("R")
Drive = Callable[[Sequence[Intent], LeaderLease | None], object]
_ROW_ACTIONS: Mapping[type, Callable[[Transaction, Action], object]] = {
    Enqueue: enqueue,  # type: ignore[dict-item]
    Preempted: mark_preempted,  # type: ignore[dict-item]
    Wait: wait,  # type: ignore[dict-item]
    Finish: finish,  # type: ignore[dict-item]
    Profile: profile,  # type: ignore[dict-item]
    Classify: classify,  # type: ignore[dict-item]
    Correct: correct,  # type: ignore[dict-item]
    Drain: drain,  # type: ignore[dict-item]
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An action that fresh state no longer allowed, and why."""

    action: Action
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """What became of a plan: how many actions were carried out, which were refused."""

    applied: int
    refused: tuple[Refusal, ...] = ()
    moved: bool = False
    """Whether anything but a Wait was carried out, so that planning again soon is worth while."""
    went_on: bool = True
    """Whether nothing was, but machines that are in use were renewed, if that."""
    due_at: float = inf
    """When time alone changes what is decided (``Plan.due_at``)."""
    failed: tuple[Refusal, ...] = ()
    """Actions that could not be carried out, by a defect; they changed nothing."""


def _subjects(intents: Sequence[Intent]) -> str:
    names = list(dict.fromkeys(intent.subject for intent in intents))
    return ", ".join(names[:3]) + (f" or {len(names) - 3} more" if len(names) > 3 else "")


class Applier:
    """Carries out plans. One at a time: only the leader's controller calls it."""

    def __init__(
        self,
        store: Store,
        providers: Mapping[str, Provider],
        runner: Runner,
        clock: Clock,
        *,
        owner: str,
        bootstrap: WorkerBootstrap,
        uploads_dir: Path,
        unit_index: UnitIndex | None = None,
    ) -> None:
        """Take the ports; nothing is called yet. ``unit_index`` may be shared with others that follow the same rows."""
        self.store = store
        self.clock = clock
        self.unit_index = unit_index or UnitIndex()
        self.machines = MachineActions(store=store, providers=providers, clock=clock, owner=owner, bootstrap=bootstrap)
        self.units = UnitActions(store=store, runner=runner, clock=clock, uploads_dir=uploads_dir)
        self._failed: list[Refusal] = []
        self._troubles: dict[str, Failure] = {}

    def apply(
        self, plan: Plan, policy: Policy, offers: Sequence[Offer], lease: LeaderLease | None = None
    ) -> ApplyResult:
        """Carry out ``plan``: rows first, then what frees money and room (stops, resizes, ends), then what takes it.

        An action that fails by a defect is skipped and reported, so that it does not stop the others.

        Raises StoreBusy, StaleWrite (the lease is lost): what was done so far is recorded, the rest is planned anew.
        """
        refused: list[Refusal] = []
        self._failed.clear()
        done = self._rows(plan, refused, lease)
        done += self._stops(plan, refused, lease)
        done += self._resizes(plan, refused, lease)
        done += self._terminates(plan, policy, refused, lease)
        done += self._renewals(plan, refused, lease)
        done += self._launches(plan, policy, offers, refused, lease)
        done += self._places(plan, refused, lease)
        moved = any(not isinstance(a, Wait) for a in done)
        went_on = all(isinstance(a, Wait | Renew) for a in done)
        return ApplyResult(
            applied=len(done), refused=tuple(refused), moved=moved, went_on=went_on, failed=tuple(self._failed)
        )

    def resume(self, intents: Sequence[Intent], policy: Policy, lease: LeaderLease | None = None) -> int:
        """Repeat open intents that are due (found at start-up, or left open by a failure); return how many."""
        now = self.clock.now()
        due: dict[IntentKind, list[Intent]] = {kind: [] for kind in IntentKind}
        for intent in intents:
            if intent.retry_at <= now:
                due[intent.kind].append(intent)
        drives: Mapping[IntentKind, Drive] = {  # what frees room and money first
            IntentKind.STOP: self.units.drive_stops,
            IntentKind.RESIZE: self.units.drive_resizes,
            IntentKind.TERMINATE: self.machines.drive_terminates,
            IntentKind.LAUNCH: self._launching(policy),
            IntentKind.START: self.units.drive_starts,
        }
        for kind, drive in drives.items():
            self._drive(due[kind], drive, lease)
        return sum(map(len, due.values()))

    def _rows(self, plan: Plan, refused: list[Refusal], lease: LeaderLease | None) -> list[Action]:
        actions = [a for a in plan.actions if type(a) in _ROW_ACTIONS]

        def record(txn: Transaction, action: Action) -> None:
            """Change rows only: these actions touch nothing outside."""
            _ROW_ACTIONS[type(action)](txn, action)

        return self._record(actions, refused, lease, lambda: record)[0]

    def _renewals(self, plan: Plan, refused: list[Refusal], lease: LeaderLease | None) -> list[Action]:
        """Renew machines: units of users with exhausted limits may be stopped for that, and must be
        before, as the daemon may die in between."""
        actions = [a for a in plan.actions if isinstance(a, Renew)]
        return list(self._record(actions, refused, lease, lambda: renew)[0])

    def _stops(self, plan: Plan, refused: list[Refusal], lease: LeaderLease | None) -> list[Action]:
        whole = [a for a in plan.actions if isinstance(a, StopAttempt)]
        parts = [a for a in plan.actions if isinstance(a, StopRank)]
        done, intents = self._record(whole, refused, lease, lambda: self.units.record_stop)
        done_parts, more = self._record(parts, refused, lease, lambda: self.units.record_stop_rank)
        self._drive([*intents, *more], self.units.drive_stops, lease)
        return [*done, *done_parts]

    def _resizes(self, plan: Plan, refused: list[Refusal], lease: LeaderLease | None) -> list[Action]:
        actions = [a for a in plan.actions if isinstance(a, Resize)]
        if not actions:
            return []

        def recording() -> Callable[[Transaction, Resize], list[Intent]]:
            """Begin with all that is free now."""
            free = self._free({each.instance_id for action in actions for each in action.ranks})
            return lambda txn, action: self.units.record_resize(txn, action, free)

        done, intents = self._record(actions, refused, lease, recording)
        self._drive(list(chain.from_iterable(intents)), self.units.drive_resizes, lease)
        return list(done)

    def _terminates(
        self, plan: Plan, policy: Policy, refused: list[Refusal], lease: LeaderLease | None
    ) -> list[Action]:
        actions = [a for a in plan.actions if isinstance(a, Terminate)]

        def record(txn: Transaction, action: Terminate) -> Intent | None:
            """Write the intent to end one machine; None where it is ending already."""
            return self.machines.record_terminate(txn, action, policy)

        done, intents = self._record(actions, refused, lease, lambda: record)
        self._drive(intents, self.machines.drive_terminates, lease)
        return list(done)

    def _launches(
        self, plan: Plan, policy: Policy, offers: Sequence[Offer], refused: list[Refusal], lease: LeaderLease | None
    ) -> list[Action]:
        actions = [a for a in plan.actions if isinstance(a, Launch)]
        if not actions:
            return []

        def recording() -> Callable[[Transaction, Launch], Instance]:
            """Write each launch beside the earlier ones of this plan: budgets and caps are judged with them."""
            live = LaunchBudgetView.of(self.store.live().instances)
            price = partial(on_demand_price, offers=offers)
            return lambda txn, each: self.machines.record_launch(txn, each, policy, live, price(each.offer))

        done, launched = self._record(actions, refused, lease, recording)
        intents = {intent.token: intent for intent in self.store.live().intents}
        # In the plan's order: where room is scarce, who came first gets it.
        begun = [intents[instance.token] for instance in launched if instance.token in intents]
        self._drive(begun, self._launching(policy), lease)
        return list(done)

    def _places(self, plan: Plan, refused: list[Refusal], lease: LeaderLease | None) -> list[Action]:
        actions = [a for a in plan.actions if isinstance(a, Place)]
        if not actions:
            return []

        def recording() -> Callable[[Transaction, Place], Intent]:
            """Begin with all that is free now."""
            free = self._free({each.instance_id for action in actions for each in action.ranks})
            return lambda txn, action: self.units.record_place(txn, action, free)

        done, intents = self._record(actions, refused, lease, recording)
        self._drive(intents, self.units.drive_starts, lease)
        return list(done)

    def _free(self, names: Iterable[str]) -> dict[str, Resources]:
        """Return what is left on those of these machines that are READY, by the rows as they are now."""
        view = self.store.live()
        self.unit_index.follow(view.jobs, view.instances)
        return self.unit_index.free_resources(names)

    def _record(
        self,
        actions: Sequence[A],
        refused: list[Refusal],
        lease: LeaderLease | None,
        recording: Callable[[], Callable[[Transaction, A], R | None]],
    ) -> tuple[list[A], list[R]]:
        """Carry out row changes of ``actions`` in one transaction; return those done and what they gave.

        ``recording`` begins anew with what it counts. What fails by a defect is left out of it.
        """

        def judging() -> Callable[[Transaction, A], R | Refusal | None]:
            """Begin anew, and judge each by fresh rows."""
            carry_out = recording()

            def judge(txn: Transaction, action: A) -> R | Refusal | None:
                """Carry out one action, or refuse it."""
                try:
                    return carry_out(txn, action)
                except (Refused, InvalidTransition, NotFound) as why:
                    return Refusal(action=action, why=str(why))

            return judge

        found = run_batch(self.store, self.clock, lease, actions, judging, self._leave_out)
        refused += [given for _, given in found if isinstance(given, Refusal)]
        done = [(action, given) for action, given in found if not isinstance(given, Refusal)]
        return [action for action, _ in done], [given for _, given in done if given is not None]

    def _leave_out(self, action: Action, defect: Exception) -> None:
        _log.error("%s failed with a defect of HCloud; all other actions go on", type(action).__name__, exc_info=defect)
        self._failed.append(Refusal(action=action, why=error_text(defect)))

    # --------------------------------------------------------------------------------------------------------- driving
    def _launching(self, policy: Policy) -> Drive:
        return lambda intents, lease: self.machines.drive_launches(intents, policy, lease)

    def _drive(self, intents: Sequence[Intent], drive: Drive, lease: LeaderLease | None) -> None:
        """Have intents carried out. Those for which it fails by a defect stay open for later, so that the others are;
        what was asked of clouds and workers before it failed may be asked again."""

        def carry_out(some: Sequence[Intent]) -> None:
            """Carry out those that an earlier try has not settled, or put off."""
            if some is not intents:
                live = {intent.token: intent for intent in self.store.live().intents}
                some = [each for each in some if live.get(each.token) == each]
            if some:
                drive(some, lease)

        if not intents:
            return
        trouble = bisect_failures(intents, carry_out, lambda intent, trouble: self._postpone(intent, trouble, lease))
        if trouble is not None:
            self._troubles[f"{intents[0].kind.value} of {_subjects(intents)}"] = trouble

    def _postpone(self, intent: Intent, trouble: Failure, lease: LeaderLease | None) -> None:
        job_id = None if intent.kind in (IntentKind.LAUNCH, IntentKind.TERMINATE) else intent.subject
        self._troubles[f"{intent.kind.value} of {intent.subject}"] = trouble._replace(job_id=job_id)
        with self.store.transaction(self.clock.now(), lease) as txn:
            if (fresh := txn.intent(intent.token)) is not None:
                txn.put_intent(replace(fresh, tries=fresh.tries + 1, retry_at=txn.now + DEFECT_RETRY_S))

    def take_failures(self) -> Failures:
        """Return what intents could not be carried out, by a defect, since this was asked last."""
        taken, self._troubles = self._troubles, {}
        return taken
