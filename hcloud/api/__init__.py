"""HTTP on a Unix socket (TCP with TLS and a token on request): the only door to the daemon for people and programs."""

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
