"""What open pages are sent while things happen."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from hcloud.api.auth import Caller, Role
from hcloud.api.turns import Busy
from hcloud.web import live
from hcloud.web.fleet import FleetCache
from hcloud.web.live import LiveFeed, Tick, sse
from hcloud.web.pages import WebPages
from tests.web.conftest import Site, serving

PATIENCE_S = 60.0


@contextmanager
def watching(socket_path: Path, topic: str) -> Iterator["queue.Queue[str]"]:
    """Lines that a viewer of a topic is sent."""
    lines: queue.Queue[str] = queue.Queue()
    transport = httpx2.HTTPTransport(uds=str(socket_path))
    with httpx2.Client(transport=transport, base_url="http://hcloud", timeout=PATIENCE_S) as client:
        with client.stream("GET", "/live", params={"topic": topic}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")

            def read() -> None:
                try:
                    for line in answer.iter_lines():
                        lines.put(line)
                except (httpx2.HTTPError, httpx2.StreamError):
                    pass

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            yield lines


def until(lines: "queue.Queue[str]", wanted: str) -> None:
    """Wait until a line begins so."""
    while not lines.get(timeout=PATIENCE_S).startswith(wanted):
        pass


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the pages ticks at once."""
    monkeypatch.setattr(live, "TICK_S", 0.02)


@pytest.mark.usefixtures("quick")
def test_viewers_are_sent_what_concerns_them() -> None:
    with serving() as site, site.deployment.served(pages=WebPages()) as server:
        made = site.submitted("root")
        with (
            watching(server.socket_path, "now") as now,
            watching(server.socket_path, made) as own,
            watching(server.socket_path, "job-99") as other,
            watching(server.socket_path, "list") as listed,
        ):
            until(now, "event: now")
            until(own, "retry:")
            site.deployment.cycle(3)
            until(own, "event: changed")
            until(listed, "event: changed")
            until(now, "data: <section")
        heard = [other.get_nowait() for _ in range(other.qsize())]
        assert not [line for line in heard if line.startswith("event:")]


def test_a_stream_ends_when_the_daemon_stops() -> None:
    with serving() as site:
        with site.deployment.served(pages=WebPages()) as server:
            with watching(server.socket_path, "now") as lines:
                until(lines, "event: now")
                site.deployment.context.closing.set()
                server.stop()
                assert not server.alive


def test_one_caller_may_not_take_all_places(site: Site) -> None:
    feed = LiveFeed(site.deployment.context, FleetCache(site.deployment.context), site.pages)
    ada, eve = (Caller(name=each, role=Role.READER) for each in ("ada", "eve"))
    feed.check(ada)
    feed._viewers |= {live.Viewer("now", "ada") for _ in range(live.VIEWERS_PER_CALLER)}
    with pytest.raises(Busy, match="close some"):
        feed.check(ada)
    feed.check(eve)
    feed._viewers |= {live.Viewer("now", str(number)) for number in range(live.VIEWERS_MAX)}
    with pytest.raises(Busy):
        feed.check(eve)


def test_a_tick_says_only_what_happened() -> None:
    quiet = Tick("", frozenset(), lists=False)
    assert [quiet.message(topic) for topic in ("now", "list", "job-1")] == ["", "", ""]
    news = Tick("<p>\nnow</p>", frozenset({"job-1"}), lists=True)
    assert news.message("now") == "event: now\ndata: <p>\ndata: now</p>\n\n"
    assert [news.message(topic) for topic in ("list", "job-1", "job-2")] == [sse("changed", "")] * 2 + [""]
    flood = Tick("", frozenset(), lists=False, all_changed=True)
    assert flood.message("job-2") == sse("changed", "")
