"""What makes a new machine a worker: its metadata, where its keys come from, and what an unfit image does."""

import base64
import gzip
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from hcloud.provider import WorkerBootstrap
from providers.gce.worker_metadata import WITHOUT_CLOUD_INIT
from tests.providers.gce.bench import GceBench
from tests.providers.gce.test_launching import asked, offer_in

ENGINE = WorkerBootstrap(
    gateway_addresses=("engine.example.org:8786",), authority_pem="CERTIFICATE", enrolment_secret="the-secret"
)


def _metadata(bench: GceBench) -> dict[str, str]:
    return {item["key"]: item["value"] for item in asked(bench)["metadata"]["items"]}


def test_machine_is_told_by_cloud_init_how_to_become_a_worker(bench: GceBench) -> None:
    bench.provider.launch(bench.request(offer=offer_in(bench), bootstrap=ENGINE))
    user_data = _metadata(bench)["user-data"]
    assert user_data.startswith("#cloud-config\n")
    orders = json.loads(_unpacked(user_data)["/etc/hcloud/bootstrap.json"])
    assert (orders["enrolment_addresses"], orders["enrolment_secret"]) == (["engine.example.org:8787"], "the-secret")


@pytest.mark.parametrize(("programs", "calls"), [(("cloud-init", "systemctl"), ""), (("systemctl",), "poweroff\n")])
def test_image_without_cloud_init_switches_off(tmp_path: Path, programs: tuple[str, ...], calls: str) -> None:
    called = tmp_path / "called"
    called.touch()
    for name in programs:
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "$@" >>{called}\n')
        program.chmod(0o755)
    subprocess.run(["/bin/sh", "-c", WITHOUT_CLOUD_INIT], env={"PATH": str(tmp_path)}, check=True)
    assert called.read_text() == calls


def _unpacked(user_data: str) -> dict[str, str]:
    """The files that cloud-init writes."""
    files = yaml.safe_load(user_data)["write_files"]
    packed = [each for each in files if each.get("encoding") == "gz+b64"]
    return {each["path"]: gzip.decompress(base64.b64decode(each["content"])).decode() for each in packed}
