"""What changes while a page is open, by server-sent events: one clock asks the store once for all viewers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from hcloud.api.auth import Caller
from hcloud.api.context import ApiContext, CurrentCaller
from hcloud.api.turns import Busy
from hcloud.core.errors import StoreError
from hcloud.web.fleet import FleetCache
from hcloud.web.now import now_values
from hcloud.web.site import Site, page_router

router = page_router()
TICK_S = 1.0
"""How often the store is asked whether anything happened."""
LIST_TICKS = 5
"""Lists are read again every so many ticks at most, while anything happens."""
ALIVE_TICKS = 15
"""Without news something is sent after so many ticks, so that a viewer who has gone is noticed."""
EVENTS_MAX = 1000
VIEWERS_MAX = 600
VIEWERS_PER_CALLER = 200


@dataclass(slots=True, eq=False)
class Viewer:
    """One open page."""

    topic: str
    """``now``, ``list``, or the id of a job or machine."""
    name: str
    news: asyncio.Queue[str | None] = field(default_factory=lambda: asyncio.Queue(4))
    """What to send next; None: nothing more comes."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What happened since the last one."""

    now_page: str
    """The changed part of the first page; empty: nobody looks at it, or nothing changed."""
    touched: frozenset[str]
    """Ids of jobs and machines that events are about."""
    lists: bool
    """Whether lists are to be read again."""
    all_changed: bool = False
    """Too much happened to say to whom."""

    def message(self, topic: str) -> str:
        """Return what a viewer of a topic is sent; empty: nothing."""
        if topic == "now":
            return sse("now", self.now_page) if self.now_page else ""
        if topic == "list":
            return sse("changed", "") if self.lists else ""
        return sse("changed", "") if self.all_changed or topic in self.touched else ""


def sse(event: str, content: str) -> str:
    """Return one server-sent event."""
    lines = "".join(f"data: {line}\n" for line in content.split("\n"))
    return f"event: {event}\n{lines}\n"


class LiveFeed:
    """Sends each viewer what concerns them. Used by the API's event loop only."""

    def __init__(self, context: ApiContext, fleet: FleetCache, site: Site) -> None:
        """Prepare; nothing happens before the first viewer comes."""
        self._context, self._fleet, self._site = context, fleet, site
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._seq = 0
        self._news = 0
        """Events since lists were last read again."""
        self._shown = ""

    def check(self, caller: Caller) -> None:
        """Raise Busy if too many look already."""
        held = Counter(each.name for each in self._viewers)
        if len(self._viewers) >= VIEWERS_MAX or held[caller.name] >= VIEWERS_PER_CALLER:
            raise Busy(f"{caller.name} has {held[caller.name]} pages open; close some")

    def join(self, topic: str, caller: Caller) -> Viewer:
        """Add a viewer."""
        viewer = Viewer(topic, caller.name)
        self._viewers.add(viewer)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer."""
        self._viewers.discard(viewer)

    async def _run(self) -> None:
        ticks, self._seq, self._shown = 0, await run_in_threadpool(self._context.store.newest_event_seq), ""
        while self._viewers and not self._context.closing.is_set():
            ticks += 1
            topics = {each.topic for each in self._viewers}
            try:
                tick = await run_in_threadpool(self._look, topics, ticks)
            except StoreError:  # busy: the next tick looks again
                tick = Tick("", frozenset(), lists=False)
            messages = {topic: tick.message(topic) for topic in topics}
            for viewer in self._viewers:
                message = messages.get(viewer.topic, "") or (": \n\n" if ticks % ALIVE_TICKS == 0 else "")
                if message and not viewer.news.full():
                    viewer.news.put_nowait(message)
            await asyncio.sleep(TICK_S)
        for viewer in self._viewers:
            if viewer.news.full():
                viewer.news.get_nowait()
            viewer.news.put_nowait(None)

    def _look(self, topics: set[str], ticks: int) -> Tick:
        newest = self._context.store.newest_event_seq()
        events = self._context.store.new_events(self._seq, EVENTS_MAX) if newest > self._seq else ()
        self._seq = newest
        self._news += len(events)
        lists = bool(self._news) and ticks % LIST_TICKS == 0
        if lists:
            self._news = 0
        page = ""
        if "now" in topics:
            page = self._site.text("_now.html", **now_values(self._fleet.current()))
            if page == self._shown:
                page = ""
            else:
                self._shown = page
        ids = {each for event in events for each in (event.job_id, event.instance_id) if each is not None}
        return Tick(page, frozenset(ids), lists, all_changed=len(events) >= EVENTS_MAX)


@router.get("/live")
async def stream(
    request: Request, caller: CurrentCaller, topic: Annotated[str, Query(max_length=64, pattern=r"^[a-z0-9-]+$")]
) -> Response:
    """Send what changes of a topic until the page is closed."""
    feed: LiveFeed = request.app.state.live_feed
    feed.check(caller)

    async def news() -> AsyncIterator[str]:
        viewer = feed.join(topic, caller)
        try:
            yield "retry: 2000\n\n"
            while (message := await viewer.news.get()) is not None:
                yield message
        finally:
            feed.leave(viewer)

    return StreamingResponse(news(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
