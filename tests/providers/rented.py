"""A deployment on the fake of a cloud whose machines really work: each gets a worker process on this host.

Real time, store, planner, provider, engine, workers and programs; only the cloud itself is a fake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from hcloud.core.clock import Clock, SystemClock
from hcloud.core.model import BatchTarget, EventKind, InstanceState, JobSpec, JobState, ProgressHook, Resources
from hcloud.engine.tls import enrolment_secret, launch_key
from hcloud.provider import Provider
from hcloud.store import Store, Submission
from tests.assembled import assembled
from tests.engine.site import Machine, Site
from tests.providers.cloud_scene import CloudMachines
from tests.waiting import wait_until

OWNER = "hcloud-chaos"
PATIENCE_S = 120.0
"""Enough for a busy machine; the flow itself takes some seconds."""
POLICY: Mapping[str, Mapping[str, object]] = {
    "budgets": {"per_day_usd": 1.0},
    "retention": {"spin_up_multiple": 1, "maximum_s": 0.2},
    "lease": {"horizon_s": 600, "renew_before_s": 120},
    "timing": {"sample_every_s": 5},
    "placement": {"order": "paragon"},
    "profiling": {
        "when": "before",
        "types": 1,
        "run_s": 0.4,
        "skip_if_shorter_than_s": 0,
        "sources": ["memory-bandwidth"],
    },
}


class RentedSite:
    """A store, the cycle, an engine, and a worker process for each machine of the cloud that is up."""

    def __init__(self, folder: Path, total_s: float) -> None:
        """``total_s``: longest duration of a profiling run."""
        folder.mkdir(exist_ok=True, parents=True)
        self._policy = {**POLICY, "profiling": {**POLICY["profiling"], "total_s": total_s}}
        self.site, self.folder, self.clock = Site(folder), folder, SystemClock()
        self._workers: dict[str, Machine] = {}
        self._stores: list[Store] = []

    def close(self) -> None:
        """End every process."""
        for store in self._stores:
            store.close()
        self.site.close()

    def run(self, cloud: Provider, machines: CloudMachines, policy: Mapping[str, object]) -> Store:
        """Submit a job; cycle until it and every machine have ended. Raises AssertionError after ``PATIENCE_S``."""
        store = Store.open(f"sqlite:///{self.folder / 'hcloud.db'}")
        self._stores.append(store)
        runner = self.site.runner()
        controller = assembled(
            self.folder, store, cloud, runner, self.clock, {**self._policy, **policy}, owner=OWNER, poll_s=0.3,
            tls_dir=self.site.tls_dir,
        )  # fmt: skip
        store.submit([job()], self.clock.now())

        def settled() -> bool:
            controller.cycle()
            self._follow(store, machines, self.clock)
            view = store.live()
            return not view.jobs and not view.instances and not view.intents

        wait_until(settled, PATIENCE_S, interval_s=0.2)  # the programs that are measured need the processors
        return store

    def _follow(self, store: Store, machines: CloudMachines, clock: Clock) -> None:
        """Boot a worker where the cloud has booted a machine; lose it where the cloud has ended one."""
        up = machines.up(clock.now())
        for name, (_, machine) in up.items():
            if name not in self._workers:
                capacity = machine.capacity
                token = store.instance(name).token
                self._workers[name] = self.site.machine(
                    name,
                    admitted=False,  # the daemon does that
                    token=token,
                    enrolment_secret=enrolment_secret(launch_key(self.site.tls_dir), token),
                    owner=OWNER,
                    isolation="best_effort",
                    capacity={"vcpus": capacity.vcpus, "memory_mib": capacity.memory_mib, "disk_gib": 1.0},
                )
        for name, worker in self._workers.items():
            if name not in up:
                worker.kill()


def in_time(flow: Callable[[float], None]) -> None:
    """Run a flow with little time for profiling; again with more, where a busy machine let too little be measured."""
    try:
        flow(8.0)
    except AssertionError as error:
        if "time for profiling was over" not in str(error):
            raise
        flow(25.0)


def job() -> Submission:
    """A job that nobody knows: it counts for a moment and writes down how far it is."""
    loop = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); [ $((i % 9000)) -ne 0 ] || echo $i/300000 > progress; done"
    return Submission(
        spec=JobSpec(
            name="unknown",
            user="ada",
            command=("/bin/sh", "-c", loop),
            target=BatchTarget(finish_within_s=7200),
            progress=ProgressHook(file="progress"),
            resources=Resources(vcpus=1.0, memory_mib=256, disk_gib=0.5),
        ),
        actor="ada",
    )


def assert_learnt(store: Store, column: str, price_max_usd_per_h: float) -> None:
    """Assert that the job was profiled on that type beside a source, classified by it, ran, and all machines ended."""
    by_profile = {job.spec.profile is not None: job for job in store.jobs(limit=100)}
    run, original = by_profile[True], by_profile[False]
    assert (run.state, original.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED), (run.outcome, original.outcome)
    assert run.spec.profile is not None and run.spec.profile.type_column == column
    (learnt,) = store.events(kinds=[EventKind.JOB_PROFILED], limit=10)
    readings = [str(each).split(":")[:2] for each in learnt.fields["readings"]]  # type: ignore[attr-defined]
    assert ["type", column] in readings, learnt.fields
    assert ["tolerated", "memory-bandwidth"] in readings, learnt.fields
    (known,) = store.events(kinds=[EventKind.JOB_CLASSIFIED], limit=10)
    assert known.fields["source"] == "profiled"
    rows = store.instances(live_only=False)
    assert rows and all(row.offer.price_usd_per_h <= price_max_usd_per_h for row in rows)
    assert {row.state for row in rows} == {InstanceState.TERMINATED}
    (ready, *_) = store.events(kinds=[EventKind.INSTANCE_READY], limit=10)
    assert "stress-ng" in ready.fields["isolation"]  # type: ignore[operator]
