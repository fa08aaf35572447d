"""Commitments that no machine uses: their cost is reported from when they are first seen to their end."""

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hcloud.core.errors import ProviderUnavailable
from hcloud.core.model import EventKind
from hcloud.spend_ledger import SpendLedger
from tests.api.deployment import CLOUD, OWNER, POLICY, START_AT, Deployment, job
from tests.assembled import assembled
from tests.cli.conftest import Shell

HOUR_S = 3600.0
RESERVED: dict[str, object] = {**CLOUD, "markets": ["on_demand", "reserved"], "reserved": {"m.one": 2, "m.two": 0}}
USD_PER_H = 0.18
"""Of each of the two: 60 % of the price on demand."""


@contextmanager
def deployed(home: Path, **more: object) -> Iterator[Deployment]:
    deployment = Deployment(home, cloud={**RESERVED, **more})
    yield deployment
    deployment.close()


def report(deployment: Deployment, name: str, **options: str) -> dict[str, Any]:
    answer = deployment.client(0).get(f"/v1/reports/{name}", params=options)
    return dict(answer.json())


def row(document: dict[str, Any], key: str) -> dict[str, Any]:
    (found,) = (each for each in document["rows"] if next(iter(each.values())) == key)
    return dict(found)


def test_commitment_that_was_never_launched_is_a_cost_from_the_hour_it_is_seen(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        deployment.cycle(4, step_s=HOUR_S)
        (tmp_path / "user").mkdir()
        with deployment.served() as server:
            shell = Shell(
                directory=tmp_path / "user",
                environment={"HCLOUD_SOCKET": str(server.socket_path), "HOME": str(tmp_path / "user")},
            )
            document = json.loads(shell.run("report", "commitments", "-o", "json")[0])
            (line,) = csv.DictReader(io.StringIO(shell.run("report", "commitments", "-o", "csv")[0]))
            cost = json.loads(shell.run("report", "cost", "-o", "json")[0])
            shown = shell.run("report", "cost")[0]
            _, wrong = shell.run("report", "commitments", "--by", "commitmnt", exit_code=2)
        found = row(document, "mock/east-1a/m.one")
        assert (found["used_h"], found["unused_h"], found["machine_h"]) == (0.0, pytest.approx(8.0), 0.0)
        assert found["cost_usd"] == found["unused_usd"] == pytest.approx(8 * USD_PER_H) == -found["saved_usd"]
        assert (line["pool"], float(line["unused_h"])) == ("mock/east-1a/m.one", pytest.approx(8.0))
        assert row(cost, "(unused commitments)")["cost_usd"] == pytest.approx(8 * USD_PER_H)
        assert cost["total"]["cost_usd"] == pytest.approx(8 * USD_PER_H)
        assert "budgets and `hcloud bill` count machines only" in " ".join(shown.split())
        assert "a report is grouped by" in wrong


def test_what_machines_use_is_not_unused_and_the_total_is_ledger_plus_unused(tmp_path: Path) -> None:
    with deployed(tmp_path, boot={"p50_s": 1, "p95_s": 1}) as deployment:
        deployment.cycle()
        entry = job("a", command=["sleep", "7000"], resources={"vcpus": 2, "memory": "4GiB"})
        assert deployment.client(0).post("/v1/jobs", json=[entry]).status_code < 300
        deployment.cycle(240, step_s=30.0)
        found = row(report(deployment, "commitments"), "mock/east-1a/m.one")
        assert found["used_h"] == pytest.approx(2.0, abs=0.1) == found["machine_h"]
        assert found["unused_h"] == pytest.approx(2.0, abs=0.1)
        by_pool = row(report(deployment, "cost", by="pool"), "mock/east-1a/m.one")
        ledger = SpendLedger()
        ledger.follow(deployment.store.iter_events())
        spent_usd = ledger.spend(deployment.clock.now()).month_usd
        assert by_pool["cost_usd"] - by_pool["unused_usd"] == pytest.approx(spent_usd)
        for grouping in ("user", "market", "day", "job"):
            total = report(deployment, "cost", by=grouping)["total"]["cost_usd"]
            assert total == pytest.approx(by_pool["cost_usd"]), grouping


def test_commitment_costs_nothing_after_its_end_nor_once_it_is_gone(tmp_path: Path) -> None:
    with deployed(tmp_path, reserved_ends_at=START_AT + 2 * HOUR_S) as deployment:
        deployment.cycle()
        deployment.clock.advance(6 * HOUR_S)  # nothing was read since
        assert report(deployment, "commitments")["total"]["unused_h"] == pytest.approx(4.0)
        deployment.cycle(3)
        assert report(deployment, "commitments")["total"]["unused_h"] == pytest.approx(4.0)
        assert [each.fields["count"] for each in recorded(deployment)] == [2, 0]


def recorded(deployment: Deployment) -> list[Any]:
    return [each for each in deployment.store.iter_events() if each.kind is EventKind.COMMITMENT]


def test_unreadable_listing_is_not_the_end_of_a_commitment_and_a_restart_repeats_nothing(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        deployment.cycle()

        class Away(type(deployment.cloud)):  # type: ignore[misc]
            def offers(self) -> Any:
                raise ProviderUnavailable("the cloud does not answer")

        cloud = Away("mock", RESERVED, deployment.clock, OWNER, str(tmp_path))
        for provider in (cloud, deployment.cloud):
            again = assembled(
                tmp_path, deployment.store, provider, deployment.engine, deployment.clock, POLICY, owner=OWNER
            )
            deployment.clock.advance(HOUR_S)
            again.cycle()
        assert len(recorded(deployment)) == 1
        assert report(deployment, "commitments")["total"]["unused_h"] == pytest.approx(4.0, abs=0.01)


def test_each_day_records_it_again_so_that_pruning_loses_at_most_a_day(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        deployment.cycle(3, step_s=24 * HOUR_S)
        deployment.store.prune_events(deployment.clock.now() - 30 * HOUR_S, deployment.clock.now())
        assert len(recorded(deployment)) == 1
        total = report(deployment, "commitments")["total"]
        assert total["unused_h"] == pytest.approx(48.0)
