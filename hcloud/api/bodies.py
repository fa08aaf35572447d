"""Reading of JSON bodies in threads: item by item up to the first problem, so that nobody else waits for a bad body."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, get_args, get_origin

from annotated_types import MaxLen
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from hcloud.core.errors import BadInput, ConfigError
from hcloud.spec.validation import key_path, parse

SHORT_BYTES = 64 * 1024
"""Shorter bodies are read at once; only a few longer ones at a time."""
MAX_VALUES = 1_000_000
"""Values in a body; each takes about a hundred bytes of memory whatever its size in the body."""
MAX_ITEM_VALUES = 50_000
"""Values in one item of a list, such as one job."""


class JsonRoute(APIRoute):
    """A route whose JSON body is parsed and validated by a thread, with the YAML loaders' messages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with the reading of the body before it if it has one."""
        handle, field = super().get_route_handler(), self.body_field
        if field is None:
            return handle
        kind: Any = field.field_info.annotation
        most = next((each.max_length for each in field.field_info.metadata if isinstance(each, MaxLen)), None)

        async def handle_parsed(request: Request) -> Response:
            content = await request.body()
            if not content or _is_json(request.headers.get("content-type", "")):
                work = partial(parse_body, kind, content, most)
                if len(content) < SHORT_BYTES:
                    value = await run_in_threadpool(work)
                else:
                    value = await request.app.state.context.long_work.result(
                        work, at_once=request.state.caller.is_admin
                    )
                request = _Parsed(request, value)
            return await handle(request)

        return handle_parsed


class _Parsed(Request):
    """A request whose body is validated."""

    def __init__(self, request: Request, value: object) -> None:
        super().__init__(request.scope, request.receive)
        self._value = value

    async def body(self) -> bytes:
        """Return something that is not empty: the body was read."""
        return b" "

    async def json(self) -> Any:
        """Return the validated value."""
        return self._value


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def parse_body(kind: Any, content: bytes, most: int | None = None) -> object:
    """Return the body as a ``kind``, a list of at most ``most`` items. Raises BadInput with the first problem."""
    if sum(content.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES:
        raise BadInput(f"the body has more than {MAX_VALUES} values; send fewer jobs in one request")
    try:
        value = json.loads(content) if content else None
    except json.JSONDecodeError as error:
        raise BadInput(f"the body is not JSON ({error.msg} at character {error.pos})") from error
    except RecursionError as error:
        raise BadInput("the body is nested too deeply") from error
    except ValueError as error:  # not UTF-8, or a number of thousands of digits
        raise BadInput(f"the body is not JSON ({error})") from error
    try:
        if get_origin(kind) is not list or not isinstance(value, list):
            return _parse_item(kind, value, ())
        if most is not None and len(value) > most:
            raise BadInput(f"body: must have at most {most} entries, not {len(value)}")
        (item_kind,) = get_args(kind)
        return [_parse_item(item_kind, item, (index,)) for index, item in enumerate(value)]
    except ConfigError as error:
        raise BadInput(str(error)) from error


def _parse_item(kind: type[Any], item: object, path: tuple[int, ...]) -> object:
    if _counts_more_than(MAX_ITEM_VALUES, item):
        raise BadInput(f"body{key_path(path)}: has more than {MAX_ITEM_VALUES} values")
    return parse(kind, item, locate=lambda below: "body" + key_path((*path, *below)))


def _counts_more_than(most: int, value: object) -> bool:
    """Return whether a JSON value holds more than ``most`` values."""
    waiting, count = [value], 0
    while waiting and count <= most:
        each = waiting.pop()
        inner: Iterable[object] = each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else ()
        before = len(waiting)
        waiting.extend(inner)
        count += len(waiting) - before
    return count > most
