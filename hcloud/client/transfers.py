"""How far a transfer has got: the command line draws a bar, programs draw none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

CHUNK_BYTES = 256 * 1024
Transfer = Callable[[str, int], AbstractContextManager[Callable[[float], None]]]
"""Begins to show a transfer (what it is, its bytes), and gives what to call with the bytes of each part."""


@contextmanager
def no_bar(what: str, size: int) -> Iterator[Callable[[float], None]]:
    """Show nothing."""
    yield lambda _: None
