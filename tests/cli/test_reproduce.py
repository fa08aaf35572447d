"""``hcloud reproduce`` as people type it: no daemon, no money."""

import json

import pytest

from tests.cli.conftest import Shell


def test_what_was_run_with_the_same_size_is_not_run_again(lonely: Shell) -> None:
    words = ["reproduce", "arq", "--share", "0.03", "--seeds", "1", "--processes", "1"]
    out, _ = lonely.run(*words)
    assert "wrote results.md" in out
    kept = lonely.directory / "results" / "arq.json"
    content = json.loads(kept.read_text())
    content["found"]["Paragon, low"][0]["qos_kept_pct"] = 12.345
    kept.write_text(json.dumps(content))
    lonely.run(*words)
    assert "12.3" in (lonely.directory / "results.md").read_text()
    assert (lonely.directory / "results" / "arq.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--figure", "nosuch"], "there is no such figure; there are arq"),
        (["quasar", "--figure", "mappings"], "none of these figures belongs to the chapters named"),
        (["tarcil"], "tarcil"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(lonely: Shell, words: list[str], sentence: str) -> None:
    _, err = lonely.run("reproduce", *words, exit_code=2)
    assert sentence in err
    assert not (lonely.directory / "results").exists()
