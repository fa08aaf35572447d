"""From submission to result on EC2 over real HTTP, in calm and in trouble: nothing leaks, nothing runs twice."""

from functools import partial
from pathlib import Path

import pytest

from hcloud.core.model import EventKind
from tests.chaos.lives import crash_and_recover, live
from tests.chaos.scene import CrashPoints, FileClock, Scene, play, violations
from tests.providers.ec2.ec2_bench import settings_for
from tests.providers.ec2.ec2_scene import build_on_ec2
from tests.providers.ec2.fake_ec2 import FakeEc2


def opened(fake: FakeEc2, home: Path, crash: CrashPoints | None = None) -> Scene:
    """A deployment that has spot and on-demand machines, on a fresh account."""
    scene = build_on_ec2(home, crash or CrashPoints(), settings=settings_for(fake, list_lag_s=10, read_attempts=1))
    fake.reset(scene.clock)
    return scene


def test_jobs_run_to_their_results_and_every_machine_ends(fake: FakeEc2, tmp_path: Path) -> None:
    scene = opened(fake, tmp_path)
    play(scene)
    assert violations(scene) == []
    ready = list(scene.store.events(kinds=[EventKind.INSTANCE_READY], limit=100))
    assert ready
    assert {machine.metadata_options.http_tokens for machine in fake.machines()} == {"required"}
    assert fake.unknown_calls == []
    scene.close()


LAUNCH_TROUBLES = (
    ("RunInstances", "stockout", 1),
    ("RunInstances", "lose_reply", 1),
    ("RunInstances", "throttle", 2),
    ("RunInstances", "lose_request", 1),
    ("RunInstances", "late", 1),
    ("RunInstances", "internal", 1),
    ("RunInstances", "page", 1),
)
OTHER_TROUBLES = (
    ("DescribeSubnets", "expired", 1),
    ("DescribeSpotPriceHistory", "unavailable", 2),
    ("DescribeReservedInstances", "forbidden", 1),
    ("DescribeInstances", "partial", 2),
    ("DescribeInstances", "throttle", 3),
    ("DescribeInstances", "page", 1),
    ("TerminateInstances", "lose_reply", 1),
    ("TerminateInstances", "internal", 1),
    ("TerminateInstances", "throttle", 1),
)


@pytest.mark.parametrize("errors", [LAUNCH_TROUBLES, OTHER_TROUBLES], ids=["of launches", "of reads and ends"])
def test_troubles_cost_time_only(fake: FakeEc2, tmp_path: Path, errors: tuple[tuple[str, str, int], ...]) -> None:
    scene = opened(fake, tmp_path)
    for action, kind, times in errors:
        fake.arm(action, kind, times)
    play(scene)
    assert violations(scene) == []
    assert fake.unused_faults() == []
    assert fake.unknown_calls == []
    scene.close()


def test_a_daemon_killed_around_its_launches_and_ends_loses_nothing(fake: FakeEc2, tmp_path: Path) -> None:
    build = partial(build_on_ec2, settings=settings_for(fake, list_lag_s=10, read_attempts=1))
    calm = tmp_path / "calm"
    calm.mkdir()
    fake.reset(FileClock(calm / "clock"))
    moments = live(calm, build)
    assert moments.violations == ()
    broken = {}
    for label in ("provider.launch:after", "provider.terminate:after"):
        home = tmp_path / label.replace(":", "-")
        home.mkdir()
        fake.reset(FileClock(home / "clock"))
        life = crash_and_recover(home, build, moments.passed.index(label) + 1)
        if life.violations:
            broken[label] = life.violations
    assert broken == {}


def test_the_check_sees_a_machine_that_outlives_its_record(fake: FakeEc2, tmp_path: Path) -> None:
    scene = opened(fake, tmp_path)
    play(scene)
    fake.revive(next(iter(fake.bodies)))
    assert any("still runs" in each for each in violations(scene))
    scene.close()
