"""A service's request rate and latency, read inside the service's own network: Prometheus text or a probe command.

The reading runs in a short-lived child with the unit's user, network and control group. It also takes the answer apart:
nothing that an untrusted service says is parsed by the keeper but one bounded line of JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import encodings.idna  # noqa: F401 encodes names of hosts; later on the unit's user may be unable to read it
import fcntl
import json
import math
import os
import re
import resource
import select
import signal
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hcloud.core.model import MetricsHook
from hcloud.engine.limits import Cgroup
from hcloud.engine.usage import descendants

READ_TIMEOUT_S = 10.0
EVERY_S_MIN = 0.1
"""Shortest time between two readings, whatever the job asks for."""
ANSWER_BYTES_MAX = 4 << 20
LINE_BYTES_MAX = 1 << 16
PERCENTILES_MAX = 32
READER_DATA_BYTES = 512 << 20
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
_READS_PER_STEP = 64
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_PROBE_NAMESPACES = {"ipc": _CLONE_NEWIPC, "uts": _CLONE_NEWUTS, "net": _CLONE_NEWNET, "pid": _CLONE_NEWPID}
_NS_GET_USERNS = 0xB701
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_libc = ctypes.CDLL(None, use_errno=True)
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_LATENCY = re.compile(r"(request|latency|response|rpc|http).*(seconds|milliseconds|ms)$|(latency|duration)")
_REQUESTS = re.compile(r"requests?(_count)?_total$|^http_requests$")

Samples = list[tuple[str, dict[str, str], float]]


class NotYet(OSError):
    """The unit's command does not run yet, or no longer."""


class MetricsReader:
    """Reads a hook again and again without ever blocking; ``latest`` is the last good reading.

    ``span`` is the time (monotonic seconds) that was made: for a URL since the scrape before.
    """

    def __init__(self, hook: MetricsHook, *, sandboxed: bool, group: Cgroup | None = None) -> None:
        """``sandboxed``: the unit has namespaces of its own; ``group``: its control group, which readings enter."""
        self._hook, self._sandboxed, self._group = hook, sandboxed, group
        self._every_s = max(EVERY_S_MIN, hook.every_s)
        self._child = 0
        self._pipe = -1
        self._answer = bytearray()
        self._next_at = time.monotonic() + min(1.0, self._every_s)
        self._before: tuple[float, bytes] | None = None
        self._begun_at = 0.0
        self.latest: dict[str, Any] = {}
        self.span = (0.0, 0.0)

    def step(self, first_process: int) -> None:
        """Begin a reading when one is due, or take in what the present one has answered."""
        now = time.monotonic()
        if self._pipe >= 0:
            self._collect(now)
        elif now >= self._next_at:
            self._next_at = now + self._every_s
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
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self._answer, self._pipe = bytearray(), reader
        self._child = os.fork()
        if self._child == 0:
            self._read_in_child(first_process, writer)
        os.close(writer)

    def _collect(self, now: float) -> None:
        for _ in range(_READS_PER_STEP):
            if not select.select([self._pipe], [], [], 0)[0]:
                break
            content = os.read(self._pipe, 1 << 16)
            if not content:
                self.close()
                self._take(now)
                return
            self._answer += content
            if len(self._answer) > ANSWER_BYTES_MAX + LINE_BYTES_MAX:
                self.close()
                return
        if now > self._next_at + READ_TIMEOUT_S:
            self.close()

    def _take(self, now: float) -> None:
        if self._hook.url is None:
            if found := parse_probe(bytes(self._answer)):
                self.latest, self.span = found, (self._begun_at, now)
            return
        line, newline, text = bytes(self._answer).partition(b"\n")
        if not newline:
            return
        found = parse_probe(line)
        if found is not None and self._before is not None:
            self.latest, self.span = found, (self._before[0], self._begun_at)
        self._before = (self._begun_at, text)

    def _read_in_child(self, first_process: int, writer: int) -> None:
        """In the child: become part of the unit, read, answer on ``writer``. Never returns."""
        code = 1
        try:
            os.dup2(writer, 1)
            os.dup2(os.open("/dev/null", os.O_RDWR), 2)
            signal.alarm(int(READ_TIMEOUT_S))
            with contextlib.suppress(PermissionError):
                Path("/proc/self/oom_score_adj").write_text("1000")
            if self._group is not None:
                self._group.enter()
            if self._hook.url is not None:
                _join_network(first_process, self._sandboxed)
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
                # What this process, a copy of the keeper, holds already counts too.
                most = _data_bytes() + READER_DATA_BYTES
                resource.setrlimit(resource.RLIMIT_DATA, (most, most))
                text = _fetch(self._hook.url)
                _write_all(_measured(self._before, text, self._begun_at) + b"\n" + text)
            elif self._hook.probe is not None:
                _become_probe(self._hook.probe, first_process, self._sandboxed)
            code = 0
        finally:
            os._exit(code)


class CollectingReader(MetricsReader):
    """Collects its own children, where no keeper does."""

    def close(self) -> None:
        """End a reading in progress."""
        reading = self._pipe >= 0
        super().close()
        if reading:
            os.waitpid(self._child, 0)


def _data_bytes() -> int:
    """Return how much writable memory this process has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * resource.getpagesize()


def _measured(before: tuple[float, bytes] | None, text: bytes, at: float) -> bytes:
    """Return the JSON of what happened between two answers of a service. Raises ValueError: this one says nothing."""
    samples = parse_prometheus(text.decode(errors="replace"))
    if not samples:
        raise ValueError("no sample")
    if before is None:
        return b""
    found = rate_and_latency(parse_prometheus(before[1].decode(errors="replace")), samples, at - before[0])
    return json.dumps(found).encode()


def parse_probe(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object in the last line, reduced to the two keys we know; None when it is not one.

    Nothing is taken of a line that is too long, or whose numbers are negative or not finite.
    """
    lines = content[-LINE_BYTES_MAX:].strip().splitlines()
    try:
        plain = json.loads(lines[-1])
        latency = {str(name)[:16]: float(value) for name, value in plain.get("latency_ms", {}).items()}
        rate = plain.get("requests_per_s")
        found = {"requests_per_s": float(rate) if rate is not None else None, "latency_ms": latency}
    except (IndexError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    numbers = [*latency.values(), *([] if rate is None else [float(rate)])]
    is_sensible = len(latency) <= PERCENTILES_MAX and all(math.isfinite(each) and each >= 0 for each in numbers)
    return found if is_sensible else None


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
            with contextlib.suppress(ValueError):
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


def _fetch(url: str) -> bytes:
    """Return what is at a http or https address itself: no redirect, proxy or other kind of address is followed."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
    ):
        opener.add_handler(handler())
    answer = opener.open(url, timeout=READ_TIMEOUT_S)
    if answer is None:
        raise ValueError(f"{url!r} is not an http address")
    with answer:
        content: bytes = answer.read(ANSWER_BYTES_MAX)
        return content


def _write_all(content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(1, view) :]


class _Inside:
    """A process of the unit's command, held by its namespaces, which last while another process takes its number."""

    def __init__(self, first_process: int, sandboxed: bool) -> None:
        """Raises NotYet: the command does not run, or still has rights or namespaces that are not the job's."""
        self.pid = _innermost(first_process)
        folder = Path(f"/proc/{self.pid}")
        self.directory = os.open(folder / "cwd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        names = ("mnt", "user", *_PROBE_NAMESPACES)
        self.handles = {name: os.open(folder / "ns" / name, os.O_RDONLY | os.O_CLOEXEC) for name in names}
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        self.environment = dict(
            part.split("=", 1)
            for part in (folder / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
            if "=" in part
        )
        users, groups = ({int(word) for word in status[name].split()} for name in ("Uid", "Gid"))
        self.uid, self.gid = max(users), max(groups)
        if os.geteuid() == 0 and (len(users) > 1 or len(groups) > 1 or not self.uid or not self.gid):
            raise NotYet("it still has other rights than the job's")
        if sandboxed and self.is_ours("mnt"):
            raise NotYet("it is not in its sandbox yet")
        if self.pid not in descendants(first_process) | {first_process}:
            raise NotYet("it has ended")

    def is_ours(self, name: str) -> bool:
        """Return whether its namespace of this kind is the one of this process."""
        ours = os.stat(f"/proc/self/ns/{name}")
        return os.path.samestat(os.fstat(self.handles[name]), ours)

    def join(self, name: str, kind: int) -> None:
        """Enter one of its namespaces, unless this process is in it."""
        if not self.is_ours(name):
            _set_namespace(self.handles[name], kind)

    def become_user(self) -> None:
        """Give up root, and any way to more rights, for good."""
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _join_network(first_process: int, sandboxed: bool) -> None:
    """Become the unit's user in its network, through the user namespace that owns it where we are not root."""
    inside = _Inside(first_process, sandboxed)
    if not inside.is_ours("net"):
        if os.geteuid() != 0:
            _enter_owner(inside.handles["net"])
            _set_namespace(inside.handles["net"], _CLONE_NEWNET)
            return
        inside.join("net", _CLONE_NEWNET)
    inside.become_user()


def _enter_owner(namespace: int) -> None:
    """Enter the user namespace that owns a namespace.

    It is not the one its processes are in: bubblewrap gives those a further one, without rights over what it set up.
    """
    _set_namespace(fcntl.ioctl(namespace, _NS_GET_USERNS), _CLONE_NEWUSER)


def _set_namespace(handle: int, kind: int) -> None:
    if _libc.setns(handle, kind) != 0:
        raise OSError(ctypes.get_errno(), f"setns {kind:#x}")


def _become_probe(probe: tuple[str, ...], first_process: int, sandboxed: bool) -> None:
    """Run the probe command with the unit's own namespaces, root, user, groups and environment, until it ends."""
    inside = _Inside(first_process, sandboxed)
    nested = os.geteuid() != 0 and not inside.is_ours("mnt")
    if nested:  # all but the last step with the rights of the namespaces' owner; the last one gives them up
        _enter_owner(inside.handles["mnt"])
    for name, kind in _PROBE_NAMESPACES.items():
        inside.join(name, kind)
    inside.join("mnt", _CLONE_NEWNS)
    os.fchdir(inside.directory)
    if nested:
        _set_namespace(inside.handles["user"], _CLONE_NEWUSER)
    child = os.fork()  # a new process only is in the other process namespace
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) and 1)
    inside.become_user()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for folder in inside.environment.get("PATH", os.defpath).split(":") if "/" not in probe[0] else [""]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            os.execve(f"{folder}/{probe[0]}" if folder else probe[0], probe, inside.environment)
