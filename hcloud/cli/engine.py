"""``hcloud gateway`` and ``hcloud worker``: the two processes of the engine, in the foreground."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="The configuration file.")
@click.option("--socket", type=click.Path(path_type=Path), required=True, help="Unix socket for the daemon.")
@click.option("--keys", type=click.Path(path_type=Path), required=True, help="Directory of the authority.")
@click.option("--archives", type=click.Path(path_type=Path), help="Directory of the agent's archives.")
def gateway(config_path: Path | None, socket: Path, keys: Path, archives: Path | None) -> None:
    """Run the gateway between agents and daemon under a user of its own. It may be restarted at any time.

    `hcloud daemon` starts one by itself unless its option --gateway names this one's socket.
    """
    from hcloud.config import find_config, load_engine
    from hcloud.engine import gateway as engine_gateway
    from hcloud.engine.gateway_process import GatewaySettings

    engine = load_engine(find_config(config_path))
    settings = GatewaySettings(
        listen=engine.listen,
        enrolment_listen=engine.enrolment_listen,
        socket=socket,
        keys=keys,
        archives=archives,
        translated=engine.translated_addresses,
    )
    raise SystemExit(engine_gateway.serve(settings))


@click.command()
@click.option(
    "--bootstrap", type=click.Path(path_type=Path), required=True, help="The file the provider wrote at launch."
)
@click.option("--end", is_flag=True, help="Do not run: kill all units of this instance and clean up after them.")
def worker(bootstrap: Path, end: bool) -> None:
    """Run an instance's worker. SIGTERM ends it (units go on); exit code 79 means the machine was switched off."""
    from hcloud import agent

    raise SystemExit(agent.run_worker(bootstrap, end=end))
