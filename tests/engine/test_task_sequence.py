"""Many tasks in one unit: each runs once, alone, within its own limits, and fails alone."""

from pathlib import Path
from typing import Any

import pytest

from hcloud.core.failures import FailureCause
from hcloud.core.model import Resources
from hcloud.core.task_runs import TaskEnds, UnitTasks
from hcloud.engine.task_log import TaskLog, parse_task_log
from hcloud.engine.wire import progress_from_wire
from tests.engine.alone import Outcome, run_alone
from tests.engine.test_faults import archive

BARE = ("bwrap", "cgroup")


def tasks(count: int, **changes: Any) -> UnitTasks:
    """The tasks at positions 10 and on, with ids 100 and on."""
    first = 10
    ids = tuple(range(100, 100 + count))
    return UnitTasks(positions=((first, first + count - 1),), ids=ids, first_job=1, **changes)


def ends(found: Outcome) -> list[TaskEnds]:
    assert found.tasks is not None
    return list(progress_from_wire(found.tasks).ended)


def slices(found: Outcome) -> tuple[TaskLog, list[str]]:
    """The log, and what each task wrote to its standard output."""
    log = parse_task_log(found.log.encode())
    return log, [found.stdout[first:last] for (first, last), _ in log.slices.values()]


@pytest.mark.parametrize("without", [(), ("cgroup",), BARE])
def test_tasks_run_one_after_the_other_each_with_its_own_variables(tmp_path: Path, without: tuple[str, ...]) -> None:
    values = (("colour", ("red", "dark 'blue'")),)
    script = "echo $HCLOUD_TASK_ID $HCLOUD_JOB_ID $colour; echo e >&2; exit $((HCLOUD_TASK_ID == 101 ? 3 : 0))"
    found = run_alone(tmp_path, script, without=without, tasks=tasks(3, matrix=values))
    assert (found.exit["exit_code"], found.exit["cause"]) == (0, None), found
    log, outputs = slices(found)
    assert outputs == ["100 job-11 red\n", "101 job-12 dark 'blue'\n", "102 job-13 red\n"]
    assert [each.stderr for each in log.slices.values()] == [(0, 2), (2, 4), (4, 6)]
    assert [(each.first, each.last, each.exit_code, each.cause) for each in ends(found)] == [
        (10, 10, 0, None),
        (11, 11, 3, FailureCause.EXIT_CODE),
        (12, 12, 0, None),
    ]
    assert log.progress == progress_from_wire(found.tasks or {})


def test_each_task_finds_the_directories_as_the_first_did(tmp_path: Path) -> None:
    script = (
        "cat given.txt; ls -A . ~ /tmp | grep -cx x; "
        "mkdir -p x/y && echo changed >given.txt && touch ~/x /tmp/x && chmod 0 x"
    )
    found = run_alone(tmp_path, script, tasks=tasks(3), archive=archive(tmp_path, given_txt="as given\n"))
    assert [each.cause for each in ends(found)] == [None], found
    assert found.stdout == "as given\n0\n" * 3, found


def test_a_task_over_its_time_or_memory_fails_alone(tmp_path: Path) -> None:
    script = (
        "case $HCLOUD_TASK_ID in 100) sleep 60;; "
        "101) exec python3 -c 'x = bytearray(300 << 20); x[::4096] = b\"1\" * len(x[::4096])';; "
        "*) echo fine;; esac"
    )
    memory = Resources(vcpus=1.0, memory_mib=64, disk_gib=0.05)
    found = run_alone(tmp_path, script, tasks=tasks(3), max_runtime_s=0.5, resources=memory)
    assert [each.cause for each in ends(found)] == [FailureCause.TIMEOUT, FailureCause.OUT_OF_MEMORY, None], found
    assert found.stdout.endswith("fine\n")


@pytest.mark.parametrize("without", [(), BARE])
def test_nothing_that_a_task_leaves_running_is_there_for_the_next(tmp_path: Path, without: tuple[str, ...]) -> None:
    script = (
        "ls /proc/*/task/*/comm 2>/dev/null | xargs cat 2>/dev/null | grep -c ^sleep; (setsid sleep 100 &) ; exit 0"
    )
    found = run_alone(tmp_path, script, without=without, tasks=tasks(3))
    assert [(each.first, each.last) for each in ends(found)] == [(10, 12)], found
    if not without:  # without a sandbox all of the machine's processes are seen
        assert found.stdout == "0\n" * 3
    assert not found.left


def test_a_task_that_ends_its_launcher_fails_and_no_other_begins(tmp_path: Path) -> None:
    found = run_alone(tmp_path, "[ $HCLOUD_TASK_ID = 100 ] && kill -TERM 0; kill -KILL $PPID; sleep 5", tasks=tasks(3))
    first, second = ends(found)
    assert (first.exit_code, second.exit_code, second.cause) == (143, 137, FailureCause.EXIT_CODE), found
    assert parse_task_log(found.log.encode()).slices.keys() == {10, 11}


@pytest.mark.parametrize("stopped", [[[11, 12]], [[10, 10]], None])
def test_a_task_ends_although_its_unit_is_stopped_for_others(tmp_path: Path, stopped: list[list[int]] | None) -> None:
    stop = {"cause": "evicted", "at": 1.0} | ({} if stopped is None else {"tasks": stopped})
    found = run_alone(tmp_path, "sleep 1; echo done", tasks=tasks(3), stop=stop)
    (only,) = ends(found)
    is_spared = stopped == [[11, 12]]
    assert (only.first, only.cause) == (10, None if is_spared else FailureCause.EVICTED), found
    assert found.stdout == "done\n" * is_spared and found.exit["cause"] == "evicted"


def test_no_task_begins_later_than_the_run_may_last(tmp_path: Path) -> None:
    found = run_alone(tmp_path, "sleep 0.2", tasks=tasks(9, begin_within_s=0.1))
    assert [(each.first, each.last) for each in ends(found)] == [(10, 10)], found


def test_a_command_that_is_missing_is_said_and_nothing_begins(tmp_path: Path) -> None:
    found = run_alone(tmp_path, ("no-such-program",), tasks=tasks(3))
    assert found.exit["cause"] == "start_refused" and "no command 'no-such-program'" in found.exit["detail"]
    assert ends(found) == []


def test_what_a_log_does_not_say_in_order_is_left_out() -> None:
    lines = ["boot a", "fence 2", "begin 0 1.0", "end 0 0 - 2.0 5 0 ", "end 0 1 exit_code 3.0 9 0 again",
             "end 7 0 - 3.0 9 0 ", "begin x", "begin 1 2.0", "end 1 9 no_cause 3.0 3 0 ", "end 1 0 - 1.0 3 0 ",
             "begin 2 2.0", "end 2 0"]  # fmt: skip
    log = parse_task_log("\n".join(lines).encode())
    (ended,) = log.progress.ended
    assert (ended.first, ended.last, ended.started_at, ended.ended_at) == (0, 1, 1.0, 2.0)
    assert log.progress.begun == ((2, 2),)
    assert log.slices[1].stdout == (5, 5)


def test_after_a_reboot_all_tasks_behind_a_fence_may_have_begun() -> None:
    lines = b"boot a\nfence 3\nbegin 2 1.0\nend 2 0 - 2.0 5 0 \nbegin 3 2.0\nfence 6\n"
    assert parse_task_log(lines, "a").progress.begun == ((3, 3),)
    assert parse_task_log(lines, "b").progress.begun == ((3, 6),)


@pytest.mark.parametrize(
    "plain",
    [
        {"ended": [[0, 100_000, 1.0, 2.0, 0, None, ""]], "begun": []},
        {"ended": [[0, 1, 1.0, 2.0, 1, "exit_code", ""]], "begun": []},
        {"ended": [[3, 1, 1.0, 2.0, 0, None, ""]], "begun": []},
        {"ended": [[0, 0, 2.0, 1.0, 0, None, ""]], "begun": []},
        {"ended": [[0, 0, float("nan"), 1.0, 0, None, ""]], "begun": []},
        {"ended": [[0, 0, 1.0, 1.0, 0, "no cause", ""]], "begun": []},
        {"ended": [[True, 0, 1.0, 1.0, 0, None, ""]], "begun": []},
        {"ended": [[0, 700, 1.0, 1.0, 0, None, ""]] * 2, "begun": []},
        {"ended": [], "begun": [[0, 5_000]]},
        {"ended": [[]], "begun": []},
        {"begun": []},
    ],
)
def test_a_report_of_tasks_that_no_agent_sends_is_refused(plain: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        progress_from_wire(plain)
