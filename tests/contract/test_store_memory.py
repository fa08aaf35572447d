"""The contract of the store in memory: the suite of the databases, without the tests that need a database."""

import inspect

import pytest

from hcloud.store import MemoryStore, Store
from tests.contract import (
    test_arrays_contract,
    test_dependencies_contract,
    test_forgetting_contract,
    test_schedules_contract,
    test_store_contract,
)

_SUITES = (
    test_store_contract,
    test_forgetting_contract,
    test_arrays_contract,
    test_dependencies_contract,
    test_schedules_contract,
)
for _name, _test in [each for suite in _SUITES for each in vars(suite).items()]:
    _asks = set(inspect.signature(_test).parameters) if _name.startswith("test_") else set()
    if "store" in _asks and not {"store_url", "new_url", "postgresql"} & _asks:
        globals()[_name] = _test


@pytest.fixture
def store() -> Store:
    """A store without jobs."""
    return MemoryStore()
