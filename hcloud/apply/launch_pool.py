"""Launch calls of one plan, several at once where a provider takes them so: one launch may take ten seconds."""

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
"""Nothing more is sent after this long, so that a big plan does not hold up the cycle; the next cycle goes on."""

Answer = CloudInstance | ProviderError | None
Send = Callable[[LaunchRequest], Answer]


def send_launches(
    providers: Mapping[str, Provider], requests: Sequence[LaunchRequest], clock: Clock
) -> Generator[Answer, None, None]:
    """Yield each request's answer in the order of ``requests``, so that results are recorded in the plan's order.

    None: not sent, because time was up. Where a provider takes one launch at a time, each is sent only when the answers
    before it have been taken. Whoever stops taking answers stops what is not sent; what is under way is waited for.
    """
    until = clock.now() + SEND_TIME_S

    def send(request: LaunchRequest) -> Answer:
        """Ask one provider; None, and nothing was sent, where its turn comes after ``until``."""
        if clock.now() >= until:
            return None
        try:
            name = request.offer.provider
            return call_provider(lambda: provider_named(providers, name).launch(request), f"{name}.launch", is_machine)
        except ProviderError as trouble:
            return trouble

    with ExitStack() as pools:
        flying = _flying(providers, requests, send, pools)
        for number, request in enumerate(requests):
            yield flying[number].result() if number in flying else send(request)


def _flying(
    providers: Mapping[str, Provider], requests: Sequence[LaunchRequest], send: Send, pools: ExitStack
) -> dict[int, Future[Answer]]:
    """Hand over, by number, the requests to providers that take several at once; each has a pool of its own."""
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
    """Return a provider by name; raises ProviderUnavailable where the configuration no longer has it, though machines
    of it still live: what waits for it is tried again, as it may be put back, and holds up nothing else."""
    if name not in providers:
        raise ProviderUnavailable(f"provider {name} is not configured; restore it until its machines are terminated")
    return providers[name]


def launches_at_once(provider: Provider) -> int:
    """Return how many launches a provider takes at the same time; one that does not say takes one."""
    return max(1, getattr(provider, "launches_at_once", 1))
