"""Simulated spot markets follow recorded prices, scores and availability; what they charge is what is paid."""

import csv
import gzip
import itertools
import json
import math
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.measured import DATA
from hcloud.core.errors import BadInput
from hcloud.core.model import BatchTarget, Event, EventKind, JobSpec, Resources
from hcloud.simulator.bound import lower_bound
from hcloud.simulator.optimality import lowest_offers
from hcloud.simulator.outcome import outcome_of
from hcloud.simulator.run import START_AT, Setting, simulated
from hcloud.simulator.spot_history import (
    SpotHistory,
    read_spot_history,
    sold_as_spot,
    unsold_note,
    with_recorded_spot,
    with_spot_history,
)
from hcloud.simulator.workload import Arrival, workload_of
from hcloud.spend_ledger import SpendLedger
from providers.mock.spot_history import Steps
from providers.mock.spot_shortages import SpotShortages
from tests.machine import needs
from tests.policies import parse_simple

CLOUD: Mapping[str, object] = {
    "types": {"m.one": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 1.0}},
    "zones": ["east-1a"],
    "markets": ["on_demand", "spot"],
    "boot": {"p50_s": 10, "p95_s": 10},
    "spot": {"notice_s": 30},
}
MEASURED_TRACE = "preemption-1n-aws-20230422-us-east-1f-v100x1"
HEADER = "time,type,zone,price_usd_per_h,score,available\n"


def history(folder: Path, text: str, name: str = "spot.csv") -> SpotHistory:
    path = folder / name
    path.write_text(text)
    return read_spot_history(path)


def setting(folder: Path, rows: str, *jobs: tuple[float, float], start_at: float | None = None) -> Setting:
    spec = JobSpec(
        name="job", user="ada", command=("simulated",), target=BatchTarget(), resources=Resources(vcpus=2.0),
        profiling="never",
    )  # fmt: skip
    work = workload_of("jobs", [Arrival(at_s=at_s, run_s=run_s, spec=spec) for at_s, run_s in jobs])
    tried = parse_simple({"name": "tried", "retention": {"spin_up_multiple": 1, "maximum_s": 10}})
    plain = Setting(workload=work, policy=tried, cloud=CLOUD)
    return with_spot_history(plain, history(folder, HEADER + rows), sold_as_spot(plain), start_at)


def run(setting: Setting, folder: Path) -> tuple[list[Event], float]:
    """Return the events of a simulation, and what its cloud billed for all machines."""
    with simulated(setting, folder) as simulation:
        simulation.run()
        (cloud,) = simulation.controller.offers.providers.values()
        return list(simulation.events()), cloud.billed_usd(simulation.clock.now())  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------------- charging
def test_a_machine_costs_the_integral_of_the_recorded_price_over_its_life(tmp_path: Path) -> None:
    prices = [(at, 0.2 + 0.01 * (at * 7 % 13)) for at in range(0, 3600, 37)]
    made, billed_usd = run(
        setting(tmp_path, "".join(f"{at},m.one,east-1a,{usd},,\n" for at, usd in prices), (5, 1800)), tmp_path
    )
    (launched,) = (each for each in made if each.kind is EventKind.INSTANCE_LAUNCHED)
    (ended,) = (each for each in made if each.kind is EventKind.INSTANCE_TERMINATED)
    from_s, to_s = (
        float(str(each.fields[name])) - START_AT for each, name in ((launched, "launched_at"), (ended, "terminated_at"))
    )
    seconds = [
        max(0.0, min(until, to_s) - max(at, from_s))
        for (at, _), (until, _) in zip(prices, [*prices[1:], (9e9, 0)], strict=True)
    ]
    usd = math.fsum(price * held / 3600 for (_, price), held in zip(prices, seconds, strict=True))
    assert to_s - from_s > 1800 and usd > 0.1
    ledger = SpendLedger()
    ledger.follow(made)
    assert billed_usd == pytest.approx(usd, rel=1e-12)
    assert outcome_of("tried", lambda: made).cost_usd == pytest.approx(usd, rel=1e-12)
    assert ledger.total_usd(START_AT + to_s) == pytest.approx(usd, rel=1e-12)


def test_a_machine_costs_what_it_did_at_its_end_for_the_rest_of_the_billing_minimum(tmp_path: Path) -> None:
    rows = "".join(f"{at},m.one,east-1a,{usd},,\n" for at, usd in ((0, 0.2), (60, 0.8)))
    short = setting(tmp_path, rows, (5, 1))
    clouds = {name: {**each, "billing_minimum_s": 600} for name, each in short.clouds.items()}
    made, billed_usd = run(Setting(workload=short.workload, policy=short.policy, clouds=clouds), tmp_path)
    assert outcome_of("tried", lambda: made).cost_usd == pytest.approx(billed_usd, rel=1e-12)
    assert billed_usd == pytest.approx(0.2 * 600 / 3600, rel=1e-12)


def test_a_price_rise_changes_what_the_planner_buys(tmp_path: Path) -> None:
    rows = "0,m.one,east-1a,0.3,,\n3600,m.one,east-1a,2.5,,\n7200,m.one,east-1a,0.3,,\n"
    made, _ = run(setting(tmp_path, rows, (60, 60), (3660, 60), (7260, 60)), tmp_path)
    bought = [str(each.fields["market"]) for each in made if each.kind is EventKind.INSTANCE_REQUESTED]
    assert bought == ["spot", "on_demand", "spot"]


def test_the_simulation_starts_at_the_first_row_or_at_the_moment_asked_for(tmp_path: Path) -> None:
    rows = "1000000,m.one,east-1a,0.3,,\n1003600,m.one,east-1a,2.5,,\n"
    for start_at, wanted in ((None, "spot"), (1003000.0, "spot"), (1003600.0, "on_demand")):
        made, _ = run(setting(tmp_path, rows, (0, 60), start_at=start_at), tmp_path)
        bought = [str(each.fields["market"]) for each in made if each.kind is EventKind.INSTANCE_REQUESTED]
        assert bought == [wanted], start_at
    with pytest.raises(BadInput, match=r"spot.csv: ends before the start that was asked for"):
        setting(tmp_path, rows, (0, 60), start_at=1003601.0)


def test_the_lower_bound_counts_the_lowest_recorded_price(tmp_path: Path) -> None:
    rows = "0,m.one,east-1a,0.5,,\n100,m.one,east-1a,0.001,,\n107,m.one,east-1a,0.5,,\n"
    tried = setting(tmp_path, rows, (0, 1000))
    offers = lowest_offers(tried, tmp_path, 1000.0)
    assert min(each.price_usd_per_h for each in offers) == 0.001
    assert lower_bound(tried.workload, offers).usd == pytest.approx(0.001 * 1000 / 3600)


# --------------------------------------------------------------------------------------------------------- availability
def test_what_is_unavailable_is_not_launched_and_what_runs_is_preempted_when_it_becomes_so(tmp_path: Path) -> None:
    rows = "0,m.one,east-1a,0.3,,no\n600,m.one,east-1a,,,yes\n1800,m.one,east-1a,,,0\n"
    made, _ = run(setting(tmp_path, rows, (0, 60), (900, 3600)), tmp_path)
    markets = {each.instance_id: each.fields["market"] for each in made if each.kind is EventKind.INSTANCE_REQUESTED}
    launched = {each.instance_id: each.at - START_AT for each in made if each.kind is EventKind.INSTANCE_LAUNCHED}
    assert [at_s // 300 for each, at_s in launched.items() if markets[each] == "spot"] == [3]  # the second job's
    assert [each for each in markets if markets[each] == "spot" and each not in launched]  # tried before 600 s
    notices = [each.fields["preempt_at"] for each in made if each.kind is EventKind.INSTANCE_NOTICE]
    assert notices == [START_AT + 1800]


@pytest.mark.parametrize(
    ("text", "up"), [("yes", 1.0), ("NO", 0.0), ("true", 1.0), ("0", 0.0), ("1", 1.0), ("16", 1.0)]
)
def test_availability_is_yes_or_no_or_a_number_of_machines(tmp_path: Path, text: str, up: float) -> None:
    made = history(tmp_path, f"time,type,zone,available\n0,t,z,{text}\n")
    assert made.steps["available"] == {("z", "t"): ((0.0, up),)}
    with pytest.raises(BadInput, match=r"column available: line 2: 'some' must be one of true, .*; line 3: -1 must be"):
        history(tmp_path, "time,type,zone,available\n0,t,z,some\n1,t,z,-1\n")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("score", [1, 5, 9])
def test_a_score_is_the_share_of_time_in_tenths_without_a_shortage(score: int, seed: int) -> None:
    scored = SpotShortages(seed, 0.27, 0.35, scores={"z/t": [(0.0, float(score))]})
    times = [307.0 * n for n in range(4000)]
    plenty = sum(not scored.is_short("z", "t", at) for at in times) / len(times)
    assert plenty == pytest.approx(score / 10, abs=0.08)


def test_a_score_of_ten_is_never_short_and_rates_change_with_the_score() -> None:
    best = SpotShortages(1, 5.0, 1.0, scores={"z/t": [(0.0, 10.0)]})
    assert best.next_at("z", "t", 0.0) == math.inf
    falling = SpotShortages(1, 5.0, 0.35, scores={"z/t": [(0.0, 10.0), (50_000.0, 2.0)]})
    assert not any(falling.is_short("z", "t", 100.0 * n) for n in range(500))
    assert 50_000.0 <= falling.next_at("z", "t", 0.0) < 60_000.0


@given(
    st.lists(st.tuples(st.integers(0, 500), st.floats(0.01, 9.0)), min_size=1, unique_by=lambda each: each[0]),
    st.integers(0, 600),
    st.integers(0, 600),
)
def test_the_integral_of_a_recorded_price_is_its_sum_over_seconds(
    points: list[tuple[int, float]], one: int, other: int
) -> None:
    steps = Steps([(float(at), value) for at, value in sorted(points)])
    from_at, to_at = sorted((one, other))
    by_second = math.fsum(steps.value(float(at)) for at in range(from_at, to_at))
    assert steps.integral(float(from_at), float(to_at)) == pytest.approx(by_second, rel=1e-12)


# -------------------------------------------------------------------------------------------------------------- reading
ROW = st.tuples(
    st.integers(0, 10**6), st.sampled_from(["a1", "b2"]), st.sampled_from(["x-1a", "x-1b"]), st.integers(1, 99)
)


@given(st.lists(ROW, min_size=1, max_size=30), st.randoms())
def test_the_order_of_rows_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str, str, int]], chance: random.Random
) -> None:
    folder, lines = tmp_path_factory.getbasetemp(), [f"{at},{kind},{zone},{usd}\n" for at, kind, zone, usd in rows]
    made = history(folder, "time,type,zone,price_usd_per_h\n" + "".join(lines))
    chance.shuffle(lines)
    again = history(folder, "time,type,zone,price_usd_per_h\n" + "".join(lines))
    assert made == again
    highest = max(usd for at, kind, zone, usd in rows if (at, kind, zone) == rows[0][:3])
    at, kind, zone, _ = rows[0]
    assert Steps(made.steps["prices"][zone, kind]).value(float(at)) == highest


def test_prices_are_read_as_aws_returns_them(tmp_path: Path) -> None:
    entries = [
        {"AvailabilityZone": "us-east-1a", "InstanceType": "m5.large", "ProductDescription": product,
         "SpotPrice": usd, "Timestamp": at}
        for product, usd, at in (
            ("Linux/UNIX", "0.041000", "2026-05-01T06:00:00+00:00"),
            ("Windows", "0.900000", "2026-05-01T05:00:00+00:00"),
            ("Linux/UNIX", "0.035000", "2026-05-01T00:00:00.000Z"),
        )
    ]  # fmt: skip
    made = history(
        tmp_path,
        json.dumps(
            {
                "SpotPriceHistory": entries,
            }
        ),
        "spot.json",
    )
    at = 1_777_593_600.0
    assert made.steps["prices"] == {("us-east-1a", "m5.large"): ((at, 0.035), (at + 6 * 3600, 0.041))}
    assert made.notes == ("1 row of other products than Linux/UNIX left out",)
    text = "".join(
        f"{e['Timestamp']},m5.large,us-east-1a,{e['SpotPrice']},{e['ProductDescription']}\n" for e in entries
    )
    names = "Timestamp,InstanceType,AvailabilityZone,SpotPrice,ProductDescription\n"
    assert history(tmp_path, names + text).steps == made.steps


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "spot.csv",
            "time,typ,zone,price_usd_per_h,score\nsoon,t,z,0,11\n0,t,z,-1,0\n",
            "column type (or InstanceType): missing; column typ: unknown, did you mean 'type'?; "
            "column time: line 2: 'soon' is not a time such as 2026-05-01T18:00:00Z; "
            "column price_usd_per_h: line 2: 0 must be from 1e-09 to 1000000; line 3: -1 must be "
            "from 1e-09 to 1000000; "
            "column score: line 2: 11 must be from 1 to 10; line 3: 0 must be from 1 to 10",
        ),
        ("spot.csv", "time,type,zone\n0,t,z\n", "line 2: has none of price_usd_per_h, score, available"),
        ("spot.csv", "time,type,zone,price_usd_per_h\n", "spot.csv: has no row of Linux machines"),
        ("spot.json", '{"SpotPriceHistory": 3}', "must be a list, or an object whose SpotPriceHistory is one"),
        ("spot.json", "[" * 100_000, "spot.json: is nested too deeply"),
        ("spot.json", '[{"Timestamp": NaN}]', "is not valid JSON (NaN is not a number of JSON)"),
        ("spot.json", "[1" + "0" * 5000 + "]", "is not valid JSON (Exceeds the limit"),
        (
            "spot.json",
            '[3, {"SpotPrice": [], "InstanceType": "t", "zone": "z", "x": 1}]',
            "entry 1: 3 is not an object; key x: entry 2: unknown, known here: ",
        ),
    ],
)
def test_a_wrong_history_is_told_by_all_its_wrong_columns(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(BadInput) as error:
        history(tmp_path, text, name)
    assert words in str(error.value) and str(error.value).isprintable()


def test_what_the_cloud_does_not_sell_is_named_once_or_refused_if_it_is_all(tmp_path: Path) -> None:
    plain = setting(tmp_path, "0,m.one,east-1a,0.3,,\n", (0, 60))
    sold = sold_as_spot(plain)
    mixed = history(tmp_path, HEADER + "0,m.one,east-1a,0.3,,\n0,m.two,east-1a,0.3,,\n9,m.two,east-1a,0.4,,\n")
    assert unsold_note(mixed, sold).endswith("not sold as spot on this cloud, so left out: m.two in east-1a")
    with pytest.raises(
        BadInput, match=r"sells none of its types and zones as spot; it sells m.one in east-1a; --cloud"
    ):
        with_spot_history(plain, history(tmp_path, HEADER + "0,m.two,east-1a,0.3,,\n"), sold)


def test_a_region_without_known_spot_prices_sells_what_has_recorded_ones(tmp_path: Path) -> None:
    region = {
        "types": {
            name: {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 1.0, "markets": ["on_demand"]} for name in ("a", "b")
        },
        "zones": ["east-1a"],
        "markets": ["on_demand"],
    }
    recorded = history(tmp_path, HEADER + "0,a,east-1b,0.2,,\n0,a,east-1c,0.4,,\n0,b,west-1a,0.3,,\n")
    made = with_recorded_spot(region, "east-1", recorded)
    assert made["zones"] == ["east-1b", "east-1c"]
    work = setting(tmp_path, "0,m.one,east-1a,0.3,,\n", (0, 60))
    sold = sold_as_spot(Setting(workload=work.workload, policy=work.policy, cloud=made))
    assert sold == {"mock": frozenset({("east-1b", "a"), ("east-1c", "a")})}


@needs((DATA / "spot").is_dir(), f"the measured spot traces are not at {DATA}")
def test_measured_availability_is_that_of_the_simulated_market(tmp_path: Path) -> None:
    with (DATA / "spot" / "traces.csv").open() as lines:
        (trace,) = (each for each in csv.DictReader(lines) if each["trace"] == MEASURED_TRACE)
    with gzip.open(DATA / "spot" / "traces_rle.csv.gz", "rt") as lines:
        runs = [each for each in csv.DictReader(lines) if each["trace"] == MEASURED_TRACE]
    gap_s, ticks = int(trace["gap_s"]), int(trace["ticks"])
    rows = "".join(f"{int(each['start_tick']) * gap_s},v100,{trace['zone']},,,{each['value']}\n" for each in runs)
    made = history(tmp_path, HEADER + rows)
    market = SpotShortages(0, 0.27, 0.35, available={"z/t": made.steps["available"][trace["zone"], "v100"]})
    up = [not market.is_short("z", "t", float(tick * gap_s)) for tick in range(ticks)]
    assert sum(up) / ticks == pytest.approx(float(trace["full_fraction"]), abs=5e-4)
    assert sum(one != other for one, other in itertools.pairwise(up)) == int(trace["changes"])
