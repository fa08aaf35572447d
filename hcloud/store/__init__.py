"""State that survives: jobs, instances, intents, back-offs and the append-only event log, on SQLite or PostgreSQL.

The only SQL in HCloud. What is committed survives ``kill -9`` and a power cut; what fails leaves nothing half-written.
Every write is one short transaction, all writes happen one after the other (the row of table ``head`` is their lock),
and each has a revision number, so that the order of commits, revisions and events is one and the same.
"""

from hcloud.store.database import without_password
from hcloud.store.live import LiveView
from hcloud.store.memory import MemoryStore
from hcloud.store.opening import Examined, check_database, examine
from hcloud.store.store import Store
from hcloud.store.transaction import LeaderLease, Submission, Transaction

__all__ = [
    "Examined",
    "LeaderLease",
    "LiveView",
    "MemoryStore",
    "Store",
    "Submission",
    "Transaction",
    "check_database",
    "examine",
    "without_password",
]
