"""Rows with other values: what :func:`dataclasses.replace` does, for those that change thousands of times an hour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

Row = TypeVar("Row")
_Setter = Callable[[object, object], None]


def replace_fields(row: Row, **changes: object) -> Row:
    """Return a frozen row of slots with other values.

    Its class must derive nothing of them (``__post_init__``), as no ``__init__`` runs. Raises TypeError for a name that
    it does not have.
    """
    kind = type(row)
    copied, setters = _slots_of(kind)  # type: ignore[arg-type]
    made: Row = copied(row)
    for name, value in changes.items():
        if name not in setters:
            raise TypeError(f"{kind.__name__} has no {name!r}; it has {', '.join(setters)}")
        setters[name](made, value)
    return made


@cache
def _slots_of(kind: type) -> tuple[Callable[[object], Any], Mapping[str, _Setter]]:
    """Return what copies rows of a kind, written out as ``__init__`` of a dataclass is (a loop takes half as long
    again), and what sets each of their slots."""
    if hasattr(kind, "__post_init__"):
        raise TypeError(f"{kind.__name__} derives values when it is made; use dataclasses.replace")
    setters = {each.name: getattr(kind, each.name).__set__ for each in fields(kind)}
    lines = [f"    set_{name}(made, row.{name})" for name in setters]
    known = {"new": object.__new__, "kind": kind, **{f"set_{name}": setter for name, setter in setters.items()}}
    exec("\n".join(["def copied(row):", "    made = new(kind)", *lines, "    return made"]), known)
    return known["copied"], setters
