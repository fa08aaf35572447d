"""Units without an engine: one process detects what isolation there is, keeps one unit with it, and says how it went.

Each is a fork of a warm process, ``python -m tests.engine.alone <request>``, so that it can be another user's process,
or live in a network of its own with a false metadata service.
"""

import ctypes
import http.server
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from hcloud.core.errors import UnitRefused
from hcloud.core.model import Resources
from hcloud.engine import keeper, sandbox
from hcloud.engine.bootstrap import Bootstrap
from hcloud.engine.idle_keepers import GivenUnit
from hcloud.engine.limits import remove_instance_cgroup
from hcloud.engine.output import read_output
from hcloud.engine.prepared_roots import PreparedRoots
from hcloud.engine.unit import UnitDirectories, boot_id
from hcloud.engine.wire import unit_from_wire, unit_to_wire
from hcloud.engine.worker import _marked
from hcloud.provider import UnitSpec
from tests.waiting import wait_until
from tests.warm import ALONE

_numbers = itertools.count()
METADATA = sandbox.METADATA_ADDRESSES[0]
SECRET = "role-credentials"
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a unit went. ``left`` are processes that carry its id after its end; ``names`` the isolation in force."""

    refused: str = ""
    exit: Mapping[str, Any]
    sample: Mapping[str, Any]
    stdout: str = ""
    stderr: str = ""
    left: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    lacks: Mapping[str, str]
    tasks: Mapping[str, Any] | None = None
    """What became of the tasks of a unit with many, as it is reported."""
    log: str = ""
    """The log of these tasks."""


def run_alone(
    folder: Path,
    command: str | tuple[str, ...],
    *,
    without: tuple[str, ...] = (),
    uid: int = 0,
    metadata: bool = False,
    mode: str = "best_effort",
    settings: Mapping[str, str] | None = None,
    archive: Path | None = None,
    stop: Mapping[str, object] | None = None,
    **changes: object,
) -> Outcome:
    """Run one unit to its end. ``without``: isolation (or "prepared_root") not used; ``metadata``: in a network with
    a false service; ``stop``: what is asked of it once its first task has begun."""
    request = {
        "folder": str(folder),
        "spec": unit_to_wire(replace(_unit(command), **changes)),  # type: ignore[arg-type]
        "without": without,
        "uid": uid,
        "metadata": metadata,
        "mode": mode,
        "settings": dict(settings or {}),
        "archive": str(archive) if archive else None,
        "stop": stop,
    }
    if uid:
        os.chown(folder, uid, uid)
    plain = _asked(request)
    return Outcome(**{**plain, **{name: tuple(plain.get(name, ())) for name in ("left", "names")}})


def _unit(command: str | tuple[str, ...]) -> UnitSpec:
    return UnitSpec(
        # No other test's processes may be taken for its own: those that run at the same time are in the same /proc.
        id=f"job-{os.getpid()}{next(_numbers):04}.1.0",
        instance_id="inst-1",
        rank=0,
        command=("/bin/sh", "-c", command) if isinstance(command, str) else command,
        resources=Resources(vcpus=1.0, memory_mib=128, disk_gib=0.05),
        stop_grace_s=1.0,
    )


def _asked(request: Mapping[str, object]) -> dict[str, Any]:
    """Hand the request to a process of its own; return what it reports."""
    done = ALONE.run((json.dumps(request),), cwd=Path.cwd(), environment=os.environ, timeout_s=200)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _enter_network_of_its_own() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network namespace could be made")


def _serve_metadata(port: int) -> None:
    """Answer on the metadata address, and on the engine's port, of this network."""
    for words in (["link", "set", "lo", "up"], ["addr", "add", f"{METADATA}/32", "dev", "lo"]):
        subprocess.run(["ip", *words], check=True)

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(SECRET.encode())

        def log_message(self, *_: object) -> None:
            return

    for address in ((METADATA, 80), ("127.0.0.1", port)):
        server = http.server.ThreadingHTTPServer(address, Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()


def _main() -> None:
    request = json.loads(sys.argv[1])
    folder = Path(request["folder"])
    if request["metadata"]:
        _enter_network_of_its_own()
    if request["uid"]:
        os.setgroups([])
        os.setresgid(request["uid"], request["uid"], request["uid"])
        os.setresuid(request["uid"], request["uid"], request["uid"])
    bootstrap = Bootstrap(
        instance_id="inst-1",
        gateway_addresses=("127.0.0.1:18786",),
        enrolment_addresses=("127.0.0.1:18787",),
        authority_pem="",
        state_dir=folder / "machine",
        expires_at=1e12,
        isolation=request["mode"],
        unit_uid_base=62000,
        settings=request["settings"],
    )
    bootstrap.state_dir.mkdir(mode=0o711)
    keys = bootstrap.state_dir / "tls"
    keys.mkdir(mode=0o700)
    (keys / "agent.key").write_text(SECRET)
    found = sandbox.detect(bootstrap)
    missing = [name for name in request["without"] if name != "prepared_root"]
    isolation = replace(found, **dict.fromkeys(missing))  # type: ignore[arg-type]
    if "firewall" in request["without"]:
        sandbox.clear_firewall(bootstrap)
    spec = unit_from_wire(request["spec"])
    if request["metadata"]:
        _serve_metadata(18786)
    try:
        sandbox.refuse_unsafe(spec, isolation, request["mode"])
        print(json.dumps(_keep(bootstrap, isolation, request)))
    except UnitRefused as refused:
        print(json.dumps({"refused": str(refused), "exit": {}, "sample": {}, "lacks": dict(isolation.lacks)}))
    finally:
        sandbox.clear_firewall(bootstrap)
        remove_instance_cgroup(found.cgroup)


def _keep(bootstrap: Bootstrap, isolation: sandbox.Isolation, request: Mapping[str, Any]) -> dict[str, object]:
    units = UnitDirectories(bootstrap.state_dir)
    plain, uid = request["spec"], bootstrap.unit_uid_base if isolation.root else os.getuid()
    archive = Path(request["archive"]) if request["archive"] else None
    prepared = None
    if isolation.bwrap and "prepared_root" not in request["without"]:
        prepared = PreparedRoots(bootstrap.state_dir).root(uid)
    created = units.create(plain["id"], {"unit": plain, "uid": uid, "boot_id": boot_id()}, archive)
    assert created is not None
    unit, lock = created
    pid = os.fork()
    if pid == 0:
        keeper.keep(GivenUnit(unit, lock, unit_from_wire(plain), uid, prepared), bootstrap, isolation)
    os.close(lock)
    if request["stop"] is not None:
        wait_until(lambda: b"begin" in read_output(unit.path / "log", "tasks", 0, 1 << 20)[0], timeout_s=180)
        unit.write("stop.json", request["stop"])
    os.waitpid(pid, 0)
    wait_until(lambda: unit.ended and not unit.kept, timeout_s=180)
    streams = [read_output(unit.path / "log", stream, 0, 1 << 20)[0] for stream in ("stdout", "stderr")]
    return {
        "exit": cast(dict[str, Any], unit.read("exit.json")),
        "sample": unit.read("sample.json") or {},
        "stdout": streams[0].decode(errors="replace"),
        "stderr": streams[1].decode(errors="replace"),
        "left": sorted(_marked(unit)),
        "names": isolation.names,
        "lacks": dict(isolation.lacks),
        "tasks": unit.report().get("tasks"),
        "log": read_output(unit.path / "log", "tasks", 0, 1 << 20)[0].decode(),
    }


if __name__ == "__main__":
    _main()
