"""Dataclasses as plain dictionaries, without the copies of every value that ``dataclasses.asdict`` makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any


def to_plain(value: Any) -> Any:
    """Return dataclasses as dictionaries, also inside tuples, lists and mappings; other values as they are."""
    kind: type = type(value)
    names = _field_names(kind)
    if names is not None:
        return {name: to_plain(getattr(value, name)) for name in names}
    if kind in (tuple, list):
        return kind(map(to_plain, value))
    if isinstance(value, Mapping):
        return {key: to_plain(each) for key, each in value.items()}
    return value


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else None
