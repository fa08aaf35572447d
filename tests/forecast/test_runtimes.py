"""Run times are predicted as distributions: near what similar jobs took, wide where little is known, and calibrated."""

import math
from itertools import pairwise

import numpy as np
import pytest

from hcloud.core.errors import BadInput
from hcloud.forecast.runtimes.distribution import LONGEST_S, RunTimes
from hcloud.forecast.runtimes.features import COMBINATIONS, RunFeatures, combination_keys
from hcloud.forecast.runtimes.histories import COUNTED, EMPTY, HistoryTable, bin_of, decay_weights, weights_by_count
from hcloud.forecast.runtimes.mixture import MixturePredictor
from hcloud.forecast.runtimes.printed import BINS, PrintedPredictor, StreamHistogram
from hcloud.forecast.runtimes.state import FORMAT, dump, load
from tests.forecast.runs import replayed, runs_of, sweeps

ANN, BEN = RunFeatures(user="ann"), RunFeatures(user="ben")


# -------------------------------------------------------------------------------------------------------- distribution
def uniform() -> RunTimes:
    """Log-uniform from 1 to 10,000 s."""
    return RunTimes(np.array([1.0, 1e4]), np.array([0.0, 1.0]))


def test_quantiles_and_probabilities_are_inverse() -> None:
    found = uniform()
    assert found.quantiles([0.0, 0.25, 0.5, 1.0]).tolist() == pytest.approx([1.0, 10.0, 100.0, 1e4])
    assert [found.cdf(each) for each in (0.5, 1.0, 10.0, 1e4, 1e6)] == pytest.approx([0.0, 0.0, 0.25, 1.0, 1.0])
    assert found.expected_s == pytest.approx((1e4 - 1.0) / math.log(1e4))


def test_certain_time_is_a_jump() -> None:
    certain = RunTimes(np.array([60.0, 60.0]), np.array([0.0, 1.0]))
    assert (certain.quantile(0.05), certain.quantile(1.0), certain.expected_s) == (60.0, 60.0, 60.0)
    assert (certain.cdf(59.9), certain.cdf(60.0)) == (0.0, 1.0)


def test_job_that_lasted_ends_later() -> None:
    aged = uniform().after(100.0)
    assert aged.age_s == 100.0
    assert aged.cdf(1000.0) == pytest.approx(0.5)  # half of what was left, in logarithms
    assert aged.quantile(0.0) == 100.0


def test_job_older_than_all_experience_is_half_done() -> None:
    aged = uniform().after(1e6)
    assert aged.quantile(0.5) == pytest.approx(2e6, rel=0.02)
    assert uniform().after(math.inf).quantile(0.5) > 1e299


@pytest.mark.parametrize("age_s", [0.0, -5.0, math.nan])
def test_age_of_a_clock_that_went_back_counts_as_none(age_s: float) -> None:
    assert uniform().after(age_s).quantile(0.5) == pytest.approx(100.0)
    assert MixturePredictor().predict(ANN, age_s).age_s == 0.0


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan])
def test_quantile_of_no_probability_is_refused(probability: float) -> None:
    with pytest.raises(BadInput, match="from 0 to 1"):
        uniform().quantile(probability)


# ------------------------------------------------------------------------------------------------------------ features
def test_combinations_with_an_unknown_part_are_left_out() -> None:
    known, _ = combination_keys(RunFeatures(size=4.0, requested_s=math.nan, input_size=-1.0), COMBINATIONS)
    assert [COMBINATIONS[each] for each in known] == [(), ("size",)]


def test_keys_are_the_same_in_every_process() -> None:
    features = RunFeatures(user="ann", size=4.0)
    _, keys = combination_keys(features, (("user",), ("user", "size")))
    assert keys == (8409348195383237257, 17790040138171150715)


def test_values_of_different_features_are_different_histories() -> None:
    one, other = RunFeatures(group="7", queue=None), RunFeatures(group=None, queue="7")
    assert not set(combination_keys(one, COMBINATIONS[1:])[1]) & set(combination_keys(other, COMBINATIONS[1:])[1])
    assert combination_keys(RunFeatures(size=4), COMBINATIONS) == combination_keys(RunFeatures(size=4.0), COMBINATIONS)


# ----------------------------------------------------------------------------------------------------------- histories
def test_history_keeps_the_latest_runs_and_some_of_those_before() -> None:
    table = HistoryTable(limit=5)
    rows = table.rows_to_extend([7])
    for number in range(96):
        table.extend(rows, number)
    kept = table.codes[rows[0]]
    assert kept[:32].tolist() == list(range(95, 63, -1))
    before = kept[32:56][kept[32:56] != EMPTY].tolist()
    assert {late - early for late, early in pairwise(before)} == {4}
    assert 0 <= min(before) < 4


@pytest.mark.parametrize("count", [1, 5, 40, 200, 500])
def test_places_weigh_as_the_decay_says(count: int) -> None:
    decays = (0.5, 0.93, 0.995)
    exact = [(1.0 - decay**count) / (1.0 - decay) for decay in decays]
    assert weights_by_count(decays)[count] == pytest.approx(exact, rel=0.1)
    assert decay_weights(decays)[:, 0].tolist() == [1.0, 1.0, 1.0]


def test_full_history_goes_on_counting_in_its_turns() -> None:
    table = HistoryTable(limit=5)
    rows = table.rows_to_extend([7])
    for number in range(3 * COUNTED):
        table.extend(rows, number % 100)
        assert table.counts[rows[0]] <= COUNTED
    assert (table.codes[rows[0]] != EMPTY).all()


def test_values_not_seen_for_longest_are_forgotten() -> None:
    table = HistoryTable(limit=32)
    for number in range(100):
        table.extend(table.rows_to_extend([1, 1000 + number]), number)
    assert len(table.index.rows) <= 32
    assert table.rows_to_read([1000])[0] == 0
    oldest, latest, always = table.rows_to_read([1090, 1099, 1])
    assert [table.codes[row, 0] for row in (oldest, latest, always)] == [90, 99, 99]
    assert table.counts[latest] == 1
    assert table.codes[latest, 1] == EMPTY


# ------------------------------------------------------------------------------------------------------------- mixture
def test_where_nothing_is_known_all_is_possible() -> None:
    for features in (RunFeatures(), ANN):
        low, high = MixturePredictor().predict(features).quantiles([0.05, 0.95])
        assert low < 1.0
        assert high > 1e6


def test_one_run_is_no_certainty() -> None:
    predictor = MixturePredictor()
    predictor.observe(ANN, 100.0)
    low, middle, high = predictor.predict(ANN).quantiles([0.02, 0.5, 0.98])
    assert low < 25.0
    assert middle == pytest.approx(100.0, rel=0.2)
    assert high > 1000.0


def test_constant_times_are_predicted_closely_but_not_as_certain() -> None:
    predictor = MixturePredictor()
    for each in runs_of("ann", [100.0] * 300):
        replayed(predictor, [each])
    found = predictor.predict(ANN)
    assert found.quantiles([0.1, 0.9]).tolist() == pytest.approx([100.0, 100.0], rel=0.15)
    assert found.likely_s == pytest.approx(100.0, rel=0.1)
    assert found.quantile(0.9995) > 150.0


def test_users_are_told_apart_and_a_new_one_may_be_like_either() -> None:
    predictor = MixturePredictor()
    for _ in range(30):
        predictor.observe(ANN, 10.0)
        predictor.observe(BEN, 1e5)
    assert predictor.predict(ANN).likely_s == pytest.approx(10.0, rel=0.2)
    assert predictor.predict(BEN).likely_s == pytest.approx(1e5, rel=0.2)
    newcomer = predictor.predict(RunFeatures(user="new"))
    assert newcomer.cdf(20.0) == pytest.approx(0.5, abs=0.2)
    assert newcomer.cdf(5e4) == pytest.approx(0.5, abs=0.2)


def test_weight_goes_to_the_feature_that_says_most() -> None:
    """Whoever submits, the program decides; the user's own history says nothing."""
    predictor, rng = MixturePredictor(), np.random.default_rng(1)
    for _ in range(600):
        program, user = int(rng.integers(5)), int(rng.integers(5))
        features = RunFeatures(user=f"user-{user}", application=f"program-{program}")
        run_s = 10.0 * 10.0**program * float(np.exp(rng.normal(0.0, 0.2)))
        predictor.observe(features, run_s, predicted=predictor.predict(features))
    found = predictor.predict(RunFeatures(user="user-3", application="program-2"))
    assert found.cdf(2000.0) - found.cdf(500.0) > 0.85


def test_times_over_six_decades_have_wide_limits() -> None:
    predictor, rng = MixturePredictor(), np.random.default_rng(2)
    for each in runs_of("ann", (10.0 ** rng.uniform(0.0, 6.0, 300)).tolist()):
        replayed(predictor, [each])
    low, high = predictor.predict(runs_of("ann", [1.0])[0].features).quantiles([0.05, 0.95])
    assert low < 10.0
    assert high > 1e5


@pytest.mark.parametrize("run_s", [-1.0, math.nan, math.inf, -math.inf])
def test_time_that_cannot_be_is_ignored(run_s: float) -> None:
    for predictor in (MixturePredictor(), PrintedPredictor()):
        predictor.observe(ANN, run_s)
        assert predictor.predict(ANN).quantile(0.95) > 1e6


def test_shortest_and_longest_runs_are_learnt() -> None:
    predictor = MixturePredictor()
    for run_s in (0.0, 5e-324, 1e308):
        predictor.observe(ANN, run_s)
    assert predictor.predict(ANN).quantile(1.0) == pytest.approx(LONGEST_S)


def test_stopped_runs_count_as_at_least() -> None:
    """Half of the runs end after 1,000 s, half are stopped at 10 s: it takes 1,000 s, not 10."""
    stopping, ending = MixturePredictor(), MixturePredictor()
    for _ in range(40):
        for predictor, censored in ((stopping, True), (ending, False)):
            predictor.observe(ANN, 1000.0)
            predictor.observe(ANN, 10.0, censored=censored)
    assert ending.predict(ANN).cdf(100.0) > 0.4
    assert stopping.predict(ANN).cdf(100.0) < 0.05
    assert stopping.predict(ANN).likely_s == pytest.approx(1000.0, rel=0.2)


def test_only_stopped_runs_leave_the_end_open() -> None:
    predictor = MixturePredictor()
    for _ in range(40):
        predictor.observe(ANN, 1000.0, censored=True)
    found = predictor.predict(ANN)
    assert found.cdf(800.0) < 0.05
    assert found.quantile(0.9) > 20_000.0


def test_million_values_take_bounded_room() -> None:
    predictor = MixturePredictor(max_values=300, max_users=20)
    for number in range(500):
        features = RunFeatures(user=f"user-{number}", name="x" * number, size=float(number), requested_s=7.0 * number)
        predictor.observe(features, 10.0 + number)
    assert len(predictor.histories.index.rows) <= 300
    assert len(predictor.histories.codes) <= 301
    assert len(predictor.users.rows) <= 20
    assert len(predictor.user_log_weights) <= 256
    assert predictor.predict(features).cdf(1e5) > 0.9  # what all jobs took is not forgotten


@pytest.mark.parametrize(("judged_when_submitted", "calibrated"), [(True, True), (False, False)])
def test_limits_hold_as_often_as_stated_when_jobs_come_in_sweeps(judged_when_submitted: bool, calibrated: bool) -> None:
    """A seeded fault: judged by what is known when they end, jobs of a sweep seem easy to predict."""
    predictor, rng = MixturePredictor(), np.random.default_rng(3)
    ran, limits = list[float](), list[np.ndarray]()
    for number, sweep in enumerate(sweeps(rng, 160, 8)):
        made = replayed(predictor, sweep, judged_when_submitted=judged_when_submitted)
        if number >= 60:
            ran += [each.run_s for each in sweep]
            limits += [each.quantiles([0.1, 0.5, 0.9]) for each in made]
    covered = (np.array(ran)[:, None] <= np.array(limits)).mean(axis=0)
    assert (np.abs(covered - [0.1, 0.5, 0.9]) < 0.1).all() == calibrated, covered


# ------------------------------------------------------------------------------------------------------------- printed
def test_printed_predictor_takes_the_history_with_the_least_error() -> None:
    predictor = PrintedPredictor()
    for number in range(20):
        for size, run_s in ((1.0, 50.0), (2.0, 500.0)):
            predictor.observe(RunFeatures(user=f"user-{number % 3}", size=size), run_s)
    found = predictor.predict(RunFeatures(user="user-1", size=2.0))
    assert found.likely_s == pytest.approx(500.0)
    assert found.quantiles([0.05, 0.95]).tolist() == [500.0, 500.0]


def test_printed_rolling_estimate_follows_a_change() -> None:
    predictor = PrintedPredictor()
    for each in runs_of("ann", [10.0] * 30 + [1000.0] * 30):
        replayed(predictor, [each])
    assert predictor.predict(runs_of("ann", [1.0])[0].features).likely_s == pytest.approx(1000.0, rel=0.01)


def test_printed_predictor_judges_what_it_said_at_submission() -> None:
    sweep = runs_of("ann", [10.0, 100.0])
    early, late = PrintedPredictor(), PrintedPredictor()
    for predictor, submitted in ((early, True), (late, False)):
        replayed(predictor, [*runs_of("ann", [1.0]), *sweep], judged_when_submitted=submitted)
    key = next(iter(early.histories))
    assert early.histories[key].judged_s == 0.0  # nothing had been predicted when they were submitted
    assert late.histories[key].judged_s == 110.0


def test_printed_histories_are_bounded() -> None:
    predictor = PrintedPredictor(max_values=40)
    for number in range(200):
        predictor.observe(RunFeatures(name=f"job-{number}"), 10.0)
    assert len(predictor.histories) == 40


def test_stream_histogram_merges_the_nearest_bins() -> None:
    histogram = StreamHistogram()
    for value in [*range(0, 1000, 10), 500.5]:
        histogram.add(float(value + 1))
    assert len(histogram.centres) == BINS
    assert sum(histogram.counts) == 101.0
    mean = sum(x * n for x, n in zip(histogram.centres, histogram.counts, strict=True)) / 101.0
    assert mean == pytest.approx((sum(range(0, 1000, 10)) + 500.5) / 101.0 + 1.0)


# --------------------------------------------------------------------------------------------------------------- state
def taught() -> MixturePredictor:
    predictor, rng = MixturePredictor(), np.random.default_rng(4)
    for sweep in sweeps(rng, 6, 5):
        replayed(predictor, sweep)
    return predictor


def test_state_that_is_read_again_goes_on_in_the_same_way() -> None:
    first = taught()
    second = load(dump(first))
    for sweep in sweeps(np.random.default_rng(5), 6, 5):
        one, other = replayed(first, sweep), replayed(second, sweep)
        assert [each.cumulative.tolist() for each in one] == [each.cumulative.tolist() for each in other]
    assert dump(first) == dump(second)


def test_empty_state_is_a_state() -> None:
    assert load(dump(MixturePredictor())).predict(ANN).quantile(0.95) > 1e6


def test_limits_of_the_predictor_are_part_of_its_state() -> None:
    small = load(dump(MixturePredictor(max_values=50, max_users=3)))
    assert (small.histories.limit, small.users.limit) == (50, 3)


@pytest.mark.parametrize(
    "damaged",
    [
        lambda state: b"",
        lambda state: state[: len(FORMAT)],
        lambda state: state[:-5],
        lambda state: state[:50] + b"\0" + state[51:],
        lambda state: state.replace(b"version 1", b"version 2"),
    ],
    ids=["empty", "no content", "cut", "one byte", "other version"],
)
def test_damaged_state_is_refused(damaged: object) -> None:
    assert callable(damaged)
    with pytest.raises(BadInput, match="the state of run times"):
        load(damaged(dump(taught())))


def test_what_was_learnt_stays_when_a_combination_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    before = taught()
    names = ["gone", *("+".join(each) for each in COMBINATIONS[1:])]
    monkeypatch.setattr("hcloud.forecast.runtimes.state._NAMES", names)
    state = dump(before)
    monkeypatch.undo()
    after, fresh = load(state), MixturePredictor()
    learnt, known, first = (each.log_weights.reshape(len(COMBINATIONS), -1).tolist() for each in (before, after, fresh))
    assert known == [first[0], *learnt[1:]]
    assert learnt[0] != first[0]


def test_bins_are_in_order() -> None:
    assert [bin_of(each) for each in (0.0, 0.1, 1e99)] == [0, 0, 175]
    assert sorted(map(bin_of, (3.0, 1.0, 2.0))) == [bin_of(1.0), bin_of(2.0), bin_of(3.0)]
