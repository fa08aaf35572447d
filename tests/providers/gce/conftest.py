"""A fake Compute Engine for each test; whoever reaches for another machine fails."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.gce.bench import GceBench
from tests.providers.gce.network import guard


@pytest.fixture(autouse=True)
def strayed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Hosts other than this one that were reached for; must be empty at the end."""
    hosts = guard(monkeypatch)
    yield hosts
    assert hosts == []


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[GceBench]:
    """A provider on the fake."""
    made = GceBench(tmp_path)
    yield made
    made.close()
