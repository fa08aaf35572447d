"""`hcloud doctor` names what is wrong and what to do; `hcloud orphans` tells what nearly leaked."""

import json
import socket
from pathlib import Path

from hcloud.cli.doctor import _scheduler
from hcloud.config import load_config
from hcloud.model import EventKind
from tests.api.deployment import Deployment
from tests.cli.conftest import Shell

RIGHT = (
    "owner: hcloud-a\nstate_dir: state\npolicy: p.yaml\nengine: {runner: fake}\nproviders: [{name: m, type: mock}]\n"
)


def checks(out: str) -> dict[str, tuple[str, str]]:
    return {each["check"]: (each["verdict"], each["finding"]) for each in json.loads(out)}


def configured(directory: Path, text: str = RIGHT) -> str:
    (directory / "p.yaml").write_text("name: p\n")
    (directory / "state").mkdir(exist_ok=True)
    (directory / "config.yaml").write_text(text)
    return str(directory / "config.yaml")


def test_a_daemon_that_does_not_answer_is_a_failure_with_what_to_do(lonely: Shell) -> None:
    path = configured(lonely.directory)
    out, _ = lonely.run("doctor", "-o", "json", exit_code=1, HCLOUD_CONFIG=path)
    found = checks(out)
    assert found["configuration"][0] == "ok"
    assert found["daemon"][0] == "fail"
    [daemon] = [each for each in json.loads(out) if each["check"] == "daemon"]
    assert "hcloud daemon" in daemon["do"]


def test_a_wrong_configuration_is_told_with_its_line(lonely: Shell) -> None:
    path = configured(lonely.directory, RIGHT.replace("owner", "woner"))
    out, _ = lonely.run("doctor", "-o", "json", exit_code=1, HCLOUD_CONFIG=path)
    verdict, finding = checks(out)["configuration"]
    assert verdict == "fail"
    assert "config.yaml:1" in finding


def test_a_secret_that_is_missing_is_told_and_one_that_is_there_is_not_shown(lonely: Shell) -> None:
    key = lonely.directory / "key"
    path = configured(lonely.directory, RIGHT + f"catalog: {{gcp: {{api_key: 'file:{key}'}}}}\n")
    out, _ = lonely.run("doctor", "-o", "json", exit_code=1, HCLOUD_CONFIG=path)
    assert checks(out)["secret"][0] == "fail"
    key.write_text("hush-hush")
    key.chmod(0o600)
    out, err = lonely.run("doctor", "-o", "json", exit_code=1, HCLOUD_CONFIG=path)
    assert checks(out)["secret"][0] == "ok"
    assert "hush" not in out + err


def test_a_daemon_that_runs_is_looked_over(shell: Shell) -> None:
    path = configured(shell.directory)
    shell.run("pause", "for a test")
    out, _ = shell.run("doctor", "-o", "csv", exit_code=0, HCLOUD_CONFIG=path)
    assert "daemon,warn,paused: for a test,hcloud resume" in out
    assert "provider mock,ok," in out


def test_orphans_are_told_once_each_with_how_often_they_were_seen(shell: Shell, deployment: Deployment) -> None:
    assert shell.run("orphans")[0] == "no orphans are on record\n"
    for number in (1, 2, 2):
        with deployment.store.transaction(deployment.clock.now()) as txn:
            txn.emit(EventKind.ORPHAN, provider_id=f"i-{number}", provider="mock", token="t", action="terminate")
    found = json.loads(shell.run("orphans", "-o", "json")[0])
    assert [(each["what"], each["action"], each["times"]) for each in found] == [
        ("i-1", "terminate", 1),
        ("i-2", "terminate", 2),
    ]


def network(tmp_path: Path, listen: str, settings: str) -> dict[str, tuple[str, str]]:
    text = (
        f"owner: hcloud-a\nstate_dir: state\npolicy: p.yaml\nengine: {{listen: '{listen}'}}\nproviders: [{settings}]\n"
    )
    config = load_config(Path(configured(tmp_path, text)), provider_types=("ec2", "gce", "local"))
    return {f"{each.check} {each.verdict}": (each.finding, each.do) for each in _scheduler(config)}


def test_an_engine_that_is_reached_and_one_that_is_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        assert "network ok" in network(tmp_path, listen, "{name: l, type: local}")
    finding, do = network(tmp_path, listen, "{name: l, type: local}")["network fail"]
    assert listen in finding
    assert "hcloud engine" in do


def test_an_address_that_machines_cannot_reach_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        told = network(tmp_path, listen, "{name: e, type: ec2, settings: {region: us-east-1}}")
        right = network(tmp_path, listen, "{name: e, type: ec2, settings: {scheduler_address: '10.0.0.1:8786'}}")
        gce = network(tmp_path, listen, "{name: g, type: gce, settings: {worker: {scheduler_address: '10.0.0.1:1'}}}")
    assert "nowhere but here" in told["network fail"][0]
    assert right.keys() == gce.keys() == {"network ok"}
