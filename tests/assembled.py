"""The cycle of tests: put together as the daemon's own is, from the configuration of a deployment with one provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hcloud.apply import Applier
from hcloud.classifier.library import Library
from hcloud.config import Config, EngineSettings, ProviderSettings
from hcloud.controller import Controller
from hcloud.core.clock import Clock
from hcloud.observe.instances import InstanceObserver
from hcloud.provider import Provider, Runner
from hcloud.store import Store
from hcloud.wiring import build_controller
from tests.policies import parse_simple

Part = TypeVar("Part")
LISTEN = "10.0.0.1:8786"
"""An address that rented machines could dial; clouds refuse to launch towards this machine's own."""
NO_SOCKET = Path("/run")
"""Where sockets would be: nothing is served here, and a socket's path must be shorter than pytest's directories are."""


def assembled(
    home: Path,
    store: Store,
    provider: Provider,
    runner: Runner,
    clock: Clock,
    policy: Mapping[str, object],
    *,
    owner: str,
    poll_s: float = 1.0,
    tls_dir: Path | None = None,
) -> Controller:
    """Return the cycle of a deployment in ``home``: it has no library of applications, and its chance is fixed."""
    config = Config(
        owner=owner,
        state_dir=home,
        run_dir=NO_SOCKET,
        engine=EngineSettings(programs="real" if tls_dir else "simulated", listen=LISTEN, tls_dir=tls_dir or home),
        providers=(ProviderSettings(name=provider.name, type="mock", poll_s=poll_s),),
    )
    return build_controller(
        config,
        store,
        {provider.name: provider},
        runner,
        clock,
        parse_simple(policy),
        rng=np.random.default_rng(1),
        holder="tests",
        library=Library(),
    )


def observes_as(kind: type[InstanceObserver]) -> Callable[[Controller], None]:
    """Return what lets a daemon observe instances with a seeded bug."""

    def swap(controller: Controller) -> None:
        controller.observer.instances = of_kind(controller.observer.instances, kind)

    return swap


def applies_as(kind: type[Applier]) -> Callable[[Controller], None]:
    """Let a daemon carry out plans in another way: a bug that is seeded."""

    def swap(controller: Controller) -> None:
        controller.applier = of_kind(controller.applier, kind)

    return swap


def of_kind(honest: Part, kind: type[Part]) -> Part:
    """Return a part as another kind of the same: it holds what the honest one holds, and has the other's bug."""
    names = [each.name for each in fields(honest)] if is_dataclass(honest) else list(vars(honest))
    other = kind.__new__(kind)
    for name in names:
        setattr(other, name, getattr(honest, name))
    return other


@dataclass
class _Changed:
    """Something with a few of its methods exchanged."""

    honest: Any
    changes: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.changes.get(name) or getattr(self.honest, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("honest", "changes"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.honest, name, value)


def changed_by(honest: Any, **changes: Any) -> Any:
    """Return ``honest`` with some methods replaced. Raises AttributeError for a method it does not have."""
    for name in changes:
        getattr(honest, name)
    return _Changed(honest, changes)
