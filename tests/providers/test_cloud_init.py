"""The user data of a rented machine, and its scripts, run with stand-ins for the system's programs."""

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import yaml

from hcloud.core.errors import LaunchRejected
from hcloud.core.model import InstanceType, Market, Offer, Resources
from hcloud.engine.bootstrap import load_bootstrap
from hcloud.provider import LaunchRequest, WorkerBootstrap
from providers.cloud_init import GUARD_GRACE_S, PREEMPT_FILE, WorkerSetup, machine_env, render_user_data
from tests.house.tree import ROOT
from tests.machine import needs
from tests.providers.agent_server import AgentServer, agent_server, archive_of

SCRIPTS = ROOT / "deploy" / "cloud-init"
NOW = 1_900_000_000
OFFER = Offer(
    provider="p",
    region="r",
    zone="z",
    instance_type=InstanceType(provider="p", name="t", capacity=Resources(vcpus=4, memory_mib=8000, disk_gib=10)),
    market=Market.SPOT,
    price_usd_per_h=1.0,
    priced_at=1.0,
)
SETUP = WorkerSetup(
    request=LaunchRequest(
        token="token-1",
        instance_id="inst-1",
        owner="me",
        offer=OFFER,
        expires_at=NOW + 600,
        bootstrap=WorkerBootstrap(
            gateway_addresses=("10.0.0.1:8786",),
            authority_pem="CERTIFICATE",
            enrolment_secret="KEY it's $HOME",
            settings={"max_log_mib": "8"},
            agents={"x86_64-3.11": "0" * 64},
        ),
    ),
    capacity=OFFER.instance_type.capacity,
    notice="ec2",
)


def files_of(text: str) -> dict[str, tuple[str, int]]:
    """Content and mode of every file that cloud-init would write."""
    found = {}
    for each in yaml.safe_load(text)["write_files"]:
        packed = each.get("encoding") == "gz+b64"
        content = gzip.decompress(b64decode(each["content"])).decode() if packed else each["content"]
        found[each["path"]] = (content, int(each["permissions"], 8))
    return found


TOOLS = (
    *(
        "sh",
        "bash",
        "env",
        "timeout",
        "tail",
        "cat",
        "echo",
        "sed",
        "cut",
        "paste",
        "rm",
        "ln",
        "mkdir",
        "chmod",
        "date",
    ),
    *("install", "dirname", "basename"),
)
"""Programs that every image has."""


class Host:
    """A directory that is a machine's root, as cloud-init would leave it, and programs that note their calls."""

    def __init__(self, root: Path, text: str) -> None:
        self.root, self.bin = root / "root", root / "bin"
        for path, (content, mode) in files_of(text).items():
            file = self.root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
            file.chmod(mode)
        self.bin.mkdir()
        self.now = NOW
        for name in ("systemctl", "apt-get", "dnf"):
            self.program(name, f'echo "{name} $*" >>"$DESTDIR/calls"')
        for name in TOOLS:
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.program("sleep", ":")
        self.program("uname", "echo x86_64")
        for name in ("python3", "python3.11"):
            self.program(name, f'exec {sys.executable} "$@"')

    def program(self, name: str, body: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        if script == "guard":
            self.program("date", f"echo {self.now}")
        return subprocess.run(
            [str(self.root / "usr/local/lib/hcloud" / script), *arguments],
            env={"PATH": str(self.bin), "DESTDIR": str(self.root), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        file = self.root / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def write(self, path: str, content: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, render_user_data(SETUP))


# ------------------------------------------------------------------------------------------------------- the user data
def test_deadline_is_armed_before_anything_else_can_fail() -> None:
    document = yaml.safe_load(render_user_data(SETUP))
    assert document["bootcmd"][0] == [
        "systemd-run",
        "--unit=hcloud-deadline",
        "--on-active=900",
        "systemctl",
        "poweroff",
    ]
    assert document["runcmd"] == [["timeout", "840", "/usr/local/lib/hcloud/setup"]]


def test_same_setup_gives_the_same_text_of_a_size_clouds_take() -> None:
    text = render_user_data(SETUP)
    assert text == render_user_data(SETUP)
    assert text.startswith("#cloud-config\n")
    assert len(text.encode()) < 10_000
    assert "@" not in text


def test_worker_understands_its_bootstrap_file(tmp_path: Path) -> None:
    file = tmp_path / "bootstrap.json"
    file.write_text(files_of(render_user_data(SETUP))["/etc/hcloud/bootstrap.json"][0])
    orders = load_bootstrap(file)
    assert orders.gateway_addresses == ("10.0.0.1:8786",)
    assert orders.enrolment_addresses == ("10.0.0.1:8787",)
    assert (orders.authority_pem, orders.enrolment_secret) == ("CERTIFICATE", "KEY it's $HOME")
    assert orders.capacity["vcpus"] == 4
    assert orders.poweroff == ("systemctl", "poweroff")
    assert orders.settings == {"max_log_mib": "8", "preempt_file": PREEMPT_FILE, "notice": "ec2"}


def test_worker_is_told_whether_a_recommendation_to_leave_counts() -> None:
    heedful = files_of(render_user_data(replace(SETUP, heed_rebalance=True)))["/etc/hcloud/bootstrap.json"][0]
    assert json.loads(heedful)["settings"]["heed_rebalance"] == "yes"
    quiet = files_of(render_user_data(replace(SETUP, notice="none")))["/etc/hcloud/bootstrap.json"][0]
    assert "notice" not in json.loads(quiet)["settings"]


def test_nothing_secret_can_be_read_by_all_on_the_machine() -> None:
    for path, (content, mode) in files_of(render_user_data(SETUP)).items():
        assert "KEY" not in content or mode == 0o600, path


@pytest.mark.parametrize("address", ["127.0.0.1:8786", "localhost:1", "0.0.0.0:8786", "[::1]:8786"])
def test_address_that_no_machine_could_dial_is_refused(address: str) -> None:
    with pytest.raises(LaunchRejected, match="a rented instance cannot reach"):
        render_user_data(replace(SETUP, gateway_addresses=("10.0.0.1:1", address)))


def variables_of(setup: WorkerSetup) -> dict[str, str]:
    lines = files_of(render_user_data(setup))["/etc/hcloud/machine.env"][0].splitlines()
    return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}


def test_agents_and_the_authority_stand_in_the_user_data() -> None:
    variables = variables_of(SETUP)
    assert variables["AGENTS"] == f"x86_64-3.11={'0' * 64}"
    assert variables["AGENT_URLS"] == "https://10.0.0.1:8787/agent/"
    assert files_of(render_user_data(SETUP))["/etc/hcloud/authority.pem"] == ("CERTIFICATE", 0o644)


def test_agents_are_fetched_where_the_provider_reaches_the_gateways() -> None:
    setup = replace(SETUP, gateway_addresses=("198.51.100.7:9000", "[fd00::7]:8786"))
    assert variables_of(setup)["AGENT_URLS"] == "https://198.51.100.7:9001/agent/ https://[fd00::7]:8787/agent/"


@pytest.mark.parametrize("script", ["setup", "guard"])
def test_script_has_no_syntax_error(script: str) -> None:
    shell = (SCRIPTS / script).read_text().splitlines()[0].rpartition("/")[2].split()[-1]
    assert subprocess.run([shell, "-n", str(SCRIPTS / script)], check=False).returncode == 0


# ------------------------------------------------------------------------------------------------------------ the setup
def with_program(host: Host) -> None:
    """An image that holds the program."""
    for name, body in (("hcloud", ":"), ("python", 'exec python3 "$@"')):
        host.write(f"opt/hcloud/bin/{name}", f"#!/bin/sh\n{body}\n")
        (host.root / "opt/hcloud/bin" / name).chmod(0o755)


def test_setup_of_an_image_with_the_program_installs_nothing_and_disarms_the_deadline_last(host: Host) -> None:
    with_program(host)
    done = host.run("setup")
    assert done.returncode == 0, done.stderr
    assert host.calls() == [
        "systemctl daemon-reload",
        "systemctl enable --now hcloud-guard.service",
        "systemctl enable --now hcloud-worker.service",
        "systemctl stop hcloud-deadline.timer",
    ]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[AgentServer]:
    with agent_server(tmp_path / "tls") as server:
        yield server


AGENT = archive_of(hcloud="#!/bin/sh\n:\n")


def host_for(folder: Path, gateway: AgentServer, *urls: str, **agents: str) -> Host:
    """A machine that is to fetch an agent from these addresses, by default the gateway's."""
    assert SETUP.request.bootstrap is not None
    bootstrap = replace(
        SETUP.request.bootstrap,
        authority_pem=gateway.authority_pem,
        agents=agents or {"aarch64-3.11": "1" * 64, "x86_64-3.11": gateway.add(AGENT)},
    )
    host = Host(folder, render_user_data(replace(SETUP, request=replace(SETUP.request, bootstrap=bootstrap))))
    # No provider would send an address of this host.
    with (host.root / "etc/hcloud/machine.env").open("a") as variables:
        variables.write(f"AGENT_URLS='{' '.join(urls or (gateway.url,))}'\n")
    return host


def test_plain_image_installs_what_is_missing_and_the_agent_from_the_gateway(
    tmp_path: Path, gateway: AgentServer
) -> None:
    host = host_for(tmp_path, gateway)
    done = host.run("setup")
    assert done.returncode == 0, done.stderr
    assert host.calls() == [
        "apt-get -q update",
        "apt-get -qy install --no-install-recommends bubblewrap nftables",
        "apt-get -qy install --no-install-recommends stress-ng",
        "apt-get -qy install --no-install-recommends wireguard-tools",
        "systemctl daemon-reload",
        "systemctl enable --now hcloud-guard.service",
        "systemctl enable --now hcloud-worker.service",
        "systemctl stop hcloud-deadline.timer",
    ]
    sha256 = next(iter(gateway.archives))
    program = host.root / "opt/hcloud/bin/hcloud"
    assert program.resolve() == host.root / f"opt/hcloud-agent/{sha256}/bin/hcloud"
    assert os.access(program, os.X_OK)
    assert gateway.asked == [f"/agent/{sha256}.tar.gz"]


def test_agent_that_cannot_be_loaded_on_the_machine_keeps_the_deadline_armed(
    tmp_path: Path, gateway: AgentServer
) -> None:
    agent = archive_of(hcloud="#!/bin/sh\necho 'hcloud: GLIBC_2.34 not found'; exit 1\n")
    host = host_for(tmp_path, gateway, **{"x86_64-3.11": gateway.add(agent)})
    done = host.run("setup")
    assert done.returncode == 1
    assert "hcloud setup: the agent does not run on this machine: hcloud: GLIBC_2.34 not found" in done.stderr
    assert not any("deadline" in call for call in host.calls())


def test_only_what_is_missing_is_installed(tmp_path: Path, gateway: AgentServer) -> None:
    host = host_for(tmp_path, gateway)
    for name in ("bwrap", "nft", "stress-ng", "wg"):
        host.program(name, ":")
    assert host.run("setup").returncode == 0
    assert not any(call.startswith(("apt-get", "dnf")) for call in host.calls())


def test_image_with_this_agent_fetches_nothing_and_one_with_another_fetches_it(
    tmp_path: Path, gateway: AgentServer
) -> None:
    image = gateway.add(archive_of(hcloud="#!/bin/sh\nfor python in python3.11 python3; do :; done\n"))
    host = host_for(tmp_path, gateway, **{"x86_64-3.11": image})
    archive = tmp_path / f"{image}.tar.gz"
    archive.write_bytes(gateway.archives[image])
    made = host.run("setup", "--image", str(archive))
    assert made.returncode == 0, made.stderr
    assert host.run("setup").returncode == 0
    assert gateway.asked == []
    newer = gateway.add(AGENT)
    variables = host.root / "etc/hcloud/machine.env"
    variables.write_text(variables.read_text().replace(image, newer))
    assert host.run("setup").returncode == 0
    assert gateway.asked == [f"/agent/{newer}.tar.gz"]
    assert (host.root / "opt/hcloud/bin/hcloud").resolve().parent.parent.name == newer


def test_archive_for_an_image_that_is_not_what_its_name_says_is_refused(tmp_path: Path, host: Host) -> None:
    archive = tmp_path / f"{'2' * 64}.tar.gz"
    archive.write_bytes(AGENT)
    done = host.run("setup", "--image", str(archive))
    assert done.returncode == 1
    assert f"{archive} has an archive with SHA-256" in done.stderr


def test_addresses_are_tried_in_turn_and_again(tmp_path: Path, gateway: AgentServer) -> None:
    """Nothing listens at the first address, the second has a certificate of another authority."""
    with agent_server(tmp_path / "other") as other:
        host = host_for(tmp_path, gateway, "https://127.0.0.1:1/", other.url, gateway.url)
        assert host.run("setup").returncode == 0
        assert other.asked == []
        host = host_for(tmp_path / "without", gateway, "https://127.0.0.1:1/", other.url)
        host.program("sleep", 'echo "sleep $*" >>"$DESTDIR/calls"')
        done = host.run("setup")
    assert done.returncode == 1
    assert [call for call in host.calls() if "sleep" in call] == [f"sleep {n}" for n in (5, 10, 15, 20, 25)]
    assert "https://127.0.0.1:1/ does not answer: [Errno 111] Connection refused; " in done.stderr
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr


def test_answer_that_is_cut_off_is_asked_for_again(tmp_path: Path, gateway: AgentServer) -> None:
    host = host_for(tmp_path, gateway)
    gateway.sent_bytes_max = 20
    done = host.run("setup")
    assert (done.returncode, len(gateway.asked)) == (1, 6)
    assert "does not answer: " in done.stderr
    assert str(len(AGENT) - 20) in done.stderr


@pytest.mark.parametrize("authority", ["", "no certificate"])
def test_authority_that_is_none_is_named(tmp_path: Path, gateway: AgentServer, authority: str) -> None:
    host = host_for(tmp_path, gateway)
    host.write("etc/hcloud/authority.pem", authority)
    done = host.run("setup")
    assert (done.returncode, gateway.asked) == (1, [])
    assert "etc/hcloud/authority.pem is not the certificate of an authority: " in done.stderr


def test_python_that_an_agent_needs_is_installed_into_an_image(tmp_path: Path, host: Host) -> None:
    agent = archive_of(hcloud="#!/bin/sh\nfor python in python3.13 python3; do\n    exec $python -c ''\ndone\n")
    archive = tmp_path / f"{hashlib.sha256(agent).hexdigest()}.tar.gz"
    archive.write_bytes(agent)
    (host.bin / "apt-get").unlink()
    python = f"case $3 in python*) ln -sf {host.bin}/python3 {host.bin}/$3;; esac"
    host.program("dnf", f'echo "dnf $*" >>"$DESTDIR/calls"; {python}')
    done = host.run("setup", "--image", str(archive))
    assert done.returncode == 0, done.stderr
    assert host.calls() == [
        "dnf -qy install bubblewrap nftables",
        "dnf -qy install stress-ng",
        "dnf -qy install wireguard-tools",
        "dnf -qy install python3.13",
    ]


def test_certificate_of_a_worker_does_not_serve_agents(tmp_path: Path) -> None:
    with agent_server(tmp_path / "tls", "worker") as impostor:
        done = host_for(tmp_path, impostor).run("setup")
    assert done.returncode == 1 and impostor.asked == []
    assert "certificate is not valid for 'gateway'" in done.stderr


def test_machine_becomes_a_worker_where_stress_ng_and_wireguard_cannot_be_installed(
    tmp_path: Path, gateway: AgentServer
) -> None:
    host = host_for(tmp_path, gateway)
    host.program("apt-get", 'case "$*" in *stress-ng* | *wireguard*) exit 100;; esac')
    done = host.run("setup")
    assert done.returncode == 0, done.stderr
    assert "gangs get no network of their own: no WireGuard" in done.stdout
    assert "profiling goes without stress-ng" in done.stdout
    assert host.calls()[-1] == "systemctl stop hcloud-deadline.timer"


def test_podman_is_installed_where_jobs_may_have_images_and_missed_by_these_only(
    tmp_path: Path, gateway: AgentServer
) -> None:
    plain, wanted = (replace(SETUP, container_images=each) for each in (False, True))
    assert "CONTAINER_IMAGES" not in machine_env(plain)
    assert "CONTAINER_IMAGES=yes\n" in machine_env(wanted)
    host = host_for(tmp_path, gateway)
    env = host.root / "etc/hcloud/machine.env"
    env.write_text(env.read_text() + "CONTAINER_IMAGES=yes\n")
    assert host.run("setup").returncode == 0
    assert "apt-get -qy install --no-install-recommends podman" in host.calls()
    host.program("apt-get", 'case "$*" in *podman*) exit 100;; esac')
    done = host.run("setup")
    assert done.returncode == 0, done.stderr
    assert "jobs with an image are refused here: podman cannot be installed" in done.stdout
    host.program("podman", ":")
    assert "podman" not in host.run("setup").stdout


def test_python_that_an_agent_needs_is_installed(tmp_path: Path, gateway: AgentServer) -> None:
    host = host_for(tmp_path, gateway, **{"aarch64-3.11": "1" * 64, "x86_64-3.13": gateway.add(AGENT)})
    (host.bin / "apt-get").unlink()
    python = host.bin / "python3.13"
    host.program("dnf", f'echo "dnf $*" >>"$DESTDIR/calls"; ln -sf {host.bin}/python3 {python}')
    python.unlink(missing_ok=True)
    host.program("bwrap", ":")
    host.program("nft", ":")
    host.program("stress-ng", ":")
    host.program("wg", ":")
    done = host.run("setup")
    assert done.returncode == 0, done.stderr
    assert host.calls()[0] == "dnf -qy install python3.13"


@pytest.mark.parametrize(
    ("served", "complaint"),
    [
        (b"other content", r"has an archive with SHA-256 [0-9a-f]{64} instead of [0-9a-f]{64}$"),
        (None, r"https://127\.0\.0\.1:\d+/agent/ answers 404 Not Found$"),
    ],
)
def test_wrong_agent_is_not_unpacked_and_the_deadline_stays_armed(
    tmp_path: Path, gateway: AgentServer, served: bytes | None, complaint: str
) -> None:
    host = host_for(tmp_path, gateway)
    sha256 = next(iter(gateway.archives))
    del gateway.archives[sha256]
    if served is not None:
        gateway.archives[sha256] = served
    done = host.run("setup")
    assert done.returncode == 1
    assert re.search(complaint, done.stderr.strip()), done.stderr
    assert len(gateway.asked) == 1
    assert not (host.root / "opt/hcloud-agent").exists()
    assert not any("deadline" in call for call in host.calls())


def test_archive_that_cannot_be_unpacked_leaves_nothing_behind(tmp_path: Path, gateway: AgentServer) -> None:
    host = host_for(tmp_path, gateway, **{"x86_64-3.11": gateway.add(AGENT[:-40])})
    done = host.run("setup")
    assert done.returncode == 1
    assert "hcloud setup: the agent cannot be unpacked into" in done.stderr
    assert list((host.root / "opt/hcloud-agent").iterdir()) == []


@needs(os.geteuid() == 0 and shutil.which("unshare") is not None, "needs root, to mount a small disk")
def test_full_disk_is_named(tmp_path: Path, gateway: AgentServer) -> None:
    big = archive_of(hcloud="#!/bin/sh\n" + ":\n" * 200_000)
    host = host_for(tmp_path, gateway, **{"x86_64-3.11": gateway.add(big)})
    disk = host.root / "opt"
    disk.mkdir()
    script = host.root / "usr/local/lib/hcloud/setup"
    mount = f"mount -t tmpfs -o size=64k disk {disk} && PATH={host.bin} exec {script}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount],
        env={"PATH": os.environ["PATH"], "DESTDIR": str(host.root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith(": No space left on device")
    assert not any("deadline" in call for call in host.calls())


@pytest.mark.parametrize(
    ("agents", "complaint"),
    [
        ({}, "the image has no /opt/hcloud/bin/hcloud, and the gateway has no agent for machines"),
        (
            {"aarch64-3.11": "1" * 64, "x86_64-3.13": "2" * 64},
            "no agent fits x86_64 and the Pythons of this image; the gateway has: aarch64-3.11 x86_64-3.13",
        ),
    ],
)
def test_machine_for_which_there_is_no_agent_says_so(tmp_path: Path, agents: dict[str, str], complaint: str) -> None:
    bootstrap = replace(SETUP.request.bootstrap, agents=agents)  # type: ignore[type-var]
    host = Host(tmp_path, render_user_data(replace(SETUP, request=replace(SETUP.request, bootstrap=bootstrap))))
    host.program("apt-get", 'case "$*" in *python*) exit 100;; esac')
    done = host.run("setup")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"hcloud setup: {complaint}")
    assert not any("deadline" in call for call in host.calls())


@pytest.mark.parametrize(
    ("hanging", "complaint"),
    [
        ("apt-get", "took longer than 0.2 s: apt-get -q"),
        ("python3.11", "fetching the agent took longer than 0.2 s"),
        ("systemctl", "took longer than 0.2 s: systemctl daemon-reload"),
    ],
)
def test_step_that_hangs_ends_the_setup_and_is_named(host: Host, hanging: str, complaint: str) -> None:
    environment = host.root / "etc/hcloud/machine.env"
    environment.write_text(environment.read_text() + "STAGE_TIMEOUT_S=0.2\n")
    if hanging == "systemctl":
        with_program(host)
    host.program(hanging, "exec tail -f /dev/null")
    done = host.run("setup")
    assert done.returncode != 0
    assert complaint in done.stderr
    assert not any("deadline" in call for call in host.calls())


def test_machine_without_a_worker_has_only_its_guard(tmp_path: Path) -> None:
    host = Host(tmp_path, render_user_data(replace(SETUP, request=replace(SETUP.request, bootstrap=None))))
    assert host.run("setup").returncode == 0
    assert [call for call in host.calls() if "enable" in call] == ["systemctl enable --now hcloud-guard.service"]


# ------------------------------------------------------------------------------------------------------------ the guard
def guard_says(host: Host, uptime_s: int = 30) -> str:
    host.write("uptime", f"{uptime_s}.25 10.0\n")
    done = host.run("guard", "--once", UPTIME_FILE=str(host.root / "uptime"))
    assert done.returncode == 0, done.stderr
    assert ("systemctl poweroff" in host.calls()) == bool(done.stdout)
    return done.stdout


def test_guard_lets_a_machine_live_that_is_paid_for(host: Host) -> None:
    assert guard_says(host) == ""


def test_guard_switches_off_what_is_not_paid_further(host: Host) -> None:
    host.now = NOW + 600 + GUARD_GRACE_S - 1
    assert guard_says(host) == ""
    host.now += 1
    assert "expiry was not renewed" in guard_says(host)


def test_guard_heeds_what_the_worker_was_told_last(host: Host) -> None:
    host.write("var/lib/hcloud-worker/renewal.json", f'{{"expires_at": {NOW + 5000}.5, "renewed_at": {NOW}.0}}')
    host.now = NOW + 4000
    assert guard_says(host, uptime_s=4000) == ""
    host.now = NOW + 5000 + GUARD_GRACE_S
    assert "expiry was not renewed" in guard_says(host)


def test_guard_switches_off_where_no_worker_comes_up(host: Host) -> None:
    assert guard_says(host, uptime_s=899) == ""
    assert "no worker started within 900 s" in guard_says(host, uptime_s=900)


@pytest.mark.parametrize("stated", [None, "require", "best_effort"])
def test_rented_machines_require_isolation_unless_the_configuration_says_otherwise(
    stated: Literal["require", "best_effort"] | None,
) -> None:
    assert SETUP.request.bootstrap is not None
    bootstrap = replace(SETUP.request.bootstrap, isolation=stated)
    setup = replace(SETUP, request=replace(SETUP.request, bootstrap=bootstrap))
    files = files_of(render_user_data(setup))
    [written] = [json.loads(text) for path, (text, _) in files.items() if path.endswith("bootstrap.json")]
    assert written["isolation"] == (stated or "require")
