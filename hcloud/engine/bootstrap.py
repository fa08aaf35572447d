"""What a worker gets when its machine starts: one JSON file, written by the provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from hcloud.core.errors import ConfigError
from hcloud.engine.unit import read_json

POWERED_OFF_EXIT = 79
"""Exit code of a worker that has switched its machine off: do not start it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """The worker's bootstrap file."""

    instance_id: str
    gateway_addresses: tuple[str, ...]
    """``host:port`` of the gateways of all daemons; the agent connects to that of the leading one."""
    enrolment_addresses: tuple[str, ...]
    """Where each of them gives certificates (``enrolment``), in the same order."""
    authority_pem: str
    """Certificate of the deployment's authority, by which the gateway is known."""
    state_dir: Path
    expires_at: float
    lease_s: float = 600.0
    enrolment_secret: str = ""
    """With it the machine gets its first certificate."""
    token: str = ""
    owner: str = ""
    capacity: Mapping[str, float] = field(default_factory=dict)
    cpus: tuple[int, ...] | None = None
    """Ids of the CPUs this instance may use; None: all."""
    cgroup: Mapping[str, Any] | None = None
    """The instance's own control groups, in which units get children: ``{"version": 1, "paths": {controller:
    directory}}`` or ``{"version": 2, "paths": {"": directory}}``."""
    isolation: Literal["require", "best_effort"] = "require"
    unit_uid_base: int = 61000
    """Units run as this uid plus their slot (0..63), as root only; two instances of one host need separate ranges."""
    poweroff: Literal["exit"] | tuple[str, ...] = "exit"
    """What ends the machine: "exit" (write ``<state_dir>/off.json``, exit with ``POWERED_OFF_EXIT``) or a command."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """``pids_max``, ``max_log_mib``, ``max_workdir_mib``, ``readonly_paths`` (``:``-separated, visible to units),
    ``preempt_file`` (its appearance is a preemption notice), ``notice`` (``ec2`` or ``gce``: the
    metadata service to watch), ``heed_rebalance`` (``yes``: a rebalance recommendation counts as a notice),
    ``metadata_url``, ``gpu_root`` (below it are the device nodes of GPUs and what the driver says of them)."""

    @property
    def readonly_paths(self) -> tuple[str, ...]:
        """Further paths of this machine that units see."""
        return tuple(path for path in self.settings.get("readonly_paths", "").split(":") if path)

    @property
    def gpu_root(self) -> Path:
        """Below which ``dev`` and ``proc`` are that show the GPUs."""
        return Path(self.settings.get("gpu_root", "/"))

    def number(self, name: str, default: int) -> int:
        """Return a numeric setting."""
        return int(self.settings.get(name, default))


def load_bootstrap(path: Path) -> Bootstrap:
    """Read a bootstrap file.

    Raises:
        ConfigError: it is missing, is not JSON, or lacks or misnames a key.
    """
    plain = read_json(path)
    if plain is None:
        raise ConfigError("no readable JSON file here; the provider writes it at launch", where=str(path))
    if "scheduler_address" in plain:
        raise ConfigError("an earlier HCloud wrote this; launch the instance anew", where=f"{path}: scheduler_address")
    known = {each.name for each in fields(Bootstrap)}
    if unknown := sorted(set(plain) - known):
        raise ConfigError(f"unknown key; known are: {', '.join(sorted(known))}", where=f"{path}: {unknown[0]}")
    needed = ("instance_id", "gateway_addresses", "enrolment_addresses", "authority_pem", "state_dir", "expires_at")
    if missing := [name for name in needed if plain.get(name) is None]:
        raise ConfigError("this key is missing", where=f"{path}: {missing[0]}")
    plain = {name: value for name, value in plain.items() if value is not None}
    poweroff = plain.get("poweroff", "exit")
    addresses, enrolment = (tuple(plain[name]) for name in ("gateway_addresses", "enrolment_addresses"))
    if not addresses or len(addresses) != len(enrolment):
        raise ConfigError("must be addresses, as many of both kinds", where=f"{path}: enrolment_addresses")
    changes = {
        "gateway_addresses": addresses,
        "enrolment_addresses": enrolment,
        "state_dir": Path(plain["state_dir"]),
        "cpus": tuple(plain["cpus"]) if plain.get("cpus") else None,
        "poweroff": poweroff if isinstance(poweroff, str) else tuple(poweroff),
        "settings": {name: str(value) for name, value in plain.get("settings", {}).items()},
    }
    return Bootstrap(**{**plain, **changes})
