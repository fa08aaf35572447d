"""What another process does to a store: run as `python -m tests.store.other_process WHAT URL [NAME]`.

Every commit is reported on standard output, one line each.
"""

import sqlite3
import sys
from contextlib import suppress
from itertools import count

from sqlalchemy import make_url

from hcloud.core.errors import StaleWrite
from hcloud.core.model import EventKind
from hcloud.store import Store
from hcloud.store.schema import VERSION_TABLE
from tests.store.samples import submit


def say(text: str) -> None:
    """Report to the test at once."""
    print(text, flush=True)


def submit_for_ever(url: str) -> None:
    """Submit pairs of jobs and print their ids, until killed."""
    store = Store.open(url)
    for number in count():
        say(" ".join(job.id for job in submit(store, count=2, now=float(number))))


def submit_some(url: str) -> None:
    """Submit fifty jobs one by one."""
    store = Store.open(url, busy_timeout_s=60.0)
    for number in range(50):
        say(submit(store, now=float(number))[0].id)


def contend(url: str, name: str) -> None:
    """Try to lead at every second from 0 to 99, for a second each, and log what was done as leader."""
    store = Store.open(url, busy_timeout_s=60.0)
    for now in range(100):
        lease = store.acquire_lease(name, float(now), 1.0)
        if lease is None:
            continue
        for _ in range(3):
            with suppress(StaleWrite), store.transaction(float(now), lease) as tx:
                tx.emit(EventKind.DAEMON, holder=name, epoch=lease.epoch)
    say("done")


def hold_sqlite_lock(url: str) -> None:
    """Hold a SQLite database's write lock until standard input ends."""
    connection = sqlite3.connect(str(make_url(url).database), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say("locked")
    sys.stdin.read()
    connection.execute("ROLLBACK")


def hold_other_schema(url: str, schema: str) -> None:
    """Write another schema revision into a SQLite database, and keep it open until standard input ends."""
    connection = sqlite3.connect(str(make_url(url).database), isolation_level=None)
    connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", (schema,))
    say("noted")
    sys.stdin.read()


if __name__ == "__main__":
    does = {
        "submit": submit_for_ever,
        "some": submit_some,
        "contend": contend,
        "lock": hold_sqlite_lock,
        "schema": hold_other_schema,
    }
    does[sys.argv[1]](*sys.argv[2:])
