"""A configuration means what it says: paths, derived values, references, the file that is found."""

import os
from pathlib import Path

import pytest

from hcloud.config import Config, find_config, load_config, read_documents, to_yaml
from hcloud.core.errors import ConfigError


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return tmp_path / "etc" / "config.yaml"


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_relative_paths_are_relative_to_the_file(config_file: Path, fresh_home: Path) -> None:
    text = "owner: hcloud-a\nstate_dir: state\npolicy: p.yaml\ndatabase: sqlite:///db/x.db\nengine: {tls_dir: ~/keys}\n"
    config = load_config(written(config_file, text))
    base = config_file.parent
    assert (config.state_dir, config.policy) == (base / "state", base / "p.yaml")
    assert config.database == f"sqlite:///{base}/db/x.db"
    assert config.engine.tls_dir == fresh_home / "keys"


def test_what_is_left_out_is_derived_from_the_state_directory(config_file: Path) -> None:
    config = load_config(written(config_file, "owner: hcloud-a\nstate_dir: /var/lib/hcloud\n"))
    assert config.run_dir == Path("/var/lib/hcloud/run")
    assert config.database == "sqlite:////var/lib/hcloud/hcloud.db"
    assert config.engine.tls_dir == Path("/var/lib/hcloud/tls")
    assert config.socket_path == Path("/var/lib/hcloud/run/hcloud.sock")
    assert config.policy == config_file.parent / "policies" / "default.yaml"


def test_derived_directories_of_one_configuration_do_not_leak_into_another() -> None:
    first, second = Config(owner="hcloud-a", state_dir=Path("/a")), Config(owner="hcloud-b", state_dir=Path("/b"))
    assert (first.engine.tls_dir, second.engine.tls_dir) == (Path("/a/tls"), Path("/b/tls"))


def test_state_directory_defaults_to_the_home(fresh_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Config(owner="hcloud-a").state_dir == fresh_home / ".hcloud"
    monkeypatch.setenv("HCLOUD_HOME", "/srv/hcloud")
    assert Config(owner="hcloud-a").state_dir == Path("/srv/hcloud")


def test_database_may_come_from_the_environment_and_is_never_shown(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCLOUD_DATABASE", "postgresql+psycopg://me:hunter2@db/hcloud")
    config = load_config(written(config_file, "owner: hcloud-a\ndatabase: ${HCLOUD_DATABASE}\n"))
    assert config.database == "postgresql+psycopg://me:hunter2@db/hcloud"
    assert "hunter2" not in repr(config)


def test_configuration_is_found_in_its_documented_order(
    tmp_path: Path, fresh_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"there is no configuration .* `hcloud init` creates one"):
        find_config()
    at_home = written(fresh_home / ".hcloud" / "config.yaml", "owner: hcloud-a\n")
    assert find_config() == at_home
    other_home = written(tmp_path / "other" / "config.yaml", "owner: hcloud-a\n")
    monkeypatch.setenv("HCLOUD_HOME", str(other_home.parent))
    assert find_config() == other_home
    written(tmp_path / "hcloud.yaml", "owner: hcloud-a\n")
    assert find_config().resolve() == tmp_path / "hcloud.yaml"
    monkeypatch.setenv("HCLOUD_CONFIG", "/from/environment.yaml")
    assert find_config() == Path("/from/environment.yaml")
    assert find_config(Path("explicit.yaml")) == Path("explicit.yaml")


def test_plain_values_are_what_people_mean(tmp_path: Path) -> None:
    text = "a: NO\nb: 0660\nc: 2030-05-01\nd: 1e3\ne: true\nf: ~\ng: 12:30\nh: -7\ni: .5\nj:\nk: 0x1f\nl: +3\n"
    text += "m: .\nn: ..\no: +\no2: 1_000\np: 00.5\nq: -1.5e-3\n"
    value = read_documents(written(tmp_path / "x.yaml", text))[0].value
    assert value == {
        "a": "NO", "b": "0660", "c": "2030-05-01", "d": 1000.0, "e": True, "f": None, "g": "12:30", "h": -7, "i": 0.5,
        "j": None, "k": "0x1f", "l": 3, "m": ".", "n": "..", "o": "+", "o2": "1_000", "p": "00.5", "q": -0.0015,
    }  # fmt: skip


def test_anchors_aliases_and_merges_work(tmp_path: Path) -> None:
    text = "base: &b {x: 1, y: [1, 2]}\nown:\n  <<: *b\n  x: 2\nboth:\n  <<: [*b, {z: 3, x: 9}]\nagain: *b\n"
    document = read_documents(written(tmp_path / "x.yaml", text))[0]
    base = {"x": 1, "y": [1, 2]}
    assert document.value == {
        "base": base,
        "own": {"x": 2, "y": [1, 2]},
        "both": {"x": 1, "y": [1, 2], "z": 3},
        "again": base,
    }


def test_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfowner: a\r\nb: 2\r\n")
    document = read_documents(path)[0]
    assert document.value == {"owner": "a", "b": 2}
    assert document.where(("b",)) == f"{path}:2: b"


def test_written_yaml_reads_back_as_the_same(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True], "text": "NO: x # y", "mode": "0660", "nested": {"ü": "", "z": "10m"}}
    assert read_documents(written(tmp_path / "x.yaml", to_yaml(value)))[0].value == value


def test_pipe_can_be_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"a: 1\n")
    os.close(writer)
    try:
        assert read_documents(Path(f"/dev/fd/{reader}"))[0].value == {"a": 1}
    finally:
        os.close(reader)
