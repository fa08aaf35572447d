"""What systemd says of our unit files (systemd itself is never started), and what the installer lays out."""

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from hcloud.cli.main import cli
from hcloud.client.connection import SYSTEM_CONFIG, SYSTEM_SOCKET
from hcloud.engine.bootstrap import POWERED_OFF_EXIT
from hcloud.secret_keys import CREDENTIAL
from tests.house.tree import ROOT
from tests.machine import needs_systemd_analyze

DEPLOY = ROOT / "deploy"
UNITS = ("hcloud.service", "hcloud-gateway.service", "hcloud-worker.service")
GATEWAY_SOCKET = Path("/run/hcloud-gateway/daemon.sock")
ANALYZE = shutil.which("systemd-analyze")


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run(
        [ANALYZE, *arguments], capture_output=True, text=True, check=False, env={**os.environ, "LANG": "C"}
    )


@pytest.fixture
def laid_out(tmp_path: Path) -> Path:
    """The units where systemd would look, with a program that exists on every machine."""
    for path in (*(DEPLOY / name for name in UNITS), DEPLOY / "hcloud.service.d/local.conf"):
        target = tmp_path / path.relative_to(DEPLOY)
        target.parent.mkdir(exist_ok=True)
        target.write_text(path.read_text().replace("/opt/hcloud/bin/hcloud", "/bin/true"))
    return tmp_path


def settings(path: Path) -> configparser.ConfigParser:
    """A unit file that assigns nothing twice, as ours."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser


@needs_systemd_analyze
@pytest.mark.parametrize("local", [False, True], ids=["clouds only", "with local slices"])
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_nothing_to_say(laid_out: Path, unit: str, local: bool) -> None:
    if not local:
        shutil.rmtree(laid_out / "hcloud.service.d")
    done = analyze("verify", "--man=no", str(laid_out / unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd_analyze
def test_verification_notices_a_misspelt_directive(laid_out: Path) -> None:
    path = laid_out / "hcloud.service"
    path.write_text(path.read_text().replace("WatchdogSec", "WatchDogSecs"))
    assert "WatchDogSecs" in analyze("verify", "--man=no", str(path)).stderr


@needs_systemd_analyze
def test_exposure_is_as_recorded_in_the_operations_guide(laid_out: Path) -> None:
    recorded = dict(re.findall(r"^\| `([\w.-]+)` \| ([\d.]+) \|", _guide(), re.MULTILINE))
    shutil.rmtree(laid_out / "hcloud.service.d")
    for unit in UNITS:
        # The scale differs a little between versions of systemd; a directive lost by accident moves it by more.
        assert abs(_exposure(laid_out / unit) - float(recorded[unit])) <= 0.3


def _exposure(unit: Path) -> float:
    said = analyze("security", "--offline=true", str(unit)).stdout
    score = re.search(r"exposure level for \S+: ([\d.]+)", said)
    assert score is not None
    return float(score[1])


def _guide() -> str:
    return (ROOT / "docs" / "operations.md").read_text()


@needs_systemd_analyze
def test_exposure_with_slices_is_as_recorded_too(laid_out: Path) -> None:
    (recorded,) = re.findall(r"^\| `hcloud.service` \+ `local.conf` \| ([\d.]+) \|", _guide(), re.MULTILINE)
    assert abs(_exposure(laid_out / "hcloud.service") - float(recorded)) <= 0.3


@pytest.mark.parametrize(
    ("unit", "wanted"),
    [
        ("hcloud.service", ("daemon", {"config_path": SYSTEM_CONFIG, "abandon": False, "gateway": GATEWAY_SOCKET})),
        (
            "hcloud-gateway.service",
            (
                "gateway",
                {
                    "config_path": SYSTEM_CONFIG,
                    "socket": GATEWAY_SOCKET,
                    "keys": Path("/etc/hcloud/gateway"),
                    "archives": Path("/var/lib/hcloud-gateway/agents"),
                },
            ),
        ),
        ("hcloud-worker.service", ("worker", {"bootstrap": Path("/etc/hcloud/bootstrap.json"), "end": False})),
    ],
)
def test_every_unit_starts_its_own_command_with_options_it_takes(unit: str, wanted: tuple[str, object]) -> None:
    program, name, *words = settings(DEPLOY / unit)["Service"]["ExecStart"].split()
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert (program, name, command.make_context(name, words).params) == ("/opt/hcloud/bin/hcloud", *wanted)


def test_the_daemon_gets_the_keys_of_secrets_from_the_file_that_the_installer_makes() -> None:
    name, _, source = settings(DEPLOY / "hcloud.service")["Service"]["LoadCredential"].partition(":")
    assert name == CREDENTIAL
    assert f"key={source} " in (DEPLOY / "install").read_text()


def test_the_daemon_has_its_directories_where_commands_and_the_guide_look_for_them() -> None:
    service = settings(DEPLOY / "hcloud.service")["Service"]
    assert Path("/run") / service["RuntimeDirectory"] / "hcloud.sock" == SYSTEM_SOCKET
    assert "HCLOUD_HOME=/var/lib/" + service["StateDirectory"] in service["Environment"].split()
    assert service["EnvironmentFile"].removeprefix("-") in re.findall(r"^\| `([^`]+)`", _guide(), re.MULTILINE)


def test_the_gateway_has_a_user_and_directories_of_its_own_and_the_daemon_may_open_its_socket() -> None:
    gateway, daemon = (settings(DEPLOY / f"{name}.service")["Service"] for name in ("hcloud-gateway", "hcloud"))
    assert gateway["User"] == gateway["Group"] == daemon["SupplementaryGroups"] == "hcloud-gateway"
    assert Path("/run") / gateway["RuntimeDirectory"] == GATEWAY_SOCKET.parent
    assert "EnvironmentFile" not in gateway  # clouds' credentials are there, and the database's password


def test_the_drop_in_runs_the_daemon_as_root_and_counts_what_slices_use() -> None:
    service = settings(DEPLOY / "hcloud.service.d/local.conf")["Service"]
    assert service["User"] == "root"
    assert {service[each] for each in ("CPUAccounting", "MemoryAccounting", "TasksAccounting")} == {"yes"}
    assert service["RestrictNamespaces"] == service["NoNewPrivileges"] == "no"  # or no sandbox can be built


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_is_watched_restarted_and_logged(unit: str) -> None:
    service = settings(DEPLOY / unit)["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) > 0
    assert service["Restart"] == "always"
    assert service["RestartPreventExitStatus"].split()[0] == "2"
    assert "StandardOutput" not in service  # the journal, by default


@pytest.mark.parametrize("name", ["hcloud", "hcloud-gateway"])
def test_daemon_and_gateway_run_as_ordinary_users_with_directories_of_their_own(name: str) -> None:
    service = settings(DEPLOY / f"{name}.service")["Service"]
    assert service["User"] == name
    assert service["StateDirectory"] == name
    assert service["CapabilityBoundingSet"] == ""
    assert service["NoNewPrivileges"] == "yes"


@pytest.mark.parametrize("unit", ["hcloud.service", "hcloud-worker.service"])
def test_stopping_daemon_or_worker_leaves_what_it_started(unit: str) -> None:
    assert settings(DEPLOY / unit)["Service"]["KillMode"] == "process"


def test_worker_that_switched_its_machine_off_is_not_started_again() -> None:
    service = settings(DEPLOY / "hcloud-worker.service")["Service"]
    assert str(POWERED_OFF_EXIT) in service["RestartPreventExitStatus"].split()


@pytest.mark.parametrize(("arguments", "local"), [([], False), (["--local"], True)])
def test_installer_lays_units_out_and_may_be_repeated(tmp_path: Path, arguments: list[str], local: bool) -> None:
    for _ in range(2):
        done = install(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
    target = tmp_path / "etc/systemd/system"
    assert sorted(path.name for path in target.glob("*.service")) == sorted(UNITS)
    for unit in UNITS:
        assert (target / unit).read_text() == (DEPLOY / unit).read_text()
        assert (target / unit).stat().st_mode & 0o777 == 0o644
    assert (target / "hcloud.service.d/local.conf").exists() == local


def test_installer_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    done = install(tmp_path, "--locla")
    assert done.returncode == 2
    assert "unknown argument '--locla'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def install(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(DEPLOY / "install"), *arguments],
        env={"PATH": os.environ["PATH"], "DESTDIR": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
