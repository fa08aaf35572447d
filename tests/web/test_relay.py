"""``hcloud web``: who gets through to the daemon's socket, and what is passed on."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from hcloud.web.pages import WebPages
from hcloud.web.relay import DaemonAddress, WebRelay
from tests.cli.conftest import Shell
from tests.web.conftest import Site, form_token, serving

PORT = 8470
ADDRESS = f"http://127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def relay_site() -> Iterator[tuple[Site, Path]]:
    """Pages on a real socket."""
    with serving() as site, site.deployment.served(pages=WebPages()) as server:
        yield site, server.socket_path


@pytest.fixture
def relay(relay_site: tuple[Site, Path]) -> WebRelay:
    """A relay that nobody has opened yet."""
    return WebRelay(DaemonAddress(socket=relay_site[1]), PORT)


def browser(relay: WebRelay, address: str = ADDRESS) -> TestClient:
    return TestClient(relay, base_url=address, follow_redirects=False)


def opened(relay: WebRelay) -> TestClient:
    """A browser that opened the address that was printed."""
    made = browser(relay)
    answer = made.get(relay.start_url)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    return made


def test_the_address_opens_the_pages_once(relay: WebRelay) -> None:
    first, second = browser(relay), browser(relay)
    assert first.get("/").status_code == 401
    answer = first.get(relay.start_url)
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert first.get("/").status_code == 200
    assert first.get(relay.start_url).headers["location"] == "/"
    again = second.get(relay.start_url)
    assert (again.status_code, "used already" in again.text) == (401, True)
    assert second.get("/").status_code == 401


def test_a_guessed_address_opens_nothing_and_uses_nothing_up(relay: WebRelay) -> None:
    stranger = browser(relay)
    for query in ("", "?token=", "?token=guessed", "?token=%00"):
        assert stranger.get(f"/start{query}").status_code == 401
    assert opened(relay).get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.test", "evil.test:8470", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:8470", ""])
def test_another_name_for_the_address_opens_nothing(relay: WebRelay, host: str) -> None:
    reader = opened(relay)
    assert reader.get("/", headers={"Host": host}).status_code == 421
    assert browser(relay).get(relay.start_url, headers={"Host": host}).status_code == 421


def test_pages_are_those_of_the_caller_on_the_socket(relay: WebRelay) -> None:
    page = opened(relay).get("/jobs")
    assert (page.status_code, "<bdi>root</bdi>" in page.text) == (200, True)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "Log out" not in page.text


def test_only_pages_are_passed_on(relay: WebRelay) -> None:
    reader = opened(relay)
    for path in ("/v1/jobs", "/metrics", "/openapi.json", "/healthz", "/login", "/jobs/%2e%2e/v1/jobs"):
        assert reader.get(path).status_code in (404, 421), path


def test_a_form_reaches_the_daemon_from_its_own_page_only(relay: WebRelay, relay_site: tuple[Site, Path]) -> None:
    made = relay_site[0].submitted("root")
    reader = opened(relay)
    token, path = form_token(reader.get(f"/jobs/{made}").text), f"/jobs/{made}/cancel"
    assert reader.post(path, data={}).status_code == 403
    assert reader.post(path, data={"form_token": token}, headers={"Origin": "http://evil.test"}).status_code == 403
    assert reader.post(path, data={"form_token": token, "more": "x" * 20_000}).status_code == 413
    other = WebRelay(relay.daemon, PORT)
    foreign = form_token(opened(other).get(f"/jobs/{made}").text)
    assert reader.post(path, data={"form_token": foreign}).status_code == 403
    answer = reader.post(path, data={"form_token": token}, headers={"Origin": ADDRESS})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{made}")
    assert relay_site[0].deployment.store.job(made).cancelled_by == "root"


def test_a_daemon_that_is_away_is_said_to_be(relay: WebRelay, tmp_path: Path) -> None:
    reader = opened(relay)
    relay.daemon = DaemonAddress(socket=tmp_path / "none.sock")
    answer = reader.get("/")
    assert (answer.status_code, "does not answer" in answer.text) == (503, True)


def test_wrong_input_of_the_command_is_refused_with_a_reason(tmp_path: Path, relay_site: tuple[Site, Path]) -> None:
    shell = Shell(
        tmp_path, {"HCLOUD_SOCKET": str(tmp_path / "none.sock")}, {"hcloud.client.connection.PATIENCE_S": 0.0}
    )
    assert "no daemon answers" in shell.run("web", exit_code=3)[1]
    assert "--port" in shell.run("web", "--port", "70000", exit_code=2)[1]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1])
        err = shell.run("web", "--port", number, exit_code=2, HCLOUD_SOCKET=str(relay_site[1]))[1]
    assert f"--port {number}: cannot listen on 127.0.0.1" in err


class WatchedPages(WebPages):
    """Pages that note which of them are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def covers(self, path: str) -> bool:
        """Note a path of theirs."""
        found = super().covers(path)
        self.asked += [path] if found else []
        return found


def test_each_page_is_made_once_before_the_address_is_printed(tmp_path: Path) -> None:
    pages = WatchedPages()
    with serving() as site, site.deployment.served(pages=pages) as server:
        environment = {"HCLOUD_SOCKET": str(server.socket_path), "PYTHONUNBUFFERED": "1"}
        with Shell(tmp_path, environment).start("web") as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("open http://127.0.0.1:")
            made = list(pages.asked)
            process.terminate()
    assert list(dict.fromkeys(made)) == ["/", "/jobs", "/machines", "/applications", "/money"]
