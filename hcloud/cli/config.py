"""``hcloud config``: say whether a configuration is right, and what it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click

from hcloud.cli.check import check_files, form_option
from hcloud.cli.output import write_json
from hcloud.config import Config, at_its_line, find_config, load_config, load_named_policy, package_data
from hcloud.core.errors import BadInput, ConfigError, Refused
from hcloud.spec.validation import json_schema


@click.group()
def config() -> None:
    """Check the configuration; print its schema."""


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@form_option
def check(file: Path | None, form: str) -> None:
    """Check the configuration in FILE (none: the one in force) and the policy it names, and say what it means.

    Connects to nothing: `hcloud doctor` tries the database, the clouds and the daemon.
    """
    check_files([find_config(file)], form, _load_all, _described)


@config.command()
def schema() -> None:
    """Print the JSON Schema of configuration files."""
    write_json(json_schema(Config))


@config.command()
def example() -> None:
    """Print the shipped example: every setting with its default and a line of meaning."""
    click.echo(package_data.path("config.example.yaml").read_text(encoding="utf-8"), nl=False)


@config.command()
@click.argument("name", required=False)
def notify(name: str | None) -> None:
    """Send a test message to the target NAME of `notifications` (none: to all), and say whether it was taken.

    Reads the configuration in force, and addresses and keys as this user.
    """
    from hcloud.core.clock import SystemClock
    from hcloud.notifications import DeliveryError, Message
    from hcloud.notifications.messages import TEST
    from hcloud.wiring import build_sender

    loaded, now = load_config(find_config(None)), SystemClock().now()
    targets = [each for each in loaded.notifications if name in (None, each.name)]
    if not targets:
        known = ", ".join(each.name for each in loaded.notifications)
        named = f"has no target {name}; there are {known}" if known else "has no targets of notifications"
        raise BadInput(f"the configuration {named}")
    text = f"this is a test message of {loaded.owner}"
    message = Message(id=f"{loaded.owner}-test-{int(now)}", kind=TEST, at=float(int(now)), text=text)
    refused = []
    for each in targets:
        try:
            build_sender(each).send(message, now)
        except DeliveryError as error:
            refused.append(f"{each.name}: {error}")
        else:
            click.echo(f"{each.name}: taken")
    if refused:
        raise Refused(f"notifications are not taken by {'; '.join(refused)}")


def load_with_policy(file: Path, notes: list[str] | None = None) -> Config:
    """Return the configuration in ``file``, its policy and its providers' settings checked too. Raises ConfigError."""
    types = sorted({point.name for point in entry_points(group="hcloud.providers")})
    loaded = load_config(file, notes, provider_types=types)
    load_named_policy(loaded, file, notes)
    for provider in loaded.providers:
        check_provider_settings(provider.type, provider.name, loaded.settings_of(provider))
    return loaded


def _load_all(file: Path, notes: list[str]) -> Config:
    from hcloud.store import check_database  # a quarter of a second, which other commands save

    # The database is no part of `load_with_policy`: what ends machines without records must not fail on it.
    loaded = load_with_policy(file, notes)
    try:
        check_database(loaded.database, state_dir=loaded.state_dir)
    except ConfigError as error:
        raise at_its_line(error, file) from error
    return loaded


def check_provider_settings(kind: str, name: str, settings: Mapping[str, object]) -> None:
    """Let the plug-in of a ``kind`` judge settings where it can without building anything. Raises ConfigError."""
    [point] = (point for point in entry_points(group="hcloud.providers") if point.name == kind)
    check = getattr(point.load(), "check_settings", None)
    if check is not None:
        check(name, settings)


def _described(loaded: Config) -> dict[str, Any]:
    return {"owner": loaded.owner, "state_dir": str(loaded.state_dir), "summary": list(_summary(loaded))}


def _summary(loaded: Config) -> Iterator[str]:
    from hcloud.store import without_password

    tcp = loaded.api.tcp
    yield f"owner: {loaded.owner}"
    yield f"state: {loaded.state_dir}"
    yield f"socket: {loaded.socket_path}, mode {loaded.api.socket_mode}" + (f"; TLS on {tcp.listen}" if tcp else "")
    yield f"database: {without_password(loaded.database)}"
    yield f"policy: {loaded.policy}"
    yield f"engine: {loaded.engine.programs} programs, at {loaded.engine.listen}, isolation {loaded.engine.isolation}"
    for target in loaded.notifications:
        yield f"notifications: {', '.join(target.events)} to {target.name} ({target.form})"
    yield f"providers: {', '.join(f'{provider.name} ({provider.type})' for provider in loaded.providers)}"
    with suppress(PermissionError):  # who may not see them need not be told
        if not (loaded.engine.tls_dir / "ca.pem").is_file():
            yield f"missing: keys in {loaded.engine.tls_dir}; run `hcloud init`"
