"""Cloud-init user data that makes a rented instance an HCloud worker which terminates itself at its expiry.

The template and its scripts are in ``deploy/cloud-init``. The worker's TLS key is a secret: with ``credential_command``
the instance fetches it with its own identity. Only with ``credential`` is it part of the user data, which is readable
by everyone who may read the instance's attributes in the account.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from hcloud.core.errors import ConfigError, LaunchRejected
from hcloud.core.model import Resources
from hcloud.provider import LaunchRequest

STATE_DIR = "/var/lib/hcloud-worker"
TLS_DIR = "/etc/hcloud/tls"
PREEMPT_FILE = "/run/hcloud/preempt.json"
CREDENTIAL_FILES = ("ca.pem", "worker.pem", "worker.key")
GUARD_GRACE_S = 60
"""How long after its expiry the guard switches an instance off, if its worker has not done so."""
STAGE_SHARE = 0.4
"""Share of the boot timeout that one step of the setup may take."""
_UNREACHABLE_HOSTS = ("127.", "localhost", "0.0.0.0", "[::1]", "[::]")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """How one instance becomes a worker."""

    request: LaunchRequest
    capacity: Resources
    """What its units may use together."""
    scheduler_address: str = ""
    """Address of the engine; "": that of the request's bootstrap."""
    system_packages: bool = True
    """Install bubblewrap, nftables, stress-ng and Python where the image lacks them."""
    credential_command: str = ""
    """Shell command on the instance that prints the CREDENTIAL_FILES as a JSON object; "": the image has them."""
    credential: Mapping[str, str] = field(default_factory=dict)
    """The files themselves, if they are to be part of the user data."""
    notice: Literal["ec2", "gce", "none"] = "none"
    """Metadata service that the worker watches for interruption notices."""
    heed_rebalance: bool = False
    """Whether a rebalance recommendation counts as a notice."""
    boot_timeout_s: float = 900.0


def render_user_data(setup: WorkerSetup) -> str:
    """Return the cloud-config document. Equal setups give equal text, since launches are repeated literally.

    Raises LaunchRejected: the instance could not reach the engine, or this installation lacks the template.
    """
    directory = _shipped("deploy/cloud-init")
    values = {
        "BOOT_TIMEOUT_S": str(round(setup.boot_timeout_s)),
        "SETUP_TIMEOUT_S": str(max(60, round(setup.boot_timeout_s) - 60)),
        "MACHINE_ENV": _packed(machine_env(setup)),
        "BOOTSTRAP": _packed(json.dumps(bootstrap_of(setup), sort_keys=True) if setup.request.bootstrap else ""),
        "CREDENTIAL": _packed(json.dumps(dict(setup.credential), sort_keys=True) if setup.credential else ""),
        "WORKER_SERVICE": _packed(_without_comments((directory.parent / "hcloud-worker.service").read_text())),
        "AUTHORITY": _packed(setup.request.bootstrap.authority_pem if setup.request.bootstrap else ""),
        **{
            name.upper().replace("-", "_"): _packed(_without_comments((directory / name).read_text()))
            for name in SCRIPTS
        },
    }
    text = _without_comments((directory / "worker.yaml").read_text())
    return re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], text)


SCRIPTS = ("setup", "fetch-agent", "guard")


def machine_env(setup: WorkerSetup) -> str:
    """Return shell assignments that the scripts source."""
    bootstrap = setup.request.bootstrap
    agents = sorted(bootstrap.agents.items()) if bootstrap else []
    values = {
        "WORKER": "yes" if bootstrap is not None else "no",
        "EXPIRES_AT": str(round(setup.request.expires_at)),
        "GUARD_GRACE_S": str(GUARD_GRACE_S),
        "BOOT_TIMEOUT_S": str(round(setup.boot_timeout_s)),
        "STAGE_TIMEOUT_S": str(max(30, round(setup.boot_timeout_s * STAGE_SHARE))),
        "AGENTS": " ".join(f"{name}={sha256}" for name, sha256 in agents),
        "AGENT_URLS": " ".join(agent_urls(setup)) if agents else "",
        "SYSTEM_PACKAGES": "yes" if setup.system_packages else "no",
        "CREDENTIAL_COMMAND": setup.credential_command,
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def bootstrap_of(setup: WorkerSetup) -> dict[str, object]:
    """Return the worker's bootstrap file (``hcloud worker --bootstrap``). It contains no secret."""
    bootstrap = setup.request.bootstrap
    assert bootstrap is not None
    settings = dict(bootstrap.settings)
    return {
        "instance_id": setup.request.instance_id,
        "token": setup.request.token,
        "owner": setup.request.owner,
        "scheduler_address": reachable_address(setup.scheduler_address or bootstrap.scheduler_address),
        "tls_dir": TLS_DIR,
        "state_dir": STATE_DIR,
        "capacity": asdict(setup.capacity),
        "expires_at": setup.request.expires_at,
        "lease_s": bootstrap.lease_s,
        "isolation": bootstrap.isolation,
        "unit_uid_base": int(settings.pop("unit_uid_base", "61000")),
        "poweroff": ["systemctl", "poweroff"],
        "settings": {**settings, "preempt_file": PREEMPT_FILE, **_watched(setup)},
    }


def agent_urls(setup: WorkerSetup) -> tuple[str, ...]:
    """Return where the instance fetches its agent: the gateway's addresses, as this provider's instances reach them.

    Raises LaunchRejected: an address refers to the daemon's own host only.
    """
    bootstrap = setup.request.bootstrap
    urls = bootstrap.agent_urls if bootstrap is not None else ()
    if setup.scheduler_address:
        # Another address of the same host: the port of the archives stays.
        host = urlsplit(f"//{setup.scheduler_address.rpartition('://')[2]}").hostname or ""
        host = f"[{host}]" if ":" in host else host
        urls = tuple(urlsplit(url)._replace(netloc=f"{host}:{urlsplit(url).port or 443}").geturl() for url in urls)
    return tuple(dict.fromkeys(map(reachable_address, urls)))


def _watched(setup: WorkerSetup) -> dict[str, str]:
    if setup.notice == "none":
        return {}
    return {"notice": setup.notice, **({"heed_rebalance": "yes"} if setup.heed_rebalance else {})}


def reachable_address(address: str) -> str:
    """Return the engine's address. Raises LaunchRejected if it refers to the daemon's own host only."""
    if address.rpartition("://")[2].startswith(_UNREACHABLE_HOSTS):
        raise LaunchRejected(
            f"a rented instance cannot reach {address}: set engine.listen, or scheduler_address in this provider's "
            "settings, to an address of the daemon's host that instances can reach"
        )
    return address


def read_credential(tls_dir: str) -> dict[str, str]:
    """Return the worker's TLS files by name. Raises ConfigError: one of them cannot be read."""
    found = {}
    for name in CREDENTIAL_FILES:
        path = Path(tls_dir, name)
        try:
            found[name] = path.read_text()
        except OSError as error:
            raise ConfigError(f"{error.strerror}; `hcloud init` creates the workers' keys", where=str(path)) from error
    return found


def _shipped(name: str) -> Path:
    # In a checkout the data is next to the packages; in an installation it is inside hcloud.
    packages = Path(__file__).resolve().parents[1]
    found = [root / name for root in (packages / "hcloud" / "_shipped", packages) if (root / name).is_dir()]
    if not found:
        raise LaunchRejected(f"this installation lacks {name}; reinstall HCloud")
    return found[0]


def _packed(text: str) -> str:
    # No time stamp, so that equal texts stay equal.
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _without_comments(text: str) -> str:
    """Remove full-line comments, except a first line that declares the format; user data is limited in size."""
    first, *rest = text.splitlines()
    kept = [line for line in rest if line.strip() and not line.lstrip().startswith("#")]
    return "\n".join([*([first] if first.startswith(("#!", "#cloud-config", "[")) else []), *kept]) + "\n"
