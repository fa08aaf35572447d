"""Instances with our owner tag and no record: reported, terminated, and again while they are listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hcloud.apply.machines import emit_provider_error, terminate_retry_delay_s
from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderError
from hcloud.core.model import EventKind
from hcloud.provider import CloudInstance, Provider
from hcloud.quarantine.batches import call_provider
from hcloud.store import LeaderLease, Store


@dataclass(slots=True)
class Orphans:
    """Terminates unknown instances. No intent is needed: the next listing repeats the call.

    Its memory of what was asked may be lost without harm: then each is asked once more, sooner.
    """

    _asked: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    """By provider and its name for a machine: how often it was asked to end, and when to ask again."""

    def end(
        self,
        store: Store,
        clock: Clock,
        lease: LeaderLease | None,
        name: str,
        provider: Provider,
        listed: Sequence[CloudInstance],
    ) -> None:
        """Report and terminate the ``listed`` ones that are due; a failed call is retried with back-off."""
        now = clock.now()
        due = [each for each in listed if self._asked.get((name, each.provider_id), (0, now))[1] <= now]
        if not due:
            return
        with store.transaction(now, lease) as txn:
            for each in due:
                txn.pass_over(each.instance_id)
                txn.emit(
                    EventKind.ORPHAN, provider_id=each.provider_id, provider=name, token=each.token, action="terminate"
                )
        trouble = _terminate(name, provider, due)
        if trouble is not None:
            with store.transaction(clock.now(), lease) as txn:
                emit_provider_error(txn, name, "terminate", trouble)
        self._note(name, due, trouble, clock.now())

    def _note(self, name: str, due: Sequence[CloudInstance], trouble: ProviderError | None, now: float) -> None:
        for each in due:
            tries = self._asked.get((name, each.provider_id), (0, now))[0]
            self._asked[name, each.provider_id] = (tries + 1, now + terminate_retry_delay_s(trouble, tries))

    def forget(self, before: float) -> None:
        """Forget instances that were not listed since ``before``: they are terminated."""
        self._asked = {key: asked for key, asked in self._asked.items() if asked[1] >= before}


def _terminate(name: str, provider: Provider, machines: Sequence[CloudInstance]) -> ProviderError | None:
    try:
        call_provider(lambda: provider.terminate([each.provider_id for each in machines]), f"{name}.terminate")
    except ProviderError as trouble:
        return trouble
    return None
