"""Finds out how missing instances ended, from their operations.

Compute Engine does not list a deleted instance, but keeps its operations for about two weeks. They distinguish a
preempted instance from a lost one and give the exact end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from google.cloud import compute_v1 as compute

from hcloud.core.errors import ProviderError
from hcloud.provider import CloudInstance, CloudState
from providers.gce.api import Api
from providers.gce.instance_mapping import seconds
from providers.gce.names import last_part, parse_provider_id, provider_id

PREEMPTED = "compute.instances.preempted"
PREEMPT_NOTICE_S = 30.0
REPORTED_FOR_S = 600.0
MAX_LOOKUPS = 50
"""Missing instances looked up per listing; further ones are just absent."""


@dataclass(frozen=True, slots=True)
class EndOperation:
    """The operation that ended an instance."""

    kind: str
    """Type of the operation."""
    at: float
    """When it finished (Unix seconds)."""


def end_of(operations: Sequence[compute.Operation]) -> EndOperation | None:
    """Return the first operation that ended the instance, or None. ``operations``: oldest first."""
    for each in operations:
        ends_it = each.operation_type == PREEMPTED or any(
            word in each.operation_type.lower() for word in ("delete", "terminate", "stop")
        )
        at = seconds(each.end_time) or seconds(each.insert_time)
        if ends_it and at is not None and not each.error.errors:
            return EndOperation(each.operation_type, at)
    return None


class EndedInstances:
    """Remembers the last listing and reports instances that have since ended."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._last: dict[str, CloudInstance] = {}
        self._ended: dict[str, CloudInstance] = {}
        self._stopping: dict[str, CloudInstance] = {}

    def preempted(self, stopping: Sequence[CloudInstance], owner: str) -> dict[str, CloudInstance]:
        """Return by id the stopping instances that Compute Engine preempts. Each is looked up once."""
        known = {each.provider_id: self._stopping.get(each.provider_id) for each in stopping}
        new = [each for each in stopping if known[each.provider_id] is None]
        for zone in sorted({each.zone for each in new}):
            known |= self._find_preemptions(zone, [each for each in new if each.zone == zone], owner)
        self._stopping = {key: each for key, each in known.items() if each is not None}
        return {key: each for key, each in self._stopping.items() if each.preempt_at is not None}

    def _find_preemptions(self, zone: str, stopping: Sequence[CloudInstance], owner: str) -> dict[str, CloudInstance]:
        by_name = self._operations(zone, stopping, owner)
        found = {}
        for each in stopping:
            preemptions = [op for op in by_name.get(each.provider_id, ()) if op.operation_type == PREEMPTED]
            began_at = seconds(preemptions[0].insert_time) if preemptions else None
            preempt_at = each.preempt_at if began_at is None else began_at + PREEMPT_NOTICE_S
            found[each.provider_id] = replace(each, preempt_at=preempt_at)
        return found

    def ended_since(self, listed: Mapping[str, CloudInstance], owner: str, now: float) -> tuple[CloudInstance, ...]:
        """Take a complete listing. Return earlier listed instances that are known to have ended, with their end."""
        missing = [each for key, each in self._last.items() if key not in listed][:MAX_LOOKUPS]
        for zone in sorted({each.zone for each in missing}):
            self._find_ends(zone, [each for each in missing if each.zone == zone], owner, now)
        self._last = dict(listed)
        self._ended = {
            key: each
            for key, each in self._ended.items()
            if key not in listed and now - (each.terminated_at or now) < REPORTED_FOR_S
        }
        return tuple(self._ended.values())

    def _find_ends(self, zone: str, missing: Sequence[CloudInstance], owner: str, now: float) -> None:
        by_name = self._operations(zone, missing, owner)
        for each in missing:
            end = end_of(by_name.get(each.provider_id, ()))
            if end is not None:
                self._ended[each.provider_id] = as_ended(self._stopping.get(each.provider_id, each), end, now)

    def _operations(
        self, zone: str, machines: Sequence[CloudInstance], owner: str
    ) -> dict[str, list[compute.Operation]]:
        """Return operations by instance id; none if they cannot be read, since the listing is usable without."""
        names = [parsed[1] for each in machines if (parsed := parse_provider_id(each.provider_id, owner)) is not None]
        found: dict[str, list[compute.Operation]] = {}
        with suppress(ProviderError):
            for each in self._api.operations_on(zone, names):
                found.setdefault(provider_id(zone, last_part(each.target_link)), []).append(each)
        return found


def as_ended(machine: CloudInstance, end: EndOperation, now: float) -> CloudInstance:
    """Return the instance as terminated; ``preempt_at`` is set if it was preempted."""
    at = max(machine.launched_at, min(end.at, now))
    preempt_at = at if end.kind == PREEMPTED else machine.preempt_at
    return replace(machine, state=CloudState.TERMINATED, terminated_at=at, preempt_at=preempt_at, detail=end.kind)
