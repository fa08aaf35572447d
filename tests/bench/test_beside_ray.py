"""Our side of the comparison with Ray, on few jobs; Ray itself is not installed for tests."""

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bench.__main__ as all_benches
import bench.ray_scheduler
from bench import beside_ray
from bench.beside_ray import demands, hcloud_rate


def test_both_sides_get_the_same_demands_each_time() -> None:
    assert demands(50) == demands(50) and demands(60)[:50] == demands(50)


def test_each_job_is_launched_for_or_placed() -> None:
    rate, note = hcloud_rate(40, 0, known=True, rounds=1)
    assert rate > 0 and note.endswith(" launched, 0 placed") and not note.startswith("0 ")
    placed = hcloud_rate(40, 40, known=False, rounds=1)[1]
    assert placed.startswith("0 launched, ") and int(placed.split()[2]) > 30


def test_rays_side_imports_nothing_of_ours() -> None:
    tree = ast.parse(Path(bench.ray_scheduler.__file__).read_text())
    imported = {each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    imported |= {name.name for each in ast.walk(tree) if isinstance(each, ast.Import) for name in each.names}
    assert not any(name.split(".")[0] in ("hcloud", "bench", "tests") for name in imported)


@pytest.mark.parametrize(
    ("run", "words", "message"),
    [
        (beside_ray.main, "--rounds 0", "argument --rounds: must be a whole number of at least 1, not '0'"),
        (all_benches.main, "mission", "there is no benchmark 'mission'; it has a command of its own, see make help"),
        (all_benches.main, "beside_rey", "there is no benchmark 'beside_rey'; known are accuracy, "),
    ],
)
def test_wrong_words_get_one_sentence(
    run: Callable[[], int],
    words: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *words.split()])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2 and message in capsys.readouterr().err
