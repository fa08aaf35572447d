"""An edited policy takes effect, a broken one leaves the last good one in force and says what is wrong."""

import os
from pathlib import Path

import pytest

from hcloud.config import PolicyStatus, PolicyWatch
from hcloud.config.watch import SETTLE_S
from hcloud.core.errors import ConfigError
from hcloud.spec.policy import Policy


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("name: first\n")
    return path


def settled(watch: PolicyWatch, at: float = 0.0) -> PolicyStatus:
    """The status once a change has been there for long enough."""
    watch.poll(at)
    return watch.poll(at + SETTLE_S)


def test_unchanged_file_changes_nothing(file: Path) -> None:
    watch = PolicyWatch(file)
    assert watch.status.policy.name == "first"
    assert not settled(watch).changed
    assert not watch.poll(0.0, force=True).changed


def test_edited_file_takes_effect_once(file: Path) -> None:
    watch = PolicyWatch(file)
    file.write_text("name: second one\n")
    status = settled(watch)
    assert (status.changed, status.error, status.policy.name) == (True, None, "second one")
    assert status.digest == status.policy.digest
    assert not settled(watch).changed
    assert watch.status.policy.name == "second one"


def test_broken_edit_leaves_the_last_good_policy_in_force_and_says_so(file: Path) -> None:
    watch = PolicyWatch(file)
    good = watch.status
    file.write_text("name: second\nbudgts: {}\n")
    status = settled(watch)
    assert status.changed
    assert (status.policy, status.digest) == (good.policy, good.digest)
    assert status.error == f"{file}:2: budgts: unknown key; did you mean 'budgets'?"
    after = settled(watch)
    assert (after.changed, after.error) == (False, status.error)


def test_mended_file_clears_the_error_even_when_the_policy_is_the_old_one(file: Path) -> None:
    watch = PolicyWatch(file)
    file.write_text("- broken")
    assert settled(watch).error
    file.write_text("name: first\n")
    status = settled(watch)
    assert (status.changed, status.error, status.policy.name) == (True, None, "first")


@pytest.mark.parametrize("loss", ["removed", "directory"])
def test_lost_file_leaves_the_last_good_policy_in_force(file: Path, loss: str) -> None:
    watch = PolicyWatch(file)
    file.unlink()
    if loss == "directory":
        file.mkdir()
    status = settled(watch)
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
    assert settled(watch).policy.name == "fjrst"


def test_forced_poll_reads_what_looks_unchanged(file: Path) -> None:
    watch = PolicyWatch(file)
    before = file.stat()
    file.write_text("name: fjrst\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not settled(watch).changed
    assert watch.poll(0.0, force=True).policy.name == "fjrst"


def test_first_policy_must_be_valid_unless_one_is_given(file: Path) -> None:
    file.write_text("nam: x\n")
    with pytest.raises(ConfigError):
        PolicyWatch(file)
    watch = PolicyWatch(file, Policy(name="given"))
    assert watch.status.policy.name == "given"
    assert watch.poll(0.0, force=True).error


@pytest.mark.parametrize("part", ["", "name: secon", "name: second\n"], ids=["empty", "mid-line", "at a line's end"])
def test_file_that_is_being_written_is_read_when_it_is_complete(file: Path, part: str) -> None:
    watch = PolicyWatch(file)
    file.write_text(part)
    for at in (0.0, 0.9 * SETTLE_S):
        status = watch.poll(at)
        assert (status.changed, status.error, status.policy.name) == (False, None, "first")
        assert watch.is_settling
    file.write_text("name: second\nbudgets: {per_hour_usd: 1}\n")
    assert not watch.poll(2 * SETTLE_S).changed
    status = watch.poll(3 * SETTLE_S)
    assert (status.changed, status.error, status.policy.budgets.per_hour_usd) == (True, None, 1.0)
    assert not watch.is_settling


def test_file_that_stays_empty_is_a_fault(file: Path) -> None:
    watch = PolicyWatch(file)
    file.write_text("")
    assert watch.poll(0.0).error is None
    status = watch.poll(SETTLE_S)
    assert status.changed and status.error is not None and "is empty" in status.error


def test_what_was_read_while_the_file_changed_is_not_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = PolicyWatch(file)

    def read(path: Path, notes: list[str]) -> Policy:
        path.write_text("name: complete\n")
        raise ConfigError("is empty", where=str(path))

    file.write_text("")
    watch.poll(0.0)
    with monkeypatch.context() as patch:
        patch.setattr("hcloud.config.watch.load_policy", read)
        assert watch.poll(SETTLE_S).error is None
    assert settled(watch, 2 * SETTLE_S).policy.name == "complete"


def test_a_clock_that_is_set_back_does_not_keep_a_change_waiting(file: Path) -> None:
    watch = PolicyWatch(file)
    file.write_text("name: second\n")
    watch.poll(1000.0)
    assert watch.poll(10.0).policy.name == "second"
