"""The user data of a rented machine, and its scripts, run with stand-ins for the system's programs."""

import gzip
import json
import os
import subprocess
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hcloud.core.errors import LaunchRejected
from hcloud.core.model import InstanceType, Market, Offer, Resources
from hcloud.engine.bootstrap import load_bootstrap
from hcloud.provider import LaunchRequest, WorkerBootstrap
from providers.cloud_init import GUARD_GRACE_S, PREEMPT_FILE, WorkerSetup, render_user_data
from tests.house.tree import ROOT

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
        ),
    ),
    capacity=OFFER.instance_type.capacity,
    package="https://files.example/hcloud.whl",
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
        self.program("sleep", ":")

    def program(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        if script == "guard":
            self.program("date", f"echo {self.now}")
        return subprocess.run(
            [str(self.root / "usr/local/lib/hcloud" / script), *arguments],
            env={"PATH": f"{self.bin}:{os.environ['PATH']}", "DESTDIR": str(self.root), **environment},
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


def test_setup_of_a_plain_image_installs_from_the_mirror(tmp_path: Path) -> None:
    host = Host(tmp_path, render_user_data(replace(SETUP, package_index="https://mirror.example/simple")))
    pip = '#!/bin/sh\\necho "pip $*" >>"$DESTDIR/calls"\\n'
    python = '#!/bin/sh\\nexec python3 "$@"\\n'
    for name in ("python3.13", "python3.12", "python3.11"):
        host.program(
            name,
            f'mkdir -p "$3/bin"; printf \'{pip}\' >"$3/bin/pip"; printf \'{python}\' >"$3/bin/python"; '
            'chmod +x "$3"/bin/*',
        )
    done = host.run("setup")
    assert done.returncode == 0, done.stderr
    calls = host.calls()
    assert calls[:4] == [
        "apt-get -q update",
        "apt-get -qy install python3-venv bubblewrap nftables curl",
        "apt-get -qy install --no-install-recommends stress-ng",
        "pip install --quiet --index-url https://mirror.example/simple https://files.example/hcloud.whl",
    ]
    assert calls[-1] == "systemctl stop hcloud-deadline.timer"


def test_machine_becomes_a_worker_where_stress_ng_cannot_be_installed(tmp_path: Path) -> None:
    host = Host(tmp_path, render_user_data(SETUP))
    host.program("apt-get", 'case "$*" in *stress-ng*) exit 100;; esac')
    pip, python = "#!/bin/sh\\n:\\n", '#!/bin/sh\\nexec python3 "$@"\\n'
    for name in ("python3.13", "python3.12", "python3.11"):
        made = f'mkdir -p "$3/bin"; printf \'{pip}\' >"$3/bin/pip"; printf \'{python}\' >"$3/bin/python"; '
        host.program(name, made + 'chmod +x "$3"/bin/*')
    done = host.run("setup")
    assert done.returncode == 0, done.stderr
    assert "profiling goes without sources of interference; failed: apt-get" in done.stdout
    assert host.calls()[-1] == "systemctl stop hcloud-deadline.timer"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"package": ""}, "no package to install was named"),
    ],
)
def test_setup_that_fails_leaves_the_deadline_armed(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    host = Host(tmp_path, render_user_data(replace(SETUP, **changes)))
    if changes.get("package") != "":
        with_program(host)
    done = host.run("setup")
    assert done.returncode != 0
    assert complaint in done.stderr
    assert not any("deadline" in call for call in host.calls())


@pytest.mark.parametrize(
    ("hanging", "changes", "complaint"),
    [
        ("apt-get", {}, "took longer than 0.2 s: apt-get -q"),
        ("pip", {}, "took longer than 0.2 s"),
        ("systemctl", {}, "took longer than 0.2 s: systemctl daemon-reload"),
    ],
)
def test_step_that_hangs_ends_the_setup_and_is_named(
    tmp_path: Path, hanging: str, changes: dict[str, Any], complaint: str
) -> None:
    host = Host(tmp_path, render_user_data(replace(SETUP, **changes)))
    environment = host.root / "etc/hcloud/machine.env"
    environment.write_text(environment.read_text() + "STAGE_TIMEOUT_S=0.2\n")
    if hanging == "systemctl":
        with_program(host)
    for name in ("python3.13", "python3.12", "python3.11"):
        pip = "#!/bin/sh\\nexec tail -f /dev/null\\n"
        host.program(name, f'mkdir -p "$3/bin"; printf \'{pip}\' >"$3/bin/pip"; chmod +x "$3/bin/pip"')
    host.program("sleep", ":")
    if hanging in ("apt-get", "systemctl"):
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
