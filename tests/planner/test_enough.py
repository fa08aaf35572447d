"""A job whose size is the planner's waits for, or is bought, a machine on which a size meets its target."""

from dataclasses import replace

from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import Market, ServiceTarget
from hcloud.planner.plan import Launch, Place
from tests.planner.apply_model import apply_ideally
from tests.planner.scenes import decide, job, machine, need, of, offer, running, scene, spec
from tests.policies import simple

SMALL, LARGE = offer("small", vcpus=1.0, usd_per_h=0.05), offer("large", vcpus=4.0, usd_per_h=0.2)
PLAIN = simple()
QUASAR = replace(PLAIN, placement=replace(PLAIN.placement, order="quasar", neighbour_tolerance=0.05))
SERVICE = spec(
    target=ServiceTarget(requests_per_s=100.0, latency_ms=20.0), resources=need(2.0), vcpus_within=(1.0, 4.0)
)


def serving(value: float, spread: float = 1.02) -> Estimate:
    """So many requests per second, give or take."""
    return Estimate(value=value, low=value / spread, high=value * spread, observed=True)


def known(two: float, spread: float = 1.02) -> Classification:
    """A service that serves so much with two vCPUs on any type, half of it with one."""
    return Classification(
        by_type={"mock/small": serving(two, spread), "mock/large": serving(two, spread)},
        by_step={"1 vCPU": serving(two / 2), "2 vCPU": serving(two), "4 vCPU": serving(1.4 * two)},
        tolerated={"llc-capacity": serving(50.0)},
        caused={"llc-capacity": serving(10.0)},
        measure=Measure.REQUESTS,
        quality_target=serving(0.1),
    )


def outcome(belief: Classification) -> tuple[list[str], list[str]]:
    """Where it is placed, with a small machine idle, and what is launched."""
    waiting = job(1, asks=SERVICE, application="web")
    plan = decide(scene(waiting, machine(1, SMALL), SMALL, LARGE, applications={"web": belief}), QUASAR)
    return [a.ranks[0].instance_id for a in of(plan, Place)], [a.offer.instance_type.name for a in of(plan, Launch)]


def test_service_is_not_started_where_no_size_serves_what_is_promised() -> None:
    assert outcome(known(120.0)) == ([], ["large"])


def test_service_that_one_vcpu_is_enough_for_starts_at_once() -> None:
    assert outcome(known(240.0)) == (["inst-1"], [])


def test_machine_that_is_likelier_to_do_is_bought_where_none_is_sure_to() -> None:
    assert outcome(known(110.0, spread=1.5)) == ([], ["large"])


def test_where_nothing_is_likely_to_do_a_job_is_not_kept_from_what_there_is() -> None:
    assert outcome(known(40.0)) == (["inst-1"], [])
    assert outcome(known(70.0, spread=1.5)) == (["inst-1"], []), "four vCPUs serve 98, give or take a half"


def test_a_machine_that_is_likely_to_do_is_waited_for_rather_than_one_that_is_not() -> None:
    assert outcome(known(75.0, spread=1.5)) == ([], ["large"]), "four vCPUs serve 105, give or take a half"


def test_a_job_takes_what_there_is_while_all_that_could_do_is_taken() -> None:
    full = running(2, machine(2, LARGE), asks=spec(resources=need(4.0)))
    for two, spread in ((120.0, 1.02), (190.0, 1.5)):
        waiting = job(1, asks=SERVICE, application="web")
        fleet = (machine(1, SMALL), machine(2, LARGE), full)
        sold_out = replace(LARGE, available=0)
        plan = decide(scene(waiting, *fleet, SMALL, sold_out, applications={"web": known(two, spread)}), QUASAR)
        assert [a.ranks[0].instance_id for a in of(plan, Place)] == ["inst-1"]
        assert not of(plan, Launch)


def test_a_machine_launched_for_want_of_a_better_one_is_awaited_not_launched_again() -> None:
    """Only the large one that others fill would do; small ones are all that can be had."""
    filled = machine(2, LARGE)
    waiting = job(1, asks=SERVICE, application="web")
    fleet = (filled, running(2, filled, asks=spec(resources=need(4.0))), SMALL)
    before = scene(waiting, *fleet, applications={"web": known(120.0)})
    plan = decide(before, QUASAR)
    assert [action.offer.instance_type.name for action in of(plan, Launch)] == ["small"]
    assert not decide(apply_ideally(before, plan), QUASAR).actions


def test_surety_is_not_worth_twice_the_price_of_what_is_likely_to_do() -> None:
    """Two vCPUs of the small type serve 110 of 100, give or take a fifth; the large type surely serves them."""
    belief = known(110.0)
    doubtful = Estimate(value=110.0, low=90.0, high=134.0, observed=True)
    belief = replace(belief, by_type={"mock/small": doubtful, "mock/large": serving(150.0)})
    waiting = job(1, asks=SERVICE, application="web")

    def bought(dear_usd_per_h: float) -> list[str]:
        large = offer("large", vcpus=4.0, usd_per_h=dear_usd_per_h)
        plan = decide(
            scene(waiting, offer("small", vcpus=2.0, usd_per_h=0.1), large, applications={"web": belief}), QUASAR
        )
        return [action.offer.instance_type.name for action in of(plan, Launch)]

    assert (bought(0.19), bought(0.21)) == (["large"], ["small"])


def test_reserved_instances_are_never_too_expensive() -> None:
    """The small type likely serves it; a rented one surely does, and so does a reserved one at a higher price."""
    doubtful = Estimate(value=110.0, low=90.0, high=134.0, observed=True)
    belief = replace(
        known(110.0), by_type={"mock/small": doubtful, "mock/mid": serving(150.0), "mock/paid": serving(150.0)}
    )
    paid = replace(offer("paid", vcpus=4.0, usd_per_h=0.25), market=Market.RESERVED, available=1)
    small, mid = offer("small", vcpus=2.0, usd_per_h=0.1), offer("mid", vcpus=4.0, usd_per_h=0.15)
    waiting = job(1, asks=SERVICE, application="web")
    plan = decide(scene(waiting, small, mid, paid, applications={"web": belief}), QUASAR)
    assert [action.offer.instance_type.name for action in of(plan, Launch)] == ["paid"]


def test_room_that_is_too_little_for_it_is_no_reason_to_go_where_it_is_disturbed() -> None:
    """It needs two vCPUs: inst-1 stands idle with one, on inst-2 are enough beside somebody who troubles it badly."""
    loud = replace(known(120.0), caused={"llc-capacity": serving(90.0)}, tolerated={"llc-capacity": serving(20.0)})
    resident = running(2, machine(2, LARGE), asks=spec(resources=need(2.0)), application="loud")
    waiting = job(1, asks=SERVICE, application="web")
    policy = replace(QUASAR, admission=replace(QUASAR.admission, queues="by_quality"))
    fleet = (machine(1, SMALL), machine(2, LARGE))
    plan = decide(
        scene(waiting, resident, *fleet, SMALL, LARGE, applications={"web": known(120.0), "loud": loud}), policy
    )
    assert [a.ranks[0].instance_id for a in of(plan, Place)] == []
    assert [a.offer.instance_type.name for a in of(plan, Launch)] == ["large"]


def test_job_that_only_a_large_type_is_enough_for_shares_a_half_empty_one() -> None:
    """A cheaper machine that it would not get does not keep it from one that runs; one that it likely would does."""
    huge = offer("huge", vcpus=16.0, usd_per_h=0.8)
    there = machine(1, huge, idle_since=None)
    for two, expected in ((95.0, (["inst-1"], [])), (110.0, ([], ["small"]))):
        doubtful = serving(two, spread=1.5)
        belief = replace(known(110.0), by_type={"mock/small": doubtful, "mock/huge": serving(110.0)})
        before = scene(
            running(1, there, asks=spec(resources=need(2.0))),
            job(2, asks=SERVICE, application="web"),
            there,
            offer("small", vcpus=2.0, usd_per_h=0.1),
            huge,
            applications={"web": belief},
        )
        plan = decide(before, QUASAR)
        launched = [action.offer.instance_type.name for action in of(plan, Launch)]
        assert ([action.ranks[0].instance_id for action in of(plan, Place)], launched) == expected
