"""A latency service under real load: an HTTP server, its metrics, and clients in a process of their own.

Usage: service.py REQUESTS_PER_S SECONDS

The server answers /work (a digest of 32 KiB, several times over) and /metrics (a latency histogram in Prometheus text).
The clients keep to a schedule: a late answer does not delay the next request, and is counted from when it was due. With
each request they tell how long the one before took them, so the histogram holds what clients saw, waiting included.
"""

import asyncio
import bisect
import hashlib
import json
import sys
import time

from run_log import begin

PORT = 8000
CONNECTIONS = 8
BOUNDS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0)
CONTENT = bytes(32 << 10)
SEEN = b"X-Seen-Latency-S: "


class Server:
    """Answers requests, and counts what clients tell of their latencies into a histogram."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests of one connection until it is closed."""
        while request := await reader.readline():
            while header := (await reader.readline()).strip():
                if header.startswith(SEEN):
                    self.count(float(header[len(SEEN) :]))
            body = self.metrics().encode() if b" /metrics " in request else work() if b" /work " in request else b""
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            if b" /work " not in request:
                break
        writer.close()

    def count(self, latency_s: float) -> None:
        """Add one latency."""
        self.buckets[bisect.bisect_left(BOUNDS_S, latency_s)] += 1
        self.sum_s += latency_s

    def metrics(self) -> str:
        """The histogram as Prometheus reads it: each bucket counts everything up to its bound."""
        name, total, lines = "http_request_duration_seconds", 0, []
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return "\n".join([f"# TYPE {name} histogram", *lines, f"{name}_sum {self.sum_s}", f"{name}_count {total}", ""])


def work() -> bytes:
    """A millisecond or so of real work."""
    digest = b""
    for _ in range(8):
        digest = hashlib.sha256(CONTENT + digest).digest()
    return digest.hex().encode()


async def client(due_s: list[float], latencies_s: list[float]) -> None:
    """Send one request at each moment over one connection; at last tell how long the last one took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    seen = b""
    for moment_s in due_s:
        await asyncio.sleep(max(0.0, moment_s - time.monotonic()))
        writer.write(b"GET /work HTTP/1.1\r\nHost: service\r\n" + seen + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(64)
        latencies_s.append(time.monotonic() - moment_s)
        seen = SEEN + b"%.6f\r\n" % latencies_s[-1]
    writer.write(b"GET /bye HTTP/1.1\r\nHost: service\r\n" + seen + b"\r\n")
    await reader.read()
    writer.close()


async def load(rate: float, seconds: float) -> None:
    """Offer the rate over several connections; print what the clients saw."""
    begin_s, latencies_s = time.monotonic() + 0.5, list[float]()
    moments_s = [begin_s + number / rate for number in range(int(rate * seconds))]
    await asyncio.gather(*(client(moments_s[each::CONNECTIONS], latencies_s) for each in range(CONNECTIONS)))
    latencies_s.sort()
    seen = {f"p{part}": round(1000 * latencies_s[int(len(latencies_s) * part / 100)], 2) for part in (50, 95, 99)}
    print("clients: " + json.dumps({"requests": len(latencies_s), "latency_ms": seen}), flush=True)


async def main(rate: str, seconds: str) -> None:
    """Serve for as long as the clients load the server."""
    begin("service")
    server = Server()
    async with await asyncio.start_server(server.serve, "127.0.0.1", PORT):
        clients = await asyncio.create_subprocess_exec(sys.executable, __file__, rate, seconds, "clients")
        code = await clients.wait()
    print(f"server: {sum(server.buckets)} latencies told")
    if code or sum(server.buckets) != int(float(rate) * float(seconds)):
        sys.exit("not every request was answered")


if sys.argv[3:] == ["clients"]:
    asyncio.run(load(float(sys.argv[1]), float(sys.argv[2])))
else:
    asyncio.run(main(sys.argv[1], sys.argv[2]))
