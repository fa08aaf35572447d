"""The worker's own look at the metadata service: taken-back machines are noticed, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.core.clock import ManualClock
from hcloud.engine.bootstrap import Bootstrap
from hcloud.engine.metadata import GCE_NOTICE_S, REBALANCE_S, Asker, Ec2Metadata, GceMetadata, Watch, watch
from tests.engine.metadata_service import ACTION, PREEMPTED, REBALANCE, MetadataService, metadata_service
from tests.waiting import wait_until

AT = 1_900_000_000.0
TOLD = '{"action": "terminate", "time": "2030-03-17T17:46:40Z"}'
ADVISED = '{"noticeTime": "2030-03-17T17:46:40Z"}'


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with metadata_service() as served:
        yield served


def ec2(service: MetadataService, *, heed_rebalance: bool = False) -> Ec2Metadata:
    return Ec2Metadata(Asker(service.url), heed_rebalance=heed_rebalance)


def test_nothing_planned_is_no_notice_and_the_token_is_asked_for_once(service: MetadataService) -> None:
    source = ec2(service)
    assert [source.look(), source.look()] == [None, None]
    assert service.asked == ["/latest/api/token", ACTION, ACTION]


def test_interruption_tells_its_time(service: MetadataService) -> None:
    service.documents[ACTION] = TOLD
    assert ec2(service).look() == AT


def test_token_that_has_run_out_is_renewed(service: MetadataService) -> None:
    source = ec2(service)
    source.look()
    service.token, service.documents[ACTION] = "token-2", TOLD
    assert source.look() == AT


def test_recommendation_to_leave_counts_only_where_it_is_heeded(service: MetadataService) -> None:
    service.documents[REBALANCE] = ADVISED
    assert ec2(service).look() is None
    heedful = ec2(service, heed_rebalance=True)
    assert heedful.look() == AT + REBALANCE_S
    service.documents[ACTION] = TOLD
    assert heedful.look() == AT


def test_gce_answers_when_preemption_begins_and_not_before(service: MetadataService) -> None:
    service.documents[PREEMPTED] = "FALSE"
    source = GceMetadata(Asker(service.url), ManualClock(AT))
    assert source.look() is None
    service.change(PREEMPTED, "TRUE")
    assert source.look() == AT + GCE_NOTICE_S


def _bootstrap(tmp_path: Path, service: MetadataService, **settings: str) -> Bootstrap:
    return Bootstrap(
        instance_id="inst-1",
        gateway_addresses=("10.0.0.1:8786",),
        enrolment_addresses=("10.0.0.1:8787",),
        authority_pem="",
        state_dir=tmp_path,
        expires_at=AT,
        settings={"preempt_file": str(tmp_path / "run" / "preempt.json"), "metadata_url": service.url, **settings},
    )


def _noticed(tmp_path: Path) -> float | None:
    file = tmp_path / "run" / "preempt.json"
    return float(json.loads(file.read_text())["preempt_at"]) if file.exists() else None


def test_worker_on_gce_writes_its_notice_down_the_moment_it_is_told(tmp_path: Path, service: MetadataService) -> None:
    service.documents[PREEMPTED] = "FALSE"
    watching = watch(_bootstrap(tmp_path, service, notice="gce"), ManualClock(AT))
    assert watching is not None
    wait_until(lambda: service.asked.count(PREEMPTED) >= 1, timeout_s=60)
    service.change(PREEMPTED, "TRUE")
    wait_until(lambda: _noticed(tmp_path) is not None, timeout_s=60)
    watching.end()
    assert _noticed(tmp_path) == AT + GCE_NOTICE_S


def test_service_that_answers_nonsense_or_not_at_all_is_no_notice(tmp_path: Path, service: MetadataService) -> None:
    file = tmp_path / "preempt.json"
    service.broken = True
    confused = Watch(ec2(service), file, 0.01).start()
    absent = Watch(Ec2Metadata(Asker("http://127.0.0.1:9")), file, 0.01).start()
    wait_until(lambda: service.asked.count(ACTION) >= 1, timeout_s=60)
    confused.end()
    absent.end()
    assert not file.exists()


def test_an_earlier_time_replaces_a_later_one_and_not_the_other_way(tmp_path: Path) -> None:
    told = iter([AT + 600, AT + 700, AT + 100, None])

    class Saying:
        seen = 0

        def look(self) -> float | None:
            Saying.seen += 1
            return next(told, None)

    watching = Watch(Saying(), tmp_path / "run" / "preempt.json", 0.001).start()
    wait_until(lambda: Saying.seen >= 4, timeout_s=60)
    watching.end()
    assert _noticed(tmp_path) == AT + 100


def test_worker_without_orders_watches_nothing(tmp_path: Path, service: MetadataService) -> None:
    assert watch(_bootstrap(tmp_path, service)) is None
