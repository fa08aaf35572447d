"""What arrives at an address: the form, the signature, and no redirect followed."""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from hcloud.budget_watch import BudgetWatch
from hcloud.notifications import DeliveryError, Message, Sender, signature, slack_body
from hcloud.planner.plan import Plan
from hcloud.planner.snapshot import Spend
from hcloud.spec.policy import Budgets
from tests.config.entry import Hcloud, caller
from tests.notifications.test_outbox import Site
from tests.store.samples import NOW

MESSAGE = Message(id="hc-7", kind="job_ended", at=1_900_000_000.0, text="job-1 <a> & b", fields={"job": "job-1"})
KEY = "a key"


@dataclass
class Endpoint:
    """An HTTP server that keeps what it is sent."""

    answers: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""


@pytest.fixture(scope="module")
def server() -> Iterator[Endpoint]:
    """A server that says 204 to all but the paths it has other answers for."""
    made = Endpoint({"/moved": (302, {"Location": "/taken"}), "/broken": (500, {}), "/gone": (410, {})})

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            code, headers = made.answers.get(self.path, (204, {}))
            self.send_response(code)
            for name, value in {**headers, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{http.server_port}"
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    http.shutdown()
    thread.join()
    http.server_close()


def test_a_webhook_carries_the_message_and_a_signature_of_it(server: Endpoint) -> None:
    Sender(url=f"{server.url}/taken?token=x", key=KEY).send(MESSAGE, 1_900_000_009.7)
    path, headers, body = server.requests[-1]
    assert path == "/taken?token=x"
    assert json.loads(body) == {
        "type": "job_ended",
        "timestamp": "2030-03-17T17:46:40Z",
        "data": {"id": "hc-7", "text": "job-1 <a> & b", "user": "", "job": "job-1"},
    }
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("hc-7", "1900000009")
    signed = hmac.new(KEY.encode(), b"hc-7.1900000009." + body, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"


def test_the_signature_is_that_of_the_published_example() -> None:
    # The example of https://github.com/standard-webhooks/standard-webhooks.
    key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    found = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    with pytest.raises(DeliveryError, match="not base64"):
        signature("whsec_!", "a", 1, b"")


def test_slack_reads_no_markup_and_gets_no_signature(server: Endpoint) -> None:
    Sender(url=f"{server.url}/taken", is_slack=True).send(MESSAGE, 1.0)
    _, headers, body = server.requests[-1]
    assert json.loads(body)["text"] == "HCloud: job-1 &lt;a&gt; &amp; b" and body == slack_body(MESSAGE)
    assert not [name for name in headers if name.startswith("webhook-")]


@pytest.mark.parametrize(("path", "wanted"), [("/moved", "HTTP 302"), ("/broken", "HTTP 500"), ("/gone", "HTTP 410")])
def test_every_other_answer_is_an_error_and_no_redirect_is_followed(server: Endpoint, path: str, wanted: str) -> None:
    before = len(server.requests)
    with pytest.raises(DeliveryError, match=wanted):
        Sender(url=server.url + path).send(MESSAGE, 1.0)
    assert len(server.requests) == before + 1


def test_no_answer_is_an_error_that_quotes_no_address() -> None:
    with pytest.raises(DeliveryError) as failed:
        Sender(url="http://127.0.0.1:1/secret-path").send(MESSAGE, 1.0)
    assert "secret-path" not in str(failed.value) and "no answer" in str(failed.value)
    with pytest.raises(DeliveryError):
        Sender(url="file:///etc/passwd").send(MESSAGE, 1.0)
    assert "secret-path" not in repr(Sender(url="http://127.0.0.1:1/secret-path"))


CONFIG = """
owner: hcloud-test
notifications:
  - {name: ops, url: "%s/taken", key: "env:WEBHOOK_KEY"}
  - {name: chat, url: "env:CHAT_URL", form: slack, events: [budget]}
"""


def test_a_test_message_shows_whether_each_target_takes_it(
    server: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, hcloud = tmp_path / "config.yaml", caller(capsys)
    file.write_text(CONFIG % server.url)
    monkeypatch.setenv("HCLOUD_CONFIG", str(file))
    monkeypatch.setenv("WEBHOOK_KEY", KEY)
    monkeypatch.setenv("CHAT_URL", f"{server.url}/broken")
    done = hcloud("config", "notify", "ops")
    assert (done.code, done.out) == (0, "ops: taken\n")
    assert json.loads(server.requests[-1][2])["type"] == "test"
    done = hcloud("config", "notify")
    assert (done.code, done.err) == (4, "hcloud: notifications are not taken by chat: HTTP 500\n")
    done = hcloud("config", "notify", "pos")
    assert (done.code, done.err) == (2, "hcloud: the configuration has no target pos; there are ops, chat\n")
    monkeypatch.delenv("CHAT_URL")
    assert hcloud("config", "notify", "chat").code == 2


def _refusal(hcloud: Hcloud, tmp_path: Path, entry: str) -> str:
    file = tmp_path / "bad.yaml"
    file.write_text(f"owner: hcloud-test\nnotifications:\n  - {entry}\n")
    done = hcloud("config", "check", str(file))
    assert done.code == 2
    return done.err


def test_wrong_targets_are_refused_with_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hcloud = caller(capsys)
    for entry, wanted in (
        ("{name: ops, url: 'ftp://x'}", "url: must be an address such as https://hooks.example.com/x, or env:NAME"),
        ("{name: ops, url: 'http://me:pw@x'}", "url: must be an address"),
        ("{name: ops, url: 'http://x', events: [job_end]}", "job_end"),
        ("{name: ops, url: 'http://x', events: []}", "notifications[0].events"),
        ("{name: ops, url: 'http://x', key: abc}", "key: must be the location of the secret, env:NAME or file:/PATH"),
        ("{name: ops, url: 'http://x', form: slack, key: 'env:A'}", "signs webhooks; Slack checks no signature"),
        ("{name: ops, url: 'http://x'}\n  - {name: ops, url: 'http://y'}", "has two entries named 'ops'"),
    ):
        assert wanted in _refusal(hcloud, tmp_path, entry), entry


def test_each_occasion_reaches_a_webhook_once_signed_although_the_first_try_fails(server: Endpoint) -> None:
    site = Site()
    site.address = Sender(url=f"{server.url}/all", key=KEY)  # type: ignore[assignment]
    site.outbox = site.opened()
    site.outbox.step()
    site.end_job()
    budgets, spend = Budgets(per_day_usd=10.0), Spend(day_usd=10.0, month_usd=10.0, day_ends_at=NOW, month_ends_at=NOW)
    for usd in (8.0, 10.0, 11.0):
        BudgetWatch(site.store).record(
            replace(spend, day_usd=usd), budgets, Plan(at=NOW, actions=()), site.clock.now(), None
        )
    site.preempt()
    site.trouble()
    server.answers["/all"], began = (503, {}), len(server.requests)
    pause_s = site.outbox.step()
    server.answers["/all"] = (204, {})
    site.clock.advance(pause_s)
    site.outbox.step()
    site.opened().step()  # a restart repeats nothing
    refused, *taken = server.requests[began:]
    found = [json.loads(body) for _, _, body in taken]
    assert [each["type"] for each in found] == ["job_ended", "budget", "budget", "spot_loss", "provider_trouble"]
    assert len({each["data"]["id"] for each in found}) == 5 and refused[2] == taken[0][2]
    for _, headers, body in (refused, *taken):
        at = int(headers["webhook-timestamp"])
        assert headers["webhook-signature"] == signature(KEY, headers["webhook-id"], at, body)
