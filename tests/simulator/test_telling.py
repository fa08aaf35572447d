"""What is told of simulations, in a table and in pictures, from outcomes whose every number is another one."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from hcloud.simulator.outcome import FailedBy, Outcome, Series, WaitedFor, comparison
from hcloud.simulator.performance import JobPerformance
from hcloud.simulator.picture import PLOT_HEIGHT, PLOT_LEFT, PLOT_WIDTH, allocation_svg, cost_svg, waits_svg

SEEN = Outcome(
    name="seen",
    span_s=7200.0,
    jobs=11,
    succeeded=9,
    metered_usd=3.0,
    committed_usd=1.0,
    target_met_pct=81.0,
    batch_met_pct=82.0,
    service_met_pct=83.0,
    wait_s=(0.0, 10.0, 100.0),
    launches=8,
    used_once=2,
    up_vcpu_h=40.0,
    held_vcpu_h=30.0,
    committed_vcpu_h=20.0,
    committed_held_vcpu_h=5.0,
    series=Series(
        at_s=(0.0, 3600.0, 7200.0),
        up_vcpus={"reserved": (2.0, 2.0, 2.0), "spot": (0.0, 6.0, 0.0)},
        held_vcpus=(0.0, 4.0, 2.0),
    ),
    performance=tuple(
        JobPerformance(job_id=f"job-{at}", kind="batch", running=running, turnaround=0.5, kept=at == 0)
        for at, running in enumerate((0.5, 0.7, 0.9, 1.1))
    ),
    waited_for=(
        WaitedFor(code="launched_for_jobs", text="a machine", job_s=5400.0),
        WaitedFor(code="cap_instances", text="no more than 4", job_s=1440.0),
        WaitedFor(code="budget", text="no money", job_s=360.0),
    ),
)
DEAR = replace(SEEN, name="<dear>", metered_usd=7.0, target_met_pct=None, span_s=3600.0, waited_for=())


def test_every_column_of_a_comparison_says_what_it_is_called() -> None:
    table = comparison([SEEN, DEAR])
    first, second = (dict(zip((each.name for each in table.columns), row, strict=True)) for row in table.rows)
    assert first == pytest.approx(
        {
            "policy": "seen", "cost_usd": 4.0, "cost_pct": 100.0, "metered_usd": 3.0, "committed_usd": 1.0,
            "target_met_pct": 81.0, "batch_met_pct": 82.0, "service_met_pct": 83.0, "qos_kept_pct": 25.0,
            "performance_pct": 80.0, "performance_p5_pct": 53.0, "performance_p95_pct": 107.0, "wait_p50_s": 10.0,
            "wait_p95_s": 91.0, "used_pct": 75.0, "reserved_used_pct": 25.0, "launches": 8, "used_once_pct": 25.0,
            "succeeded": 9, "jobs": 11,
        }
    )  # fmt: skip
    assert (second["cost_pct"], second["target_met_pct"]) == (200.0, None)


def test_what_jobs_waited_for_is_told_with_its_share_the_two_longest_first() -> None:
    (told,) = [note for note in comparison([SEEN, DEAR]).notes if "waited" in note]
    assert told == (
        "seen: jobs waited 2.00 h in all, for 75% launched_for_jobs (a machine); 20% cap_instances (no more than 4)"
    )
    rare = replace(SEEN, waited_for=(SEEN.waited_for[0], replace(SEEN.waited_for[1], job_s=500.0)))
    assert "cap_instances" not in " ".join(comparison([rare]).notes)


def test_why_jobs_failed_is_told_with_the_words_of_one() -> None:
    failed = replace(SEEN, failed_by=(FailedBy(code="impossible", text="no offer fits 64 vCPU", jobs=2),))
    (told,) = [note for note in comparison([failed, DEAR]).notes if "failed" in note]
    assert told == "seen: 2 of 11 jobs failed: 2 impossible (no offer fits 64 vCPU)"


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("text")]


def points(svg: str, tag: str) -> list[list[tuple[float, float]]]:
    found = re.findall(rf'<{tag} points="([^"]+)"', svg)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in each.split())] for each in found]


def test_bars_are_as_long_as_costs_and_say_them() -> None:
    drawn = cost_svg([SEEN, DEAR])
    bars = [tuple(map(float, each)) for each in re.findall(r'<rect x="([\d.]+)" y="(\d+)" width="([\d.]+)"', drawn)]
    assert bars == [(220.0, 34.0, 50.0), (270.0, 34.0, 150.0), (220.0, 64.0, 50.0), (270.0, 64.0, 350.0)]
    assert texts(drawn)[1:] == ["seen", "$4.00, 81.0 %", "<dear>", "$8.00, -"]


def test_areas_stand_on_each_other_and_all_outcomes_on_one_scale() -> None:
    drawn = allocation_svg([SEEN, DEAR])
    reserved, spot, *_ = points(drawn, "polygon")
    left, middle, right = PLOT_LEFT, PLOT_LEFT + PLOT_WIDTH / 2, PLOT_LEFT + PLOT_WIDTH
    bottom = max(y for _, y in reserved)
    two = bottom - PLOT_HEIGHT * 2 / 8
    assert reserved == [(left, two), (middle, two), (right, two), (right, bottom), (middle, bottom), (left, bottom)]
    assert spot == [
        (left, two), (middle, bottom - PLOT_HEIGHT), (right, two), (right, two), (middle, two), (left, two),
    ]  # fmt: skip
    held = points(drawn, "polyline")[0]
    assert held == [(left, bottom), (middle, bottom - PLOT_HEIGHT / 2), (right, two)]
    assert {"8", "0", "2.0 h", "reserved", "spot", "<dear>: vCPUs up (areas) and held by jobs (line)"} <= set(
        texts(drawn)
    )


def test_waits_grow_to_the_right_by_their_logarithm() -> None:
    drawn = waits_svg([SEEN])
    (line,) = points(drawn, "polyline")
    places = {round(254 - y): x for x, y in line}
    assert places[0] == PLOT_LEFT  # half a second, or none, stands at one second
    assert places[110] == pytest.approx(PLOT_LEFT + PLOT_WIDTH / 2)  # the median, 10 s of at most 100 s
    assert places[220] == PLOT_LEFT + PLOT_WIDTH
    assert [each for each in texts(drawn) if each.endswith(" s")] == ["1 s", "10 s", "60 s"]
