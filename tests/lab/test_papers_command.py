"""``python -m lab.papers`` on the command line."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hcloud.core.errors import BadInput
from hcloud.simulator.scratch import quick_folder
from lab.papers import CHAPTERS
from lab.papers.__main__ import reproduce
from lab.papers.clusters import scheduler
from lab.papers.study import Case, Figure
from tests.lab.conftest import LabShell
from tests.waiting import wait_until

LITTLE = Figure(
    name="little",
    title="One scheduler",
    source="nowhere",
    cases=(Case(label="LL", experiment="paragon-small-low", policy=scheduler("least_loaded")),),
    columns=("qos_kept_pct",),
    drawn="qos_kept_pct",
)


def test_results_of_the_same_size_are_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.papers.__main__.CHAPTERS", {**CHAPTERS, "quasar": ("Quasar", lambda: [LITTLE])})
    monkeypatch.chdir(tmp_path)
    words = ["quasar", "--share", "0.02", "--seeds", "1", "--processes", "1"]
    first = CliRunner().invoke(reproduce, words, catch_exceptions=False)
    assert "wrote results.md" in first.output
    kept = tmp_path / "results" / "little.json"
    content = json.loads(kept.read_text())
    content["runs"]["LL"]["0"]["qos_kept_pct"] = 12.345
    kept.write_text(json.dumps(content))
    CliRunner().invoke(reproduce, words, catch_exceptions=False)
    page = (tmp_path / "results.md").read_text()
    assert "12.3" in (tmp_path / "results" / "little.md").read_text()
    assert "Made by `python -m lab.papers quasar --share 0.02 --hours 2 --seeds 1`" in page
    assert (tmp_path / "results" / "little.svg").read_text().startswith("<?xml")
    CliRunner().invoke(reproduce, ["quasar", "--no-run", "--out", "page.md"], catch_exceptions=False)
    assert (
        "`python -m lab.papers --figure little --share 0.02 --seeds 1`"
        in (tmp_path / "results" / "little.md").read_text()
    )
    assert "Not run" not in (tmp_path / "page.md").read_text()


def test_the_page_names_its_figures_and_links_to_pages_that_are_there_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = replace(LITTLE, source="[policies](policies.md)")
    monkeypatch.setattr("lab.papers.__main__.CHAPTERS", {**CHAPTERS, "quasar": ("Quasar", lambda: [told])})
    monkeypatch.chdir(tmp_path)
    words = ["quasar", "--figure", "little", "--share", "0.02", "--seeds", "1", "--processes", "1"]
    CliRunner().invoke(reproduce, words, catch_exceptions=False)
    page = Path("results.md").read_text()
    assert "Made by `python -m lab.papers quasar --figure little --share 0.02 --hours 2 --seeds 1`" in page
    assert "(`docs/simulation.md` says where" in page
    assert "After `docs/policies.md`. Run" in Path("results/little.md").read_text()
    Path("simulation.md").touch()
    CliRunner().invoke(reproduce, words, catch_exceptions=False)
    page = Path("results.md").read_text()
    assert "([simulation](simulation.md) says where" in page
    assert "After [policies](../policies.md). Run" in Path("results/little.md").read_text()


def test_results_that_are_shipped_give_the_page_that_is_shipped(lab: LabShell) -> None:
    shipped = Path(__file__).parents[2] / "docs"
    shutil.copytree(shipped / "results", lab.directory / "results", ignore=shutil.ignore_patterns("*.md"))
    running = lab.start("--no-run", "--no-pictures")
    _, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert (lab.directory / "results.md").read_text() == (shipped / "results.md").read_text()
    pages, ours = (
        {page.name: page.read_text() for page in (at / "results").glob("*.md")} for at in (shipped, lab.directory)
    )
    assert pages == ours and len(pages) > 20


def test_size_without_jobs_is_refused_with_its_figure(lab: LabShell) -> None:
    words = ("--figure", "parts-of-the-world", "--share", "1e-5", "--hours", "0.001", "--seeds", "1")
    _, err = lab.run("parts", *words, "--processes", "2", "--out", "new/er/page.md", exit_code=2)
    assert err == (
        "hcloud: --figure parts-of-the-world: high-variability: --share 1e-05 for --hours 0.001 has no job; "
        "increase one of them\n"
    )
    assert list(lab.directory.iterdir()) == []


def test_results_that_are_not_a_folder_are_refused(lab: LabShell) -> None:
    (lab.directory / "results").write_text("mine\n")
    _, err = lab.run("quasar", exit_code=2)
    assert err == "hcloud: results is not a directory\n"
    _, err = lab.run("quasar", "--out", "results/page.md", exit_code=2)
    assert err == "hcloud: results/results cannot be created: results is not a directory\n"
    assert (lab.directory / "results").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--figure", "nosuch"], "unknown figure; known here: 3sigma-load, "),
        (["--figure", "mapings"], "unknown figure; did you mean 'mappings'?"),
        (["quasar", "--figure", "mappings"], "none of these figures belongs to the selected chapters"),
        (["borg"], "borg"),
        (["--no-run"], "there are no results to write a page from"),
    ],
)
def test_invalid_selections_are_refused(lab: LabShell, words: list[str], sentence: str) -> None:
    _, err = lab.run(*words, exit_code=2)
    assert sentence in err
    assert not (lab.directory / "results").exists()


@pytest.mark.parametrize("content", ["{torn", "[]", '{"runs": {"LL": []}}', '{"runs": {"LL": {"first": {}}}}'])
def test_invalid_result_files_are_refused_by_name(lab: LabShell, content: str) -> None:
    (lab.directory / "results").mkdir()
    (lab.directory / "results" / "quasar.json").write_text(content)
    _, err = lab.run("quasar", "--no-run", exit_code=2)
    assert err.startswith("hcloud: results/quasar.json: not written by this command; remove the file")
    assert err.count("\n") == 1
    assert not (lab.directory / "results.md").exists()


@pytest.mark.parametrize(("number", "processes"), [(signal.SIGTERM, "1"), (signal.SIGINT, "2")])
def test_interrupted_reproduction_leaves_no_folder_and_no_process(
    lab: LabShell, tmp_path: Path, number: int, processes: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    words = ("quasar", "--seeds", "2", "--processes", processes)
    running = lab.start(*words, TMPDIR=str(place))
    try:
        wait_until(lambda: len(list(place.glob("hcloud-virtual-*/*"))) >= int(processes), 60)
        workers = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        os.kill(running.pid, number)
        _, err = running.communicate(timeout=30)
    finally:
        running.kill()
    # CPython ends itself by the signal where that came while it ran source text (as dataclasses are made): the same to
    # every shell.
    assert running.returncode in (128 + number, -number), err
    assert "Traceback" not in err
    assert list(place.iterdir()) == []
    assert len(workers) == (int(processes) if processes != "1" else 0)
    assert not [each for each in workers if Path(f"/proc/{each}").exists()]


def test_workers_of_a_killed_reproduction_end_and_its_folder_is_removed(
    lab: LabShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    running = lab.start("quasar", "--share", "0.2", "--processes", "2", TMPDIR=str(place))
    wait_until(lambda: len(list(place.glob("hcloud-virtual-*/*"))) >= 2, 60)
    workers = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    running.kill()
    running.communicate()
    wait_until(lambda: not [each for each in workers if Path(f"/proc/{each}").exists()], 10)
    monkeypatch.setenv("TMPDIR", str(place))
    with quick_folder() as folder:
        assert list(place.iterdir()) == [folder]


@pytest.mark.parametrize(
    "kept",
    [
        '{"size": 3}',
        '{"size": {"share": "a"}}',
        '{"runs": {"a": {"0": {"cost_usd": "x"}}}}',
        '{"runs": {"a": {"0": [1]}}}',
    ],
)
def test_invalid_numbers_are_refused_in_one_sentence(lab: LabShell, kept: str) -> None:
    (lab.directory / "results").mkdir()
    (lab.directory / "results" / "mappings.json").write_text(kept)
    _, err = lab.run("--figure", "mappings", "--no-run", exit_code=2)
    assert err.startswith("hcloud: results/mappings.json: not written by this command; remove the file")


def test_unwritable_results_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.papers.__main__.CHAPTERS", {**CHAPTERS, "quasar": ("Quasar", lambda: [LITTLE])})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "little.new").symlink_to("/dev/full")
    words = ["quasar", "--share", "0.02", "--seeds", "1", "--processes", "1"]
    with pytest.raises(BadInput, match=r"results/little\.json: cannot be written: No space left on device"):
        CliRunner().invoke(reproduce, words, catch_exceptions=False, standalone_mode=False)
    assert list((tmp_path / "results").iterdir()) == []
