"""The entry point: names of commands, what each does in one line, and how every error leaves the program.

A command's module is imported when the command is used, so that ``hcloud --help`` and ``hcloud submit`` start quickly.
"""

from __future__ import annotations

import codecs
import difflib
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from hcloud import __version__
from hcloud.core.errors import HCloudError

EXIT_OK, EXIT_JOB_FAILED, EXIT_BAD_INPUT, EXIT_UNREACHABLE, EXIT_REFUSED = range(5)
EXIT_INTERRUPTED = 130
EXIT_CODES = """\
\b
Exit codes:
  0  ok
  1  a job failed, or any other failure
  2  bad input
  3  the daemon is unreachable
  4  refused by policy, budget or your role
"""

# group: {name: (module, attribute, one line of help)}, in the order in which help shows them
GROUPS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Jobs": {
        "submit": ("hcloud.cli.submit", "submit", "Submit jobs from files, or one command."),
        "run": ("hcloud.cli.submit", "run", "Submit, follow the output, and exit as the job does."),
        "status": ("hcloud.cli.status", "status", "Show the daemon, jobs and machines."),
        "top": ("hcloud.cli.top", "top", "Show machines and the queue, live."),
        "queue": ("hcloud.cli.status", "queue", "Show jobs."),
        "logs": ("hcloud.cli.jobs", "logs", "Show a job's output; -f follows it."),
        "exec": ("hcloud.cli.exec", "exec_command", "Run a command inside a running job."),
        "cp": ("hcloud.cli.outputs", "cp", "Copy the files that a job left to here."),
        "wait": ("hcloud.cli.jobs", "wait", "Wait for jobs to end."),
        "cancel": ("hcloud.cli.jobs", "cancel", "Stop jobs."),
        "rerun": ("hcloud.cli.jobs", "rerun", "Submit a job, or failed tasks of an array, again."),
        "schedule": ("hcloud.cli.schedules", "schedule", "Show, pause, resume and delete schedules."),
        "explain": ("hcloud.cli.jobs", "explain", "Explain every decision about a job."),
        "forecast": ("hcloud.cli.forecast", "forecast", "Predict how long a job or program runs."),
        "job": ("hcloud.cli.job_files", "job", "Check job files; print their schema."),
    },
    "Machines and money": {
        "instances": ("hcloud.cli.machines", "instances", "Show machines."),
        "offers": ("hcloud.cli.machines", "offers", "Show what can be rented, and its price."),
        "drain": ("hcloud.cli.drain", "drain", "Take machines out of use once their jobs have ended or moved."),
        "destroy": ("hcloud.cli.drain", "destroy", "Terminate machines at once, after a plan and a question."),
        "web": ("hcloud.cli.web", "web", "Show the fleet, its money and its reasons in a browser."),
        "report": ("hcloud.cli.report", "report", "Report cost, performance, savings, utilisation, decisions."),
        "bill": ("hcloud.cli.bill", "bill", "Compare the ledger with the cloud's bill."),
        "catalog": ("hcloud.cli.catalog", "catalog", "Show, refresh and compare prices."),
    },
    "Policies and what-if": {
        "policy": ("hcloud.cli.policy", "policy", "Check policy files; print their schema."),
        "simulate": ("hcloud.cli.simulate", "simulate", "Compare policies on a virtual cloud: cost, targets, waits."),
        "plan": ("hcloud.cli.plan", "plan", "Recommend reservations; replay the past under a new policy."),
    },
    "Knowledge": {
        "profile": ("hcloud.cli.profile", "profile", "Measure programs and sources of interference."),
    },
    "Operations": {
        "init": ("hcloud.cli.init", "init", "Set up a deployment: configuration, keys, directories."),
        "daemon": ("hcloud.cli.daemon", "daemon", "Run the daemon."),
        "gateway": ("hcloud.cli.engine", "gateway", "Run the gateway of agents on its own (under systemd)."),
        "worker": ("hcloud.cli.engine", "worker", "Run a worker on an instance."),
        "config": ("hcloud.cli.config", "config", "Check the configuration; print its schema."),
        "doctor": ("hcloud.cli.doctor", "doctor", "Check the deployment and say what to fix."),
        "events": ("hcloud.cli.machines", "events", "Show the audit log; -f follows it."),
        "orphans": ("hcloud.cli.doctor", "orphans", "List cloud machines with our tag that HCloud has no record of."),
        "pause": ("hcloud.cli.machines", "pause", "Stop launching and placing until resumed."),
        "resume": ("hcloud.cli.machines", "resume", "Launch and place again."),
        "provider": ("hcloud.cli.machines", "provider", "Try a provider again that was stopped."),
        "secrets": ("hcloud.cli.secrets", "secrets", "Show and replace the keys of jobs' secrets."),
        "help": ("hcloud.cli.manual", "help_command", "Show the help of a command; --man prints a man page."),
        "completion": ("hcloud.cli.manual", "completion", "Print the shell completion script."),
        "version": ("hcloud.cli.manual", "version", "Print the version."),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}
READ_ONLY = (
    *(
        "status",
        "top",
        "queue",
        "logs",
        "wait",
        "explain",
        "job",
        "instances",
        "offers",
        "report",
        "bill",
        "simulate",
        "plan",
    ),
    *("plan", "forecast", "config", "doctor", "events", "orphans", "help", "completion", "version"),
)
"""Commands that change nothing. The others are proposed only in place of a name that is nearly theirs."""
MOVED = {
    "engine": "the gateway, which 'hcloud daemon' starts by itself (under systemd: hcloud-gateway.service)",
    "soak": "'make soak', or 'python -m lab.soak', in a checkout of HCloud",
    "reproduce": "'make reproduce', or 'python -m lab.papers', in a checkout of HCloud",
}
"""Commands of earlier versions, and where they are now."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and loads the one that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands with an installed module."""
        return [name for name, (module, _, _) in COMMANDS.items() if importlib.util.find_spec(module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        if importlib.util.find_spec(module) is None:
            raise click.UsageError(f"this installation has no '{cmd_name}' command ({module} is missing)")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        if sys.stderr.isatty() and "hcloud.client.connection" in sys.modules:
            from hcloud.cli.waiting_line import show_waits_for_answers

            show_waits_for_answers()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one was probably meant."""
        if args and args[0] in MOVED:
            raise click.UsageError(f"'hcloud {args[0]}' is now {MOVED[args[0]]}")
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.8)
            near = near or difflib.get_close_matches(args[0], READ_ONLY, n=1, cutoff=0.7)
            hint = f"; did you mean '{near[0]}'?" if near else "; see 'hcloud --help'"
            raise click.UsageError(f"there is no command '{args[0]}'{hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; when the reader of its output has seen enough, end quietly (click would end with 1)."""
        try:
            result: object = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return EXIT_OK
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without loading any."""
        installed = set(self.list_commands(ctx))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, _, line) in group.items() if name in installed])


@click.group(
    cls=LazyGroup,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.option(
    "--config", "-c", type=click.Path(), help="Configuration file (else $HCLOUD_CONFIG and the usual places)."
)
@click.option("--socket", type=click.Path(), help="The daemon's socket (else $HCLOUD_SOCKET and the configuration).")
@click.version_option(__version__, prog_name="hcloud", message="%(prog)s %(version)s")
def cli(config: str | None, socket: str | None) -> None:
    """Submit jobs with performance targets; HCloud rents the machines cheaply and explains each decision.

    Begin with 'hcloud init' and 'hcloud daemon', then 'hcloud submit -- echo hello'.
    """
    # Kept in the environment, so that every command, and every process it starts, sees the same.
    if config is not None:
        os.environ["HCLOUD_CONFIG"] = config
    if socket is not None:
        os.environ["HCLOUD_SOCKET"] = socket


def main(arguments: Sequence[str] | None = None, command: click.Command = cli, prog_name: str = "hcloud") -> NoReturn:
    """Run the command line (of ``command``) and exit with its documented code."""
    sys.exit(_run(arguments, command, prog_name))


def _run(arguments: Sequence[str] | None, command: click.Command = cli, prog_name: str = "hcloud") -> int:
    _open_what_is_closed()
    _write_plainly()
    debug = os.environ.get("HCLOUD_DEBUG") == "1"
    try:
        result = command.main(
            args=None if arguments is None else list(arguments), prog_name=prog_name, standalone_mode=False
        )
        return result if isinstance(result, int) else EXIT_OK
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(f"{error.format_message()}\n\nhcloud: name one of these commands", err=True)
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"hcloud: {_in_one_sentence(error)}", err=True)
        return error.exit_code
    except HCloudError as error:
        if debug:
            raise
        _complain(error)
        return error.exit_code
    except OSError as error:
        if debug:
            raise
        click.echo(f"hcloud: {_in_words(error)}", err=True)
        return EXIT_BAD_INPUT


def _in_words(error: OSError) -> str:
    if error.filename != _STANDARD_OUTPUT:
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is left: Python would complain of it once more as it ends
    return f"{_STANDARD_OUTPUT} cannot be written to: {error.strerror}"


_STANDARD_OUTPUT = "standard output"


class _Output(io.FileIO):
    """Standard output with errors that name it; otherwise they look like those of any other file."""

    def write(self, data: Any, /) -> int | None:  # type: ignore[override]  # it is None where writing would block
        """Write; raises OSError that names standard output."""
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, _STANDARD_OUTPUT) from error


def _open_what_is_closed() -> None:
    """Let what goes to a closed standard stream vanish, as if it went to /dev/null.

    Else there is no such stream for whoever asks whether it is a terminal, and its number would be that of the next
    file that is opened: what a child process then says could end up in the database.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - until the end


_PLAIN = {"±": "+-"}


def _write_plainly() -> None:
    """Replace letters that the encoding of a terminal or file lacks by plain ones (else ``?``)."""

    def plain(error: UnicodeError) -> tuple[str, int]:
        """Return what to write instead of the letters that are lacking, and where to go on."""
        assert isinstance(error, UnicodeEncodeError)
        return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end

    codecs.register_error("hcloud.plain", plain)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout is sys.__stdout__:
        lines, encoding = sys.stdout.line_buffering, sys.stdout.encoding
        named = io.BufferedWriter(_Output(sys.stdout.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(named, encoding=encoding, line_buffering=lines)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="hcloud.plain")


_NUMBERS = {
    "is not a valid integer range": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float": "is not a number",
}


def _in_one_sentence(error: click.ClickException) -> str:
    """Return what is wrong with the words of a command, and which help to read where the words do not say it."""
    said = " ".join(error.format_message().split()).removesuffix(".")
    for clicks, ours in _NUMBERS.items():
        said = said.replace(clicks, ours)
    said = said[:1].lower() + said[1:]
    where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else ""
    return f"{said}; see '{where} --help'" if where and "; " not in said else said


def _complain(error: HCloudError) -> None:
    click.echo(f"hcloud: {error}", err=True)
    for note in getattr(error, "__notes__", ()):
        click.echo(f"hcloud: {note}", err=True)


if __name__ == "__main__":
    main()
