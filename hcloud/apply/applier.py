"""Apply a plan: each action is re-checked on fresh rows, then carried out as intent, effect, result.

Rows change in short transactions; providers and the engine are called outside them. A daemon that is killed in between
finds its open intents at the next start and repeats them with the same token (architecture.md, ground rules 3 and 4).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path
from typing import TypeVar

from hcloud.apply.jobs import classify, correct, enqueue, finish, make_tasks, mark_preempted, miss, profile, wait
from hcloud.apply.machines import LaunchBudgetView, MachineActions, drain, emit_provider_error, on_demand_price, renew
from hcloud.apply.pauses import PauseActions
from hcloud.apply.unit_index import UnitIndex
from hcloud.apply.units import UnitActions
from hcloud.buckets import InputPreparer
from hcloud.core.clock import Clock
from hcloud.core.errors import InvalidTransition, NotFound, Refused, defect_text
from hcloud.core.model import Instance, Intent, IntentKind, Offer, Resources, UnitId
from hcloud.planner.plan import (
    Action,
    Classify,
    Correct,
    Drain,
    Enqueue,
    Finish,
    Launch,
    MakeTasks,
    Miss,
    Pause,
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
from hcloud.provider import BootstrapOf, GangNetworkSupport, Provider, Runner
from hcloud.quarantine import DEFECT_RETRY_S, Failure, Failures, bisect_failures, run_batch
from hcloud.secret_references import SecretReferences
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
    Miss: miss,  # type: ignore[dict-item]
    Finish: finish,  # type: ignore[dict-item]
    MakeTasks: make_tasks,  # type: ignore[dict-item]
    Profile: profile,  # type: ignore[dict-item]
    Classify: classify,  # type: ignore[dict-item]
    Correct: correct,  # type: ignore[dict-item]
    Drain: drain,  # type: ignore[dict-item]
}


_ANSWERED_LATER = (IntentKind.START, IntentKind.RESIZE, IntentKind.PAUSE)
"""Intents that workers may answer after the call for them has returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An action that fresh rows no longer allow, and why."""

    action: Action
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """What was applied of a plan."""

    applied: int
    """The number of actions applied."""
    refused: tuple[Refusal, ...] = ()
    """Actions that fresh rows no longer allow."""
    moved: bool = False
    """Whether any action but a Wait or Miss was applied: the next cycle should come soon."""
    only_renewed: bool = True
    """Whether nothing but Waits, Misses and renewals was applied."""
    due_at: float = inf
    """When time alone changes the next plan (``Plan.due_at``)."""
    failed: tuple[Refusal, ...] = ()
    """Actions that failed because of a defect; they changed nothing."""


def _subjects(intents: Sequence[Intent]) -> str:
    names = list(dict.fromkeys(intent.subject for intent in intents))
    return ", ".join(names[:3]) + (f" or {len(names) - 3} more" if len(names) > 3 else "")


class Applier:
    """Applies plans, one at a time: only the leader's controller calls it."""

    def __init__(
        self,
        store: Store,
        providers: Mapping[str, Provider],
        runner: Runner,
        clock: Clock,
        *,
        owner: str,
        bootstrap: BootstrapOf,
        uploads_dir: Path,
        checkpoints_dir: Path | None = None,
        unit_index: UnitIndex | None = None,
        unseal: Callable[[str, Mapping[str, str]], Mapping[str, str]] | None = None,
        inputs: InputPreparer | None = None,
        references: SecretReferences | None = None,
    ) -> None:
        """Keep the ports; call none yet. ``unit_index`` may be shared with others that follow the same rows.

        ``unseal`` decrypts a user's secrets by name; ``inputs`` lists what machines fetch;
        ``references`` reads what secret managers keep.
        """
        self.store = store
        self.clock = clock
        self.unit_index = unit_index or UnitIndex()
        self.machines = MachineActions(store=store, providers=providers, clock=clock, owner=owner, bootstrap=bootstrap)
        self.units = UnitActions(
            store=store,
            runner=runner,
            clock=clock,
            uploads_dir=uploads_dir,
            checkpoints_dir=checkpoints_dir,
            is_on_one_host=lambda name: isinstance(providers.get(name), GangNetworkSupport),
        )
        self.pauses = PauseActions(store=store, runner=runner, clock=clock)
        if unseal is not None:
            self.units.unseal = unseal
        self.units.inputs = inputs
        if references is not None:
            self.units.references = references
        self._failed: list[Refusal] = []
        self._failures: dict[str, Failure] = {}

    def apply(
        self, plan: Plan, policy: Policy, offers: Sequence[Offer], lease: LeaderLease | None = None
    ) -> ApplyResult:
        """Apply ``plan``: row changes, then what frees money and capacity (stops, resizes, ends), then the rest.

        An action that fails because of a defect changes nothing and is returned in ``failed``. Raises StoreBusy,
        StaleWrite (the leader lease is lost): what was applied is recorded, and the next cycle plans the rest again.
        """
        refused: list[Refusal] = []
        self._failed.clear()
        done = self._rows(plan, refused, lease)
        done += self._stops(plan, refused, lease)
        done += self._resizes(plan, refused, lease)
        done += self._pauses(plan, refused, lease)
        done += self._terminates(plan, policy, refused, lease)
        # After the stops: renewals need users' limits to be kept, and the daemon may die in between.
        renewals = [a for a in plan.actions if isinstance(a, Renew)]
        done += self._record(renewals, refused, lease, lambda: renew)[0]
        done += self._launches(plan, policy, offers, refused, lease)
        done += self._places(plan, refused, lease)
        moved = any(not isinstance(a, Wait | Miss) for a in done)
        only_renewed = all(isinstance(a, Wait | Miss | Renew) for a in done)
        return ApplyResult(
            applied=len(done),
            refused=tuple(refused),
            moved=moved,
            only_renewed=only_renewed,
            failed=tuple(self._failed),
        )

    def resume(
        self,
        intents: Sequence[Intent],
        policy: Policy,
        lease: LeaderLease | None = None,
        answered: Set[UnitId] = frozenset(),
    ) -> int:
        """Repeat the open intents that are due, of an earlier process or after an error; return how many.

        ``answered``: units whose start, resize or pause has been answered, so that their intents are due.
        """
        now = self.clock.now()
        due: dict[IntentKind, list[Intent]] = {kind: [] for kind in IntentKind}
        jobs = {unit.partition(".")[0] for unit in answered}
        for intent in intents:
            is_answered = intent.kind in _ANSWERED_LATER and intent.subject in jobs
            if intent.retry_at <= now or is_answered:
                due[intent.kind].append(intent)
        drives: Mapping[IntentKind, Drive] = {  # what frees capacity and money first
            IntentKind.STOP: self.units.drive_stops,
            IntentKind.RESIZE: self.units.drive_resizes,
            IntentKind.PAUSE: self.pauses.drive,
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
            _ROW_ACTIONS[type(action)](txn, action)

        return self._record(actions, refused, lease, lambda: record)[0]

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
            free = self._free({each.instance_id for action in actions for each in action.ranks})
            return lambda txn, action: self.units.record_resize(txn, action, free)

        done, intents = self._record(actions, refused, lease, recording)
        self._drive(list(chain.from_iterable(intents)), self.units.drive_resizes, lease)
        return list(done)

    def _pauses(self, plan: Plan, refused: list[Refusal], lease: LeaderLease | None) -> list[Action]:
        # First those that are resumed: a machine is never idle between two sets of units.
        actions = sorted((a for a in plan.actions if isinstance(a, Pause)), key=lambda each: not each.undo)
        done, intents = self._record(actions, refused, lease, lambda: self.pauses.record)
        self._drive(intents, self.pauses.drive, lease)
        return list(done)

    def _terminates(
        self, plan: Plan, policy: Policy, refused: list[Refusal], lease: LeaderLease | None
    ) -> list[Action]:
        actions = [a for a in plan.actions if isinstance(a, Terminate)]

        def record(txn: Transaction, action: Terminate) -> Intent | None:
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
            # Caps and budgets are checked against the earlier launches of this plan too.
            live = LaunchBudgetView.of(self.store.live().instances)
            price = partial(on_demand_price, offers=offers)
            return lambda txn, each: self.machines.record_launch(txn, each, policy, live, price(each.offer))

        done, launched = self._record(actions, refused, lease, recording)
        intents = {intent.token: intent for intent in self.store.live().intents}
        # In the plan's order: if capacity is scarce, the first gets it.
        begun = [intents[instance.token] for instance in launched if instance.token in intents]
        self._drive(begun, self._launching(policy), lease)
        return list(done)

    def _places(self, plan: Plan, refused: list[Refusal], lease: LeaderLease | None) -> list[Action]:
        actions = [a for a in plan.actions if isinstance(a, Place)]
        if not actions:
            return []
        self.units.epoch = lease.epoch if lease is not None else 0

        def recording() -> Callable[[Transaction, Place], Intent]:
            names = {each.instance_id for action in actions for each in action.ranks}
            free, gpus_in_use = self._free(names), self.unit_index.gpus_in_use(names)
            return lambda txn, action: self.units.record_place(txn, action, free, gpus_in_use)

        done, intents = self._record(actions, refused, lease, recording)
        self._drive(intents, self.units.drive_starts, lease)
        return list(done)

    def _free(self, names: Iterable[str]) -> dict[str, Resources]:
        """Return the free resources of those of the instances that are READY, by the rows as they are now."""
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
        """Write the rows of ``actions`` in one transaction; return the actions done and their results.

        ``recording`` resets its counters and returns what writes one action. Refused and failed actions are left out.
        """

        def judging() -> Callable[[Transaction, A], R | Refusal | None]:
            carry_out = recording()

            def judge(txn: Transaction, action: A) -> R | Refusal | None:
                try:
                    return carry_out(txn, action)
                except (Refused, InvalidTransition, NotFound) as why:
                    return Refusal(action=action, why=str(why))

            return judge

        results = run_batch(self.store, self.clock, lease, actions, judging, self._record_failed)
        refused += [given for _, given in results if isinstance(given, Refusal)]
        done = [(action, given) for action, given in results if not isinstance(given, Refusal)]
        return [action for action, _ in done], [given for _, given in done if given is not None]

    def _record_failed(self, action: Action, defect: Exception) -> None:
        _log.error("%s failed, a defect; the others are carried out without it", type(action).__name__, exc_info=defect)
        self._failed.append(Refusal(action=action, why=defect_text(defect)))

    # --------------------------------------------------------------------------------------------------------- driving
    def _launching(self, policy: Policy) -> Drive:
        return lambda intents, lease: self.machines.drive_launches(intents, policy, lease)

    def _drive(self, intents: Sequence[Intent], drive: Drive, lease: LeaderLease | None) -> None:
        """Carry out intents. Those that fail because of a defect stay open for a later retry.

        Calls that were made before the failure may be repeated.
        """

        def carry_out(some: Sequence[Intent]) -> None:
            if some is not intents:  # an earlier call may have settled or postponed some
                live = {intent.token: intent for intent in self.store.live().intents}
                some = [each for each in some if live.get(each.token) == each]
            if some:
                drive(some, lease)

        if not intents:
            return
        failure = bisect_failures(intents, carry_out, lambda intent, failed: self._postpone(intent, failed, lease))
        if failure is not None:
            self._failures[f"{intents[0].kind.value} of {_subjects(intents)}"] = failure

    def _postpone(self, intent: Intent, failure: Failure, lease: LeaderLease | None) -> None:
        job_id = None if intent.kind in (IntentKind.LAUNCH, IntentKind.TERMINATE) else intent.subject
        self._failures[f"{intent.kind.value} of {intent.subject}"] = failure._replace(job_id=job_id)
        with self.store.transaction(self.clock.now(), lease) as txn:
            if (fresh := txn.intent(intent.token)) is not None:
                txn.put_intent(replace(fresh, tries=fresh.tries + 1, retry_at=txn.now + DEFECT_RETRY_S))

    def take_failures(self) -> Failures:
        """Return, once, the intents that failed because of a defect since the last call."""
        taken, self._failures = self._failures, {}
        return taken
