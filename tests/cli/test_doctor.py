"""`hcloud doctor` names what is wrong and what to do; `hcloud orphans` tells what nearly leaked."""

import json
import os
import shutil
import socket
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hcloud.cli import doctor
from hcloud.cli.config import _summary
from hcloud.cli.doctor import CLOCK_SKEW_MAX_S, CYCLE_STALLED_S, DoctorFinding, _gateway
from hcloud.cli.output import span
from hcloud.client.connection import Connection, Endpoint
from hcloud.config import load_config
from hcloud.core.clock import ManualClock, SystemClock
from hcloud.core.model import EventKind
from hcloud.planner.snapshot import OfferBackoff
from hcloud.secret_keys import SecretKeys
from hcloud.store import Store, Submission
from hcloud.store.schema import SCHEMA_REVISION
from tests.api.deployment import Deployment
from tests.cli.conftest import Shell
from tests.other_user import as_ordinary_user
from tests.store.samples import NOW, SPEC, emit
from tests.store.test_examining import damage_an_index
from tests.store.test_migrations import migrate

RIGHT = (
    "owner: hcloud-a\nstate_dir: state\npolicy: p.yaml\n"
    "engine: {programs: simulated}\nproviders: [{name: m, type: mock}]\n"
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


def test_keys_of_secrets_that_are_open_to_others_or_missing_are_reported(lonely: Shell, prepared_sqlite: Path) -> None:
    database = Path(shutil.copyfile(prepared_sqlite, lonely.directory / "hcloud.db"))
    path = configured(lonely.directory, RIGHT + f"database: sqlite:///{database}\n")
    keys, store = SecretKeys(None, lonely.directory / "state"), Store.open(f"sqlite:///{database}")
    spec = replace(SPEC, secrets=("TOKEN",))
    store.submit([Submission(spec=spec, actor="al", secrets=keys.seal("al", {"TOKEN": "hunter2"}))], NOW)
    store.close()

    def finding() -> tuple[str, str]:
        out, err = lonely.run("doctor", "-o", "json", exit_code=1, HCLOUD_CONFIG=path)  # no daemon answers
        assert "hunter2" not in out + err
        return checks(out)["keys of secrets"]

    assert finding() == ("ok", f"1 secrets of jobs can be decrypted with {keys.path}")
    keys.path.chmod(0o644)
    assert finding()[0] == "fail" and "is open to other users (mode 0644)" in finding()[1]
    [key_id] = Store.open(f"sqlite:///{database}").secret_key_counts()
    keys.path.unlink()
    assert finding() == ("warn", f"1 secrets of jobs need key {key_id}, which is not in {keys.path}")


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
    return {f"{each.check} {each.verdict}": (each.finding, each.do) for each in _gateway(config)}


def test_an_engine_that_is_reached_and_one_that_is_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        assert "network ok" in network(tmp_path, listen, "{name: l, type: local}")
    finding, do = network(tmp_path, listen, "{name: l, type: local}")["network fail"]
    assert listen in finding
    assert "hcloud daemon" in do


def test_an_address_that_machines_cannot_reach_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        told = network(tmp_path, listen, "{name: e, type: ec2, settings: {region: us-east-1}}")
        right = network(tmp_path, listen, "{name: e, type: ec2, settings: {gateway_addresses: ['10.0.0.1:8786']}}")
        gce = network(tmp_path, listen, "{name: g, type: gce, settings: {worker: {gateway_addresses: ['10.0.0.1:1']}}}")
    assert "nowhere but here" in told["network fail"][0]
    assert right.keys() == gce.keys() == {"network ok"}


def database(directory: Path, line: str = "") -> DoctorFinding:
    """What is said of the database of a configuration with this further line."""
    path = Path(configured(directory, RIGHT + line))
    (check,) = doctor._database(load_config(path), path)
    return check


def test_a_database_is_told_by_what_the_daemon_would_do_with_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "hcloud.db"
    new = database(tmp_path)
    assert (new.verdict, new.do) == ("ok", "")
    assert new.finding == f"{path} is new: the daemon makes it at its first start"
    assert not path.exists()
    migrate(f"sqlite:///{path}", "v0001")
    older = database(tmp_path)
    assert (older.verdict, older.do) == ("warn", "back it up before; see docs/operations.md")
    assert older.finding == f"{path} has schema v0001; the daemon brings it to {SCHEMA_REVISION} at its start"
    Store.open(f"sqlite:///{path}").close()
    present = database(tmp_path)
    assert (present.verdict, present.finding, present.do) == (
        "ok",
        f"{path} is of schema {SCHEMA_REVISION} and undamaged",
        "",
    )


def test_a_database_that_the_daemon_would_refuse_is_told_at_its_line(tmp_path: Path) -> None:
    check = database(tmp_path, "database: sqlite:///p.yaml\n")
    wrong = f"{tmp_path / 'config.yaml'}:6: database: {tmp_path / 'p.yaml'} is not a SQLite database; name another file"
    assert (check.verdict, check.finding) == ("fail", wrong)
    assert "daemon's user" in check.do
    path = tmp_path / "state" / "hcloud.db"
    Store.open(f"sqlite:///{path}").close()
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    damaged = database(tmp_path)
    assert (damaged.verdict, damaged.do) == ("fail", "see docs/operations.md for backups")


def test_a_server_that_does_not_answer_fails_without_its_password_and_hides_nothing_else(lonely: Shell) -> None:
    path = configured(lonely.directory, RIGHT + "database: postgresql+psycopg://me:hush@127.0.0.1:1/x\n")
    out, err = lonely.run("doctor", "-o", "json", exit_code=1, HCLOUD_CONFIG=path)
    verdict, finding = checks(out)["database"]
    assert verdict == "fail"
    assert "postgresql+psycopg://me:***@127.0.0.1:1/x does not answer" in finding
    assert "hush" not in out + err
    assert checks(out).keys() > {"configuration", "daemon"}


def verdicts(found: Iterable[DoctorFinding]) -> list[tuple[str, str, str]]:
    return [(each.check, each.verdict, each.finding) for each in found]


def status(now: float = 1_000.0, paused: str = "", **daemon: Any) -> dict[str, Any]:
    """What a healthy daemon tells of itself, but for what is given."""
    well: dict[str, Any] = {"cycle": {"at": now}, "leader": True, "policy": {}, "engine": {}, "providers": {}}
    return {"now": now, "version": "1.2", "paused": paused, "daemon": {**well, **daemon}}


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        (status(), [("daemon", "ok", "version 1.2 answers and leads")]),
        (status(leader=False, cycle={}), [("daemon", "ok", "version 1.2 answers and stands by for another one")]),
        (
            status(cycle={"at": 1_000.0, "error": "the disk is full"}),
            [("daemon", "fail", "its last cycle failed: the disk is full")],
        ),
        (
            status(cycle={"at": 1_000.0 - CYCLE_STALLED_S - 1}),
            [("daemon", "fail", f"its last cycle was {span(CYCLE_STALLED_S + 1)} ago")],
        ),
        (
            status(cycle={"at": 1_000.0, "left_out": {"job-7": "KeyError: 3"}}),
            [
                ("daemon", "ok", "version 1.2 answers and leads"),
                ("daemon", "fail", "it fails on job-7, and goes on without: KeyError: 3"),
            ],
        ),
        (
            status(paused="upgrade"),
            [("daemon", "ok", "version 1.2 answers and leads"), ("daemon", "warn", "paused: upgrade")],
        ),
        (
            status(policy={"error": "p.yaml:3: bad"}),
            [
                ("daemon", "ok", "version 1.2 answers and leads"),
                ("policy", "warn", "an older one is in force: p.yaml:3: bad"),
            ],
        ),
    ],
)
def test_what_the_daemon_says_of_itself_is_judged(told: Mapping[str, Any], wanted: list[tuple[str, str, str]]) -> None:
    assert verdicts(doctor._daemon(told)) == wanted


@pytest.mark.parametrize(
    ("engine", "wanted"),
    [
        ({"reachable": True, "workers": 3}, ("engine", "ok", "3 workers answer")),
        ({"reachable": True, "workers": 3, "silent": 1}, ("engine", "warn", "3 workers answer, 1 are silent")),
        ({"reachable": False, "workers": 3}, ("engine", "fail", "the gateway does not answer the daemon")),
    ],
)
def test_an_engine_is_judged_by_its_workers(engine: Mapping[str, Any], wanted: tuple[str, str, str]) -> None:
    assert verdicts(doctor._engine(status(engine=engine))) == [wanted]


def test_providers_in_trouble_and_those_that_offer_nothing_are_told() -> None:
    told = {"c": {"ok": True, "offers": 5}, "a": {"ok": False, "error": "throttled"}, "b": {"ok": True, "offers": 0}}
    assert verdicts(doctor._providers(status(providers=told))) == [
        ("provider a", "fail", "throttled"),
        ("provider b", "warn", "answers, but offers nothing"),
        ("provider c", "ok", "5 offers"),
    ]


def test_a_stopped_provider_is_tried_again_if_its_account_passes(shell: Shell, deployment: Deployment) -> None:
    client, now = Connection(Endpoint(socket=Path(shell.environment["HCLOUD_SOCKET"]))), deployment.clock.now()
    with deployment.store.transaction(now) as txn:
        txn.put_backoff(OfferBackoff(provider="mock", until_at=now + 3000.0, error="no such role"))
    right = DoctorFinding(check="mock: permissions", verdict="ok", finding="all")
    wrong = DoctorFinding(check="mock: launch", verdict="fail", finding="no such role")
    for account in ([], [right, wrong]):  # not looked at, or not right
        assert doctor._resumed(client, "mock", "until 5: no such role", account).verdict == "fail"
    assert [each.until_at > now for each in deployment.store.live().backoffs] == [True]
    assert "it is tried again" in doctor._resumed(client, "mock", "until 5: no such role", [right]).finding
    assert [each.until_at > deployment.clock.now() for each in deployment.store.live().backoffs] == [False]


@pytest.mark.parametrize(("skew_s", "verdict"), [(0.0, "ok"), (2.0, "warn"), (-2.0, "warn")])
def test_clocks_that_differ_are_told_whichever_is_ahead(skew_s: float, verdict: str) -> None:
    now = SystemClock().now() + skew_s * CLOCK_SKEW_MAX_S
    assert [each.verdict for each in doctor._clock(status(now=now))] == [verdict]


def test_a_disk_without_inodes_is_as_bad_as_a_full_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISK_FAIL_MIB", 0)
    monkeypatch.setattr(doctor, "DISK_WARN_MIB", 0)
    for inodes_fail, told in ((0, []), (2**62, ["fail"] if os.statvfs(tmp_path).f_files else [])):
        monkeypatch.setattr(doctor, "INODES_FAIL", inodes_fail)
        assert [each.verdict for each in doctor._disk(tmp_path)] == ["ok", *told]


def test_a_disk_is_judged_by_the_room_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    much = 2**50
    for fail_mib, warn_mib, verdict in ((0, 0, "ok"), (0, much, "warn"), (much, much, "fail")):
        monkeypatch.setattr(doctor, "DISK_FAIL_MIB", fail_mib)
        monkeypatch.setattr(doctor, "DISK_WARN_MIB", warn_mib)
        assert [each.verdict for each in doctor._disk(tmp_path)] == [verdict]
    assert [(each.check, each.verdict) for each in doctor._disk(tmp_path / "none")] == [("state directory", "fail")]


def test_what_may_not_be_seen_is_told_and_hides_no_other_check() -> None:
    with tempfile.TemporaryDirectory(prefix="hcloud-doctor-") as made:
        config = load_config(Path(configured(Path(made), RIGHT.replace("state_dir: state", "state_dir: state/unseen"))))
        config = replace(config, engine=replace(config.engine, programs="real"))
        path = Path(made) / "config.yaml"
        Path(made).chmod(0o755)
        (Path(made) / "state").chmod(0o700)
        told = as_ordinary_user(
            lambda: verdicts([*doctor._keys(config), *doctor._disk(config.state_dir), *doctor._database(config, path)])
        )
        summary = as_ordinary_user(lambda: list(_summary(config)))
    assert [(check, verdict) for check, verdict, _ in told] == [
        ("keys", "fail"),
        ("state directory", "fail"),
        ("database", "fail"),
    ]
    assert told[2][2].endswith("unseen/hcloud.db cannot be opened for writing: Permission denied")
    assert not [line for line in summary if line.startswith("missing")]


def test_keys_and_prices_are_missed_where_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = RIGHT.replace("engine: {programs: simulated}\n", "").replace(
        "type: mock", "type: ec2, settings: {region: us-east-1}"
    )
    config = load_config(Path(configured(tmp_path, text)), provider_types=("ec2",))
    assert [each.verdict for each in doctor._keys(config)] == ["fail"]
    config.engine.tls_dir.mkdir()
    (config.engine.tls_dir / "ca.pem").touch()
    assert [each.verdict for each in doctor._keys(config)] == ["ok"]
    for age_days, verdict in ((29, "ok"), (31, "warn")):
        clock = ManualClock(datetime(2026, 7, 20, tzinfo=UTC).timestamp() + age_days * 86_400)
        monkeypatch.setattr(doctor, "SystemClock", lambda clock=clock: clock)
        prices, absent = doctor._prices(config)
        assert (prices.verdict, absent.verdict) == (verdict, "ok")
        assert f"on_demand: read {age_days}d00h ago (karpenter-provider-aws " in prices.finding
        assert absent.finding.endswith("the catalog has no price of spot, commit_1y, commit_3y")


def test_prices_of_other_regions_do_not_hide_that_those_of_a_provider_are_old_or_missing(tmp_path: Path) -> None:
    for region, text in (("eu-central-1", "(apache-libcloud"), ("mars-1", "no price of its regions is known")):
        settings = f"type: ec2, settings: {{region: {region}}}"
        config = load_config(Path(configured(tmp_path, RIGHT.replace("type: mock", settings))), provider_types=("ec2",))
        first = next(iter(doctor._prices(config)))
        assert first.verdict == "warn"
        assert text in first.finding


@pytest.mark.parametrize(("present", "verdict"), [(True, "ok"), (False, "warn")])
def test_host_of_local_machines_is_asked_whether_it_can_generate_interference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: bool, verdict: str
) -> None:
    if present:
        (tmp_path / "stress-ng").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    local = load_config(Path(configured(tmp_path, RIGHT.replace("mock", "local"))), provider_types=("local",))
    (found,) = doctor._sources(local)
    assert (found.check, found.verdict) == ("profiling", verdict)
    assert list(doctor._sources(load_config(Path(configured(tmp_path)), provider_types=("mock",)))) == []


def test_hetzners_hcloud_in_the_same_environment_or_first_on_the_path_is_reported(
    lonely: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "name clash" not in lonely.run_anew("doctor", exit_code=1)[0]
    namesake = tmp_path / "site" / "hcloud-2.5.0.dist-info"
    namesake.mkdir(parents=True)
    (namesake / "METADATA").write_text("Metadata-Version: 2.1\nName: hcloud\nVersion: 2.5.0\n")
    program = tmp_path / "bin" / "hcloud"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = {"PYTHONPATH": str(namesake.parent), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    out, _ = lonely.run_anew("doctor", "-o", "json", exit_code=1, **path)
    clashes = [each["finding"] for each in json.loads(out) if each["check"] == "name clash"]
    assert "library hcloud 2.5.0" in clashes[0]
    assert [text.startswith(f"'hcloud' runs {program}") for text in clashes[1:]] == [True]


def test_an_event_that_was_removed_is_a_failure_and_a_kept_head_is_verified(
    lonely: Shell, prepared_sqlite: Path
) -> None:
    database = Path(shutil.copyfile(prepared_sqlite, lonely.directory / "hcloud.db"))
    url = f"sqlite:///{database}"
    store = Store.open(url)
    emit(store, 3)
    head = str(store.audit_head())
    store.close()
    path = configured(lonely.directory, RIGHT + f"database: {url}\n")

    def finding(*options: str) -> tuple[str, str]:
        out, _ = lonely.run("doctor", "-o", "json", *options, exit_code=1, HCLOUD_CONFIG=path)  # no daemon answers
        return checks(out)["audit log"]

    assert finding() == finding("--audit-head", head) == ("ok", f"3 events verified; head {head}")
    assert finding("--audit-head", "2:" + "0" * 16)[0] == "fail"
    _, err = lonely.run("doctor", "--audit-head", "7", exit_code=2, HCLOUD_CONFIG=path)
    assert "must be a head as doctor prints it" in err
    with closing(sqlite3.connect(database)) as raw:
        raw.execute("DROP TRIGGER event_loses_no_lines")
        raw.execute("DELETE FROM event WHERE seq = 2")
        raw.commit()
    verdict, said = finding()
    assert verdict == "fail" and "1 event is missing between event 1" in said and "expected link 2, found 3" in said


def test_a_damaged_database_is_a_failure(lonely: Shell, prepared_sqlite: Path) -> None:
    path = configured(lonely.directory)
    database = Path(shutil.copyfile(prepared_sqlite, lonely.directory / "state" / "hcloud.db"))
    out, _ = lonely.run("doctor", "-o", "json", exit_code=1, HCLOUD_CONFIG=path)
    assert checks(out)["database"] == ("ok", f"{database} is of schema {SCHEMA_REVISION} and undamaged")
    damage_an_index(database, readable=True)
    out, _ = lonely.run("doctor", "-o", "json", exit_code=1, HCLOUD_CONFIG=path)
    verdict, finding = checks(out)["database"]
    assert verdict == "fail" and "is damaged (" in finding


def test_machines_without_wireguard_are_counted_with_what_to_do() -> None:
    answers = {"ok": True, "error": "", "offers": 2, "facts": {}, "stopped": ""}
    status = {"daemon": {"providers": {"aws": {**answers, "without_wireguard": 3}, "gcp": answers}}}
    [aws, lacking, gcp] = doctor._providers(status)
    assert (aws.verdict, gcp.verdict, lacking.check) == ("ok", "ok", "aws: gang network")
    assert lacking.verdict == "warn" and lacking.finding.startswith("3 of its machines report no WireGuard")
    assert "wireguard-tools" in lacking.do
