"""Files of profiles: read back as written, refused with their line when wrong, put together into a library."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcloud.classifier.classify import Classifier
from hcloud.classifier.library import MeasuredApplication, Question
from hcloud.classifier.profiles import cells_of_readings
from hcloud.config import package_data
from hcloud.config.profiles import library_profiles, load_library, load_profiles, profile_yaml, write_profile
from hcloud.core.errors import BadInput, ConfigError
from hcloud.core.estimates import SOURCES, Reading
from tests.machine import needs_root
from tests.other_user import as_ordinary_user
from tests.profiler.samples import fitted_profile, profile


def test_profile_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "made", profile())
    assert load_profiles(path) == (profile(),)
    assert [each.name for each in path.parent.iterdir()] == ["gzip.yaml"]


cells = st.dictionaries(
    st.sampled_from(SOURCES), st.lists(st.floats(0, 100), min_size=3, max_size=3).map(sorted), min_size=1, max_size=4
)


@settings(max_examples=60)
@given(cells, st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), min_size=1).filter(str.strip))
def test_any_profile_reads_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, list[float]], note: str
) -> None:
    found = [
        Reading(question="caused", column=source, low=low, value=value, high=high)
        for source, (low, value, high) in values.items()
    ]
    made = replace(profile(), cells=cells_of_readings(found), notes=(note,))
    path = tmp_path_factory.mktemp("any") / "any.yaml"
    path.write_text(profile_yaml(made), encoding="utf-8")
    assert load_profiles(path) == (made,)


MUTATIONS = {
    "unknown key": (r"^group:", "grup:", "grup: unknown key; did you mean 'group'?"),
    "no unit of time": ("MiB/s", "MiB", "units.performance: must be an amount per second such as MiB/s"),
    "other unit of interference": ("percent", "fraction", "units.interference: must be percent, not 'fraction'"),
    "other units of use": ("vCPUs busy", "seconds", "units.use: must be vCPUs busy, MiB of memory"),
    "unknown source": (r"^    l2:", "    l4:", "cells.tolerated.l4: 'l4' is not a source of interference"),
    "step that is no amount": ("0.5 vCPU", "half vCPU", "'half vCPU' is not a valid column; write an amount"),
    "type without provider": ("local/local.small: {", "small: {", "'small' is not a valid column; write provider/type"),
    "NaN": ("value: 20.0", "value: .nan", "value: must be a number, not '.nan'"),
    "infinite": ("value: 20.0", "value: 1e999", "is not a finite number"),
    "negative performance": ("value: 10.0", "value: -10.0", "value: must be more than 0, not -10"),
    "pressure above all of it": ("value: 24.0", "value: 240.0", "value: must be at most 100, not 240"),
    "value outside its limits": ("value: 24.0", "value: 99.0", "must lie between low and high"),
    "no repeats": ("runs: 3", "runs: 0", "runs: must be at least 1, not 0"),
    "text for a number": ("value: 20.0", "value: fast", "value: must be a number, not 'fast'"),
    "newer format": ("format: 1", "format: 2", "format: must be 1, not 2"),
    "unknown measure": ("measure: progress", "measure: speed", "measure: must be one of progress"),
    "name that is no file name": ("profile: gzip", "profile: ../gzip", "profile:"),
    "use with a number too few": (r"\[0\.5, 11\.0, 0\.0, 1\.5\]", "[0.5, 11.0]", "must be 4 numbers, 0 or more"),
}


@pytest.mark.parametrize("change", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_wrong_profile_is_refused_with_its_line(change: tuple[str, str, str], tmp_path: Path) -> None:
    pattern, new, words = change
    right = profile_yaml(profile())
    wrong = re.sub(pattern, new, right, count=1, flags=re.MULTILINE)
    assert wrong != right
    line = next(
        number for number, (a, b) in enumerate(zip(right.split("\n"), wrong.split("\n"), strict=True), 1) if a != b
    )
    path = tmp_path / "wrong.yaml"
    path.write_text(wrong)
    with pytest.raises(ConfigError) as caught:
        load_profiles(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}")


def test_profile_without_a_measurement_is_refused(tmp_path: Path) -> None:
    text = re.sub(r"cells:\n(  .*\n)+", "cells: {}\n", profile_yaml(profile()))
    (tmp_path / "none.yaml").write_text(text)
    with pytest.raises(ConfigError, match="cells: must contain at least one measurement"):
        load_profiles(tmp_path / "none.yaml")


def test_a_reading_that_cannot_be_a_measurement_becomes_no_cell() -> None:
    with pytest.raises(BadInput, match="must be more than 0"):
        cells_of_readings([Reading(question="step", column="1 vCPU", value=0.0, low=0.0, high=1.0)])


def test_library_puts_cells_of_one_name_together_and_later_files_win(tmp_path: Path) -> None:
    write_profile(tmp_path / "shipped", profile())
    write_profile(tmp_path / "shipped", profile("sort"))
    cloud = [
        Reading(question="type", column="aws/m5.large", value=33.0, low=30.0, high=35.0),
        Reading(question="tolerated", column="l2", value=7.0, low=7.0, high=7.0),
    ]
    write_profile(tmp_path / "imported", replace(profile(), cells=cells_of_readings(cloud), use={}))
    library = load_library([tmp_path / "shipped", tmp_path / "imported"])
    assert set(library.known) == {"gzip", "sort"}
    row = library.known["gzip"]
    assert row.cells[Question.TYPE] == {"local/local.small": 20.0, "aws/m5.large": 33.0}  # one vCPU on each
    assert row.cells[Question.TOLERATED]["l2"] == 7.0
    assert row.cells[Question.TOLERATED]["l1d"] == library.known["sort"].cells[Question.TOLERATED]["l1d"]
    assert row.use == {"local/local.small": (1.0, 11.0, 0.0, 1.5)}  # a share of the vCPUs held


def test_directory_that_is_not_there_holds_no_profiles_but_a_file_must_be_one(tmp_path: Path) -> None:
    assert load_library([tmp_path / "none"]).known == {}
    (tmp_path / "file.txt").write_text("no: profile\n")
    with pytest.raises(ConfigError, match=r"file\.txt:1: no: unknown key"):
        load_library([tmp_path / "file.txt"])


def _read_closed(folder: Path) -> str:
    try:
        load_library([folder])
    except ConfigError as error:
        return str(error)
    return "it was read"


@needs_root
def test_directory_that_may_not_be_read_is_not_taken_for_empty() -> None:
    with tempfile.TemporaryDirectory(prefix="profiles-closed-") as closed:
        Path(closed).chmod(0o700)
        said = as_ordinary_user(lambda: _read_closed(Path(closed)))
    assert "cannot be read: Permission denied" in said


SHIPPED = sorted(package_data.path("profiles").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_profile_is_valid_and_named_as_its_file(path: Path) -> None:
    (found,) = load_profiles(path)
    assert found.profile == path.stem
    assert found.cells.tolerated
    assert found.cells.caused
    assert found.cells.step


def test_shipped_library_can_be_learned_from() -> None:
    library = load_library([package_data.path("profiles")])
    assert len(list(library_profiles([package_data.path("profiles")]))) == len(SHIPPED) == len(library.known)
    found = Classifier().fit(library).classify(MeasuredApplication(name="new", cells={Question.STEP: {"1 vCPU": 3.0}}))
    assert 0 <= found.quality_target.value <= 1


def test_fitted_profile_reads_back_and_is_a_row_at_stated_vcpus(tmp_path: Path) -> None:
    path = write_profile(tmp_path, fitted_profile())
    assert load_profiles(path) == (fitted_profile(),)
    types = load_library([path]).known["typical"].cells[Question.TYPE]
    assert types == pytest.approx({"aws/m5.large": 5.0, "aws/m5.xlarge": 5.0})  # one vCPU of each


@pytest.mark.parametrize(
    ("pattern", "replacement", "words"),
    [
        (r"^type_vcpus: .*", "type_vcpus: {}", "type_vcpus: must state the vCPUs of every type of a fitted profile"),
        (r"^fitted: (.|\n)*?}\n", "", "provenance: must say where it was measured, or `fitted` what it was fitted to"),
        (r"licence: CC BY 4.0,", "", "licence"),
    ],
)
def test_fitted_profile_must_say_where_it_is_from(pattern: str, replacement: str, words: str, tmp_path: Path) -> None:
    path = write_profile(tmp_path, fitted_profile())
    text = re.sub(pattern, replacement, path.read_text(), flags=re.MULTILINE)
    assert text != path.read_text()
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_profiles(path)
