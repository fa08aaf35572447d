"""Jobs are refused at submission where no machine could run their image, or give their gang a network of its own."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.config import load_config
from hcloud.core.clock import ManualClock
from hcloud.core.errors import BadInput
from hcloud.core.model import Constraints
from hcloud.daemon import Daemon, refuse_gang_networks
from hcloud.provider import Provider
from providers.ec2 import factory as ec2
from providers.gce import GceProvider
from providers.local import LocalProvider
from providers.mock import MockProvider
from tests.daemon.home import Home
from tests.planner.scenes import job, machine, offer

PLAIN = job(1).spec
WITH_IMAGE = replace(PLAIN, image="debian:12")
CUSTOM = "ami-0a1b2c3d"


def local_of(folder: Path) -> Provider:
    return LocalProvider("local", {"cgroups": False}, ManualClock(), "me", str(folder))


def ec2_of(folder: Path, **settings: object) -> Provider:
    settings = {"region": "us-east-1", "prices": {"m5.large": {"on_demand": 0.1}}, **settings}
    if "regions" in settings:
        del settings["region"]
    return ec2("aws", settings, ManualClock(), "me", str(folder))


def gce_of(folder: Path, **settings: object) -> Provider:
    (folder / "prices.json").write_text("{}")
    plain = {"project": "my-project", "zones": ["us-central1-a"], "prices_file": str(folder / "prices.json")}
    return GceProvider("gcp", {**plain, **settings}, ManualClock(), "me", str(folder))


def test_an_image_that_no_machine_can_run_is_refused_before_one_is_rented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    home.set_up()
    daemon = Daemon(load_config(home.path / "config.yaml"))
    try:
        daemon._admit([WITH_IMAGE])  # mock machines run all
        monkeypatch.setenv("PATH", str(tmp_path))  # no podman there
        lacking: dict[str, Provider] = {"local": local_of(tmp_path), "aws": ec2_of(tmp_path), "gcp": gce_of(tmp_path)}
        daemon.providers = lacking
        daemon._admit([PLAIN])
        with pytest.raises(BadInput, match=r"body\[1\]\.job\.image: can never run here: .*aws: .*no podman.*local: "):
            daemon._admit([PLAIN, WITH_IMAGE])
        for may in (
            MockProvider("mock", {}, ManualClock(), "me", str(tmp_path)),
            ec2_of(tmp_path, image=CUSTOM),
            ec2_of(tmp_path, regions={"us-east-1": {}, "eu-west-1": {"image": CUSTOM}}),
            gce_of(tmp_path, image="projects/my-project/global/images/with-podman"),
            ec2_of(tmp_path, container_images=True),
            gce_of(tmp_path, worker={"container_images": True}),
        ):
            daemon.providers = {**lacking, "other": may}
            daemon._admit([WITH_IMAGE])
    finally:
        daemon.store.close()
        daemon.runner.close()


def test_nodes_with_a_network_of_their_own_come_to_one_place_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    gang = replace(PLAIN, framework="mpi", network="none")
    west = replace(gang, placement=Constraints(labels=(("provider", "aws"), ("region", "eu-w*"))))
    providers: dict[str, Provider] = {"local": local_of(tmp_path), "aws": ec2_of(tmp_path)}
    local, near, far = (
        offer("small", provider=provider, region=region)
        for provider, region in (("local", "here"), ("aws", "eu-west-1"), ("aws", "us-east-1"))
    )
    refuse_gang_networks(providers, [local, near, far], [west, PLAIN, replace(gang, network="host")])
    refuse_gang_networks(providers, [local, local], [gang])
    refuse_gang_networks(providers, [], [gang])
    refuse_gang_networks(providers, [local], [gang], [machine(1, local, addresses=())])
    refuse_gang_networks(providers, [near], [gang], [machine(1, near, addresses=None)])
    with pytest.raises(BadInput, match=r"no machine here can \(aws: its machines name no addresses\)"):
        refuse_gang_networks(providers, [near], [gang], [machine(1, near, addresses=())])
    with pytest.raises(
        BadInput,
        match=r"^body\[1\]\.job\.network: none gives .* in one region of one provider, but they may run in aws in "
        r"eu-west-1, aws in us-east-1, local in here; set placement\.labels: {provider: aws, region: eu-west-1}$",
    ):
        refuse_gang_networks(providers, [local, near, far], [PLAIN, gang])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        BadInput, match=r"no machine here can \(local: the daemon does not run as root\); use network: host"
    ):
        refuse_gang_networks(providers, [local], [gang])


def test_a_host_with_podman_runs_images_as_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("podman", "bwrap"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for user, why in ((0, ""), (1000, "the daemon does not run as root")):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        assert LocalProvider.why_no_images(local_of(tmp_path)) == why  # type: ignore[arg-type]
