"""Small valid jobs, instances, intents and events."""

from dataclasses import replace

from hcloud.core.model import (
    BatchTarget,
    EventKind,
    Instance,
    InstanceId,
    InstanceState,
    InstanceType,
    Intent,
    IntentKind,
    Job,
    JobSpec,
    JobState,
    Market,
    Offer,
    Resources,
    move_job,
)
from hcloud.store import Store, Submission

NOW = 1000.0
SPEC = JobSpec(
    name="sort", user="ann", command=("sort", "big"), target=BatchTarget(finish_within_s=60.0), tags={"team": "search"}
)
OFFER = Offer(
    provider="mock",
    region="r1",
    zone="r1-a",
    instance_type=InstanceType(provider="mock", name="small", capacity=Resources(vcpus=2, memory_mib=4096)),
    market=Market.ON_DEMAND,
    price_usd_per_h=0.1,
    priced_at=900.0,
)


def submit(store: Store, *, count: int = 1, now: float = NOW, **changes: object) -> tuple[Job, ...]:
    """Submit `count` jobs like SPEC with `changes`."""
    spec = replace(SPEC, **changes)  # type: ignore[arg-type]
    return store.submit([Submission(spec=spec, actor=spec.user)] * count, now)


def build_instance(instance_id: InstanceId, token: str = "t1") -> Instance:
    """A requested instance."""
    return Instance(
        id=instance_id, offer=OFFER, state=InstanceState.REQUESTED, token=token, requested_at=NOW, expires_at=NOW + 3600
    )


def launch(store: Store, token: str = "t1") -> Instance:
    """Write a new requested instance."""
    with store.transaction(NOW) as tx:
        return tx.new_instance(lambda instance_id: build_instance(instance_id, token))


def walk(store: Store, job: Job, *states: JobState, **changes: object) -> Job:
    """Move a job through states, each in its own transaction; `changes` come with the last one."""
    for state in states:
        with store.transaction(NOW) as tx:
            fresh = tx.job(job.id)
            job = tx.put_job(move_job(fresh, state, **(changes if state is states[-1] else {})))
    return job


def open_intent(store: Store, token: str) -> Intent:
    """Write an intent to launch."""
    intent = Intent(token=token, kind=IntentKind.LAUNCH, subject="inst-1", created_at=NOW)
    with store.transaction(NOW) as tx:
        tx.open_intent(intent)
    return intent


def emit(store: Store, count: int, *, kind: EventKind = EventKind.DAEMON, at: float = NOW, **about: str) -> None:
    """Append `count` events."""
    with store.transaction(at) as tx:
        for number in range(count):
            tx.emit(kind, number=number, **about)  # type: ignore[arg-type]
