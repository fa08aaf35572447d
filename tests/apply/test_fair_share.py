"""What owners used lately is counted cycle by cycle, and orders the queue."""

from hcloud.core.model import JobState, Resources
from tests.apply.conftest import MakeDeployment


def test_whoever_used_the_machine_lets_others_go_first(make: MakeDeployment) -> None:
    policy = {"caps": {"max_instances": 1}, "admission": {"fair_share": "tag:team", "queues": "one"}}
    site = make(None, policy)
    resources = Resources(vcpus=2.0, memory_mib=512, disk_gib=1.0)
    site.submit("sleep", "1")
    site.until(lambda: site.state(1) is JobState.SUCCEEDED)
    site.submit("sleep", "30", resources=resources, tags={"team": "a"}, user="ann")
    site.cycle(25)  # the machine costs enough by then to count
    site.submit("sleep", "1", resources=resources, tags={"team": "a"}, user="ann")
    site.submit("sleep", "1", resources=resources, tags={"team": "b"}, user="bob")
    site.until(lambda: site.state(2) is JobState.SUCCEEDED)
    controller = site.scene.controller
    assert controller.last_snapshot.usage_usd["a"] > 0.0
    assert controller.fair_share(site.job(4).spec).startswith("fair share: team=b used $0.00 lately; ")
    site.until(lambda: site.state(4) is JobState.SUCCEEDED)
    assert site.state(3) is not JobState.SUCCEEDED
    site.until(lambda: site.state(3) is JobState.SUCCEEDED)
