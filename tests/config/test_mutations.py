"""Whatever is done to a valid file, loading it gives a valid object or one line with file and line, never a traceback.

Each property is also run on a seeded fault, to show that it can fail.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hcloud.config import Config, load_config, load_job, load_policy, package_data, read_documents
from hcloud.core.errors import ConfigError
from hcloud.spec.jobfile import JobFile
from hcloud.spec.policy import Policy, parse_policy

Load = Callable[[Path], object]
JOB = """\
name: train-1
command: [python3, train.py, --epochs, "3"]
target:
  batch:
    within: 10m
    by: 2999-01-01T00:00:00Z
resources: {vcpus: 2, memory: 1.5GiB, disk: 2GB}
nodes:
  count: 4
  minimum: 2
env:
  THREADS: 4
  COUNTRY: NO
setup: |
  echo preparing
  touch ready
tags: {team: &t vision, again: *t}
priority: 5
retries:
  exit_code: 2
  backoff: 5s
max_runtime: 2h
budget_usd: 1.5
progress: {file: progress.txt, total: 100}
---
name: web
command: ./serve --port 8000
target: {service: {requests_per_s: 50, latency_ms: 100ms, percentile: 95}}
metrics:
  url: http://127.0.0.1:8000/metrics
  every: 10s
"""
DOCUMENTS: dict[str, tuple[str, Load, type]] = {
    "config": (package_data.path("config.example.yaml").read_text(encoding="utf-8"), load_config, Config),
    "policy": (package_data.path("policies/default.yaml").read_text(encoding="utf-8"), load_policy, Policy),
    "job": (JOB, load_job, JobFile),
}
NASTY = [
    "", "~", "[]", "{}", "-1", "0", "1e400", "1" * 5000, ".nan", "true", "'", '"', "*x", "&x",
    "!!python/name:os.system",
    "!!binary x", "[" * 40, "{a: {b: {c: ", "- - - -", "? x", "<<: 3", "%", "@", "\t", "a: b: c", "2..8", "${HOME}",
    "x" * 9999,
    '"\\0"', '"\\ud800"', "\u2028", "2030-01-01", "10 parsecs", "5G", "null", "|", ">-", "---", "...",
]  # fmt: skip
A_FEW = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def mutations(draw: st.DrawFn, text: str) -> bytes:
    """The text with one to three things done to its lines or bytes."""
    content = text.encode()
    for _ in range(draw(st.integers(1, 3))):
        lines = content.split(b"\n")
        at = draw(st.integers(0, len(lines) - 1))
        content = b"\n".join(
            draw(st.sampled_from([_value, _remove, _repeat, _misspell, _indent, _swap]))(draw, lines, at)
        )
        if draw(st.integers(0, 9)) == 0:
            cut = draw(st.integers(0, len(content)))
            content = content[:cut] + draw(st.binary(max_size=4)) + content[cut + draw(st.integers(0, 3)) :]
    return content


def _value(draw: st.DrawFn, lines: list[bytes], at: int) -> list[bytes]:
    key, colon, _ = lines[at].partition(b":")
    new = draw(st.sampled_from(NASTY) | st.text(max_size=8)).encode("utf-8", "replace")
    return [*lines[:at], key + colon + b" " + new, *lines[at + 1 :]]


def _remove(draw: st.DrawFn, lines: list[bytes], at: int) -> list[bytes]:
    return [*lines[:at], *lines[at + draw(st.integers(1, 3)) :]]


def _repeat(draw: st.DrawFn, lines: list[bytes], at: int) -> list[bytes]:
    to = draw(st.integers(0, len(lines)))
    return [*lines[:to], lines[at], *lines[to:]]


def _misspell(draw: st.DrawFn, lines: list[bytes], at: int) -> list[bytes]:
    letter = draw(st.integers(0, max(0, len(lines[at]) - 1)))
    return [*lines[:at], lines[at][:letter] + lines[at][letter + 1 :], *lines[at + 1 :]]


def _indent(draw: st.DrawFn, lines: list[bytes], at: int) -> list[bytes]:
    return [*lines[:at], draw(st.sampled_from([b" ", b"  ", b"\t", b"- "])) + lines[at], *lines[at + 1 :]]


def _swap(draw: st.DrawFn, lines: list[bytes], at: int) -> list[bytes]:
    other = draw(st.integers(0, len(lines) - 1))
    lines[at], lines[other] = lines[other], lines[at]
    return lines


def check_outcome(load: Load, kind: type, path: Path) -> None:
    """The property: a valid object, or one printable line with file and line."""
    try:
        loaded = load(path)
    except ConfigError as error:
        for line in (str(error), *getattr(error, "__notes__", ())):
            assert re.match(rf"{re.escape(str(path))}:\d+: ", line), line
            assert line.isprintable(), line
            assert len(line) < 500 + len(str(path)), line
            assert not re.search(r"pydantic|Input should|validation error|Traceback|object at 0x", line), line
    else:
        assert all(isinstance(each, kind) for each in (loaded if isinstance(loaded, tuple) else (loaded,)))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_mutated_file_is_valid_or_refused_with_one_line(name: str, tmp_path: Path) -> None:
    text, load, kind = DOCUMENTS[name]
    path = tmp_path / "file.yaml"

    @A_FEW
    @given(mutations(text))
    def holds(content: bytes) -> None:
        path.write_bytes(content)
        check_outcome(load, kind, path)

    holds()


def _lenient(path: Path) -> Any:
    return yaml.safe_load(path.read_bytes())


def _without_lines(path: Path) -> Policy:
    return parse_policy(yaml.safe_load(path.read_text()))


def _with_raw_error(path: Path) -> Policy:
    try:
        return load_policy(path)
    except ConfigError as error:
        raise ConfigError(f"1 validation error\n{error}", where=f"{path}:1") from error


@pytest.mark.parametrize("faulty", [_lenient, _without_lines, _with_raw_error])
def test_mutations_catch_a_loader_that_lets_mistakes_through(faulty: Load, tmp_path: Path) -> None:
    text, _, kind = DOCUMENTS["policy"]
    path = tmp_path / "file.yaml"

    @settings(A_FEW, phases=[Phase.generate])
    @given(mutations(text))
    def holds(content: bytes) -> None:
        path.write_bytes(content)
        check_outcome(faulty, kind, path)

    with pytest.raises((AssertionError, ConfigError, yaml.YAMLError, UnicodeDecodeError, ExceptionGroup)):
        holds()


def keys_of(text: str) -> list[tuple[int, str]]:
    """Line number and name of every key that the schema knows."""
    free = {"default", "THREADS", "COUNTRY", "team", "again"}
    found = [(number, re.match(r"\s*(?:- )?([a-z_]+):", line)) for number, line in enumerate(text.splitlines(), 1)]
    return [(number, match[1]) for number, match in found if match and match[1] not in free]


def misspelt(key: str, at: int, how: str) -> str:
    at %= len(key)
    if how == "drop":
        return key[:at] + key[at + 1 :]
    if how == "double":
        return key[:at] + key[at] + key[at:]
    return key[:at] + key[at : at + 2][::-1] + key[at + 2 :]


def hint_for(load: Load, text: str, number: int, key: str, wrong: str, path: Path) -> str:
    """What is said when ``key`` in line ``number`` is spelt ``wrong``."""
    lines = text.splitlines()
    lines[number - 1] = lines[number - 1].replace(f"{key}:", f"{wrong}:", 1)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load(path)
    return str(refused.value)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_misspelt_key_is_named_with_its_line_and_the_right_spelling(name: str, tmp_path: Path) -> None:
    text, load, _ = DOCUMENTS[name]
    path = tmp_path / "file.yaml"
    keys = [(number, key) for number, key in keys_of(text) if len(key) >= 4]
    assert len(keys) >= 15

    @settings(A_FEW, max_examples=60)
    @given(st.sampled_from(keys), st.integers(0, 30), st.sampled_from(["drop", "double", "swap"]))
    def holds(place: tuple[int, str], at: int, how: str) -> None:
        number, key = place
        wrong = misspelt(key, at, how)
        if wrong == key:
            return
        said = hint_for(load, text, number, key, wrong, path)
        assert said.startswith(f"{path}:{number}: "), said
        assert said.endswith(f"{wrong}: unknown key; did you mean {key!r}?"), said

    holds()


def test_misspelling_property_catches_a_loader_that_looks_only_at_the_top(tmp_path: Path) -> None:
    def shallow(path: Path) -> Policy:
        raise ConfigError(f"unknown key; one of {list(_lenient(path))}", where=f"{path}:1")

    said = hint_for(shallow, "caps:\n  max_vcpus: null\n", 2, "max_vcpus", "max_vcpu", tmp_path / "file.yaml")
    assert not said.startswith(f"{tmp_path / 'file.yaml'}:2: ")


def read_without_libyaml(path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """What is read, or said, where PyYAML was built without libyaml."""
    with monkeypatch.context() as patch:
        patch.setattr(yaml, "__with_libyaml__", False)
        return read(path)


def read(path: Path) -> object:
    """The documents of a file with their lines, or what is said of it."""
    try:
        return read_documents(path)
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_mutated_file_is_read_as_without_libyaml(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.yaml"

    @A_FEW
    @given(mutations(DOCUMENTS[name][0]))
    def holds(content: bytes) -> None:
        path.write_bytes(content)
        assert read(path) == read_without_libyaml(path, monkeypatch)

    holds()


@pytest.mark.parametrize("text", ["a: !", "a: [b?]", "a: {b:\t1}", "a: [b\t,c]", "a: >#\n b"])
def test_text_that_libyaml_reads_otherwise_is_read_as_without_it(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    without = read_without_libyaml(path, monkeypatch)
    assert read(path) == without
    monkeypatch.setattr("hcloud.config.document._DISPUTED", re.compile("(?!)"))  # the fault: libyaml reads everything
    assert read(path) != without
