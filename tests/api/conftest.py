"""A deployment per test."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.deployment import Deployment


@pytest.fixture
def home() -> Iterator[Path]:
    """A short directory that other users may enter (a socket's path may have 107 characters)."""
    with tempfile.TemporaryDirectory(prefix="hcloud-api-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def deployment(home: Path) -> Iterator[Deployment]:
    """A small deployment that nobody has used yet."""
    made = Deployment(home)
    yield made
    made.close()
