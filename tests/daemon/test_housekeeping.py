"""What the daemon clears up of long ago."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hcloud.config import load_config
from hcloud.core.model import EventKind, JobState
from hcloud.daemon import Daemon
from tests.daemon.home import Home
from tests.store.samples import submit, walk


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that was built and does not run."""
    home = Home(tmp_path / "home")
    home.set_up()
    made = Daemon(load_config(home.path / "config.yaml"))
    yield made
    made.store.close()
    made.runner.close()


def test_of_long_ago_events_jobs_logs_and_uploads_go_and_what_lives_stays(daemon: Daemon) -> None:
    old, _ = submit(daemon.store, count=2, now=10.0)
    (late,) = submit(daemon.store, now=daemon.clock.now())
    walk(daemon.store, old, JobState.FAILED, finished_at=20.0)
    log, upload = daemon.controller.observer.logs.folder / f"{old.id}.1.0.stdout", daemon.uploads_dir / "ab.tar.gz"
    for each in (log, upload):
        each.write_text("of then")
        os.utime(each, (30.0, 30.0))
    daemon._housekeeping()
    assert [job.id for job in daemon.store.jobs()] == [late.id, "job-2"]
    assert [event.job_id for event in daemon.store.events(kinds=[EventKind.JOB_SUBMITTED])] == ["job-2", late.id]
    assert not log.exists() and not upload.exists()
