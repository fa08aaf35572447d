"""What the interference benchmark does with its measurements; measuring itself needs an idle machine."""

from pathlib import Path

import pytest

from bench.interference.judge import judged, lost_points, points, rows, table
from bench.interference.pairs import CASTS, Cast, Found, Pair, Probed, read, without
from hcloud.classifier.interference import EXCESS
from hcloud.classifier.library import Library, MeasuredApplication
from hcloud.cli.bootstrap import load_recipes
from hcloud.config import package_data


def found() -> Found:
    """Two programs that met on one core and on two."""
    probed = {
        "gzip": Probed(tolerated={"memory-bandwidth": 50.0, "integer": 10.0}, caused={}),
        "sort": Probed(tolerated={}, caused={"memory-bandwidth": 80.0, "integer": 60.0}),
    }
    pairs = [
        Pair(victim="gzip", neighbour="sort", same_core=same, slowdown=slowdown, low=1.0, high=2.5)
        for same, slowdown in ((False, 1.1), (True, 2.0))
    ]
    return Found(probed=probed, pairs=tuple(pairs))


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_at_least_eight_programs_meet_others_and_all_have_recipes(cast: Cast) -> None:
    recipes = load_recipes(package_data.path("profiles") / "recipes")
    assert set(cast.programs()) <= set(recipes)
    met = list(cast.partners())
    assert len(met) == len(set(met)) == cast.neighbours_each * len(cast.victims)
    assert len({victim for victim, _ in met}) >= 8
    assert all(victim != neighbour for victim, neighbour in met)


def test_forgotten_programs_are_gone_with_all_their_inputs() -> None:
    known = {
        name: MeasuredApplication(name=name, program=program)
        for name, program in (("gzip", "gzip"), ("gunzip", "gzip"), ("sort", "sort"))
    }
    assert set(without(Library(known=known), "gzip").known) == {"sort"}


def test_kept_measurements_read_back_the_same(tmp_path: Path) -> None:
    found().write(tmp_path / "found.json")
    assert read(tmp_path / "found.json") == found()


def test_pairs_are_predicted_from_what_was_probed() -> None:
    empty = Library()
    apart, together = judged(found(), empty)
    assert apart.predicted["probed, max"].value == pytest.approx(1 + EXCESS * 80 / 50)
    assert together.predicted["probed, max"].value == pytest.approx(2.0)
    assert apart.predicted["not slowed at all"].value == 1.0
    assert "gzip" in table(found())
    assert [row.target for row in rows(found())] == [8.0, None, None] * 2


def test_pairs_measured_twice_are_ranked_beside_their_own_repeats() -> None:
    probed = {
        name: Probed(tolerated={"memory-bandwidth": bears}, caused={"memory-bandwidth": 100.0 - bears})
        for name, bears in (("gzip", 20.0), ("sort", 50.0), ("jq", 90.0))
    }
    slower = {"gzip": (1.5, 1.6), "sort": (1.3, 1.2), "jq": (1.0, 1.1)}
    pairs = tuple(
        Pair(victim=name, neighbour="gzip", same_core=False, slowdown=each[repeat], low=1.0, high=2.0, repeat=repeat)
        for repeat in (0, 1)
        for name, each in slower.items()
    )
    made = {row.name: row for row in rows(Found(probed=probed, pairs=pairs))}
    ranked = made["rank correlation of expected with measured loss, probed, max"]
    assert (ranked.value, ranked.target, ranked.note) == (
        pytest.approx(1.0),
        pytest.approx(0.7),
        "3 pairs; measured twice 1.00",
    )
    assert "needed quality, interquartile range" in made


def test_errors_are_in_points_of_run_time_and_of_performance() -> None:
    assert points(1.5, 2.0) == pytest.approx(50.0)
    assert lost_points(1.0, 2.0) == pytest.approx(50.0)
