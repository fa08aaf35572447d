"""``hcloud daemon``: run the daemon in the foreground (systemd, or a terminal)."""

from __future__ import annotations

from pathlib import Path

import click

from hcloud.garbage import rarely_collecting


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="The configuration file.")
def daemon(config_path: Path | None) -> None:
    """Run the daemon in the foreground. SIGTERM stops it (machines and jobs go on), SIGHUP reloads the policy."""
    with rarely_collecting():  # what is imported stays: looking for garbage in it takes a tenth of the start
        from hcloud.config import find_config, load_config
        from hcloud.daemon import run_daemon

        raise SystemExit(run_daemon(load_config(find_config(config_path))))
