"""Thousands of machines like the one that moto knows, a page at a time: moto would take minutes to tell of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Reply = tuple[str, list[tuple[str, str]], bytes]
_LIST = re.compile(rb"<reservationSet>(.*)</reservationSet>", re.DOTALL)


def crowded(count: int, query: Mapping[str, str], ask_moto: Callable[[], Reply]) -> Reply:
    """Answer DescribeInstances: moto's only machine first, then ``count`` copies with ids and tokens of their own."""
    if "NextToken" not in query:
        _frame[:] = [ask_moto()]
    frame = _frame[0]
    before, pattern, after = _LIST.split(frame[2])
    first = int(query.get("NextToken", "0"))
    last = min(count + 1, first + int(query.get("MaxResults", "1000")))
    told = b"".join(_copy(pattern, number) for number in range(first, last))
    more = f"<nextToken>{last}</nextToken>".encode() if last <= count else b""
    return frame[0], frame[1], before + b"<reservationSet>" + told + b"</reservationSet>" + more + after


_frame: list[Reply] = []
"""Moto's answer to the first page of the listing under way."""


def _copy(pattern: bytes, number: int) -> bytes:
    if number == 0:
        return pattern
    told = re.sub(rb">i-[0-9a-f]{17}<", f">i-{number:017x}<".encode(), pattern)
    told = re.sub(rb">r-[0-9a-f]{17}<", f">r-{number:017x}<".encode(), told)
    return told.replace(b">token-0<", f">token-{number}<".encode()).replace(b">inst-0<", f">inst-{number}<".encode())
