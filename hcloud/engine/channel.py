"""How the three ends of the wire are connected: methods, sizes, keepalive and certificates of gRPC.

The gateway (``gateway``) listens; agents (``link``) and daemons (``runner``) connect to it. All hold certificates of
the deployment's own authority (``tls``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from hcloud.engine.tls import context_files

CONNECT, OBSERVE, AWAIT, CALL = (
    f"/hcloud.engine.v1.Gateway/{name}" for name in ("Connect", "Observe", "Await", "Call")
)
MESSAGE_BYTES_MAX = 8 << 20
"""Largest message to the gateway, and to an agent; logs and archives flow in pieces of less than that."""
DAEMON_BYTES_MAX = 256 << 20
"""Largest message to the daemon: the changed reports of all agents together."""
KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 10.0, 10.0
"""How often an idle connection is tried, and after which time without an answer it counts as lost."""
GATEWAY_NAME = "scheduler"
"""The gateway's name in its certificate, whatever the address it is reached at."""
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", int(1000 * KEEPALIVE_S)),
    ("grpc.keepalive_timeout_ms", int(1000 * KEEPALIVE_TIMEOUT_S)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_CLIENT = (
    *_KEEPALIVE,
    ("grpc.ssl_target_name_override", GATEWAY_NAME),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
LISTENING = (
    *_KEEPALIVE,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", int(500 * KEEPALIVE_S)),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", DAEMON_BYTES_MAX),
)
"""Options of the gateway's server."""


def channel_options(received_bytes_max: int) -> list[tuple[str, Any]]:
    """Return the options of a channel to the gateway over which no larger messages may come."""
    return [*_CLIENT, ("grpc.max_receive_message_length", received_bytes_max)]


def host_and_port(address: str) -> str:
    """Return ``host:port`` of an address with or without ``tls://``."""
    return address.partition("://")[2] or address


def client_credentials(tls_dir: Path, role: str) -> grpc.ChannelCredentials:
    """Return the certificate of that role as a client's. Raises ConfigError."""
    authority, key, certificate = _read(context_files(tls_dir, role), role)
    return grpc.ssl_channel_credentials(authority, key, certificate)


def server_credentials(tls_dir: Path) -> grpc.ServerCredentials:
    """Return the gateway's certificate; callers without one of the same authority are refused. Raises ConfigError."""
    authority, key, certificate = _read(context_files(tls_dir, GATEWAY_NAME), GATEWAY_NAME)
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)


def _read(files: Mapping[str, str], role: str) -> tuple[bytes, bytes, bytes]:
    names = ("tls_ca_file", f"tls_{role}_key", f"tls_{role}_cert")
    authority, key, certificate = (Path(files[name]).read_bytes() for name in names)
    return authority, key, certificate


def role_of(auth_context: Mapping[str, Any]) -> str:
    """Return the common name in the peer's certificate; "" without one."""
    names = auth_context.get("x509_common_name", ())
    return names[0].decode(errors="replace") if names else ""
