"""Every way to get a file wrong: one sentence with file, line and key, exit code 2, through the real command line."""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.config.entry import Done, Hcloud, complaint

CONFIG = "owner: hcloud-test\nstate_dir: state\n"
READ_AS_NOBODY = """
import os, sys
from pathlib import Path
from hcloud.config import load_config
from hcloud.core.errors import ConfigError
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    load_config(Path(sys.argv[1]))
except ConfigError as error:
    print(error)
"""


def laughs() -> str:
    """A small file that would expand to ten thousand million values."""
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    return "\n".join(lines)


def merges() -> str:
    """The same with merged mappings."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 10)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "{file}:1: is empty"),
        (b"---\n---\n", "{file}:1: is empty"),
        (b"# only a comment\n", "{file}:1: is empty"),
        (b"- a\n", "{file}:1: must be a mapping of keys (owner, state_dir, "),
        (b"just text\n", "{file}:1: must be a mapping of keys (owner, state_dir, "),
        (b"owner:\n\thcloud: a\n", "{file}:2: indented with a tab; use spaces"),
        (b"owner: a\nlog_level: \xff\n", "{file}:2: is not UTF-8 text (byte 0xff)"),
        ("owner: hcloud-test\n".encode("utf-16"), "{file}:1: is not UTF-8 text (byte 0xff)"),
        (b"owner: a\nlog_level: in\x01fo\n", "{file}:2: contains a control character; YAML is plain text"),
        (b"owner: a\nowner: b\n", "{file}:2: owner: is a duplicate of the key in line 1; keep one of them"),
        (b"api:\n  readers: []\n  readers: []\n", "{file}:3: api.readers: is a duplicate of the key in line 2"),
        (b"owner: hcloud-test\n1: 2\n", "{file}:2: has a key that is not text, 1; put it in quotes"),
        (b"? [a, b]\n: 1\n", "{file}:1: has a key that is not text, a list; put it in quotes"),
        (b"a: [1, 2\nb: c\n", "{file}:2: is not valid YAML: expected ',' or ']', but got ':'"),
        (b"owner: a: b\n", "{file}:1: unexpected ':'; check the indentation"),
        (b"owner: a\nlog_level\nengine: {}\n", "{file}:3: a key without ':' above this line"),
        (b"owner: *x\n", "{file}:1: is not valid YAML: found undefined alias 'x'"),
        (b"owner: !!python/name:os.system\n", "{file}:1: owner: has a tag 'tag:yaml.org,2002:python/name:os.system'"),
        (b"owner: .nan\ncycle_interval_s: 1e999\n", "{file}:2: cycle_interval_s: is not a finite number"),
        (b"a: &a [*a]\n", "{file}:1: a[0][0]: is nested deeper than 32 levels"),
        (b"a: &a\n  <<: *a\n", "{file}:1: a: merges itself"),
        (b"a:\n  <<: [x]\n", "{file}:2: a.<<: can merge only mappings"),
        (b"[" * 5000, "{file}:1: is nested deeper than 32 levels"),
        (laughs().encode(), "expands to more than 100000 values"),
        (merges().encode(), "expands to more than 100000 values"),
        (b"owner: hcloud-test\n---\nowner: hcloud-test\n", "{file}:3: a second document begins here; only"),
        (b"state_dir: x\n", "{file}:1: owner: is required"),
        (b"owner: Hcloud\n", "{file}:1: owner: must be 3 to 40 lower-case letters"),
        (b"owner: hcloud-test\nengin: {}\n", "{file}:2: engin: unknown key; did you mean 'engine'?"),
        (b"owner: hcloud-test\nengine:\n  lisen: x\n", "{file}:3: engine.lisen: unknown key; did you mean 'listen'?"),
        (
            b"owner: hcloud-test\nproviders:\n- name: x\n  type: local\n  setings: {}\n",
            "{file}:5: providers[0].setings: unknown key; did you mean 'settings'?",
        ),
        (
            b"owner: hcloud-test\nproviders:\n- name: x\n  type: locl\n",
            "{file}:4: providers[0].type: there is no provider type 'locl'; did you mean 'local'?",
        ),
        (b"owner: hcloud-test\nproviders: []\n", "{file}:2: providers: is empty, so there would be no instances"),
        (
            b"owner: hcloud-test\nproviders: [{name: x, type: local}, {name: x, type: mock}]\n",
            "{file}:2: providers: has two entries named 'x'",
        ),
        (b"owner: hcloud-test\nengine: {listen: 8786}\n", "{file}:2: engine.listen: must be text (put it in quotes)"),
        (b"owner: hcloud-test\nengine: {listen: 'x:99999'}\n", "must be an address and a port such as 127.0.0.1:8443"),
        (b"owner: hcloud-test\nengine: {listen: 'tls://h:1'}\n", "must be an address and a port such as 127.0.0.1"),
        (b"owner: hcloud-test\nengine: {programs: reel}\n", "must be one of real, simulated, not 'reel'; did you mean"),
        (b"owner: hcloud-test\nengine: {unit_user_base: 0}\n", "engine.unit_user_base: must be at least 1000, not 0"),
        (b"owner: hcloud-test\napi: {socket_mode: '0666'}\n", "must not give access to all users"),
        (b"owner: hcloud-test\napi: {socket_mode: rw}\n", "must be a file mode in quotes such as \"0660\", not 'rw'"),
        (b"owner: hcloud-test\napi: {readers: [al], admins: [al]}\n", "api.admins: names al, who is also one of the"),
        (b"owner: hcloud-test\napi:\n  tcp: {listen: 'x:1'}\n", "{file}:3: api.tcp.certificate: is required"),
        (b"owner: hcloud-test\ncycle_interval_s: 0\n", "{file}:2: cycle_interval_s: must be more than 0"),
        (b"owner: hcloud-test\ncycle_interval_s: yes\n", "cycle_interval_s: must be a duration such as 30s, 10m"),
        (b"owner: hcloud-test\ndatabase: mysql://x\n", "must be sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME"),
        (b"owner: hcloud-test\ndatabase: 'sqlite:///:memory:'\n", "database: must be sqlite:///FILE or post"),
        (b"owner: hcloud-test\ndatabase: postgres://x/y\n", "database: must begin with postgresql+psycopg://"),
        (b"owner: hcloud-test\ndatabase: ${HCLOUD_DATABSE}\n", "the environment variable 'HCLOUD_DATABSE' is not set"),
        (b"owner: hcloud-test\nstate_dir: ${HOME}/x\n", "{file}:2: state_dir: references such as ${{NAME}} work"),
        (b"owner: hcloud-test\nstate_dir: ''\n", "{file}:2: state_dir: must be a path, not ''"),
        (b"owner: hcloud-test\nstate_dir: ~no-such-user/x\n", "state_dir: names a user that does not exist"),
        (b"owner: hcloud-test\nrun_dir: /" + b"x" * 120 + b"\n", "{file}:2: run_dir: is too long for a socket"),
        (b"owner: hcloud-test\nretention: {events_days: 0}\n", "retention.events_days: must be at least 32, not 0"),
        (b"owner: hcloud-test\npolicy: nowhere.yaml\n", "{file}:2: policy: there is no "),
    ],
)  # fmt: skip
def test_wrong_configuration_is_refused(content: bytes, sentence: str, tmp_path: Path, hcloud: Hcloud) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    assert sentence.format(file=file) in complaint(without_notes(hcloud("config", "check", file)))


def without_notes(done: Done) -> Done:
    """The first complaint only; the notes below it are further problems of the same file."""
    return replace(done, err="".join(done.err.splitlines(keepends=True)[:1]))


@pytest.mark.parametrize("command", ["config", "policy", "job"])
def test_what_is_no_readable_file_is_refused(command: str, tmp_path: Path, hcloud: Hcloud) -> None:
    (tmp_path / "there.yaml").write_text("name: x\n")
    missing, directory = tmp_path / "ther.yaml", tmp_path
    beside = str(tmp_path / "there.yaml")
    assert complaint(hcloud(command, "check", missing)) == f"{missing}: no such file; did you mean {beside!r}?"
    assert complaint(hcloud(command, "check", directory)) == f"{directory}: is a directory, not a file"
    below_a_file = complaint(hcloud(command, "check", tmp_path / "there.yaml" / "x"))
    assert below_a_file.endswith("cannot be read: Not a directory")


def test_file_without_permission_is_refused_for_an_ordinary_user() -> None:
    # Root may read everything, so the child becomes another user first; directories above must let that user through.
    with tempfile.TemporaryDirectory(prefix="refused-") as open_to_all:
        Path(open_to_all).chmod(0o755)
        file = Path(open_to_all) / "config.yaml"
        file.write_text(CONFIG)
        file.chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", READ_AS_NOBODY, str(file)], capture_output=True, text=True, check=False
        )
    assert done.stdout == f"{file}: is not readable: permission denied\n", done.stderr


def test_too_large_file_is_refused(tmp_path: Path, hcloud: Hcloud) -> None:
    file = tmp_path / "config.yaml"
    with file.open("wb") as stream:
        stream.truncate(17 * 2**20)
    assert complaint(hcloud("config", "check", file)) == f"{file}: is larger than 16 MiB"


def test_file_name_cannot_steer_the_terminal(tmp_path: Path, hcloud: Hcloud) -> None:
    said = complaint(hcloud("config", "check", tmp_path / "a\x1b[31m\nb.yaml"))
    assert said.isprintable()


def test_all_problems_of_a_file_are_reported_the_misspelt_key_first(tmp_path: Path, hcloud: Hcloud) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("caps: {max_instances: 0}\nlease: {horizon: 5}\n")
    assert hcloud("policy", "check", file).err.splitlines() == [
        f"hcloud: {file}:2: lease.horizon: unknown key; did you mean 'horizon_s'?",
        f"hcloud: {file}:1: caps.max_instances: must be at least 1, not 0",
    ]


def test_console_script_refuses_and_accepts_as_documented(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("name: mine\n")
    bad.write_text("nam: mine\n")
    line = [sys.executable, "-m", "hcloud.cli.main", "policy", "check"]
    done = subprocess.run([*line, str(good)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([*line, str(good), str(bad)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"hcloud: {bad}:1: nam: unknown key; did you mean 'name'?\n")
    assert done.stdout.startswith(f"{good}: ok\n")


def test_job_is_read_from_standard_input(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "hcloud.cli.main", "job", "check", "-"]
    done = subprocess.run(line, input="name: x\ncomand: y\n", capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("hcloud: <stdin>:2: comand: unknown key; did you mean 'command'?\n")
