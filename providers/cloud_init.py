"""Cloud-init user data that makes a rented machine a worker which terminates itself.

The template and its scripts are shipped in ``deploy/cloud-init``. What is secret is the worker's key: by
``credential_command`` a machine fetches it with an identity of its own; only where ``credential`` is given does it
stand in the user data, where whoever may read the machine's attributes in the account can read it.
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

from hcloud.core.errors import ConfigError, LaunchRejected
from hcloud.core.model import Resources
from hcloud.provider import LaunchRequest

STATE_DIR = "/var/lib/hcloud-worker"
TLS_DIR = "/etc/hcloud/tls"
PREEMPT_FILE = "/run/hcloud/preempt.json"
CREDENTIAL_FILES = ("ca.pem", "worker.pem", "worker.key")
GUARD_GRACE_S = 60
"""How long after its expiry a machine is switched off by its guard, should its worker not have done so."""
STAGE_SHARE = 0.4
"""Which part of the time to boot one step of the setup may take."""
_UNREACHABLE_HOSTS = ("127.", "localhost", "0.0.0.0", "[::1]", "[::]")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """How one machine becomes a worker.

    ``capacity`` is what its units may share. ``package`` is what pip installs where the image lacks the program
    ("": the image must have it), from ``package_index`` where given (a mirror). ``credential_command`` is a shell
    command on the machine that prints a JSON object of the files in CREDENTIAL_FILES ("": the image has them).
    ``notice``: the metadata service that the worker watches; with ``heed_rebalance`` a mere recommendation counts too.
    """

    request: LaunchRequest
    capacity: Resources
    scheduler_address: str = ""
    package: str = ""
    package_index: str = ""
    system_packages: bool = True
    credential_command: str = ""
    credential: Mapping[str, str] = field(default_factory=dict)
    notice: Literal["ec2", "gce", "none"] = "none"
    heed_rebalance: bool = False
    boot_timeout_s: float = 900.0


def render_user_data(setup: WorkerSetup) -> str:
    """Return the cloud-config document; the same setup gives the same text (launches are repeated literally).

    Raises LaunchRejected where the machine could never reach the engine, or this installation lacks the template.
    """
    directory = _shipped("deploy/cloud-init")
    values = {
        "BOOT_TIMEOUT_S": str(round(setup.boot_timeout_s)),
        "SETUP_TIMEOUT_S": str(max(60, round(setup.boot_timeout_s) - 60)),
        "MACHINE_ENV": _packed(machine_env(setup)),
        "BOOTSTRAP": _packed(json.dumps(bootstrap_of(setup), sort_keys=True) if setup.request.bootstrap else ""),
        "CREDENTIAL": _packed(json.dumps(dict(setup.credential), sort_keys=True) if setup.credential else ""),
        "WORKER_SERVICE": _packed(_without_comments((directory.parent / "hcloud-worker.service").read_text())),
        **{name.upper(): _packed(_without_comments((directory / name).read_text())) for name in SCRIPTS},
    }
    text = _without_comments((directory / "worker.yaml").read_text())
    return re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], text)


SCRIPTS = ("setup", "guard")


def machine_env(setup: WorkerSetup) -> str:
    """Return what the scripts source: shell assignments."""
    values = {
        "WORKER": "yes" if setup.request.bootstrap is not None else "no",
        "EXPIRES_AT": str(round(setup.request.expires_at)),
        "GUARD_GRACE_S": str(GUARD_GRACE_S),
        "BOOT_TIMEOUT_S": str(round(setup.boot_timeout_s)),
        "STAGE_TIMEOUT_S": str(max(30, round(setup.boot_timeout_s * STAGE_SHARE))),
        "PACKAGE": setup.package,
        "PACKAGE_INDEX": setup.package_index,
        "SYSTEM_PACKAGES": "yes" if setup.system_packages else "no",
        "CREDENTIAL_COMMAND": setup.credential_command,
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def bootstrap_of(setup: WorkerSetup) -> dict[str, object]:
    """Return the worker's bootstrap file (``hcloud worker --bootstrap``); it holds no secret."""
    orders = setup.request.bootstrap
    assert orders is not None
    settings = dict(orders.settings)
    return {
        "instance_id": setup.request.instance_id,
        "token": setup.request.token,
        "owner": setup.request.owner,
        "scheduler_address": reachable_address(setup.scheduler_address or orders.scheduler_address),
        "tls_dir": TLS_DIR,
        "state_dir": STATE_DIR,
        "capacity": asdict(setup.capacity),
        # The machine has one worker only, so the first port of the range is free.
        "worker_port": int(settings.pop("worker_ports", "9100-9999").split("-")[0]),
        "expires_at": setup.request.expires_at,
        "lease_s": orders.lease_s,
        "isolation": orders.isolation,
        "unit_uid_base": int(settings.pop("unit_uid_base", "61000")),
        "poweroff": ["systemctl", "poweroff"],
        "settings": {**settings, "preempt_file": PREEMPT_FILE, **_watched(setup)},
    }


def _watched(setup: WorkerSetup) -> dict[str, str]:
    """Return which metadata service the worker watches."""
    if setup.notice == "none":
        return {}
    return {"notice": setup.notice, **({"heed_rebalance": "yes"} if setup.heed_rebalance else {})}


def reachable_address(address: str) -> str:
    """Return the engine's address if a machine elsewhere could dial it.

    Raises LaunchRejected where it names the daemon's own host only.
    """
    if address.rpartition("://")[2].startswith(_UNREACHABLE_HOSTS):
        raise LaunchRejected(
            f"a rented machine cannot dial {address}: set engine.listen, or scheduler_address in this provider's "
            "settings, to an address of the daemon's host that machines can reach"
        )
    return address


def read_credential(tls_dir: str) -> dict[str, str]:
    """Return the files a worker identifies itself with.

    Raises ConfigError: one of them is not there.
    """
    found = {}
    for name in CREDENTIAL_FILES:
        path = Path(tls_dir, name)
        try:
            found[name] = path.read_text()
        except OSError as error:
            raise ConfigError(f"{error.strerror}; `hcloud init` makes the keys of workers", where=str(path)) from error
    return found


def _shipped(name: str) -> Path:
    """Find shipped data beside the packages (a checkout) or in the wheel."""
    packages = Path(__file__).resolve().parents[1]
    found = [root / name for root in (packages / "hcloud" / "_shipped", packages) if (root / name).is_dir()]
    if not found:
        raise LaunchRejected(f"this installation lacks {name}; install HCloud again")
    return found[0]


def _packed(text: str) -> str:
    """Compress for ``encoding: gz+b64``, without a time stamp so that equal texts stay equal."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _without_comments(text: str) -> str:
    """Leave out full-line comments, except a first line that says what the file is; user data is limited in size."""
    first, *rest = text.splitlines()
    kept = [line for line in rest if line.strip() and not line.lstrip().startswith("#")]
    return "\n".join([*([first] if first.startswith(("#!", "#cloud-config", "[")) else []), *kept]) + "\n"
