"""``python -m bench.outputs``: how fast what a job left comes back from a machine of ``local``, beside ``cp``, SHA-256
and TLS on the same bytes in the same run; and whether it is right after daemon and agent were killed half-way. The same
to moto's S3 and a small GCS of ours, beside one PUT of the same bytes."""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import logging
import os
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.rows import Row, machine
from demo.stage import Stage
from hcloud.buckets.clients import GcsStore, S3Client, SignedUrl
from hcloud.config import package_data
from hcloud.core.clock import holds_within
from tests.buckets.stores import FakeGcs, moto_s3

PIECE = 1 << 20
LOOK_S = 0.05
PATIENCE_S = 600.0


def timed(work: Callable[[], object]) -> float:
    """Return how long something took, in seconds."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def send_by_tls(path: Path, folder: Path) -> None:
    """Send a file over a TLS connection of this host to a process that discards it."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))
    if (child := os.fork()) == 0:
        with context.wrap_socket(listener.accept()[0], server_side=True) as taken:
            while taken.recv(PIECE):
                pass
        os._exit(0)
    trust = ssl.create_default_context(cafile=str(certificate))
    with (
        socket.create_connection(listener.getsockname()) as plain,
        trust.wrap_socket(plain, server_hostname="localhost") as sent,
        path.open("rb") as file,
    ):
        while content := file.read(PIECE):
            sent.sendall(content)
    os.waitpid(child, 0)
    listener.close()


def yardstick(folder: Path, size_mib: int) -> dict[str, float]:
    """Return the seconds of each part of what any way to bring a file back must do."""
    made, copied = folder / "made", folder / "copied"
    with made.open("wb") as file:
        for _ in range(size_mib):
            file.write(os.urandom(PIECE))
    parts = {
        "cp": timed(lambda: subprocess.run(["cp", made, copied], check=True)),
        "sha256": timed(lambda: digest_of(copied)),
        "TLS": timed(lambda: send_by_tls(copied, folder)),
    }
    made.unlink()
    copied.unlink()
    return parts


def touch_memory(folder: Path, size_mib: int) -> None:
    """Write a file and delete it, so that what is measured finds memory that this machine has used before: that of a
    virtual machine costs its first writer seconds per GiB, whichever program that is."""
    path, content = folder / "touched", bytes(PIECE)
    with path.open("wb") as file:
        for _ in range(size_mib):
            file.write(content)
    path.unlink()


def submitted(stage: Stage, size_mib: int, outputs: str = "big") -> str:
    """Submit a job that leaves one file of random bytes; it prints their digest, and when it ended."""
    script = f"head -c {size_mib}M /dev/urandom > big; sha256sum < big; date +%s.%N"
    disk = f"{2 * size_mib + 512}MiB"
    options = ("--outputs", outputs, "--vcpus", "1", "--memory", "512MiB", "--disk", disk)
    return stage.hcloud("submit", "-y", "-q", *options, "--", "sh", "-c", script).split()[0]


def wait_for(stage: Stage, job: str) -> None:
    """Wait until a job has succeeded, however busy the machine is. Raises RuntimeError: it did not in time."""
    if not holds_within(lambda: stage.exit_code("wait", "--timeout", "60", job) == 0, PATIENCE_S, every_s=LOOK_S):
        raise RuntimeError(f"{job} has not succeeded: {stage.hcloud('explain', job)}")


def printed_by(stage: Stage, job: str) -> tuple[str, float]:
    """Return what the job printed: the digest, and when its program ended."""
    digest, _, at = stage.hcloud("logs", job).split()
    return digest, float(at)


def is_half_way(stage: Stage, job: str, size_mib: int) -> bool:
    """Return whether half of the outputs has arrived."""
    arrived = sum(path.stat().st_size for path in (stage.home / "outputs").glob(f"{job}.*.part"))
    return arrived >= size_mib * PIECE // 2


def kill_once(stage: Stage, job: str, reached: Callable[[], bool]) -> bool:
    """Kill daemon and agent with SIGKILL once ``reached``, and start the daemon; return whether that was half-way."""
    while not reached():
        if list((stage.home / "outputs").glob(f"{job}.*.json")):
            return False
        time.sleep(LOOK_S)
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with_it = process.read_bytes().split(b"\0") if process.exists() else []
        if b"hcloud.engine.link" in with_it and any(each.startswith(os.fsencode(stage.home)) for each in with_it):
            os.kill(int(process.parent.name), signal.SIGKILL)
    stage.kill("daemon")
    stage.start("daemon")
    stage.until_daemon_answers(60.0)
    return True


class Bucket:
    """A store of objects that jobs send outputs to."""

    def __init__(
        self, url: str, endpoint: str, read: Callable[[str], bytes], sign: Callable[[str, int, str], SignedUrl]
    ):
        """``url``: where jobs may write. ``read``: returns an object; ``sign``: by name, size and MD5, for a PUT."""
        self.url, self.endpoint, self.read, self.sign = url, endpoint, read, sign

    def put_s(self, content: Path) -> float:
        """Return how long MD5 and one PUT of a file take, in seconds."""

        def put() -> None:
            with content.open("rb") as file:
                digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            signed, target = self.sign("team/alone", content.stat().st_size, digest), urlsplit(self.endpoint)
            place = urlsplit(signed.url)
            connection = http.client.HTTPConnection(target.hostname or "", target.port, blocksize=PIECE)
            with content.open("rb") as file:
                headers = {"Content-Length": str(content.stat().st_size), **signed.headers}
                connection.request("PUT", f"{place.path}?{place.query}", body=file, headers=headers)
                if connection.getresponse().status != http.HTTPStatus.OK:
                    raise RuntimeError("the store refused the yardstick's PUT")

        return timed(put)


@contextmanager
def stores(folder: Path) -> Iterator[list[Bucket]]:
    """Serve S3 by moto and a small GCS, and make the daemons of this process's children know their credentials."""
    import boto3

    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_EC2_METADATA_DISABLED": "true"}
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    fake = FakeGcs({("bench", "here"): b""})
    with moto_s3() as s3, fake.serve() as gcs:
        account = folder / "account.json"
        account.write_text(json.dumps(fake.account() | {"type": "service_account", "project_id": "bench"}))
        os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(account)
        client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
        client.create_bucket(Bucket="bench")
        google, amazon = GcsStore(endpoint=gcs, make=fake.client), S3Client(endpoint=s3, region="us-east-1")
        yield [
            Bucket("s3://bench/team", s3, lambda name: client.get_object(Bucket="bench", Key=name)["Body"].read(),
                  lambda name, size, md5: amazon.sign_put("bench", name, size, md5, 3600.0)),
            Bucket("gs://bench/team", gcs, lambda name: fake.objects["bench", name],
                  lambda name, size, md5: google.sign_put("bench", name, size, md5, 3600.0)),
        ]  # fmt: skip


def allow(stage: Stage, to: Sequence[Bucket]) -> None:
    """Let jobs write to stores."""
    region = {"s3": ", region: us-east-1"}
    grants = ", ".join(
        f"{{url: '{each.url}', endpoint: '{each.endpoint}'{region.get(each.url.partition(':')[0], '')}}}" for each in to
    )
    config = stage.home / "config.yaml"
    config.write_text(config.read_text().replace("buckets: []", f"buckets: [{grants}]"))


def measure_store(stage: Stage, store: Bucket, folder: Path, size_mib: int, whole_s: float) -> list[Row]:
    """Return what the way to a store took beside ``whole_s``, and whether the bytes are right, killed half-way, too."""
    name, rows = store.url.partition(":")[0], list[Row]()
    job = submitted(stage, size_mib, f"big={store.url}/first")
    wait_for(stage, job)
    digest, ended_at = printed_by(stage, job)
    [kept] = (stage.home / "outputs").glob(f"{job}.*.json")
    arrived_s = kept.stat().st_mtime - ended_at
    content = store.read("team/first/big")
    right = hashlib.sha256(content).hexdigest() == digest
    (folder / "alone").write_bytes(content)
    put_s = store.put_s(folder / "alone")
    (folder / "alone").unlink()
    print(f"{name}://: from the program's end to the object {arrived_s:.2f} s; MD5 and one PUT {put_s:.2f} s")
    rows += [
        Row(name=f"machine to {name}://, beside cp + sha256 + TLS", value=whole_s / arrived_s, unit="x", target=0.5,
            better="higher"),
        Row(name=f"machine to {name}://, beside MD5 and one PUT", value=put_s / arrived_s, unit="x"),
        Row(name=f"bytes right in {name}://", value=float(right), unit="", target=1.0, better="higher"),
    ]  # fmt: skip
    job = submitted(stage, size_mib, f"big={store.url}/second")
    was_half_way = kill_once(stage, job, lambda: bool(list((stage.home / "outputs").glob(f"{job}.*.urls"))))
    wait_for(stage, job)
    right = hashlib.sha256(store.read("team/second/big")).hexdigest() == printed_by(stage, job)[0]
    words = f"bytes right in {name}:// after kill -9 of daemon and agent while it was sent"
    rows.append(Row(name=words, value=float(right and was_half_way), unit="", target=1.0, better="higher"))
    return rows


def main() -> int:
    """Measure; 1: slower than half of the yardstick, or not the bytes that the job wrote."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of the outputs")
    parser.add_argument("--times", type=int, default=3, help="of so many runs, each beside its yardstick, the median")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hcloud-outputs-"))
    print(machine())
    try:
        with stores(folder) as to:
            stage = Stage(folder / "home")
            try:
                stage.init(package_data.path("policies") / "default.yaml")
                allow(stage, to)
                stage.start("daemon")
                stage.until_daemon_answers(60.0)
                return measure(stage, folder, options.mib, options.times, to)
            finally:
                stage.take_down()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Run:
    """What bringing one job's outputs back took, and the yardstick right after it, in seconds."""

    arrived_s: float
    copy_s: float
    right: bool
    whole_s: float


def measure_once(stage: Stage, folder: Path, size_mib: int) -> Run:
    """Return what one job took, and print it."""
    touch_memory(folder, 4 * size_mib)
    job = submitted(stage, size_mib)
    wait_for(stage, job)
    digest, ended_at = printed_by(stage, job)
    [kept] = (stage.home / "outputs").glob(f"{job}.*.json")
    arrived_s = kept.stat().st_mtime - ended_at
    copy_s = timed(lambda: stage.hcloud("cp", job, str(folder / "first")))
    right = digest_of(folder / "first" / "big") == digest
    shutil.rmtree(folder / "first")
    parts = yardstick(folder, size_mib)
    print(f"{size_mib} MiB: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items()))
    print(f"from the program's end to the daemon's disk {arrived_s:.2f} s, hcloud cp {copy_s:.2f} s")
    return Run(arrived_s, copy_s, right, sum(parts.values()))


def measure(stage: Stage, folder: Path, size_mib: int, times: int, to: Sequence[Bucket]) -> int:
    """Measure on a running daemon, and print; return the exit code."""
    runs = [measure_once(stage, folder, size_mib) for _ in range(times)]
    whole_s = statistics.median(run.whole_s for run in runs)
    rows = [
        Row(name="machine to daemon, beside cp + sha256 + TLS", unit="x", target=0.5, better="higher",
            value=statistics.median(run.whole_s / run.arrived_s for run in runs)),
        Row(name="machine to user (with hcloud cp)", unit="x",
            value=statistics.median(run.whole_s / (run.arrived_s + run.copy_s) for run in runs)),
        Row(name="bytes right", value=float(all(run.right for run in runs)), unit="", target=1.0, better="higher"),
    ]  # fmt: skip
    job = submitted(stage, size_mib)
    was_half_way = kill_once(stage, job, lambda: is_half_way(stage, job, size_mib))
    wait_for(stage, job)
    stage.hcloud("cp", job, str(folder / "second"))
    right = digest_of(folder / "second" / "big") == printed_by(stage, job)[0]
    name = "bytes right after kill -9 of daemon and agent half-way"
    rows.append(Row(name=name, value=float(right and was_half_way), unit="", target=1.0, better="higher"))
    for store in to:
        rows += measure_store(stage, store, folder, size_mib, whole_s)
    for row in rows:
        print(row.line())
    return 1 if any(row.holds is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
