"""Services are not placed where services miss their latency, while other instances are available."""

from dataclasses import replace

from hcloud.core.model import Instance, Job, JobSpec, Market, ServiceTarget
from hcloud.forecast.job_monitor import JobSamples, Sampled
from hcloud.planner.plan import Launch, Place
from hcloud.planner.snapshot import OfferBackoff, Snapshot
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec

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


def test_one_sample_is_not_enough() -> None:
    there = (SLOW, serving(8, SLOW), job(1, asks=service()), TWO)
    assert went(scene(*there, job_samples=watched({8: 25.0}, looks=1))) == (["inst-1"], 0)
