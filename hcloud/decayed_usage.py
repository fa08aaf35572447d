"""What users, or values of a tag, used lately: their cost, of which half is forgotten after each half-life."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from hcloud.planner.snapshot import Spend
from hcloud.spec.policy import AdmissionPolicy
from hcloud.store import LeaderLease, Store

USAGE = "fair_share_usage"
"""Metadata key of the stored usage."""
SAVED_EVERY_S = 600.0
FORGOTTEN_USD = 1e-12
"""Below this an owner is forgotten: far less than a cycle of the smallest job costs, of which nothing may be lost."""


@dataclass(slots=True)
class DecayedUsage:
    """Follows what was spent in this month; stored every ten minutes, so that a restart forgets nothing."""

    store: Store
    by_owner: Mapping[str, float] = field(default_factory=dict)
    """USD by user or value of the tag, as of the last cycle; empty without fair share."""
    _of: str | None = None
    """What it was counted by; None: nothing was read from the store yet."""
    _at: float = 0.0
    _month_usd: Mapping[str, float] = field(default_factory=dict)
    _saved_at: float = 0.0

    def follow(self, spend: Spend, admission: AdmissionPolicy, now: float) -> Mapping[str, float]:
        """Return the usage as of ``now``. Raises StoreBusy."""
        if admission.fair_share == "none":
            self.by_owner, self._of = {}, None
            return self.by_owner
        if self._of != admission.fair_share:
            self._load(admission.fair_share, now)
        month_usd = _by_owner(spend, admission)
        kept = 0.5 ** (max(0.0, now - self._at) / admission.fair_share_half_life_s)
        usage = {owner: each * kept for owner, each in self.by_owner.items() if each * kept > FORGOTTEN_USD}
        for owner, total in month_usd.items():
            before = self._month_usd.get(owner, 0.0)
            added = total - before if total >= before else total  # a new month begins at 0
            if added > 0.0:
                usage[owner] = usage.get(owner, 0.0) + added
        self.by_owner, self._month_usd, self._at = usage, month_usd, now
        return self.by_owner

    def save_if_due(self, now: float, lease: LeaderLease | None) -> None:
        """Store the usage from time to time. Raises StoreBusy, StaleWrite."""
        if self._of is None or now - self._saved_at < SAVED_EVERY_S:
            return
        state = {"of": self._of, "at": self._at, "usage": self.by_owner, "month": self._month_usd}
        with self.store.transaction(now, lease) as txn:
            txn.put_meta(USAGE, json.dumps(state))
        self._saved_at = now

    def forget(self) -> None:
        """Read the stored usage again: another leader may have counted."""
        self._of = None

    def _load(self, fair_share: str, now: float) -> None:
        text = self.store.get_meta(USAGE)
        state = json.loads(text) if text is not None else {}
        if state.get("of") != fair_share:  # never counted so: this month counts as if it were now
            state = {"at": now, "usage": {}, "month": {}}
        self.by_owner, self._month_usd, self._at = state["usage"], state["month"], state["at"]
        self._of, self._saved_at = fair_share, now


def _by_owner(spend: Spend, admission: AdmissionPolicy) -> dict[str, float]:
    key = admission.fair_share_tag
    if key is None:
        return {scope.name: usd for scope, usd in spend.by_scope_month_usd.items() if scope.kind == "user"}
    prefix = f"{key}="
    return {
        scope.name.removeprefix(prefix): usd
        for scope, usd in spend.by_scope_month_usd.items()
        if scope.kind == "tag" and scope.name.startswith(prefix)
    }
