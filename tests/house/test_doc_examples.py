"""Every example in the documents runs, parses or names something that exists; the harness is shown to notice lies."""

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from hcloud.cli.main import cli
from tests.house import doc_examples as docs
from tests.house import tree

DOCUMENTS = docs.documents()
LOADERS = {"job": "load_job", "policy": "load_policy", "config": "load_config"}


@cache
def verb_exists(verb: str) -> bool:
    """Whether there is such a command; that each explains itself is tested with the others of the program."""
    return cli.get_command(click.Context(cli), verb) is not None


@pytest.fixture
def session(tmp_path: Path) -> Iterator[docs.Session]:
    opened = docs.Session(tmp_path)
    yield opened
    opened.close()


def document_blocks(path: Path) -> list[docs.Block]:
    return docs.blocks(path.read_text(encoding="utf-8"), tree.relative(path))


@pytest.mark.parametrize("document", DOCUMENTS, ids=tree.relative)
def test_document_examples_work_in_order(document: Path, session: docs.Session) -> None:
    for block in document_blocks(document):
        run_block(block, session)


def run_block(block: docs.Block, session: docs.Session) -> None:
    if block.language == "console":
        for command in docs.commands(block):
            session.run(command)
    elif block.language in {"yaml", "json"}:
        check_block(block, session.directory)


def check_block(block: docs.Block, directory: Path) -> None:
    docs.check_data(block)
    path = directory / (block.file_name or "example.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")
    for tag in block.tags:
        if tag in LOADERS:
            config = importlib.import_module("hcloud.config")
            getattr(config, LOADERS[tag])(path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=tree.relative)
def test_shell_lines_name_targets_and_verbs_that_exist(document: Path) -> None:
    targets = docs.make_targets()
    for block in document_blocks(document):
        for line in block.text.splitlines() if block.language in {"sh", ""} else []:
            assert docs.wrong_shell_line(line, block.where, targets, verb_exists) is None


CONSOLE = """Text.
```console
$ hcloud status   # exit 3
cannot reach ... daemon
$ hcloud daemon &
$ hcloud submit \\
>   job.yaml
```
```yaml job file=job.yaml
name: x
```
"""


def test_blocks_and_commands_are_found_with_their_lines() -> None:
    console, job = docs.blocks(CONSOLE, "d.md")
    assert (job.where, job.tags, job.file_name) == ("d.md:9", ("job", "file=job.yaml"), "job.yaml")
    first, second, third = docs.commands(console)
    assert (first.where, first.line, first.expected_exit) == ("d.md:3", "hcloud status", 3)
    assert first.expected_output == ("cannot reach ... daemon",)
    assert (second.line, second.background) == ("hcloud daemon", True)
    assert third.line == "hcloud submit job.yaml"


def test_block_that_is_never_closed_is_refused() -> None:
    with pytest.raises(ValueError, match="never closed"):
        docs.blocks("```sh\nls\n", "d.md")


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ((), "anything", True),
        (("job-1  done",), "job-1 done\n", True),
        (("job-... done",), "job-17 done\n", True),
        (("...", "total 3"), "a\nb\ntotal   3\n", True),
        (("job-... done",), "job-17 failed\n", False),
        (("total 3",), "a\ntotal 3\n", False),
        (("total 3", "..."), "total 4\n", False),
        (("cost (usd)",), "cost usd\n", False),
    ],
)
def test_output_is_compared_loosely_but_compared(expected: tuple[str, ...], actual: str, same: bool) -> None:
    assert docs.output_matches(expected, actual) is same


@pytest.mark.parametrize(
    "lie",
    ["$ echo one\ntwo\n", "$ ls /nowhere-at-all\n", "$ echo one  # exit 4\n", "$ rm -rf precious\n"],
    ids=["other output", "fails", "other exit code", "not allowed"],
)
def test_a_lie_in_a_console_block_is_noticed(lie: str, session: docs.Session) -> None:
    with pytest.raises(AssertionError):
        run_block(docs.blocks(f"```console\n{lie}```\n", "d.md")[0], session)


def test_a_true_console_block_passes_and_sees_files_shown_before(session: docs.Session) -> None:
    text = "```yaml file=a/job.yaml\nname: x\n```\n```console\n$ cat a/job.yaml\nname: x\n$ ls nothing  # exit 2\n```\n"
    for block in docs.blocks(text, "d.md"):
        run_block(block, session)


@pytest.mark.parametrize("broken", ["```yaml\na: [\n```\n", "```json\n{\n```\n"])
def test_data_that_does_not_parse_is_noticed(broken: str, session: docs.Session) -> None:
    with pytest.raises(Exception, match=r"expected|Expecting"):
        run_block(docs.blocks(broken, "d.md")[0], session)


@pytest.mark.parametrize("line", ["make coffee", "$ make coffee", "hcloud dance", "sudo hcloud dance"])
def test_a_target_or_verb_that_does_not_exist_is_noticed(line: str) -> None:
    assert docs.wrong_shell_line(line, "d.md:1", docs.make_targets(), lambda verb: verb == "status")


@pytest.mark.parametrize("line", ["make demo   # try it", "hcloud status", "sudo systemctl status", "make", ""])
def test_lines_that_are_right_pass(line: str) -> None:
    assert docs.wrong_shell_line(line, "d.md:1", docs.make_targets(), lambda verb: verb == "status") is None
