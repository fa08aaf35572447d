"""What a launch asks EC2 for, and what it makes of EC2's answers."""

import logging
import os
import re
from dataclasses import replace
from typing import Any

import pytest

from hcloud.core.errors import InsufficientCapacity, LaunchRejected, OutcomeUnknown, ProviderUnavailable, Throttled
from hcloud.core.model import Market, Offer
from hcloud.provider import CloudState
from providers.ec2 import factory
from providers.ec2.clients import Clients
from tests.providers.ec2.ec2_bench import SECRET, Ec2Bench, settings_for
from tests.providers.ec2.fake_ec2 import REGION, FakeEc2, orders_in
from tests.waiting import wait_until


def offer_of(bench: Ec2Bench, market: Market, type_name: str = "m5.large", zone: str = f"{REGION}a") -> Offer:
    keyed = {each.key: each for each in bench.provider.offers()}
    return keyed["ec2", zone, type_name, market.value]


def run_calls(fake: FakeEc2) -> list[dict[str, str]]:
    return [dict(each.parameters) for each in fake.calls if each.action == "RunInstances"]


def test_machines_are_closed_up_encrypted_tagged_and_end_with_their_system(bench: Ec2Bench) -> None:
    request = bench.order(offer_of(bench, Market.ON_DEMAND))
    bench.provider.launch(request)
    [machine] = bench.fake.machines()
    [sent] = run_calls(bench.fake)
    assert machine.metadata_options.http_tokens == "required"
    assert sent["MetadataOptions.HttpPutResponseHopLimit"] == "1"
    assert machine.instance_initiated_shutdown_behavior == "terminate"
    assert sent["NetworkInterface.1.AssociatePublicIpAddress"] == "false"
    assert sent["BlockDeviceMapping.1.Ebs.Encrypted"] == "true"
    assert sent["BlockDeviceMapping.1.Ebs.DeleteOnTermination"] == "true"
    assert sent["ClientToken"] == request.token
    assert machine.placement.zone == request.offer.zone
    tags = {each["key"]: each["value"] for each in machine.get_tags()}
    assert tags["hcloud:owner"] == bench.owner
    assert tags["hcloud:instance"] == request.instance_id
    assert tags["hcloud:token"] == request.token
    assert float(tags["hcloud:expires-at"]) == pytest.approx(request.expires_at)
    assert tags["job"] == request.tags["job"]
    assert {sent[f"TagSpecification.{n}.ResourceType"] for n in (1, 2, 3)} == {
        "instance",
        "volume",
        "network-interface",
    }


def test_spot_machines_are_asked_for_once_and_end_when_taken_back(bench: Ec2Bench) -> None:
    bench.provider.launch(bench.order(offer_of(bench, Market.SPOT)))
    [machine] = bench.fake.machines()
    [sent] = run_calls(bench.fake)
    assert machine.lifecycle == "spot"
    assert sent["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
    assert sent["InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior"] == "terminate"


def test_user_data_tells_where_the_gateway_is_and_lets_that_launch_enrol(bench: Ec2Bench) -> None:
    bench.provider.launch(bench.order())
    [machine] = bench.fake.machines()
    orders = orders_in(machine.user_data)
    assert orders["gateway_addresses"] == ["10.0.0.1:8786"]
    assert orders["enrolment_addresses"] == ["10.0.0.1:8787"]
    assert (orders["authority_pem"], orders["enrolment_secret"]) == ("CERTIFICATE", SECRET)


def test_engine_that_machines_cannot_reach_is_refused_before_anything_is_sent(bench: Ec2Bench) -> None:
    bench.settings = {key: value for key, value in bench.settings.items() if key != "gateway_addresses"}
    provider = bench.build({})
    with pytest.raises(LaunchRejected, match=r"cannot reach 127\.0\.0\.1:8786: set engine\.gateway_addresses"):
        provider.launch(bench.order())
    assert run_calls(bench.fake) == []


def test_stockout_is_told_after_one_try_and_throttled_reads_are_repeated(bench: Ec2Bench) -> None:
    bench.fake.arm("RunInstances", "stockout")
    with pytest.raises(InsufficientCapacity, match="InsufficientInstanceCapacity"):
        bench.provider.launch(bench.order())
    assert bench.fake.count("RunInstances") == 1
    before = bench.fake.count("DescribeInstances")
    bench.fake.arm("DescribeInstances", "throttle")
    with pytest.raises(Throttled):
        bench.provider.instances(bench.owner)
    assert bench.fake.count("DescribeInstances") == before + 2  # read_attempts of these tests


class ImpatientWrites(Clients):
    """Waits a second for the answer to a write, and as long as it takes for reads."""

    def writing(self, service: str = "ec2") -> Any:
        settings = self._settings.model_copy(update={"timeout_s": 1.0})
        return Clients("ec2", settings).writing(service)


def test_answer_that_never_comes_is_unknown_and_the_token_finds_the_machine(bench: Ec2Bench) -> None:
    request = bench.order()
    impatient = bench.build({})
    impatient.clients = ImpatientWrites("ec2", impatient.settings)
    bench.fake.arm("RunInstances", "hold")
    try:
        with pytest.raises(OutcomeUnknown):
            impatient.launch(request)
        wait_until(lambda: not bench.fake.unused_faults() and bench.fake.machines(), timeout_s=60)
    finally:
        bench.fake.release()
    assert bench.provider.launch(request).token == request.token
    assert len(bench.fake.machines()) == 1


def test_neither_keys_nor_signatures_are_ever_logged(bench: Ec2Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bench.provider = bench.restarted()
    bench.provider.launch(bench.order())
    for secret in (SECRET, os.environ["AWS_SECRET_ACCESS_KEY"], "Signature="):
        assert secret not in caplog.text


def test_endpoint_nobody_listens_at_was_certainly_not_reached(bench: Ec2Bench) -> None:
    provider = bench.build({"endpoint_url": "http://127.0.0.1:9", "read_attempts": 1})
    with pytest.raises(ProviderUnavailable):
        provider.offers()
    with pytest.raises(ProviderUnavailable):
        provider.instances(bench.owner)
    with pytest.raises(ProviderUnavailable):
        provider.terminate(["i-0123456789abcdef0"])


def test_error_page_of_a_proxy_is_no_answer(bench: Ec2Bench) -> None:
    request = bench.order()
    bench.fake.arm("RunInstances", "page")
    with pytest.raises(OutcomeUnknown):
        bench.provider.launch(request)
    bench.fake.arm("DescribeInstances", "page")
    with pytest.raises(ProviderUnavailable):
        bench.provider.instances(bench.owner)
    assert bench.provider.launch(request).state is CloudState.PENDING


def test_token_repeated_with_other_words_finds_its_machine(bench: Ec2Bench) -> None:
    request = bench.order()
    first = bench.provider.launch(request)
    # Another daemon, without the note that this token was sent, and with another image or policy meanwhile.
    other = factory("ec2", {**bench.settings, "disk_gib": 40}, bench.clock, bench.owner, str(bench.home / "other"))
    assert other.launch(request).provider_id == first.provider_id
    assert len(bench.fake.machines()) == 1


def test_token_of_a_machine_long_gone_launches_nothing(bench: Ec2Bench) -> None:
    request = bench.order(expires_at=bench.clock.now() + 7 * 86_400)
    machine = bench.provider.launch(request)
    bench.until_running(machine)
    bench.provider.terminate([machine.provider_id])
    bench.let_pass(2 * 3600)
    assert bench.listed() == ()
    with pytest.raises(LaunchRejected, match="no longer listed"):
        bench.provider.launch(request)
    assert bench.listed() == ()


def test_token_of_somebody_else_is_refused(bench: Ec2Bench) -> None:
    request = bench.order()
    bench.provider.launch(request)
    with pytest.raises(LaunchRejected, match=re.escape(request.token)):
        bench.provider.launch(replace(request, instance_id="inst-other"))


def test_ended_and_foreign_ids_never_keep_others_from_ending(bench: Ec2Bench) -> None:
    machines = [bench.provider.launch(bench.order()) for _ in range(3)]
    ids = ["i-00000000000000001", machines[0].provider_id, "i-00000000000000002", machines[2].provider_id]
    bench.provider.terminate(ids)
    bench.let_pass(30)
    states = {each.provider_id: each.state for each in bench.listed()}
    assert [states[each.provider_id] for each in machines] == [
        CloudState.TERMINATED,
        CloudState.RUNNING,
        CloudState.TERMINATED,
    ]


def test_stopped_machine_is_told_as_one_that_still_costs_money(bench: Ec2Bench) -> None:
    machine = bench.until_running(bench.provider.launch(bench.order()))
    next(each for each in bench.fake.machines() if each.id == machine.provider_id).stop()
    [found] = bench.listed()
    assert found.state is CloudState.RUNNING
    assert found.detail.startswith("stopped, not terminated")


def test_machine_taken_back_unheard_is_told_as_taken_back(bench: Ec2Bench) -> None:
    machine = bench.until_running(bench.provider.launch(bench.order(offer_of(bench, Market.SPOT))))
    bench.fake.bodies[machine.provider_id].preempt_at = bench.clock.now() + 1
    bench.let_pass(60)
    [ended] = bench.listed()
    assert ended.state is CloudState.TERMINATED
    assert ended.preempt_at == ended.terminated_at == pytest.approx(bench.clock.now() - 59, abs=1)


def test_warnings_outlive_the_daemon_and_a_queue_that_is_away(bench: Ec2Bench) -> None:
    machine = bench.until_running(bench.provider.launch(bench.order()))
    bench.fake.preempt(machine.provider_id, bench.queue_url)
    [noticed] = bench.listed()
    assert noticed.preempt_at is not None
    bench.fake.arm("ReceiveMessage", "internal", times=2)
    again = bench.restarted()
    [found] = again.instances(bench.owner).instances
    assert found.preempt_at == noticed.preempt_at
    assert "unread queue" in again.facts()


def test_listing_of_many_pages_is_whole(bench: Ec2Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("providers.ec2.provider.PAGE", 5)
    launched = {bench.provider.launch(bench.order()).provider_id for _ in range(12)}
    bench.let_lists_settle()
    before = bench.fake.count("DescribeInstances")
    assert {each.provider_id for each in bench.listed()} == launched
    assert bench.fake.count("DescribeInstances") == before + 3


def test_public_address_groups_and_keys_are_given_where_set(fake: FakeEc2, bench: Ec2Bench) -> None:
    group = bench.provider.clients.writing().describe_security_groups()["SecurityGroups"][0]["GroupId"]
    chosen = {"public_ip": True, "security_groups": [group], "kms_key": "alias/disks", "tags": {"team": "a"}}
    provider = factory("ec2", settings_for(fake, **chosen), bench.clock, bench.owner, str(bench.home / "b"))
    provider.launch(bench.order())
    [sent] = run_calls(fake)
    assert sent["NetworkInterface.1.AssociatePublicIpAddress"] == "true"
    assert sent["NetworkInterface.1.SecurityGroupId.1"] == group
    assert sent["BlockDeviceMapping.1.Ebs.KmsKeyId"] == "alias/disks"
    assert "team" in sent.values()
