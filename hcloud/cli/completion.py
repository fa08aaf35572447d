"""Shell completion and the version."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from hcloud import __version__
from hcloud.errors import BadInput

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    bash: add 'eval "$(hcloud completion bash)"' to ~/.bashrc. zsh: the same in ~/.zshrc.
    fish: hcloud completion fish > ~/.config/fish/completions/hcloud.fish
    """
    from hcloud.cli.main import cli

    writer = get_completion_class(shell)
    if writer is None:  # click knows all three; a version that does not is at fault
        raise BadInput(f"this version of click cannot complete for {shell}")
    click.echo(writer(cli, {}, "hcloud", "_HCLOUD_COMPLETE").source())


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"hcloud {__version__}")
