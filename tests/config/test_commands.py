"""The commands about files: what they say of right ones, and `hcloud init`."""

import json
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hcloud.cli.init import config_text
from hcloud.config import load_config, load_policy, package_data
from hcloud.core.errors import missing_library
from tests.config.entry import Hcloud, complaint


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def files_below(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_policy_check_says_in_plain_words_what_the_policy_means(hcloud: Hcloud) -> None:
    file = package_data.path("policies/tight-budget.yaml")
    done = hcloud("policy", "check", file)
    assert done.code == 0
    for words in (
        f"{file}: ok",
        "budgets: at most $1/h, $10/day, $100/month, each user $5/day, each user $50/month",
        "limits: at most 5 instances, 16 vCPUs, $0.5/h per instance, 4 jobs per user, 1000 queued jobs",
        "spot: for best_effort, batch jobs, if interruptible",
        "until that is seen, for their boot time, at most 10m",
        "partly used machines: no new jobs where a new machine costs less",
    ):
        assert words in done.out


def test_policy_check_says_what_is_not_rented(tmp_path: Path, hcloud: Hcloud) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("allow: {regions: [eu-*], instance_types: [m5.*, c5.*], markets: [on_demand]}\n")
    out = hcloud("policy", "check", file).out
    assert "machines: regions eu-*; instance types m5.* c5.*; markets: on_demand" in out
    assert "spot: never" in out
    file.write_text("caps: {max_instances_per_type: {m5.large: 4}}\nretention: {minimum_s: 60, drain: false}\n")
    out = hcloud("policy", "check", file).out
    assert "100 instances, 256 vCPUs, 4 of type m5.large" in out
    assert "at least 1m, at most 1h" in out
    assert "partly used machines: always filled with new jobs" in out


def test_policy_check_as_json_holds_every_file_good_or_bad(tmp_path: Path, hcloud: Hcloud) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("name: mine\n")
    bad.write_text("nam: mine\n")
    done = hcloud("policy", "check", good, bad, "-o", "json")
    assert done.code == 2
    first, second = json.loads(done.out)
    assert (first["file"], first["ok"], first["name"], first["digest"]) == (
        str(good),
        True,
        "mine",
        load_policy(good).digest,
    )
    assert (second["ok"], second["problems"]) == (False, [f"{bad}:1: nam: unknown key; did you mean 'name'?"])


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_policy_show_prints_a_policy_that_means_the_same(form: str, tmp_path: Path, hcloud: Hcloud) -> None:
    shown = tmp_path / "shown.yaml"  # JSON is YAML
    shown.write_text(hcloud("policy", "show", package_data.path("policies/cheapest.yaml"), "-o", form).out)
    assert load_policy(shown) == load_policy(package_data.path("policies/cheapest.yaml"))


@pytest.mark.parametrize(("command", "key"), [("policy", "budgets"), ("config", "engine"), ("job", "target")])
def test_schema_is_json_schema_of_the_document(command: str, key: str, hcloud: Hcloud) -> None:
    schema = json.loads(hcloud(command, "schema").out)
    assert key in schema["properties"]
    assert schema["additionalProperties"] is False


def test_config_example_is_the_shipped_file(hcloud: Hcloud) -> None:
    assert hcloud("config", "example").out == package_data.path("config.example.yaml").read_text(encoding="utf-8")


def test_config_check_shows_no_password(tmp_path: Path, hcloud: Hcloud) -> None:
    file = tmp_path / "config.yaml"
    (tmp_path / "p.yaml").write_text("name: x\n")
    file.write_text("owner: hcloud-a\npolicy: p.yaml\ndatabase: postgresql+psycopg://me:s3cr:et@db/hcloud\n")
    done = hcloud("config", "check", file)
    assert done.code == 0
    assert "database: postgresql+psycopg://me:***@db/hcloud" in done.out
    assert "et@" not in done.out
    assert f"missing: keys in {load_config(file).engine.tls_dir}; run `hcloud init`" in done.out


@pytest.mark.parametrize(
    ("kind", "settings", "wrong"), [("mock", "{tpes: {}}", "did you mean types?"), ("local", "{vcpus: many}", "vcpus")]
)
def test_config_check_tells_what_is_wrong_with_providers_of_every_kind(
    tmp_path: Path, hcloud: Hcloud, kind: str, settings: str, wrong: str
) -> None:
    (tmp_path / "p.yaml").write_text("name: x\n")
    provider = f"{{name: a, type: {kind}, settings: {settings}}}"
    (tmp_path / "config.yaml").write_text(f"owner: hcloud-a\npolicy: p.yaml\nproviders: [{provider}]\n")
    assert wrong in complaint(hcloud("config", "check", tmp_path / "config.yaml"))


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("database: sqlite:///nowhere/x.db", "3: database: the directory {here}/nowhere does not exist; create it or"),
        (
            "database: sqlite:///p.yaml/x.db",
            "3: database: the directory {here}/p.yaml cannot be created: {here}/p.yaml is",
        ),
        (
            "state_dir: p.yaml/state",
            "3: state_dir: the directory {here}/p.yaml/state cannot be created: {here}/p.yaml is",
        ),
        ("database: sqlite:///x.db?mode=ro", "3: database: a SQLite URL takes no options"),
        ("database: postgresql+psycopg://a:s3cr@et@db/x", "3: database: 'postgresql+psycopg://a:***@db/x' has an @ in"),
        ("database: postgresql+psycopg://a:s3cret@db:x/x", "3: database: 'postgresql+psycopg://a:***@db:x/x' is not a"),
    ],
)
def test_config_check_tells_what_is_wrong_with_the_database(
    tmp_path: Path, hcloud: Hcloud, line: str, wrong: str
) -> None:
    file = tmp_path / "config.yaml"
    (tmp_path / "p.yaml").write_text("name: x\n")
    file.write_text(f"owner: hcloud-a\npolicy: p.yaml\n{line}\n")
    said = complaint(hcloud("config", "check", file))
    assert said.startswith(f"{file}:{wrong.format(here=tmp_path)}")
    assert "et@" not in said


def test_config_check_tells_of_a_missing_driver_and_connects_to_nothing(
    tmp_path: Path, hcloud: Hcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    (tmp_path / "p.yaml").write_text("name: x\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgresql+psycopg://me@127.0.0.1:{server.getsockname()[1]}/x"
        file.write_text(f"owner: hcloud-a\npolicy: p.yaml\ndatabase: {url}\n")
        assert hcloud("config", "check", file).code == 0
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    monkeypatch.setitem(sys.modules, "psycopg", None)
    said = complaint(hcloud("config", "check", file))
    assert said == f"{file}:3: database: {missing_library('psycopg, the driver of PostgreSQL,', 'postgres')}"


def test_config_check_makes_no_database(tmp_path: Path, hcloud: Hcloud) -> None:
    (tmp_path / "p.yaml").write_text("name: x\n")
    (tmp_path / "config.yaml").write_text("owner: hcloud-a\npolicy: p.yaml\nstate_dir: new/state\n")
    assert hcloud("config", "check", tmp_path / "config.yaml").code == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.yaml", "p.yaml"]


def test_config_check_also_checks_the_policy_it_names(tmp_path: Path, hcloud: Hcloud) -> None:
    file = tmp_path / "config.yaml"
    (tmp_path / "p.yaml").write_text("name: x\nlese: {}\n")
    file.write_text("owner: hcloud-a\npolicy: p.yaml\n")
    said = complaint(hcloud("config", "check", file))
    assert said == f"{tmp_path}/p.yaml:2: lese: unknown key; did you mean 'lease'?"


def test_job_check_says_what_is_asked_for(tmp_path: Path, hcloud: Hcloud) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(
        "name: train\ncommand: x\ntarget: {batch: {within: 10m}}\nnodes: 2..8\nretries: 3\n"
        "max_runtime: 1h\nbudget_usd: 2\n"
        "---\nname: web\ncommand: y\ntarget: {service: {requests_per_s: 50, latency_ms: 100}}\ninterruptible: false\n"
        "nodes: 3\n---\nname: rest\ncommand: z\n---\nname: long\ncommand: z\ntarget: batch\n"
    )
    assert hcloud("job", "check", file).out.splitlines() == [
        f"{file}: ok",
        "  train: batch, done within 10m00s",
        "    8 nodes, from 2, each 1 vCPUs, 512 MiB memory, 1 GiB disk",
        "    at most 1h00m, at most $2, tried again 3 times when it fails; may be interrupted",
        "  web: service of 50 requests/s, 99 % of answers within 100 ms",
        "    3 nodes together, each 1 vCPUs, 512 MiB memory, 1 GiB disk",
        "    not tried again when it fails; must not be interrupted",
        "  rest: best effort, no promise",
        "    1 node, each 1 vCPUs, 512 MiB memory, 1 GiB disk",
        "    not tried again when it fails; may be interrupted",
        "  long: batch, no deadline",
        "    1 node, each 1 vCPUs, 512 MiB memory, 1 GiB disk",
        "    not tried again when it fails; may be interrupted",
    ]


# ---------------------------------------------------------------------------------------------------------------- init
def test_init_makes_a_home_that_is_ready_and_private(fresh_home: Path, hcloud: Hcloud) -> None:
    home = fresh_home / ".hcloud"
    done = hcloud("init")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-2:] == ["  hcloud daemon", "  hcloud submit -- echo hello"]
    config = load_config(home / "config.yaml")
    assert re.fullmatch(r"hcloud-[0-9a-f]{8}", config.owner)
    assert config.state_dir == home
    assert load_policy(config.policy).name == "default"
    for private in (home, home / "logs", home / "uploads", config.engine.tls_dir):
        assert mode(private) == 0o700, private
    assert mode(config.run_dir) == 0o750
    assert mode(home / "config.yaml") == 0o600
    assert (config.engine.tls_dir / "ca.pem").is_file()
    assert mode(config.engine.tls_dir / "ca.key") == 0o600
    checked = hcloud("config", "check")
    assert checked.code == 0
    assert "missing" not in checked.out


def test_init_twice_changes_nothing(fresh_home: Path, hcloud: Hcloud) -> None:
    hcloud("init")
    before = files_below(fresh_home)
    done = hcloud("init")
    assert done.code == 0
    assert "made" not in done.out
    assert f"kept {fresh_home / '.hcloud' / 'config.yaml'}" in done.out
    assert files_below(fresh_home) == before


def test_init_adds_only_what_is_missing(fresh_home: Path, hcloud: Hcloud) -> None:
    hcloud("init")
    policies = fresh_home / ".hcloud" / "policies"
    (policies / "default.yaml").write_text("name: mine\n")
    (policies / "no-spot.yaml").unlink()
    done = hcloud("init")
    assert f"made {policies / 'no-spot.yaml'}" in done.out
    assert (policies / "default.yaml").read_text() == "name: mine\n"


def test_two_homes_have_different_owners(tmp_path: Path, hcloud: Hcloud) -> None:
    for name in ("one", "two"):
        assert hcloud("init", "--home", tmp_path / name).code == 0
    owners = {load_config(tmp_path / name / "config.yaml").owner for name in ("one", "two")}
    assert len(owners) == 2


@pytest.mark.parametrize(
    ("uid", "line"),
    [(0, "  admins: []"), (999, "  admins: []"), (65534, "  admins: [nobody]"), (54321, '  admins: ["uid:54321"]')],
)
def test_init_makes_a_person_who_runs_it_an_admin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, line: str
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    assert line in config_text(tmp_path, "local").splitlines()


def test_init_elsewhere_says_commands_that_work_from_there(tmp_path: Path, hcloud: Hcloud) -> None:
    home = tmp_path / "with blank"
    done = hcloud("init", "--home", home)
    assert done.out.splitlines()[-2] == f"  hcloud --config '{home}/config.yaml' daemon"
    assert load_config(home / "config.yaml").state_dir == home


def test_init_for_the_mock_provider_needs_no_engine(fresh_home: Path, hcloud: Hcloud) -> None:
    done = hcloud("init", "--provider", "mock")
    assert done.out.splitlines()[-2:] == ["  hcloud daemon", "  hcloud submit -- echo hello"]
    config = load_config(fresh_home / ".hcloud" / "config.yaml")
    assert ([each.type for each in config.providers], config.engine.programs) == (["mock"], "simulated")


def test_init_says_when_the_provider_asked_for_is_not_configured(fresh_home: Path, hcloud: Hcloud) -> None:
    hcloud("init")
    before = files_below(fresh_home)
    done = hcloud("init", "--provider", "mock")
    assert "was there before and has no provider of type mock; edit it" in done.out
    assert files_below(fresh_home) == before


def test_init_beside_a_broken_configuration_changes_nothing(fresh_home: Path, hcloud: Hcloud) -> None:
    home = fresh_home / ".hcloud"
    home.mkdir(parents=True)
    (home / "config.yaml").write_text("ownr: x\n")
    done = hcloud("init")
    assert done.code == 2
    assert done.err.startswith(f"hcloud: {home}/config.yaml:1: ownr: unknown key; did you mean 'owner'?")
    assert [path.name for path in home.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("below", ["", "/deeper/still"])
def test_init_where_no_directory_can_be_is_refused(below: str, tmp_path: Path, hcloud: Hcloud) -> None:
    (tmp_path / "file").write_text("")
    said = complaint(hcloud("init", "--home", f"{tmp_path}/file{below}"))
    assert f"{tmp_path}/file" in said
    assert "cannot be made" in said


def test_init_works_as_a_program_whatever_the_umask(tmp_path: Path) -> None:
    home = tmp_path / "h"
    for umask in ("000", "077"):
        line = [
            "bash",
            "-c",
            f'umask {umask}; exec "$@"',
            "-",
            sys.executable,
            "-m",
            "hcloud.cli.main",
            "init",
            "--home",
        ]
        done = subprocess.run([*line, str(home / umask)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert (mode(home / umask), mode(home / umask / "run")) == (0o700, 0o750)
        assert mode(home / umask / "config.yaml") == 0o600


def test_a_missing_policy_is_reported_at_the_key_that_names_it(tmp_path: Path, hcloud: Hcloud) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("owner: hcloud-a\nstate_dir: state\npolicy: polic.yaml\nproviders: [{name: m, type: mock}]\n")
    message = f"{config}:3: policy: there is no {tmp_path / 'polic.yaml'}"
    assert complaint(hcloud("config", "check", config)) == message
    config.rename(tmp_path / "policy.yaml")  # spelt like it, and no policy
    assert complaint(hcloud("config", "check", tmp_path / "policy.yaml")) == message.replace(
        "config.yaml", "policy.yaml"
    )
    (tmp_path / "police.yaml").write_text("name: mine\n")
    assert complaint(hcloud("config", "check", tmp_path / "policy.yaml")).endswith(
        f"; did you mean '{tmp_path / 'police.yaml'}'?"
    )
    (tmp_path / "polic.yaml").mkdir()
    assert "policy.yaml:3: policy: " in complaint(hcloud("config", "check", tmp_path / "policy.yaml"))
    (tmp_path / "polic.yaml").rmdir()
    (tmp_path / "polic.yaml").write_text("nam: x\n")
    assert "polic.yaml:1: nam: unknown key" in complaint(hcloud("config", "check", tmp_path / "policy.yaml"))
