"""A service's request rate and latency, read inside the service's own network: Prometheus text or a probe command.

The reading runs in a short-lived child that has joined the unit's namespaces, so that what an untrusted service answers
never reaches the keeper as anything but one bounded line of JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import math
import os
import re
import resource
import select
import shutil
import signal
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hcloud.core.model import MetricsHook
from hcloud.engine.usage import descendants

READ_TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 4 << 20
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_NS_GET_USERNS = 0xB701
_libc = ctypes.CDLL(None, use_errno=True)
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_LATENCY = re.compile(r"(request|latency|response|rpc|http).*(seconds|milliseconds|ms)$|(latency|duration)")
_REQUESTS = re.compile(r"requests?(_count)?_total$|^http_requests$")

Samples = list[tuple[str, dict[str, str], float]]


class MetricsReader:
    """Reads a hook again and again without ever blocking; ``latest`` is the last good reading.

    ``span`` is the time (monotonic seconds) that was made: for a URL since the scrape before.
    """

    def __init__(self, hook: MetricsHook) -> None:
        self._hook = hook
        self._child = 0
        self._pipe = -1
        self._answer = b""
        self._next_at = time.monotonic() + min(1.0, hook.every_s)
        self._before: tuple[float, Samples] | None = None
        self._begun_at = 0.0
        self.latest: dict[str, Any] = {}
        self.span = (0.0, 0.0)

    def step(self, first_process: int) -> None:
        """Begin a reading when one is due, or take in what the present one has answered."""
        now = time.monotonic()
        if self._pipe >= 0:
            self._collect(now)
        elif now >= self._next_at:
            self._next_at = now + self._hook.every_s
            self._begun_at = now
            self._begin(first_process)

    def close(self) -> None:
        """End a reading in progress. Its process is collected by the keeper."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)

    def _begin(self, first_process: int) -> None:
        target = _innermost(first_process)
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self._answer, self._pipe = b"", reader
        self._child = os.fork()
        if self._child == 0:
            _read_in_child(self._hook, target, writer)
        os.close(writer)

    def _collect(self, now: float) -> None:
        while select.select([self._pipe], [], [], 0)[0]:
            content = os.read(self._pipe, 1 << 16)
            if not content:
                self.close()
                self._take(now)
                return
            self._answer = (self._answer + content)[:ANSWER_BYTES_MAX]
        if now > self._next_at + READ_TIMEOUT_S:
            self.close()

    def _take(self, now: float) -> None:
        text = self._answer.decode(errors="replace")
        if self._hook.url is None:
            if found := parse_probe(text):
                self.latest, self.span = found, (self._begun_at, now)
            return
        samples = parse_prometheus(text)
        if samples and self._before is not None:
            self.latest = rate_and_latency(self._before[1], samples, now - self._before[0])
            self.span = (self._before[0], now)
        self._before = (now, samples) if samples else self._before


def parse_probe(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a probe's last line, reduced to the two keys we know; None when it is not one."""
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        plain = json.loads(lines[-1])
        latency = {str(name): float(value) for name, value in plain.get("latency_ms", {}).items()}
        rate = plain.get("requests_per_s")
        return {"requests_per_s": float(rate) if rate is not None else None, "latency_ms": latency}
    except (IndexError, ValueError, TypeError, AttributeError):
        return None


def parse_prometheus(text: str) -> Samples:
    """Return (name, labels, value) of every sample line of the Prometheus text format."""
    found: Samples = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        with contextlib.suppress(ValueError):
            found.append((match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])))
    return found


def rate_and_latency(before: Samples, after: Samples, seconds: float) -> dict[str, Any]:
    """Return the request rate and latency percentiles of the span between two readings.

    Latency: the first histogram (``*_bucket``) with requests or latency in its name, interpolated as Prometheus
    does, else a summary's quantiles as they are. Rate: that family's ``_count``, else a ``*_requests_total`` counter.
    """
    old = {(name, tuple(sorted(labels.items()))): value for name, labels, value in before}
    grown = [
        (name, labels, value - old.get((name, tuple(sorted(labels.items()))), 0.0)) for name, labels, value in after
    ]
    families = [
        name.removesuffix("_bucket") for name, labels, _ in after if name.endswith("_bucket") and "le" in labels
    ]
    families += [name for name, labels, _ in after if "quantile" in labels]
    family = next((name for name in families if _LATENCY.search(name)), None)
    counts = [rise for name, _, rise in grown if family is not None and name == f"{family}_count"]
    counts = counts or [rise for name, _, rise in grown if _REQUESTS.search(name)]
    rate = max(0.0, sum(counts)) / seconds if counts and seconds > 0 else None
    return {"requests_per_s": rate, "latency_ms": _percentiles(family, grown, after) if family else {}}


def _percentiles(family: str, grown: Samples, after: Samples) -> dict[str, float]:
    scale = 1.0 if re.search(r"(milliseconds|_ms)$", family) else 1000.0
    buckets: dict[float, float] = {}
    for name, labels, rise in grown:
        if name == f"{family}_bucket" and "le" in labels:
            bound = float(labels["le"])
            buckets[bound] = buckets.get(bound, 0.0) + rise
    if buckets:
        found = {percentile: histogram_quantile(percentile / 100, buckets) for percentile in PERCENTILES}
        return {f"{percentile:g}": value * scale for percentile, value in found.items() if value is not None}
    summary = [each for each in after if each[0] == family and "quantile" in each[1]]
    quantiles = [(float(labels["quantile"]), value) for _, labels, value in summary]
    return {f"{quantile * 100:g}": value * scale for quantile, value in quantiles if not math.isnan(value)}


def histogram_quantile(quantile: float, buckets: Mapping[float, float]) -> float | None:
    """Return a quantile of cumulative bucket counts by upper bound, linear within a bucket; None if empty."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]]
    if total <= 0:
        return None
    wanted, lower, below = quantile * total, 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted:
            if math.isinf(bound):
                return lower
            inside = buckets[bound] - below
            return lower + (bound - lower) * ((wanted - below) / inside if inside > 0 else 1.0)
        lower, below = bound, buckets[bound]
    return lower


def _innermost(first_process: int) -> int:
    """Return a process inside the sandbox: not its first one; the command itself where there is no sandbox."""
    below = descendants(first_process)
    return min(below - descendants(first_process, depth=1), default=min(below, default=first_process))


def _read_in_child(hook: MetricsHook, target: int, writer: int) -> None:
    """In the child: join the unit's namespaces, read, answer on ``writer``. Never returns."""
    code = 1
    try:
        os.dup2(writer, 1)
        os.dup2(os.open("/dev/null", os.O_RDWR), 2)
        signal.alarm(int(READ_TIMEOUT_S))
        if hook.url is not None:
            _join_network(target)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            _fetch(hook.url)
        elif hook.probe is not None:
            _become_probe(hook.probe, target)
        code = 0
    except (OSError, ValueError):
        code = 1
    finally:
        os._exit(code)


def _fetch(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is not an http address")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=READ_TIMEOUT_S) as answer:
        os.write(1, b"")
        _write_all(answer.read(ANSWER_BYTES_MAX))


def _write_all(content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(1, view) :]


def _join_network(target: int) -> None:
    """Enter the network namespace of ``target``, through the user namespace that owns it where we are not root."""
    path = f"/proc/{target}/ns/net"
    if os.stat(path).st_ino == os.stat("/proc/self/ns/net").st_ino:
        return
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if os.geteuid() != 0:
        _enter_owner(handle)
    _set_namespace(handle, _CLONE_NEWNET)


def _enter_owner(namespace: int) -> None:
    """Enter the user namespace that owns a namespace.

    It is not the one its processes are in: bubblewrap gives those a further one, without rights over what it set up.
    """
    owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
    _set_namespace(owner, _CLONE_NEWUSER)


def _set_namespace(handle: int, kind: int) -> None:
    if _libc.setns(handle, kind) != 0:
        raise OSError(ctypes.get_errno(), f"setns {kind:#x}")
    os.close(handle)


def _become_probe(probe: tuple[str, ...], target: int) -> None:
    """Turn into the probe command with the unit's own namespaces, root, user, groups and environment."""
    status = Path(f"/proc/{target}/status").read_text().splitlines()
    uid = next(line.split()[1] for line in status if line.startswith("Uid:"))
    environment = dict(
        part.split("=", 1) for part in Path(f"/proc/{target}/environ").read_text().split("\0") if "=" in part
    )
    nsenter = shutil.which("nsenter") or "/usr/bin/nsenter"
    arguments = [nsenter, "-t", str(target), "-m", "-i", "-u", "-n", "-p", "-w"]
    if os.geteuid() == 0:
        arguments += ["-S", uid, "-G", uid]
    elif os.stat(f"/proc/{target}/ns/mnt").st_ino != os.stat("/proc/self/ns/mnt").st_ino:
        # All but the last step with the rights of the namespaces' owner; the last one gives them up.
        inner = os.open(f"/proc/{target}/ns/user", os.O_RDONLY)
        os.set_inheritable(inner, True)
        _enter_owner(os.open(f"/proc/{target}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
        arguments += ["--", "/usr/bin/nsenter", f"--user=/proc/self/fd/{inner}", "--preserve-credentials"]
    os.execve(nsenter, [*arguments, "--", *probe], environment)
