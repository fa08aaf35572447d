"""Operators' directives and the pause are stored, with and without a database, all or nothing."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hcloud.core.errors import BadInput
from hcloud.planner.snapshot import Directive, DirectiveScope
from hcloud.store import Store
from hcloud.store.memory import MemoryStore

AT = 1_900_000_000.0
ORDER = Directive(scope=DirectiveScope.TYPE, name="m5.*", by="ada", ordered_at=AT, deadline_at=AT + 5)


@pytest.fixture(params=["database", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store.open(f"sqlite:///{tmp_path}/x.db") if request.param == "database" else MemoryStore()
    yield made
    made.close()


def test_an_order_is_there_until_it_is_dropped_and_a_new_one_replaces_it(store: Store) -> None:
    later = Directive(scope=DirectiveScope.TYPE, name="m5.*", by="bob", ordered_at=AT + 1)
    with store.transaction(AT) as txn:
        txn.put_directive(ORDER)
    assert store.live().directives == (ORDER,)
    with store.transaction(AT) as txn:
        txn.put_directive(later)
    assert store.live().directives == (later,)
    with store.transaction(AT) as txn:
        assert txn.drop_directive(DirectiveScope.TYPE, "m5.*")
        assert not txn.drop_directive(DirectiveScope.INSTANCE, "m5.*")
    assert store.live().directives == ()


def test_orders_and_pause_go_with_a_transaction_that_fails(store: Store) -> None:
    with suppress(BadInput), store.transaction(AT) as txn:
        txn.put_directive(ORDER)
        txn.put_meta("paused", "why")
        assert txn.meta("paused") == "why"
        raise BadInput("changed my mind")
    assert store.live().directives == ()
    assert store.get_meta("paused") is None
    with pytest.raises(BadInput), store.transaction(AT) as txn:
        txn.put_meta("paused", "a\x00b")
