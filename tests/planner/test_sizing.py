"""Sizing: combining the four classifications, and the least resources that meet a target with a probability."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.core.estimates import Classification, Estimate, Measure
from hcloud.core.model import BatchTarget, Nodes, ServiceTarget
from hcloud.planner.fit.expected_performance import expected, losses_beside
from hcloud.planner.fit.interference import sensitivity
from hcloud.planner.fit.size_curves import size_curves, size_curves_of
from hcloud.planner.fit.sizing import (
    Platform,
    SizeOption,
    SizeTarget,
    least,
    ranked,
    ranks_of_types,
    sizes,
    wanted_performance,
)
from tests.planner.scenes import NOW, job, spec


def sure(value: float) -> Estimate:
    """A value known exactly."""
    return Estimate(value=value, low=value, high=value, observed=True)


KNOWN = Classification(
    by_type={"slow": sure(10.0), "fast": sure(20.0), "vague": Estimate(value=30.0, low=10.0, high=90.0)},
    by_step={"1 vCPU": sure(5.0), "2 vCPU": sure(10.0), "4 vCPU": sure(15.0)},
    by_nodes={1: sure(1.0), 2: sure(1.9), 4: sure(3.4)},
    quality_target=sure(0.5),
    measure=Measure.REQUESTS,
)
PLATFORMS = (
    Platform(column="slow", vcpus=4.0, price_usd_per_h=0.2, machines=4),
    Platform(column="fast", vcpus=4.0, price_usd_per_h=0.6, machines=1),
)
VAGUE = Platform(column="vague", vcpus=4.0, price_usd_per_h=0.01, machines=1)


def smallest(target: float, confidence: float = 0.9, platforms: tuple[Platform, ...] = PLATFORMS) -> SizeOption:
    """The least size for a target, asked at 2 vCPU."""
    found = sizes(KNOWN, platforms, target, asked_vcpus=2.0, steps=[1.0, 2.0, 4.0], nodes=[1, 2, 4])
    size = least(found, confidence)
    assert size is not None
    return size


def test_expected_performance_joins_type_scale_up_scale_out_and_neighbours() -> None:
    whole = expected(KNOWN, "fast", vcpus=4.0, asked_vcpus=2.0, nodes=2, loss=0.1)
    assert whole is not None
    assert whole.value == pytest.approx(20.0 * 15 / 10 * 1.9 * 0.9)
    assert expected(KNOWN, "never seen", vcpus=2.0, asked_vcpus=2.0) is None
    assert expected(KNOWN, "fast", vcpus=2.0, asked_vcpus=2.0, nodes=3) is None


def test_between_measured_steps_is_interpolated_below_shrinks_in_proportion_and_above_does_not_grow() -> None:
    def value(vcpus: float) -> float:
        found = expected(KNOWN, "slow", vcpus=vcpus, asked_vcpus=2.0)
        assert found is not None
        return found.value

    assert value(0.5) == pytest.approx(2.5)
    assert 10.0 < value(3.0) < 15.0
    assert value(16.0) == pytest.approx(15.0)


def test_least_resources_are_the_cheapest_and_scale_up_comes_before_scale_out() -> None:
    assert (smallest(9.0).platform.column, smallest(9.0).vcpus, smallest(9.0).nodes) == ("slow", 2.0, 1)
    assert (smallest(14.0).platform.column, smallest(14.0).vcpus, smallest(14.0).nodes) == ("slow", 4.0, 1)
    # Two nodes of 2 vCPU (19) cost what one of 4 vCPU does, which is not enough for this.
    assert (smallest(18.0).vcpus, smallest(18.0).nodes) == (2.0, 2)


def test_cheap_but_uncertain_type_is_taken_only_where_less_certainty_is_asked() -> None:
    both = (*PLATFORMS, VAGUE)
    assert smallest(18.0, confidence=0.9, platforms=both).platform.column == "slow"
    assert smallest(18.0, confidence=0.6, platforms=both).platform.column == "vague"


def test_target_out_of_reach_gives_the_most_probable_size() -> None:
    assert smallest(1e6).probability < 0.9
    assert least([], 0.9) is None


@given(st.floats(1.0, 40.0), st.floats(0.5, 0.99))
def test_size_taken_meets_the_target_and_nothing_cheaper_does(target: float, confidence: float) -> None:
    found = sizes(KNOWN, (*PLATFORMS, VAGUE), target, asked_vcpus=2.0, steps=[1.0, 2.0, 4.0], nodes=[1, 2, 4])
    size, enough = least(found, confidence), [each for each in found if each.probability >= confidence]
    assert size is not None
    assert not enough or (size in enough and size.usd_per_h <= min(each.usd_per_h for each in enough) + 1e-9)


def test_stated_probability_is_that_of_draws_from_the_estimates() -> None:
    vague = replace(KNOWN, by_nodes={1: sure(1.0), 2: Estimate(value=2.0, low=1.5, high=2.667)})
    would = expected(vague, "vague", vcpus=2.0, asked_vcpus=2.0, nodes=2)
    assert would is not None
    rng = np.random.default_rng(5)
    types = rng.normal(np.log(30.0), np.log(9.0) / (2 * 1.2816), 100_000)
    out = rng.normal(np.log(2.0), np.log(2.667 / 1.5) / (2 * 1.2816), 100_000)
    assert would.reaches(40.0) == pytest.approx((types + out >= np.log(40.0)).mean(), abs=0.01)


def test_target_is_that_of_the_job_in_the_unit_it_was_measured_in_or_a_part_of_its_best() -> None:
    service = job(1, asks=spec(target=ServiceTarget(requests_per_s=7.0, latency_ms=5.0)))
    assert wanted_performance(service, KNOWN, NOW, 0.05) == 7.0
    batch = job(2, asks=spec(target=BatchTarget(finish_by_at=NOW + 50.0)))
    whole_jobs = replace(KNOWN, measure=Measure.PROGRESS)
    assert wanted_performance(batch, whole_jobs, NOW, 0.05) == pytest.approx(0.02)
    assert wanted_performance(batch, KNOWN, NOW, 0.05) == pytest.approx(0.95 * 30.0)
    pair = job(3, asks=spec(target=BatchTarget(), nodes=Nodes(count=2)))
    assert wanted_performance(pair, KNOWN, NOW, 0.05) == pytest.approx(0.95 * 30.0 * 1.9)


def test_loss_beside_neighbours_is_five_percent_at_what_is_tolerated_and_grows_with_the_pressure() -> None:
    known = replace(KNOWN, tolerated={"cpu": sure(40.0), "llc": sure(80.0)}, caused={})
    who = sensitivity("who", known, ("cpu", "llc"), 0.5)
    lost = losses_beside(who, np.array([[0.0, 40.0, 40.0], [0.0, 0.0, 99.0]]))
    assert lost[:2].tolist() == pytest.approx([0.0, 0.05])
    assert 0.05 < lost[2] < 0.07


def test_what_may_be_lost_beside_neighbours_changes_nothing_of_what_is() -> None:
    known = replace(KNOWN, tolerated={"cpu": sure(40.0)}, caused={})
    who = sensitivity("who", known, ("cpu",), 0.9, tolerance=0.2)
    assert losses_beside(who, np.array([[40.0]])).tolist() == pytest.approx([0.05])


COLUMN = "fast"


def steps(**measured: float) -> Classification:
    """A job measured at these vCPUs (``v1=1.0``), with other amounts inferred as growing without limit."""
    amounts = (1.0, 2.0, 4.0, 8.0, 16.0)
    inferred = {f"{v:g} vCPU": Estimate(value=v, low=v, high=v) for v in amounts}
    return replace(KNOWN, by_step=inferred | {f"{name[1:]} vCPU": sure(value) for name, value in measured.items()})


def granted(known: Classification, target: float, confidence: float = 0.5) -> float:
    """The vCPUs a rank gets on an empty machine of 16 vCPUs."""
    aim = SizeTarget(target=target, asked_vcpus=16.0, low=1.0, high=16.0, nodes=1)
    return float(size_curves(known, ((COLUMN, 16.0),), aim, confidence).towards(target).alone()[0])


def test_more_vcpus_than_were_measured_help_no_more_than_the_last_of_them_did() -> None:
    aim = SizeTarget(target=1.0, asked_vcpus=2.0, low=1.0, high=16.0, nodes=1)
    flat, rising = steps(v1=1.0, v2=1.0), steps(v1=1.0, v2=1.8)
    first, second = (size_curves(each, ((COLUMN, 16.0),), aim, 0.5).surely[0] for each in (flat, rising))
    assert first[-1] == pytest.approx(first[1])
    assert second[-1] > second[1]


def test_inferred_sizes_do_no_more_per_vcpu_than_smaller_ones_that_were_measured() -> None:
    """Otherwise 0.9 vCPU would seem to do more than a whole one, and jobs be given too little."""
    guesses = {
        "0.9 vCPU": Estimate(value=14.0, low=12.0, high=16.5),
        "6 vCPU": Estimate(value=90.0, low=80.0, high=99.0),
    }
    known = replace(KNOWN, by_step={"0.5 vCPU": sure(5.0), "2 vCPU": sure(18.0), "4 vCPU": sure(38.0), **guesses})
    values = []
    for vcpus in (0.5, 0.9, 2.0, 4.0, 6.0):
        would = expected(known, COLUMN, vcpus=vcpus, asked_vcpus=0.5)
        assert would is not None
        values.append(would.value / 20.0)
    assert values == pytest.approx([1.0, 1.8, 3.6, 7.6, 11.4])


def test_what_a_rank_would_leave_of_a_machine_is_its_own_where_it_is_of_no_use_to_others() -> None:
    linear = replace(KNOWN, by_step={f"{v:g} vCPU": sure(v) for v in (0.5, 0.7, 1.0, 3.2, 4.0, 16.0)})
    aim = SizeTarget(target=14.0, asked_vcpus=1.0, low=0.5, high=16.0, nodes=1)
    kinds = ((COLUMN, 1.0), (COLUMN, 2.0), (COLUMN, 16.0))
    assert size_curves(linear, kinds, aim, 0.5).towards(14.0).alone().tolist() == [1.0, 0.7, 0.7]
    assert size_curves(linear, kinds, aim, 0.5).towards(10.0).alone().tolist() == [0.5, 0.5, 0.5]
    assert size_curves(linear, ((COLUMN, 4.0),), aim, 0.5).towards(64.0).alone().tolist() == [4.0]
    small = aim._replace(high=0.8)
    assert size_curves(linear, kinds, small, 0.5).towards(14.0).alone().tolist() == [0.8, 0.7, 0.7]
    fixed = aim._replace(low=0.7, high=0.7, asked_vcpus=0.7)
    assert size_curves(linear, kinds, fixed, 0.5).towards(20.0).alone().tolist() == [0.7, 0.7, 0.7]


def test_growth_within_the_noise_of_measurements_is_not_carried_on() -> None:
    known = steps(v1=1.0, v2=2.0, v4=2.05)
    guess = {"16 vCPU": Estimate(value=4.0, low=2.0, high=8.0)}
    known = replace(known, by_step={**known.by_step, **guess})
    most = expected(known, COLUMN, vcpus=16.0, asked_vcpus=4.0)
    assert most is not None
    last = expected(known, COLUMN, vcpus=4.0, asked_vcpus=4.0)
    assert last is not None and most.value == pytest.approx(last.value)


def test_half_the_size_is_taken_where_it_is_expected_to_do_nearly_as_much() -> None:
    def taken(*performance: float) -> list[float]:
        """The vCPUs taken for each of three steps, for a target of 100."""
        vcpus, mean = np.array([[1.0, 4.0, 16.0]]), np.log(np.array([performance]))
        return size_curves_of(vcpus, mean, mean, mean).worth(100.0)[0].tolist()

    assert taken(30.0, 108.0, 111.0) == [1.0, 4.0, 4.0]
    assert taken(30.0, 103.0, 111.0) == [1.0, 4.0, 16.0]  # 103 are too near to the 100 that were promised
    assert taken(30.0, 108.0, 140.0) == [1.0, 4.0, 16.0]
    assert taken(80.0, 85.0, 86.0) == [1.0, 1.0, 1.0]  # nobody meets it, and the least is as good
    assert taken(30.0, 101.0, 103.0) == [1.0, 4.0, 4.0]  # what the whole does more is within the noise


def test_where_no_size_is_sure_enough_the_likeliest_is_taken() -> None:
    measured = steps(v1=1.0, v2=2.0)
    wide = {"16 vCPU": Estimate(value=14.0, low=1.0, high=196.0)}
    doubtful = replace(measured, by_step={**measured.by_step, **wide})
    aim = SizeTarget(target=10.0, asked_vcpus=2.0, low=1.0, high=16.0, nodes=1)
    asked = replace(doubtful, by_type={COLUMN: sure(2.0)})
    rungs = size_curves(asked, ((COLUMN, 16.0),), aim, 0.9)
    # By the worst that is to be feared eight are better; but they are sure to miss it, and sixteen are not.
    assert rungs.surely.max() < np.log(aim.target) and rungs.vcpus[0, rungs.surely[0].argmax()] == 8.0
    assert rungs.vcpus[0, rungs.towards(aim.target).best()[0]] == 16.0
    assert rungs.towards(aim.target).alone().tolist() == [16.0]


def test_kinds_of_machines_side_by_side_say_what_each_says_alone() -> None:
    known, aim = steps(v1=1.0, v2=1.8), SizeTarget(target=7.0, asked_vcpus=2.0, low=1.0, high=16.0, nodes=1)
    kinds = (("fast", 2.0), ("fast", 16.0), ("never seen", 8.0), ("slow", 4.0), ("vague", 1.0))
    together = size_curves(known, kinds, aim, 0.9)
    for target in (0.3, 7.0, 19.0, 300.0):
        alone = [size_curves(known, (kind,), aim, 0.9).towards(target) for kind in kinds]
        assert together.towards(target).alone().tolist() == [each.alone()[0] for each in alone]
        assert together.towards(target).shortfalls().tolist() == [each.shortfalls()[0] for each in alone]
        assert together.towards(target).likely().tolist() == (together.towards(target).shortfalls() <= 1).tolist()
    far = together.towards(300.0)
    assert far.alone()[2] == aim.asked_vcpus and far.shortfalls()[2] == 0


def test_half_the_size_is_not_taken_where_it_does_a_tenth_less_than_the_whole() -> None:
    linear = steps(v1=1.0, v2=2.0, v4=4.0, v8=8.0, v16=16.0)
    reach = expected(linear, COLUMN, vcpus=16.0, asked_vcpus=16.0)
    assert reach is not None
    assert [granted(linear, reach.value * part) for part in (0.99, 0.5, 0.49, 0.25, 0.01)] == [16.0, 8.0, 8.0, 4.0, 1.0]


@settings(max_examples=25)
@given(target=st.floats(0.1, 40.0), confidence=st.sampled_from([0.5, 0.8, 0.95]))
def test_types_are_ranked_by_their_best_size_as_all_sizes_are(target: float, confidence: float) -> None:
    platforms = tuple(
        Platform(column=column, vcpus=16.0, price_usd_per_h=0.7 + 0.1 * n, machines=1)
        for n, column in enumerate(sorted(KNOWN.by_type))
    )
    aim = SizeTarget(target=target, asked_vcpus=4.0, low=1.0, high=8.0, nodes=1)
    every = sizes(KNOWN, platforms, target, asked_vcpus=4.0, steps=aim.steps(KNOWN), nodes=[1])
    columns = [size.platform.column for size in ranked(every, confidence)]
    ranks, enough = ranks_of_types(KNOWN, platforms, aim, confidence)
    assert ranks == {column: columns.index(column) for column in columns}
    assert enough == sum(size.probability >= confidence for size in every)
