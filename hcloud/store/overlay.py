"""A table in memory under what one transaction has written over it."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Over(Generic[Key, Value]):
    """A table with what a transaction has written over it, which the others see once it is merged."""

    __slots__ = ("_below", "fresh")

    def __init__(self, below: dict[Key, Value]) -> None:
        self._below = below
        self.fresh: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """Return what is there, or None."""
        found = self.fresh.get(key)
        return self._below.get(key) if found is None else found

    def merge(self) -> None:
        """Let everybody see what was written."""
        if self.fresh:
            self._below.update(self.fresh)
