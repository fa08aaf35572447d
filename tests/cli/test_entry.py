"""How the program starts, fails and ends."""

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hcloud.cli.main import COMMANDS
from tests.api.deployment import Deployment
from tests.cli.conftest import Shell


def test_help_lists_commands_and_exit_codes(lonely: Shell) -> None:
    out, _ = lonely.run("--help")
    for text in (
        "Jobs:",
        "submit",
        "Operations:",
        "completion",
        "Exit codes",
        "3  the daemon is unreachable",
        "4  refused by policy",
    ):
        assert text in out


def test_help_and_unknown_commands_load_no_command(lonely: Shell) -> None:
    code = (
        "import sys\nfrom hcloud.cli.main import _run\n_run(['--help'])\n"
        "heavy = {'httpx2', 'rich', 'pydantic', 'yaml', 'sqlalchemy', 'fastapi', 'grpc', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=None)
    assert done.returncode == 0, done.stderr


def test_daemon_starts_without_what_only_comparisons_need() -> None:
    heavy = {"scipy", "highspy", "boto3", "grpc", "google.api_core"}
    code = f"import sys, hcloud.daemon\nassert not {heavy} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=None)
    assert done.returncode == 0, done.stderr


def test_submit_loads_nothing_of_the_daemon(shell: Shell) -> None:
    code = (
        "import sys\nfrom hcloud.cli.main import _run\n_run(['submit', '-q', '--', 'true'])\n"
        "heavy = {'sqlalchemy', 'fastapi', 'grpc', 'numpy', 'scipy', 'highspy', 'apscheduler'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**shell.environment})
    assert done.returncode == 0, done.stderr


NEVER = ("scipy", "matplotlib", "highspy", "boto3", "grpc", "fastapi")
DAEMONS = ("sqlalchemy", "hcloud.store", "hcloud.apply", "hcloud.simulator.run")
"""What simulations and the daemon need, and no other command as it starts."""


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself_or_says_it_is_not_installed(name: str, lonely: Shell) -> None:
    import importlib.util

    module = COMMANDS[name][0]
    installed = importlib.util.find_spec(module) is not None
    out, err = lonely.run(name, "--help", exit_code=0 if installed else 2)
    assert "Usage" in out + err


IMPORT_EACH = """
import os, sys
import click, httpx2, numpy, pydantic, rich.table, yaml, hcloud.core.model  # what most load; none of it is heavy
for asked in sys.argv[1:]:
    module, *heavy = asked.split()
    if os.fork() == 0:
        __import__(module)
        print(*[f"{module} loads {each};" for each in heavy if each in sys.modules], flush=True)
        os._exit(0)
    _, status = os.wait()
    assert status == 0, module
"""


def test_modules_of_commands_import_what_they_need_and_no_more() -> None:
    asked = []
    for module in sorted({"hcloud.web.relay", *(module for module, _, _ in COMMANDS.values())}):
        asked.append(" ".join([module, *NEVER, *(() if module == "hcloud.cli.simulate" else DAEMONS)]))
    done = subprocess.run([sys.executable, "-c", IMPORT_EACH, *asked], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), (done.stdout, done.stderr)


def test_a_module_that_imports_more_is_noticed() -> None:
    asked = "wave wave chunk"
    done = subprocess.run([sys.executable, "-c", IMPORT_EACH, asked], capture_output=True, text=True)
    assert done.stdout.split(";") == ["wave loads wave", "\n"]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("sumbit",), "there is no command 'sumbit'; did you mean 'submit'?"),
        (("retry",), "there is no command 'retry'; see 'hcloud --help'"),  # and not: destroy
        (("restart",), "there is no command 'restart'; see 'hcloud --help'"),
        (("stats",), "there is no command 'stats'; did you mean 'status'?"),
        (("destory",), "there is no command 'destory'; did you mean 'destroy'?"),
        (("remove",), "there is no command 'remove'; see 'hcloud --help'"),  # and not: resume
        (("submit",), "name a job file, or a command after --"),
        (("submit", "--"), "a command must follow --"),
        (("submit", "none.yaml"), "none.yaml"),
        (("submit", "--memory", "3q", "--", "x"), "resources.memory (--memory): must be a size such as 512MiB"),
        (("submit", "--within", "soon", "--", "x"), "(--within): must be a duration"),
        (("submit", "--within", "-5", "--", "x"), "(--within): must be a duration between 0 and ten years, not -5.0"),
        (("submit", "--within", "1m", "--best-effort", "--", "x"), "are different targets; state one"),
        (("submit", "--rate", "5", "--", "x"), "latency_ms (--latency-ms): is required"),
        (("submit", "--tag", "x", "--", "x"), "--tag x: must have the form NAME=VALUE"),
        (("submit", "--env", "NOT_SET", "--", "x"), "--env NOT_SET: there is no such variable"),
        (("submit", "--workdir", "nowhere", "--", "x"), "is no directory"),
        (("submit", "--nodes", "many", "--", "x"), "(--nodes): must be a number such as 4 or a range"),
        (("cancel",), "name the jobs to cancel, or --all"),
        (("logs",), "missing argument 'JOB'; see 'hcloud logs --help'"),
        (("wait", "job-1", "--timeout", "nan"), "nan is not a finite number; see 'hcloud wait --help'"),
        (("status", "--watch", "-o", "json"), "--watch draws tables"),
        (
            ("events", "--kind", "job-stat"),
            "no such kind of event; did you mean 'job_state'?",
        ),
        (("status", "--tag", "=x"), "--tag =x: must have the form KEY or KEY=VALUE"),
        (("queue", "--state", "lost"), "'lost' is not one of 'submitted', "),
        (("submit", "--vcpus", "many", "--", "x"), "'many' is not a number; see 'hcloud submit --help'"),
        (("soak", "--seed", "x"), "'hcloud soak' is now 'make soak', or 'python -m lab.soak', in a checkout"),
        (("reproduce",), "'hcloud reproduce' is now 'make reproduce', or 'python -m lab.papers', in a checkout"),
        (("wait", "../status"), "'../status' is not the id of a job; one looks like job-7"),
        (("logs", "job-1?rank=2"), "'job-1?rank=2' is not the id of a job; one looks like job-7"),
        (("events", "--kind", "foo"), "--kind foo: there is no such kind of event; 'hcloud events --help' lists them"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(arguments: tuple[str, ...], wanted: str, lonely: Shell) -> None:
    out, err = lonely.run(*arguments, exit_code=2)
    assert wanted in err
    assert out == ""


def test_help_tells_limits_only_of_options_that_have_some(lonely: Shell) -> None:
    out, _ = lonely.run("submit", "--help")
    assert "None]" not in out
    assert "[x>=1]" in lonely.run("offers", "--help")[0]


@pytest.mark.parametrize("group", [(), ("job",), ("policy",)])
def test_a_group_alone_shows_its_commands_line_by_line(group: tuple[str, ...], lonely: Shell) -> None:
    out, err = lonely.run(*group, exit_code=2)
    usage, *_, last = err.splitlines()
    assert usage == " ".join(["Usage: hcloud", *group, "[OPTIONS] COMMAND [ARGS]..."])
    assert ("Commands:" if group else "Machines and money:") in err.splitlines()
    assert (out, last) == ("", "hcloud: name one of these commands")


def test_an_unknown_job_is_exit_2_with_the_nearest(shell: Shell) -> None:
    shell.run("submit", "-q", "--", "true")
    for words in (("status", "9"), ("events", "--job", "9")):
        assert shell.run(*words, exit_code=2) == ("", "hcloud: there is no job-9; the newest is job-1\n")


@pytest.mark.parametrize("size", [(), ("--vcpus", "1")])
def test_an_unknown_provider_is_exit_2_with_the_nearest(size: tuple[str, ...], shell: Shell) -> None:
    said = shell.run("offers", "--provider", "mok", *size, exit_code=2)
    assert said == ("", "hcloud: --provider mok: there is no such provider; did you mean 'mock'?\n")


def test_what_the_daemon_says_of_a_job_names_it_and_not_its_place_in_a_request(shell: Shell) -> None:
    past = "2001-01-01T00:00:00Z"
    shell.directory.joinpath("two.yaml").write_text(
        f"name: good\ncommand: x\n---\nname: late\ncommand: x\ntarget: {{batch: {{by: {past}}}}}\n"
    )
    _, err = shell.run("submit", "-q", "two.yaml", exit_code=2)
    assert err.startswith(f"hcloud: job late: target.batch.by: is in the past: {past}, and it is 20")
    assert json.loads(shell.run("queue", "-o", "json")[0]) == []


def test_a_refusal_by_policy_is_exit_4(shell: Shell, deployment: Deployment) -> None:
    deployment.refusal = "the queue is full: 5 of 5"
    assert shell.run("submit", "-q", "--", "true", exit_code=4) == ("", "hcloud: the queue is full: 5 of 5\n")


def test_no_daemon_is_exit_3_and_says_how_to_start_one(lonely: Shell) -> None:
    _, err = lonely.run("status", exit_code=3)
    assert err == (
        f"hcloud: no daemon answers on {lonely.environment['HCLOUD_SOCKET']}; start it with 'hcloud daemon' or "
        "'systemctl start hcloud'\n"
    )


def test_the_socket_of_a_killed_daemon_is_exit_3(lonely: Shell) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(lonely.environment["HCLOUD_SOCKET"])
    left.close()
    assert "no daemon answers on" in lonely.run("status", exit_code=3)[1]


def test_debugging_shows_the_traceback(lonely: Shell) -> None:
    process = lonely.start("status", HCLOUD_DEBUG="1")
    _, err = process.communicate(timeout=60)
    assert "Traceback" in err
    assert process.returncode == 1


def test_the_socket_is_found_through_the_configuration(deployment: Deployment) -> None:
    config = deployment.home / "hcloud.yaml"
    config.write_text(
        f"owner: hcloud-tests\nstate_dir: {deployment.home}\nrun_dir: run\n"
        "database: postgresql+psycopg://${HCLOUD_ONLY_THE_DAEMON_HAS_IT}@db/hcloud\n"
    )
    with deployment.served():
        shell = Shell(directory=deployment.home, environment={"HOME": str(deployment.home)})
        assert "you are" in shell.run("status")[0]
        elsewhere = Shell(directory=Path("/"), environment={"HOME": str(deployment.home / "none")})
        assert "you are" in elsewhere.run("--config", str(config), "status")[0]


def test_a_malformed_configuration_is_told_with_its_line(lonely: Shell) -> None:
    (lonely.directory / "hcloud.yaml").write_text("owner: hcloud-tests\nrun_dri: x\n")
    del lonely.environment["HCLOUD_SOCKET"]
    _, err = lonely.run("status", exit_code=2)
    assert "hcloud.yaml:2: run_dri: unknown key; did you mean 'run_dir'?" in err


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(lonely: Shell, kind: str) -> None:
    assert "_HCLOUD_COMPLETE" in lonely.run("completion", kind)[0]


def test_completion_offers_commands(lonely: Shell) -> None:
    out, _ = lonely.run(_HCLOUD_COMPLETE="bash_complete", COMP_WORDS="hcloud su", COMP_CWORD="1")
    assert "submit" in out


def test_colours_are_left_out_of_pipes_and_with_no_color(shell: Shell) -> None:
    shell.run("submit", "-q", "--", "true")
    assert "\x1b" not in shell.run("status", NO_COLOR="1")[0]
    assert "\x1b" not in shell.run("status")[0]


def test_text_that_could_steer_a_terminal_is_shown_not_sent(shell: Shell) -> None:
    shell.run("submit", "-q", "-t", "note=\x1b[31mred", "--", "true")
    assert "\\x1b[31mred" in shell.run("status", "1")[0]


def test_a_table_that_nobody_reads_to_its_end_is_no_failure(lonely: Shell) -> None:
    process = lonely.start("catalog", "show")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()  # as `| head -1` does
    assert process.wait(60) == 0, process.stderr.read()


def run_in_shell(words: str, shell: Shell) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f"{sys.executable} -m hcloud.cli.main {words}"]
    environment = {**os.environ, **shell.environment}
    return subprocess.run(command, env=environment, cwd=shell.directory, capture_output=True, text=True)


def test_output_that_cannot_be_written_is_one_sentence_and_exit_2(lonely: Shell) -> None:
    said = "hcloud: standard output cannot be written to: No space left on device\n"
    for words in ("version", "policy schema", "config schema", "--help"):
        done = run_in_shell(f"{words} > /dev/full", lonely)
        assert (done.returncode, done.stderr) == (2, said), words


def test_closed_standard_streams_are_as_good_as_dev_null(shell: Shell) -> None:
    for words in ("submit -q -- true <&-", "status >&-", "status -o json >&-", "queue <&- >&- 2>&-"):
        done = run_in_shell(words, shell)
        assert (done.returncode, done.stderr) == (0, ""), words


def test_version_is_the_packages(lonely: Shell) -> None:
    from hcloud import __version__

    assert lonely.run("version")[0] == lonely.run("--version")[0] == f"hcloud {__version__}\n"
    assert json.loads(lonely.run("version", "-o", "json")[0])["hcloud"] == __version__
    assert stat.S_ISDIR(lonely.directory.stat().st_mode)


def test_letters_that_the_terminal_lacks_are_written_in_plain_ones(tmp_path: Path) -> None:
    (tmp_path / "größe.yaml").write_text("name: größe\n")
    (tmp_path / "one.csv").write_text("at_s,run_s,vcpus\n0,60,1\n")
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "hcloud.cli.main", "simulate", "one.csv", "größe.yaml"]
    for more, shown in (("--seeds", "2"), "+-0.0"), (("--seeds", "1", "-o", "json"), r'"gr\u00f6\u00dfe"'):
        done = subprocess.run([*command, *more], capture_output=True, cwd=tmp_path, env=ascii_only)
        assert (done.returncode, done.stdout.isascii(), done.stderr) == (0, True, b""), done.stderr.decode()
        assert shown in done.stdout.decode()


def test_help_of_a_command_is_its_own_help(lonely: Shell) -> None:
    assert lonely.run("help", "profile", "bootstrap") == lonely.run("profile", "bootstrap", "--help")
    assert lonely.run("help") == lonely.run("--help")
    assert "did you mean 'submit'?" in lonely.run("help", "sumbit", exit_code=2)[1]
    assert "'hcloud logs' has no command 'x'" in lonely.run("help", "logs", "x", exit_code=2)[1]
    assert "leave the command out" in lonely.run("help", "--man", "logs", exit_code=2)[1]


def test_the_man_page_has_every_command_and_option(lonely: Shell) -> None:
    page, _ = lonely.run("help", "--man")
    assert page.startswith('.TH HCLOUD 1 "" "hcloud ')
    for name in COMMANDS:
        assert f"\\fBhcloud {name}\\fR" in page, name
    assert "\\fBhcloud profile bootstrap\\fR" in page and "\\-\\-dry\\-run" in page
    assert ".nf\ncost (the default): money spent" in page  # a list keeps its lines
    # A line that begins with a dot is a request; all others must be text.
    known = {".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".I", ".nf", ".fi"}
    assert {line.split()[0] for line in page.splitlines() if line.startswith(".")} <= known
