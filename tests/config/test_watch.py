"""An edited policy takes effect, a broken one leaves the last good one in force and says what is wrong."""

import os
from pathlib import Path

import pytest

from hcloud.config import PolicyWatch
from hcloud.core.errors import ConfigError
from hcloud.spec.policy import Policy


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("name: first\n")
    return path


def test_unchanged_file_changes_nothing(file: Path) -> None:
    watch = PolicyWatch(file)
    assert watch.status.policy.name == "first"
    assert not watch.poll().changed
    assert not watch.poll(force=True).changed


def test_edited_file_takes_effect_once(file: Path) -> None:
    watch = PolicyWatch(file)
    file.write_text("name: second one\n")
    status = watch.poll()
    assert (status.changed, status.error, status.policy.name) == (True, None, "second one")
    assert status.digest == status.policy.digest
    assert not watch.poll().changed
    assert watch.status.policy.name == "second one"


def test_broken_edit_leaves_the_last_good_policy_in_force_and_says_so(file: Path) -> None:
    watch = PolicyWatch(file)
    good = watch.status
    file.write_text("name: second\nbudgts: {}\n")
    status = watch.poll()
    assert status.changed
    assert (status.policy, status.digest) == (good.policy, good.digest)
    assert status.error == f"{file}:2: budgts: unknown key; did you mean 'budgets'?"
    after = watch.poll()
    assert (after.changed, after.error) == (False, status.error)


def test_mended_file_clears_the_error_even_when_the_policy_is_the_old_one(file: Path) -> None:
    watch = PolicyWatch(file)
    file.write_text("- broken")
    assert watch.poll().error
    file.write_text("name: first\n")
    status = watch.poll()
    assert (status.changed, status.error, status.policy.name) == (True, None, "first")


@pytest.mark.parametrize("loss", ["removed", "directory"])
def test_lost_file_leaves_the_last_good_policy_in_force(file: Path, loss: str) -> None:
    watch = PolicyWatch(file)
    file.unlink()
    if loss == "directory":
        file.mkdir()
    status = watch.poll()
    assert status.policy.name == "first"
    assert status.error is not None
    assert str(file) in status.error


def test_replaced_file_of_same_size_and_time_is_seen(file: Path) -> None:
    watch = PolicyWatch(file)
    before = file.stat()
    other = file.with_name("new")
    other.write_text("name: fjrst\n")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(file)
    assert watch.poll().policy.name == "fjrst"


def test_forced_poll_reads_what_looks_unchanged(file: Path) -> None:
    watch = PolicyWatch(file)
    before = file.stat()
    file.write_text("name: fjrst\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not watch.poll().changed
    assert watch.poll(force=True).policy.name == "fjrst"


def test_first_policy_must_be_valid_unless_one_is_given(file: Path) -> None:
    file.write_text("nam: x\n")
    with pytest.raises(ConfigError):
        PolicyWatch(file)
    watch = PolicyWatch(file, Policy(name="given"))
    assert watch.status.policy.name == "given"
    assert watch.poll(force=True).error
