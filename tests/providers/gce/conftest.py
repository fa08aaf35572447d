"""A fake Compute Engine for each test; whoever reaches for another machine fails."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hcloud.config import package_data
from tests.providers.gce.bench import GceBench
from tests.providers.gce.network import guard
from tests.providers.gce.permissions import OF_METHOD, needed


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
    role = yaml.safe_load(package_data.path("deploy/iam/gce-daemon-role.yaml").read_text())["includedPermissions"]
    # Whatever a test asks for, the daemon may do. What the fake does not know fails a test by itself.
    known = [each for each in made.compute.seen if each.method in OF_METHOD or each.method == "instances.insert"]
    assert needed(known) - set(role) == set()
