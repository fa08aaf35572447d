"""`hcloud profile list|show|export|import|diff`."""

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hcloud.config import package_data
from hcloud.config.profiles import load_profiles, profile_yaml, write_profile
from tests.cli.conftest import Shell
from tests.profiler.samples import fitted_profile, profile

SHIPPED = sorted(path.stem for path in package_data.path("profiles").glob("*.yaml"))


@pytest.fixture
def library(lonely: Shell) -> Shell:
    """A shell with two profile files that are not imported yet."""
    write_profile(lonely.directory, profile("own-gzip"))
    write_profile(lonely.directory, profile("own-sort", scale=2.0, shift=30.0))
    return lonely


def imported(shell: Shell) -> Path:
    """The directory of imported profiles without a configuration."""
    return shell.directory / ".hcloud/profiles"


def test_imported_profiles_are_listed_after_the_shipped_ones(library: Shell) -> None:
    before = json.loads(library.run("profile", "list", "-o", "json")[0])
    assert [row["name"] for row in before] == SHIPPED
    out, _ = library.run("profile", "import", "own-gzip.yaml", "own-sort.yaml")
    assert out.splitlines()[0] == f"imported own-gzip into {imported(library)}/own-gzip.yaml"
    after = json.loads(library.run("profile", "list", "-o", "json")[0])
    assert [row["name"] for row in after] == [*SHIPPED, "own-gzip", "own-sort"]
    assert after[-1]["from"] == str(imported(library) / "own-sort.yaml")
    assert all(row["from"] == "shipped" for row in after[:-2])


def test_fitted_profiles_say_so_wherever_they_are_shown(library: Shell) -> None:
    write_profile(library.directory, fitted_profile())
    library.run("profile", "import", "typical.yaml", "own-gzip.yaml")
    rows = {row["name"]: row for row in json.loads(library.run("profile", "list", "-o", "json")[0])}
    assert rows["typical"]["from"].endswith("typical.yaml, fitted to somebody's measurements, version 3")
    assert (rows["typical"]["provider"], rows["typical"]["measured_at"]) == ("aws", "2026-11-25")
    shown = library.run("profile", "show", "typical", "--picture", "typical.svg")[0]
    assert "fitted 2026-11-25 to somebody's measurements, version 3" in shown
    assert "method: geometric mean of 9 jobs" in shown and "licence: CC BY 4.0" in shown
    assert "fitted 2026-11-25" in (library.directory / "typical.svg").read_text()
    assert "measured 2026-11-21T12:00:00Z on local" in library.run("profile", "show", "own-gzip")[0]


def test_imports_are_stored_in_the_configured_state_directory(library: Shell) -> None:
    (library.directory / "hcloud.yaml").write_text("owner: profiles-test\nstate_dir: state\n")
    library.run("profile", "import", "own-gzip.yaml")
    assert (library.directory / "state/profiles/own-gzip.yaml").exists()
    assert "own-gzip" in library.run("profile", "list", "-o", "csv")[0]


def test_exported_profiles_survive_a_round_trip(library: Shell) -> None:
    library.run("profile", "import", "own-gzip.yaml", "own-sort.yaml")
    text, _ = library.run("profile", "export", "own-gzip", "own-sort")
    (library.directory / "both.yaml").write_text(text)
    assert load_profiles(library.directory / "both.yaml") == (
        profile("own-gzip"),
        profile("own-sort", scale=2.0, shift=30.0),
    )
    library.run("profile", "export", "own-sort", "--out", "one.yaml")
    assert load_profiles(library.directory / "one.yaml")[0].profile == "own-sort"
    library.run("profile", "import", "both.yaml", "--replace")


def test_import_is_all_or_nothing(library: Shell) -> None:
    wrong = profile_yaml(profile("third")).replace("interference: percent", "interference: fraction")
    (library.directory / "wrong.yaml").write_text(wrong)
    _, err = library.run("profile", "import", "own-gzip.yaml", "wrong.yaml", exit_code=2)
    assert err.startswith("hcloud: wrong.yaml:8: units.interference: must be percent, not 'fraction'")
    assert not imported(library).exists()
    for right, other, words in (
        ("0.5 vCPU: {", "half: {", ":26: cells.step.half: 'half' is not a valid column; write an amount of one"),
        ("1 vCPU: {value: 20.0", "1 vCPU: {value: fast", ":27: cells.step.1 vCPU.value: must be a number, not 'fast'"),
    ):
        (library.directory / "wrong.yaml").write_text(profile_yaml(profile("third")).replace(right, other, 1))
        _, err = library.run("profile", "import", "own-gzip.yaml", "wrong.yaml", exit_code=2)
        assert err.startswith(f"hcloud: wrong.yaml{words}"), err
        assert not imported(library).exists()
    _, err = library.run("profile", "import", "own-gzip.yaml", "own-gzip.yaml", exit_code=2)
    assert "is also in own-gzip.yaml; import one of them" in err
    assert not imported(library).exists()


def test_import_replaces_profiles_only_with_replace(library: Shell) -> None:
    library.run("profile", "import", "own-gzip.yaml")
    write_profile(library.directory, profile("own-gzip", scale=3.0))
    _, err = library.run("profile", "import", "own-gzip.yaml", exit_code=2)
    assert "profile 'own-gzip' is already imported; replace it with --replace" in err
    assert load_profiles(imported(library) / "own-gzip.yaml") == (profile("own-gzip"),)
    library.run("profile", "import", "--replace", "own-gzip.yaml")
    assert load_profiles(imported(library) / "own-gzip.yaml") == (profile("own-gzip", scale=3.0),)


def test_profile_is_shown_as_table_json_csv_and_chart(library: Shell) -> None:
    library.run("profile", "import", "own-gzip.yaml")
    out, err = library.run("profile", "show", "own-gzip", "--picture", "gzip.svg")
    assert "measured 2026-11-21T12:00:00Z on local: a <fast> CPU & more, 2 CPUs, Linux 6.1.0, load 0.05" in out
    assert "note: network-bandwidth: it has no network" in out
    assert err == "wrote gzip.svg\n"
    drawn = ElementTree.fromstring((library.directory / "gzip.svg").read_text())
    words = [each.text or "" for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"0.5 vCPU", "memory-bandwidth", "tolerated, 95 % limits", "caused, 95 % limits"} <= set(words)
    assert any(each.startswith("own-gzip: ") and "a <fast> CPU & more" in each for each in words)
    assert json.loads(library.run("profile", "show", "own-gzip", "-o", "json")[0])["cells"]["step"]["1 vCPU"] == {
        "value": 20.0, "low": 19.0, "high": 21.0, "runs": 3,
    }  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(library.run("profile", "show", "own-gzip.yaml", "-o", "csv")[0])))
    assert rows[0] == {
        "question": "type", "column": "local/local.small", "value": "10.0", "low": "9.0", "high": "11.0", "runs": "1",
        "unit": "MiB/s",
    }  # fmt: skip


def test_two_profiles_are_compared_cell_by_cell(library: Shell) -> None:
    out, _ = library.run("profile", "diff", "own-gzip.yaml", "own-sort.yaml", "-o", "json")
    rows = {(row["question"], row["column"]): row for row in json.loads(out)}
    assert rows["step", "1 vCPU"] == {
        "question": "step", "column": "1 vCPU", "first": 20.0, "second": 40.0, "change": 100.0, "unit": "%",
        "verdict": "differs",
    }  # fmt: skip
    assert rows["tolerated", "memory-capacity"]["change"] == 30.0
    same = json.loads(library.run("profile", "diff", "own-gzip.yaml", "own-gzip.yaml", "-o", "json")[0])
    assert {(row["change"], row["verdict"]) for row in same} == {(0.0, "within limits")}


def test_performance_in_other_units_is_not_compared(library: Shell) -> None:
    write_profile(library.directory, profile("runs", unit="runs/s"))
    out, _ = library.run("profile", "diff", "own-gzip.yaml", "runs.yaml")
    assert out.splitlines()[-1] == "performance is in MiB/s and runs/s: not compared"
    rows = json.loads(library.run("profile", "diff", "own-gzip.yaml", "runs.yaml", "-o", "json")[0])
    assert {row["change"] for row in rows if row["question"] == "step"} == {None}
    assert {row["change"] for row in rows if row["question"] == "caused"} == {0.0}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "gizp"), "hcloud: there is no profile 'gizp'; known profiles: "),
        (("show", "none.yaml"), "hcloud: none.yaml: no such file"),
        (("export", "gizp"), "hcloud: there is no profile 'gizp'"),
        (("import",), "missing argument"),
        (("diff", "own-gzip.yaml", "gizp"), "hcloud: there is no profile 'gizp'"),
    ],
)
def test_unknown_profile_is_refused_in_one_sentence(library: Shell, arguments: tuple[str, ...], words: str) -> None:
    out, err = library.run("profile", *arguments, exit_code=2)
    assert out == ""
    assert words in err
