"""Every field of every class is restored from the database unchanged."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hcloud.core.estimates import Application
from hcloud.core.model import EventKind, Instance, Intent, Job, JobSpec
from hcloud.planner.snapshot import OfferBackoff, RefusedQuota
from hcloud.store import Store, Submission
from hcloud.store.documents import dump_application, dump_job, load_application, load_job
from tests import strategies

# Examples share one database: each brings jobs and tokens of its own.
fresh = count(1)
shared = settings(
    max_examples=30 if settings.default.derandomize else 120,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@shared
@given(spec=strategies.specs, token=st.none() | strategies.words, now=strategies.moments)
def test_submitted_job_comes_back_whole(store: Store, spec: JobSpec, token: str | None, now: float) -> None:
    token = None if token is None else f"{token}{next(fresh)}"
    (job,) = store.submit([Submission(spec=spec, actor="a", token=token)], now)
    assert job.submission_token == token
    assert job.spec == spec
    assert store.job(job.id) == job
    assert store.jobs(name=spec.name, user=spec.user, limit=1) == (job,)
    assert all(job in store.jobs(tag=f"{tag}={value}") for tag, value in spec.tags.items() if "=" not in tag)
    assert store.live().jobs[-1] == job


@shared
@given(spec=strategies.specs, progress=strategies.job_progress)
def test_progress_of_a_job_comes_back_whole(store: Store, spec: JobSpec, progress: dict[str, Any]) -> None:
    (job,) = store.submit([Submission(spec=spec, actor="a")], 1.0)
    with store.transaction(1.0) as tx:
        written = tx.put_job(replace(job, **progress))
        assert tx.job(job.id) == written
    assert store.job(job.id) == written
    assert (store.live().held if written.is_held else store.live().jobs)[-1] == written


@shared
@given(machine=strategies.instances, later=strategies.instances)
def test_instance_comes_back_whole(store: Store, machine: Instance, later: Instance) -> None:
    token = f"{machine.token}{next(fresh)}"
    with store.transaction(1.0) as tx:
        first = tx.new_instance(lambda new_id: replace(machine, id=new_id, token=token))
    assert (
        store.instance(first.id) == first == replace(machine, id=first.id, token=first.token, revision=first.revision)
    )
    with store.transaction(1.0) as tx:
        changed = replace(later, id=first.id, token=first.token, state=first.state, revision=first.revision)
        second = tx.put_instance(changed)
    assert store.instance(first.id) == second == replace(changed, revision=second.revision)


@shared
@given(intent=strategies.intents, backoff=strategies.backoffs, quota=strategies.refused_quotas)
def test_intent_backoff_and_refused_quota_come_back_whole(
    store: Store, intent: Intent, backoff: OfferBackoff, quota: RefusedQuota
) -> None:
    with store.transaction(1.0) as tx:
        tx.open_intent(intent)
        tx.put_backoff(backoff)
        tx.put_refused_quota(quota)
    view = store.live()
    assert view.intents == (intent,) and view.backoffs == (backoff,) and view.refused_quotas == (quota,)
    with store.transaction(1.0) as tx:
        tx.close_intent(intent.token)
        tx.clear_backoffs(before=float("inf"))
        tx.put_backoff(replace(backoff, until_at=0.0))
        tx.put_refused_quota(replace(quota, until_at=0.0, retry_at=0.0))
        tx.clear_backoffs(before=1.0)


@shared
@given(
    kind=strategies.event_kinds,
    job=st.none() | strategies.numbers,
    machine=st.none() | strategies.numbers,
    user=st.none() | strategies.words,
    at=strategies.moments,
    fields=strategies.event_fields,
)
def test_event_comes_back_whole(
    store: Store,
    kind: EventKind,
    job: int | None,
    machine: int | None,
    user: str | None,
    at: float,
    fields: dict[str, Any],
) -> None:
    about = {
        "job_id": None if job is None else f"job-{job}",
        "instance_id": None if machine is None else f"inst-{machine}",
        "user": user,
    }
    with store.transaction(1.0) as tx:
        tx.emit(kind, **about, actor="x", at=at, **fields)
    *_, event = store.iter_events()
    assert (event.kind, event.job_id, event.instance_id, event.user) == (kind, *about.values())
    assert (event.at, event.actor, event.fields) == (at, "x", fields)


def check_round_trip(dump: Callable[[Job], str]) -> None:
    """The property: what `dump` wrote loads as an equal job. Not shrunk, as one counter-example will do."""

    @settings(max_examples=100, phases=[Phase.generate], print_blob=False)
    @given(strategies.jobs)
    def holds(job: Job) -> None:
        assert load_job(1, 0, dump(job), job.spec) == job

    holds()


def test_document_holds_every_field_that_has_no_column() -> None:
    check_round_trip(dump_job)


def test_a_forgotten_field_is_noticed() -> None:
    """Seeded fault: a document without one of the fields."""
    with pytest.raises(AssertionError):
        check_round_trip(lambda job: dump_job(replace(job, outcome="")))


@settings(max_examples=100)
@given(strategies.applications)
def test_application_comes_back_whole_with_its_inputs_in_order(application: Application) -> None:
    loaded = load_application(0, dump_application(application))
    assert loaded == application
    assert list(loaded.inputs) == list(application.inputs)
