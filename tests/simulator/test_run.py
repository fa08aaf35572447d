"""Simulations: the daemon's decisions on a virtual clock; equal settings give equal traces."""

import hashlib
import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from hcloud.core.errors import BadInput
from hcloud.core.model import PROFILE_TAG, BatchTarget, BestEffortTarget, Event, EventKind, JobSpec, Resources
from hcloud.planner import make_plan
from hcloud.planner.plan import Plan
from hcloud.planner.snapshot import Snapshot
from hcloud.plots import to_svg
from hcloud.report import build_report
from hcloud.simulator.charts import allocation_figure, cost_figure, fullness_figure, waits_figure
from hcloud.simulator.outcome import SimulationResult, comparison, outcome_of
from hcloud.simulator.run import START_AT, Commitment, Setting, simulated
from hcloud.simulator.scenarios import make_scenario
from hcloud.simulator.workload import Arrival, PastJob, Workload, from_past, read_csv, workload_of
from hcloud.simulator.world import Truth
from hcloud.spec.policy import Policy
from lab.soak.planted_defects import Planted
from tests.policies import parse_simple

CLOUD: dict[str, object] = {
    "types": {"m.one": {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 3.6}},
    "zones": ["east-1a"],
    "markets": ["on_demand"],
    "boot": {"p50_s": 10, "p95_s": 10},
}


def arrival(at_s: float, run_s: float, vcpus: float = 2.0, within_s: float | None = None) -> Arrival:
    target = BestEffortTarget() if within_s is None else BatchTarget(finish_within_s=within_s)
    spec = JobSpec(
        name="job",
        user="ada",
        command=("simulated",),
        target=target,
        resources=Resources(vcpus=vcpus),
        profiling="never",
    )
    return Arrival(at_s=at_s, run_s=run_s, spec=spec)


def policy(**sections: object) -> Policy:
    return parse_simple({"name": "tried", "retention": {"spin_up_multiple": 1, "maximum_s": 10}, **sections})


def events(setting: Setting, folder: Path) -> list[Event]:
    folder.mkdir()
    with simulated(setting, folder) as simulation:
        simulation.run()
        return list(simulation.events())


def summed(made: list[Event], name: str) -> float:
    return sum(float(str(each.fields[name])) for each in made if name in each.fields)


def test_jobs_run_for_their_run_time_on_machines_that_boot_and_end(tmp_path: Path) -> None:
    work = workload_of("two", [arrival(0, 100, within_s=130), arrival(1000, 50, within_s=55)])
    made = events(Setting(workload=work, policy=policy(), cloud=CLOUD), tmp_path / "a")
    outcome = outcome_of("tried", lambda: made)
    assert (outcome.jobs, outcome.succeeded, outcome.launches, outcome.used_once) == (2, 2, 2, 2)
    assert outcome.target_met_pct == 50.0  # the second had five seconds to spare, and its machine took ten
    assert all(10.0 <= wait <= 13.0 for wait in outcome.wait_s)
    lived_s = summed(made, "terminated_at") - summed(made, "launched_at")
    assert outcome.cost_usd == pytest.approx(lived_s * 3.6 / 3600)
    assert outcome.held_vcpu_h == pytest.approx(2 * 150 / 3600)


def test_profiling_runs_hold_machines_but_are_not_counted_among_the_jobs(tmp_path: Path) -> None:
    work = workload_of("two", [arrival(0, 100), arrival(0, 50)])
    made = events(Setting(workload=work, policy=policy(), cloud=CLOUD), tmp_path / "a")
    first, second = (each for each in made if each.kind is EventKind.JOB_SUBMITTED)
    run = replace(second, fields={**second.fields, "tags": {PROFILE_TAG: first.job_id}})
    before = outcome_of("tried", lambda: made)
    outcome = outcome_of("tried", lambda: [run if each is second else each for each in made])
    assert (before.jobs, before.succeeded, len(before.wait_s)) == (2, 2, 2)
    assert (outcome.jobs, outcome.succeeded, len(outcome.wait_s)) == (1, 1, 1)
    assert sum(each.job_s for each in outcome.waited_for) < sum(each.job_s for each in before.waited_for)
    assert max(outcome.series.waiting) == 1
    assert (outcome.held_vcpu_h, outcome.used_once) == (before.held_vcpu_h, before.used_once)


def test_wait_reasons_have_their_total_time(tmp_path: Path) -> None:
    work = workload_of("three", [arrival(0, 100), arrival(0, 100), arrival(0, 100)])
    made = events(Setting(workload=work, policy=policy(caps={"max_instances": 1}), cloud=CLOUD), tmp_path / "a")
    outcome = outcome_of("tried", lambda: made)
    chief = outcome.waited_for[0]
    assert chief.code == "cap_instances"
    assert chief.text.startswith(
        "waiting: caps.max_instances reached: 1 of 1 machines running or launching, 1 more needed ("
    )
    assert sum(each.job_s for each in outcome.waited_for) == pytest.approx(sum(outcome.wait_s))
    assert any(note.startswith("tried: jobs waited") and chief.code in note for note in comparison([outcome]).notes)


def test_what_is_replayed_begins_at_its_own_time_of_day(tmp_path: Path) -> None:
    morning = 1_900_022_400.0 + 9 * 3600.0
    jobs = [PastJob(submitted_at=morning + n * 4 * 3600.0, spec=arrival(0, 0).spec, run_s=3600.0) for n in range(3)]
    tried = policy(budgets={"per_day_usd": 10.0})
    setting = Setting(workload=from_past(jobs), policy=tried, cloud=CLOUD)
    made = events(setting, tmp_path / "replay")
    done = [each.at for each in made if each.kind is EventKind.JOB_FINISHED]
    assert made[0].at == morning
    assert [at < 1_900_022_400.0 + 86_400.0 for at in done] == [True, True, False]
    assert outcome_of("replay", lambda: made).span_s < 2 * 86_400.0


def test_samples_alone_make_no_cycles(tmp_path: Path) -> None:
    work = workload_of("one", [arrival(0, 1000, within_s=2000)])
    with simulated(Setting(workload=work, policy=policy(), cloud=CLOUD), tmp_path) as simulation:
        simulation.run()
        assert sum(each.kind is EventKind.SAMPLE for each in simulation.events()) > 10
        assert simulation.progress.cycles < 150


def test_idle_steps_are_a_minute_though_leases_are_renewed(tmp_path: Path) -> None:
    setting = Setting(workload=Workload(name="one", arrivals=(arrival(0.0, 86_400.0),)), policy=policy(), cloud=CLOUD)
    with simulated(setting, tmp_path) as simulation:
        simulation.run()
        renewed = sum(each.kind is EventKind.INSTANCE_RENEWED for each in simulation.events())
        assert renewed > 20 and simulation.progress.cycles < 2500
        ended = next(each for each in simulation.events() if each.kind is EventKind.UNIT_ENDED)
        assert ended.at - START_AT == pytest.approx(86_400.0, abs=60.0)


TROUBLED: dict[str, object] = {
    "markets": ["on_demand", "spot"],
    "spot": {"preemptions_per_h": 4},
    "quality": {"spread": 0.2},
}


def trace_digest(folder: Path, seed: int) -> str:
    """Return the hash of the log of a small simulation with faults."""
    work = make_scenario("high-variability", 1, hours=0.1, share=0.03)
    setting = Setting(workload=work, policy=policy(caps={"max_instances": 100}), cloud=TROUBLED, seed=seed)
    made = events(setting, folder / "simulated")
    assert len(made) > 100
    return hashlib.sha256("\n".join(map(repr, made)).encode()).hexdigest()


def test_equal_settings_give_equal_traces_in_every_process_and_another_seed_another(tmp_path: Path) -> None:
    program = """
import pathlib, sys
from tests.simulator.test_run import trace_digest
print(trace_digest(pathlib.Path(sys.argv[1]), 3))
"""
    (tmp_path / "other").mkdir()
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    line = [sys.executable, "-c", program, str(tmp_path / "other")]
    elsewhere = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    (tmp_path / "here").mkdir()
    assert elsewhere.stdout.strip() == trace_digest(tmp_path / "here", 3)
    (tmp_path / "else").mkdir()
    assert elsewhere.stdout.strip() != trace_digest(tmp_path / "else", 4)


def test_reserved_machines_are_paid_for_used_or_not(tmp_path: Path) -> None:
    cloud = {**CLOUD, "markets": ["reserved"], "reserved": {"m.one": 3}, "reserved_price_factor": 0.5}
    setting = Setting(workload=workload_of("one", [arrival(0, 100)]), policy=policy(), cloud=cloud)
    with simulated(setting, tmp_path) as simulation:
        commitments = simulation.commitments()
        assert commitments == (Commitment(count=3, vcpus=2.0, price_usd_per_h=1.8),)
        simulation.run()
        outcome = outcome_of("tried", simulation.events, commitments)
    assert outcome.metered_usd == 0.0
    assert outcome.committed_usd == pytest.approx(3 * 1.8 * outcome.span_s / 3600)
    assert 0 < outcome.committed_held_vcpu_h < outcome.committed_vcpu_h


def test_commitments_cost_no_more_where_idle_rented_machines_are_kept_after_the_last_job(tmp_path: Path) -> None:
    cloud = {**CLOUD, "markets": ["reserved", "on_demand"], "reserved": {"m.one": 1}}
    jobs = workload_of("three", [arrival(0, 100) for _ in range(3)])
    found = []
    for minimum_s in (0, 900):
        kept = policy(retention={"minimum_s": minimum_s, "maximum_s": 900})
        (tmp_path / str(minimum_s)).mkdir()
        with simulated(Setting(workload=jobs, policy=kept, cloud=cloud), tmp_path / str(minimum_s)) as simulation:
            commitments = simulation.commitments()
            simulation.run()
            found.append(outcome_of("tried", simulation.events, commitments))
    short, long = found
    assert long.metered_usd > short.metered_usd > 0
    assert long.span_s > short.span_s + 800
    assert long.committed_usd == pytest.approx(short.committed_usd)


def test_machines_that_stay_and_units_that_still_run_count_up_to_the_end(tmp_path: Path) -> None:
    cloud = {**CLOUD, "markets": ["reserved"], "reserved": {"m.one": 1}, "reserved_price_factor": 0.5}
    work = workload_of("three", [arrival(at_s, 100, vcpus=1) for at_s in (0, 300, 350)])
    made = events(Setting(workload=work, policy=policy(), cloud=cloud), tmp_path / "a")
    (up_at,) = (float(str(each.fields["launched_at"])) for each in made if "launched_at" in each.fields)
    whole = outcome_of("whole", lambda: made)
    assert whole.up_vcpu_h == pytest.approx(2 * (START_AT + whole.span_s - up_at) / 3600)
    assert whole.held_vcpu_h == pytest.approx(3 * 100 / 3600)
    _, _, third = (at for at, each in enumerate(made) if each.kind is EventKind.JOB_SUBMITTED)
    _, second, _ = (each.at for each in made if each.kind is EventKind.UNIT_STARTED)
    cut = outcome_of("cut", lambda: made[: third + 1])
    assert cut.held_vcpu_h == pytest.approx((100 + made[third].at - second) / 3600)


def test_work_that_no_machine_can_do_ends_the_simulation_and_fails(tmp_path: Path) -> None:
    work = workload_of("wide", [arrival(0, 10, vcpus=64)])
    made = events(Setting(workload=work, policy=policy(), cloud=CLOUD), tmp_path / "a")
    assert outcome_of("tried", lambda: made).succeeded == 0


def test_long_running_job_does_not_stall_the_simulation(tmp_path: Path) -> None:
    work = workload_of("one", [arrival(0, 500)])
    with simulated(Setting(workload=work, policy=policy(), cloud=CLOUD), tmp_path) as simulation:
        simulation.give_up_after_s = 100.0
        simulation.run()
        assert simulation.progress.ended == 1


def test_reserving_on_a_cloud_without_reserved_machines_is_refused(tmp_path: Path) -> None:
    cloud = {**CLOUD, "markets": ["on_demand"], "reserved": {"m.one": 1}}
    with simulated(
        Setting(workload=workload_of("one", [arrival(0, 10)]), policy=policy(), cloud=cloud), tmp_path
    ) as it:
        with pytest.raises(BadInput, match="nothing can be reserved on this cloud; add `reserved` to its `markets`"):
            it.commitments()


@pytest.mark.parametrize("place", ["m.rented", "east-1a/m.rented"])
def test_reserving_a_type_that_cannot_be_reserved_is_refused_while_others_can(tmp_path: Path, place: str) -> None:
    sizes = {"vcpus": 2, "memory_mib": 4096, "usd_per_h": 1}
    cloud = {"types": {"m.one": sizes, "m.rented": {**sizes, "markets": ["on_demand"]}}, "zones": ["east-1a"]}
    alike = Setting(workload=workload_of("one", [arrival(0, 10)]), policy=policy())
    with simulated(replace(alike, cloud={**cloud, "reserved": {place: 1}}), tmp_path / "a") as it:
        with pytest.raises(BadInput, match=f"^{place} cannot be reserved on this cloud; did you mean"):
            it.commitments()
    none = {**cloud, "reserved": {place: 0, "m.one": 2}, "reserved_default": 0}
    with simulated(replace(alike, cloud=none), tmp_path / "b") as it:
        assert [each.count for each in it.commitments()] == [2]


def test_service_that_is_taken_down_keeps_its_promise_no_more_often_than_the_report_says(tmp_path: Path) -> None:
    text = "at_s,run_s,vcpus,requests_per_s,latency_ms\n" + "0,7200,2,100,20\n" * 3
    spot = {**CLOUD, "markets": ["spot"], "spot": {"preemptions_per_h": 0.5}, "boot": {"p50_s": 300, "p95_s": 300}}
    risked = policy(spot={"for_targets": ["service"]})
    setting = Setting(workload=read_csv(text.splitlines(), "web.csv"), policy=risked, cloud=spot, seed=1)
    made = events(setting, tmp_path / "a")
    table = build_report("performance", made, made[-1].at + 1.0, by="job").to_json()
    told = [row["target_met_pct"] for row in table["rows"]]
    assert min(told) < 98.0 and max(row["attempts"] for row in table["rows"]) > 1
    assert outcome_of("tried", lambda: made).service_met_pct == pytest.approx(fmean(told))


def test_stalled_simulation_names_the_wait_reason(tmp_path: Path) -> None:
    work = workload_of("one", [arrival(0, 10)])
    sold_out = {**CLOUD, "stockouts": {"rate": 1.0}}
    with simulated(Setting(workload=work, policy=policy(), cloud=sold_out), tmp_path) as simulation:
        simulation.give_up_after_s = 100.0
        with pytest.raises(BadInput, match=r"1 job has not ended 1\d\d s after the last arrival; they wait for \w+"):
            simulation.run()


def test_work_that_no_cap_allows_stalls_after_a_day(tmp_path: Path) -> None:
    capped = policy(caps={"max_vcpus": 1})
    work = workload_of("one", [arrival(0, 10)])
    with simulated(Setting(workload=work, policy=capped, cloud=CLOUD), tmp_path) as simulation:
        with pytest.raises(BadInput, match=r"they wait for cap_vcpus \(waiting: caps\.max_vcpus reached: .* \(m\.one "):
            simulation.run()
        assert 86_400 < simulation.progress.now_s < 100_000 and simulation.progress.cycles < 3000


def test_work_that_a_budget_allows_tomorrow_is_waited_for(tmp_path: Path) -> None:
    thrifty = policy(budgets={"per_day_usd": 3.7})
    work = workload_of("two", [arrival(0, 150), arrival(200, 150)])
    with simulated(Setting(workload=work, policy=thrifty, cloud=CLOUD), tmp_path) as simulation:
        simulation.run()
        assert outcome_of("tried", simulation.events).succeeded == 2
        assert simulation.progress.now_s > 3600


def test_progress_counts_jobs_that_users_submitted(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    work = make_scenario("high-variability", 1, hours=0.05, share=0.03)
    learning = policy(profiling={"when": "before", "max_share_of_slack": 1.0})
    with simulated(Setting(workload=work, policy=learning, truth=Truth()), tmp_path) as simulation:
        simulation.run(lambda now: seen.append((now.submitted, now.ended)))
        runs = sum(PROFILE_TAG in (each.fields.get("tags") or ()) for each in simulation.events())  # type: ignore[operator]
    assert runs > 0 and all(0 <= ended <= submitted for submitted, ended in seen)
    assert all(before <= after for (_, before), (_, after) in itertools.pairwise(seen))
    assert seen[-1] == (len(work.arrivals), len(work.arrivals))


@pytest.mark.parametrize("truth", [None, Truth(external_load=0.0, heterogeneity=0.0, drift=0.0)])
def test_services_of_a_list_count_by_their_own_targets(tmp_path: Path, truth: Truth | None) -> None:
    text = "at_s,run_s,vcpus,requests_per_s,latency_ms\n0,600,2,50,10\n0,600,2,500,20\n0,600,2,5000,100\n0,20,2,1,1\n"
    setting = Setting(workload=read_csv(text.splitlines(), "list.csv"), policy=policy(), cloud=CLOUD, truth=truth)
    slow = replace(setting, cloud={**CLOUD, "quality": {"spread": 1.0}}, seed=3)
    made = events(setting, tmp_path / "a")
    outcome = outcome_of("tried", lambda: made)
    assert (outcome.succeeded, outcome.service_met_pct) == (4, 100.0)
    made = events(slow, tmp_path / "b")
    assert (outcome_of("slow", lambda: made).service_met_pct or 0.0) < 100.0


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[SimulationResult]:
    """Two policies on the same workload."""
    work = Workload(name="w", arrivals=(arrival(0, 60, within_s=200), arrival(30, 60), arrival(31, 60)))
    made = []
    for name in ("first", "<second>"):
        folder = tmp_path_factory.mktemp("simulated")
        with simulated(Setting(workload=work, policy=policy(), cloud=CLOUD), folder) as simulation:
            simulation.run()
            made.append(outcome_of(name, simulation.events))
    return made


def test_comparison_has_a_row_for_each_policy_and_measures_against_the_first(outcomes: list[SimulationResult]) -> None:
    table = comparison(outcomes)
    names = [column.name for column in table.columns]
    assert [row[0] for row in table.rows] == ["first", "<second>"]
    assert [row[names.index("cost_pct")] for row in table.rows] == [100.0, 100.0]


def test_series_end_at_nothing_and_never_hold_more_than_is_up(outcomes: list[SimulationResult]) -> None:
    series = outcomes[0].series
    up = [sum(each) for each in zip(*series.up_vcpus.values(), strict=True)]
    assert max(series.held_vcpus) > 0
    assert all(held <= there + 1e-9 for held, there in zip(series.held_vcpus, up, strict=True))
    assert (up[-1], series.held_vcpus[-1], series.waiting[-1]) == (0.0, 0.0, 0.0)


def test_pictures_are_whole_documents_and_hold_no_foreign_markup(outcomes: list[SimulationResult]) -> None:
    from xml.etree import ElementTree

    for draw in (allocation_figure, cost_figure, fullness_figure, waits_figure):
        text = to_svg(draw(outcomes))
        assert "&lt;second&gt;" in text
        assert ElementTree.fromstring(text).tag.endswith("svg")


def test_each_line_of_a_picture_looks_different(outcomes: list[SimulationResult]) -> None:
    many = [replace(outcomes[0], name=f"policy-{n}") for n in range(14)]
    [axes] = waits_figure(many).axes
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 14


def test_planning_failure_on_a_job_is_reported_and_others_are_simulated(tmp_path: Path) -> None:
    def planner(snapshot: Snapshot, policy: Policy, rng: np.random.Generator) -> Plan:
        living = {each.id for each in snapshot.jobs} - set(snapshot.left_out.jobs)
        if "job-2" in living and snapshot.now < START_AT + 500:
            raise Planted("a defect")
        return make_plan(snapshot, policy, rng)

    workload = workload_of("three", [arrival(0, 60), arrival(10, 60), arrival(20, 60)])
    setting = Setting(workload=workload, policy=policy(), cloud=CLOUD, planner=planner)
    made = events(setting, tmp_path / "failing")
    outcome = outcome_of("failing", lambda: made)
    assert (outcome.jobs, outcome.succeeded) == (3, 3)
    assert outcome.planning_failed == ("job-2 (Planted: a defect in test_run.py, planner)",)
