"""The contract of the store, on SQLite and on PostgreSQL."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest

from hcloud.core.co_runs import CoRun
from hcloud.core.errors import BadInput, InvalidTransition, NotFound, StaleWrite
from hcloud.core.estimates import Application
from hcloud.core.model import EventKind, FailureCause, InstanceState, JobState, move_instance, move_job
from hcloud.planner.run_times import recorded_features
from hcloud.planner.snapshot import OfferBackoff, RefusedQuota
from hcloud.store import MemoryStore, Store, Submission, memory, transaction
from tests.store.samples import NOW, SPEC, build_instance, emit, launch, open_intent, submit, walk


# ----------------------------------------------------------------------------------------------------------- submitting
def test_submit_numbers_jobs_in_order_and_keeps_what_was_asked(store: Store) -> None:
    first, second = submit(store, count=2)
    assert (first.id, second.id) == ("job-1", "job-2")
    assert submit(store)[0].id == "job-3"
    assert store.job("job-2") == second
    assert (second.spec, second.state, second.submitted_at) == (SPEC, JobState.SUBMITTED, NOW)


def test_submit_records_who_asked_for_what(store: Store) -> None:
    (job,) = store.submit([Submission(spec=SPEC, actor="root")], NOW)
    (event,) = store.events(kinds=[EventKind.JOB_SUBMITTED])
    assert (event.seq, event.at, event.job_id, event.user, event.actor) == (1, NOW, job.id, "ann", "root")
    assert event.fields == {
        "name": "sort",
        "tags": {"team": "search"},
        "target_kind": "batch",
        "vcpus": 1.0,
        "memory_mib": 512,
        "nodes": 1,
        "priority": 0,
        "features": recorded_features(SPEC, NOW),
        "deadline_at": NOW + 60,
    }


def test_same_token_of_the_same_user_is_the_same_job(store: Store) -> None:
    submission = Submission(spec=SPEC, actor="ann", token="k")
    other = Submission(spec=replace(SPEC, user="bob"), actor="bob", token="k")
    (first,) = store.submit([submission], NOW)
    again, twin, others = store.submit([submission, submission, other], NOW + 1)
    assert again == twin == first
    assert others.id == "job-2"
    assert len(store.events(kinds=[EventKind.JOB_SUBMITTED])) == 2


def test_token_repeated_within_one_batch_makes_one_job(store: Store) -> None:
    submission = Submission(spec=SPEC, actor="ann", token="k")
    assert [job.id for job in store.submit([submission, submission], NOW)] == ["job-1", "job-1"]


def test_empty_token_is_a_token_and_none_is_not(store: Store) -> None:
    asked = [Submission(spec=SPEC, actor="ann", token=token) for token in ("", None, "", None)]
    assert [job.id for job in store.submit(asked, NOW)] == ["job-1", "job-2", "job-1", "job-3"]


def test_submit_takes_all_or_none(store: Store) -> None:
    for bad in (replace(SPEC, name="a\x00b"), replace(SPEC, command=("\udc80",)), replace(SPEC, tags={"t": "\x00"})):
        with pytest.raises(BadInput):
            store.submit([Submission(spec=SPEC, actor="ann"), Submission(spec=bad, actor="ann")], NOW)
    assert store.jobs() == () and store.events() == ()
    assert submit(store)[0].id == "job-1"


def test_empty_submission_writes_nothing(store: Store) -> None:
    assert store.submit([], NOW) == ()
    assert store.events() == ()


def test_cancel_is_noted_once_with_its_author(store: Store) -> None:
    (job,) = submit(store)
    cancelled = store.request_cancel(job.id, "bob", NOW + 5)
    assert cancelled.cancelled_by == "bob" and cancelled.state is JobState.SUBMITTED
    assert store.request_cancel(job.id, "eve", NOW + 6) == cancelled == store.job(job.id)
    (event,) = store.events(kinds=[EventKind.JOB_STATE])
    assert (event.actor, event.user, event.at, event.fields["code"]) == ("bob", "ann", NOW + 5, "cancel_requested")


def test_cancel_of_an_ended_job_changes_nothing(store: Store) -> None:
    (job,) = submit(store)
    ended = walk(store, job, JobState.FAILED, finished_at=NOW)
    assert store.request_cancel(job.id, "bob", NOW) == ended
    with pytest.raises(NotFound, match="job-9; the newest is job-1"):
        store.request_cancel("job-9", "bob", NOW)


# --------------------------------------------------------------------------------------------------------- transactions
def test_put_job_returns_the_new_revision_and_may_be_repeated_within_a_transaction(store: Store) -> None:
    (job,) = submit(store)
    with store.transaction(NOW) as tx:
        queued = tx.put_job(move_job(tx.job(job.id), JobState.QUEUED))
        assert queued.revision > job.revision
        assert tx.job(job.id) == queued
        placed = tx.put_job(move_job(queued, JobState.PLACED, spent_usd=0.5))
    assert store.job(job.id) == placed


def test_put_job_refuses_a_row_that_moved_on(store: Store) -> None:
    (job,) = submit(store)
    walk(store, job, JobState.QUEUED)
    with pytest.raises(StaleWrite, match="job-1 was read at revision"), store.transaction(NOW) as tx:
        tx.put_job(move_job(job, JobState.FAILED))
    assert store.job(job.id).state is JobState.QUEUED


def test_put_job_refuses_a_move_the_table_forbids(store: Store) -> None:
    (job,) = submit(store)
    with pytest.raises(InvalidTransition, match="job-1 cannot go from submitted to running"):
        with store.transaction(NOW) as tx:
            tx.put_job(replace(tx.job(job.id), state=JobState.RUNNING))
    assert store.job(job.id) == job


def test_put_job_refuses_a_changed_spec(store: Store) -> None:
    (job,) = submit(store)
    with pytest.raises(BadInput, match="spec never changes"), store.transaction(NOW) as tx:
        tx.put_job(replace(job, spec=replace(SPEC, priority=9)))


def test_exception_rolls_everything_back(store: Store) -> None:
    (job,) = submit(store)
    before = (store.live(), store.events())

    def fail_in_the_end() -> None:
        with store.transaction(NOW) as tx:
            tx.put_job(move_job(tx.job(job.id), JobState.QUEUED))
            tx.new_instance(build_instance)
            tx.emit(EventKind.DAEMON, what="started")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_the_end()
    assert (store.live(), store.events()) == before
    assert launch(store).id == "inst-1"


def test_revision_of_a_failed_transaction_never_comes_to_mean_another_write(store: Store) -> None:
    (job,) = submit(store)
    with suppress(ZeroDivisionError), store.transaction(NOW) as tx:
        never_written = tx.put_job(move_job(tx.job(job.id), JobState.QUEUED))
        raise ZeroDivisionError
    walk(store, job, JobState.FAILED)
    with pytest.raises(StaleWrite), store.transaction(NOW) as tx:
        tx.put_job(never_written)


def test_transactions_do_not_nest_silently(store: Store) -> None:
    with pytest.raises(RuntimeError, match="inside another one"), store.transaction(NOW), store.transaction(NOW):
        raise AssertionError("unreachable")
    submit(store)


def test_reads_outside_see_nothing_of_an_open_transaction(store: Store) -> None:
    (job,) = submit(store)
    with store.transaction(NOW) as tx:
        tx.put_job(move_job(tx.job(job.id), JobState.QUEUED))
        assert store.job(job.id) == job
        assert store.live().jobs == (job,)


def test_unknown_things_are_not_found(store: Store) -> None:
    submit(store, name="sort")
    for asked, hint in [
        ("job-7", "the newest is job-1"),
        ("1", "did you mean job-1"),
        ("job_1", "did you mean job-1"),
        ("job-1.2", "did you mean job-1"),
        ("sort", "the newest job of that name is job-1"),
        ("job-01", "did you mean job-1"),
        ("job-" + "9" * 40, "one looks like job-7"),
        ("\x00", "one looks like job-7"),
    ]:
        with pytest.raises(NotFound, match=hint):
            store.job(asked)
    with pytest.raises(NotFound, match="none was launched yet"):
        store.instance("inst-1")
    with pytest.raises(NotFound, match="one looks like inst-7"):
        store.instance("job-1")
    with store.transaction(NOW) as tx, pytest.raises(NotFound, match="job-5"):
        tx.job("job-5")


# ------------------------------------------------------------------------------------- instances, intents, back-offs
def test_instances_are_numbered_and_move_by_their_table(store: Store) -> None:
    first, second = launch(store, "a"), launch(store, "b")
    assert (first.id, second.id) == ("inst-1", "inst-2")
    with store.transaction(NOW) as tx:
        booting = tx.put_instance(move_instance(tx.instance("inst-1"), InstanceState.BOOTING, launched_at=NOW))
    assert store.instance("inst-1") == booting
    with pytest.raises(StaleWrite, match="inst-1"), store.transaction(NOW) as tx:
        tx.put_instance(first)
    with pytest.raises(InvalidTransition, match="inst-2"), store.transaction(NOW) as tx:
        tx.put_instance(replace(second, state=InstanceState.READY))
    with pytest.raises(InvalidTransition, match="token"), store.transaction(NOW) as tx:
        tx.put_instance(replace(second, token="c"))


def test_launch_token_is_used_once(store: Store) -> None:
    launch(store, "t")
    with pytest.raises(StaleWrite, match="token t was already used for inst-1"):
        launch(store, "t")
    assert launch(store, "u").id == "inst-2"


def test_instances_are_listed_newest_first(store: Store) -> None:
    launch(store, "a"), launch(store, "b"), launch(store, "c")
    with store.transaction(NOW) as tx:
        tx.put_instance(move_instance(tx.instance("inst-2"), InstanceState.TERMINATED, terminated_at=NOW))
    assert [machine.id for machine in store.instances()] == ["inst-3", "inst-1"]
    assert [machine.id for machine in store.instances(live_only=False, limit=2)] == ["inst-3", "inst-2"]


def test_intent_is_opened_once_and_closed_harmlessly_twice(store: Store) -> None:
    intent = open_intent(store, "launch-1")
    with pytest.raises(StaleWrite, match="launch-1 is already open"):
        open_intent(store, "launch-1")
    again = replace(intent, tries=3, retry_at=2000.0)
    with store.transaction(NOW) as tx:
        tx.put_intent(again)
        assert tx.intent("launch-1") == again
    assert store.live().intents == (again,)
    for _ in range(2):
        with store.transaction(NOW) as tx:
            tx.close_intent("launch-1")
    assert store.live().intents == ()
    with pytest.raises(StaleWrite, match="is no longer open"), store.transaction(NOW) as tx:
        tx.put_intent(again)


def test_backoffs_are_replaced_by_key_and_cleared_by_time(store: Store) -> None:
    wide = OfferBackoff(provider="mock", until_at=50.0)
    narrow = OfferBackoff(provider="mock", zone="a", instance_type="s", market="spot", until_at=70.0)
    with store.transaction(NOW) as tx:
        tx.put_backoff(narrow)
        tx.put_backoff(wide)
        tx.put_backoff(replace(wide, until_at=60.0, failures=2))
        assert tx.backoff("mock", "a", "s", "spot") == narrow
        assert tx.backoff("mock", "", "", "") == replace(wide, until_at=60.0, failures=2)
        assert tx.backoff("mock", "a", "s", "") is None
    assert store.live().backoffs == (replace(wide, until_at=60.0, failures=2), narrow)
    with store.transaction(NOW) as tx:
        tx.clear_backoffs(before=70.0)
    assert store.live().backoffs == (narrow,)


def test_refused_quotas_are_replaced_by_key_and_cleared_once_both_their_times_are_over(store: Store) -> None:
    general = RefusedQuota(
        provider="mock", region="r", quota="standard", vcpus=8.0, instance_vcpus=2.0, until_at=50.0, retry_at=90.0
    )
    graphic = replace(general, quota="g", until_at=70.0, retry_at=60.0)
    with store.transaction(NOW) as tx:
        tx.put_refused_quota(general)
        tx.put_refused_quota(graphic)
        tx.put_refused_quota(replace(general, vcpus=16.0))
        assert tx.refused_quota("mock", "r", "standard") == replace(general, vcpus=16.0)
        assert tx.refused_quota("mock", "r", "x") is None
    assert store.live().refused_quotas == (graphic, replace(general, vcpus=16.0))
    with store.transaction(NOW) as tx:
        tx.clear_backoffs(before=80.0)
    assert store.live().refused_quotas == (replace(general, vcpus=16.0),)


# ------------------------------------------------------------------------------------------------------------ live view
def test_live_is_the_same_object_while_nothing_changes(store: Store) -> None:
    submit(store, count=3)
    view = store.live()
    assert store.live() is view


def test_live_follows_what_starts_changes_and_ends(store: Store) -> None:
    jobs = submit(store, count=12)
    machine = launch(store)
    assert store.live().jobs == jobs and store.live().instances == (machine,)
    walk(store, jobs[1], JobState.FAILED)
    changed = walk(store, jobs[0], JobState.QUEUED)
    (new,) = submit(store)
    with store.transaction(NOW) as tx:
        tx.put_instance(move_instance(tx.instance(machine.id), InstanceState.TERMINATED))
    assert store.live().jobs == (changed, *jobs[2:], new)
    assert store.live().instances == ()


def test_live_sees_what_another_process_writes(store: Store, store_url: str) -> None:
    store.live()
    other = Store.open(store_url)
    (job,) = submit(other)
    intent = open_intent(other, "x")
    assert store.live().jobs == (job,) and store.live().intents == (intent,)
    moved = walk(other, job, JobState.QUEUED)
    with other.transaction(NOW) as tx:
        tx.close_intent("x")
    assert store.live().jobs == (moved,) and store.live().intents == ()
    other.close()


def test_live_of_a_fresh_store_equals_that_of_a_used_one(store: Store, store_url: str) -> None:
    jobs = submit(store, count=5)
    store.live()
    walk(store, jobs[3], JobState.QUEUED, JobState.PLACED, JobState.RUNNING, JobState.SUCCEEDED)
    walk(store, jobs[0], JobState.QUEUED)
    open_intent(store, "b"), open_intent(store, "a")
    fresh = Store.open(store_url)
    assert fresh.live() == store.live()
    assert [intent.token for intent in fresh.live().intents] == ["a", "b"]
    fresh.close()


def test_threads_submit_while_cycles_run(store: Store) -> None:
    stop = threading.Event()
    seen: list[list[str]] = []

    def cycles() -> None:
        while not stop.is_set():
            view = store.live()
            seen.append([job.id for job in view.jobs])
            for job in view.jobs:
                if job.state is JobState.SUBMITTED:
                    walk(store, job, JobState.QUEUED)

    with ThreadPoolExecutor(5) as pool:
        cycling = pool.submit(cycles)
        submitted = list(pool.map(lambda _: submit(store, count=5), range(20)))
        stop.set()
        cycling.result()
    ids = [job.id for jobs in submitted for job in jobs]
    assert sorted(ids) == sorted(f"job-{n}" for n in range(1, 101))
    assert [job.id for job in store.live().jobs] == [f"job-{n}" for n in range(1, 101)]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(seen))
    assert [event.seq for event in store.events()] == list(range(1, 101))


# --------------------------------------------------------------------------------------------------------------- lists
def test_jobs_are_found_by_state_user_name_and_tag(store: Store) -> None:
    submit(store, name="a", user="ann", tags={"team": "x"})
    submit(store, name="b", user="bob", tags={"team": "y", "run": "1"})
    (third,) = submit(store, name="a", user="bob", tags={})
    walk(store, third, JobState.QUEUED)

    def found(**wanted: object) -> list[str]:
        return [job.id for job in store.jobs(**wanted)]  # type: ignore[arg-type]

    assert found() == ["job-3", "job-2", "job-1"]
    assert found(limit=1) == ["job-3"]
    assert found(before="job-3") == ["job-2", "job-1"]
    assert found(user="bob") == ["job-3", "job-2"]
    assert found(name="a") == ["job-3", "job-1"]
    assert found(tag="team") == ["job-2", "job-1"]
    assert found(tag="team=x") == ["job-1"]
    assert found(tag="team=") == []
    assert found(states=[JobState.QUEUED]) == ["job-3"]
    assert found(states=[]) == []
    assert found(user="bob", name="a", states=set(JobState)) == ["job-3"]


def test_text_no_row_can_hold_finds_nothing(store: Store) -> None:
    submit(store)
    for text in ("\x00", "\udc80"):
        assert store.jobs(user=text) == store.jobs(name=text) == store.jobs(tag=text) == ()
        assert store.get_meta(text) is None
        with pytest.raises(NotFound):
            store.job(text)
        with pytest.raises(BadInput):
            store.set_meta(text, "")


def test_counts_name_every_state(store: Store) -> None:
    assert store.counts() == dict.fromkeys(JobState, 0)
    first, *_ = submit(store, count=3)
    walk(store, first, JobState.CANCELLED)
    assert store.counts() == dict.fromkeys(JobState, 0) | {JobState.SUBMITTED: 2, JobState.CANCELLED: 1}


def test_meta_is_kept_by_key(store: Store) -> None:
    assert store.get_meta("paused") is None
    store.set_meta("paused", "drain")
    store.set_meta("paused", "")
    assert store.get_meta("paused") == ""


# -------------------------------------------------------------------------------------------------------------- events
def test_events_keep_their_order_and_fields(store: Store) -> None:
    fields = {"text": "ä\x00", "number": 3, "share": 0.5, "none": None, "list": ["a", 1], "map": {"k": 2**60}}
    with store.transaction(NOW) as tx:
        tx.emit(EventKind.JOB_STATE, job_id="job-4", instance_id="inst-9", user="ann", actor="bob", **fields)
        tx.emit(EventKind.DAEMON, at=NOW - 5)
    first, second = store.events()
    assert (first.seq, first.at, first.kind, first.job_id, first.instance_id) == (
        1,
        NOW,
        EventKind.JOB_STATE,
        "job-4",
        "inst-9",
    )
    assert (first.user, first.actor, first.fields) == ("ann", "bob", fields)
    assert (second.seq, second.at, second.user, second.actor, second.fields) == (2, NOW - 5, None, "hcloud", {})


def test_followers_of_the_log_get_events_as_they_are_stored(store: Store) -> None:
    odd = {"cause": FailureCause.EVICTED, "ranks": (0, 1), "text": "ä", "nested": {"a": (1, 2)}, "endless": math.inf}
    with store.transaction(NOW) as tx:
        tx.emit(EventKind.DAEMON, **odd)
        tx.emit(
            EventKind.UNIT_STARTED, job_id="job-4", instance_id="inst-9", user="ann", actor="bob", at=NOW - 5, rank=0
        )
    with suppress(ZeroDivisionError), store.transaction(NOW) as tx:
        tx.emit(EventKind.DAEMON, what="never written")
        raise ZeroDivisionError
    with store.transaction(NOW) as tx:
        tx.emit(EventKind.DAEMON, what="third")
    assert store.new_events(0, 10) == store.events()
    assert [type(each) for each in store.new_events(0, 1)[0].fields.values()] == [str, list, str, dict, float]
    assert [event.seq for event in store.new_events(1, 1)] == [2]
    assert store.new_events(3, 10) == ()


def test_followers_of_the_log_see_what_another_process_wrote_in_between(store: Store, store_url: str) -> None:
    submit(store)
    other = Store.open(store_url)
    submit(other)
    submit(store)
    assert [event.job_id for event in store.new_events(0, 10)] == ["job-1", "job-2", "job-3"]
    assert [event.job_id for event in other.new_events(1, 10)] == ["job-2", "job-3"]
    other.close()


def test_events_are_found_by_time_kind_and_subject(store: Store) -> None:
    emit(store, 2, at=10.0, job_id="job-1")
    emit(store, 2, at=20.0, instance_id="inst-1", kind=EventKind.SAMPLE)
    emit(store, 2, at=30.0, job_id="job-1", instance_id="inst-1")

    def seqs(**wanted: object) -> list[int]:
        listed = [event.seq for event in store.events(**wanted)]  # type: ignore[arg-type]
        if not set(wanted) & {"job_id", "instance_id", "after_seq", "before_seq", "limit"}:
            assert [event.seq for event in store.iter_events(**wanted)] == listed  # type: ignore[arg-type]
        return listed

    assert seqs() == [1, 2, 3, 4, 5, 6]
    assert seqs(after_seq=4) == [5, 6]
    assert seqs(limit=2) == [1, 2]
    assert seqs(limit=2, newest=True) == [5, 6]
    assert seqs(limit=2, newest=True, before_seq=5) == [3, 4]
    assert seqs(limit=2, newest=True, job_id="job-1", before_seq=6) == [2, 5]
    assert seqs(after_seq=2, before_seq=5) == [3, 4]
    assert seqs(since=20.0) == [3, 4, 5, 6]
    assert seqs(until=20.0) == [1, 2]
    assert seqs(since=20.0, until=30.0) == [3, 4]
    assert seqs(since=99.0) == []
    assert seqs(job_id="job-1") == [1, 2, 5, 6]
    assert seqs(job_id="job-1", instance_id="inst-1") == [5, 6]
    assert seqs(kinds=[EventKind.SAMPLE]) == [3, 4]
    assert seqs(kinds=[]) == []


def test_event_stream_is_whole_over_many_pieces_and_ends_where_it_began(store: Store) -> None:
    emit(store, 4500)
    stream = store.iter_events()
    first = next(stream)
    emit(store, 10)
    assert [first.seq, *(event.seq for event in stream)] == list(range(1, 4501))


def test_prune_forgets_old_stories_but_never_part_of_one(store: Store) -> None:
    ended, recent, living = submit(store, count=3, now=10.0)
    walk(store, ended, JobState.FAILED, finished_at=20.0)
    walk(store, recent, JobState.FAILED, finished_at=200.0)
    machine, gone = launch(store, "a"), launch(store, "b")
    with store.transaction(30.0) as tx:
        tx.put_instance(move_instance(gone, InstanceState.TERMINATED, terminated_at=30.0))
    for subject in (machine.id, gone.id):
        emit(store, 1, at=11.0, instance_id=subject)
    emit(store, 1, at=12.0, job_id=ended.id, instance_id=machine.id)
    emit(store, 1, at=13.0)
    emit(store, 1, at=300.0, job_id=ended.id)
    assert store.prune_events(before=100.0, now=NOW) == 3
    left = [(event.at, event.job_id, event.instance_id) for event in store.events()]
    assert left == [
        (10.0, recent.id, None),
        (10.0, living.id, None),
        (11.0, None, machine.id),
        (12.0, ended.id, machine.id),
        (300.0, ended.id, None),
        (NOW, None, None),  # the pruning itself
    ]
    assert store.prune_events(before=100.0, now=NOW) == 0
    emit(store, 1)
    assert store.events()[-1].seq > 8


# --------------------------------------------------------------------------------------------------------------- lease
def test_one_leader_at_a_time(store: Store) -> None:
    lease = store.acquire_lease("a", NOW, 10.0)
    assert lease is not None and lease.until == NOW + 10
    assert store.acquire_lease("b", NOW + 9, 10.0) is None
    renewed = store.renew_lease(lease, NOW + 9, 10.0)
    assert renewed == replace(lease, until=NOW + 19)
    assert store.acquire_lease("b", NOW + 18, 10.0) is None
    second = store.acquire_lease("b", NOW + 19, 10.0)
    assert second is not None and second.epoch > lease.epoch
    assert store.renew_lease(renewed, NOW + 19, 10.0) is None


def test_who_leads_later_has_the_higher_epoch_though_another_database_was_restored(store: Store) -> None:
    lost = MemoryStore()
    before = [lost.acquire_lease("a", NOW + again, 10.0) for again in range(5)]
    later = store.acquire_lease("a", NOW + 60, 10.0)
    assert later is not None and all(each is not None and each.epoch < later.epoch for each in before)


def test_lost_lease_fences_off_writes(store: Store) -> None:
    (job,) = submit(store)
    old = store.acquire_lease("a", NOW, 10.0)
    with store.transaction(NOW + 11, old) as tx:  # expired, but no other holder leads yet: still safe
        tx.emit(EventKind.DAEMON)
    new = store.acquire_lease("b", NOW + 11, 10.0)
    with pytest.raises(StaleWrite, match=r"a no longer leads.*led by b"), store.transaction(NOW + 12, old) as tx:
        tx.put_job(move_job(tx.job(job.id), JobState.QUEUED))
    with store.transaction(NOW + 12, new) as tx:
        tx.put_job(move_job(tx.job(job.id), JobState.QUEUED))


def test_restarted_holder_takes_over_at_once_and_fences_its_former_self(store: Store) -> None:
    former = store.acquire_lease("a", NOW, 10.0)
    assert former is not None and store.acquire_lease("a", NOW + 1, 10.0) is not None
    assert store.renew_lease(former, NOW + 2, 10.0) is None


def test_released_lease_is_free_at_once(store: Store) -> None:
    lease = store.acquire_lease("a", NOW, 10.0)
    assert lease is not None
    store.release_lease(lease)
    other = store.acquire_lease("b", NOW + 1, 10.0)
    assert other is not None
    store.release_lease(lease)  # too late: without effect
    assert store.renew_lease(other, NOW + 2, 10.0) is not None


# --------------------------------------------------------------------------------------------------------------- crash
def test_crash_before_a_commit_leaves_nothing_and_after_it_everything(store: Store) -> None:
    class Killed(BaseException):
        """Stands for the end of the process."""

    def crash_at(point: str) -> None:
        def called(now_at: str) -> None:
            if now_at == point:
                raise Killed

        store.crash_point = called

    crash_at("commit:before")
    with pytest.raises(Killed):
        submit(store)
    assert store.jobs() == ()
    crash_at("commit:after")
    with pytest.raises(Killed):
        submit(store)
    assert [job.id for job in store.jobs()] == ["job-1"]
    store.crash_point = None
    assert [job.id for job in submit(store)] == ["job-2"]


def test_crash_points_surround_every_kind_of_write(store: Store) -> None:
    points: list[str] = []
    store.crash_point = points.append
    submit(store)
    store.set_meta("a", "b")
    store.acquire_lease("a", NOW, 1.0)
    store.prune_events(before=0.0, now=NOW)
    assert points == ["commit:before", "commit:after"] * 4


def test_samples_are_forgotten_on_their_own_also_those_of_living_jobs(store: Store) -> None:
    (living,) = submit(store, now=10.0)
    emit(store, 2, kind=EventKind.SAMPLE, at=11.0, job_id=living.id)
    emit(store, 1, kind=EventKind.SAMPLE, at=200.0, job_id=living.id)
    assert store.prune_samples(before=100.0, now=NOW) == 2
    assert [(event.kind, event.at) for event in store.events()] == [
        (EventKind.JOB_SUBMITTED, 10.0),
        (EventKind.SAMPLE, 200.0),
    ]


def test_newest_event_has_a_number_before_and_after_pruning(store: Store) -> None:
    assert store.newest_event_seq() == 0
    emit(store, 3, at=5.0)
    assert store.newest_event_seq() == 3
    store.prune_events(before=100.0, now=NOW)
    assert store.newest_event_seq() == 4
    (pruning,) = store.events()
    assert (pruning.seq, pruning.fields["what"], pruning.fields["records"]) == (4, "pruned", 3)


def test_earlier_submissions_are_known_by_user_and_token(store: Store) -> None:
    def handed_in(user: str, token: str | None) -> Submission:
        return Submission(spec=replace(SPEC, user=user), actor=user, token=token)

    store.submit([handed_in("ann", "t"), handed_in("ann", None)], NOW)
    asked = [handed_in("ann", "t"), handed_in("bob", "t"), handed_in("ann", None), handed_in("ann", "u")]
    assert store.known_submissions(asked) == {("ann", "t")}
    assert store.known_submissions([handed_in("ann", f"t{n}") for n in range(1200)]) == frozenset()


# -------------------------------------------------------------------------------------------------- known applications
def test_what_is_known_of_an_application_is_kept_by_name_and_found_by_program(store: Store) -> None:
    first = Application(name="ann:sort~1", program="ann:sort", cells={"type": {"mock/small": 2.0}}, inputs={"a": 1.0})
    with store.transaction(NOW) as tx:
        kept = tx.put_application(first)
        tx.put_application(Application(name="ann:sort~0", program="ann:sort"))
        tx.put_application(Application(name="bob:sort~1", program="bob:sort"))
    with store.transaction(NOW) as tx:
        assert tx.application("ann:sort~1") == kept == replace(first, revision=kept.revision)
        assert [each.name for each in tx.applications("ann:sort")] == ["ann:sort~0", "ann:sort~1"]
        assert tx.application("unknown") is None
        assert tx.applications("nothing") == ()


def test_live_view_shows_applications_as_last_written_by_anybody(store: Store, store_url: str) -> None:
    other = Store.open(store_url)
    assert store.live().applications == {}
    with other.transaction(NOW) as tx:
        known = tx.put_application(Application(name="x", program="p"))
    assert store.live().applications == {"x": known}
    with other.transaction(NOW) as tx:
        better = tx.put_application(replace(known, profiled_at=5.0))
    assert store.live().applications == {"x": better}
    seen = store.live()
    assert store.live() is seen
    other.close()


def test_application_written_meanwhile_by_another_is_not_overwritten(store: Store) -> None:
    with store.transaction(NOW) as tx:
        known = tx.put_application(Application(name="x", program="p"))
    with store.transaction(NOW) as tx:
        tx.put_application(replace(known, run_s=1.0))
    with pytest.raises(StaleWrite), store.transaction(NOW) as tx:
        tx.put_application(replace(known, run_s=2.0))
    with pytest.raises(StaleWrite), store.transaction(NOW) as tx:
        tx.put_application(Application(name="x", program="p"))
    assert store.live().applications["x"].run_s == 1.0


# ------------------------------------------------------------------------------------------------------------- secrets
def test_run_times_are_stored_as_bytes_and_only_with_their_transaction(store: Store) -> None:
    assert store.run_times() is None
    for state in (b"\x00first", b"second\xff"):
        with store.transaction(NOW) as txn:
            txn.put_run_times(state)
        assert store.run_times() == state
    with suppress(KeyError), store.transaction(NOW) as txn:
        txn.put_run_times(b"third")
        raise KeyError
    assert store.run_times() == b"second\xff"


def co_run(application: str, *neighbours: str, at: float = NOW, log_speed: float = -0.2) -> CoRun:
    return CoRun(
        application=application,
        neighbours=neighbours,
        type_column="mock/small",
        log_speed=log_speed,
        doubt=0.1,
        seconds=60.0,
        observed_at=at,
    )


def test_periods_of_the_same_programs_are_one_record_and_later_ones_are_read_alone(store: Store) -> None:
    assert store.co_runs() == ()
    with store.transaction(NOW) as txn:
        txn.add_co_run(co_run("ann:sort~1", "bob:x", "bob:x"))
        txn.add_co_run(co_run("ann:sort~1"))
    first = store.co_runs()
    assert {each for _, each in first} == {co_run("ann:sort~1", "bob:x", "bob:x"), co_run("ann:sort~1")}
    later = co_run("ann:sort~1", at=NOW + 60.0, log_speed=0.0)
    with suppress(KeyError), store.transaction(NOW) as txn:
        txn.add_co_run(later)
        raise KeyError
    assert store.co_runs() == first
    with store.transaction(NOW) as txn:
        kept = txn.add_co_run(later)
    assert kept == co_run("ann:sort~1").then(later) and kept.periods == 2 and kept.seconds == 120.0
    assert [each for _, each in store.co_runs(max(revision for revision, _ in first))] == [kept]


def test_of_too_many_co_run_records_those_observed_longest_ago_are_deleted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MOST_CO_RUNS", 2)
    monkeypatch.setattr(transaction, "_SURPLUS_CO_RUNS", transaction._SURPLUS_CO_RUNS.offset(None).offset(2))
    for number, name in enumerate("abac"):
        with store.transaction(NOW) as txn:
            txn.add_co_run(co_run(name, "x", at=NOW + number))
    assert [each.application for _, each in store.co_runs()] == ["a", "c"]


def test_secrets_are_kept_with_their_job_encrypted_anew_and_deleted_with_it(store: Store) -> None:
    spec = replace(SPEC, secrets=("A", "B"))
    sealed = {"A": "k1.one", "B": "k1.two"}
    first, other = store.submit(
        [Submission(spec=spec, actor="ann", token="t", secrets=sealed), Submission(spec=SPEC, actor="ann")], 10.0
    )
    assert store.submit([Submission(spec=spec, actor="ann", token="t", secrets={"A": "k2.x"})], 11.0)[0].id == first.id
    assert (store.job_secrets(first.id), store.job_secrets(other.id)) == (sealed, {})
    assert store.secret_key_counts() == {"k1": 2}

    def reseal(user: str, name: str, text: str) -> str | None:
        return f"k2.{user}.{text}" if name == "A" else None

    assert store.reencrypt_secrets("k2", reseal) == 1
    assert store.job_secrets(first.id) == {"A": f"k2.{SPEC.user}.k1.one", "B": "k1.two"}
    assert store.reencrypt_secrets("k2", reseal) == 0
    assert store.secret_key_counts() == {"k1": 1, "k2": 1}
    walk(store, first, JobState.FAILED, finished_at=20.0)
    store.prune_events(before=NOW + 1, now=NOW + 2)
    assert store.prune_rows(before=NOW) == 1
    assert store.secret_key_counts() == {}


def test_all_secrets_are_encrypted_anew_however_many_there_are(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hcloud.store.store.BATCH", 2)
    spec = replace(SPEC, secrets=("A", "B", "C"))
    sealed = dict.fromkeys("ABC", "k1.x")
    store.submit([Submission(spec=spec, actor="ann", secrets=sealed) for _ in range(3)], NOW)
    unreadable = iter([None, None, None, *["k2.y"] * 6])
    assert store.reencrypt_secrets("k2", lambda *_: next(unreadable)) == 6
    assert store.secret_key_counts() == {"k1": 3, "k2": 6}
