"""Attacks of a job, which runs code as its unit's user on a machine: it stays within its bounds, others go on."""

from __future__ import annotations

import io
import json
import math
import os
import resource
import socket
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hcloud.core.errors import UnitRefused
from hcloud.core.model import FailureCause, MetricsHook, ProgressHook
from hcloud.engine import metrics
from hcloud.engine.archive import unpack
from hcloud.engine.sandbox import METADATA_ADDRESSES, split_environment
from hcloud.provider import UnitSpec
from tests.engine.site import SMALL, Machine, Site, Watch, new_unit_id
from tests.engine.tiny_image import tiny_image
from tests.machine import needs_bwrap, needs_podman, needs_root
from tests.waiting import wait_until

NAME, PATIENCE_S = "inst-1", 30.0
MIB = 1 << 20
LOG_MIB, PIDS = 1, 64
SECRET = "do-not-tell"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An engine with one machine."""
    settings = {"max_log_mib": str(LOG_MIB), "pids_max": str(PIDS)}
    site = Site(tmp_path_factory.mktemp("site"), isolation="best_effort")
    try:
        site.machine(NAME, settings=settings)
        yield site
    finally:
        site.close()


@pytest.fixture(scope="module")
def machine(site: Site) -> Machine:
    """The machine that the attackers' jobs share with an honest one."""
    return site.machines[NAME]


@pytest.fixture(scope="module")
def watch(site: Site) -> Watch:
    """What the engine says of units."""
    watch = Watch(site.runner())
    watch.registered(NAME)
    return watch


@pytest.fixture(scope="module")
def honest(watch: Watch) -> UnitSpec:
    """Another user's job on the same machine, with a secret in its environment, its file and its command."""
    unit = attacker(f"echo {SECRET} > mine; echo up; exec sleep 1000 # {SECRET}", env={"TOKEN": SECRET})
    assert watch.runner.start([unit])[unit.id].outcome == "started"
    watch.says(unit, "up")
    return unit


@pytest.fixture(autouse=True)
def others_go_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where a unit attacks, the honest job runs before and after it, and a new one starts and ends well."""
    if "watch" not in request.fixturenames:
        yield
        return
    watch, honest = request.getfixturevalue("watch"), request.getfixturevalue("honest")
    yield
    watch.running(honest)
    record, said = watch.run(attacker("echo fine"))
    assert (record.exit_code, said) == (0, "fine\n")


def attacker(command: str | tuple[str, ...], **changes: Any) -> UnitSpec:
    words = ("/bin/sh", "-c", command) if isinstance(command, str) else command
    plain = UnitSpec(
        id=new_unit_id(), instance_id=NAME, rank=0, command=words, resources=SMALL, stop_grace_s=0.2, max_runtime_s=60.0
    )
    return replace(plain, **changes)


def archive(path: Path, **files: str) -> str:
    """Write a work directory of these programs."""
    with tarfile.open(path, "w:gz") as made:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.mode, member.size = 0o755, len(text)
            made.addfile(member, io.BytesIO(text.encode()))
    return str(path)


# ------------------------------------------------------------------------------------------------------- more rights
RIGHTS = 'echo "uid $(id -u)"; grep -E "^(Cap(Eff|Prm|Bnd)|NoNewPrivs)" /proc/self/status'


def has_no_rights(said: str) -> None:
    """The words of ``RIGHTS`` are those of an ordinary user without a way to more."""
    lines = said.split("\n")
    assert "uid 0" not in lines
    assert all(int(line.split()[1], 16) == 0 for line in lines if line.startswith("Cap")), said


@needs_root
@needs_bwrap
def test_a_jobs_path_chooses_no_program_that_runs_as_root(tmp_path: Path, watch: Watch) -> None:
    script = f'#!/bin/sh\n({RIGHTS}) >> /job/who\nexec /usr/bin/env PATH=/usr/bin:/bin setpriv "$@"\n'
    tools = dict.fromkeys(("setpriv", "sh", "bwrap", "nsenter"), script)
    hooks = {"metrics": MetricsHook(probe=("/bin/sh", "-c", f"({RIGHTS}) >> /job/who"), every_s=0.001)}
    unit = attacker("/bin/sleep 1.2; /bin/cat who", env={"PATH": "/job"}, **hooks)
    record, said = watch.run(replace(unit, workdir=archive(tmp_path / "w.tar.gz", **tools)))
    assert record.exit_code == 0
    assert "uid " in said
    has_no_rights(said)


@needs_bwrap
def test_a_jobs_loader_variables_reach_no_program_outside(tmp_path: Path, watch: Watch) -> None:
    tmp_path.chmod(0o777)
    env = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": f"{tmp_path}/root-wrote", "LD_PRELOAD": "/job/evil.so"}
    probe = MetricsHook(probe=("/bin/true",), every_s=0.1)
    record, _ = watch.run(attacker("sleep 0.8", env=env, metrics=probe))
    assert record.exit_code == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shell", [each for each in ("/bin/sh", "/bin/bash") if os.path.exists(each)])
def test_every_variable_arrives_as_it_was(shell: str, tmp_path: Path) -> None:
    odd = {
        "PLAIN": "x", "QUOTE": "it's \"$HOME\" `id` $(id) \\", "LINES": "a\nb\n", "EMPTY": "",
        "BYTES": "\udcff\x01\x81é",
        "IFS": "x", "OPTIND": "3", "UID": "7", "LD_PRELOAD": "/x", "a.b-c": "odd", "BASH_ENV": "/nowhere", "_x": "1",
    }  # fmt: skip
    plain, script = split_environment(odd)
    assert not {"LD_PRELOAD", "BASH_ENV", "IFS"} & plain.keys()
    (tmp_path / "script").write_bytes(script)
    words = [shell, "-c", '. "$1"; shift; exec "$@"', "sh", str(tmp_path / "script"), "/usr/bin/env", "-0"]
    done = subprocess.run(words, env=plain, capture_output=True, check=True)
    found = dict(pair.split("=", 1) for pair in os.fsdecode(done.stdout).split("\0") if "=" in pair)
    kept = {name: value for name, value in odd.items() if name not in ("UID", "LD_PRELOAD", "OPTIND", "a.b-c")}
    assert kept.items() <= found.items()
    assert found["LD_PRELOAD"] == "/x"


@needs_podman
def test_an_images_files_choose_no_library_for_root(tmp_path: Path, watch: Watch) -> None:
    files = {"etc/ld.so.preload": "/evil.so\n", "etc/nsswitch.conf": "passwd: evil\ngroup: evil\n"}
    with tiny_image(tmp_path, "localhost/hcloud-test-hostile:1", ["cat"], files=files) as image:
        record, said = watch.run(attacker(("/bin/cat", "/etc/ld.so.preload", "/etc/nsswitch.conf"), image=image))
    assert record.exit_code == 0, (record, said)
    assert "evil" not in said


# --------------------------------------------------------------------------------------------------- what is not its
@needs_bwrap
def test_a_job_sees_nothing_of_keys_other_units_or_processes(
    site: Site, machine: Machine, watch: Watch, honest: UnitSpec
) -> None:
    theirs = machine.unit(honest.id).path
    places = [site.tls_dir / "worker.key", machine.bootstrap_file, theirs / "spec.json", theirs / "root/job/mine"]
    looked = "; ".join(f"cat {place}; ls {place.parent}" for place in places)
    _, said = watch.run(attacker(f"{looked}; cat /proc/*/environ /proc/*/cmdline; ls / /root /run /proc; true"))
    assert SECRET not in said
    assert "PRIVATE KEY" not in said
    assert machine.bootstrap_file.name not in said.replace(str(machine.bootstrap_file), "")


@needs_root
@needs_bwrap
@pytest.mark.parametrize("network", ["none", "host"])
def test_a_job_reaches_neither_gateway_nor_metadata_service(site: Site, watch: Watch, network: str) -> None:
    port = site.address.rpartition(":")[2]
    ask = (
        "python3 -c 'import socket, sys\n"
        f'for place in (("127.0.0.1", {port}), ("{METADATA_ADDRESSES[0]}", 80)):\n'
        "  s = socket.socket(); s.settimeout(3)\n"
        "  print(place[1], s.connect_ex(place) != 0)'"
    )
    _, said = watch.run(attacker(ask, network=network))
    assert said == f"{port} True\n80 True\n"
    with socket.create_connection(("127.0.0.1", int(port)), 5):  # others do
        pass


# ---------------------------------------------------------------------------------------------------- hooks
SERVER = """
import http.server, os, socket
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        port = f"{self.client_address[1]:04X}"
        mine = [line.split() for line in open("/proc/net/tcp") if line.split()[1].endswith(":" + port)]
        print(self.path, "uid", *{line[7] for line in mine}, flush=True)
        if self.path == "/metrics":
            self.send_response(302); self.send_header("Location", os.environ["TO"]); self.end_headers()
        else:
            self.send_response(200); self.end_headers(); self.wfile.write(b"http_requests_total 1\\n")
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


@needs_root
@needs_bwrap
@pytest.mark.parametrize("target", ["http://127.0.0.1:8000/other", "file:///etc/shadow"])
def test_metrics_are_fetched_by_the_units_user_inside_its_network_and_nowhere_else(watch: Watch, target: str) -> None:
    hook = MetricsHook(url="http://127.0.0.1:8000/metrics", every_s=0.2)
    unit = attacker(("/usr/bin/python3", "-c", SERVER), env={"TO": target}, metrics=hook)
    assert watch.runner.start([unit])[unit.id].outcome == "started"
    said = wait_until(lambda: text if (text := watch.output(unit)).count("/metrics") > 1 else "", PATIENCE_S)
    assert "uid 0" not in said
    assert "/other" not in said
    report = watch.running(unit)
    assert report.sample is None or report.sample.requests_per_s is None
    watch.runner.stop({unit.id: NAME}, cause=None)
    watch.ended(unit)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
def test_other_kinds_of_addresses_are_never_fetched(url: str) -> None:
    with pytest.raises(ValueError, match="is not an http address"):
        metrics._fetch(url)


def test_a_probe_that_writes_and_stays_for_ever_does_not_keep_its_job_from_its_limits(watch: Watch) -> None:
    probe = MetricsHook(probe=("/bin/sh", "-c", "trap '' ALRM TERM HUP; yes"), every_s=0.1)
    record, _ = watch.run(attacker("exec sleep 1000", metrics=probe, max_runtime_s=0.8))
    assert record.cause is FailureCause.TIMEOUT


POISON = [
    '{"requests_per_s": NaN}', '{"requests_per_s": 1e999}', '{"requests_per_s": 1' + "0" * 400 + "}",
    '{"latency_ms": ' + "[" * 50_000, '{"latency_ms": {"99": -1}}', '{"latency_ms": 5}', "\0\xff", "9" * 60_000,
    json.dumps({"latency_ms": {str(number): 1.0 for number in range(1000)}}),
]  # fmt: skip


@pytest.mark.parametrize("text", POISON, ids=range(len(POISON)))
def test_a_senseless_answer_is_none(text: str) -> None:
    assert metrics.parse_probe(text.encode(errors="replace")) is None


def test_a_histogram_without_sense_is_taken_apart_outside_the_keeper() -> None:
    text = 'request_seconds_bucket{le="abc"} 1\nrequest_seconds_bucket{le="0.1"} NaN\nrequest_seconds_count 5\n'
    found = metrics.rate_and_latency([], metrics.parse_prometheus(text), 1.0)
    taken = metrics.parse_probe(json.dumps(found).encode())
    assert taken is not None
    assert all(math.isfinite(each) for each in taken["latency_ms"].values())


MAKES = ("mkdir p", "mkfifo p", "ln -s /etc/shadow p", "ln -s /dev/zero p", "truncate -s 1T p", "printf nan > p")


@needs_bwrap
def test_a_progress_file_of_another_kind_does_not_disturb_its_keeper(watch: Watch) -> None:
    hook, large = ProgressHook(file="p", total=1.0), replace(SMALL, disk_gib=2000.0)
    units = {makes: attacker(f"{makes}; sleep 0.7", progress=hook, resources=large) for makes in MAKES}
    results = watch.runner.start(list(units.values()))
    assert {each.outcome for each in results.values()} == {"started"}
    ends = {makes: watch.ended(unit) for makes, unit in units.items()}
    assert {makes: (each.exit_code, each.cause) for makes, each in ends.items()} == dict.fromkeys(MAKES, (0, None))


# ---------------------------------------------------------------------------------------------- taking the machine
def test_gigabytes_of_output_leave_the_newest_part(machine: Machine, watch: Watch) -> None:
    unit = attacker("head -c 40000000 /dev/zero; echo; echo last")
    assert watch.runner.start([unit])[unit.id].outcome == "started"
    record = watch.ended(unit)
    assert record.exit_code == 0
    log = machine.unit(unit.id).path / "log"
    assert sum(path.stat().st_size for path in log.iterdir()) <= 1.3 * LOG_MIB * MIB
    assert max(log.glob("stdout.*")).read_bytes().endswith(b"\nlast\n")


def test_a_fork_bomb_has_no_more_processes_than_it_may(watch: Watch) -> None:
    bomb = "f() { f | f & }; f 2>/dev/null; exec sleep 0.5"
    record, _ = watch.run(attacker(bomb, max_runtime_s=2.0))
    assert record is not None


DEEP = """python3 -c 'import os
for _ in range({levels}): os.mkdir("{name}"); os.chdir("{name}")
for n in range({files}): open(str(n), "wb").write(bytes(4 << 20))'; sleep {s}"""


@needs_bwrap
def test_files_in_directories_deeper_than_any_path_are_counted(watch: Watch) -> None:
    deep = DEEP.format(levels=40, name="d" * 200, files=8, s=1000)
    record, said = watch.run(attacker(deep, resources=replace(SMALL, disk_gib=0.01)))
    assert record.cause is FailureCause.OUT_OF_DISK, (record, said)


@needs_bwrap
def test_a_directory_deeper_than_any_recursion_is_removed_with_its_unit(machine: Machine, watch: Watch) -> None:
    unit = attacker(DEEP.format(levels=1200, name="d", files=1, s=0))
    watch.run(unit)
    watch.runner.forget({unit.id: NAME})
    left = machine.unit(unit.id).path
    wait_until(lambda: not left.exists() and not left.with_name(f".old-{unit.id}").exists(), PATIENCE_S)


def bomb(path: Path) -> int:
    """An archive whose first member's name is a gigabyte long; return its descriptor."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = squeeze.compress(member.tobuf()) + squeeze.flush(zlib.Z_FULL_FLUSH)
    block = squeeze.compress(bytes(MIB)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    path.write_bytes(head + block * 1024)
    return os.open(path, os.O_RDONLY)


def test_an_archive_that_asks_for_a_gigabyte_of_memory_is_refused(tmp_path: Path) -> None:
    handle = bomb(tmp_path / "bomb")

    def unpacked() -> str:
        resource.setrlimit(resource.RLIMIT_DATA, (256 * MIB, 256 * MIB))
        try:
            unpack(handle, 1 << 40)
        except UnitRefused as refused:
            return str(refused)
        return ""

    assert in_fork(unpacked) == "the work directory's archive needs too much memory to be read"


def in_fork(work: Any) -> str:
    """Do the work in a process of its own, which its limits end; return its words."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, work().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        words = pipe.read()
    os.waitpid(child, 0)
    return words


@pytest.mark.parametrize("target", ["/etc/passwd", "../../spec.json"])
def test_an_archive_with_a_link_that_leads_out_is_refused_on_the_machine(
    tmp_path: Path, watch: Watch, target: str
) -> None:
    with tarfile.open(tmp_path / "w.tar.gz", "w:gz") as made:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, target
        made.addfile(link)
    record, _ = watch.run(attacker("cat link", workdir=str(tmp_path / "w.tar.gz")))
    assert record.cause is FailureCause.START_REFUSED
    assert "which leads outside" in record.detail
