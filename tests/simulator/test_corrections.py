"""Corrections in a simulated world: more targets are met despite neighbours, and noise alone changes nothing."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from hcloud.core.model import BatchTarget, BestEffortTarget, Constraints, EventKind, JobSpec, ProgressHook, Resources
from hcloud.simulator.clusters import Server, cluster
from hcloud.simulator.run import Setting, simulated
from hcloud.simulator.workload import Arrival, workload_of
from hcloud.simulator.world import Truth
from hcloud.spec.policy import CorrectionPolicy, Policy
from lab.papers.clusters import scheduler

SERVERS = (Server(name="s8", vcpus=8, memory_gib=32, count=3),)
HURTS = Truth(
    heterogeneity=0.0, sensitivity=4.0, pressure=5.0, external_load=0.0, drift=0.02, phased=0.0, stragglers=0.0
)
NOISE = replace(HURTS, sensitivity=1e-6, pressure=0.0, external_step_s=30.0)
RUN_S, PROMISED, NEIGHBOURS = 1000.0, 3, 6
EASILY_S, HARDLY_S = 1350.0, 940.0
"""Deadlines after submission: such as is met by a job left alone, and such as is just missed by any."""


def asks(name: str, within_s: float | None) -> JobSpec:
    """Return a job of two vCPUs with a deadline, which shares machines only with best-effort jobs."""
    return JobSpec(
        name=name,
        user="ann",
        command=(name,),
        target=BatchTarget(finish_within_s=within_s) if within_s is not None else BestEffortTarget(),
        resources=Resources(vcpus=2.0, memory_mib=1024),
        progress=ProgressHook(file="progress") if within_s is not None else None,
        placement=Constraints(apart_from=("job*",)) if within_s is not None else None,
        tags={"program_kind": "analytics"},
    )


def run(folder: Path, truth: Truth, correction: CorrectionPolicy, within_s: float) -> tuple[int, Counter[str]]:
    """Return how many jobs with a deadline met it despite later best-effort jobs, and the corrections by step."""
    jobs = [Arrival(at_s=n, run_s=RUN_S, spec=asks(f"job{n}", within_s)) for n in range(PROMISED)]
    jobs += [Arrival(at_s=140.0 + n, run_s=1500.0, spec=asks(f"load{n}", None)) for n in range(NEIGHBOURS)]
    policy: Policy = replace(scheduler("least_loaded"), correction=correction)
    setting = Setting(workload=workload_of("jobs", jobs), policy=policy, cloud=cluster(SERVERS), truth=truth, seed=1)
    with simulated(replace(setting, cycle_s=5.0), folder) as simulation:
        simulation.run()
        events = list(simulation.events())
    ended = {e.job_id: e.at for e in events if e.kind is EventKind.JOB_FINISHED and e.fields["state"] == "succeeded"}
    begun = {e.job_id: e.at for e in events if e.kind is EventKind.JOB_SUBMITTED}
    promised = [f"job-{n}" for n in range(1, PROMISED + 1)]
    kept = sum(job in ended and ended[job] <= begun[job] + within_s for job in promised)
    return kept, Counter(str(e.fields["step"]) for e in events if e.kind is EventKind.CORRECTION)


def test_corrections_raise_the_share_of_targets_met_where_neighbours_hurt(tmp_path: Path) -> None:
    kept, steps = run(tmp_path / "without", HURTS, CorrectionPolicy(steps=()), EASILY_S)
    assert not steps
    kept_more, steps = run(tmp_path / "with", HURTS, CorrectionPolicy(), EASILY_S)
    assert kept_more > kept
    assert steps["evict"] > 0


def test_margin_keeps_noise_from_causing_corrections(tmp_path: Path) -> None:
    eager = CorrectionPolicy(steps=("evict", "move"), gain=1.0, promise_worth=1000.0)
    assert run(tmp_path / "margin", NOISE, eager, HARDLY_S)[1] == Counter()
    assert run(tmp_path / "none", NOISE, replace(eager, margin=1e-6), HARDLY_S)[1]["evict"] > 0
