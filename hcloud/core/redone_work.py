"""Work of a job that was lost with an attempt, and is done again by the next one."""

from __future__ import annotations

from dataclasses import dataclass

from hcloud.core.model import Event, EventKind


@dataclass(slots=True)
class RedoneWork:
    """Follows the events of one job, in order. Of several ranks, what the one did that began first and ended last."""

    total_s: float = 0.0
    _attempt: str = ""
    _began_at: float = 0.0
    _ended_at: float = 0.0

    def take(self, event: Event) -> float | None:
        """Apply an event of the job; return how much of the work before is done again if it begins an attempt after
        another one, in seconds of run time, else None."""
        attempt = str(event.fields.get("attempt", ""))
        if event.kind is EventKind.UNIT_ENDED and attempt == self._attempt:
            self._ended_at = max(self._ended_at, event.at)
        if event.kind is not EventKind.UNIT_STARTED or attempt == self._attempt:
            return None
        was_first, restored_at = not self._attempt, event.fields.get("restored_at")
        kept_at = float(restored_at) if isinstance(restored_at, int | float) else 0.0
        lost_s = max(0.0, self._ended_at - max(self._began_at, kept_at))
        self._attempt, self._began_at, self._ended_at = attempt, event.at, event.at
        if was_first:
            return None
        self.total_s += lost_s
        return lost_s
