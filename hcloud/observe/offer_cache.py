"""The offers of all providers, read again every few seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import is_

from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderError
from hcloud.core.model import Offer
from hcloud.provider import CommitmentSource, CommitmentUse, Provider, is_commitment_mapping, is_offer_list
from hcloud.quarantine import call_provider

OFFERS_POLL_S = 15.0
"""How often each provider is asked for its offers."""


@dataclass(slots=True)
class OfferCache:
    """The last known offers of each provider. A provider that does not answer keeps its old offers."""

    providers: Mapping[str, Provider]
    clock: Clock
    by_provider: dict[str, tuple[Offer, ...]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    """By provider, the error of its last call, if that failed."""
    commitments: dict[str, Mapping[str, Sequence[CommitmentUse]]] = field(default_factory=dict)
    """By provider, its commitments by kind, from the last call that succeeded; unread kinds are absent."""
    _polled_at: dict[str, float] = field(default_factory=dict)
    _sorted: tuple[list[tuple[Offer, ...]], tuple[Offer, ...]] = ([], ())
    """The answers that were merged last, and the merged offers."""

    def refresh(self) -> dict[str, ProviderError]:
        """Ask every provider that is due; return the errors by provider."""
        errors: dict[str, ProviderError] = {}
        now = self.clock.now()
        for name, provider in sorted(self.providers.items()):
            if now < self._polled_at.get(name, -1e18) + OFFERS_POLL_S:
                continue
            self._polled_at[name] = now
            try:
                offers = call_provider(provider.offers, f"{name}.offers", is_offer_list)
                if offers != self.by_provider.get(name):  # equal answers keep the old objects, and with them caches
                    self.by_provider[name] = offers
                if isinstance(provider, CommitmentSource):
                    self.commitments[name] = call_provider(
                        provider.commitments, f"{name}.commitments", is_commitment_mapping
                    )
                self.errors.pop(name, None)
            except ProviderError as error:
                errors[name] = error
                self.errors[name] = str(error)
        return errors

    def expire(self) -> None:
        """Make every provider due at the next refresh: a failed launch shows that offers have changed."""
        self._polled_at.clear()

    @property
    def all(self) -> tuple[Offer, ...]:
        """All known offers, sorted by key; the same object until an answer changes."""
        answers, (merged, offers) = list(self.by_provider.values()), self._sorted
        if len(answers) != len(merged) or not all(map(is_, answers, merged)):
            offers = tuple(sorted(chain.from_iterable(answers), key=lambda o: o.key))
            self._sorted = (answers, offers)
        return offers
