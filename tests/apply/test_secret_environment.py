"""Secrets in the environment of units, cycle by cycle: of profiling runs, and while the key is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from hcloud.core.errors import SecretUnreadable
from hcloud.core.model import BatchTarget, BestEffortTarget, Job, JobSpec, JobState, ProgressHook, Resources
from hcloud.fake_runner.runner import StartFault
from hcloud.secret_keys import SecretKeys
from hcloud.secret_references import SecretAbsent, SecretReferences
from hcloud.spec.job_variables import REFERENCE_MARK
from hcloud.store import Submission
from tests.apply.deployment import Deployment
from tests.apply.test_profiling import open_site, runs_of, until_ended
from tests.engine.site import PATIENCE_S
from tests.waiting import wait_until

SECRETS = {"TOKEN": "hunter2"}


def submit(site: Deployment, keys: SecretKeys, **spec: Any) -> Job:
    """Submit a job with a secret, as the API does."""
    given: dict[str, Any] = {"command": ("sleep", "30"), "target": BestEffortTarget(), "profiling": "never", **spec}
    resources = Resources(vcpus=1.0, memory_mib=512, disk_gib=1.0)
    whole = JobSpec(name="job", user="ada", resources=resources, secrets=tuple(SECRETS), **given)
    submission = Submission(spec=whole, actor="ada", secrets=keys.seal("ada", SECRETS))
    return site.scene.store.submit([submission], site.now)[0]


def environments(site: Deployment, until: Job) -> dict[str, set[str | None]]:
    """Run cycles until a job has ended; return by job the secret in the environments of its units, while they run."""
    found: dict[str, set[str | None]] = {}

    def is_over() -> bool:
        """Note the units there are."""
        for unit in site.scene.engine._units.values():
            if unit.spec is not None:
                found.setdefault(unit.id.partition(".")[0], set()).add(unit.spec.env.get("TOKEN"))
        return site.scene.store.job(until.id).finished_at is not None

    site.until(is_over, cycles=250)
    return found


def test_profiling_runs_get_the_secrets_of_the_job_that_they_measure(tmp_path: Path) -> None:
    site, keys = open_site(tmp_path), SecretKeys(None, tmp_path)
    job = submit(site, keys, target=BatchTarget(), progress=ProgressHook(file="p"), profiling="auto")
    seen, runs = environments(site, job), runs_of(site, job)
    assert runs
    for each in (job, *runs):
        assert seen[each.id] == {"hunter2"}, each.id
        assert site.scene.store.job(each.id).state is JobState.SUCCEEDED


def test_unit_that_was_sent_before_its_key_was_lost_goes_on_and_starts_nowhere_else(tmp_path: Path) -> None:
    site, keys = open_site(tmp_path), SecretKeys(None, tmp_path)
    site.scene.engine.inject(StartFault.LOSE_REPLY)
    job = submit(site, keys)
    site.until(lambda: site.starts(job.id))
    keys.path.unlink()
    until_ended(site, job)
    assert site.job().state is JobState.SUCCEEDED and site.starts(job.id) == [f"{job.id}.1.0"]


def test_unit_whose_start_was_lost_with_the_key_is_fenced_and_its_job_waits_for_the_key(tmp_path: Path) -> None:
    site, keys = open_site(tmp_path), SecretKeys(None, tmp_path)
    site.scene.engine.inject(StartFault.LOSE_REQUEST)
    job = submit(site, keys)
    site.until_state(JobState.PLACED)
    key = keys.path.read_bytes()
    keys.path.unlink()
    site.until(lambda: site.job().wait_code == "secrets_unreadable")
    assert site.starts(job.id) == [] and "secret TOKEN cannot be decrypted: its key" in site.job().wait_text
    keys.path.write_bytes(key)
    keys.path.chmod(0o400)
    site.until_state(JobState.RUNNING)
    assert site.starts(job.id) == [f"{job.id}.2.0"]


class ManagerOnDemand:
    """A secret manager that answers once it may."""

    def __init__(self, answer: str | Exception) -> None:
        self.answer, self.may_answer = answer, threading.Event()

    def read(self, name: str) -> str:
        """Return or raise the answer."""
        self.may_answer.wait(PATIENCE_S)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def with_manager(site: Deployment, answer: str | Exception) -> ManagerOnDemand:
    """Let the site read secrets of AWS from a manager."""
    manager = ManagerOnDemand(answer)
    site.scene.controller.applier.units.references = SecretReferences(("aws:",), {"aws": manager})
    return manager


def test_a_unit_starts_once_its_secret_was_read_and_nothing_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SECRETS, "TOKEN", f"{REFERENCE_MARK}aws:db")
    site, keys = open_site(tmp_path), SecretKeys(None, tmp_path)
    manager = with_manager(site, "read just now")
    job = submit(site, keys)
    site.until_state(JobState.PLACED)
    assert site.starts(job.id) == []
    manager.may_answer.set()
    wait_until(lambda: site.scene.controller.applier.units.references.resolved("ada", SECRETS), PATIENCE_S)
    assert environments(site, job)[job.id] == {"read just now"}
    assert site.starts(job.id) == [f"{job.id}.1.0"]


def test_a_unit_whose_secret_is_gone_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SECRETS, "TOKEN", f"{REFERENCE_MARK}aws:db")
    site, keys = open_site(tmp_path), SecretKeys(None, tmp_path)
    with_manager(site, SecretAbsent("does not exist")).may_answer.set()
    job = submit(site, keys)
    site.until_state(JobState.PLACED)
    with pytest.raises(SecretUnreadable):
        wait_until(lambda: site.scene.controller.applier.units.references.resolved("ada", SECRETS), PATIENCE_S)
    until_ended(site, job)
    assert "could not be started (aws:db does not exist)" in site.job().outcome and site.starts(job.id) == []
