"""Cloud-init user data that makes a rented instance an HCloud worker which terminates itself at its expiry.

The template and its scripts are in ``deploy/cloud-init``. User data holds one secret, with which this launch's instance
gets its own certificate, once, from an address that its provider names.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from hcloud.core.errors import AccountRejected
from hcloud.core.model import Resources
from hcloud.provider import LaunchRequest

STATE_DIR = "/var/lib/hcloud-worker"
PREEMPT_FILE = "/run/hcloud/preempt.json"
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
    gateway_addresses: tuple[str, ...] = ()
    """Addresses of gateways; empty: those of the request's bootstrap."""
    system_packages: bool = True
    """Install bubblewrap, nftables, stress-ng and Python where the image lacks them."""
    container_images: bool = False
    """Install podman, too."""
    notice: Literal["ec2", "gce", "none"] = "none"
    """Metadata service that the worker watches for interruption notices."""
    heed_rebalance: bool = False
    """Whether a rebalance recommendation counts as a notice."""
    boot_timeout_s: float = 900.0


def render_user_data(setup: WorkerSetup) -> str:
    """Return the cloud-config document. Equal setups give equal text, since launches are repeated literally.

    Raises AccountRejected: the instance could not reach the engine, or this installation lacks the template.
    """
    directory = _shipped("deploy/cloud-init")
    values = {
        "BOOT_TIMEOUT_S": str(round(setup.boot_timeout_s)),
        "SETUP_TIMEOUT_S": str(max(60, round(setup.boot_timeout_s) - 60)),
        "MACHINE_ENV": _packed(machine_env(setup)),
        "BOOTSTRAP": _packed(json.dumps(bootstrap_of(setup), sort_keys=True) if setup.request.bootstrap else ""),
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
    # The port that gives new instances their certificate serves archives too.
    servers = bootstrap.at(setup.gateway_addresses)["enrolment_addresses"] if bootstrap and agents else []
    values = {
        "WORKER": "yes" if bootstrap is not None else "no",
        "EXPIRES_AT": str(round(setup.request.expires_at)),
        "GUARD_GRACE_S": str(GUARD_GRACE_S),
        "BOOT_TIMEOUT_S": str(round(setup.boot_timeout_s)),
        "STAGE_TIMEOUT_S": str(max(30, round(setup.boot_timeout_s * STAGE_SHARE))),
        "AGENTS": " ".join(f"{name}={sha256}" for name, sha256 in agents),
        "AGENT_URLS": " ".join(f"https://{server}/agent/" for server in servers),
        "SYSTEM_PACKAGES": "yes" if setup.system_packages else "no",
        **({"CONTAINER_IMAGES": "yes"} if setup.container_images else {}),
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def bootstrap_of(setup: WorkerSetup) -> dict[str, object]:
    """Return the worker's bootstrap file (``hcloud worker --bootstrap``)."""
    bootstrap = setup.request.bootstrap
    assert bootstrap is not None
    settings = dict(bootstrap.settings)
    return {
        "instance_id": setup.request.instance_id,
        "token": setup.request.token,
        "owner": setup.request.owner,
        **bootstrap.at(reachable_addresses(setup.gateway_addresses or bootstrap.gateway_addresses)),
        "authority_pem": bootstrap.authority_pem,
        "enrolment_secret": bootstrap.enrolment_secret,
        "state_dir": STATE_DIR,
        "capacity": asdict(setup.capacity),
        "expires_at": setup.request.expires_at,
        "lease_s": bootstrap.lease_s,
        "isolation": bootstrap.isolation or "require",
        "unit_uid_base": int(settings.pop("unit_uid_base", "61000")),
        "poweroff": ["systemctl", "poweroff"],
        "settings": {**settings, "preempt_file": PREEMPT_FILE, **_watched(setup)},
    }


def _watched(setup: WorkerSetup) -> dict[str, str]:
    if setup.notice == "none":
        return {}
    return {"notice": setup.notice, **({"heed_rebalance": "yes"} if setup.heed_rebalance else {})}


def reachable_addresses(addresses: Sequence[str]) -> Sequence[str]:
    """Return gateways' addresses. Raises AccountRejected if one refers to the daemon's own host only."""
    for address in addresses:
        if address.startswith(_UNREACHABLE_HOSTS):
            raise AccountRejected(
                f"a rented instance cannot reach {address}: set engine.gateway_addresses, or gateway_addresses in this "
                "provider's settings, to an address of the daemon's host that instances can reach"
            )
    return addresses


def _shipped(name: str) -> Path:
    # In a checkout the data is next to the packages; in an installation it is inside hcloud.
    packages = Path(__file__).resolve().parents[1]
    found = [root / name for root in (packages / "hcloud" / "_shipped", packages) if (root / name).is_dir()]
    if not found:
        raise AccountRejected(f"this installation lacks {name}; reinstall HCloud")
    return found[0]


def _packed(text: str) -> str:
    # No time stamp, so that equal texts stay equal.
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _without_comments(text: str) -> str:
    """Remove full-line comments, except a first line that declares the format; user data is limited in size."""
    first, *rest = text.splitlines()
    kept = [line for line in rest if line.strip() and not line.lstrip().startswith("#")]
    return "\n".join([*([first] if first.startswith(("#!", "#cloud-config", "[")) else []), *kept]) + "\n"
