"""Persistent state: jobs, instances, intents, back-offs and the append-only event log, in SQLite or PostgreSQL.

This is the only SQL in HCloud. Committed data survives ``kill -9`` and power loss; a failed write leaves no trace.
Every write is one short transaction. Writes are serialised by a lock on the one row of table ``head`` and numbered by
revision, so that commits, revisions and events have the same order.
"""

from hcloud.store.chain import AuditHead, VerifiedLog
from hcloud.store.database import without_password
from hcloud.store.live import LiveView
from hcloud.store.memory import MemoryStore
from hcloud.store.opening import Examined, check_database, check_integrity, count_sealed, examine, verify_audit_log
from hcloud.store.store import Store
from hcloud.store.transaction import LeaderLease, Submission, Transaction

__all__ = [
    "AuditHead",
    "Examined",
    "LeaderLease",
    "LiveView",
    "MemoryStore",
    "Store",
    "Submission",
    "Transaction",
    "VerifiedLog",
    "check_database",
    "check_integrity",
    "count_sealed",
    "examine",
    "verify_audit_log",
    "without_password",
]
