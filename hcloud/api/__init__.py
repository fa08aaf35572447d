"""The HTTP API of the daemon: on a Unix socket, and over TCP with TLS and tokens if configured."""

from hcloud.api.app import build_app
from hcloud.api.auth import Caller, Role, SocketPeer
from hcloud.api.context import ApiContext, DaemonStatus
from hcloud.api.schemas import PlannedJob, PlanningCandidate
from hcloud.api.server import ApiServer, serve

__all__ = [
    "ApiContext",
    "ApiServer",
    "Caller",
    "DaemonStatus",
    "PlannedJob",
    "PlanningCandidate",
    "Role",
    "SocketPeer",
    "build_app",
    "serve",
]
