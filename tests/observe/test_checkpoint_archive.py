"""Checkpoints are copied when they are due, whole or not at all; what did not come leaves the one before."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hcloud.apply.kept_checkpoints import drop_checkpoints, kept_checkpoint
from hcloud.core.clock import ManualClock
from hcloud.core.errors import WorkerUnreachable
from hcloud.core.model import Checkpoint, Job
from hcloud.observe.checkpoint_archive import PATIENCE_S, CheckpointArchive
from hcloud.provider import OutputsManifest, OutputsPiece
from tests.observe.test_output_archive import manifest_of
from tests.planner.scenes import job, spec
from tests.waiting import wait_until

UNIT, MACHINE = "job-1.1.0_19ab", "inst-1"
EVERY_S = 60.0


def kept_job(number: int = 1) -> Job:
    return job(number, asks=spec(checkpoint=Checkpoint(path="state", every_s=EVERY_S)))


SENT_BYTES = 1 << 20
"""What a machine here sends at once, however much is asked for."""


class Site:
    """An archive of one machine, which answers as told."""

    def __init__(self, folder: Path, max_mib: int = 64, max_user_mib: int = 128) -> None:
        self.folder, self.clock, self.noticed, self.over = folder, ManualClock(), False, 0
        self.content: bytes = b"first" * (SENT_BYTES // 4)
        self.manifest: OutputsManifest | None = None
        self.numbers = list[int]()
        self.dies_after: int | None = None
        self.archive = CheckpointArchive(
            folder=folder, read=self.read, clock=self.clock, max_mib=max_mib, max_user_mib=max_user_mib
        )
        self.archive.on_done = self.count

    def count(self) -> None:
        self.over += 1

    def read(self, unit: str, instance_id: str, number: int, offset: int, limit: int) -> OutputsPiece:
        """Answer as a machine does."""
        self.numbers.append(number)
        if self.dies_after is not None and offset >= self.dies_after:
            raise WorkerUnreachable("gone")
        content = self.content[offset : offset + min(limit, SENT_BYTES)]
        return OutputsPiece(content=(content,), manifest=self.manifest or manifest_of(self.content))

    def copy(self) -> None:
        """Copy what is due, and await it."""
        self.archive.copy_due(lambda _: self.noticed)
        self.rest()

    def rest(self) -> None:
        wait_until(lambda: not any(each.is_alive() for each in self.archive._copying.values()), 30.0)

    def kept(self) -> bytes | None:
        found = kept_checkpoint(self.folder, "job-1", 0)
        return None if found is None else (self.folder / f"{found.unit}.{found.number}.tar").read_bytes()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path / "checkpoints")
    made.archive.follow(UNIT, kept_job(), 0, MACHINE)
    return made


def test_it_is_copied_at_each_interval_and_replaces_the_one_before(site: Site) -> None:
    site.copy()
    assert site.kept() is None and site.numbers == []
    site.clock.advance(EVERY_S)
    site.copy()
    assert site.kept() == site.content
    site.content = b"second"
    site.copy()
    assert site.kept() != b"second"
    site.clock.advance(EVERY_S)
    site.copy()
    assert site.kept() == b"second" and len(list(site.folder.iterdir())) == 2
    assert len(set(site.numbers)) == 2 and site.numbers == sorted(site.numbers)


def test_a_machine_that_is_to_be_taken_back_is_copied_from_at_once_and_once(site: Site) -> None:
    site.noticed = True
    site.copy()
    site.copy()
    assert site.kept() == site.content and len(set(site.numbers)) == 1


def damaged(site: Site) -> None:
    site.manifest = manifest_of(site.content, sha256="0" * 64)


def too_large(site: Site) -> None:
    site.manifest = manifest_of(site.content, bytes=65 << 20)


def empty(site: Site) -> None:
    site.manifest = OutputsManifest(note="nothing matched 'state'")


def dying(site: Site) -> None:
    site.dies_after = SENT_BYTES


def stopping_short(site: Site) -> None:
    site.manifest = manifest_of(site.content)
    site.content = site.content[: SENT_BYTES + 1]


@pytest.mark.parametrize("fault", [damaged, too_large, empty, dying, stopping_short], ids=lambda each: each.__name__)
def test_what_does_not_come_whole_leaves_the_one_before(site: Site, fault: Callable[[Site], None]) -> None:
    site.clock.advance(EVERY_S)
    site.copy()
    before, site.content = site.kept(), b"second" * (SENT_BYTES // 4)
    fault(site)
    site.clock.advance(EVERY_S)
    site.copy()
    assert before is not None and site.kept() == before
    assert not list(site.folder.glob("*.part"))


def test_a_user_keeps_no_more_than_the_limit(tmp_path: Path) -> None:
    site = Site(tmp_path, max_user_mib=1)
    for number in (1, 2):
        site.archive.follow(f"job-{number}.1.0_19ab", kept_job(number), 0, MACHINE)
    site.content = b"x" * (600 << 10)
    site.clock.advance(EVERY_S)
    site.archive.copy_due(lambda _: False)
    site.rest()
    site.clock.advance(EVERY_S)
    site.copy()
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_the_last_one_is_awaited_and_one_of_a_machine_that_is_gone_is_not(site: Site) -> None:
    assert not site.archive.copy_last(UNIT, kept_job(), 0, MACHINE)
    site.rest()
    assert site.archive.copy_last(UNIT, kept_job(), 0, MACHINE)
    assert site.kept() == site.content and site.over == 1
    site.dies_after = 0
    assert not site.archive.copy_last("job-1.2.0_19ac", kept_job(), 0, MACHINE)
    site.rest()
    assert site.archive.copy_last("job-1.2.0_19ac", kept_job(), 0, MACHINE)
    assert site.kept() == site.content


def test_a_machine_that_sends_for_ever_is_given_up(site: Site) -> None:
    def trickle(unit: str, instance_id: str, number: int, offset: int, limit: int) -> OutputsPiece:
        site.clock.advance(PATIENCE_S / 4)
        return OutputsPiece(content=(b"x",), manifest=manifest_of(site.content))

    site.archive.read = trickle
    site.clock.advance(EVERY_S)
    site.copy()
    assert site.kept() is None


def test_checkpoints_of_ended_jobs_are_deleted(site: Site) -> None:
    site.clock.advance(EVERY_S)
    site.copy()
    (site.folder / "job-9.1.0_1.5.tar").write_bytes(b"of no checkpoint")
    (site.folder / "job-9.1.0_1.part").write_bytes(b"of a daemon that was killed")
    assert drop_checkpoints(site.folder, lambda job_id, _: job_id != "job-1", before=0.0) == 0
    assert len(list(site.folder.iterdir())) == 4
    assert drop_checkpoints(site.folder, lambda job_id, _: job_id == "job-1", before=4e9) == 1
    assert not list(site.folder.iterdir())
