"""The role of the daemon allows every call that is made, and nothing besides."""

from typing import Any

import yaml

from hcloud.config import package_data
from hcloud.core.model import Market
from hcloud.provider import Examinable, Provider
from tests.providers.gce.bench import GceBench
from tests.providers.gce.permissions import needed
from tests.providers.gce.test_launching import offer_in

EVERYTHING: dict[str, Any] = {
    "types": ["e2-standard-*", "n2-custom-2-4096"],
    "markets": ["on_demand", "spot", "reserved"],
    "external_ip": True,
    "subnetwork": "private",
    "service_account": "worker@example.org",
    "network_tags": ["hcloud"],
    "image": "projects/hcloud-testing/global/images/family/worker",
}


def _role(name: str) -> set[str]:
    plain = yaml.safe_load(package_data.path(f"deploy/iam/{name}").read_text())
    return set(plain["includedPermissions"])


def _live(bench: GceBench, provider: Provider) -> None:
    """Use every call of the port, and the checks of `doctor`."""
    assert isinstance(provider, Examinable)
    provider.examine()
    machine = provider.launch(bench.request(offer=offer_in(bench, Market.ON_DEMAND, provider)))
    provider.instances(bench.owner)
    provider.terminate([machine.provider_id])
    bench.let_pass(60)
    provider.instances(bench.owner)


def test_daemons_role_is_what_its_calls_need_and_no_more(bench: GceBench) -> None:
    bench.compute.reserve("open", "us-central1-a", "e2-standard-2", count=1)
    _live(bench, bench.plain(**EVERYTHING))
    _live(bench, bench.plain())
    assert needed(bench.compute.seen) == _role("gce-daemon-role.yaml")
