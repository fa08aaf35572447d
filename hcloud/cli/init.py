"""``hcloud init``: everything a deployment needs, made once, never overwritten."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shlex
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click

from hcloud.config import Config, home_dir, load_config, package_data
from hcloud.config.document import to_yaml
from hcloud.core.errors import ConfigError

FIRST_PERSON = 1000
"""Lower user ids are root's and services'."""
PRIVATE_DIRECTORY, GROUP_DIRECTORY, PRIVATE_FILE, PLAIN_FILE = 0o700, 0o750, 0o600, 0o644


@click.command()
@click.option("--home", type=click.Path(path_type=Path), help="Directory to set up (else $HCLOUD_HOME or ~/.hcloud).")
@click.option(
    "--provider",
    type=click.Choice(["local", "mock"]),
    default="local",
    show_default=True,
    help="local: run real programs on this machine; mock: a pretended cloud.",
)
def init(home: Path | None, provider: str) -> None:
    """Set HCloud up: configuration, policies, keys, directories.

    What exists is left alone, so this may be repeated; it then adds what is missing.
    """
    directory = (home or home_dir()).expanduser().absolute()
    setup = Setup()
    try:
        loaded = setup.run(directory, provider)
    except OSError as error:
        raise ConfigError(f"cannot be made: {error.strerror}", where=str(error.filename or directory)) from error
    for line in setup.done:
        click.echo(line)
    if all(each.type != provider for each in loaded.providers):
        click.echo(
            f"note: {directory / 'config.yaml'} was there before and has no provider of type {provider}; edit it"
        )
    for line in _next_steps(directory, loaded):
        click.echo(line)


@dataclass(slots=True)
class Setup:
    """Makes what is missing and remembers what it did, one line each in ``done``."""

    done: list[str] = field(default_factory=list)

    def run(self, home: Path, provider: str) -> Config:
        """Set ``home`` up and return its configuration.

        Raises:
            ConfigError: there is a configuration already and it is not valid; nothing was changed.
            OSError: a file or directory cannot be made.
        """
        config_file = home / "config.yaml"
        if config_file.exists():
            load_config(config_file)
        self._directory(home, PRIVATE_DIRECTORY)
        self._file(config_file, config_text(home, provider), PRIVATE_FILE)
        loaded = load_config(config_file)
        self._directory(loaded.state_dir, PRIVATE_DIRECTORY)
        self._directory(loaded.run_dir, GROUP_DIRECTORY)
        for name in ("logs", "uploads"):
            self._directory(loaded.state_dir / name, PRIVATE_DIRECTORY)
        self._policies(home / "policies")
        self._keys(loaded.engine.tls_dir)
        return loaded

    def _policies(self, directory: Path) -> None:
        self._directory(directory, GROUP_DIRECTORY)
        for source in sorted(package_data.path("policies").glob("*.yaml")):
            self._file(directory / source.name, source.read_text(encoding="utf-8"), PLAIN_FILE)

    def _keys(self, directory: Path) -> None:
        # Imported late: everything about certificates is slow to load, and only init needs it.
        from hcloud.engine.tls import make_ca

        before = directory / "ca.pem"
        verb = "kept" if before.exists() else "made"
        make_ca(directory)
        self.done.append(f"{verb} {directory} (keys of the engine)")

    def _directory(self, path: Path, mode: int) -> None:
        if path.is_dir():
            return
        path.mkdir(parents=True, mode=mode)
        path.chmod(mode)  # whatever the umask is
        self.done.append(f"made {path}")

    def _file(self, path: Path, text: str, mode: int) -> None:
        """Write ``path`` whole or not at all, and never over a file that is there."""
        context = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            context.write_text(text, encoding="utf-8")
            context.chmod(mode)
            os.link(context, path)
        except FileExistsError:
            self.done.append(f"kept {path}")
        else:
            self.done.append(f"made {path}")
        finally:
            context.unlink(missing_ok=True)


def config_text(home: Path, provider: str) -> str:
    """Return the shipped example with an owner, a state directory and a provider of its own."""
    text = package_data.path("config.example.yaml").read_text(encoding="utf-8")
    changes = {r"^owner: .*$": f"owner: hcloud-{secrets.token_hex(4)}", r"^state_dir: .*$": _setting("state_dir", home)}
    if os.geteuid() >= FIRST_PERSON:
        changes[r"^  admins: .*$"] = f"  admins: [{_own_name()}]"
    if provider == "mock":
        changes |= {
            r"^  programs: .*$": "  programs: simulated",
            r"^  - name: .*$": "  - name: mock",
            r"^    type: .*$": "    type: mock",
        }
    for pattern, line in changes.items():
        text, found = re.subn(pattern, lambda _, line=line: line, text, count=1, flags=re.MULTILINE)  # type: ignore[misc]
        if found != 1:
            raise ConfigError(f"has no line like {pattern}; this installation is damaged", where="config.example.yaml")
    return text


def _own_name() -> str:
    """Return this user's name as the API knows it."""
    with suppress(KeyError):
        return pwd.getpwuid(os.geteuid()).pw_name
    return f'"uid:{os.geteuid()}"'


def _setting(key: str, path: Path) -> str:
    return to_yaml({key: str(path)}).rstrip("\n")


def _next_steps(home: Path, loaded: Config) -> list[str]:
    """Return the next two commands, runnable as they stand."""
    program = "hcloud" if home == home_dir() else f"hcloud --config {shlex.quote(str(home / 'config.yaml'))}"
    steps = [f"{program} daemon", f"{program} submit -- echo hello"]
    note = "Next, each in a terminal of its own (or with systemd; see docs/operations.md):"
    return [note, *(f"  {step}" for step in steps)]
