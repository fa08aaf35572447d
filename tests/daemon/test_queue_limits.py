"""How many jobs may wait: of all users, and of each."""

from dataclasses import replace

import pytest

from hcloud.core.errors import Refused
from hcloud.core.model import Job, JobSpec
from hcloud.daemon import refuse_full_queue
from hcloud.spec.policy import Caps
from tests.planner.scenes import job

CAPS = Caps(max_queued_jobs=10, max_queued_jobs_per_user=6)


def jobs_of(**counts: int) -> list[Job]:
    made = [job(number) for number in range(sum(counts.values()))]
    users = [user for user, count in counts.items() for _ in range(count)]
    return [replace(each, spec=replace(each.spec, user=user)) for each, user in zip(made, users, strict=True)]


def specs_of(**counts: int) -> list[JobSpec]:
    return [each.spec for each in jobs_of(**counts)]


def test_one_user_leaves_room_for_others() -> None:
    refuse_full_queue(CAPS, jobs_of(ada=5), specs_of(ada=1, bob=4))
    with pytest.raises(
        Refused, match=r"5 jobs of ada have not ended, 2 more would exceed caps\.max_queued_jobs_per_user 6"
    ):
        refuse_full_queue(CAPS, jobs_of(ada=5), specs_of(bob=1, ada=2))
    refuse_full_queue(replace(CAPS, max_queued_jobs_per_user=None), jobs_of(ada=5), specs_of(ada=5))


def test_all_users_together_fill_the_queue() -> None:
    with pytest.raises(
        Refused, match=r"the queue is full: 9 jobs have not ended, 2 more would exceed caps\.max_queued_jobs 10"
    ):
        refuse_full_queue(CAPS, jobs_of(ada=5, bob=4), specs_of(eve=2))
