"""Simulation and reality agree: the demo's jobs run by a daemon's deployment, then replayed from its records.

The comparison is that of ``python -m bench agreement``, in which daemon, programs and machines are real.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from bench.agreement import History, differences, ends_s, history, told
from hcloud.config import Config, EngineSettings, ProviderSettings, load_job, load_policy
from hcloud.core.clock import ManualClock
from hcloud.core.model import Job, JobSpec
from hcloud.fake_runner.runner import FakeRunner, Work
from hcloud.planner import make_plan
from hcloud.provider import MachineSource, UnitSpec
from hcloud.simulator.run import START_AT, Setting, simulated
from hcloud.simulator.workload import PastJob, Workload, from_past, workload_of
from hcloud.store import Store, Submission
from hcloud.wiring import build_controller, build_providers

DEMO = Path(__file__).parents[2] / "demo"
CLOUD: dict[str, object] = {
    "types": {
        "local.small": {"vcpus": 0.5, "memory_mib": 768, "usd_per_h": 0.02},
        "local.medium": {"vcpus": 1, "memory_mib": 1536, "usd_per_h": 0.04},
        "local.large": {"vcpus": 2, "memory_mib": 3072, "usd_per_h": 0.08},
    },
    "zones": ["here-1a"],
    "markets": ["on_demand"],
    "boot": {"p50_s": 3, "p95_s": 3},
    "quotas": [{"vcpus": 3}],
}
MEASURED_S = {"service": 60.0, "primes": 34.0, "compress": 27.0, "copy": 21.0, "sort": 25.0, "disk": 16.0}
"""Approximate run times in the demo."""
CYCLE_S = 1.0
APART_S = 1.5 * CYCLE_S
"""Both decide every second; an event between two cycles is seen in one or the other."""


def demo_jobs() -> list[JobSpec]:
    files = [each for name in ("service.yaml", "batch.yaml") for each in load_job(DEMO / name)]
    return [each.model_copy(update={"workdir": None}).to_spec("ada") for each in files]


def as_the_daemon_does(folder: Path) -> tuple[History, Workload]:
    """Run the demo's jobs like a daemon, with its database and a cycle each second; return its history and records."""
    config = Config(
        owner="hcloud-here",
        state_dir=folder,
        run_dir=folder / "run",
        providers=(ProviderSettings(name="mock", type="mock", settings={**CLOUD, "seed": 5}),),
        engine=EngineSettings(programs="simulated"),
    )
    clock, store = ManualClock(START_AT), Store.open(config.database)
    providers = build_providers(config, clock)

    def work(unit: UnitSpec) -> Work:
        return Work(duration_s=MEASURED_S[names[unit.id.partition(".")[0]].partition("-")[0]], requests_per_s=50.0)

    runner = FakeRunner([each for each in providers.values() if isinstance(each, MachineSource)], clock, work=work)
    policy = load_policy(DEMO / "unprofiled.yaml")
    controller = build_controller(
        config, store, providers, runner, clock, policy, rng=np.random.default_rng(5), holder="here"
    )
    jobs = [job for spec in demo_jobs() for job in store.submit([Submission(spec=spec, actor="ada")], clock.now())]
    names = {job.id: job.spec.name for job in jobs}
    while store.live().jobs or store.live().instances:
        controller.cycle()
        clock.advance(CYCLE_S)
    past = [as_recorded(store.job(job.id)) for job in jobs]
    made = history(told(store.iter_events()), names)
    store.close()
    return made, from_past(past)


def as_recorded(job: Job) -> PastJob:
    """Return the job with the run time that the daemon observed."""
    assert job.attempt is not None
    (unit,) = job.attempt.allocations
    assert unit.started_at is not None and unit.ended_at is not None
    return PastJob(submitted_at=job.submitted_at, spec=job.spec, run_s=unit.ended_at - unit.started_at)


def replay(setting: Setting, folder: Path) -> History:
    with simulated(setting, folder) as simulation:
        simulation.run()
        return history(told(simulation.events()), {job.id: job.spec.name for job in simulation.store.jobs()})


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> tuple[History, Setting]:
    """The daemon's history, and the setting that replays it."""
    real, recorded = as_the_daemon_does(tmp_path_factory.mktemp("daemon"))
    return real, Setting(workload=recorded, policy=load_policy(DEMO / "unprofiled.yaml"), cloud=CLOUD, seed=5)


def test_replay_of_the_demo_agrees_with_what_the_daemon_recorded(
    daemon: tuple[History, Setting], tmp_path: Path
) -> None:
    real, setting = daemon
    assert differences(real, replay(setting, tmp_path), APART_S) == []
    assert len(real.ended_s) == 14
    assert any(each.beside for each in real.places.values())


def longer(setting: Setting) -> Setting:
    arrivals = [replace(each, run_s=1.5 * each.run_s) for each in setting.workload.arrivals]
    return replace(setting, workload=workload_of("longer", arrivals))


def unkept(setting: Setting) -> Setting:
    kept = replace(setting.policy.retention, spin_up_multiple=0.0)
    return replace(setting, policy=replace(setting.policy, retention=kept))


def slower_boots(setting: Setting) -> Setting:
    return replace(setting, cloud={**CLOUD, "boot": {"p50_s": 6, "p95_s": 6}})


def fewer_machines(setting: Setting) -> Setting:
    return replace(setting, cloud={**CLOUD, "quotas": [{"vcpus": 2}]})


def one_job_less(setting: Setting) -> Setting:
    return replace(setting, workload=replace(setting.workload, arrivals=setting.workload.arrivals[:-1]))


def looked_at_rarely(setting: Setting) -> Setting:
    """Without events, cycles only every ten seconds."""
    return replace(setting, planner=lambda *known: replace(make_plan(*known), due_at=inf))


@pytest.mark.parametrize("wrong", [longer, unkept, slower_boots, fewer_machines, one_job_less, looked_at_rarely])
def test_replay_with_one_wrong_setting_does_not_agree(
    wrong: Callable[[Setting], Setting], daemon: tuple[History, Setting], tmp_path: Path
) -> None:
    real, setting = daemon
    assert differences(real, replay(wrong(setting), tmp_path), APART_S) != []


def test_end_times_are_measured_from_the_request_to_the_end() -> None:
    def event(kind: str, at: float, machine: str, **fields: object) -> dict[str, object]:
        return {"kind": kind, "at": at, "instance_id": machine, "fields": fields}

    events = [
        event("instance_state", 10.0, "inst-1", to="draining"),
        event("instance_state", 12.0, "inst-1", to="terminating"),
        event("instance_state", 13.0, "inst-2", to="terminating"),
        event("instance_terminated", 14.0, "inst-2", terminated_at=None),
        event("instance_terminated", 19.0, "inst-1", terminated_at=15.0),
        event("instance_terminated", 20.0, "inst-3", terminated_at=18.0),  # it ended by itself
    ]
    assert ends_s(events) == [1.0, 3.0]
