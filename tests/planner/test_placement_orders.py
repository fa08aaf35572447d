"""The orders of placement: where each puts one job, and how long a job waits for a suitable instance."""

from dataclasses import replace

import numpy as np
import pytest

from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import BatchTarget, BestEffortTarget, JobState, Nodes, Offer
from hcloud.forecast.fleet_tracker import FleetStats
from hcloud.planner.placement.orders.sampled import drawn, sample_size
from hcloud.planner.plan import Launch, Place, StopAttempt
from hcloud.planner.snapshot import Snapshot
from hcloud.spec.policy import AdmissionPolicy, PlacementPolicy, Policy
from tests.planner.scenes import NOW, decide, job, machine, need, of, offer, running, scene, spec, told
from tests.policies import simple

SLOW, FAST = offer("slow", vcpus=8.0), offer("fast", vcpus=8.0)


def known(caused: float, tolerated: float, **changes: object) -> Classification:
    """Return an application that causes and tolerates so much of one resource, and is faster on fast instances."""

    def sure(value: float) -> Estimate:
        return Estimate(value=value, low=value, high=value)

    plain = Classification(
        by_type={"mock/slow": sure(1.0), "mock/fast": sure(2.0)},
        by_nodes={n: sure(float(n)) for n in (1, 2, 3, 4)},
        tolerated={"llc": sure(tolerated)},
        caused={"llc": sure(caused)},
        quality_target=sure(1.0 - tolerated / 100),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


APPLICATIONS = {"loud": known(90, 100), "calm": known(5, 90), "fragile": known(5, 20)}
FREE = spec(target=BatchTarget())


def policy(preferred: str, **admission: object) -> Policy:
    """Return a policy with this placement order, under which a tight fit uses the bounds of estimates."""
    placement = PlacementPolicy(order=preferred, neighbour_confidence=0.9, neighbour_tolerance=0.05)  # type: ignore[arg-type]
    return simple(placement=placement, admission=AdmissionPolicy(**{"queues": "one"} | admission))  # type: ignore[arg-type]


def fleet(**changes: object) -> Snapshot:
    """Return a fast instance with a noisy neighbour, an empty slow one, a fast one with a quiet neighbour, and one
    job."""
    one, two, three = machine(1, FAST), machine(2, SLOW), machine(3, FAST)
    waiting = job(9, asks=FREE, application="fragile", queued_at=NOW)
    return scene(
        running(1, one, application="loud", asks=FREE),
        running(2, three, application="calm", asks=FREE),
        running(3, three, application="calm", asks=FREE),
        waiting,
        one,
        two,
        three,
        applications=APPLICATIONS,
        **changes,
    )


@pytest.mark.parametrize(
    ("order", "taken", "code"),
    [
        ("least_loaded", "inst-2", "least_loaded"),
        ("first_fit", "inst-1", "first_fit"),
        ("largest_first", "inst-2", "largest_first"),  # of equally large ones the least loaded
        ("paragon", "inst-3", "suits"),
        ("quasar", "inst-3", "suits"),
        ("heterogeneity_oblivious", "inst-3", "suits"),
        ("interference_oblivious", "inst-1", "best_type"),
        ("least_loss", "inst-3", "least_loss"),
        ("sampled", "inst-3", "sampled"),
        ("paragon_sampled", "inst-3", "suits"),
        ("tarcil", "inst-3", "tarcil"),
        ("co_schedule", "inst-3", "least_loss"),  # run times are not known
    ],
)
def test_each_order_prefers_another_machine(order: str, taken: str, code: str) -> None:
    place = of(decide(fleet(), policy(order)), Place)[0]
    assert (place.ranks[0].instance_id, place.reason.code) == (taken, code)


@pytest.mark.parametrize("order", ["sampled", "paragon_sampled", "tarcil"])
def test_of_few_machines_no_more_are_said_to_be_drawn_than_there_may_be(order: str) -> None:
    place = of(decide(fleet(), policy(order)), Place)[0]
    assert " of up to " in place.reason.text


def test_largest_machine_first() -> None:
    machines = [machine(1, offer("small", vcpus=2.0)), machine(2, offer("large", vcpus=16.0)), machine(3, FAST)]
    held = running(1, machines[1], asks=replace(FREE, resources=need(15.0)))
    place = of(decide(scene(*machines, held, job(9, asks=FREE)), policy("largest_first")), Place)[0]
    assert place.ranks[0].instance_id == "inst-2"


def test_random_order_draws_the_same_for_the_same_seed_and_only_what_fits() -> None:
    places = {of(decide(fleet(), policy("random")), Place)[0].ranks[0].instance_id for _ in range(3)}
    assert len(places) == 1
    assert places < {"inst-1", "inst-2", "inst-3"}


@pytest.mark.parametrize(("quantile", "size"), [(0.5, 5), (0.9, 29), (0.92, 32), (0.99, 32)])
def test_sample_is_as_large_as_its_quantile_needs_and_never_above_32(quantile: float, size: int) -> None:
    assert sample_size(quantile) == size


@pytest.mark.parametrize("roomy", [1.0, 0.02, 0.002])
def test_sample_has_distinct_machines_with_room_each_as_likely_as_another(roomy: float) -> None:
    rng = np.random.default_rng(3)
    among = rng.random(5_000) < roomy
    samples = [drawn(rng, among, 8) for _ in range(400)]
    assert all(not (sample & ~among).any() and sample.sum() == min(8, among.sum()) for sample in samples)
    rank = np.cumsum(among) / among.sum()  # of those with room
    best, size = [float(rank[sample].max()) for sample in samples], among.sum()
    assert np.mean(best) == pytest.approx(8 / 9 * (1 + 1 / size), abs=0.02)


@pytest.mark.parametrize("order", ["paragon", "interference_oblivious"])
def test_job_of_which_nothing_is_known_goes_where_the_least_is_in_use(order: str) -> None:
    snapshot = fleet()
    jobs = tuple(replace(each, application="") if each.id == "job-9" else each for each in snapshot.jobs)
    place = of(decide(replace(snapshot, jobs=jobs), policy(order)), Place)[0]
    assert (place.ranks[0].instance_id, place.reason.code) == ("inst-2", "least_loaded")


def test_reason_has_class_pool_and_margin() -> None:
    numbers = of(decide(fleet(), policy("paragon")), Place)[0].reason.numbers
    assert (numbers["quality_class"], numbers["suited"], numbers["diverted"]) == (7, 2, "up")
    assert numbers["margin"] == pytest.approx(10.0)
    assert "relaxed" not in numbers


def test_job_holds_out_while_its_slack_lasts_and_then_takes_the_least_bad_machine_and_says_so() -> None:
    loud = machine(1, FAST)
    there = running(1, loud, application="loud", asks=FREE)
    recent = FleetStats(busy_s=(20.0,) * 100)
    fresh = job(2, asks=FREE, application="fragile", queued_at=NOW)
    there = replace(there, attempt=replace(there.attempt, placed_at=NOW - 15.0))  # type: ignore[type-var]
    holding = decide(scene(there, fresh, loud, applications=APPLICATIONS, fleet_stats=recent), policy("paragon"))
    assert told(holding, "job-2") == "holds_out"
    late = replace(fresh, queued_at=NOW - 61.0)
    place = of(
        decide(scene(there, late, loud, applications=APPLICATIONS, fleet_stats=recent), policy("paragon")), Place
    )[0]
    assert place.reason.code == "least_disturbed"
    assert place.reason.numbers["relaxed"] == "llc on itself by 70"


def test_machine_is_bought_for_a_job_that_no_machine_with_room_suits() -> None:
    loud = machine(1, FAST)
    fresh = job(2, asks=FREE, application="fragile", queued_at=NOW)
    there = running(1, loud, application="loud", asks=FREE)
    plan = decide(scene(there, fresh, loud, SLOW, applications=APPLICATIONS), policy("paragon"))
    assert [launch.for_jobs for launch in of(plan, Launch)] == [("job-2",)]


def test_two_that_do_not_suit_each_other_are_not_bought_one_machine() -> None:
    jobs = [job(1, asks=FREE, application="loud"), job(2, asks=FREE, application="fragile")]
    plan = decide(scene(*jobs, SLOW, applications=APPLICATIONS), policy("paragon", patience_s=600.0))
    assert [launch.for_jobs for launch in of(plan, Launch)] == [("job-1",), ("job-2",)]
    together = decide(scene(*jobs, SLOW, applications=APPLICATIONS), policy("least_loaded"))
    assert [launch.for_jobs for launch in of(together, Launch)] == [("job-1", "job-2")]


def test_best_effort_neighbour_is_evicted_where_it_disturbs() -> None:
    here = machine(1, offer("small", vcpus=2.0))
    filler = running(1, here, application="loud", asks=spec(target=BestEffortTarget()))
    fresh = job(2, asks=FREE, application="fragile", queued_at=NOW)
    plan = decide(scene(filler, fresh, here, SLOW, applications=APPLICATIONS), policy("paragon", patience_s=600.0))
    assert [stop.job_id for stop in of(plan, StopAttempt)] == ["job-1"]


def test_demanding_class_picks_first_and_the_easy_one_takes_what_is_left() -> None:
    one, two = machine(1, offer("slow", vcpus=1.0)), machine(2, offer("slow", vcpus=1.0))
    easy = job(1, asks=FREE, application="calm", queued_at=NOW)
    demanding = job(2, asks=FREE, application="fragile", queued_at=NOW)
    plan = decide(scene(easy, demanding, one, two, applications=APPLICATIONS), policy("paragon", queues="by_quality"))
    assert [place.job_id for place in of(plan, Place)] == ["job-2", "job-1"]
    alone = decide(scene(easy, demanding, one, applications=APPLICATIONS), policy("paragon", queues="by_quality"))
    assert [place.job_id for place in of(alone, Place)] == ["job-2"]


def test_job_out_of_patience_comes_before_more_demanding_and_shorter_ones() -> None:
    tight = machine(1, offer("slow", vcpus=1.0))
    late = job(1, asks=FREE, application="calm", queued_at=NOW - 100.0)
    demanding = job(2, asks=FREE, application="loud", queued_at=NOW)
    for order in ("priority", "shortest"):
        rules = policy("paragon", queues="by_quality", order=order)
        plan = decide(scene(late, demanding, tight, applications=APPLICATIONS), rules)
        assert [place.job_id for place in of(plan, Place)] == ["job-1"]


def test_shortest_first_inside_a_class() -> None:
    tight = machine(1, offer("slow", vcpus=1.0))
    sure = Estimate(value=0.01, low=0.01, high=0.01)
    brief = known(5, 90, by_type={"mock/slow": sure}, measure=Measure.COMPLETION)
    long = replace(brief, by_type={"mock/slow": Estimate(value=1e-4, low=1e-4, high=1e-4)})
    jobs = [job(1, asks=FREE, application="long", queued_at=NOW), job(2, asks=FREE, application="brief", queued_at=NOW)]
    rules = policy("paragon", queues="by_quality", order="shortest")
    plan = decide(scene(*jobs, tight, applications={"long": long, "brief": brief}), rules)
    assert [place.job_id for place in of(plan, Place)] == ["job-2"]


@pytest.mark.parametrize(("order", "ranks"), [("paragon", 2), ("quasar", 2)])
def test_as_few_ranks_start_as_meet_the_target(order: str, ranks: int) -> None:
    measured = known(5, 90, by_type={"mock/fast": Estimate(value=0.01, low=0.01, high=0.01)}, measure=Measure.PROGRESS)
    asks = spec(target=BatchTarget(finish_by_at=NOW + 60.0), nodes=Nodes(count=4, minimum=1, gang=False))
    asking = job(1, JobState.QUEUED, asks=replace(asks, resources=need(8.0)), application="x", queued_at=NOW)
    machines = [machine(number, FAST) for number in range(1, 5)]
    plan = decide(scene(asking, *machines, applications={"x": measured}), policy(order))
    assert len(of(plan, Place)[0].ranks) == ranks


@pytest.mark.parametrize(("order", "grown"), [("paragon", 2), ("quasar", 0)])
def test_running_job_grows_under_quasar_only_while_its_target_asks_for_more(order: str, grown: int) -> None:
    measured = known(5, 90, by_type={"mock/fast": Estimate(value=0.01, low=0.01, high=0.01)}, measure=Measure.PROGRESS)
    asks = spec(target=BatchTarget(finish_by_at=NOW + 60.0), nodes=Nodes(count=4, minimum=1, gang=False))
    asks = replace(asks, resources=need(8.0))
    machines = [machine(number, FAST) for number in range(1, 5)]
    started = replace(running(1, *machines[:2], asks=asks, application="x"), spec=asks)
    plan = decide(scene(started, *machines, applications={"x": measured}), policy(order))
    assert sum(len(place.ranks) for place in of(plan, Place)) == grown


@pytest.mark.parametrize(("order", "taken"), [("paragon", "inst-2"), ("quasar", "inst-1")])
def test_quasar_takes_the_cheapest_type_that_meets_the_target_where_paragon_takes_the_best(
    order: str, taken: str
) -> None:
    def sure(value: float) -> Estimate:
        return Estimate(value=value, low=value, high=value)

    both = known(5, 90, by_type={"mock/slow": sure(0.01), "mock/fast": sure(0.04)}, measure=Measure.PROGRESS)
    cheap, dear = machine(1, SLOW), machine(2, offer("fast", vcpus=8.0, usd_per_h=0.9))
    asks = spec(target=BatchTarget(finish_by_at=NOW + 150.0))
    waiting = job(1, asks=asks, application="x", queued_at=NOW)
    plan = decide(scene(waiting, cheap, dear, applications={"x": both}), policy(order))
    assert of(plan, Place)[0].ranks[0].instance_id == taken
    hurried = replace(waiting, spec=replace(asks, target=BatchTarget(finish_by_at=NOW + 50.0)))
    plan = decide(scene(hurried, cheap, dear, applications={"x": both}), policy(order))
    assert of(plan, Place)[0].ranks[0].instance_id == "inst-2"


# ------------------------------------------------------------------------------------------------- queues by quality


def picky(best: str, *, run_s: float = 200.0) -> Classification:
    """Return an application without interference that takes twice as long on the other type."""
    rates = {name: (1.0 if name == best else 0.5) / run_s for name in ("slow", "fast")}
    by_type = {f"mock/{name}": Estimate(value=rate, low=rate, high=rate) for name, rate in rates.items()}
    return known(5, 90, by_type=by_type, measure=Measure.COMPLETION)


def small(name: str) -> Offer:
    """Return a type whose instances have room for one job."""
    return offer(name, vcpus=1.0)


PICKY = {"on-slow": picky("slow"), "on-fast": picky("fast")}
BY_QUALITY = policy("paragon", queues="by_quality")


def placed_on(snapshot: Snapshot, rules: Policy = BY_QUALITY) -> dict[str, str]:
    """Return where each job was placed."""
    return {place.job_id: place.ranks[0].instance_id for place in of(decide(snapshot, rules), Place)}


@pytest.mark.parametrize("queues", ["one", "by_quality"])
def test_job_gets_the_best_type_though_a_worse_one_is_in_a_lower_pool(queues: str) -> None:
    slow, fast = machine(1, SLOW), machine(2, FAST)
    there = running(1, slow, application="on-slow", asks=FREE)
    waiting = job(2, asks=FREE, application="on-fast", queued_at=NOW)
    snapshot = scene(there, waiting, slow, fast, applications=PICKY)
    assert placed_on(snapshot, policy("paragon", queues=queues)) == {"job-2": "inst-2"}


def test_freed_machine_goes_to_whom_it_suits_and_else_to_who_waits_longest() -> None:
    busy, freed = machine(1, small("fast")), machine(2, small("slow"))
    there = running(1, busy, application="on-fast", asks=FREE)
    first = job(2, asks=FREE, application="on-fast", queued_at=NOW - 100.0)
    second = job(3, asks=FREE, application="on-slow", queued_at=NOW - 50.0)
    assert placed_on(scene(there, first, second, busy, freed, applications=PICKY)) == {"job-3": "inst-2"}
    assert placed_on(scene(there, first, busy, freed, applications=PICKY)) == {"job-2": "inst-2"}
    overdue = replace(first, queued_at=NOW - BY_QUALITY.admission.patience_cap_s)
    assert placed_on(scene(there, overdue, second, busy, freed, applications=PICKY)) == {"job-2": "inst-2"}


def test_job_holds_out_for_its_type_where_one_comes_free_soon_and_nothing_is_bought_for_it() -> None:
    busy, free = machine(1, small("fast")), machine(2, SLOW)
    there = running(1, busy, asks=FREE)  # of which nothing is known: it runs as long as others do
    there = replace(there, attempt=replace(there.attempt, placed_at=NOW - 15.0))  # type: ignore[type-var]
    waiting = job(2, asks=FREE, application="long", queued_at=NOW)
    recent, applications = FleetStats(busy_s=(20.0,) * 100), {"long": picky("fast", run_s=10_000.0)}
    plan = decide(scene(there, waiting, busy, free, FAST, applications=applications, fleet_stats=recent), BY_QUALITY)
    assert (told(plan, "job-2"), of(plan, Launch)) == ("holds_out", [])
    lasting = replace(there, application="long")  # which has hours left
    plan = decide(scene(lasting, waiting, busy, free, FAST, applications=applications, fleet_stats=recent), BY_QUALITY)
    assert told(plan, "job-2") != "holds_out"
    late = replace(waiting, queued_at=NOW - 601.0)
    snapshot = scene(there, late, busy, free, applications=applications, fleet_stats=recent)
    assert placed_on(snapshot) == {"job-2": "inst-2"}
