"""Conclusions from measurements, and one short real measurement with loose assertions."""

import csv
import json
import os
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from hcloud.cli.profile import profile
from hcloud.plots import to_svg
from hcloud.profiler.source_charts import document, sentences, sources_figure, write_files
from hcloud.profiler.sources import InterferenceSource, source_named
from hcloud.profiler.validation import INTENSITIES, SourceValidation, Validation
from tests.machine import needs_stress_ng
from tests.warm import WARM

QUIET = {"cpu": 0.02, "memory": 0.05, "disk": 0.1}


def measured(name: str, pressure: tuple[float, ...] = (0.25, 0.5, 1.0), **at_full: float) -> SourceValidation:
    """A measured source; victims not named are unaffected."""
    slowdown = {victim: dict.fromkeys(INTENSITIES, at_full.get(victim, 1.0)) for victim in QUIET}
    by = dict(zip(INTENSITIES, pressure, strict=True))
    return SourceValidation(source=source_named(name), shares_core=False, pressure=by, slowdown=slowdown)


def validation(*each: SourceValidation) -> Validation:
    """A validation of such sources on a quiet machine."""
    return Validation(measured=each, noise=QUIET, repeats=1, victim_s=0.1, lacks=("there is only one CPU",))


@pytest.mark.parametrize(
    ("pressure", "verdict"),
    [
        ((0.25, 0.5, 1.0), "linear"),
        ((0.2, 0.6, 1.0), "linear"),
        ((300.0, 480.0, 500.0), "saturates"),
        ((0.05, 0.2, 1.0), "rising"),
        ((0.5, 0.8, 1.0), "rising"),
        ((0.25, 0.5, 0.3), "starved"),
        ((2.0, 3.5, 2.0), "unclear"),
        ((0.0, 0.0, 0.0), "unclear"),
    ],
)
def test_linearity_is_judged_in_bands(pressure: tuple[float, ...], verdict: str) -> None:
    assert measured("integer", pressure).linearity == verdict


def test_sources_that_act_alike_are_named_together() -> None:
    found = validation(
        measured("integer", cpu=2.0, memory=2.0, disk=1.1),
        measured("floating-point", cpu=2.1, memory=1.9, disk=1.1),
        measured("storage-bandwidth", disk=3.0),
    )
    assert found.indistinguishable == (("integer", "floating-point"),)
    assert any("integer, floating-point" in sentence for sentence in sentences(found))


def test_what_nobody_feels_is_named_and_noise_is_not_taken_for_an_effect() -> None:
    found = validation(measured("l1i", disk=1.18), measured("memory-bandwidth", memory=1.3))
    assert found.not_felt == ("l1i",)


def test_spill_over_leaves_the_target_out() -> None:
    each = measured("memory-bandwidth", memory=1.5, cpu=1.05)
    assert (each.target_slowdown, each.spill_over) == (1.5, 1.05)


def test_files_hold_the_same_table_and_a_picture(tmp_path: Path) -> None:
    found = validation(measured("integer", cpu=2.0), measured("l2", cpu=1.9))
    assert {path.suffix for path in write_files(found, tmp_path / "new")} == {".json", ".csv", ".md", ".svg"}
    rows = list(csv.DictReader((tmp_path / "new/sources.csv").read_text().splitlines()))
    assert [row["slowdown_cpu"] for row in rows] == ["2.0", "1.9"]
    assert json.loads((tmp_path / "new/sources.json").read_text()) == document(found)
    assert "There is only one CPU." in (tmp_path / "new/sources.md").read_text()
    drawn = sources_figure(found)
    ElementTree.fromstring(to_svg(drawn))
    assert "2.00" in [each.get_text() for each in drawn.axes[0].texts]


@needs_stress_ng
def test_short_measurement_finds_the_right_directions(tmp_path: Path) -> None:
    options = ("--validate", "--seconds", "3", "--out", str(tmp_path / "out"), "-o", "json")
    done = listed("integer", "memory-capacity", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    integer, memory = found["sources"]
    assert (integer["core"], integer["unit"], memory["unit"]) == ("same", "CPUs", "MiB")
    # The quota bounds it whatever else runs here; how much it gets of a whole CPU is for the others to say.
    assert 0 < integer["pressure_25"] < 0.5
    # How much the victim feels is for the full run to say: here others may use this very CPU.
    assert integer["slowdown_cpu"] > 0
    assert memory["pressure_100"] > memory["pressure_25"]
    assert (tmp_path / "out/sources.svg").exists()
    assert found["repeats"] == 1


@needs_stress_ng
def test_sources_seconds_and_repeats_are_measured_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[list[str], float, int]]()

    def noted(chosen: Sequence[InterferenceSource], *, seconds: float, repeats: int, **_: object) -> Validation:
        asked.append(([each.name for each in chosen], seconds, repeats))
        return validation(measured("integer", cpu=2.0))

    monkeypatch.setattr("hcloud.cli.profile.validate", noted)
    options = ["sources", "integer", "l2", "--validate", "--seconds", "7", "--repeats", "3", "-o", "json"]
    assert CliRunner().invoke(profile, options).exit_code == 0
    assert asked == [(["integer", "l2"], 7.0, 3)]


def listed(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run ``hcloud profile sources``."""
    command, environment = ("profile", "sources", *arguments), {**os.environ, **changes}
    return WARM.run(command, cwd=Path.cwd(), environment=environment, timeout_s=240)


def test_sources_are_listed_as_table_json_and_csv() -> None:
    assert len(json.loads(listed("-o", "json").stdout)) == 16
    assert len(listed("-o", "csv").stdout.splitlines()) == 17
    assert "last level cache" in listed().stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("gpu",), 2, "there is no source 'gpu'; known sources are memory-capacity"),
        (("--out", "somewhere"), 2, "--out needs --validate"),
        (("--validate", "--seconds", "0"), 2, "--seconds"),
        (("--validate", "--repeats", "0"), 2, "--repeats"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = listed(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr


def test_without_stress_ng_one_sentence_says_so(tmp_path: Path) -> None:
    done = listed("--validate", PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("hcloud: stress-ng is not installed")
    assert len(done.stderr.splitlines()) == 1
