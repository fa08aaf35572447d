"""``hcloud engine`` and ``hcloud worker``: the two processes of the engine, in the foreground."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="The configuration file.")
def engine(config_path: Path | None) -> None:
    """Run the engine's scheduler, which connects the daemon and its workers. It may be restarted at any time."""
    from hcloud.config import find_config, load_config
    from hcloud.engine import gateway

    config = load_config(find_config(config_path))
    raise SystemExit(gateway.serve(config.engine.listen, Path(config.engine.tls_dir)))


@click.command()
@click.option(
    "--bootstrap", type=click.Path(path_type=Path), required=True, help="The file the provider wrote at launch."
)
@click.option("--end", is_flag=True, help="Do not run: kill all units of this instance and clean up after them.")
def worker(bootstrap: Path, end: bool) -> None:
    """Run an instance's worker. SIGTERM ends it (units go on); exit code 79 means the machine was switched off."""
    from hcloud import agent

    raise SystemExit(agent.run_worker(bootstrap, end=end))
