"""Reading a service's metrics inside its sandbox, as an ordinary user: bubblewrap nests user namespaces there."""

import mmap
import os
import subprocess
from typing import Any

from hcloud.core.model import MetricsHook
from hcloud.engine.metrics import READER_DATA_BYTES, MetricsReader
from tests.machine import BWRAP, needs
from tests.other_user import NOBODY, as_ordinary_user
from tests.waiting import wait_until

SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    count = 0
    def do_GET(self):
        Handler.count += 10
        self.send_response(200); self.end_headers()
        self.wfile.write(b"http_requests_total %d\\n" % Handler.count)
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
PROBE = """test "$(id -u)" = 65534 && ! grep -q 'CapEff:.*[1-9a-f]' /proc/self/status && \
echo '{"requests_per_s": 3, "latency_ms": {"99": 4}}'"""
pytestmark = needs(BWRAP and os.path.exists("/usr/bin/python3"), "needs bubblewrap and a system Python")


def read_in_sandbox(hook: MetricsHook) -> dict[str, Any]:
    """Run the server as the engine runs units, and read it until there is an answer."""
    trees = [word for tree in ("/usr", "/bin", "/lib", "/lib64") for word in ("--ro-bind-try", tree, tree)]
    spaces = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--die-with-parent"]
    user = ["--uid", str(NOBODY), "--gid", str(NOBODY)]
    command = ["bwrap", *spaces, *user, *trees, "--proc", "/proc", "--dev", "/dev", "/usr/bin/python3", "-c", SERVER]
    sandbox = subprocess.Popen(command, cwd="/")
    reader = MetricsReader(hook, sandboxed=True)

    def latest() -> dict[str, Any]:
        reader.step(sandbox.pid)
        return reader.latest

    try:
        return wait_until(latest, 60)
    finally:
        reader.close()
        sandbox.kill()
        sandbox.wait()


def test_url_is_read_in_the_services_own_network() -> None:
    hook = MetricsHook(url="http://127.0.0.1:8000/metrics", every_s=0.2)
    assert as_ordinary_user(lambda: read_in_sandbox(hook))["requests_per_s"] > 0


def test_url_is_read_by_a_keeper_that_holds_much_memory() -> None:
    hook = MetricsHook(url="http://127.0.0.1:8000/metrics", every_s=0.2)
    with mmap.mmap(-1, READER_DATA_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        assert as_ordinary_user(lambda: read_in_sandbox(hook))["requests_per_s"] > 0


def test_probe_runs_in_the_sandbox_without_rights_over_it() -> None:
    hook = MetricsHook(probe=("/bin/sh", "-c", PROBE), every_s=0.2)
    assert as_ordinary_user(lambda: read_in_sandbox(hook)) == {"requests_per_s": 3.0, "latency_ms": {"99": 4.0}}
