"""The real server: its socket's mode and owner at every moment, who is at the other end, and what stands in the way."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import httpx2
import pytest

from hcloud.api.server import AlreadyServing, ApiServer, open_unix_socket
from hcloud.client.connection import Connection, Endpoint
from hcloud.config import ApiSettings
from hcloud.core.clock import ManualClock
from hcloud.core.errors import ConfigError, DaemonUnreachable
from tests.api.certificates import write_certificate
from tests.api.deployment import Deployment, job
from tests.machine import needs_root
from tests.waiting import wait_until

NOBODY = 65534
PATIENCE_S = 60.0
# Becomes another user once Python is there: the interpreter itself may lie where only root can read.
ASK = """
import os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[6])); os.setuid(int(sys.argv[5]))
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
body = sys.argv[4].encode()
head = f"{sys.argv[2]} {sys.argv[3]} HTTP/1.1\\r\\nHost: x\\r\\nContent-Type: application/json\\r\\n"
s.sendall(f"{head}Content-Length: {len(body)}\\r\\nConnection: close\\r\\n\\r\\n".encode() + body)
answer = b""
while piece := s.recv(65536): answer += piece
print(answer.split(b"\\r\\n\\r\\n", 1)[1].decode())
"""


def _over(server: ApiServer) -> httpx2.Client:
    return httpx2.Client(transport=httpx2.HTTPTransport(uds=str(server.socket_path)), base_url="http://hcloud")


def _ask_as(uid: int, gid: int, server: ApiServer, method: str, path: str, body: object = None) -> object:
    words = [str(server.socket_path), method, path, json.dumps(body), str(uid), str(gid)]
    done = subprocess.run([sys.executable, "-I", "-c", ASK, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_kernel_says_who_is_at_the_other_end(deployment: Deployment) -> None:
    with deployment.served() as server, _over(server) as client:
        shown = client.get("/v1/status").json()
    assert shown["role"] == "admin"
    assert os.geteuid() != 0 or shown["you"] == "root"


@needs_root
def test_another_user_of_the_group_comes_in_under_their_own_name(deployment: Deployment) -> None:
    with deployment.served(socket_group="nogroup") as server:
        shown = _ask_as(NOBODY, NOBODY, server, "GET", "/v1/status")
        submitted = _ask_as(NOBODY, NOBODY, server, "POST", "/v1/jobs", [job()])
        refused = _ask_as(NOBODY, NOBODY, server, "POST", "/v1/pause", {})
    assert isinstance(shown, dict)
    assert isinstance(refused, dict)
    assert (shown["you"], shown["role"]) == ("nobody", "submitter")
    assert submitted
    assert deployment.store.job("job-1").spec.user == "nobody"
    assert refused["error"]["code"] == "forbidden"


@needs_root
def test_a_user_outside_the_group_is_kept_out_by_the_kernel(deployment: Deployment) -> None:
    with deployment.served() as server, pytest.raises(AssertionError, match="PermissionError"):
        _ask_as(NOBODY, NOBODY, server, "GET", "/v1/status")


def test_the_socket_has_its_mode_and_goes_away_at_the_end(deployment: Deployment) -> None:
    with deployment.served(socket_mode="0600") as server:
        assert stat.S_IMODE(server.socket_path.stat().st_mode) == 0o600
        assert server.alive
        path = server.socket_path
    assert not path.exists()
    assert [entry.name for entry in path.parent.iterdir()] == ["hcloud.sock.lock"]


class _Watch:
    """Looks at the path's mode at every step that Python audits. (An audit hook cannot be removed, only idle.)"""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.seen: set[int] = set()
        sys.addaudithook(self._look)

    def _look(self, event: str, arguments: object) -> None:
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.seen.add(stat.S_IMODE(os.lstat(self.path).st_mode))


_watch = _Watch()


def _modes_seen(path: Path, opening: Callable[[], socket.socket]) -> set[int]:
    umask = os.umask(0)
    _watch.seen.clear()
    _watch.path = path
    try:
        opening().close()
        _watch.seen.add(stat.S_IMODE(os.lstat(path).st_mode))
    finally:
        _watch.path = None
        os.umask(umask)
    return set(_watch.seen)


def test_the_socket_never_has_a_wider_mode_whatever_the_umask(home: Path) -> None:
    path = home / "s.sock"
    assert _modes_seen(path, lambda: open_unix_socket(path, ApiSettings())) == {0o660}


def test_the_check_of_modes_sees_a_socket_made_first_and_narrowed_later(home: Path) -> None:
    def careless() -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(home / "s.sock"))
        (home / "s.sock").chmod(0o660)
        return listener

    assert 0o777 in _modes_seen(home / "s.sock", careless)


def test_the_socket_of_a_killed_daemon_is_replaced(deployment: Deployment) -> None:
    path = deployment.config().socket_path
    path.parent.mkdir()
    code = "import socket, sys, os, signal; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); " \
        "os.kill(os.getpid(), signal.SIGKILL)"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -signal.SIGKILL
    assert path.exists()
    with deployment.served() as server, _over(server) as client:
        assert client.get("/healthz").text == "ok\n"


def test_the_socket_of_a_live_daemon_is_left_alone(deployment: Deployment) -> None:
    with deployment.served() as server:
        with pytest.raises(AlreadyServing, match="another daemon serves"), deployment.served():
            pass
        with _over(server) as client:
            assert client.get("/healthz").text == "ok\n"


def test_a_file_in_the_way_is_left_alone(deployment: Deployment) -> None:
    path = deployment.config().socket_path
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(ConfigError, match="is not a socket"), deployment.served():
        pass
    assert path.read_text() == "precious"
    path.unlink()
    with deployment.served() as server:  # and the failed start has let go of its lock
        assert server.alive


def test_an_unknown_group_is_refused_by_name(deployment: Deployment) -> None:
    with (
        pytest.raises(ConfigError, match="group 'frobnicators' does not exist"),
        deployment.served(socket_group="frobnicators"),
    ):
        pass


@pytest.fixture
def tcp(home: Path) -> dict[str, str]:
    """Settings of a TCP door on a free port of the loopback."""
    write_certificate(home / "cert.pem", home / "key.pem")
    (home / "tokens").write_text(f"ada:{sha256(b'secret').hexdigest()}:submitter\n")
    (home / "tokens").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {
        "listen": f"127.0.0.1:{port}",
        "certificate": str(home / "cert.pem"),
        "key": str(home / "key.pem"),
        "tokens_file": str(home / "tokens"),
    }


def test_tcp_speaks_only_tls_and_only_to_tokens(deployment: Deployment, home: Path, tcp: dict[str, str]) -> None:
    trusted = ssl.create_default_context(cafile=str(home / "cert.pem"))
    with deployment.served(tcp=tcp) as server:
        assert server.tcp_address is not None
        url = f"https://127.0.0.1:{server.tcp_address[1]}"
        with httpx2.Client(base_url=url, verify=trusted, trust_env=False) as client:
            assert client.get("/v1/status").status_code == 401
            assert client.get("/v1/status", headers={"Authorization": "Bearer wrong"}).status_code == 401
            shown = client.get("/v1/status", headers={"Authorization": "Bearer secret"}).json()
            assert (shown["you"], shown["role"]) == ("ada", "submitter")
        with pytest.raises(httpx2.TransportError):
            httpx2.get(url.replace("https", "http") + "/healthz", trust_env=False)
        with _over(server) as local:  # a token means nothing on the socket, where the kernel knows better
            assert local.get("/v1/status", headers={"Authorization": "Bearer secret"}).json()["you"] != "ada"


@pytest.mark.parametrize("missing", ["certificate", "key", "tokens_file"])
def test_tcp_refuses_to_start_without_certificate_key_or_tokens(
    deployment: Deployment, tcp: dict[str, str], missing: str
) -> None:
    Path(tcp[missing]).unlink()
    with pytest.raises(ConfigError), deployment.served(tcp=tcp):
        pass
    assert not deployment.config().socket_path.exists()


def test_stopping_does_not_wait_for_those_who_wait(deployment: Deployment) -> None:
    deployment.cycle()
    with deployment.served() as server, _over(server) as client:
        client.post("/v1/jobs", json=[job()])
        asking = threading.Thread(target=_wait_long, args=(server,))
        asking.start()
        wait_until(lambda: _connections(server) >= 2, timeout_s=60)
        server.stop()
        assert not server.alive
    asking.join()


def _wait_long(server: ApiServer) -> None:
    with contextlib.suppress(httpx2.TransportError), _over(server) as client:
        client.get("/v1/jobs/job-1", params={"wait_s": 30}, timeout=60)


def _connections(server: ApiServer) -> int:
    return sum(len(uvicorn.server_state.connections) for uvicorn, _ in server._listeners)


def test_a_socket_that_was_deleted_is_opened_again(deployment: Deployment) -> None:
    with deployment.served() as server:
        mode = server.socket_path.stat().st_mode
        server.socket_path.unlink()
        wait_until(server.socket_path.exists, 60)
        with _over(server) as client:
            assert client.get("/v1/status").status_code == 200
        assert server.socket_path.stat().st_mode == mode
        assert server.alive
    assert not server.socket_path.exists()


def test_a_directory_that_was_deleted_is_made_again_and_held(deployment: Deployment) -> None:
    with deployment.served() as server:
        shutil.rmtree(server.socket_path.parent)
        wait_until(server.socket_path.exists, 60)
        with _over(server) as client:
            assert client.get("/v1/status").status_code == 200
        with pytest.raises(AlreadyServing), deployment.served():
            pass


def test_who_comes_back_to_a_deleted_directory_too_late_ends(deployment: Deployment) -> None:
    with deployment.served() as server:
        lock = server.socket_path.with_name(server.socket_path.name + ".lock")
        lock.unlink()
        with lock.open("w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            wait_until(lambda: not server.alive, 60)


def test_a_certificate_that_is_not_trusted_is_named_and_not_tried_again(
    deployment: Deployment, home: Path, tcp: dict[str, str]
) -> None:
    with deployment.served(tcp=tcp) as server:
        host, port = server.tcp_address or ("", 0)
        clock = ManualClock(0.0)
        with pytest.raises(DaemonUnreachable, match=rf"certificate of https://{host}:{port} is refused \(self.signed"):
            Connection(Endpoint(url=f"https://{host}:{port}", token="t"), clock).get("/v1/status")
        trusted = Endpoint(url=f"https://localhost:{port}", token="t", ca_file=str(home / "cert.pem"))
        with pytest.raises(DaemonUnreachable, match=r"refused .*Hostname mismatch.*signed by HCLOUD_CA_FILE"):
            Connection(trusted, clock).get("/v1/status")
    assert clock.now() == 0.0


def test_an_event_loop_that_takes_up_no_work_does_not_respond(deployment: Deployment) -> None:
    with deployment.served() as server:
        assert server.responds(PATIENCE_S)
        frozen, thawed = threading.Event(), threading.Event()

        def freeze() -> None:
            frozen.set()
            thawed.wait(PATIENCE_S)

        assert server._event_loop is not None
        server._event_loop.call_soon_threadsafe(freeze)
        try:
            assert frozen.wait(PATIENCE_S)
            assert not server.responds(0.01)
        finally:
            thawed.set()
        assert server.responds(PATIENCE_S)
    assert not server.responds(PATIENCE_S)
