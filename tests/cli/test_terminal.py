"""What only a person at a terminal sees: questions, pictures that are drawn again, progress, interruptions."""

import os

from hcloud.core.model import Event, EventKind, JobState
from tests.api.deployment import ROOT, Deployment
from tests.cli.conftest import Shell
from tests.cli.terminal import CONTROL_C, at_terminal


def test_submit_shows_the_plan_and_asks_first(shell: Shell, deployment: Deployment) -> None:
    with at_terminal(shell, "submit", "--within", "10m", "--", "sleep", "5") as terminal:
        terminal.until("Submit this job?")
        assert "/h in new machines" in terminal.shown
        assert deployment.store.jobs() == ()
        terminal.press("y\n")
        assert terminal.ended() == 0
        assert "job-1 sleep" in terminal.shown
    assert deployment.store.job("job-1").spec.command == ("sleep", "5")


def test_a_no_submits_nothing(shell: Shell, deployment: Deployment) -> None:
    for command in ("submit", "run"):
        with at_terminal(shell, command, "--", "true") as terminal:
            terminal.until("Submit this job?")
            terminal.press("n\n")
            assert terminal.ended() == 130
            assert "Traceback" not in terminal.shown
    assert deployment.store.jobs() == ()


def test_yes_asks_nothing(shell: Shell, deployment: Deployment) -> None:
    with at_terminal(shell, "submit", "-y", "--", "true") as terminal:
        assert terminal.ended() == 0
        assert "?" not in terminal.shown
    assert deployment.store.job("job-1").spec.command == ("true",)


def test_interrupting_a_run_leaves_the_job_running_and_says_how_to_stop_it(
    shell: Shell, deployment: Deployment
) -> None:
    with at_terminal(shell, "run", "-y", "--", "sleep", "100000") as terminal:
        terminal.until("job-1 sleep")
        terminal.press(CONTROL_C)
        assert terminal.ended() == 130
        assert "still running: job-1; stop with 'hcloud cancel job-1'" in terminal.shown
        assert "Traceback" not in terminal.shown
    assert deployment.store.job("job-1").state not in (JobState.CANCELLED, JobState.FAILED)


def test_watching_draws_the_picture_again_until_interrupted(shell: Shell) -> None:
    shell.run("submit", "-q", "--", "sleep", "100000")
    with at_terminal(shell, "status", "--watch", "--interval", "0.2") as terminal:
        terminal.until("job-1")
        before = terminal.raw.count("daemon ")
        shell.run("submit", "-q", "--", "sleep", "100000")
        terminal.until("job-2")
        assert terminal.raw.count("daemon ") > before
        terminal.press(CONTROL_C)
        assert terminal.ended() == 0
        assert terminal.raw.count("\x1b[?1049l") == 1  # the screen that was there before is back


def test_a_narrow_terminal_shows_fewer_columns_and_breaks_no_word(shell: Shell) -> None:
    shell.run("submit", "-q", "--within", "10m", "--", "sleep", "100000")
    for columns, left_out in ((60, "zone"), (80, "zone"), (200, "nothing")):
        with at_terminal(shell, "status", columns=columns) as terminal:
            assert terminal.ended() == 0
            [head] = [line for line in terminal.shown.splitlines() if line.startswith("instance")]
            assert ("zone" in head) == (left_out != "zone")
            assert len(head) <= columns
            assert "sleep" in terminal.shown


def test_a_large_upload_shows_how_far_it_is(shell: Shell) -> None:
    folder = shell.directory / "work"
    folder.mkdir()
    (folder / "data").write_bytes(os.urandom(900_000))
    with at_terminal(shell, "submit", "-y", "--workdir", "work", "--", "true") as terminal:
        assert terminal.ended() == 0
        assert "job-1 true" in terminal.shown
        assert "MB/s" in terminal.shown


def test_colours_are_for_terminals_and_not_for_those_who_want_none(shell: Shell) -> None:
    shell.run("run", "-q", "--", "true")
    with at_terminal(shell, "status") as terminal:
        terminal.ended()
        assert "\x1b[32m" in terminal.raw
    assert "\x1b" not in shell.run("status")[0]
    plain = Shell(directory=shell.directory, environment={**shell.environment, "NO_COLOR": "1"})
    with at_terminal(plain, "status") as terminal:
        terminal.ended()
        assert "\x1b[32m" not in terminal.raw


def test_run_says_what_its_job_waits_for_and_how_long_others_waited(shell: Shell, deployment: Deployment) -> None:
    submitted = Event(at=0.0, kind=EventKind.JOB_SUBMITTED, job_id="job-900", fields={"target_kind": "best_effort"})
    started = Event(at=90.0, kind=EventKind.UNIT_STARTED, job_id="job-900")
    deployment.telemetry.follow([submitted, started])
    admin = deployment.client(ROOT)
    admin.post("/v1/pause", json={"reason": "kernel update"})
    with at_terminal(shell, "run", "-y", "-q", "--", "echo", "here it is", columns=200) as terminal:
        terminal.until("job-1 waits ")
        terminal.until("kernel update")
        terminal.until(" (others waited 1m30s, 9 in 10 up to 1m30s)")
        admin.post("/v1/resume")
        assert terminal.ended() == 0
        assert "here it is" in terminal.shown
        assert "\r\x1b[K" in terminal.raw.partition("here it is")[0][-200:]  # the line was removed before
