"""A network of its own for the ranks of a gang on several hosts: WireGuard, in a network namespace for each rank.

The device is made in the host's namespace, where its UDP socket stays, and moved into the rank's, which has nothing
else but its own loopback. Each rank has a key of its own, and takes from a peer's key that peer's address only. The
device goes with the namespace, and WireGuard's userspace program with the keeper.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

from hcloud.core.clock import holds_within
from hcloud.core.errors import UnitRefused
from hcloud.provider import GANG_PORTS

TUNNEL = "HCLOUD_GANG_TUNNEL"
"""Variable in which a keeper gets what ``hcloud.engine.gang_credential.gang_tunnel`` returns. No unit gets it."""
DEVICE = "gang0"
PREFIX_BITS = 16
MTU, NETWORK_MTU_MAX, OVERHEAD_BYTES = 1_380, 8_500, 80
"""Fits networks of 1,460 bytes, as those of GCE are; transit gateways of EC2 drop what is larger than the second; what
WireGuard adds."""
KEEPALIVE_S = 25
"""WireGuard's own advice; with it each end begins by itself."""
USERSPACE = "wireguard-go"
TunnelKind = Literal["", "wireguard", "wireguard-go"]
_SOCKETS = Path("/var/run/wireguard")
_ADMIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TIMEOUT_S, _LOOK_S = 20.0, 0.01


def find_tunnel_kind() -> tuple[TunnelKind, str]:
    """Return by what this host can connect ranks, found out by trying, or ``""`` and what it lacks, in words."""
    if os.geteuid() != 0:
        return "", "only root can make network devices"
    if absent := [each for each in ("ip", "wg", "nsenter", "setpriv") if _find(each) is None]:
        return "", f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed"
    name = f"hcprobe{os.getpid()}"[:15]
    if _is_done("ip", "link", "add", name, "type", "wireguard"):
        _is_done("ip", "link", "del", name)
        return "wireguard", ""
    if _find(USERSPACE) is not None and os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "wireguard-go", ""
    return "", f"the kernel has no WireGuard, and {USERSPACE} or /dev/net/tun is missing"


@contextmanager
def gang_tunnel(unit_id: str, text: str, kind: TunnelKind, network: int) -> Iterator[int | None]:
    """Have the namespace behind the descriptor ``network`` on the gang's network; yield the process id of WireGuard's
    userspace program, if it is that.

    ``text``: what the daemon sent (``TUNNEL``). Raises UnitRefused: that cannot be done here.
    """
    settings, name, path = json.loads(text), device_name(unit_id), f"/proc/{os.getpid()}/fd/{network}"
    remove_tunnel(unit_id)
    program: subprocess.Popen[bytes] | None = None
    try:
        if kind == "wireguard-go":
            program = _start_program(name)
        else:
            _do("ip", "link", "add", name, "type", "wireguard")
        configured = ["private-key", "/dev/stdin", "listen-port", str(_free_port(settings["port"])), *_peers(settings)]
        _do("wg", "set", name, *configured, given=settings["key"])
        _do("ip", "link", "set", name, "netns", path)
        steps = f"link set {name} name {DEVICE}\naddr add {settings['address']}/{PREFIX_BITS} dev {DEVICE}\n"
        steps += f"link set {DEVICE} mtu {tunnel_mtu(settings)} up\n"
        _do("nsenter", f"--net={path}", "--", _find("ip") or "ip", "-batch", "-", given=steps)
        yield program.pid if program is not None else None
    finally:
        _is_done("nsenter", f"--net={path}", "--", _find("ip") or "ip", "link", "del", DEVICE)
        if program is not None:
            program.kill()
            with suppress(ChildProcessError):  # the keeper has collected it
                program.wait()
        remove_tunnel(unit_id)


def tunnel_mtu(settings: Mapping[str, Any]) -> int:
    """Return the largest packet of a rank: what the networks to all peers carry, if these are private ones."""
    try:
        found = NETWORK_MTU_MAX
        for host in sorted({peer["endpoint"].rpartition(":")[0].strip("[]") for peer in settings["peers"]}):
            if not ip_address(host).is_private:
                return MTU
            [route] = json.loads(_do("ip", "-j", "route", "get", host))
            [link] = json.loads(_do("ip", "-j", "link", "show", "dev", route["dev"]))
            found = min(found, int(link["mtu"]), *(int(each.get("mtu", found)) for each in route.get("metrics", ())))
        return max(1_280, found - OVERHEAD_BYTES)
    except (UnitRefused, ValueError, LookupError, TypeError):
        return MTU


def _peers(settings: Mapping[str, object]) -> Iterator[str]:
    for peer in settings["peers"]:  # type: ignore[attr-defined]
        yield from ("peer", peer["key"], "allowed-ips", f"{peer['address']}/32", "endpoint", peer["endpoint"])
        yield from ("persistent-keepalive", str(KEEPALIVE_S))


def _start_program(name: str) -> subprocess.Popen[bytes]:
    """Start WireGuard's userspace program, which ends with this process; return it once it can be configured."""
    command = [_find("setpriv") or "setpriv", "--pdeathsig", "KILL", _find(USERSPACE) or USERSPACE, "-f", name]
    program = subprocess.Popen(command, env={**os.environ, "LOG_LEVEL": "error"}, stdin=subprocess.DEVNULL)
    holds_within(lambda: _socket_of(name).exists() or program.poll() is not None, _TIMEOUT_S, _LOOK_S)
    if not _socket_of(name).exists():
        program.kill()
        raise UnitRefused(f"its gang's network cannot be made: {USERSPACE} did not start")
    return program


def _free_port(first: int) -> int:
    """Return a free port, ``first`` if it is: a peer that looks for this rank there is found by this rank instead."""
    for number in range(len(GANG_PORTS)):
        port = GANG_PORTS[(first - GANG_PORTS.start + number) % len(GANG_PORTS)]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise UnitRefused(f"its gang's network cannot be made: UDP ports {GANG_PORTS[0]} to {GANG_PORTS[-1]} are used")


def device_name(unit_id: str) -> str:
    """Return the name of a unit's device as long as it is in the host's namespace."""
    return f"hc{hashlib.sha256(unit_id.encode()).hexdigest()[:12]}"


def remove_tunnel(unit_id: str) -> None:
    """Remove what a keeper that was killed may have left of a unit's tunnel. Nothing there is no error."""
    name = device_name(unit_id)
    if name in (each for _, each in socket.if_nameindex()):
        _is_done("ip", "link", "del", name)
    with suppress(OSError):
        _socket_of(name).unlink()


def _socket_of(name: str) -> Path:
    return _SOCKETS / f"{name}.sock"


def _find(name: str) -> str | None:
    return shutil.which(name, path=_ADMIN_PATH)


def _do(name: str, *arguments: str, given: str = "") -> str:
    """Run a program with ``given`` as its input; return its output. Raises UnitRefused if it fails."""
    try:
        done = subprocess.run(
            [_find(name) or name, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnitRefused(f"its gang's network cannot be made: {name}: {error}") from error
    if done.returncode:
        why = (done.stderr or done.stdout).strip().splitlines()
        raise UnitRefused(f"its gang's network cannot be made: {name}: {why[-1] if why else done.returncode}")
    return done.stdout


def _is_done(name: str, *arguments: str) -> bool:
    with suppress(UnitRefused):
        _do(name, *arguments)
        return True
    return False
