"""Peers' rules: each places and buys as labelled, in the same world, and none costs less than the bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.core.errors import BadInput
from hcloud.core.model import BatchTarget, BestEffortTarget, Event, EventKind, JobSpec, Nodes, Resources
from hcloud.report import build_report
from hcloud.simulator.optimality import distance, peer_comparison, run_times_s, with_shortest_runs
from hcloud.simulator.outcome import outcome_of
from hcloud.simulator.peers import PEERS, peer_named
from hcloud.simulator.run import START_AT, Setting, simulated
from hcloud.simulator.workload import Arrival, workload_of
from hcloud.spec.policy import Policy
from tests.policies import parse_simple

TYPES = {
    "small": {"vcpus": 1, "memory_mib": 2048, "usd_per_h": 1.0},
    "medium": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 2.2},
    "large": {"vcpus": 8, "memory_mib": 16384, "usd_per_h": 7.0},
}
CLOUD: dict[str, object] = {
    "types": TYPES, "zones": ["east-1a"], "markets": ["reserved", "on_demand", "spot"], "reserved_default": 0,
    "boot": {"p50_s": 10, "p95_s": 10}, "spot": {"price_factor": 0.3, "volatility": 0.0},
}  # fmt: skip


def job(at_s: float, run_s: float, vcpus: float = 1.0, *, priority: int = 0, spot: bool = False) -> Arrival:
    target = BestEffortTarget() if spot else BatchTarget(finish_within_s=3600)
    spec = JobSpec(
        name="job", user="ada", command=("simulated",), target=target, priority=priority, interruptible=spot,
        resources=Resources(vcpus=vcpus, memory_mib=int(512 * vcpus)),
    )  # fmt: skip
    return Arrival(at_s=at_s, run_s=run_s, spec=spec)


def setting(name: str, jobs: Sequence[Arrival], **changes: object) -> Setting:
    policy = parse_simple({"name": name, "caps": changes.pop("caps", {"max_instances": 30})})
    planner = PEERS[name].plan
    return Setting(workload=workload_of("tiny", jobs), policy=policy, cloud={**CLOUD, **changes}, planner=planner)


def bought(name: str, jobs: Sequence[Arrival], folder: Path, **changes: object) -> Counter[tuple[str, str]]:
    """Return launches by type and market."""
    made = events(setting(name, jobs, **changes), folder)
    launched = {e.instance_id for e in made if e.kind is EventKind.INSTANCE_LAUNCHED}
    machines = (e for e in made if e.kind is EventKind.INSTANCE_REQUESTED and e.instance_id in launched)
    return Counter((str(e.fields["type"]), str(e.fields["market"])) for e in machines)


def events(made: Setting, folder: Path) -> list[Event]:
    with simulated(made, folder) as simulation:
        simulation.run()
        return list(simulation.events())


def starts(made: Sequence[Event]) -> list[str]:
    return [e.job_id or "" for e in made if e.kind is EventKind.UNIT_STARTED]


FOUR = [job(0, 60), job(0, 60), job(0, 60), job(0, 60)]


def test_a_machine_for_each_job_is_the_cheapest_that_fits_and_ends_with_it(tmp_path: Path) -> None:
    assert bought("skypilot-like", FOUR, tmp_path) == {("small", "on_demand"): 4}
    assert bought("skypilot-like", [job(0, 60, spot=True)], tmp_path) == {("small", "spot"): 1}


def test_a_batch_of_pods_gets_one_machine_that_holds_them_all(tmp_path: Path) -> None:
    assert bought("karpenter-like", FOUR, tmp_path) == {("large", "on_demand"): 1}


SIZES = {str(vcpus): {"vcpus": vcpus, "memory_mib": 2048 * vcpus, "usd_per_h": 1.0 * vcpus} for vcpus in (2, 4, 8, 16)}


@pytest.mark.parametrize("vcpus", [(6, 6, 6, 2, 2), (10, 8, 4), (9, 8, 4, 3)])
def test_pods_that_fit_on_a_launched_machine_are_bought_for_once(vcpus: Sequence[int], tmp_path: Path) -> None:
    # The small ones fill up the first machine, so the second is for a single pod.
    jobs = [job(0, 60, float(each)) for each in vcpus]
    launched = bought("karpenter-like", jobs, tmp_path, types=SIZES)
    assert launched == {("16", "on_demand"): 1, ("8", "on_demand"): 1}


def test_jobs_that_fit_on_a_launched_machine_do_not_count_for_the_next(tmp_path: Path) -> None:
    types = {"three": {"vcpus": 3, "memory_mib": 8192, "usd_per_h": 3.0}, "four": {**SIZES["4"], "memory_mib": 8192}}
    # The last goes beside the first; a second machine of four would be used for three only.
    jobs = [job(0, 60, 3.0), job(0, 60, 3.0), job(0, 60, 1.0)]
    assert bought("ray-like", jobs, tmp_path, types=types) == {("four", "on_demand"): 1, ("three", "on_demand"): 1}


def test_the_best_used_type_is_bought_at_any_price(tmp_path: Path) -> None:
    # Two CPUs in a medium one are used wholly, as in two small ones; one of a large would be used by a quarter.
    assert bought("ray-like", [job(0, 60, 2.0)], tmp_path) == {("medium", "on_demand"): 1}


def test_cheapest_nodes_without_backfill(tmp_path: Path) -> None:
    assert bought("slurm-like", [job(0, 60)], tmp_path) == {("small", "on_demand"): 1}
    assert bought("slurm-like", [job(0, 60, spot=True)], tmp_path) == {("small", "spot"): 1}
    jobs, one = [job(0, 300, 6.0), job(20, 60, 6.0), job(40, 60, 1.0)], {"max_instances": 1}
    # The third would fit beside the first; it waits behind the second, for which there is no node.
    assert starts(events(setting("slurm-like", jobs, caps=one), tmp_path)) == ["job-1", "job-2", "job-3"]
    assert starts(events(setting("on-demand-only", jobs, caps=one), tmp_path)) == ["job-1", "job-3", "job-2"]


def test_job_behind_one_with_a_booting_node_starts_where_there_is_room(tmp_path: Path) -> None:
    jobs = [job(0, 300, 6.0), job(20, 60, 6.0), job(20, 60, 1.0)]
    assert bought("slurm-like", jobs, tmp_path) == {("large", "on_demand"): 2}


def test_reserved_machines_come_first_and_alone_where_there_is_nothing_else(tmp_path: Path) -> None:
    reserved = {"reserved": {"medium": 1}}
    assert bought("reserved-only", FOUR, tmp_path, **reserved) == {("medium", "reserved"): 1}
    assert bought("karpenter-like", FOUR[:2], tmp_path, **reserved) == {("medium", "reserved"): 1}
    assert bought("ray-like", FOUR[:1], tmp_path, **reserved) == {("medium", "reserved"): 1}
    assert bought("slurm-like", FOUR[:1], tmp_path, **reserved) == {("medium", "reserved"): 1}
    assert bought("on-demand-only", FOUR[:1], tmp_path, **reserved) == {("small", "on_demand"): 1}


def test_an_underused_machine_is_emptied_where_its_jobs_fit_elsewhere(tmp_path: Path) -> None:
    jobs = [*(job(0, 400, 2.0, spot=True) for _ in range(4)), *(job(30, 60, 2.0, spot=True) for _ in range(3)),
            job(31, 400, 1.0, spot=True)]  # fmt: skip
    made = events(setting("karpenter-like", jobs), tmp_path)
    codes = {str(e.fields["code"]) for e in made if e.kind is EventKind.INSTANCE_STATE}
    assert "idle" in codes
    assert len([e for e in made if e.kind is EventKind.JOB_FINISHED and e.fields["state"] == "succeeded"]) == 8


def movable(at_s: float, run_s: float, vcpus: float) -> Arrival:
    """Return an interruptible batch job."""
    made = job(at_s, run_s, vcpus)
    return replace(made, spec=replace(made.spec, interruptible=True))


def test_an_underused_machine_is_replaced_by_a_cheaper_one_where_its_jobs_fit_nowhere_else(tmp_path: Path) -> None:
    jobs = [*(movable(0, 60, 2.0) for _ in range(3)), movable(0, 900, 1.0)]
    made = events(setting("karpenter-like", jobs, markets=["on_demand"]), tmp_path)
    types = {e.instance_id: str(e.fields["type"]) for e in made if e.kind is EventKind.INSTANCE_REQUESTED}
    ended = {types[e.instance_id]: e.at for e in made if e.kind is EventKind.INSTANCE_TERMINATED}
    assert sorted(types.values()) == ["large", "small"]
    assert ended["large"] < ended["small"] - 600
    assert len([e for e in made if e.kind is EventKind.JOB_FINISHED and e.fields["state"] == "succeeded"]) == 4


def test_uninterruptible_jobs_and_jobs_without_a_cheaper_machine_are_not_moved(tmp_path: Path) -> None:
    kept = [*(movable(0, 60, 2.0) for _ in range(3)), job(0, 900, 1.0)]
    assert bought("karpenter-like", kept, tmp_path, markets=["on_demand"]) == {("large", "on_demand"): 1}
    dear = {**TYPES, "small": {**TYPES["small"], "usd_per_h": 7.0}, "medium": {**TYPES["medium"], "usd_per_h": 7.0}}
    jobs = [*(movable(0, 60, 2.0) for _ in range(3)), movable(0, 900, 1.0)]
    assert bought("karpenter-like", jobs, tmp_path, markets=["on_demand"], types=dear) == {("large", "on_demand"): 1}


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_ends_every_job_and_machine_even_where_machines_run_out_or_die(name: str, tmp_path: Path) -> None:
    jobs = [job(5.0 * n, 20.0 + 7 * n, 1.0 + n % 2, spot=n % 3 == 0) for n in range(12)]
    trouble = {"deaths_per_h": 20.0, "stockouts": {"rate": 0.3, "period_s": 30.0}, "seed": 4}
    reserved = {"reserved": {"large": 2}, "reserved_default": 0}
    made = events(setting(name, jobs, **trouble, **reserved), tmp_path)
    ends = Counter(str(e.fields["state"]) for e in made if e.kind is EventKind.JOB_FINISHED)
    assert sum(ends.values()) == 12
    assert ends["succeeded"] >= 10
    twice = [unit for unit, count in Counter((e.fields["attempt"], e.fields["rank"]) for e in made
                                             if e.kind is EventKind.UNIT_STARTED).items() if count > 1]  # fmt: skip
    assert twice == []


def test_times_bound_is_empty_if_jobs_are_undone(tmp_path: Path) -> None:
    setting_of_both = setting("reserved-only", [job(0, 60, 4.0), job(0, 60, 1.0)], reserved={"small": 1})
    with simulated(setting_of_both, tmp_path) as simulation:
        commitments = simulation.commitments()
        simulation.run()
        outcome = outcome_of("peer:reserved-only", simulation.events, commitments)
        ran_s = run_times_s(setting_of_both.workload, simulation.events())
    table = peer_comparison([outcome], [distance(setting_of_both, tmp_path, [outcome], [ran_s])])
    assert dict(zip([each.name for each in table.columns], table.rows[0], strict=True))["times_bound"] is None
    assert outcome.succeeded == 1


def test_job_that_can_never_run_under_a_peers_rules_fails(tmp_path: Path) -> None:
    made = events(setting("reserved-only", [job(0, 60, 4.0)], reserved={"small": 1}), tmp_path)
    assert [e.fields["state"] for e in made if e.kind is EventKind.JOB_FINISHED] == ["failed"]


def test_more_ranks_than_a_fixed_fleet_ever_holds_fail_and_those_it_holds_run(tmp_path: Path) -> None:
    wide, large, there = job(0, 60, 4.0), job(0, 60, 8.0), {"large": 2}
    gangs = [replace(wide, spec=replace(wide.spec, nodes=Nodes(count=ranks))) for ranks in (5, 4)]
    gangs += [replace(large, spec=replace(large.spec, nodes=Nodes(count=2)))]
    made = events(setting("reserved-only", gangs, reserved=there), tmp_path)
    ended = {e.job_id: e.fields["state"] for e in made if e.kind is EventKind.JOB_FINISHED}
    assert [ended[job_id] for job_id in sorted(ended)] == ["failed", "succeeded", "succeeded"]


def test_an_unknown_peer_is_named_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"unknown peer 'ray'; .*ray-like"):
        peer_named("peer:ray")


def test_every_peer_costs_at_least_the_bound(tmp_path: Path) -> None:
    jobs = [job(10.0 * n, 60.0, 1.0 + n % 2, spot=n % 2 == 0) for n in range(6)]
    outcomes, runs, settings = [], [], []
    for name in PEERS:
        made = setting(name, jobs, reserved={"medium": 2}, quality={"spread": 0.2})
        with simulated(made, tmp_path) as simulation:
            commitments = simulation.commitments()
            simulation.run()
            outcomes.append(outcome_of(f"peer:{name}", simulation.events, commitments))
            runs.append(run_times_s(made.workload, simulation.events()))
        settings.append(made)
    bound = distance(settings[0], tmp_path, outcomes, runs)
    assert all(0 < bound.usd <= each.cost_usd for each in outcomes)
    table = peer_comparison(outcomes, [bound] * len(outcomes))
    names = [column.name for column in table.columns]
    assert all(float(str(row[names.index("times_bound")])) >= 1.0 for row in table.rows)
    # No job has a deadline here, so keeping all of them costs nothing.
    assert bound.in_time_usd == pytest.approx(bound.usd)
    # The seeded fault: at the stated run times a machine faster than stated could have beaten it.
    shorter = with_shortest_runs(settings[0].workload, runs)
    assert sum(each.run_s for each in shorter.arrivals) < sum(each.run_s for each in jobs)


def test_caps_of_a_policy_hold_for_peers(tmp_path: Path) -> None:
    made = setting("skypilot-like", FOUR, caps={"max_instances": 2})
    assert isinstance(made.policy, Policy)
    alive = most = 0
    for event in events(made, tmp_path):
        alive += (event.kind is EventKind.INSTANCE_REQUESTED) - (event.kind is EventKind.INSTANCE_TERMINATED)
        most = max(most, alive)
    assert most == 2


@pytest.mark.parametrize("name", PEERS)
def test_max_jobs_per_user_holds_for_peers(name: str, tmp_path: Path) -> None:
    caps = {"max_instances": 30, "max_jobs_per_user": 2}
    running = most = done = 0
    for event in events(setting(name, [job(0, 60) for _ in range(8)], caps=caps, reserved={"large": 1}), tmp_path):
        running += (event.kind is EventKind.UNIT_STARTED) - (event.kind is EventKind.UNIT_ENDED)
        done += event.kind is EventKind.JOB_FINISHED and event.fields["state"] == "succeeded"
        most = max(most, running)
    assert (most, done) == (2, 8)


@pytest.mark.parametrize("name", PEERS)
def test_user_budgets_hold_for_peers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Most of a day passes before the user may pay again; nothing else happens meanwhile.
    monkeypatch.setattr("hcloud.simulator.run.QUIET_STEP_S", 20.0)
    monkeypatch.setattr("hcloud.simulator.run.IDLE_STEP_S", 600.0)
    jobs = [job(0, 1800) for _ in range(3)]  # without a budget they cost $1.18 or more on the first day
    eve = replace(jobs[0], spec=replace(jobs[0].spec, user="eve"))
    made = setting(name, [eve, *jobs], reserved={"large": 1}, billing_minimum_s=1, reserved_price_factor=0.9)
    budgets = {"per_user": {"ada": {"per_day_usd": 1.17}}}
    policy = parse_simple({"name": name, "budgets": budgets, "caps": {"max_instances": 30}})
    midnight = START_AT - START_AT % 86_400.0 + 86_400.0
    evening = replace(made.workload, began_at=midnight - 2 * 3600.0)
    log = events(replace(made, policy=policy, workload=evening), tmp_path)
    paid = {row[0]: row for row in build_report("cost", log, midnight, by="user", until=midnight).rows}
    assert 0.2 < float(str(paid["ada"][2])) <= 1.17
    done = sum(e.kind is EventKind.JOB_FINISHED and e.fields["state"] == "succeeded" for e in log)
    # A fixed fleet that nobody could pay for any more is taken to be none, until clouds say again what is reserved.
    assert done == 4 or (name == "reserved-only" and done >= 2)
