"""The user data of a rented machine, and its scripts, run with stand-ins for the system's programs."""

import gzip
import http.server
import json
import os
import shutil
import subprocess
import threading
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hcloud.engine.bootstrap import load_bootstrap
from hcloud.errors import ConfigError, LaunchRejected
from hcloud.model import InstanceType, Market, Offer, Resources
from hcloud.provider import LaunchRequest, WorkerBootstrap
from providers.cloud_init import GUARD_GRACE_S, PREEMPT_FILE, WorkerSetup, read_credential, render_user_data
from tests.house.tree import ROOT
from tests.waiting import wait_until

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed: no metadata asked for")
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
            scheduler_address="10.0.0.1:8786",
            tls_dir="/nowhere",
            settings={"worker_ports": "9100-9110", "max_log_mib": "8"},
        ),
    ),
    capacity=OFFER.instance_type.capacity,
    package="https://files.example/hcloud.whl",
    credential_command='cat "$DESTDIR/etc/hcloud/credential.json"',
    credential={"ca.pem": "CA", "worker.pem": "CERT", "worker.key": "KEY it's $HOME"},
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
    assert orders.scheduler_address == "tls://10.0.0.1:8786"
    assert orders.worker_port == 9100
    assert orders.capacity["vcpus"] == 4
    assert orders.poweroff == ("systemctl", "poweroff")
    assert orders.settings == {"max_log_mib": "8", "preempt_file": PREEMPT_FILE}


def test_nothing_secret_can_be_read_by_all_on_the_machine() -> None:
    for path, (content, mode) in files_of(render_user_data(SETUP)).items():
        assert "KEY" not in content or mode == 0o600, path


def test_key_stands_in_the_user_data_only_where_it_was_given() -> None:
    plain = render_user_data(replace(SETUP, credential={}))
    assert files_of(plain)["/etc/hcloud/credential.json"][0] == ""


@pytest.mark.parametrize("address", ["127.0.0.1:8786", "tls://localhost:1", "0.0.0.0:8786", "[::1]:8786"])
def test_address_that_no_machine_could_dial_is_refused(address: str) -> None:
    with pytest.raises(LaunchRejected, match="a rented machine cannot dial"):
        render_user_data(replace(SETUP, scheduler_address=address))


def test_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ca\.pem: .*hcloud init"):
        read_credential(str(tmp_path))


@pytest.mark.parametrize("script", ["setup", "guard", "notice"])
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
        "systemctl enable --now hcloud-notice.service",
        "systemctl enable --now hcloud-worker.service",
        "systemctl stop hcloud-deadline.timer",
    ]
    tls = host.root / "etc/hcloud/tls"
    assert (tls / "worker.key").read_text() == "KEY it's $HOME"
    assert (tls / "worker.key").stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tls.iterdir()) == ["ca.pem", "worker.key", "worker.pem"]
    assert not (host.root / "etc/hcloud/credential.json").exists()


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
    assert calls[:3] == [
        "apt-get -q update",
        "apt-get -qy install python3-venv bubblewrap nftables curl",
        "pip install --quiet --index-url https://mirror.example/simple https://files.example/hcloud.whl",
    ]
    assert calls[-1] == "systemctl stop hcloud-deadline.timer"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"package": ""}, "no package to install was named"),
        ({"credential_command": "false"}, "the credential cannot be fetched"),
        ({"credential": {"ca.pem": "CA"}}, "there is no worker.key"),
        ({"credential_command": ""}, "there is no worker.key"),
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
    assert "not paid further ahead" in guard_says(host)


def test_guard_heeds_what_the_worker_was_told_last(host: Host) -> None:
    host.write("var/lib/hcloud-worker/renewal.json", f'{{"expires_at": {NOW + 5000}.5, "renewed_at": {NOW}.0}}')
    host.now = NOW + 4000
    assert guard_says(host, uptime_s=4000) == ""
    host.now = NOW + 5000 + GUARD_GRACE_S
    assert "not paid further ahead" in guard_says(host)


def test_guard_switches_off_where_no_worker_comes_up(host: Host) -> None:
    assert guard_says(host, uptime_s=899) == ""
    assert "no worker came up within 900 s" in guard_says(host, uptime_s=900)


# ----------------------------------------------------------------------------------------------------------- the notice
class Metadata(http.server.BaseHTTPRequestHandler):
    """EC2's metadata service, version 2 only; ``answers`` by path."""

    answers: dict[str, str]

    def do_PUT(self) -> None:
        self._send("token-of-metadata" if self.path == "/latest/api/token" else None)

    def do_GET(self) -> None:
        known = self.headers.get("X-aws-ec2-metadata-token") == "token-of-metadata"
        known = known or self.headers.get("Metadata-Flavor") == "Google"
        self._send(self.answers.get(self.path) if known else None)

    def _send(self, text: str | None) -> None:
        self.send_response(200 if text is not None else 404)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def metadata() -> Iterator[tuple[str, dict[str, str]]]:
    answers: dict[str, str] = {}
    handler = type("Answering", (Metadata,), {"answers": answers})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    server.server_close()
    thread.join()


def until_noticed(host: Host, url: str) -> None:
    """Look again and again, as the service does: on a busy machine an answer may come too late for one look."""

    def noticed() -> bool:
        host.run("notice", "--once", METADATA_URL=url)
        return (host.root / "run/hcloud/preempt.json").exists()

    wait_until(noticed, timeout_s=60)


@needs_curl
def test_interruption_in_the_metadata_becomes_the_workers_notice(
    host: Host, metadata: tuple[str, dict[str, str]]
) -> None:
    url, answers = metadata
    notice = host.root / "run/hcloud/preempt.json"
    host.run("notice", "--once", METADATA_URL=url)
    assert not notice.exists()
    answers["/latest/meta-data/spot/instance-action"] = '{"action": "terminate", "time": "2030-03-17T17:46:40Z"}'
    until_noticed(host, url)
    assert json.loads(notice.read_text()) == {"preempt_at": NOW}


def test_metadata_that_does_not_answer_is_no_notice(host: Host) -> None:
    host.run("notice", "--once", METADATA_URL="http://127.0.0.1:9")
    assert not (host.root / "run/hcloud/preempt.json").exists()


@needs_curl
def test_preemption_on_gce_becomes_a_notice(tmp_path: Path, metadata: tuple[str, dict[str, str]]) -> None:
    host = Host(tmp_path, render_user_data(replace(SETUP, notice="gce")))
    url, answers = metadata
    answers["/computeMetadata/v1/instance/preempted"] = "FALSE"
    host.run("notice", "--once", METADATA_URL=url)
    assert not (host.root / "run/hcloud/preempt.json").exists()
    answers["/computeMetadata/v1/instance/preempted"] = "TRUE"
    until_noticed(host, url)
    assert "preempt_at" in json.loads((host.root / "run/hcloud/preempt.json").read_text())
