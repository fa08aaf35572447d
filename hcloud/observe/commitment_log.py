"""Records in the event log which commitments were seen, and how much of each was unused, from when to when."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hcloud.core.model import EventKind
from hcloud.provider import CommitmentUse
from hcloud.store import LeaderLease, Store, Transaction

META_KEY = "commitments"
DAY_S = 86_400.0
_FIELDS = ("count", "unused", "usd_per_h", "ends_at")

_Fields = dict[str, Any]
_Key = tuple[str, str, str]


class CommitmentLog:
    """Writes one event for each commitment that appears, changes or is gone, and one for each every UTC day.

    The daily ones keep a commitment in the reports when older events are pruned. What was recorded last is stored with
    the events, so that a restart repeats nothing. A kind that was not read keeps what is recorded.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: tuple[object, ...] = ()

    def record(
        self,
        now: float,
        providers: Collection[str],
        readings: Mapping[str, Mapping[str, Sequence[CommitmentUse]]],
        lease: LeaderLease | None,
    ) -> None:
        """Record what has changed since the last record. ``readings``: by configured provider, commitments by kind."""
        day, epoch = now // DAY_S, lease.epoch if lease is not None else 0
        seen = (day, epoch, tuple(providers), {name: dict(kinds) for name, kinds in readings.items()})
        if seen == self._seen:
            return
        recorded = _parsed(self._store.get_meta(META_KEY))
        current = {
            (provider, kind, each.name): {key: getattr(each, key) for key in _FIELDS}
            for provider, kinds in readings.items()
            for kind, found in kinds.items()
            for each in found
        }
        kept = {
            (provider, kind, name): fields
            for (provider, kind, name), fields in recorded.items()
            if provider in providers and kind not in readings.get(provider, {})
        }
        wanted = {key: {**fields, "day": day} for key, fields in {**kept, **current}.items()}
        changed = {key: fields for key, fields in wanted.items() if recorded.get(key) != fields}
        gone = [key for key in recorded if key not in wanted]
        if changed or gone:
            with self._store.transaction(now, lease) as txn:
                for key in sorted(gone):
                    _emit(txn, key, {"count": 0.0, "unused": 0.0, "usd_per_h": 0.0, "ends_at": None})
                for key, fields in sorted(changed.items()):
                    _emit(txn, key, fields)
                txn.put_meta(META_KEY, json.dumps([[*key, fields] for key, fields in sorted(wanted.items())]))
        self._seen = seen


def _emit(txn: Transaction, key: _Key, fields: _Fields) -> None:
    provider, kind, name = key
    about = {each: fields[each] for each in _FIELDS}
    txn.emit(EventKind.COMMITMENT, provider=provider, commitment_kind=kind, commitment=name, **about)


def _parsed(text: str | None) -> dict[_Key, _Fields]:
    return {(provider, kind, name): fields for provider, kind, name, fields in json.loads(text or "[]")}
