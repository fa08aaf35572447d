"""``hcloud reproduce`` as people type it: no daemon, no money."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hcloud.cli.reproduce import reproduce
from hcloud.simulator.reproduce import CHAPTERS
from hcloud.simulator.reproduce.clusters import scheduler
from hcloud.simulator.reproduce.study import Case, Figure
from tests.cli.conftest import Shell

LITTLE = Figure(
    name="little",
    title="One scheduler",
    source="nowhere",
    cases=(Case(label="LL", experiment="paragon-small-low", policy=scheduler("least_loaded")),),
    columns=("qos_kept_pct",),
    drawn="qos_kept_pct",
)


def test_what_was_run_with_the_same_size_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hcloud.cli.reproduce.CHAPTERS", {**CHAPTERS, "quasar": ("Quasar", lambda: [LITTLE])})
    monkeypatch.chdir(tmp_path)
    words = ["quasar", "--share", "0.02", "--seeds", "1", "--processes", "1"]
    first = CliRunner().invoke(reproduce, words, catch_exceptions=False)
    assert "wrote results.md" in first.output
    kept = tmp_path / "results" / "little.json"
    content = json.loads(kept.read_text())
    content["runs"]["LL"]["0"]["qos_kept_pct"] = 12.345
    kept.write_text(json.dumps(content))
    CliRunner().invoke(reproduce, words, catch_exceptions=False)
    assert "12.3" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "results" / "little.svg").read_text().startswith("<svg")
    CliRunner().invoke(reproduce, ["quasar", "--no-run", "--out", "page.md"], catch_exceptions=False)
    page = (tmp_path / "page.md").read_text()
    assert "`hcloud reproduce --figure little --share 0.02 --seeds 1`" in page
    assert "Not run" not in page


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--figure", "nosuch"], "there is no such figure; there are arq"),
        (["quasar", "--figure", "mappings"], "none of these figures belongs to the chapters named"),
        (["tarcil"], "tarcil"),
        (["--no-run"], "there are no results here to write a page from"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(lonely: Shell, words: list[str], sentence: str) -> None:
    _, err = lonely.run("reproduce", *words, exit_code=2)
    assert sentence in err
    assert not (lonely.directory / "results").exists()
