"""Messages leave in order, once if all goes well, twice after a crash, and never get lost."""

from contextlib import suppress
from dataclasses import dataclass, field, replace

from hcloud.apply.transitions import transition_job
from hcloud.core.clock import ManualClock
from hcloud.core.model import PROFILE_TAG, EventKind, InstanceState, JobState, Market, ProfileRequest, Reason
from hcloud.notifications import DeliveryError, Message, Outbox
from hcloud.notifications.messages import NOTIFIED
from hcloud.notifications.outbox import GIVE_UP_S, IDLE_S, LONGEST_PAUSE_S, SAME_TROUBLE_S
from hcloud.store import MemoryStore
from tests.store.samples import NOW, launch, submit, walk

WHY = Reason(code="test", text="failed with exit code 3")


@dataclass
class Address:
    """Takes messages, unless it is told to refuse."""

    refusal: str = ""
    taken: list[Message] = field(default_factory=list)
    tries: int = 0

    def send(self, message: Message, now: float) -> None:
        """Take a message."""
        self.tries += 1
        if self.refusal:
            raise DeliveryError(self.refusal)
        self.taken.append(message)


class Site:
    """A store, a clock and one target."""

    def __init__(self) -> None:
        self.store, self.clock, self.address = MemoryStore(), ManualClock(NOW), Address()
        self.is_leader = True
        self.outbox = self.opened()
        self.outbox.step()  # from now on it is told

    def opened(self, **changes: object) -> Outbox:
        """Return the target's outbox in a new process."""
        given: dict[str, object] = {"name": "ops", "kinds": tuple(NOTIFIED), "leads": lambda: self.is_leader, **changes}
        send = self.address.send
        return Outbox(store=self.store, clock=self.clock, owner="hc", send=send, **given)  # type: ignore[arg-type]

    def end_job(self, **changes: object) -> str:
        """Submit a job and let it fail; return its id."""
        (job,) = submit(self.store, **changes)
        with self.store.transaction(self.clock.now()) as tx:
            transition_job(tx, tx.job(job.id), JobState.FAILED, WHY)
        return job.id

    def trouble(self) -> None:
        """Record that a provider does not answer."""
        with self.store.transaction(self.clock.now()) as tx:
            tx.emit(EventKind.PROVIDER_TROUBLE, provider="ec2", call="launch", error="Timeout", text="no answer")

    def preempt(self) -> None:
        """Let a spot machine be taken back, and release another one."""
        first, second = launch(self.store, "t1"), launch(self.store, "t2")
        with self.store.transaction(NOW) as tx:
            spot = replace(first, offer=replace(first.offer, market=Market.SPOT), state=InstanceState.TERMINATED)
            tx.put_instance(replace(spot, terminated_at=NOW))
            tx.emit(EventKind.INSTANCE_TERMINATED, instance_id=first.id, code="preempted", text="x")
            tx.emit(EventKind.INSTANCE_TERMINATED, instance_id=second.id, code="idle", text="x")

    @property
    def texts(self) -> list[str]:
        """What was taken."""
        return [each.text for each in self.address.taken]


def test_the_end_of_a_job_is_told_once_with_an_id_of_its_own() -> None:
    site = Site()
    site.end_job()
    assert site.outbox.step() == IDLE_S
    site.outbox.step()
    (message,) = site.address.taken
    (event,) = site.store.events(kinds=[EventKind.JOB_FINISHED])
    assert (message.id, message.kind, message.user, message.at) == (f"hc-{event.seq}", "job_ended", "ann", NOW)
    assert message.text == "job-1 sort of ann: failed with exit code 3"
    assert message.fields["tags"] == {"team": "search"} and message.fields["state"] == "failed"


def test_a_new_target_is_not_told_of_the_past() -> None:
    site = Site()
    site.end_job()
    late = site.opened(name="late")
    late.step()
    site.end_job()
    late.step()
    assert [each.fields["job"] for each in site.address.taken] == ["job-2"]


def test_tasks_and_profiling_runs_end_without_a_message() -> None:
    site = Site()
    request = ProfileRequest(job_id="job-9", type_column="m.one", steps_vcpus=(1.0,))
    site.end_job(profile=request, tags={PROFILE_TAG: "job-9"})
    with site.store.transaction(NOW) as tx:
        tx.emit(EventKind.JOB_FINISHED, job_id="job-1", array="job-7", state="failed", outcome="x")
        tx.emit(EventKind.JOB_FINISHED, job_id="job-77", state="failed", outcome="pruned")
    site.outbox.step()
    assert site.texts == []


def test_what_is_not_taken_is_tried_again_with_growing_pauses_and_keeps_its_place() -> None:
    site = Site()
    site.end_job()
    site.end_job()
    site.address.refusal = "HTTP 500"
    pauses = [site.outbox.step() for _ in range(12)]
    assert pauses[:4] == [5.0, 10.0, 20.0, 40.0] and pauses[-1] == LONGEST_PAUSE_S
    assert site.outbox.trouble == "HTTP 500"
    site.address.refusal = ""
    site.outbox.step()
    assert [each.fields["job"] for each in site.address.taken] == ["job-1", "job-2"]
    assert site.outbox.trouble == ""


def test_a_message_that_is_refused_for_a_day_makes_room_for_the_next() -> None:
    site = Site()
    site.end_job()
    site.address.refusal = "HTTP 400"
    site.outbox.step()
    site.clock.advance(GIVE_UP_S)
    site.outbox.step()
    (dropped,) = [e for e in site.store.events(kinds=[EventKind.DAEMON]) if e.fields["what"] == "notification_dropped"]
    assert "given up after 24 h: HTTP 400" in str(dropped.fields["text"])
    site.address.refusal = ""
    site.end_job()
    site.outbox.step()
    assert [each.fields["job"] for each in site.address.taken] == ["job-2"]


def test_a_restart_goes_on_where_it_was_and_repeats_at_most_the_message_under_way() -> None:
    site = Site()
    site.end_job()
    site.outbox.step()
    site.end_job()

    def crash(message: Message, now: float) -> None:
        site.address.send(message, now)
        raise KeyboardInterrupt

    dying = site.opened()
    dying.send = crash
    with suppress(KeyboardInterrupt):
        dying.step()
    site.opened().step()
    ids = [each.id for each in site.address.taken]
    assert [each.fields["job"] for each in site.address.taken] == ["job-1", "job-2", "job-2"]
    assert ids[1] == ids[2]


def test_a_standby_sends_nothing_and_goes_on_when_it_leads() -> None:
    site = Site()
    site.is_leader = False
    site.end_job()
    site.outbox.step()
    assert site.texts == []
    site.is_leader = True
    site.outbox.step()
    assert len(site.texts) == 1


def test_a_target_is_told_of_what_it_asked_for_only() -> None:
    site = Site()
    of_bob = site.opened(name="bob", users=("bob",), kinds=("job_ended",))
    of_bob.step()
    site.end_job()
    site.end_job(user="bob")
    site.trouble()
    of_bob.step()
    assert [each.user for each in site.address.taken] == ["bob"]


def test_the_same_trouble_of_a_provider_is_told_once_an_hour_although_it_is_tried_twice() -> None:
    site = Site()
    site.trouble()
    site.address.refusal = "HTTP 503"
    site.outbox.step()
    site.address.refusal = ""
    site.trouble()
    site.outbox.step()
    assert site.texts == ["provider ec2: launching a machine failed: no answer"]
    site.clock.advance(SAME_TROUBLE_S)
    site.trouble()
    site.outbox.step()
    assert len(site.texts) == 2


def test_a_preempted_machine_is_told_and_one_that_was_released_is_not() -> None:
    site = Site()
    site.preempt()
    site.outbox.step()
    assert site.texts == ["spot machine inst-1 was preempted (small in r1-a)"]


def test_a_defect_ends_no_thread() -> None:
    site = Site()
    site.end_job()
    site.outbox.send = lambda message, now: 1 / 0  # type: ignore[assignment]
    assert site.outbox.step() == LONGEST_PAUSE_S
    assert "defect" in site.outbox.trouble
    assert walk(site.store, submit(site.store)[0]).id == "job-2"
