"""How the ends of the wire are connected: methods, sizes, keepalive and certificates of gRPC.

Agents (``link``) connect to the gateway's TLS port with a certificate of their own (``credential``). The daemon
(``runner``) connects to its Unix socket, which only its user may open.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from hcloud.engine.tls import GATEWAY, server_files

CONNECT, CONTENT, OBSERVE, AWAIT, CALL, ADMIT, ARCHIVES = (
    f"/hcloud.engine.v1.Gateway/{name}"
    for name in ("Connect", "Content", "Observe", "Await", "Call", "Admit", "Archives")
)
MESSAGE_BYTES_MAX = 8 << 20
"""Largest message to the gateway, and to an agent; logs and archives flow in pieces of less than that."""
FRAME_BYTES, CONTENT_BYTES_MAX = 1 << 20, 64 << 20
"""Content of files flows past the messages as plain bytes: so many in a frame, and in answer to one command."""
DAEMON_BYTES_MAX = 256 << 20
"""Largest message to the daemon: the changed reports of all agents together."""
KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 10.0, 10.0
"""How often an idle connection is tried, and after which time without an answer it counts as lost."""
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", int(1000 * KEEPALIVE_S)),
    ("grpc.keepalive_timeout_ms", int(1000 * KEEPALIVE_TIMEOUT_S)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_CLIENT = (
    *_KEEPALIVE,
    ("grpc.ssl_target_name_override", GATEWAY),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
LISTENING = (
    *_KEEPALIVE,
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.http2.min_ping_interval_without_data_ms", int(500 * KEEPALIVE_S)),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
)
"""Options of the server that agents connect to."""
SERVING_DAEMON = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", DAEMON_BYTES_MAX),
)
"""Options of the server that the daemon connects to."""


def agent_options() -> list[tuple[str, Any]]:
    """Return the options of an agent's channel."""
    return [*_CLIENT, ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]


def daemon_options() -> list[tuple[str, Any]]:
    """Return the options of the daemon's channel."""
    return [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 200),
        ("grpc.max_receive_message_length", DAEMON_BYTES_MAX),
    ]


def host_and_port(address: str) -> tuple[str, int]:
    """Return both parts of ``host:port``."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def server_credentials(tls_dir: Path) -> grpc.ServerCredentials:
    """Return the gateway's certificate; callers without one of the same authority are refused. Raises ConfigError."""
    authority, certificate, key = (path.read_bytes() for path in server_files(tls_dir))
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
