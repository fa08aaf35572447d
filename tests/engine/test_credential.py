"""An agent's certificate over its life: enrolled, expired, refused; with the real gateway and the real agent."""

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from hcloud.core.clock import ManualClock, SystemClock
from hcloud.engine.bootstrap import load_bootstrap
from hcloud.engine.credential import Credential
from hcloud.engine.runner import GatewayRunner
from hcloud.engine.tls import MACHINE_LIFETIME, Authority, machine_request, new_machine_key, request_key
from tests.engine.site import PATIENCE_S, Machine, Site, next_port
from tests.waiting import wait_until

NAME = "inst-1"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"), isolation="best_effort")
    try:
        yield site
    finally:
        site.close()


def connected(runner: GatewayRunner, name: str) -> bool:
    return name in {each.instance_id for each in runner.observe().workers}


def test_a_daemon_that_was_down_for_a_month_finds_its_machines_again(site: Site) -> None:
    machine, runner = site.machine(NAME), site.runner()
    wait_until(lambda: connected(runner, NAME), PATIENCE_S)
    keys = machine.state_dir / "tls"
    assert {path.name: path.stat().st_mode & 0o077 for path in keys.iterdir()} == {"agent.key": 0, "agent.pem": 0}
    site.admit(NAME, has_registered=True)
    machine.kill()
    request = machine_request((keys / "agent.key").read_bytes())
    long_ago = ManualClock(SystemClock().now() - timedelta(days=30).total_seconds())
    (keys / "agent.pem").write_bytes(Authority(site.tls_dir, long_ago).sign(request, NAME, f"token-{NAME}"))
    wait_until(lambda: not connected(runner, NAME), PATIENCE_S)
    machine.start()
    wait_until(lambda: connected(runner, NAME), PATIENCE_S)
    renewed = Authority(site.tls_dir).identity((keys / "agent.pem").read_bytes())
    assert renewed.public_key == request_key(request)
    assert renewed.expires_at > SystemClock().now()


def test_a_connected_machine_renews_over_its_stream(site: Site) -> None:
    site.admit("inst-6", has_registered=True)
    machine, runner, key = Machine(site.folder, "inst-6", site.address, site.tls_dir), site.runner(), new_machine_key()
    plain = json.loads(machine.bootstrap_file.read_text())
    machine.bootstrap_file.write_text(json.dumps({**plain, "enrolment_addresses": ["127.0.0.1:9"]}))
    half_over = ManualClock(SystemClock().now() - MACHINE_LIFETIME.total_seconds() / 2)
    old = Authority(site.tls_dir, half_over).sign(machine_request(key), "inst-6", "token-inst-6")
    keys = machine.state_dir / "tls"
    keys.mkdir(parents=True)
    (keys / "agent.key").write_bytes(key)
    (keys / "agent.pem").write_bytes(old)
    site.machines["inst-6"] = machine
    machine.start()
    wait_until(lambda: (keys / "agent.pem").read_bytes() != old and connected(runner, "inst-6"), PATIENCE_S)
    renewed = Authority(site.tls_dir).identity((keys / "agent.pem").read_bytes())
    assert renewed.expires_at - SystemClock().now() > 0.9 * MACHINE_LIFETIME.total_seconds()


def _credential(site: Site, name: str, clock: ManualClock) -> Credential:
    site.admit(name)
    machine = Machine(site.folder, name, site.address, site.tls_dir)
    machine.state_dir.mkdir()
    return Credential(load_bootstrap(machine.bootstrap_file), clock)


@pytest.mark.parametrize(("name", "hours"), [("inst-2", -1), ("inst-3", 0), ("inst-4", 1)])
def test_a_machine_whose_clock_is_an_hour_off_renews_in_time_and_not_all_the_time(
    site: Site, name: str, hours: int
) -> None:
    clock = ManualClock(SystemClock().now() + hours * 3600.0)
    credential = _credential(site, name, clock)
    assert credential.needs_renewal() and credential.is_expired()
    credential.renew(next_port(site.address))
    assert not credential.needs_renewal()
    clock.advance(MACHINE_LIFETIME.total_seconds() / 2)
    assert credential.needs_renewal() and not credential.is_expired()
    credential.renew(next_port(site.address))  # with the key and the certificate it has


def test_why_there_is_no_certificate_is_said(site: Site) -> None:
    credential = _credential(site, "inst-5", ManualClock(SystemClock().now()))
    site.end("inst-5")
    with pytest.raises(OSError, match=r"gives no certificate: no instance 'inst-5' is being launched"):
        credential.renew(next_port(site.address))
    with pytest.raises(OSError, match=r"refused|reset"):
        credential.renew("127.0.0.1:9")


def test_another_gateways_port_is_not_believed(site: Site, tmp_path: Path) -> None:
    other = Site(tmp_path)
    try:
        credential = _credential(site, f"inst-{os.getpid()}", ManualClock(SystemClock().now()))
        with pytest.raises(OSError, match=r"certificate verify failed"):
            credential.renew(next_port(other.address))
    finally:
        other.close()
