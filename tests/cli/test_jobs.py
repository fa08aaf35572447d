"""From submission to result, as people type it."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from hcloud.core.model import Checkpoint, JobState
from tests.api.deployment import Deployment
from tests.cli.conftest import Shell
from tests.waiting import wait_until

JOBS = """
name: first
command: echo first
target: {batch: {within: 10m}}
tags: {team: search}
---
name: second
command: exit 3
"""


def test_submit_shows_a_priced_plan_and_prints_the_id(shell: Shell, deployment: Deployment) -> None:
    out, err = shell.run("submit", "--vcpus", "4", "--within", "10m", "--", "sleep", "1")
    assert out == "job-1 sleep\n"
    assert "m.two" in err
    assert "->" in err
    assert "$1.20/h" in err
    spec = deployment.store.job("job-1").spec
    assert (spec.command, spec.resources.vcpus) == (("sleep", "1"), 4.0)


def test_submit_without_a_terminal_asks_nothing_and_quiet_shows_nothing(shell: Shell) -> None:
    assert shell.run("submit", "-q", "--", "true") == ("job-1 true\n", "")


def test_dry_run_tells_first_of_a_job_that_can_never_run_however_many_there_are(shell: Shell) -> None:
    sizes = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 640)
    jobs = [f"name: j{n}\ncommand: 'true'\nresources: {{vcpus: {size}}}\n" for n, size in enumerate(sizes)]
    (shell.directory / "many.yaml").write_text("---\n".join(jobs))
    out, _ = shell.run("submit", "--dry-run", "many.yaml", exit_code=1)
    assert out.startswith("j6: fail, can never run here: ") and "... and 2 more jobs" in out


def test_a_preview_shows_jobs_that_are_alike_once_and_no_id_that_does_not_exist(shell: Shell) -> None:
    jobs = [
        f"name: j{n}\ncommand: 'true'\nresources: {{vcpus: {size}}}\n" for n, size in enumerate((0.1, 0.1, 0.1, 0.2))
    ]
    (shell.directory / "alike.yaml").write_text("---\n".join(jobs))
    out, _ = shell.run("submit", "--dry-run", "alike.yaml")
    assert [line.partition(":")[0] for line in out.splitlines() if line.startswith(("j", "3"))] == [
        "3 jobs (j0, j1, j2)",
        "j3",
    ]
    whole, _ = shell.run("submit", "--dry-run", "-o", "json", "alike.yaml")
    assert len(json.loads(whole)) == 4
    assert not re.search(r"job-1\d{12}", out + whole)


def test_a_job_that_will_likely_miss_its_deadline_is_warned_of_once_and_submitted(
    shell: Shell, deployment: Deployment
) -> None:
    shell.run("run", "-q", "--within", "10m", "--", "sleep", "20")
    wait_until(lambda: deployment.controller.last_snapshot.run_times.predictor is not None, timeout_s=20)
    hurried = ("--within", "3s", "--", "sleep", "20")
    for options in (("submit",), ("submit", "-q"), ("submit", "-o", "json"), ("submit", "--dry-run")):
        out, err = shell.run(*options, *hurried)
        [line] = [line for line in err.splitlines() if line.startswith("warning: ")]
        assert re.fullmatch(r"warning: sleep meets its deadline with probability 0.\d\d even if it starts now", line)
        assert "warning" not in out
    assert "warning" not in shell.run("submit", "--within", "10m", "--", "sleep", "20")[1]
    job = "name: {}\ncommand: sleep 20\ntarget: {{batch: {{within: 3s}}}}\n"
    (shell.directory / "five.yaml").write_text("---\n".join(job.format(f"j{n}") for n in range(5)))
    _, err = shell.run("submit", "-q", "five.yaml")
    assert re.fullmatch(
        r"warning: 5 of 5 jobs meet their deadline with probability below 0.5 even if they start now: "
        r"j0 0.\d\d, j1 0.\d\d, j2 0.\d\d, ...\n",
        err,
    )


def test_wait_and_logs_give_documents_to_programs(shell: Shell) -> None:
    shell.run("run", "-q", "--", "echo hello; exit 3", exit_code=1)
    out, err = shell.run("wait", "1", "-o", "json", exit_code=1)
    assert [(each["id"], each["state"]) for each in json.loads(out)] == [("job-1", "failed")]
    assert "job-1 echo failed" in err
    for follow in ((), ("-f",)):
        (part,) = [json.loads(line) for line in shell.run("logs", "1", "-o", "json", *follow)[0].splitlines()]
        assert part == {"attempt": 1, "stream": "stdout", "offset": 0, "content": "hello\n"}


def _is_completed(shell: Shell, words: dict[str, str], wanted: str) -> bool:
    return shell.run_anew(**words)[0].strip() == wanted


def test_ids_of_jobs_and_instances_are_completed_from_the_daemon_and_not_without_one(
    shell: Shell, tmp_path: Path
) -> None:
    shell.run("submit", "-q", "--", "true")
    for line, found in (("hcloud logs 1", "job-1"), ("hcloud cancel job-", "job-1"), ("hcloud status x", "")):
        words = {"_HCLOUD_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": "2"}
        wanted = f"plain,{found}" if found else ""
        # A daemon that is busy for a second is not waited for; whoever types presses the key again.
        wait_until(partial(_is_completed, shell, words, wanted), 30.0)
    silent = {"HCLOUD_SOCKET": str(tmp_path / "none.sock"), "COMP_WORDS": "hcloud logs ", "COMP_CWORD": "2"}
    out, err = shell.run_anew(_HCLOUD_COMPLETE="bash_complete", **silent)
    assert (out.strip(), err) == ("", "")


def test_short_commands_load_neither_an_http_library_nor_the_product(shell: Shell) -> None:
    shell.run("run", "-q", "--", "true")
    heavy = {
        "httpx2",
        "pydantic",
        "numpy",
        "sqlalchemy",
        "fastapi",
        "hcloud.planner",
        "hcloud.core.model",
        "hcloud.core.units",
    }
    for words in (["status"], ["queue"], ["logs", "1"], ["wait", "1"], ["cancel", "-y", "1"], ["explain", "1"]):
        code = f"import sys; from hcloud.cli.main import _run; _run({words}); "
        code += f"print({heavy} & set(sys.modules), file=sys.stderr)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **shell.environment}
        )
        assert done.stderr.splitlines()[-1] == "set()", (words, done.stderr)


def test_dry_run_shows_the_plan_and_submits_nothing(shell: Shell, deployment: Deployment) -> None:
    for spelling in ("--dry-run", "--dryrun"):
        out, _ = shell.run("submit", spelling, "--", "true")
        assert "m.one" in out
    planned = json.loads(shell.run("submit", "--dry-run", "-o", "json", "--", "true")[0])
    assert planned[0]["action"] == "launch"
    assert deployment.store.jobs() == ()


def test_plan_says_that_a_job_is_profiled_first_and_for_how_much(shell: Shell, deployment: Deployment) -> None:
    settings = replace(deployment.policy.profiling, when="before")
    deployment.controller.policy = deployment.policy = replace(deployment.policy, profiling=settings)
    out, _ = shell.run("submit", "--dry-run", "--within", "5h", "--", "./simulate", "--years", "9")
    assert "first profiled in 2 runs on m.one, m.two, at most $" in " ".join(out.split())
    (planned,) = json.loads(
        shell.run("submit", "--dry-run", "-o", "json", "--within", "5h", "--", "./simulate", "--years", "9")[0]
    )
    assert (planned["knowing"]["how"], planned["knowing"]["runs"]) == ("profiled", 2)
    assert planned["knowing"]["cost_usd"] > 0
    (plain,) = json.loads(shell.run("submit", "--dry-run", "-o", "json", "--", "true")[0])
    assert plain["knowing"]["text"].startswith("no profile: ")


def test_submit_of_a_file_takes_every_document_and_flags_win(shell: Shell, deployment: Deployment) -> None:
    (shell.directory / "jobs.yaml").write_text(JOBS)
    out, _ = shell.run("submit", "jobs.yaml", "-t", "run=7", "--priority", "5", "-o", "json")
    assert [each["name"] for each in json.loads(out)] == ["first", "second"]
    first = deployment.store.job("job-1").spec
    assert (first.tags, first.priority) == ({"team": "search", "run": "7"}, 5)


def test_flags_change_single_keys_of_checkpoints_retries_and_schedules(shell: Shell, deployment: Deployment) -> None:
    stated = "{path: state, every: 1h}"
    (shell.directory / "one.yaml").write_text(f"name: one\ncommand: 'true'\ncheckpoint: {stated}\nretries: 2\n")
    flags = (
        "--checkpoint-every",
        "30s",
        "--checkpoint-signal",
        "USR1",
        "--memory-retries",
        "3",
        "--memory-factor",
        "4",
    )
    shell.run("submit", "-q", *flags, "one.yaml")
    spec = deployment.store.job("job-1").spec
    assert spec.checkpoint == Checkpoint(path="state", every_s=30.0, signal="USR1")
    limits = spec.retries.limits
    assert (limits["exit_code"], limits["out_of_memory"], spec.retries.memory_factor) == (2, 3, 4.0)
    shell.run("submit", "-q", "--cron", "@daily", "--missed", "once", "--overlap", "queue", "--", "true")
    rule = deployment.store.schedules()[0].recurrence
    assert (rule.cron, rule.missed, rule.overlap) == ("@daily", "once", "queue")
    for given, words in (
        (("--checkpoint-every", "5m"), "checkpoint.path (--checkpoint): is required"),
        (("--missed", "once"), "schedule.cron (--cron): is required"),
        (("--outputs", "r=ftp://store/x"), "outputs[0].to (--outputs): must begin with s3:// or gs://"),
        (
            ("--after", "prep:succeeded"),
            "--after prep:succeeded: must be a job, or a job and how it ends such as job-7=",
        ),
        (
            ("--memory-retries", "1", "--memory-factor", "1"),
            "(--memory-factor): must be above 1, such as 2: with the same",
        ),
    ):
        _, err = shell.run("submit", "-q", *given, "--", "true", exit_code=2)
        assert words in err and len(err.splitlines()) == 1


def test_dry_run_and_explain_show_what_a_job_asks_for(shell: Shell) -> None:
    flags = ("--image", "debian:12", "--memory-retries", "2", "--outputs", "results/", "--secret", "TOKEN")
    wanted = (
        "asks for: 2 times the memory when it runs out of it, at most 2 times, image debian:12, secret variable TOKEN, "
        "output results/"
    )
    plan, _ = shell.run("submit", "--dry-run", *flags, "--", "true", TOKEN="hidden")
    shell.run("submit", "-q", *flags, "--", "true", TOKEN="hidden")
    explained, _ = shell.run("explain", "job-1")
    assert "image debian:12 (could not be looked up)" in plan  # no registry is asked here
    for text in (plan.replace(" (could not be looked up)", ""), explained):
        assert wanted in " ".join(text.split()) and "hidden" not in text
    assert "asks for" not in shell.run("submit", "--dry-run", "--", "true")[0]


def test_submit_sends_the_environment_asked_for(shell: Shell, deployment: Deployment) -> None:
    (shell.directory / "vars").write_text("FROM_FILE=1\nBOTH=file\n")
    flags = ["-e", "INHERITED", "-e", "BOTH=flag", "--env-file", "vars"]
    shell.run("submit", "-q", *flags, "--", "true", INHERITED="yes")
    assert deployment.store.job("job-1").spec.env == {"FROM_FILE": "1", "BOTH": "flag", "INHERITED": "yes"}


def test_submit_uploads_a_work_directory_once_and_without_what_is_ignored(shell: Shell, deployment: Deployment) -> None:
    work = shell.directory / "work"
    for name in ("data/in.txt", ".git/config", "junk.tmp", "run.sh"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(name)
    (work / ".hcloudignore").write_text("*.tmp\n")
    for _ in range(2):
        shell.run("submit", "-q", "-w", "work", "--", "./run.sh")
    (archive,) = (deployment.home / "uploads").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        assert packed.getnames() == [".hcloudignore", "data", "data/in.txt", "run.sh"]
        assert {member.uid for member in packed} == {0}
    assert deployment.store.job("job-2").spec.workdir_sha256 == archive.name.removesuffix(".tar.gz")


def test_a_work_directory_over_the_limit_is_refused_before_it_is_sent(shell: Shell, deployment: Deployment) -> None:
    from random import Random

    (shell.directory / "big").write_bytes(Random(1).randbytes(2**20 + 1000))
    _, err = shell.run("submit", "-q", "-w", ".", "--", "true", exit_code=2)
    assert "larger than 1 MiB" in err
    assert ".hcloudignore" in err
    assert list((deployment.home / "uploads").iterdir()) == []


def test_run_shows_the_output_and_ends_as_the_job_ends(shell: Shell) -> None:
    out, err = shell.run("run", "-q", "--", "echo", "hello")
    assert out == "hello\n"
    assert "job-1 echo succeeded" in err
    out, err = shell.run("run", "-q", "--", "echo tried; exit 3", exit_code=1)
    assert out == "tried\n"
    assert "failed" in err


def test_run_of_several_jobs_waits_for_all(shell: Shell) -> None:
    (shell.directory / "jobs.yaml").write_text(JOBS)
    _, err = shell.run("run", "-q", "jobs.yaml", exit_code=1)
    assert "job-1 first succeeded" in err
    assert "job-2 second failed" in err


def test_logs_follow_to_the_end_across_attempts(shell: Shell) -> None:
    (shell.directory / "job.yaml").write_text(
        "name: flaky\ncommand: echo out; echo trouble >&2; exit 1\nretries: {exit_code: 1, backoff: 1}\n"
    )
    out, err = shell.run("run", "-q", "job.yaml", exit_code=1)
    assert out == "out\nout\n"
    assert err.splitlines().count("stderr: trouble") == 2
    assert shell.run("logs", "-f", "1") == ("out\n", "stderr: trouble\n")  # from the present attempt on
    assert shell.run("logs", "-f", "1", "--stderr")[0] == "trouble\n"
    assert "last lines  trouble" in shell.run("status", "1")[0]
    for command in (["explain", "1"],):
        assert "trouble" in shell.run(*command)[0]
    assert shell.run("logs", "job-1")[0] == "out\n"
    assert shell.run("logs", "1", "--attempt", "1", "--stderr")[0] == "trouble\n"


def test_the_last_lines_of_logs_are_shown_alone(shell: Shell) -> None:
    shell.run("run", "-q", "--", "; ".join(f"echo line {n}" for n in range(5)) + "; echo trouble >&2", exit_code=0)
    assert shell.run("logs", "1", "--tail", "2")[0] == "line 3\nline 4\n"
    assert shell.run("logs", "1", "-n", "0") == ("", "")
    assert shell.run("logs", "1", "-n", "99")[0].splitlines()[0] == "line 0"
    assert shell.run("logs", "1", "-n", "1", "-f") == ("line 4\n", "stderr: trouble\n")
    (part,) = shell.run("logs", "1", "-n", "1", "-o", "json")[0].splitlines()
    assert json.loads(part) == {"attempt": 1, "stream": "stdout", "offset": 28, "content": "line 4\n"}
    assert "--tail" in shell.run("logs", "1", "--tail", "-1", exit_code=2)[1]


def test_wait_tells_how_each_job_ended(shell: Shell) -> None:
    shell.run("submit", "-q", "--", "true")
    shell.run("submit", "-q", "--", "false")
    assert "succeeded" in shell.run("wait", "1")[1]
    assert "failed" in shell.run("wait", "1", "2", exit_code=1)[1]


def test_wait_gives_up_in_time(shell: Shell) -> None:
    shell.run("submit", "-q", "--", "sleep", "1000000")
    assert "still running: job-1" in shell.run("wait", "1", "--timeout", "0.2", exit_code=1)[1]


def test_cancel_stops_jobs(shell: Shell, deployment: Deployment) -> None:
    for _ in range(3):
        shell.run("submit", "-q", "--", "sleep", "1000000")
    assert "job-2" in shell.run("cancel", "2")[0]
    wait_until(lambda: deployment.store.job("job-2").state is JobState.CANCELLED, timeout_s=60)
    shell.run("cancel", "--all", "-y")
    wait_until(lambda: not deployment.store.live().jobs, timeout_s=60)
    assert "none of your jobs" in shell.run("cancel", "--all")[0]


def test_interrupting_run_leaves_the_job_running_and_says_how_to_stop_it(shell: Shell, deployment: Deployment) -> None:
    process = shell.start("run", "-q", "--", "sleep", "1000000")
    wait_until(lambda: deployment.store.jobs() and deployment.store.job("job-1").attempt is not None, timeout_s=60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "hcloud cancel job-1" in err
    assert "Traceback" not in err
    assert deployment.store.job("job-1").cancelled_by is None


def test_status_shows_jobs_and_machines_in_every_form(shell: Shell, deployment: Deployment) -> None:
    shell.run("submit", "-q", "--name", "sorter", "--", "sleep", "1000000")
    wait_until(lambda: deployment.store.job("job-1").state is JobState.RUNNING, timeout_s=60)
    out, _ = shell.run("status")
    assert "sorter" in out
    assert "inst-1" in out
    assert "policy" in out
    whole = json.loads(shell.run("status", "-o", "json")[0])
    assert (whole["jobs"][0]["id"], whole["instances"][0]["id"]) == ("job-1", "inst-1")
    (row,) = csv.DictReader(io.StringIO(shell.run("status", "-o", "csv")[0]))
    assert (row["job"], row["state"]) == ("job-1", "running")
    assert "sleep 1000000" in shell.run("status", "1")[0]
    assert "sorter" in shell.run("queue")[0]


def test_one_misspelt_job_leaves_the_others_uncancelled(shell: Shell, deployment: Deployment) -> None:
    shell.run("submit", "-q", "--", "sleep", "1000000")
    assert "there is no job-9" in shell.run("cancel", "-y", "1", "9", exit_code=2)[1]
    assert not deployment.store.job("job-1").cancelled_by


def test_status_says_what_is_wrong(shell: Shell) -> None:
    shell.run("pause", "kernel", "update")
    assert "TROUBLE  paused: kernel update; continue with 'hcloud resume'" in shell.run("status")[0]
    shell.run("resume")
    assert "TROUBLE" not in shell.run("status")[0]


def test_watching_ends_quietly_when_interrupted(shell: Shell) -> None:
    process = shell.start("status", "--watch", "--interval", "0.2")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_tables_of_the_fleet(shell: Shell, deployment: Deployment) -> None:
    shell.run("submit", "-q", "--", "sleep", "1000000")
    wait_until(lambda: deployment.store.job("job-1").state is JobState.RUNNING, timeout_s=60)
    assert "m.one" in shell.run("instances")[0]
    (machine,) = csv.DictReader(io.StringIO(shell.run("instances", "-o", "csv")[0]))
    assert (machine["instance"], machine["jobs"]) == ("inst-1", "job-1")
    offers, err = shell.run("offers")
    assert offers.index("m.one") < offers.index("m.two")
    assert "the oldest of these prices is" in err
    kinds = [each["kind"] for each in json.loads(shell.run("events", "--job", "1", "-o", "json")[0])]
    assert kinds[0] == "job_submitted"


def test_events_follow_until_the_reader_has_seen_enough(shell: Shell) -> None:
    shell.run("submit", "-q", "--", "true")
    process = shell.start("events", "-f", "--job", "1", "-o", "json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["kind"] == "job_submitted"
    process.stdout.close()
    wait_until(lambda: process.poll() is not None, timeout_s=60)
    assert process.stderr is not None
    assert (process.returncode, process.stderr.read()) == (0, "")


def test_a_daemon_restart_does_not_end_what_follows_it(deployment: Deployment) -> None:
    directory = Path(deployment.home)
    with deployment.served() as server:
        shell = Shell(directory=directory, environment={"HCLOUD_SOCKET": str(server.socket_path)})
        shell.run("submit", "-q", "--", "true")
        waiting = shell.start("wait", "1")
        wait_until(lambda: _waits(server), timeout_s=60)
    with deployment.served(), deployment.running():
        _, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, "succeeded" in err) == (0, True), err


def _waits(server: object) -> bool:
    return any(uvicorn.server_state.connections for uvicorn, _ in server._listeners)  # type: ignore[attr-defined]


def test_checks_and_dry_runs_refuse_a_link_that_submission_would_refuse(shell: Shell) -> None:
    work = shell.directory / "work"
    work.mkdir()
    (work / "out").symlink_to("/etc/hostname")
    (shell.directory / "job.yaml").write_text("name: a\ncommand: 'true'\nworkdir: work\n")
    for command in (["submit", "--dry-run"], ["run", "--dry-run"], ["submit", "-y"], ["job", "check"]):
        _, err = shell.run(*command, "job.yaml", exit_code=2)
        assert "work/out is a link to /etc/hostname" in err and ".hcloudignore" in err, command
    (work / ".hcloudignore").write_text("out\n")
    for command in (["submit", "--dry-run"], ["job", "check"]):
        shell.run(*command, "job.yaml")


def test_logs_of_a_job_that_never_ran_say_so_however_they_are_read(shell: Shell) -> None:
    shell.run("submit", "-y", "--vcpus", "640", "--", "true")
    for arguments in ((), ("-f",), ("--attempt", "1"), ("-f", "--attempt", "1"), ("-f", "-o", "json")):
        assert shell.run("logs", "1", *arguments) == ("", "job-1 has not run\n"), arguments
