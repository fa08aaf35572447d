"""From submission to result on Compute Engine over real HTTP, in calm and in trouble: nothing leaks or runs twice."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from hcloud.core.model import EventKind
from tests.chaos.lives import crash_and_recover, live
from tests.chaos.scene import START_AT, CrashPoints, FileClock, play, violations
from tests.providers.gce.compute import FakeCompute, Fault
from tests.providers.gce.scene import build_on_gce
from tests.providers.gce.server import Server


class Site:
    """A fake project whose clock is in a file, and a deployment on it."""

    def __init__(self, home: Path) -> None:
        home.mkdir(exist_ok=True)
        self.home = home
        self.compute = FakeCompute(FileClock(home / "clock"))
        self.server = Server(self.compute)
        self.build = partial(build_on_gce, endpoint=self.server.endpoint)

    def close(self) -> None:
        self.server.close()
        assert self.compute.problems == []


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def test_jobs_run_to_their_results_and_every_machine_ends(site: Site) -> None:
    scene = site.build(site.home, CrashPoints())
    play(scene)
    assert violations(scene) == []
    assert list(scene.store.events(kinds=[EventKind.INSTANCE_READY], limit=100))
    assert site.compute.truths and site.compute.machines == {}
    scene.close()


LAUNCH_TROUBLES = {
    "stockout": 2,
    "quota": 1,
    "throttle": 2,
    "lose_request": 1,
    "lose_reply": 1,
    "late": 1,
    "unavailable": 1,
    "html": 1,
}


def test_troubles_of_launches_cost_time_only(site: Site) -> None:
    site.compute.faults += [Fault(kind, "instances.insert", times=n) for kind, n in LAUNCH_TROUBLES.items()]
    _play_to_the_end(site)


OTHER_TROUBLES = (
    Fault("unavailable", "regions.get", times=2),
    Fault("types_unavailable", "machineTypes.list", "us-central1-b"),
    Fault("lose_reply", "zoneOperations.get"),
    Fault("unavailable", "zoneOperations.list", times=2),
    Fault("throttle", "instances.get"),
    Fault("unreachable", "instances.aggregatedList", "us-central1-a", times=3),
    Fault("cut", "instances.aggregatedList"),
    Fault("throttle", "instances.aggregatedList", times=2),
    Fault("lose_reply", "instances.delete"),
    Fault("lose_request", "instances.delete"),
    Fault("forbidden", "instances.delete"),
)


def test_troubles_of_reads_and_ends_cost_time_only(site: Site) -> None:
    site.compute.faults += [Fault(each.kind, each.method, each.zone, each.times) for each in OTHER_TROUBLES]
    _play_to_the_end(site)


KINDS = ("throttle", "throttle_403", "unavailable", "html", "cut", "lose_request", "lose_reply", "late")


def troubled(seed: int, clock: FileClock, share: float, until_at: float) -> Callable[[str, str], str]:
    """Return a chance of trouble for each request, the same whatever order threads send theirs in."""
    counts: Counter[str] = Counter()

    def chance(method: str, path: str) -> str:
        counts[path] += 1
        dice = random.Random(f"{seed}/{path}/{counts[path]}")
        if clock.now() > until_at or dice.random() > share:
            return ""
        # A read that is answered late is a read that is not answered.
        return dice.choice(KINDS if method in ("instances.insert", "instances.delete") else KINDS[:-1])

    return chance


@pytest.mark.parametrize("seed", range(4))
def test_random_troubles_of_every_call_cost_time_only(site: Site, seed: int) -> None:
    site.compute.chance = troubled(seed, FileClock(site.home / "clock"), share=0.3, until_at=START_AT + 300)
    assert _play_to_the_end(site) > 3


def test_slow_operations_cost_time_only(site: Site) -> None:
    """Each launch is told only later, one of them as a stockout."""
    site.compute.operation_s = 30.0
    site.compute.faults.append(Fault("stockout", "instances.insert"))
    site.build = partial(site.build, operation_wait_s=2.0)
    _play_to_the_end(site)


def _play_to_the_end(site: Site) -> int:
    """Play; return how many calls met trouble."""
    scene = site.build(site.home, CrashPoints())
    play(scene)
    assert violations(scene) == []
    assert [each for each in site.compute.faults if each.times] == []
    assert site.compute.machines == {}
    troubles = list(scene.store.events(kinds=[EventKind.PROVIDER_TROUBLE], limit=1000))
    scene.close()
    return len(troubles)


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Every moment of an undisturbed life."""
    calm = Site(tmp_path_factory.mktemp("calm"))
    life = live(calm.home, calm.build)
    calm.close()
    assert life.violations == ()
    return life.passed


@pytest.mark.parametrize(
    "label",
    ["provider.launch:before", "provider.launch:after", "provider.terminate:before", "provider.terminate:after"],
)
def test_daemon_killed_around_a_launch_or_an_end_loses_nothing(
    tmp_path: Path, moments: tuple[str, ...], label: str
) -> None:
    site = Site(tmp_path / "home")
    life = crash_and_recover(site.home, site.build, moments.index(label) + 1)
    site.close()
    assert life.violations == ()


def test_the_check_sees_a_machine_that_outlives_its_record(site: Site) -> None:
    scene = site.build(site.home, CrashPoints())
    play(scene)
    next(iter(site.compute.truths.values())).ended_at = None
    assert any("still runs" in each for each in violations(scene))
    scene.close()
