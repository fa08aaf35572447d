"""`hcloud plan reservations` on loads and prices given as files."""

import csv
import io
import json
from pathlib import Path

import pytest

from hcloud.catalog.files import CatalogFiles
from hcloud.catalog.prices import Key, PriceCatalogue, PricePlan, Quote
from hcloud.cli.reservations import NO_PRICE, PriceRegion, advise_all, read_plan_prices
from hcloud.core.clock import SystemClock
from hcloud.core.errors import BadInput
from tests.cli.conftest import Shell

TERMS = "option,term_months,upfront_usd,usd_per_h\n1y none,12,0,0.06\n3y all,36,788.4,0\n"


@pytest.fixture
def files(lonely: Shell) -> Shell:
    """Two days of four machines with a peak, and two commitment options."""
    lines = "".join(f"{hour * 3600},{10 if hour == 7 else 4}\n" for hour in range(48))
    (lonely.directory / "load.csv").write_text("at,load\n" + lines)
    (lonely.directory / "terms.csv").write_text(TERMS)
    return lonely


def test_options_are_compared_cheapest_first(files: Shell) -> None:
    given = ("plan", "reservations", "--load", "load.csv", "--terms", "terms.csv", "--on-demand", "0.1")
    found = json.loads(files.run(*given, "-o", "json")[0])
    assert [(each["option"], each["count"]) for each in found["advice"]] == [("3y all", 4), ("1y none", 4)]
    assert found["advice"][1]["break_even_use"] == pytest.approx(0.6)
    assert any("too little to commit" in note for note in found["notes"])
    rows = list(csv.DictReader(io.StringIO(files.run(*given, "-o", "csv")[0])))
    assert [row["option"] for row in rows] == ["3y all", "1y none"]
    assert "sr: 12; hf, hm: 4" in files.run(*given)[0]


def test_on_demand_price_is_taken_from_the_catalogue(files: Shell) -> None:
    out, _ = files.run(
        "plan", "reservations", "--load", "load.csv", "--terms", "terms.csv", "--type", "ec2/us-east-1/m5.large"
    )
    assert "each" in out
    assert "prices used here is" in " ".join(out.split())
    assert "warning: over 30 days; update with `hcloud catalog refresh`" in " ".join(out.split())


def test_refreshed_prices_take_precedence(files: Shell) -> None:
    (files.directory / "hcloud.yaml").write_text("owner: hcloud-a\nstate_dir: state\n")
    m5, read_at = ("ec2", "us-east-1", "m5.large"), SystemClock().now()
    prices = {PricePlan.ON_DEMAND: 0.2, PricePlan.COMMIT_1Y: 0.05}
    quotes = {Key(*m5, plan): Quote(usd, read_at, "read") for plan, usd in prices.items()}
    catalogue = CatalogFiles(files.directory / "state" / "catalog")
    with catalogue.locked():
        catalogue.store(PriceCatalogue(quotes=quotes))
    given = ("plan", "reservations", "--load", "load.csv", "--type", "/".join(m5), "-o", "json")
    found = json.loads(files.run("--config", "hcloud.yaml", *given)[0])
    assert found["on_demand_usd_per_h"] == 0.2
    assert [(each["option"], each["count"]) for each in found["advice"]] == [("1 year, no upfront", 4)]
    assert found["advice"][0]["usd_per_h"] < 4 * 0.06
    (age,) = [note for note in found["notes"] if "prices used here is" in note]
    assert "warning" not in age


@pytest.mark.parametrize(("cloud", "count", "saving"), [("ec2/us-east-1", 1, 0.4), ("gce/us-central1", 0, 0.0)])
def test_use_is_counted_as_the_cloud_bills_it(lonely: Shell, cloud: str, count: int, saving: float) -> None:
    """Four machines for the first 15 minutes of each hour are one Reserved Instance, but no committed use at Google."""
    lines = "".join(f"{hour * 3600},4\n{hour * 3600 + 900},0\n" for hour in range(24))
    (lonely.directory / "load.csv").write_text("at,load\n" + lines)
    (lonely.directory / "terms.csv").write_text(TERMS.splitlines()[0] + "\n1y none,12,0,0.06\n")
    given = ("--load", "load.csv", "--terms", "terms.csv", "--on-demand", "0.1", "--type", f"{cloud}/a")
    found = json.loads(lonely.run("plan", "reservations", *given, "-o", "json")[0])
    (advice,) = found["advice"]
    assert (advice["count"], advice["saving"]) == (count, pytest.approx(saving))
    assert any("clock hour" in note for note in found["notes"]) is (cloud == "ec2/us-east-1")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("at,level\n0,1\n", "bad.csv:1: column load is missing"),
        ("", "bad.csv:1: the file is empty; it must start with the header at,load"),
        ("at,load,load\n0,1,2\n5,1,2\n", "bad.csv:1: column load occurs twice; each column must occur once"),
        ("at,load\n0,1\n5,1\n5.0,2\n", "bad.csv:4: at '5.0' is a duplicate; each time must occur once"),
        ("at,load\n0,1\nnoon,2\n", "bad.csv:3: at is 'noon'"),
        ("at,load\n0,1\n5,many\n", "bad.csv:3: load is 'many'"),
        ("at,load\n0,1\n5,1_0\n", "bad.csv:3: load is '1_0'; it must be a number"),
        ("at,load\n0,1\n5\n", "bad.csv:3: load is nothing; it must be a number"),
        ('at,load\n0,1\n5,"' + 200_000 * "1" + "\n", "bad.csv:3: field larger than field limit"),
        ("at,load\n0,1\n", "at least two times"),
        ("at,load\n0,1\n1.7e12,2\n", "bad.csv:3: at is 1.7e+12, after the year 2200; it must be in seconds"),
        ("at,load\n0,1\n5,1e300\n", "bad.csv:3: load is 1e+300; it must be from 0 to 100000"),
        ("at,load\n0,-1\n5,1\n", "bad.csv:2: load is -1; it must be from 0 to 100000"),
        (
            "at,load\n0,1\n1.7e9,1\n",
            "bad.csv: the last time is 19676 days after the first; at most 3650 are allowed",
        ),
        ("at,load\n0,1,3\n5,1\n", "bad.csv:2: has 1 more value than columns; the first is '3'"),
    ],
)
def test_invalid_load_is_refused_with_file_and_line(files: Shell, content: str, says: str) -> None:
    (files.directory / "bad.csv").write_text(content)
    _, err = files.run(
        "plan", "reservations", "--load", "bad.csv", "--terms", "terms.csv", "--on-demand", "1", exit_code=2
    )
    assert says in err


@pytest.mark.parametrize("wrong", ["a,nan,0,0.1", "a,12,inf,0.1", "a,12,0,nan", "a,1_2,0,0.1"])
def test_terms_must_be_numbers(files: Shell, wrong: str) -> None:
    (files.directory / "bad.csv").write_text("option,term_months,upfront_usd,usd_per_h\n" + wrong + "\n")
    _, err = files.run(
        "plan", "reservations", "--load", "load.csv", "--terms", "bad.csv", "--on-demand", "1", exit_code=2
    )
    assert err.startswith("hcloud: bad.csv:2: ")
    assert err.endswith("it must be a number\n")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("a,1e300,0,0.1", "term_months is 1e+300; it must be at most 1200"),
        ("a,12,1e300,0.1", "upfront_usd is 1e+300; it must be at most 1000000000"),
        (" ,12,0,0.1", "option is empty; it must be a unique name"),
        ("a,12,0,0.1,7", "has 1 more value than columns; the first is '7'"),
    ],
)
def test_implausible_terms_are_refused(files: Shell, wrong: str, says: str) -> None:
    (files.directory / "bad.csv").write_text("option,term_months,upfront_usd,usd_per_h\n" + wrong + "\n")
    _, err = files.run(
        "plan", "reservations", "--load", "load.csv", "--terms", "bad.csv", "--on-demand", "1", exit_code=2
    )
    assert err == f"hcloud: bad.csv:2: {says}\n"


def test_duplicate_option_is_refused_with_its_line(files: Shell) -> None:
    (files.directory / "bad.csv").write_text(TERMS + " 1y none ,12,0,0.05\n")
    given = ("plan", "reservations", "--load", "load.csv", "--terms", "bad.csv", "--on-demand", "1")
    _, err = files.run(*given, exit_code=2)
    assert err == "hcloud: bad.csv:4: option '1y none' is a duplicate; it must be a unique name\n"


def test_load_that_is_not_text_is_refused_in_one_sentence(files: Shell) -> None:
    (files.directory / "load.csv").write_bytes(b"at,load\n0,\xff\n")
    _, err = files.run("plan", "reservations", "--load", "load.csv", "--on-demand", "1", exit_code=2)
    assert err == "hcloud: load.csv: is not UTF-8 text (byte 0xff)\n"


def test_missing_prices_are_refused_with_the_option_to_give(files: Shell) -> None:
    _, err = files.run("plan", "reservations", "--load", "load.csv", exit_code=2)
    assert err == "hcloud: give the machine type with --type CLOUD/REGION/TYPE, or its price with --on-demand\n"
    _, err = files.run("plan", "reservations", "--load", "load.csv", "--type", "x/y/z", exit_code=2)
    assert "give --on-demand" in err
    _, err = files.run("plan", "reservations", "--load", "load.csv", "--type", "x/y", exit_code=2)
    assert "CLOUD/REGION/TYPE" in err


# ------------------------------------------------------------------------------------------------- all types at once
DAY_S = 86_400.0
M5, C5, GPU = (
    PriceRegion("ec2", "us-east-1", "m5.large"),
    PriceRegion("ec2", "us-east-1", "c5.large"),
    PriceRegion("ec2", "x", "gpu"),
)


def prices() -> PriceCatalogue:
    """Return a catalogue of m5 (all plans) and c5 (on demand only), and no price of the GPU type."""
    plans = {PricePlan.ON_DEMAND: 0.1, PricePlan.COMMIT_1Y: 0.06, PricePlan.COMMIT_3Y: 0.08}
    quotes = {Key(*M5, plan): Quote(price, 0.0, "read") for plan, price in plans.items()}
    return PriceCatalogue(quotes=quotes | {Key(*C5, PricePlan.ON_DEMAND): Quote(0.1, 0.0, "read")})


def steady(count: int) -> list[tuple[float, int]]:
    return [(float(at), 1) for at in range(count)]


def test_every_type_gets_its_best_option_in_weeks_or_no_price() -> None:
    found = advise_all({M5: steady(4), C5: steady(2), GPU: steady(1)}, prices(), {}, 40 * DAY_S)
    rows = {row.what: row for row in found.rows}
    best = rows["ec2/us-east-1/m5.large"].advice
    assert found.rows[0].advice is best is not None
    assert (best.terms.name, best.count) == ("reserved, 1 year, no upfront", 4)
    assert best.break_even_weeks == pytest.approx(0.6 * 8760 / 168, rel=1e-3)  # of the 52 weeks of the term
    assert {what for what, row in rows.items() if row.advice is None} == {
        "ec2/us-east-1/c5.large", "ec2/x/gpu", "ec2 (all types)"
    }  # fmt: skip
    assert NO_PRICE in rows["ec2/x/gpu"].values()


def test_a_savings_plan_commits_to_what_all_types_together_use_nearly_always() -> None:
    half = [*steady(2), (20 * DAY_S, 1), (40 * DAY_S, -1)]
    plans = {(M5, 12.0): 0.07, (C5, 12.0): 0.05}
    found = advise_all({M5: half, C5: steady(4)}, prices(), plans, 80 * DAY_S)
    best = next(row for row in found.rows if row.what == "ec2 (all types)")
    assert best.advice is not None
    assert best.advice.count * best.unit_usd_per_h == pytest.approx(2 * 0.07 + 4 * 0.05, abs=0.011)
    assert 0.3 < best.advice.saving < 0.45


def test_a_commitment_that_is_not_earned_back_in_its_term_has_no_weeks() -> None:
    [row, _] = advise_all({C5: [(0.0, 1), (DAY_S, -1)]}, prices(), {}, 40 * DAY_S).rows
    assert row.advice is None
    [row, _] = advise_all({M5: [(0.0, 1), (DAY_S, -1)]}, prices(), {}, 40 * DAY_S).rows
    assert row.advice is not None
    assert (row.advice.count, row.advice.break_even_weeks) == (0, None)


def test_savings_plan_prices_are_refused_with_their_line(lonely: Shell) -> None:
    (lonely.directory / "plans.csv").write_text("cloud,region,type,term_months,usd_per_h\nec2,r,m5,12,cheap\n")
    given = ("--savings-plans", "plans.csv", "--type", "ec2/us-east-1/m5.large")
    _, err = lonely.run("plan", "reservations", *given, exit_code=2)
    assert "--savings-plans is for the advice on all types" in err
    with pytest.raises(BadInput, match=r"plans.csv:2: usd_per_h is 'cheap'; it must be a number above 0"):
        read_plan_prices([(2, {"term_months": "12", "usd_per_h": "cheap"})], Path("plans.csv"))
