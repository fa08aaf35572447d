"""How Dask is configured to idle cheaply: with its defaults an idle scheduler with 200 workers takes a full core."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

DASK_SETTINGS: Mapping[str, object] = {
    "distributed.admin.system-monitor.interval": "60s",
    "distributed.admin.tick.interval": "60s",
    "distributed.admin.tick.cycle": "60s",
    "distributed.admin.low-level-log-length": 10,
    "distributed.admin.system-monitor.log-length": 10,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.worker.profile.enabled": False,
    "distributed.worker.http.routes": [],
    "distributed.scheduler.http.routes": [],
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.comm.timeouts.connect": "5s",
    "distributed.comm.timeouts.tcp": "30s",
    "distributed.diagnostics.nvml": False,
    "distributed.deploy.lost-worker-timeout": "60s",
}


def reduce_noise() -> None:
    """Let Dask speak only of what is wrong; connections that come and go are our normal life."""
    for name in (
        "distributed",
        "distributed.core",
        "distributed.worker",
        "distributed.scheduler",
        "tornado.application",
    ):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class Tolerant(dict[str, Callable[..., object]]):
    """Handlers by operation, where one that an older or newer version does not know is skipped and not fatal."""

    def __missing__(self, operation: str) -> Callable[..., object]:
        """Return a handler that does nothing."""
        return lambda **_: None
