"""Limits of each caller, so that nobody waits for another one: requests in work, and long computations at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from fastapi import Response
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from hcloud.core.errors import HCloudError

IN_WORK_MAX = 8
"""Requests of one caller that are worked on at once; further ones wait."""
WAITING_MAX = 256
"""Requests of one caller that wait; further ones are refused."""
LONG_MAX = 2
"""Long computations at once, of all callers but admins together: each takes a CPU's time from everything else."""


class Busy(HCloudError):
    """The caller has too many requests in work."""


class Turns:
    """The requests in work, by caller."""

    def __init__(self) -> None:
        self._by_name: dict[str, _Turn] = {}

    @asynccontextmanager
    async def taken(self, name: str) -> AsyncIterator[None]:
        """Work on a request of this caller while the block lasts. Raises Busy: too many wait already."""
        turn = self._by_name.setdefault(name, _Turn())
        if turn.count >= IN_WORK_MAX + WAITING_MAX:
            raise Busy(f"{name} has {turn.count} requests in work or waiting; send fewer at once")
        turn.count += 1
        try:
            async with turn.free:
                before = _turn.set(turn)
                try:
                    yield
                finally:
                    _turn.reset(before)
        finally:
            turn.count -= 1
            if not turn.count:
                self._by_name.pop(name, None)


class _Turn:
    def __init__(self) -> None:
        self.free = asyncio.Semaphore(IN_WORK_MAX)
        self.count = 0


_turn: ContextVar[_Turn | None] = ContextVar("turn", default=None)


@asynccontextmanager
async def between_turns() -> AsyncIterator[None]:
    """Let the caller's next request be worked on while the block lasts."""
    turn = _turn.get()
    if turn is not None:
        turn.free.release()
    try:
        yield
    finally:
        if turn is not None:
            await turn.free.acquire()


class LongWork:
    """Long computations in threads, a few at once."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(LONG_MAX)

    async def result(self, work: Callable[[], Any], *, at_once: bool) -> Any:
        """Return what ``work`` returns, once it is its turn, or ``at_once``."""
        if at_once:
            return await run_in_threadpool(work)
        async with self._free:
            return await run_in_threadpool(work)

    async def response(self, kind: Any, work: Callable[[], Any], *, at_once: bool) -> Response:
        """Return the JSON of what ``work`` returns, which is a ``kind``."""

        def written() -> bytes:
            return _adapter(kind).dump_json(work())

        return Response(await self.result(written, at_once=at_once), media_type="application/json")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
