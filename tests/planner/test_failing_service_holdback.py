"""Services are not placed where services miss their latency, while other instances are available."""

from dataclasses import replace

import pytest

from hcloud.core.model import Instance, Job, JobSpec, Market, Nodes, ServiceTarget
from hcloud.forecast.job_monitor import JobSamples, Sampled
from hcloud.planner.plan import Launch, Place
from hcloud.planner.snapshot import OfferBackoff, Snapshot
from tests.planner.scenes import NOW, decide, ended, job, machine, need, of, offer, running, scene, spec

PAID = replace(offer("big", vcpus=8.0, usd_per_h=0.1), market=Market.RESERVED, available=0)
SLOW, GOOD = machine(1, PAID, idle_since=None), machine(2, PAID, idle_since=None)
TWO = offer("two", vcpus=2.0, usd_per_h=0.1)


def service() -> JobSpec:
    """Return a service with a target of 20 ms."""
    target = ServiceTarget(requests_per_s=10.0, latency_ms=20.0)
    return spec(target=target, resources=need(2.0), interruptible=False)


def serving(number: int, on: Instance) -> Job:
    return running(number, on, asks=service())


def watched(latency_ms: dict[int, float], looks: int = 9) -> dict[str, JobSamples]:
    """Return samples of these latencies."""
    return {
        f"job-{n}": JobSamples(
            attempt=f"job-{n}.1", ranks={0: (Sampled(at=NOW - 9, values={}, latency_ms={99.0: ms}, looks=looks),)}
        )
        for n, ms in latency_ms.items()
    }


def went(snapshot: Snapshot) -> tuple[list[str], int]:
    """Return where jobs were placed, and how many instances were launched."""
    plan = decide(snapshot)
    return [a.ranks[0].instance_id for a in of(plan, Place)], len(of(plan, Launch))


def test_service_goes_where_services_keep_their_latency() -> None:
    there = (SLOW, GOOD, serving(8, SLOW), serving(9, GOOD), running(10, GOOD), job(1, asks=service()), TWO)
    assert went(scene(*there)) == (["inst-1"], 0)
    assert went(scene(*there, job_samples=watched({8: 20.1, 9: 19.0}))) == (["inst-2"], 0)


def test_another_machine_is_had_rather() -> None:
    there = (SLOW, serving(8, SLOW), job(1, asks=service()), TWO)
    assert went(scene(*there, job_samples=watched({8: 25.0}))) == ([], 1)
    out = OfferBackoff(provider="mock", zone="a", instance_type="two", until_at=NOW + 60, error="none")
    assert went(scene(*there, job_samples=watched({8: 25.0}), backoffs=(out,))) == (["inst-1"], 0)


def test_batch_may_go_there_and_nothing_is_kept_there_for_services() -> None:
    spot = replace(offer("one", vcpus=1.0, usd_per_h=0.018), market=Market.SPOT)
    rented = [machine(n, TWO, idle_since=None) for n in range(3, 6)]
    others = [serving(20 + n, each) for n, each in enumerate(rented)]
    there = (SLOW, *rented, serving(8, SLOW), *others, job(1), TWO, spot)
    assert went(scene(*there)) == ([], 1)
    assert went(scene(*there, job_samples=watched({8: 25.0, 20: 9.0}))) == (["inst-1"], 0)


def test_promises_missed_everywhere_say_nothing_of_machines() -> None:
    there = (SLOW, GOOD, serving(8, SLOW), serving(9, GOOD), running(10, GOOD), job(1, asks=service()), TWO)
    assert went(scene(*there, job_samples=watched({8: 25.0, 9: 25.0}))) == (["inst-1"], 0)


@pytest.mark.parametrize(("looks", "launched"), [(1, 0), (5, 0), (6, 1)])
def test_fewer_samples_than_the_policy_asks_for_are_not_enough(looks: int, launched: int) -> None:
    there = (SLOW, serving(8, SLOW), job(1, asks=service()), TWO)
    went_to = ([] if launched else ["inst-1"], launched)
    assert went(scene(*there, job_samples=watched({8: 25.0}, looks=looks))) == went_to


def test_a_machine_is_avoided_as_long_as_half_of_the_services_elsewhere_keep_their_latency() -> None:
    there = (SLOW, GOOD, serving(8, SLOW), serving(9, GOOD), serving(10, GOOD), job(1, asks=service()), TWO)
    assert went(scene(*there, job_samples=watched({8: 25.0, 9: 25.0, 10: 19.0}))) == (["inst-2"], 0)


def sampled(*samples: tuple[dict[float, float], int], attempt: str = "job-8.1") -> dict[str, JobSamples]:
    """Return samples of job 8, oldest first, each with its latencies by percentile and number of looks."""
    taken = tuple(Sampled(at=NOW - 9, values={}, latency_ms=ms, looks=looks) for ms, looks in samples)
    return {"job-8": JobSamples(attempt=attempt, ranks={0: taken})}


@pytest.mark.parametrize(
    ("samples", "launched"),
    [
        (sampled(({99.0: 25.0}, 9)), 1),
        (sampled(({99.0: 25.0}, 9), attempt="job-8.0"), 0),  # of an earlier attempt
        (sampled(({99.0: 25.0}, 9), ({99.0: 19.0}, 3)), 0),  # half of the last six
        (sampled(({99.0: 25.0}, 9), ({99.0: 19.0}, 2)), 1),
        (sampled(({99.0: 25.0}, 9), ({99.0: 25.0}, 3)), 1),
        (sampled(({99.0: 19.0, 99.9: 40.0}, 9)), 0),  # the percentile that was promised
        (sampled(({99.0: 20.0}, 9)), 0),  # exactly what was promised
        (sampled(({50.0: 40.0}, 9)), 0),  # which is no lower one
        (sampled(({99.9: 25.0}, 9)), 1),
    ],
)
def test_the_last_samples_of_the_promised_percentile_count(samples: dict[str, JobSamples], launched: int) -> None:
    there = (SLOW, serving(8, SLOW), job(1, asks=service()), TWO)
    assert went(scene(*there, job_samples=samples))[1] == launched


def test_latencies_measured_on_a_machine_that_is_gone_say_nothing_of_the_others() -> None:
    there = (SLOW, serving(8, machine(99, PAID)), job(1, asks=service()), TWO)
    assert went(scene(*there, job_samples=sampled(({99.0: 25.0}, 9)))) == (["inst-1"], 0)


def test_latencies_of_a_job_that_promises_none_say_nothing() -> None:
    there = (SLOW, running(8, SLOW), job(1, asks=service()), TWO)
    assert went(scene(*there, job_samples=sampled(({99.0: 25.0}, 9)))) == (["inst-1"], 0)


def test_a_machine_on_which_half_of_the_services_keep_their_latency_is_open() -> None:
    there = (
        SLOW,
        GOOD,
        serving(7, SLOW),
        serving(8, SLOW),
        serving(9, GOOD),
        *(running(10 + n, GOOD) for n in range(4)),
    )
    new = job(1, asks=service())
    assert went(scene(*there, new, TWO, job_samples=watched({7: 19.0, 8: 25.0, 9: 19.0}))) == (["inst-1"], 0)
    assert went(scene(*there, new, TWO, job_samples=watched({7: 25.0, 8: 25.0, 9: 19.0}))) == (["inst-2"], 0)


def test_a_rank_that_has_ended_says_nothing_of_its_machine() -> None:
    pair = running(8, GOOD, SLOW, asks=service())
    pair = replace(pair, spec=replace(pair.spec, nodes=Nodes(count=2, minimum=1, gang=False)))
    late = Sampled(at=NOW - 9, values={}, latency_ms={99.0: 25.0}, looks=9)
    samples = {"job-8": JobSamples(attempt="job-8.1", ranks={1: (late,)})}
    there = (SLOW, GOOD, running(10, GOOD), running(11, GOOD), job(1, asks=service()), TWO)
    assert went(scene(pair, *there, job_samples=samples))[0] == ["inst-2"]
    assert went(scene(ended(pair, ranks=(1,)), *there, job_samples=samples))[0][:1] == ["inst-1"]
