"""How soon idle machines are needed again, and for how long it pays to keep them therefore.

If nothing is known, an idle machine is kept for as long as its boot takes: that never costs more than twice the least
(ski rental). What costs least on average follows from how long idle machines were not needed. This is seen when a unit
starts on one that was kept, but also when a machine of the same type is launched after one was terminated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from hcloud.core.model import InstanceId

Kind = tuple[str, str]
"""Provider and type of machines."""
PASSED_S = 300.0
"""A terminated machine that was not needed for so long counts as never needed again."""
PRIOR = 8
"""Weight, in observed machines, of the assumption under which it is best to keep them for as long as a boot is worth:
that they are needed again within that time, at any moment alike."""
OF_OTHERS = 16
"""While fewer machines of a type were seen, the last ones of other types of the provider fill up the number."""
_KEPT = 64


def best_keep_s(reused_s: Sequence[float], boot_worth_s: float) -> float:
    """Return for how many seconds to keep an idle machine so that idle times and boots cost least on average.

    Args:
        reused_s: After how many seconds such machines were needed again; inf: they were not.
        boot_worth_s: The idle time that avoiding one boot is worth.
    """
    if boot_worth_s <= 0.0:
        return 0.0
    needed_s = sorted([*reused_s, *(boot_worth_s * (step + 1) / PRIOR for step in range(PRIOR))])
    late, waited_s = len(needed_s), 0.0
    best_s, least_s = 0.0, late * boot_worth_s
    for keep_s in needed_s:
        if keep_s == inf:
            break
        late, waited_s = late - 1, waited_s + keep_s
        cost_s = waited_s + late * (keep_s + boot_worth_s)
        if cost_s < least_s:
            best_s, least_s = keep_s, cost_s
    return best_s


@dataclass(frozen=True, slots=True)
class ReuseTimes:
    """After how many seconds idle rented machines were needed again; inf: they were not."""

    by_kind: Mapping[Kind, tuple[float, ...]] = field(default_factory=dict)
    """Oldest first."""
    by_provider: Mapping[str, tuple[tuple[str, float], ...]] = field(default_factory=dict)
    """Of all types of a provider, each with its type, oldest first."""

    def of(self, kind: Kind) -> Sequence[float]:
        """Return the times of a kind of machines; while they are few, with those of others of the provider."""
        own = self.by_kind.get(kind, ())
        others = (each for name, each in reversed(self.by_provider.get(kind[0], ())) if name != kind[1])
        return [*own, *islice(others, max(0, OF_OTHERS - len(own)))]


@dataclass(slots=True)
class ReuseTracker:
    """Follows rented machines. Times are Unix seconds."""

    _units: dict[InstanceId, set[str]] = field(default_factory=dict)
    _idle_since: dict[InstanceId, float] = field(default_factory=dict)
    _ended: dict[Kind, deque[float]] = field(default_factory=dict)
    """Of machines that were terminated because they were idle: since when they had been idle. Those in place of which
    another one was launched are left out; the last entry is the machine that ended last."""
    _by_kind: dict[Kind, deque[float]] = field(default_factory=dict)
    _by_provider: dict[str, deque[tuple[str, float]]] = field(default_factory=dict)
    _times: ReuseTimes | None = None

    def unit_started(self, machine: InstanceId, kind: Kind, unit: str, at: float) -> None:
        """Note that a unit started on a machine."""
        self._units.setdefault(machine, set()).add(unit)
        since = self._idle_since.pop(machine, None)
        if since is not None:
            self._see(kind, at - since)

    def unit_ended(self, machine: InstanceId, unit: str, at: float) -> None:
        """Note that a unit ended on a machine. It is idle if that was the last."""
        running = self._units.get(machine, set())
        if unit in running:
            running.discard(unit)
            if not running:
                self._idle_since[machine] = at

    def released(self, machine: InstanceId, kind: Kind) -> None:
        """Note that a machine is terminated because it is idle."""
        since = self._idle_since.get(machine)
        if since is not None:
            self._ended.setdefault(kind, deque(maxlen=_KEPT)).append(since)
        self.forget(machine)

    def forget(self, machine: InstanceId) -> None:
        """Forget a machine that is gone, for whatever reason."""
        self._units.pop(machine, None)
        self._idle_since.pop(machine, None)

    def requested(self, kind: Kind, at: float) -> None:
        """Note that a machine is launched. The last one that was terminated would have served, had it been kept."""
        ended = self._ended.get(kind)
        if ended:
            self._see(kind, at - ended.pop())

    def times(self, now: float) -> ReuseTimes:
        """Return what was seen until ``now``; the same object while nothing has changed."""
        for kind, ended in self._ended.items():
            while ended and ended[0] < now - PASSED_S:
                ended.popleft()
                self._see(kind, inf)
        if self._times is None:
            self._times = ReuseTimes(
                by_kind={kind: tuple(each) for kind, each in self._by_kind.items()},
                by_provider={provider: tuple(each) for provider, each in self._by_provider.items()},
            )
        return self._times

    def _see(self, kind: Kind, idle_s: float) -> None:
        provider, name = kind
        self._by_kind.setdefault(kind, deque(maxlen=_KEPT)).append(max(0.0, idle_s))
        self._by_provider.setdefault(provider, deque(maxlen=_KEPT)).append((name, max(0.0, idle_s)))
        self._times = None
