"""The shipped Grafana board shows what is really scraped: every series it names is there, and none is left out."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hcloud.config import package_data
from tests.api.deployment import POLICY, READER, Deployment, job
from tests.deploy.promtool import Case, failures
from tests.machine import needs_promtool

BOARD: dict[str, Any] = json.loads(package_data.path("deploy/grafana/hcloud.json").read_text())
NAME = re.compile(r"\bhcloud_[a-z_]+")
LABEL = re.compile(r"by \((\w+)\)|(?:[{,] *)(\w+)[!=]")


def series(text: str) -> dict[str, set[str]]:
    """Return the labels of each series in Prometheus' text."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', line))
    return found


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a daemon shows that has run a job with a deadline, has a budget, and left a job out."""
    policy = {**POLICY, "budgets": {"per_day_usd": 5.0}}
    deployment = Deployment(tmp_path_factory.mktemp("board"), policy=policy)
    client = deployment.client(0)
    client.post("/v1/jobs", json=[job(target={"batch": {"within": "10min"}})])
    deployment.cycle_until(lambda: not deployment.store.live().jobs)
    deployment.cycle()
    deployment.telemetry.record_cycle(0.1)
    status: Any = deployment.status()
    status["cycle"]["left_out"] = {"job-7": "ValueError"}
    status["engine"]["refused"] = {"certificate": 2}
    deployment.context = replace(deployment.context, status=lambda: status)
    found: str = deployment.client(READER).get("/metrics").text
    deployment.close()
    return found


@pytest.fixture(scope="module")
def scraped(text: str) -> dict[str, set[str]]:
    """The labels of each series that is scraped."""
    return series(text)


def expressions(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def unknown(board: dict[str, Any], scraped: dict[str, set[str]]) -> list[str]:
    """Return the series and labels a board asks for that nobody exposes (``job`` is Prometheus' own)."""
    missing = []
    for expression in expressions(board):
        names = NAME.findall(expression)
        missing += [name for name in names if name not in scraped]
        known = {"job"}.union(*(scraped.get(name, set()) for name in names))
        asked = {one or other for one, other in LABEL.findall(expression)}
        missing += [f"{label} of {names}" for label in asked - known]
    return missing


def test_every_series_and_label_on_the_board_is_scraped(scraped: dict[str, set[str]]) -> None:
    assert unknown(BOARD, scraped) == []


def test_the_check_sees_a_series_and_a_label_that_are_not_there(scraped: dict[str, set[str]]) -> None:
    def board(expression: str) -> dict[str, Any]:
        return {"panels": [{"targets": [{"expr": expression}]}]}

    assert unknown(board("max(hcloud_nonsense)"), scraped) == ["hcloud_nonsense"]
    assert unknown(board("sum by (colour) (hcloud_jobs)"), scraped) != []
    assert unknown(board('hcloud_jobs{colour="red"}'), scraped) != []


def test_everything_scraped_is_on_the_board(scraped: dict[str, set[str]]) -> None:
    shown = {name for expression in expressions(BOARD) for name in NAME.findall(expression)}
    parts = ("_sum", "_count")  # of histograms, which are shown by their buckets
    assert {name for name in scraped if not name.endswith(parts)} - shown == set()


@needs_promtool
def test_every_panel_shows_something_of_a_daemon_that_has_worked(text: str, tmp_path: Path) -> None:
    asked = [expression.replace("$job", ".*") for expression in expressions(BOARD)]
    shown: dict[str, float | None] = {f"count({expression}) > bool 0": 1.0 for expression in asked}
    assert failures([Case(name="board", before="", after=text, at_last=shown)], tmp_path) == ""


def test_panels_have_their_own_numbers_and_places_and_ask_the_chosen_source() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert panel["description"]


def test_the_board_is_where_the_documents_say() -> None:
    assert "deploy/grafana/hcloud.json" in (package_data.root() / "docs" / "operations.md").read_text()
