"""Input files are read within limits, and all that is wrong with one is reported at once."""

import gzip
import io
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.core.errors import BadInput
from hcloud.simulator import input_table
from hcloud.simulator.input_table import (
    InputColumn,
    Problems,
    moment,
    number_within,
    open_lines,
    read_document,
    read_rows,
)
from hcloud.simulator.workload import LogReading, Workload, read_csv, read_swf

TABLE = (
    InputColumn(name="at_s", parse=number_within(0.0), required=True),
    InputColumn(name="run_s", parse=number_within(0.0), required=True, aliases=("runtime",)),
    InputColumn(name="vcpus", parse=number_within(0.0, 64.0), required=True),
    InputColumn(name="memory_mib", parse=number_within(1.0)),
)


def told(text: str, columns: tuple[InputColumn, ...] = TABLE) -> str:
    problems = Problems("jobs.csv")
    list(read_rows(io.StringIO(text, newline=""), columns, problems))
    with pytest.raises(BadInput) as error:
        problems.check()
    return str(error.value)


def test_one_message_names_every_wrong_column_with_its_lines() -> None:
    rows = "0,abc,9,1\n-1,2,9,1\n0,nan,9,1\n" + "0,x,9,1\n" * 12 + "0,1,9,0\n"
    assert told("at_s,run_s,cpus,memory_mib\n" + rows) == (
        "jobs.csv: column vcpus: missing; column cpus: unknown, did you mean 'vcpus'?; "
        "column run_s: line 2: 'abc' is not a number; line 4: 'nan' is not a number (12 more); "
        "column at_s: line 3: -1 must be at least 0; column memory_mib: line 17: 0 must be at least 1"
    )


def test_no_row_is_yielded_under_a_wrong_header() -> None:
    problems = Problems("jobs.csv")
    assert list(read_rows(["at_s,run_s,cpus", "0,1,2"], TABLE, problems)) == []
    assert problems


def test_a_column_given_under_two_of_its_names_is_refused() -> None:
    assert "column run_s and runtime: appears 2 times; name it once" in told("at_s,run_s,runtime,vcpus\n0,1,1,2\n")


def test_other_columns_are_ignored_where_a_table_may_have_them() -> None:
    problems = Problems("jobs.csv")
    rows = list(read_rows(["at_s,more,runtime,vcpus", "0,x,1,2"], TABLE, problems, others=True))
    assert rows == [(2, {"at_s": 0.0, "run_s": 1.0, "vcpus": 2.0})]
    assert not problems


@pytest.mark.parametrize(
    "text", [",".join(f"c{at}" for at in range(5000)) + "\n", "at_s,run_s,vcpus\n" + "\0,x\n" * 900]
)
def test_a_message_is_of_bounded_length_whatever_the_file_has(text: str) -> None:
    assert len(told(text)) < 2500


def test_only_as_many_unknown_columns_as_a_message_shows_are_compared_with_known_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = list[str]()

    def counting(name: str, known: Iterable[str]) -> str:
        compared.append(name)
        return "known here: run_s"

    monkeypatch.setattr(input_table, "nearest", counting)
    assert "column c0: unknown, known here: run_s" in told(",".join(f"c{at}" for at in range(1000)) + "\n")
    assert compared == [f"c{at}" for at in range(input_table.SUBJECTS)]


def test_a_message_has_no_control_characters_of_the_file() -> None:
    assert told("at_s,run_s,vcpus,\x1b[31mred\0\n\x1b[2J,1,1,1\n").isprintable()


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(1, 64)), min_size=1), st.randoms())
def test_generated_arrivals_are_read_as_they_were_written_in_any_order(
    jobs: list[tuple[int, int, int]], chance: random.Random
) -> None:
    lines = [f"{at},{run},{vcpus}" for at, run, vcpus in jobs]
    chance.shuffle(lines)
    made = read_csv(["at_s,run_s,vcpus", *lines], "jobs.csv")
    first = min(at for at, _, _ in jobs)
    found = sorted((each.at_s, each.run_s, each.spec.resources.vcpus) for each in made.arrivals)
    assert found == sorted((at - first, run, vcpus) for at, run, vcpus in jobs)
    assert [each.at_s for each in made.arrivals] == sorted(each.at_s for each in made.arrivals)


@given(st.lists(st.sampled_from(["0,1,1", "x,1,1", "0,-1,1", "0,1,y", "0,1", "0,1,1,1"]), min_size=1, max_size=30))
def test_a_list_of_arrivals_is_refused_exactly_if_one_of_its_lines_is_wrong(lines: list[str]) -> None:
    if set(lines) == {"0,1,1"}:
        assert len(read_csv(["at_s,run_s,vcpus", *lines], "jobs.csv").arrivals) == len(lines)
        return
    with pytest.raises(BadInput) as error:
        read_csv(["at_s,run_s,vcpus", *lines], "jobs.csv")
    for line, subject in (("x,1,1", "column at_s"), ("0,-1,1", "column run_s"), ("0,1,y", "column vcpus")):
        assert (f"{subject}: line {lines.index(line) + 2}" in str(error.value)) if line in lines else True


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(1, 300)), min_size=1, max_size=30),
    st.randoms(),
)
def test_generated_job_logs_are_read_as_they_were_written_in_any_order(
    jobs: list[tuple[int, int, int]], chance: random.Random
) -> None:
    lines = [
        f"{n} {at} 5 {run} {cpus} -1 -1 {cpus} 600 -1 1 7 1 1 1 -1 -1 -1" for n, (at, run, cpus) in enumerate(jobs)
    ]
    chance.shuffle(lines)
    made = read_swf(["; a log", *lines], "log.swf", LogReading(node_vcpus=300))
    first = min(at for at, _, _ in jobs)
    found = sorted((each.at_s, each.run_s, each.spec.resources.vcpus) for each in made.arrivals)
    assert found == sorted((at - first, run, cpus) for at, run, cpus in jobs)


def test_a_job_log_without_a_valid_line_is_told_by_all_its_wrong_columns() -> None:
    good = ["1", "0", "5", "60", "4", "-1", "-1", "4", "600", "-1", "1", "1", "1", "1", "1", "-1", "-1", "-1"]
    wrong = [" ".join([*good[:at], word, *good[at + 1 :]]) for at, word in ((1, "x"), (3, "-7"), (11, "1e99"))]
    with pytest.raises(BadInput) as error:
        read_swf([*wrong, "1 2 3"], "log.swf", LogReading())
    assert str(error.value) == (
        "log.swf: column 2 (submit time): line 1: 'x' is not a number; "
        "column 4 (run time): line 2: -7 is negative; only -1 (unknown) may be; "
        "column 12 (user): line 3: 1e+99 is too large; times are in seconds, memory in KiB; "
        "line 4: expected 18 numbers, not 3"
    )


# ---------------------------------------------------------------------------------------------------------------- files
def arrivals_in(path: Path) -> Workload:
    with open_lines(path) as lines:
        return read_csv(lines, path.name)


def test_a_packed_file_is_not_read_beyond_the_limit_of_unpacked_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_table, "BYTES_MOST", 2**20)
    bomb = tmp_path / "bomb.csv.gz"
    bomb.write_bytes(gzip.compress(b"at_s,run_s,vcpus\n" + b"#\n" * 600_000))
    with pytest.raises(BadInput, match=r"bomb.csv.gz: is larger than 1 MiB unpacked; split it"):
        arrivals_in(bomb)
    monkeypatch.setattr(input_table, "DOCUMENT_MOST", 2**20)
    with pytest.raises(BadInput, match="is larger than 1 MiB unpacked"):
        read_document(bomb)


def test_a_file_of_one_endless_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "zeros.csv.gz"
    path.write_bytes(gzip.compress(bytes(5_000_000)))
    with pytest.raises(BadInput, match="line 1 has more than 1000000 characters"):
        arrivals_in(path)


def test_a_file_of_too_many_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_table, "LINES_MOST", 3)
    path = tmp_path / "long.csv"
    path.write_text("at_s,run_s,vcpus\n0,1,1\n0,1,1\n")
    assert len(arrivals_in(path).arrivals) == 2
    path.write_text("at_s,run_s,vcpus\n0,1,1\n0,1,1\n\n")
    with pytest.raises(BadInput, match="has more than 3 lines"):
        arrivals_in(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"at_s,run_s,vcpus\n0,1,1\xff\n", "is not UTF-8 text (byte 0xff)"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\xff", "is not UTF-8 text (byte 0x8b)"),
        (b"\xff\xfea\0t\0", "is not UTF-8 text (byte 0xff)"),
        (b"\0" * 100, "column at_s: missing"),
    ],
)
def test_a_file_that_is_no_text_is_refused_in_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(content)
    with pytest.raises(BadInput) as error:
        arrivals_in(path)
    assert words in str(error.value) and str(error.value).isprintable()


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("\ufeffat_s,run_s,vcpus\n0,1,1\n")
    assert len(arrivals_in(path).arrivals) == 1


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1970-01-02", 86_400.0),
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01 01:01:00+01:00", 60.0),
        ("1970-01-01T00:01:00.000Z", 60.0),
        ("60", 60.0),
    ],
)
def test_times_are_read_as_iso_8601_or_seconds(text: str, at: float) -> None:
    assert moment(text) == at


@pytest.mark.parametrize(
    "text", ["soon", "1e300", "-1", "nan", "1500000000000", "9999-01-01", "0" * 99, "2026-13-01", "0001-01-01"]
)
def test_times_that_cannot_be_meant_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time such as|must be between 1970 and 2199"):
        moment(text)
