"""From the user data to the first result: a machine boots, registers over TLS with a real engine, and runs a unit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.core.clock import SystemClock
from hcloud.engine.bundle import AgentBundle, build
from hcloud.engine.tls import authority_pem, enrolment_secret, launch_key
from hcloud.provider import UnitSpec, WorkerBootstrap
from providers.cloud_init import WorkerSetup, render_user_data
from tests.engine.metadata_service import PREEMPTED, metadata_service
from tests.engine.site import SMALL, Site, Watch
from tests.house.tree import ROOT
from tests.machine import needs
from tests.providers.test_cloud_init import SETUP
from tests.waiting import wait_until

PATIENCE_S = 60.0
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def can_boot() -> bool:
    """Whether this host lets us have a file system and processes of our own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    overlay = "mount -t overlay o -o lowerdir=/etc,upperdir=/run/u,workdir=/run/w /etc"
    trial = f"mount -t tmpfs t /run && mkdir /run/u /run/w && {overlay}"
    return subprocess.run([*NAMESPACES, "sh", "-c", trial], capture_output=True, check=False).returncode == 0


pytestmark = needs(can_boot(), "needs root, namespaces and overlayfs")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> AgentBundle:
    return build(tmp_path_factory.mktemp("agents"))


@pytest.fixture
def site(bundle: AgentBundle, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "site", archives=bundle.path.parent)
    try:
        yield site
    finally:
        site.close()


def boot(setup: WorkerSetup, notes: Path) -> subprocess.Popen[bytes]:
    """Boot a machine from what a provider would send."""
    notes.mkdir()
    user_data = notes / "user-data"
    user_data.write_text(render_user_data(setup))
    command = [
        *NAMESPACES,
        sys.executable,
        str(ROOT / "tests/providers/boot.py"),
        str(user_data),
        str(notes),
        os.path.realpath(sys.executable),
    ]
    with (notes / "boot.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def orders(site: Site, bundle: AgentBundle, **settings: str) -> WorkerSetup:
    """What a provider tells a machine of this site."""
    name, token = SETUP.request.instance_id, SETUP.request.token
    site.admit(name, launch_token=token)
    bootstrap = WorkerBootstrap(
        gateway_addresses=(f"engine.of-the-test:{site.address.rpartition(':')[2]}",),
        authority_pem=authority_pem(site.tls_dir),
        enrolment_secret=enrolment_secret(launch_key(site.tls_dir), token),
        isolation="best_effort",
        settings={"unit_uid_base": "63900", **settings},
        agents={bundle.name: bundle.sha256},
    )
    request = replace(SETUP.request, bootstrap=bootstrap, expires_at=SystemClock().now() + 3600)
    return replace(
        SETUP,
        request=request,
        system_packages=False,
        notice="gce",
    )


def written_by(notes: Path) -> str:
    """Everything the machine wrote down, for when it fails."""
    return "\n".join(
        f"--- {each.name}\n{each.read_text()}" for each in sorted(notes.glob("*")) if each.suffix == ".log"
    )


def test_machine_registers_runs_a_unit_and_tells_that_it_is_taken_back(
    site: Site, bundle: AgentBundle, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    with metadata_service() as service:
        service.documents[PREEMPTED] = "FALSE"
        machine = boot(orders(site, bundle, metadata_url=service.url), notes)
        try:
            runner = site.runner()
            seen = Watch(runner)
            assert runner.agents() == {bundle.name: bundle.sha256}
            wait_until(lambda: {each.instance_id for each in runner.observe().workers} == {"inst-1"}, PATIENCE_S)
            unit = UnitSpec(
                id="job-1.1.0",
                instance_id="inst-1",
                rank=0,
                command=("/bin/sh", "-c", "echo $((6 * 7))"),
                resources=SMALL,
            )
            record, output = seen.run(unit)
            assert (record.exit_code, output) == (0, "42\n")
            calls = (notes / "calls").read_text().splitlines()
            assert calls[0].startswith("systemd-run --unit=hcloud-deadline")
            wait_until(lambda: "systemctl stop hcloud-deadline.timer" in (notes / "calls").read_text(), PATIENCE_S)
            service.change(PREEMPTED, "TRUE")
            wait_until(lambda: [each.preempt_at for each in runner.observe().workers] != [None], PATIENCE_S)
        except AssertionError as failed:
            raise AssertionError(written_by(notes)) from failed
        finally:
            machine.kill()
            machine.wait()


def test_machine_whose_setup_fails_never_disarms_its_deadline(site: Site, bundle: AgentBundle, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    setup = orders(site, replace(bundle, sha256="0" * 64))
    machine = boot(setup, notes)
    try:
        wait_until(lambda: "/agent/ answers 404" in written_by(notes), PATIENCE_S)
    finally:
        machine.kill()
        machine.wait()
    assert [each for each in (notes / "calls").read_text().splitlines() if each.startswith("systemctl")] == []
