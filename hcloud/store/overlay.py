"""A table in memory with the uncommitted writes of one transaction."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class OverlayTable(Generic[Key, Value]):
    """A shared table with a transaction's own writes on top; :meth:`merge` commits them."""

    __slots__ = ("_below", "fresh")

    def __init__(self, below: dict[Key, Value]) -> None:
        self._below = below
        self.fresh: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, own writes first, or None."""
        value = self.fresh.get(key)
        return self._below.get(key) if value is None else value

    def merge(self) -> None:
        """Write the own values to the shared table."""
        if self.fresh:
            self._below.update(self.fresh)
