"""``hcloud help``, ``completion``, ``version`` and the man page: what is made from the help of all commands."""

from __future__ import annotations

import inspect
import platform
import re
from collections.abc import Iterator

import click

from hcloud import __version__
from hcloud.cli.main import EXIT_CODES, GROUPS, cli
from hcloud.cli.output import write_json
from hcloud.core.errors import BadInput

SHELLS = ("bash", "zsh", "fish")


@click.command(name="help")
@click.argument("words", nargs=-1, metavar="[COMMAND...]")
@click.option("--man", is_flag=True, help="Print a man page of all commands (roff).")
@click.pass_context
def help_command(ctx: click.Context, words: tuple[str, ...], man: bool) -> None:
    """Show the help of COMMAND, as 'hcloud COMMAND --help' does, or of hcloud."""
    if man:
        if words:
            raise BadInput("--man prints all commands; leave the command out")
        click.echo(manual_page(), nl=False)
        return
    top = ctx.find_root()
    command: click.Command = cli
    found = click.Context(cli, info_name=top.info_name, **cli.context_settings)
    for word in words:
        if not isinstance(command, click.Group):
            raise BadInput(f"'{found.command_path}' has no command '{word}'; see 'hcloud help {' '.join(words[:-1])}'")
        _, inner, _ = command.resolve_command(found, [word])
        assert inner is not None  # else resolve_command has raised
        command, found = inner, click.Context(inner, info_name=word, parent=found)
    click.echo(command.get_help(found))


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    bash: add 'eval "$(hcloud completion bash)"' to ~/.bashrc. zsh: the same in ~/.zshrc.
    fish: hcloud completion fish > ~/.config/fish/completions/hcloud.fish
    """
    from click.shell_completion import get_completion_class

    writer = get_completion_class(shell)
    if writer is None:  # a version of click that lacks one of the three
        raise BadInput(f"this version of click cannot complete for {shell}")
    click.echo(writer(cli, {}, "hcloud", "_HCLOUD_COMPLETE").source())


@click.command()
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", help="Output format.")
def version(form: str) -> None:
    """Print the version."""
    if form == "json":
        write_json({"hcloud": __version__, "python": platform.python_version()})
    else:
        click.echo(f"hcloud {__version__}")


# ------------------------------------------------------------------------------------------------------------ man page
def manual_page() -> str:
    """Return a man page (roff, section 1) of all commands, in the groups of the help."""
    return "".join(f"{line}\n" for line in _page())


def _page() -> Iterator[str]:
    top = click.Context(cli, info_name="hcloud")
    yield f'.TH HCLOUD 1 "" "hcloud {__version__}" "User Commands"'
    yield from (".SH NAME", r"hcloud \- run jobs with performance targets on the cheapest machines that keep them")
    yield from (".SH SYNOPSIS", r".B hcloud", r"[\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGUMENTS\fR]")
    yield from (".SH DESCRIPTION", *_paragraphs(cli.help or ""))
    yield from (".SH OPTIONS", *_options(cli, top))
    for title, group in GROUPS.items():
        yield f".SH {title.upper()}"
        for name in group:
            command = cli.get_command(top, name)
            if command is not None:
                yield from _command(command, click.Context(command, info_name=name, parent=top))
    yield ".SH EXIT STATUS"
    for code, meaning in re.findall(r"^ +(\d)  (.*)$", EXIT_CODES, re.MULTILINE):
        yield from (".TP", f".B {code}", _escaped(meaning))
    yield from (".SH FILES", ".TP", r".I ~/.hcloud/config.yaml", "your deployment; $HCLOUD_HOME moves it")
    yield from (".TP", r".I /etc/hcloud/config.yaml", "the deployment of this host")


def _command(command: click.Command, ctx: click.Context) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(ctx))
    yield from (".SS", rf"\fB{_escaped(ctx.command_path)}\fR {_escaped(usage)}")
    yield from _paragraphs(command.help or "")
    yield from _options(command, ctx)
    yield from _paragraphs(command.epilog or "")
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            if inner is not None:
                yield from _command(inner, click.Context(inner, info_name=name, parent=ctx))


def _options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None and isinstance(param, click.Option):
            yield from (".TP", rf"\fB{_escaped(record[0])}\fR", _escaped(record[1]))


def _paragraphs(text: str) -> Iterator[str]:
    for each in inspect.cleandoc(text).split("\n\n"):
        if each.startswith("\b"):  # click's mark of lines to be kept as they are
            yield from (".PP", ".nf", *map(_escaped, each.removeprefix("\b").strip("\n").splitlines()), ".fi")
        else:
            yield from (".PP", _escaped(" ".join(each.split())))


def _escaped(text: str) -> str:
    """Return text in which nothing means anything to roff."""
    plain = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{plain}" if plain.startswith((".", "'")) else plain
