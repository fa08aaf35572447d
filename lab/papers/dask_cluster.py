"""A Dask cluster as the place where simulations run: ``make reproduce ARGS="--scheduler tcp://10.0.0.5:8786"``.

Dask's workers run whatever its scheduler sends them, so this is for a cluster of one's own, in a network of one's own.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from hcloud.core.errors import BadInput, missing_library

CONNECT_TIMEOUT_S = 10


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """Return an executor on the cluster whose scheduler is at ``address``. Its workers have this checkout, too.

    Raises BadInput: Dask is not installed, no scheduler answers, or there is no worker with this checkout.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise BadInput(f"--scheduler: {missing_library('Dask', 'dask')}") from error
    _refuse_unreachable(address)
    try:
        client: Any = Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise BadInput(f"--scheduler {address!r}: no Dask scheduler answers: {error}") from error
    with client:
        _refuse_strange_workers(client, address)
        with client.get_executor(pure=False) as pool:
            yield pool


def _refuse_unreachable(address: str) -> None:
    # A client that cannot connect complains once more when it is collected.
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise BadInput(f"--scheduler {address!r}: must be an address such as tcp://10.0.0.5:8786")
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise BadInput(f"--scheduler {address!r}: no Dask scheduler answers: {error.strerror or error}") from error


def _refuse_strange_workers(client: Any, address: str) -> None:
    try:
        found: dict[str, object] = client.run(is_checkout)
    except Exception as error:  # whatever a worker raised, which need not be a class known here
        raise BadInput(f"--scheduler {address!r}: its workers do not run in a checkout of HCloud: {error}") from error
    if not found:
        raise BadInput(f"--scheduler {address!r}: it has no workers; start some with `dask worker {address}`")


def is_checkout() -> bool:
    """Return True, on a worker that can import this module."""
    return True
