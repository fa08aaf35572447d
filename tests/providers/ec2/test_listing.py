"""Listings: what is dropped of them before they are read is nothing that anybody reads."""

import pytest
from botocore.loaders import Loader

from hcloud.core.model import Market
from providers.ec2.account_usage import read_running
from tests.providers.ec2.ec2_bench import Ec2Bench


def test_a_listing_without_its_bulk_says_the_same(bench: Ec2Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    by_market = {each.market: each for each in bench.provider.offers()}
    ids = [bench.provider.launch(bench.order(by_market[m])).provider_id for m in (Market.SPOT, Market.ON_DEMAND)]
    bench.let_lists_settle()
    bench.fake.kill(ids[1])
    slim = bench.build({}).instances(bench.owner).instances
    running = read_running(bench.provider.clients)
    monkeypatch.setattr("providers.ec2.clients.drop_unread_fields", lambda **_: None)
    monkeypatch.setattr("providers.ec2.clients._service_models", Loader)
    whole = bench.build({})
    assert whole.instances(bench.owner).instances == slim
    assert {each.provider_id for each in slim} == set(ids)
    assert read_running(whole.clients) == running
    assert len(running) == 1
