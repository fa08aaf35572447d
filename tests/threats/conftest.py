"""The API that submitters, readers and strangers attack."""

from collections.abc import Iterator

import pytest

from tests.threats.served import Served, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """An API for all tests of one file."""
    with serving() as made:
        yield made
