"""``hcloud daemon``: run the daemon in the foreground (systemd, or a terminal)."""

from __future__ import annotations

from pathlib import Path

import click

from hcloud.core.errors import ConfigError
from hcloud.core.gc_tuning import infrequent_gc


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="The configuration file.")
@click.option(
    "--abandon", is_flag=True, help="Give up what runs under agents of an earlier version; its jobs are retried."
)
@click.option(
    "--gateway", type=click.Path(path_type=Path), help="Unix socket of a gateway that runs on its own; else one starts."
)
def daemon(config_path: Path | None, abandon: bool, gateway: Path | None) -> None:
    """Run the daemon in the foreground. SIGTERM stops it (machines and jobs go on), SIGHUP reloads the policy."""
    with infrequent_gc():  # what is imported stays: looking for garbage in it takes a tenth of the start
        from hcloud.config import at_its_line, find_config, load_config, load_named_policy
        from hcloud.daemon import run_daemon

        file = find_config(config_path)
        notes: list[str] = []
        config = load_config(file, notes)
        load_named_policy(config, file, [])  # the daemon reads it again; only here it is known where it was named
        try:
            raise SystemExit(run_daemon(config, notes, abandon=abandon, gateway=gateway))
        except ConfigError as error:
            raise at_its_line(error, file) from error
