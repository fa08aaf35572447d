"""Orphans: instances that carry our owner tag but are in no record. They are reported and terminated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hcloud.apply.machines import emit_provider_error, terminate_retry_delay_s
from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderError
from hcloud.core.model import EventKind
from hcloud.provider import CloudInstance, Provider
from hcloud.quarantine import call_provider
from hcloud.store import LeaderLease, Store


@dataclass(slots=True)
class Orphans:
    """Terminates orphans without intents: each listing that still names one is reason enough to repeat the call.

    Its memory may be lost without harm: the next call is then made sooner.
    """

    _calls: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    """By provider and provider id: the number of calls made, and when the next one is due (Unix seconds)."""

    def terminate(
        self,
        store: Store,
        clock: Clock,
        lease: LeaderLease | None,
        name: str,
        provider: Provider,
        listed: Sequence[CloudInstance],
    ) -> None:
        """Report and terminate the ``listed`` orphans that are due; failed calls are repeated with back-off."""
        now = clock.now()
        due = [each for each in listed if self._calls.get((name, each.provider_id), (0, now))[1] <= now]
        if not due:
            return
        with store.transaction(now, lease) as txn:
            for each in due:
                txn.reserve_number(each.instance_id)
                txn.emit(
                    EventKind.ORPHAN, provider_id=each.provider_id, provider=name, token=each.token, action="terminate"
                )
        failed: ProviderError | None = None
        try:
            call_provider(lambda: provider.terminate([each.provider_id for each in due]), f"{name}.terminate")
        except ProviderError as error:
            failed = error
            with store.transaction(clock.now(), lease) as txn:
                emit_provider_error(txn, name, "terminate", error)
        now = clock.now()
        for each in due:
            tries = self._calls.get((name, each.provider_id), (0, now))[0]
            self._calls[name, each.provider_id] = (tries + 1, now + terminate_retry_delay_s(failed, tries))

    def forget(self, before: float) -> None:
        """Forget instances with a next call due before ``before`` (Unix seconds): no listing names them any more."""
        self._calls = {key: call for key, call in self._calls.items() if call[1] >= before}
