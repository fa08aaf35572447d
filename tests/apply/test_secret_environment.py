"""Secrets in the environment of units, cycle by cycle: of profiling runs, and while the key is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hcloud.core.model import BatchTarget, BestEffortTarget, Job, JobSpec, JobState, ProgressHook, Resources
from hcloud.fake_runner.runner import StartFault
from hcloud.secret_keys import SecretKeys
from hcloud.store import Submission
from tests.apply.deployment import Deployment
from tests.apply.test_profiling import open_site, runs_of, until_ended

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
