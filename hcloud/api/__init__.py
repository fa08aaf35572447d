"""HTTP on a Unix socket (TCP with TLS and a token on request): the only door to the daemon for people and programs."""

from hcloud.api.app import build_app
from hcloud.api.desk import DaemonStatus, Desk
from hcloud.api.gate import Caller, Peer, Role
from hcloud.api.server import ApiServer, serve
from hcloud.api.views import PlannedJob, PlanningCandidate

__all__ = [
    "ApiServer",
    "Caller",
    "DaemonStatus",
    "Desk",
    "Peer",
    "PlannedJob",
    "PlanningCandidate",
    "Role",
    "build_app",
    "serve",
]
