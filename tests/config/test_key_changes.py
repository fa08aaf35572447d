"""Renamed and removed keys: what the loaders do with them, by kind of document."""

from pathlib import Path

import pytest

from hcloud import __version__
from hcloud.config import load_config, load_job, load_policy
from hcloud.core.errors import ConfigError
from hcloud.spec.jobfile import parse_job
from hcloud.spec.key_changes import KEY_CHANGES, KeyChange, translate_keys
from tests.config.entry import Hcloud

MOVES = (
    KeyChange(old="providers.*.poll", new="providers.*.poll_s", since="0.2.0"),
    KeyChange(old="tls", new="engine.tls_dir", since="0.2.0"),
    KeyChange(old="verbose", since="0.2.0", advice="set log_level"),
)


def test_keys_are_renamed_in_lists_moved_to_sections_and_removed() -> None:
    old = {"providers": [{"name": "a", "poll": 3}, {"name": "b"}], "tls": "keys", "engine": None, "verbose": True}
    value, applied = translate_keys(old, MOVES)
    assert value == {"providers": [{"name": "a", "poll_s": 3}, {"name": "b"}], "engine": {"tls_dir": "keys"}}
    assert [each.path for each in applied] == [("providers", 0, "poll"), ("tls",), ("verbose",)]
    assert old["tls"] == "keys"


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, {"providers": "none"}, {"engine": []}])
def test_what_has_no_old_key_is_returned_unchanged(value: object) -> None:
    assert translate_keys(value, MOVES) == (value, [])


def test_an_old_key_next_to_the_new_one_names_both() -> None:
    with pytest.raises(ConfigError, match=r"^tls: is the old name of engine.tls_dir, which is also set"):
        translate_keys({"tls": "a", "engine": {"tls_dir": "b"}}, MOVES)
    with pytest.raises(ConfigError, match=r"^engine: must be a mapping"):
        translate_keys({"tls": "a", "engine": 4}, MOVES)


def test_a_wrong_value_of_a_renamed_key_is_reported_at_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KEY_CHANGES, "config", MOVES)
    file = tmp_path / "config.yaml"
    file.write_text("owner: mine-1\nverbose: true\nproviders:\n- name: a\n  type: mock\n  poll: never\n")
    notes: list[str] = []
    with pytest.raises(ConfigError, match=rf"^{file}:6: providers\[0\].poll_s: must "):
        load_config(file, notes)
    assert notes == [
        f"{file}:6: providers[0].poll was renamed to providers.*.poll_s in 0.2.0; "
        "rename it: the next version will refuse it",
        f"{file}:2: verbose was removed in 0.2.0 and is ignored (set log_level); "
        "delete it: the next version will refuse it",
    ]


def test_policies_and_job_files_are_translated_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(KEY_CHANGES, "policy", (KeyChange(old="caps.machines", new="caps.max_instances", since="1"),))
    monkeypatch.setitem(KEY_CHANGES, "job", (KeyChange(old="importance", new="priority", since="1"),))
    policy, job = tmp_path / "policy.yaml", tmp_path / "job.yaml"
    policy.write_text("caps: {machines: 7}\n")
    job.write_text("{name: a, command: 'true', importance: 5}\n")
    assert load_policy(policy).caps.max_instances == 7
    assert [each.priority for each in load_job(job)] == [5]
    assert [record.message.split(" in ")[0] for record in caplog.records] == [
        f"{policy}:1: caps.machines was renamed to caps.max_instances",
        f"{job}:1: importance was renamed to priority",
    ]
    assert parse_job({"name": "a", "command": "true", "importance": 4}).priority == 4
    with pytest.raises(ConfigError, match="importance: is the old name of priority, which is also set"):
        parse_job({"name": "a", "command": "true", "importance": 4, "priority": 5})


def test_job_check_shows_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hcloud: Hcloud) -> None:
    monkeypatch.setitem(KEY_CHANGES, "job", (KeyChange(old="importance", new="priority", since="0.2.0"),))
    (tmp_path / "job.yaml").write_text("{name: a, command: 'true', importance: 5}\n")
    done = hcloud("job", "check", "job.yaml")
    assert (done.code, done.err) == (0, "")
    assert "  note: job.yaml:1: importance was renamed to priority in 0.2.0; rename it: " in done.out


def test_entries_are_deleted_with_the_next_version() -> None:
    current = _minor(__version__)
    late = [change for changes in KEY_CHANGES.values() for change in changes if _minor(change.since) < current]
    assert late == [], "renamed or removed before the present minor version: delete the entry"


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("never", {"when": "never"}),
        (False, {"when": "never"}),
        ("always", {"when": "before"}),
        (True, {"when": "before"}),
    ],
)
def test_values_of_a_replaced_key_are_translated(old: object, new: object) -> None:
    value, (change,) = translate_keys({"profiling": {"enabled": old}}, KEY_CHANGES["policy"])
    assert value == {"profiling": new}
    assert change.change.sentence.startswith("was replaced by profiling.when in 0.2.0 (")


@pytest.mark.parametrize("old", ["auto", "sometimes", [1]])
def test_a_value_without_a_successor_leaves_the_new_key_at_its_default(old: object) -> None:
    value, applied = translate_keys({"profiling": {"enabled": old, "run_s": 3}}, KEY_CHANGES["policy"])
    assert value == {"profiling": {"run_s": 3}} and len(applied) == 1


@pytest.mark.parametrize(("old", "drains"), [("0", False), ("0.0", False), ("0.5", True), ("1", True)])
def test_a_policy_that_always_filled_machines_still_does(old: str, drains: bool, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"name: mine\nretention: {{drain_below: {old}}}\n")
    notes = list[str]()
    assert load_policy(file, notes=notes).retention.drain is drains
    assert len(notes) == 1 and "retention.drain_below was replaced by retention.drain" in notes[0]
