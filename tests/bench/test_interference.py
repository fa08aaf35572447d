"""What the interference benchmark does with its measurements; measuring itself needs an idle machine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.interference.__main__ import main
from bench.interference.judge import judged, lost_points, points, rows, table
from bench.interference.measuring import measure
from bench.interference.pairs import CASTS, Cast, Found, Pair, Place, Probed, Triple, read, without
from bench.interference.predictions import FROM_PAIRS, LEARNT, NOT_SLOWED, PROBES
from hcloud.classifier.interference import EXCESS
from hcloud.classifier.library import Library, MeasuredApplication
from hcloud.cli.bootstrap import load_recipes
from hcloud.config import package_data
from hcloud.core.errors import Unmeasurable
from hcloud.profiler.repeats import Interval


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


CAST = Cast(victims=("a", "b", "c", "d"), neighbours=("e", "f", "g", "h"))
APART_COST, TURN_COST = 0.01, 1.05


class FakeMeasurer:
    """Programs that all press alike, lose a fifth of what probes say on another core, and take turns on their own."""

    def __init__(self, broken: str = "") -> None:
        self.probes, self.broken = list[str](), broken
        self.asked = list[tuple[str, tuple[Place, ...]]]()

    def probe(self, program: str) -> Probed:
        self.probes.append(program)
        if program == self.broken:
            raise Unmeasurable("it ended with code 1")
        return Probed(
            tolerated={"memory-bandwidth": 50.0},
            caused={"memory-bandwidth": 50.0},
            spreads={"tolerated": {"memory-bandwidth": 5.0}, "caused": {"memory-bandwidth": 5.0}},
        )

    def slowdown(self, victim: str, places: Sequence[Place]) -> Interval:
        self.asked.append((victim, tuple(places)))
        value = 1.0 + sum(TURN_COST if each.same_core else APART_COST for each in places)
        return Interval(value=value, low=value - 0.01, high=value + 0.01, runs=5)


def silent(_: object) -> None:
    """Say nothing."""


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
    (apart, together), triples = judged(found(), Library())
    assert apart.predicted[PROBES].value == pytest.approx(1 + EXCESS * 80 / 50)
    assert together.predicted[PROBES].value == pytest.approx(2.0)
    assert apart.predicted[NOT_SLOWED].value == 1.0
    assert apart.predicted[LEARNT].value == apart.predicted[PROBES].value, "there are no other pairs to learn from"
    assert not triples
    assert "gzip" in table(found())
    assert [row.target for row in rows(found())] == [2.0, 0.7, None, None, 2.2, 0.7, None, None]


def test_probes_count_by_how_sure_they_are() -> None:
    library = Library(
        known={
            f"known-{at}": MeasuredApplication(name=f"known-{at}", cells={
                "tolerated": {"memory-bandwidth": bears}, "caused": {"memory-bandwidth": 50.0}})  # type: ignore[dict-item]
            for at, bears in enumerate((80.0, 85.0, 90.0, 95.0, 88.0))
        }
    )  # fmt: skip
    losses = []
    for spread in (0.1, 60.0):
        probed = dict(found().probed)
        probed["gzip"] = Probed(
            tolerated={"memory-bandwidth": 20.0}, caused={}, spreads={"tolerated": {"memory-bandwidth": spread}}
        )
        (apart, _), _ = judged(replace(found(), probed=probed), library)
        losses.append(apart.predicted[PROBES].value)
    assert losses[1] < losses[0] - 0.05, "an unsure reading is drawn towards what other programs tolerate"


# ------------------------------------------------------------------------------------------------- a fake that measures
def test_everything_asked_is_measured_once_and_kept_each_time(tmp_path: Path) -> None:
    fake, path, sizes = FakeMeasurer(), tmp_path / "found.json", list[int]()

    def keep(so_far: Found) -> None:
        so_far.write(path)
        sizes.append(len(so_far.probed) + len(so_far.pairs) + len(so_far.triples))

    made = measure(CAST, fake, keep=keep, say=silent)
    assert (len(made.probed), len(made.pairs), len(made.triples)) == (8, 16, 4)
    assert sizes == list(range(1, 29))
    assert read(path) == made
    assert len(set(fake.asked)) == len(fake.asked) == 20


@pytest.mark.parametrize("done", [0, 3, 8, 20, 26, 28])
def test_a_run_goes_on_where_it_was_stopped(done: int) -> None:
    whole = measure(CAST, FakeMeasurer(), say=silent)
    kept = Found(
        probed=dict(list(whole.probed.items())[:done]),
        pairs=whole.pairs[: max(0, done - 8)],
        triples=whole.triples[: max(0, done - 24)],
    )
    fake = FakeMeasurer()
    assert measure(CAST, fake, kept=kept, say=silent) == whole
    assert len(fake.probes) + len(fake.asked) == 28 - done


def test_a_program_that_cannot_be_measured_is_named_and_the_rest_goes_on() -> None:
    said = list[str]()
    made = measure(CAST, FakeMeasurer(broken="e"), say=said.append)
    assert "  probing e: not measured: it ended with code 1" in said
    assert "e" not in made.probed
    assert made.pairs
    assert all("e" not in (each.victim, each.neighbour) for each in made.pairs)
    table(made)
    assert rows(made)


def test_triples_share_the_core_with_both_neighbours_with_one_or_with_none() -> None:
    made = list(CASTS["test"].triples())
    shared = [sum(each.same_core for each in places) for _, places in made]
    assert shared == [2, 1, 0, 2, 1, 0, 2, 1]
    partners = set(CASTS["test"].partners())
    assert all((victim, each.neighbour) in partners for victim, places in made for each in places)
    assert not list(CASTS["ranks"].triples())


def test_losses_that_other_pairs_did_not_have_are_not_predicted() -> None:
    made = measure(CAST, FakeMeasurer(), say=silent)
    pairs, triples = judged(made, Library())
    apart = [each for each in pairs if isinstance(each.met, Pair) and not each.met.same_core]
    for each in apart:
        assert abs(each.predicted[LEARNT].value - 1.01) < 0.5 * abs(each.predicted[PROBES].value - 1.01)
    for each in triples:
        assert isinstance(each.met, Triple)
        assert each.predicted[FROM_PAIRS].value == pytest.approx(each.met.slowdown, rel=0.05)
        assert each.predicted[FROM_PAIRS].low <= each.met.slowdown <= each.predicted[FROM_PAIRS].high
    made_rows = {row.name: row for row in rows(made)}
    row = made_rows["performance lost beside two neighbours, mean error"]
    assert row.holds
    assert row.note == "4 programs, 4 measured; known: the same pairs"


def test_what_is_known_of_a_pair_itself_does_not_help_to_predict_it() -> None:
    made = measure(CAST, FakeMeasurer(), say=silent)
    first = made.pairs[0]
    strange = replace(made, pairs=(replace(first, slowdown=5.0), *made.pairs[1:]))
    usual, odd = (judged(each, Library())[0][0].predicted[LEARNT] for each in (made, strange))
    assert usual == odd


def test_where_nothing_can_be_kept_nothing_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.interference.__main__.missing", lambda _: ())
    monkeypatch.setattr("sys.argv", ["bench", "--out", str(tmp_path / "none" / "found.json")])
    assert main() == 2
    assert "there is no directory" in capsys.readouterr().err


def test_files_that_are_none_of_its_own_are_refused_with_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = {"none.json": None, "text.json": "hello", "list.json": "[1]", "other.json": '{"probed": {"x": {"y": 1}}}'}
    for name, text in cases.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        monkeypatch.setattr("sys.argv", ["bench", "--data", str(tmp_path / name)])
        assert main() == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and str(tmp_path / name) in said and said.count("\n") == 1


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
    ranked = made[f"rank correlation of expected with measured loss, {LEARNT}"]
    assert (ranked.value, ranked.target, ranked.note) == (
        pytest.approx(1.0),
        pytest.approx(0.7),
        "3 pairs; measured twice 1.00",
    )
    assert "needed quality, interquartile range" in made


def test_errors_are_in_points_of_run_time_and_of_performance() -> None:
    assert points(1.5, 2.0) == pytest.approx(50.0)
    assert lost_points(1.0, 2.0) == pytest.approx(50.0)
