"""A whole deployment on the fake EC2; see :mod:`tests.providers.cloud_scene`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from hcloud.core.model import InstanceId, Resources
from hcloud.provider import SimulatedMachine
from providers.ec2 import factory
from tests.chaos.scene import OWNER, CrashPoints, FileClock, Scene
from tests.providers.cloud_scene import CloudMachines, Launched, open_scene
from tests.providers.ec2.fake_ec2 import TRUTH_PATH


class Ec2Machines(CloudMachines):
    """What the fake tells of its machines, by their ids."""

    def up(self, now: float) -> Mapping[InstanceId, tuple[str, SimulatedMachine]]:
        """See :meth:`CloudMachines.up`."""
        found = {}
        for key, told in self.ask().items():
            if told["ready_at"] <= now and told["ended_at"] is None:
                machine = SimulatedMachine(
                    instance_id=told["tags"]["hcloud:instance"],
                    capacity=Resources(vcpus=told["vcpus"], memory_mib=told["memory_mib"], disk_gib=10.0),
                    ready_at=told["ready_at"],
                    expires_at=told["expires_at"],
                    preempt_at=told["preempt_at"],
                )
                found[machine.instance_id] = (key, machine)
        return found

    def machines(self, now: float) -> list[Launched]:
        """See :meth:`CloudMachines.machines`."""
        return [Launched(key, told["tags"]["hcloud:token"], told["ended_at"]) for key, told in self.ask().items()]

    def billed_usd(self, now: float) -> float:
        """See :meth:`CloudMachines.billed_usd`."""
        billed: float = sum(
            float(told["tags"]["hcloud:usd-per-h"]) / 3600 * max(60.0, (told["ended_at"] or now) - told["born_at"])
            for told in self.ask().values()
        )
        return billed


def build_on_ec2(
    home: Path,
    crash: CrashPoints,
    *,
    settings: Mapping[str, object],
    policy: Mapping[str, object] | None = None,
    clock: Callable[[Path], FileClock] = FileClock,
) -> Scene:
    """Open the deployment in ``home``, whatever an earlier process left there."""
    moments = clock(home / "clock")
    machines = Ec2Machines(str(settings["endpoint_url"]) + TRUTH_PATH, moments, home)
    cloud = factory("ec2", settings, moments, OWNER, str(home / "ec2"))
    return open_scene(home, crash, moments, cloud, machines, home / "tls", policy)
