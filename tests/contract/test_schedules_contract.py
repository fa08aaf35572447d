"""What every store keeps of schedules."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from hcloud.core.errors import NotFound
from hcloud.core.schedules import Recurrence, Schedule
from hcloud.schedules import find_schedule, pause_schedule, remove_schedule, resume_schedule, save_schedule
from hcloud.store import Store
from tests import strategies
from tests.store.samples import NOW, SPEC

DAILY = Schedule(id="", spec=SPEC, recurrence=Recurrence(cron="@daily"), created_at=NOW, next_at=None)
MIDNIGHT = 86_400.0


def ids(schedules: tuple[Schedule, ...]) -> list[str]:
    """Return the ids of schedules."""
    return [each.id for each in schedules]


def test_a_schedule_is_due_from_its_next_time_on(store: Store) -> None:
    saved = save_schedule(store, DAILY, "ann", NOW)
    assert (saved.id, saved.next_at) == ("sched-1", MIDNIGHT)
    assert store.schedules() == store.schedules(user="ann") == (saved,)
    assert (store.schedules(user="bob"), store.schedules(user="\x00")) == ((), ())
    assert store.due_schedules(MIDNIGHT - 1, 10) == ()
    assert store.due_schedules(MIDNIGHT, 10) == (saved,)
    assert store.due_schedules(MIDNIGHT, 0) == ()


def test_a_name_is_that_of_one_schedule_of_a_user(store: Store) -> None:
    save_schedule(store, DAILY, "ann", NOW)
    save_schedule(store, replace(DAILY, spec=replace(SPEC, user="bob")), "bob", NOW)
    hourly = replace(DAILY, recurrence=Recurrence(cron="@hourly"))
    again = save_schedule(store, hourly, "ann", NOW + 1)
    assert (again.id, again.next_at, again.created_at) == ("sched-1", 3600.0, NOW)
    assert ids(store.schedules()) == ["sched-1", "sched-2"]


def test_a_paused_schedule_is_not_due_and_its_number_is_never_used_again(store: Store) -> None:
    save_schedule(store, DAILY, "ann", NOW)
    assert pause_schedule(store, "sched-1", "bob", NOW).paused_by == "bob"
    assert pause_schedule(store, "sched-1", "ann", NOW).paused_by == "bob"
    assert save_schedule(store, DAILY, "ann", NOW).next_at is None  # replacing does not resume
    assert store.due_schedules(10 * MIDNIGHT, 10) == ()
    assert resume_schedule(store, "sched-1", "ann", 5 * MIDNIGHT).next_at == 6 * MIDNIGHT
    assert resume_schedule(store, "sched-1", "ann", 7 * MIDNIGHT).next_at == 6 * MIDNIGHT
    remove_schedule(store, "sched-1", "ann", NOW)
    assert save_schedule(store, DAILY, "ann", NOW).id == "sched-2"
    for call in (pause_schedule, resume_schedule, remove_schedule):
        with pytest.raises(NotFound, match="there is no sched-1"):
            call(store, "sched-1", "ann", NOW)
    with pytest.raises(NotFound, match="there is no sched-9; the newest are sched-2"):
        find_schedule(store, "sched-9")


def test_secrets_of_schedules_are_counted_and_encrypted_anew(store: Store) -> None:
    save_schedule(store, replace(DAILY, secrets={"A": "k1.one", "B": "k2.two"}), "ann", NOW)
    assert store.secret_key_counts() == {"k1": 1, "k2": 1}
    assert store.reencrypt_secrets("k2", lambda user, name, sealed: f"k2.{user}.{name}.{sealed}") == 1
    assert store.schedules()[0].secrets == {"A": "k2.ann.A.k1.one", "B": "k2.two"}


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=strategies.schedules)
def test_a_schedule_comes_back_whole(store: Store, schedule: Schedule) -> None:
    with store.transaction(NOW) as tx:
        before = tx.schedule_named(schedule.spec.user, schedule.spec.name)
        saved = tx.put_schedule(replace(schedule, id="" if before is None else before.id))
    assert find_schedule(store, saved.id) == saved == replace(schedule, id=saved.id)
