"""`hcloud top`: one picture where nobody looks, and pictures cut to the terminal's height."""

import re
from typing import Any

from hcloud.cli.top import _frame, _picture
from tests.cli.conftest import Shell


def test_one_picture_is_printed_where_output_is_no_terminal(shell: Shell) -> None:
    shown = shell.run("top", "--mine")[0]
    assert re.match(r"hcloud \S+: 0 running, 0 waiting; ", shown)
    assert "no machines" in shown and "no jobs run or wait" in shown


def a_job(number: int, state: str, priority: int = 0) -> dict[str, Any]:
    """A job as the API shows it."""
    spec = {"name": "n", "user": "u", "resources": {"vcpus": 1}, "nodes": {"count": 1}, "priority": priority}
    return {"id": f"job-{number}", "spec": spec, "state": state, "submitted_at": 0.0, "deadline_at": 70.0,
            "tasks": None, "attempt": None, "unmet_text": "", "awaiting": [], "wait_text": "no room",
            "wait_code": "x"}  # fmt: skip


def a_machine(number: int) -> dict[str, Any]:
    """A machine as the API shows it."""
    kind = {"name": "m", "capacity": {"vcpus": 4.0, "memory_mib": 4096}}
    offer = {"instance_type": kind, "market": "spot", "price_usd_per_h": 0.1}
    return {"id": f"inst-{number}", "state": "ready", "offer": offer, "used": {"vcpus": 1.0, "memory_mib": 2048},
            "launched_at": 0.0, "terminated_at": None, "jobs": []}  # fmt: skip


def found(machines: int, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """What a picture is drawn of."""
    status = {"version": "1", "now": 10.0, "price_usd_per_h": 1.0, "daemon": {}, "paused": ""}
    return {"status": status, "jobs": jobs, "machines": [a_machine(number) for number in range(machines)]}


def test_a_frame_fits_its_terminal_and_overwrites_the_one_before() -> None:
    jobs = [a_job(number, "queued") for number in range(500)]
    drawn = _frame(found(300, jobs))
    assert drawn.startswith("\x1b[H") and drawn.endswith("\x1b[J")
    lines = drawn.splitlines()
    assert len(lines) <= 25 and all(line.endswith("\x1b[K") for line in lines[:-1])
    assert sum(" more" in line for line in lines) == 2 and "##......" in drawn


def test_what_runs_comes_first_then_what_waits_by_priority() -> None:
    jobs = [a_job(1, "queued"), a_job(2, "queued", priority=5), a_job(3, "running")]
    *_, jobs_table = _picture(found(0, jobs), 40)
    assert [str(each) for each in jobs_table.columns[0].cells] == ["job-3", "job-2", "job-1"]  # type: ignore[union-attr]
