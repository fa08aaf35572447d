"""Rows with other values: what :func:`dataclasses.replace` does, for those that change thousands of times an hour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

Row = TypeVar("Row")
_Setter = Callable[[object, object], None]


def changed(row: Row, **changes: object) -> Row:
    """Return a frozen row of slots with other values.

    Its class must derive nothing of them (``__post_init__``), as no ``__init__`` runs. Raises TypeError for a name that
    it does not have.
    """
    kind = type(row)
    read, setters, places = _slots_of(kind)  # type: ignore[arg-type]
    values = list(read(row))
    for name, value in changes.items():
        if name not in places:
            raise TypeError(f"{kind.__name__} has no {name!r}; it has {', '.join(places)}")
        values[places[name]] = value
    made = object.__new__(kind)
    for set_value, value in zip(setters, values, strict=True):
        set_value(made, value)
    return made


@cache
def _slots_of(kind: type) -> tuple[Callable[[object], tuple[Any, ...]], tuple[_Setter, ...], Mapping[str, int]]:
    if hasattr(kind, "__post_init__"):
        raise TypeError(f"{kind.__name__} derives values when it is made; use dataclasses.replace")
    names = [each.name for each in fields(kind)]
    setters = tuple(getattr(kind, name).__set__ for name in names)
    return attrgetter(*names), setters, {name: place for place, name in enumerate(names)}
