"""One engine with one machine."""

from collections.abc import Iterator

import pytest

from tests.engine.site import Machine, Site, Watch

NAME = "inst-1"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An engine with one machine, for all tests of a file."""
    site = Site(tmp_path_factory.mktemp("site"), isolation="best_effort")
    try:
        site.machine(NAME)
        yield site
    finally:
        site.close()


@pytest.fixture
def machine(site: Site) -> Machine:
    """The machine, started anew where a test before ended it."""
    machine = site.machines[NAME]
    if machine.supervisor.poll() is not None:
        machine.start()
    return machine


@pytest.fixture
def watch(site: Site, machine: Machine) -> Watch:
    """What the engine says, looked at until something is so; the machine has registered."""
    watch = Watch(site.runner())
    watch.registered(NAME)
    return watch
