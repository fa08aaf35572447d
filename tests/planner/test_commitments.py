"""Commitments: the count with the least cost over a load, and what follows from it."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core.errors import BadInput
from hcloud.forecast.load import LoadCurve
from hcloud.planner.provisioning.commitments import Terms, advise, best_count, cost_usd_per_h, sizes_by_strategy

HOUR = 3600.0
YEAR = Terms(name="1y", term_months=12, upfront_usd=0.0, usd_per_h=0.6)


def hourly(*levels: float) -> LoadCurve:
    return LoadCurve.of([(HOUR * n, level) for n, level in enumerate(levels)], until_at=HOUR * len(levels))


loads = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5, 7.0]), min_size=2, max_size=12).map(lambda x: hourly(*x))
prices = st.sampled_from([0.05, 0.3, 0.5, 0.75, 1.0, 1.2])


def count_without_the_rest(load: LoadCurve, on_demand: float, committed: float) -> int:
    """Seeded fault: sizes for the mean load, whatever the prices."""
    return round(load.mean) if committed < on_demand else 0


def is_the_least(count: int, load: LoadCurve, committed: float) -> bool:
    """Return whether no other count costs less."""
    least = min(cost_usd_per_h(load, 1.0, committed, n) for n in range(int(np.ceil(load.peak)) + 2))
    return cost_usd_per_h(load, 1.0, committed, count) <= least + 1e-9


@given(loads, prices)
def test_no_other_count_costs_less(load: LoadCurve, committed: float) -> None:
    assert is_the_least(best_count(load, 1.0, committed), load, committed)


def test_that_property_catches_a_size_by_the_mean() -> None:
    load = hourly(1, 1, 1, 9)
    assert not is_the_least(count_without_the_rest(load, 1.0, 0.5), load, 0.5)


@given(loads, prices, st.sampled_from([1.0, 1.5]))
def test_cheaper_commitments_are_bought_more_of_and_never_cost_more_than_none(
    load: LoadCurve, committed: float, dearer: float
) -> None:
    assert best_count(load, 1.0, committed * dearer) <= best_count(load, 1.0, committed)
    advice = advise(load, 1.0, [Terms(name="x", term_months=12, upfront_usd=0.0, usd_per_h=committed)])[0]
    assert advice.usd_per_h <= advice.on_demand_usd_per_h + 1e-9
    assert 0.0 <= advice.use <= 1.0 + 1e-9
    assert advice.use >= advice.break_even_use - 1e-9 or advice.count == 0
    assert advice.least_load <= 1.0


def use_layer_by_layer(load: LoadCurve) -> list[float]:
    """Return the utilisation computed layer by layer over the whole load."""
    weights = load.seconds / load.seconds.sum()
    units = range(int(np.ceil(load.peak - 1e-9)))
    return [float((np.clip(load.levels - below, 0.0, 1.0) * weights).sum()) for below in units]


@given(st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.0, 40.0) | st.integers(0, 9)), min_size=2, max_size=20))
def test_use_of_all_layers_equals_use_layer_by_layer(steps: list[tuple[float, float]]) -> None:
    times = np.cumsum([0.0, *(seconds for seconds, _ in steps)])
    load = LoadCurve(times, np.array([level for _, level in steps], dtype=np.float64))
    assert load.use_of_layers().tolist() == pytest.approx(use_layer_by_layer(load), abs=1e-12)


@pytest.mark.parametrize("dust", [-1e-10, 1e-10])
def test_dust_on_a_peak_makes_no_layer_and_takes_none_away(dust: float) -> None:
    assert hourly(1.0, 3.0 + dust).use_of_layers().tolist() == pytest.approx([1.0, 0.5, 0.5])


def test_a_load_of_many_machines_over_years_is_computed_quickly() -> None:
    levels = np.random.default_rng(0).uniform(0.0, 1e6, 24 * 365)
    load = LoadCurve(np.arange(levels.size + 1) * HOUR, levels)
    began_s = time.process_time()
    use = load.use_of_layers()
    assert time.process_time() - began_s < 1.0  # layer by layer it takes 17 s
    assert use.sum() == pytest.approx(load.mean)


@given(loads)
def test_layers_of_load_add_up_to_its_mean_and_fall(load: LoadCurve) -> None:
    layers = load.use_of_layers()
    assert layers.sum() == pytest.approx(load.mean)
    assert (np.diff(layers) <= 1e-12).all()


def test_advice_says_what_a_steady_load_with_a_peak_calls_for() -> None:
    load = hourly(*[4] * 95, *[10] * 5)
    advice = advise(load, 1.0, [YEAR])[0]
    assert advice.count == 4
    assert advice.use == pytest.approx(1.0)
    assert advice.break_even_use == 0.6
    assert advice.usd_per_h == pytest.approx(4 * 0.6 + 0.05 * 6)
    assert advice.if_load_halves_usd_per_h == pytest.approx(4 * 0.6 + 0.05 * 1 - 0.5 * 4.3)
    assert 0.5 < advice.least_load < 0.7
    assert sizes_by_strategy(load) == {"sr": 12, "hf, hm": 4}


def test_upfront_money_comes_back_after_the_months_its_savings_take() -> None:
    upfront = Terms(name="all", term_months=12, upfront_usd=0.5 * 8760, usd_per_h=0.0)
    advice = advise(hourly(2, 2), 1.0, [upfront, YEAR])[0]
    assert advice.terms is upfront
    assert advice.upfront_usd == 8760
    assert advice.pays_after_months == pytest.approx(6.0)


def test_advice_is_in_dollars_at_any_on_demand_price() -> None:
    """Four instances, ten for 5 % of the time; $0.50/h on demand, or $0.20/h and $438 upfront ($0.05/h) for a year."""
    terms = Terms(name="part", term_months=12, upfront_usd=438.0, usd_per_h=0.2)
    advice = advise(hourly(*[4] * 95, *[10] * 5), 0.5, [terms])[0]
    assert (advice.count, advice.upfront_usd) == (4, 4 * 438.0)
    assert advice.break_even_use == pytest.approx(0.25 / 0.5)
    assert advice.usd_per_h == pytest.approx(4 * 0.25 + 0.3 * 0.5)
    assert advice.on_demand_usd_per_h == pytest.approx(4.3 * 0.5)
    assert advice.saving == pytest.approx(1.0 - 1.15 / 2.15)
    assert advice.pays_after_months == pytest.approx(4 * 438.0 / (4 * 0.5 - 4 * 0.2) / 730.0)
    # There 4 x $0.25 and the rest of the peak, 5 % x (10 x - 4) x $0.50, cost what on demand alone does, 4.3 x $0.50 x.
    assert advice.least_load == pytest.approx(0.9 / 1.9)
    assert advice.if_load_halves_usd_per_h == pytest.approx(1.0 + 0.05 * 1 * 0.5 - 2.15 * 0.5)
    assert advice.by_week is None  # less than two weeks of load


def test_one_instance_committed_to_has_a_least_load_and_a_use_of_its_own() -> None:
    advice = advise(hourly(1, 1, 1, 0), 1.0, [YEAR])[0]
    assert (advice.count, advice.use) == (1, pytest.approx(0.75))
    assert advice.least_load == pytest.approx(0.8)  # 0.6 of 0.75


def test_where_nothing_is_committed_to_nothing_is_used_paid_or_lost() -> None:
    upfront = Terms(name="upfront", term_months=12, upfront_usd=10.0, usd_per_h=0.9)
    advice = advise(hourly(*[1] * 5, *[0] * 5), 1.0, [upfront])[0]
    assert (advice.count, advice.use, advice.upfront_usd, advice.least_load) == (0, 0.0, 0.0, 0.0)
    assert advice.pays_after_months is None


def test_money_that_never_comes_back_pays_after_no_time() -> None:
    assert advise(hourly(1, 1), 1.0, [YEAR])[0].pays_after_months is None  # nothing upfront
    small = Terms(name="small", term_months=12, upfront_usd=100.0, usd_per_h=0.1)
    assert advise(hourly(1, 1), 0.5, [small])[0].pays_after_months == pytest.approx(100.0 / 0.4 / 730.0)


def test_an_instance_that_costs_the_same_either_way_is_not_committed_to() -> None:
    assert best_count(hourly(1, 1), 0.6, 0.6) == 0


def test_weeks_that_differ_give_a_range() -> None:
    day = 86_400.0
    load = LoadCurve.of([(0, 2.0), (7 * day, 5.0)], until_at=14 * day)
    assert advise(load, 1.0, [YEAR])[0].by_week == (2, 5)


@pytest.mark.parametrize("samples", [[], [(0.0, 1.0)], [(0.0, 1.0), (1.0, -1.0)], [(0.0, 1.0), (1.0, float("nan"))]])
def test_no_load_is_no_load(samples: list[tuple[float, float]]) -> None:
    with pytest.raises(BadInput):
        LoadCurve.of(samples)


def test_free_machines_and_no_options_are_refused() -> None:
    with pytest.raises(BadInput, match="above 0"):
        advise(hourly(1, 1), 0.0, [YEAR])
    with pytest.raises(BadInput, match="name at least one"):
        advise(hourly(1, 1), 1.0, [])


def test_clock_hours_add_up_what_runs_at_once() -> None:
    load = LoadCurve.of([(HOUR + 900.0, 4.0), (HOUR + 1800.0, 0.0), (2 * HOUR, 2.0)], until_at=3.25 * HOUR)
    hours = load.per_clock_hour()
    assert hours.times.tolist() == [HOUR, 2 * HOUR, 3 * HOUR]  # the last hour is not over
    assert hours.levels.tolist() == pytest.approx([1.0, 2.0])
    only = LoadCurve.of([(HOUR, 4.0)], until_at=HOUR + 900.0)
    assert only.per_clock_hour().levels.tolist() == pytest.approx([1.0])
