"""Simulated and real agree: the demo's jobs placed by a daemon's deployment, then replayed from what it recorded."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hcloud.assembly import build_controller, build_providers
from hcloud.clock import ManualClock
from hcloud.config import Config, EngineSettings, ProviderSettings, load_job, load_policy
from hcloud.engine.fake import FakeRunner, Work
from hcloud.model import Event, EventKind, JobSpec
from hcloud.provider import MachineSource, UnitSpec
from hcloud.simulator.run import START_AT, Setting, simulated
from hcloud.simulator.workload import PastJob, Workload, from_past
from hcloud.store import Store, Submission

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
"""About as long as they ran in the demo on the machine this was written on."""
Placed = list[tuple[str, str, list[str]]]


def demo_jobs() -> list[JobSpec]:
    files = [each for name in ("service.yaml", "batch.yaml") for each in load_job(DEMO / name)]
    return [each.model_copy(update={"workdir": None}).to_spec("ada") for each in files]


def placements(events: Iterable[Event], names: dict[str, str]) -> Placed:
    """Who was placed on a machine of which type, beside whom it had been placed there before, in order."""
    types: dict[str, str] = {}
    guests: dict[str, list[str]] = {}
    found: Placed = []
    for event in events:
        machine = event.instance_id or ""
        if event.kind is EventKind.INSTANCE_REQUESTED:
            types[machine] = str(event.fields["type"])
        elif event.kind is EventKind.UNIT_STARTED:
            name = names[event.job_id or ""]
            found.append((name, types[machine], list(guests.setdefault(machine, []))))
            guests[machine].append(name)
    return found


def as_the_daemon_does(folder: Path) -> tuple[Placed, Workload]:
    """Run the demo's jobs as a daemon does, with its database and a cycle each second; return what it recorded, too."""
    config = Config(
        owner="hcloud-here",
        state_dir=folder,
        run_dir=folder / "run",
        providers=(ProviderSettings(name="mock", type="mock", settings={**CLOUD, "seed": 5}),),
        engine=EngineSettings(runner="fake"),
    )
    clock, store = ManualClock(START_AT), Store.open(config.database)
    providers = build_providers(config, clock)

    def work(unit: UnitSpec) -> Work:
        return Work(duration_s=MEASURED_S[names[unit.id.partition(".")[0]].partition("-")[0]], requests_per_s=50.0)

    runner = FakeRunner([each for each in providers.values() if isinstance(each, MachineSource)], clock, work=work)
    policy = load_policy(DEMO / "policy.yaml")
    controller = build_controller(
        config, store, providers, runner, clock, policy, rng=np.random.default_rng(5), holder="here"
    )
    jobs = [job for spec in demo_jobs() for job in store.submit([Submission(spec=spec, actor="ada")], clock.now())]
    names = {job.id: job.spec.name for job in jobs}
    while store.live().jobs:
        controller.cycle()
        clock.advance(1.0)
    ended = [store.job(job.id) for job in jobs]
    past = [PastJob(submitted_at=job.submitted_at, spec=job.spec, run_s=MEASURED_S[job.spec.name.partition("-")[0]])
            for job in ended]  # fmt: skip
    made = placements(store.iter_events(), names)
    store.close()
    return made, from_past(past)


def test_the_demos_jobs_are_placed_alike_by_the_daemon_and_in_a_replay_of_what_it_recorded(tmp_path: Path) -> None:
    (tmp_path / "daemon").mkdir()
    (tmp_path / "replay").mkdir()
    real, recorded = as_the_daemon_does(tmp_path / "daemon")
    setting = Setting(workload=recorded, policy=load_policy(DEMO / "policy.yaml"), cloud=CLOUD, seed=5)
    with simulated(setting, tmp_path / "replay") as simulation:
        simulation.run()
        names = {job.id: job.spec.name for job in simulation.store.jobs()}
        replayed = placements(simulation.events(), names)
    assert len(real) == 14
    assert replayed == real
    assert any(beside for _, _, beside in real)
