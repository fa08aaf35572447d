"""``hcloud gateway`` and ``hcloud worker``: the two processes of the engine, in the foreground."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hcloud.core.estimates import Findings

if TYPE_CHECKING:
    from hcloud.engine.host import EngineHost
    from hcloud.provider import UnitSpec


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
    from hcloud.engine import worker as engine_worker

    if end:
        engine_worker.end_units(bootstrap)
        return
    raise SystemExit(engine_worker.serve(bootstrap, profile=profile_unit))


def profile_unit(spec: UnitSpec, workdir: Path, host: EngineHost, tell: Callable[[Findings], None]) -> Findings:
    """Measure what a unit would run: the bridge between the engine and the profiler, which do not know each other."""
    from hcloud.profiler.bootstrap import measure_reference
    from hcloud.profiler.in_place import measure_in_place
    from hcloud.profiler.measure import Subject, measure

    assert spec.profile is not None
    subject = Subject(
        name=spec.id,
        command=spec.command,
        workdir=workdir,
        env=spec.env,
        network=spec.network == "host",
        progress=spec.progress,
        metrics=spec.metrics,
        memory_mib=spec.resources.memory_mib,
        disk_mib=max(1, int(spec.resources.disk_gib * 1024)),
        stateful=spec.profile.warm_up_s > 0,
        warm_up_s=spec.profile.warm_up_s,
    )
    if host.running is not None:
        return measure_in_place(spec.profile, subject, host, report=tell)
    return (measure if spec.profile.job_id else measure_reference)(spec.profile, subject, host, report=tell)
