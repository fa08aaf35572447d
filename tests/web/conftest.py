"""A deployment with pages: browsers at its TLS port, and at its socket."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hcloud.api import build_app
from hcloud.api.tokens import TokenFile
from hcloud.web.pages import WebPages
from tests.api.deployment import Deployment

ROLES = {"root": "admin", "ada": "submitter", "mallory": "submitter", "eve": "reader"}


@dataclass
class Site:
    """The pages of one deployment."""

    deployment: Deployment
    pages: WebPages
    tokens: Path

    def __post_init__(self) -> None:
        self.write_tokens(ROLES)
        self.over_tls = build_app(self.deployment.context, TokenFile(self.tokens), self.pages)
        self.on_socket = build_app(self.deployment.context, pages=self.pages)

    def write_tokens(self, roles: dict[str, str]) -> None:
        lines = [f"{name}:{sha256(f'secret of {name}'.encode()).hexdigest()}:{role}" for name, role in roles.items()]
        self.tokens.write_text("\n".join(lines) + "\n")

    def stranger(self) -> TestClient:
        """A browser at the TLS port that has not logged in."""
        return TestClient(
            self.over_tls, base_url="https://fleet.test", raise_server_exceptions=False, follow_redirects=False
        )

    def browser(self, name: str) -> TestClient:
        """A browser at the TLS port that logged in with the token of ``name``."""
        made = self.stranger()
        answer = made.post("/login", data={"token": f"secret of {name}"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), answer.text
        return made

    def peer(self, uid: int) -> TestClient:
        """A caller on the socket."""
        made = self.deployment.client(uid, self.on_socket)
        made.follow_redirects = False
        return made

    def submitted(self, user: str, **fields: Any) -> str:
        """Submit a job with the token of ``user``; return its id."""
        headers = {"Authorization": f"Bearer secret of {user}"}
        body = [{"job": {"name": "sort", "command": ["sleep", "3"], **fields}}]
        answer = self.stranger().post("/v1/jobs", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()[0]["id"])


def form_token(page: str) -> str:
    """Return what the forms of a page carry."""
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', page)
    assert found, page
    return found[1]


@contextmanager
def serving() -> Iterator[Site]:
    """Serve pages of a deployment that nobody has used yet."""
    with tempfile.TemporaryDirectory(prefix="hcloud-web-") as made:
        Path(made).chmod(0o755)
        deployment = Deployment(Path(made))
        yield Site(deployment, WebPages(), Path(made) / "tokens")
        deployment.close()


@pytest.fixture(scope="module")
def module_site() -> Iterator[Site]:
    """Pages that the tests of one file share; building them takes longer than most tests."""
    with serving() as made:
        yield made


@pytest.fixture
def site(module_site: Site) -> Site:
    """Pages with the tokens of ``ROLES``; earlier tests of the file may have submitted jobs."""
    module_site.write_tokens(ROLES)
    return module_site


@pytest.fixture
def fresh_site() -> Iterator[Site]:
    """Pages of a deployment that nobody has used yet."""
    with serving() as made:
        yield made
