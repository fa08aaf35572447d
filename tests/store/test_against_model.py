"""The store against a model in dictionaries: after any sequence of operations, both return the same."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hcloud.core.errors import InvalidTransition, StaleWrite
from hcloud.core.model import (
    INSTANCE_TRANSITIONS,
    JOB_ENDED,
    JOB_TRANSITIONS,
    EventKind,
    Instance,
    InstanceState,
    Intent,
    IntentKind,
    Job,
    JobState,
)
from hcloud.planner.snapshot import OfferBackoff
from hcloud.store import LeaderLease, LiveView, Store, Submission, Transaction
from hcloud.store.database import Database
from tests.databases import sqlite_url
from tests.store.samples import SPEC, build_instance

tokens = st.sampled_from(["a", "b", "c"])
users = st.sampled_from(["ann", "bob"])
picks = st.integers(0, 30)


class StoreAgainstModel(RuleBasedStateMachine):
    """The expected content of the store."""

    new_url: Callable[[], str]
    store_class: type[Store] = Store

    @initialize()
    def begin(self) -> None:
        self.url = self.new_url()
        self.store = self.store_class.open(self.url)
        self.other = self.store_class.open(self.url)
        self.now = 1.0
        self.jobs: list[Job] = []
        self.machines: list[Instance] = []
        self.intents: dict[str, Intent] = {}
        self.backoffs: dict[str, OfferBackoff] = {}
        self.events: list[str] = []
        self.lease: LeaderLease | None = None

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.other.close()

    @rule(asked=st.lists(st.tuples(users, st.none() | tokens), max_size=3))
    def submit(self, asked: list[tuple[str, str | None]]) -> None:
        got = self.store.submit(
            [Submission(spec=replace(SPEC, user=user), actor=user, token=token) for user, token in asked], self.now
        )
        for (user, token), job in zip(asked, got, strict=True):
            known = [each for each in self.jobs if token and (each.spec.user, each.submission_token) == (user, token)]
            assert known == [job] if known else job.id == f"job-{len(self.jobs) + 1}"
            if not known:
                self.jobs.append(job)
                self.events.append("job_submitted")

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, state=st.sampled_from(JobState), stale=st.booleans())
    def move_a_job(self, pick: int, state: JobState, stale: bool) -> None:
        job = self.jobs[pick % len(self.jobs)]
        wanted = replace(job, state=state, wait_code=f"w{pick}", revision=job.revision - stale)
        allowed = state is job.state or state in JOB_TRANSITIONS[job.state]
        done = self.write(
            lambda tx: tx.put_job(wanted), fails=StaleWrite if stale else None if allowed else InvalidTransition
        )
        if done is not None:
            assert done == replace(wanted, revision=done.revision) and done.revision > job.revision
            self.jobs[pick % len(self.jobs)] = done

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, actor=users)
    def cancel(self, pick: int, actor: str) -> None:
        job = self.jobs[pick % len(self.jobs)]
        got = self.store.request_cancel(job.id, actor, self.now)
        if job.state not in JOB_ENDED and job.cancelled_by is None:
            assert got.cancelled_by == actor
            self.jobs[pick % len(self.jobs)] = got
            self.events.append("job_state")
        assert got == self.jobs[pick % len(self.jobs)]

    @rule(token=st.integers(0, 20).map(str))
    def new_machine(self, token: str) -> None:
        used = any(machine.token == token for machine in self.machines)
        built = self.write(
            lambda tx: tx.new_instance(lambda new_id: build_instance(new_id, token)), fails=StaleWrite if used else None
        )
        if built is not None:
            assert built.id == f"inst-{len(self.machines) + 1}"
            self.machines.append(built)

    @precondition(lambda self: self.machines)
    @rule(pick=picks, state=st.sampled_from(InstanceState))
    def move_a_machine(self, pick: int, state: InstanceState) -> None:
        machine = self.machines[pick % len(self.machines)]
        allowed = state is machine.state or state in INSTANCE_TRANSITIONS[machine.state]
        wanted = replace(machine, state=state, seen_at=self.now)
        done = self.write(lambda tx: tx.put_instance(wanted), fails=None if allowed else InvalidTransition)
        if done is not None:
            self.machines[pick % len(self.machines)] = done

    @rule(token=tokens, tries=picks)
    def open_or_rewrite_intent(self, token: str, tries: int) -> None:
        intent = Intent(token=token, kind=IntentKind.STOP, subject="job-1.1", created_at=self.now, tries=tries)
        is_open = token in self.intents
        self.write(lambda tx: tx.open_intent(intent), fails=StaleWrite if is_open else None)
        if is_open:
            self.write(lambda tx: tx.put_intent(intent))
        self.intents[token] = intent

    @rule(token=tokens)
    def close_intent(self, token: str) -> None:
        self.write(lambda tx: tx.close_intent(token))
        self.intents.pop(token, None)

    @rule(zone=tokens, until_at=st.integers(0, 40).map(float))
    def back_off(self, zone: str, until_at: float) -> None:
        self.backoffs[zone] = OfferBackoff(provider="mock", zone=zone, until_at=until_at)
        self.write(lambda tx: tx.put_backoff(self.backoffs[zone]))

    @rule()
    def clear_backoffs(self) -> None:
        self.write(lambda tx: tx.clear_backoffs(before=self.now))
        self.backoffs = {zone: backoff for zone, backoff in self.backoffs.items() if backoff.until_at >= self.now}

    @rule(holder=users, ttl_s=st.integers(1, 9).map(float))
    def acquire_lease(self, holder: str, ttl_s: float) -> None:
        held = self.lease is not None and self.lease.holder != holder and self.lease.until > self.now
        got = self.store.acquire_lease(holder, self.now, ttl_s)
        assert (got is None) == held
        self.lease = got or self.lease

    @precondition(lambda self: self.lease is not None)
    @rule(stale=st.booleans())
    def write_as_leader(self, stale: bool) -> None:
        assert self.lease is not None
        lease = replace(self.lease, epoch=self.lease.epoch - stale)
        self.write(lambda tx: tx.emit(EventKind.DAEMON), fails=StaleWrite if stale else None, lease=lease)
        self.events += [] if stale else ["daemon"]
        renewed = self.store.renew_lease(lease, self.now, 5.0)
        assert (renewed is None) == stale
        self.lease = renewed or self.lease

    @rule(pick=picks)
    def fail_half_way(self, pick: int) -> None:
        def half(tx: Transaction) -> None:
            tx.new_instance(lambda new_id: build_instance(new_id, "never"))
            tx.add_jobs([Submission(spec=SPEC, actor="ann", token="never")])
            tx.emit(EventKind.DAEMON)
            for token in self.intents:
                tx.close_intent(token)
            if self.jobs:
                tx.put_job(replace(self.jobs[pick % len(self.jobs)], wait_code="never"))
            raise ZeroDivisionError

        self.write(half, fails=ZeroDivisionError)

    @rule(seconds=st.integers(1, 6).map(float))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def another_process_goes_on(self) -> None:
        self.store, self.other = self.other, self.store

    @precondition(lambda self: self.jobs and self.machines)
    @rule(picks=st.lists(picks, min_size=2, max_size=4), token=tokens, meanwhile=st.booleans())
    def write_rows_several_times_in_one_transaction(self, picks: list[int], token: str, meanwhile: bool) -> None:
        if meanwhile:  # another process writes after this one read
            with self.other.transaction(self.now) as tx:
                self.jobs[0] = tx.put_job(replace(self.jobs[0], wait_code="by another"))

        def change(tx: Transaction) -> None:
            for pick in picks:
                at = pick % len(self.jobs)
                self.jobs[at] = tx.put_job(replace(self.jobs[at], wait_code=f"again{pick}"))
                at = pick % len(self.machines)
                self.machines[at] = tx.put_instance(replace(self.machines[at], seen_at=self.now + pick))
                if tx.intent(token) is None:
                    tx.open_intent(Intent(token=token, kind=IntentKind.STOP, subject="job-1.1", created_at=self.now))
                else:
                    tx.close_intent(token)
            left = tx.intent(token)
            self.intents.pop(token, None)
            self.intents |= {} if left is None else {token: left}

        self.write(change)

    @rule()
    def open_again(self) -> None:
        self.store.close()
        self.store = self.store_class.open(self.url)

    def write(
        self, does: Callable[[Transaction], Any], fails: type[Exception] | None = None, lease: LeaderLease | None = None
    ) -> Any:
        """Return the result of a call in a transaction, or None if it fails as expected."""
        with nullcontext() if fails is None else pytest.raises(fails):
            with self.store.transaction(self.now, lease) as tx:
                result = does(tx)
        return result if fails is None else None

    @invariant()
    def both_tell_the_same(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.live() == LiveView(
            jobs=tuple(job for job in self.jobs if job.state not in JOB_ENDED),
            instances=tuple(each for each in self.machines if each.state is not InstanceState.TERMINATED),
            intents=tuple(self.intents[token] for token in sorted(self.intents)),
            backoffs=tuple(self.backoffs[zone] for zone in sorted(self.backoffs)),
        )
        assert list(reversed(self.store.jobs(limit=1000))) == self.jobs
        assert list(reversed(self.store.instances(live_only=False))) == self.machines
        assert self.store.counts() == {state: sum(job.state is state for job in self.jobs) for state in JobState}
        assert [event.kind.value for event in self.store.events()] == self.events
        assert self.store.new_events(0, 1000) == self.store.events()
        assert self.store.new_events(len(self.events) // 2, 3) == self.store.events()[len(self.events) // 2 :][:3]


def steps(examples: int, **more: Any) -> settings:
    return settings(max_examples=examples, stateful_step_count=30, **more)


def machine(new_url: Callable[[], str], store_class: type[Store] = Store) -> type[RuleBasedStateMachine]:
    return type("Machine", (StoreAgainstModel,), {"new_url": staticmethod(new_url), "store_class": store_class})


def test_store_tells_what_a_dictionary_would(new_url: Callable[[], str]) -> None:
    # What differs between databases is little; an example takes four times as long on PostgreSQL.
    run_state_machine_as_test(machine(new_url), settings=steps(15 if new_url().startswith("sqlite") else 6))


class ForgetsToDropIntents(Store):
    """Seeded fault: a closed intent stays in the live view."""

    def live(self) -> LiveView:
        """Return the view with every intent ever seen."""
        view = super().live()
        seen = getattr(self, "_seen_intents", {}) | {intent.token: intent for intent in view.intents}
        self._seen_intents = seen
        return replace(view, intents=tuple(seen[token] for token in sorted(seen)))


class CancelsAgain(Store):
    """Seeded fault: the second one to cancel overwrites the first."""

    def request_cancel(self, job_id: str, actor: str, now: float) -> Job:
        """Cancel even if the job is already cancelled."""
        with self.transaction(now) as tx:
            job = tx.job(job_id)
            tx.emit(EventKind.JOB_STATE, job_id=job_id)
            return tx.put_job(replace(job, cancelled_by=actor))


class FollowsTooMuch(Store):
    """Seeded fault: what this process wrote is taken over, although another process wrote in between."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        follow = self._live.follow
        self._live.follow = lambda before, written: follow(self._live._seen, written)  # type: ignore[method-assign]


@pytest.mark.parametrize(("faulty", "number"), [(ForgetsToDropIntents, 10), (CancelsAgain, 18), (FollowsTooMuch, 10)])
def test_faulty_store_is_caught(tmp_path: Path, faulty: type[Store], number: int) -> None:
    """From its number on, a search soon shows the fault; from any other it takes longer."""
    numbers = count()

    def new_url() -> str:
        return sqlite_url(tmp_path / f"{next(numbers)}.db")

    quick = steps(250, phases=[Phase.generate], print_blob=False)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_state_machine_as_test(seed(number)(machine(new_url, faulty)), settings=quick)
