"""Lease renewals pushed to instances again and again, so that a missed one is repaired."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from hcloud.core.model import Instance, InstanceId, InstanceState
from hcloud.provider import Runner
from hcloud.quarantine import DEFECT_RETRY_S, Failure, Failures, bisect_failures

RENEW_EVERY_S = 30.0
_USABLE = (InstanceState.READY, InstanceState.DRAINING)
_GONE_KEPT = 1000
"""What was told of so many machines that are gone is kept; it is thrown away in one go."""


@dataclass(slots=True)
class LeasePush:
    """Remembers which expiry each instance was sent, and when. If that is lost, all are sent again."""

    _told: dict[InstanceId, tuple[float, float]] = field(default_factory=dict)
    """By machine, the expiry it took and when (Unix seconds)."""
    _put_off: dict[InstanceId, float] = field(default_factory=dict)
    """Machines that could not be told, by a defect, and when to try it again."""

    def renew(self, runner: Runner, live: Sequence[Instance], reachable: Set[InstanceId], now: float) -> Failures:
        """Send the expiry to ``live`` instances that answer and are due; return the failures by a defect."""
        if len(self._told) > 2 * len(live) + _GONE_KEPT:
            self._told = {each.id: self._told[each.id] for each in live if each.id in self._told}
        due = self._due(live, reachable, now)
        failing: dict[str, Failure] = {}
        self._put_off = {name: until for name, until in self._put_off.items() if until > now}

        def tell(some: Sequence[InstanceId]) -> None:
            """Send to some of them."""
            took = runner.renew({name: due[name] for name in some})
            self._told.update({name: (due[name], now) for name in took})

        def fails(name: InstanceId, trouble: Failure) -> None:
            """Try that one again after a while."""
            failing[f"renewal of {name}"] = trouble
            self._put_off[name] = now + DEFECT_RETRY_S

        bisect_failures(list(due), tell, fails)
        return failing

    def _due(self, live: Sequence[Instance], reachable: Set[InstanceId], now: float) -> dict[InstanceId, float]:
        """Return the expiry to send to each. Those that failed before come last: if many fail, the
        others are served first."""
        told, due_at, put_off = self._told, now - RENEW_EVERY_S, self._put_off
        to_tell = [i for i in live if (last := told.get(i.id)) is None or last[1] <= due_at or last[0] != i.expires_at]
        due = {i.id: i.expires_at for i in to_tell if i.state in _USABLE and i.id in reachable}
        if not put_off:
            return due
        return {name: due[name] for name in sorted(due, key=put_off.__contains__) if put_off.get(name, now) <= now}
