"""Push instances' expiry to their workers, again and again: it renews their lease, and repairs a lost renewal."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from hcloud.core.model import Instance, InstanceId, InstanceState
from hcloud.provider import Runner
from hcloud.quarantine import DEFECT_RETRY_S, Failure, Failures, bisect_failures

RENEW_EVERY_S = 30.0
_USABLE = (InstanceState.READY, InstanceState.DRAINING)
_STALE_ENTRIES_MAX = 1000
"""Entries of terminated instances are dropped all at once when more than these may have gathered."""


@dataclass(slots=True)
class LeasePush:
    """Remembers which expiry each instance took, and when. Losing it is harmless: all are pushed again."""

    _pushed: dict[InstanceId, tuple[float, float]] = field(default_factory=dict)
    """By instance, the expiry it took and when (Unix seconds)."""
    _retry_at: dict[InstanceId, float] = field(default_factory=dict)
    """When to retry instances for which pushing failed because of a defect."""

    def renew(self, runner: Runner, live: Sequence[Instance], reachable: Set[InstanceId], now: float) -> Failures:
        """Push the expiry of reachable ``live`` instances that are due; return the failures by defects."""
        if len(self._pushed) > 2 * len(live) + _STALE_ENTRIES_MAX:
            self._pushed = {each.id: self._pushed[each.id] for each in live if each.id in self._pushed}
        due = self._due(live, reachable, now)
        failing: dict[str, Failure] = {}
        self._retry_at = {name: until for name, until in self._retry_at.items() if until > now}

        def push(some: Sequence[InstanceId]) -> None:
            took = runner.renew({name: due[name] for name in some})
            self._pushed.update({name: (due[name], now) for name in took})

        def on_failure(name: InstanceId, failure: Failure) -> None:
            failing[f"renewal of {name}"] = failure
            self._retry_at[name] = now + DEFECT_RETRY_S

        bisect_failures(list(due), push, on_failure)
        return failing

    def _due(self, live: Sequence[Instance], reachable: Set[InstanceId], now: float) -> dict[InstanceId, float]:
        """Return the expiry by instance that is due. Earlier failures come last: they cannot delay the others."""
        pushed, pushed_before, retry_at = self._pushed, now - RENEW_EVERY_S, self._retry_at
        stale = [
            i for i in live if (last := pushed.get(i.id)) is None or last[1] <= pushed_before or last[0] != i.expires_at
        ]
        due = {i.id: i.expires_at for i in stale if i.state in _USABLE and i.id in reachable}
        if not retry_at:
            return due
        return {name: due[name] for name in sorted(due, key=retry_at.__contains__) if retry_at.get(name, now) <= now}
