"""Keys of configuration, policies and job files that were renamed or removed, and the translation of old documents.

An upgrade must not stop a deployment: a key that the previous version knew is translated (or ignored) for one version,
with a note for its author. Delete an entry with the version after ``since``; the key is then unknown and refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from hcloud.core.errors import ConfigError
from hcloud.spec.validation import KeyPath, key_path

DocumentKind = Literal["config", "policy", "job"]
ANY: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """One key that was renamed, moved or removed."""

    old: str
    """Keys from the top, joined by dots; ``*`` is any list index or name: ``providers.*.poll_s``."""
    new: str | None = None
    """The new place of the value, with as many ``*``; None: the key was removed and its value is ignored."""
    since: str
    """The first version in which the new name holds."""
    advice: str = ""
    """What the author should know in addition; shown in brackets."""
    values: Mapping[object, object] | None = None
    """The new value for each old one; any other value is ignored, so that the new key has its default. None: values
    are unchanged."""
    provider_types: tuple[str, ...] = ()
    """For keys below ``providers.*``: the types of provider that had the key; (): all."""

    @property
    def sentence(self) -> str:
        """What happened to the key and what its author should do."""
        change, action = f"was renamed to {self.new} in {self.since}", "rename it"
        if self.values is not None:
            change, action = f"was replaced by {self.new} in {self.since}", f"write {self.new}"
        if self.new is None:
            change, action = f"was removed in {self.since} and is ignored", "delete it"
        advice = f" ({self.advice})" if self.advice else ""
        return f"{change}{advice}; {action}: the next version will refuse it"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedChange:
    """A change that one document needed."""

    change: KeyChange
    path: KeyPath
    """Where the old key is."""
    new_path: KeyPath | None
    """Where its value went; None: nowhere."""


_MACHINES: Final = (
    ("ec2", "providers.*.settings"),
    ("ec2", "providers.*.settings.regions.*"),
    ("gce", "providers.*.settings.worker"),
)
"""Where settings say how instances become workers, by type of provider."""
_REMOVED_OF_MACHINES: Final = {
    **dict.fromkeys(
        ("credential", "parameter_path", "tls_secret", "tls_in_metadata"), "each instance gets a certificate of its own"
    ),
    **dict.fromkeys(("package", "package_index"), "instances fetch their agent from the gateway"),
}
"""Keys that said how instances become workers, and what holds now."""
KEY_CHANGES: Final[dict[DocumentKind, tuple[KeyChange, ...]]] = {
    "config": (
        KeyChange(
            old="engine.runner",
            new="engine.programs",
            since="0.2.0",
            values={"dask": "real", "fake": "simulated"},
            advice="dask is now real, fake is simulated",
        ),
        KeyChange(old="engine.worker_ports", since="0.2.0", advice="nothing listens on a machine any more"),
        *(
            KeyChange(
                old=f"{settings}.scheduler_address",
                new=f"{settings}.gateway_addresses",
                since="0.2.0",
                provider_types=(provider_type,),
            )
            for provider_type, settings in _MACHINES
        ),
        *(
            KeyChange(old=f"{settings}.{key}", since="0.2.0", advice=advice, provider_types=(provider_type,))
            for provider_type, settings in _MACHINES
            for key, advice in _REMOVED_OF_MACHINES.items()
        ),
    ),
    "policy": (
        KeyChange(
            old="profiling.enabled",
            new="profiling.when",
            since="0.2.0",
            values={"never": "never", False: "never", "always": "before", True: "before"},
            advice="always is now before, never stays, auto is the default",
        ),
        KeyChange(
            old="retention.release_below_quality",
            since="0.2.0",
            advice="slow instances stay; those on which no unit starts are released",
        ),
        KeyChange(
            old="disruption.evict_rest_s",
            since="0.2.0",
            advice="jobs that lose least are evicted first, and none where a launch costs less",
        ),
        KeyChange(
            old="retention.drain_below",
            new="retention.drain",
            since="0.2.0",
            values={0: False},
            advice="0 is now false; else machines are drained where keeping them costs more than new ones",
        ),
        *(
            KeyChange(old=f"disruption.{key}", since="0.2.0", advice="jobs are no longer moved to empty a machine")
            for key in ("consolidate", "consolidate_gain")
        ),
        KeyChange(old="disruption.consolidate_rest_s", new="disruption.optional_ranks_rest_s", since="0.2.0"),
    ),
    "job": (),
}
"""What changed since the previous version, by kind of document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultChange:
    """One key whose default changed."""

    key: str
    """Keys from the top, joined by dots."""
    old: object
    new: object
    rule: bool = True
    """Whether the key chooses rules by itself; others are numbers for the rules."""


DEFAULTS_SINCE: Final = "0.2.0"
"""The first version with the new defaults of ``DEFAULT_CHANGES``."""
DEFAULT_CHANGES: Final = (
    DefaultChange(key="placement.order", old="least_loaded", new="quasar"),
    DefaultChange(key="admission.queues", old="one", new="planned"),
    DefaultChange(key="provisioning.strategy", old="best_value", new="hm"),
    DefaultChange(key="provisioning.soft_limit", old=0.65, new=0.95, rule=False),
    DefaultChange(key="provisioning.hard_limit", old=0.9, new=1.0, rule=False),
    DefaultChange(key="profiling.max_concurrent", old=2, new=4, rule=False),
    DefaultChange(key="retention.learn", old=False, new=True, rule=False),
)
"""Defaults of policies that changed since the previous version. Delete them with the version after."""


def states_former_defaults(policy: object) -> bool:
    """Return whether a policy document is a copy of the default policy of the previous version: it states its rules."""
    named_default = isinstance(policy, Mapping) and policy.get("name", "default") == "default"
    rules = [change for change in DEFAULT_CHANGES if change.rule]
    return named_default and all(_stated(policy, change.key) == change.old for change in rules)


def new_defaults_of(policy: object) -> tuple[DefaultChange, ...]:
    """Return the changed defaults of the keys that a policy document leaves out."""
    return tuple(change for change in DEFAULT_CHANGES if not _has(policy, tuple(change.key.split("."))))


def _stated(value: Any, key: str) -> object:
    path = tuple(key.split("."))
    return _parent(value, path, key_path)[path[-1]] if _has(value, path) else None


def translate_keys(
    value: object, changes: Sequence[KeyChange], locate: Callable[[KeyPath], str] = key_path
) -> tuple[object, Sequence[AppliedChange]]:
    """Return a document with today's keys, and the changes that were needed; ``value`` itself is not modified.

    Raises:
        ConfigError: a document has a key under its old and its new name. ``locate`` makes the ``where``.
    """
    applied: list[AppliedChange] = []
    for change in changes:
        for path in list(_paths(value, tuple(change.old.split(".")))):
            if change.provider_types and _parent(value, path[:3], locate).get("type") not in change.provider_types:
                continue
            if not applied:
                value = copy.deepcopy(value)
            new_path: KeyPath | None = None
            if change.new is not None:
                matched = (part for part, pattern in zip(path, change.old.split("."), strict=True) if pattern == ANY)
                new_path = tuple(next(matched) if part == ANY else part for part in change.new.split("."))
            if new_path is not None and _has(value, new_path):
                raise ConfigError(
                    f"is the old name of {key_path(new_path)}, which is also set; keep {key_path(new_path)} only",
                    where=locate(path),
                )
            moved = _parent(value, path, locate).pop(path[-1])
            if new_path is not None and change.values is None:
                _parent(value, new_path, locate)[new_path[-1]] = moved
            elif new_path is not None and change.values is not None and _known_value(moved, change.values):
                _parent(value, new_path, locate)[new_path[-1]] = change.values[moved]
            applied.append(AppliedChange(change=change, path=path, new_path=new_path))
    return value, applied


def _known_value(value: object, values: Mapping[object, object]) -> bool:
    return isinstance(value, str | bool | int | float) and value in values


def _paths(value: object, pattern: Sequence[str]) -> Iterator[KeyPath]:
    """Yield the paths in ``value`` that ``pattern`` describes."""
    if not pattern:
        yield ()
        return
    children: Mapping[Any, object] = {}
    if isinstance(value, Mapping):
        children = value
    elif isinstance(value, list):
        children = dict(enumerate(value))
    for part, child in children.items():
        if pattern[0] in (ANY, part):
            yield from ((part, *rest) for rest in _paths(child, pattern[1:]))


def _has(value: Any, path: KeyPath) -> bool:
    try:
        for part in path:
            value = value[part]
    except (LookupError, TypeError):
        return False
    return True


def _parent(value: Any, path: KeyPath, locate: Callable[[KeyPath], str]) -> dict[Any, object]:
    """Return the mapping that holds the last key of ``path``; sections that are missing on the way are made."""
    for depth, part in enumerate(path[:-1]):
        if isinstance(value, dict) and value.get(part) is None:
            value[part] = {}
        value = value[part]
        if not isinstance(value, dict | list):
            raise ConfigError("must be a mapping", where=locate(path[: depth + 1]))
    mapping: dict[Any, object] = value
    return mapping
