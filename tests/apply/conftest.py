"""Fixtures of the cycle's tests."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.apply.deployment import Deployment, deployment

MakeDeployment = Callable[..., Deployment]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeDeployment]:
    """Open deployments; closed, and looked over once more, at the end."""
    made: list[Deployment] = []

    def build(cloud: Mapping[str, object] | None = None, policy: Mapping[str, object] | None = None) -> Deployment:
        home = tmp_path / str(len(made))
        home.mkdir()
        made.append(deployment(home, cloud, policy))
        return made[-1]

    yield build
    for each in made:
        each.check()
        each.scene.close()


@pytest.fixture
def site(make: MakeDeployment) -> Deployment:
    """A plain deployment."""
    return make()
