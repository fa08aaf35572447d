"""The launch calls of one plan, parallel where a provider allows it: one launch may take ten seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

from hcloud.core.clock import Clock
from hcloud.core.errors import ProviderError, ProviderUnavailable
from hcloud.provider import CloudInstance, LaunchRequest, Provider, is_machine
from hcloud.quarantine import call_provider

SEND_TIME_S = 5.0
"""No launch is sent after this long, so that a large plan does not delay the cycle; the next cycle continues."""

Answer = CloudInstance | ProviderError | None
Send = Callable[[LaunchRequest], Answer]


def send_launches(
    providers: Mapping[str, Provider], requests: Sequence[LaunchRequest], clock: Clock
) -> Generator[Answer, None, None]:
    """Yield each request's answer in the order of ``requests``; None if time was up before it was sent.

    A provider that takes one launch at a time gets each only after the answers before it were consumed. Closing the
    generator cancels what is not sent, and waits for what is in progress.
    """
    until = clock.now() + SEND_TIME_S

    def send(request: LaunchRequest) -> Answer:
        if clock.now() >= until:
            return None
        try:
            name = request.offer.provider
            return call_provider(lambda: provider_named(providers, name).launch(request), f"{name}.launch", is_machine)
        except ProviderError as error:
            return error

    with ExitStack() as pools:
        futures = _submit_parallel(providers, requests, send, pools)
        for number, request in enumerate(requests):
            yield futures[number].result() if number in futures else send(request)


def _submit_parallel(
    providers: Mapping[str, Provider], requests: Sequence[LaunchRequest], send: Send, pools: ExitStack
) -> dict[int, Future[Answer]]:
    """Submit the requests to providers that take several at once, to a pool per provider; return futures by index."""
    by_provider = Counter(each.offer.provider for each in requests)
    pool_of: dict[str, ThreadPoolExecutor] = {}
    for name, count in by_provider.items():
        width = min(count, launches_at_once(providers[name])) if name in providers else 1
        if width > 1:
            pool = pool_of[name] = ThreadPoolExecutor(width, f"launch-{name}")
            pools.callback(pool.shutdown, cancel_futures=True)
    numbered = ((n, each, pool_of.get(each.offer.provider)) for n, each in enumerate(requests))
    return {n: pool.submit(send, each) for n, each, pool in numbered if pool is not None}


def provider_named(providers: Mapping[str, Provider], name: str) -> Provider:
    """Return a provider by name.

    Raises ProviderUnavailable if it is no longer configured: intents for its instances are retried, as it may return.
    """
    if name not in providers:
        raise ProviderUnavailable(f"provider {name} is not configured; restore it until its machines are terminated")
    return providers[name]


def launches_at_once(provider: Provider) -> int:
    """Return how many launches a provider takes at the same time; one if it does not say."""
    return max(1, getattr(provider, "launches_at_once", 1))
