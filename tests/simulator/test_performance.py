"""Performance of jobs relative to their ideal, from a finished simulation's log."""

from pathlib import Path

import pytest

from hcloud.core.errors import BadInput
from hcloud.core.model import Event, EventKind
from hcloud.simulator.clusters import EXPERIMENTS, PARAGON_EC2, PARAGON_SMALL, WARM_UP, WARM_UP_S, make_experiment
from hcloud.simulator.outcome import comparison, outcome_of
from hcloud.simulator.performance import Ideal, kept_pct, mean, performances, quantile
from hcloud.simulator.run import Setting, simulated
from tests.policies import parse_simple

ROOMY = parse_simple({"caps": {"max_instances": 2000, "max_vcpus": None}, "retention": {"minimum_s": 3600.0}})


def event(kind: EventKind, at: float, job_id: str = "job-1", **fields: object) -> Event:
    return Event(
        seq=1, at=at, kind=kind, job_id=job_id, instance_id="inst-1", user="ada", actor="hcloud", fields=fields
    )


def story(*, ran_s: float, waited_s: float = 0.0, state: str = "succeeded", latency_ms: float = 0.0) -> list[Event]:
    started_at, ended_at = 100.0 + waited_s, 100.0 + waited_s + ran_s
    sample = [event(EventKind.SAMPLE, started_at + 1, latency_ms_p99=latency_ms)] if latency_ms else []
    return [
        event(EventKind.JOB_SUBMITTED, 100.0),
        event(EventKind.UNIT_STARTED, started_at, attempt="job-1.1", rank=0),
        *sample,
        event(EventKind.UNIT_ENDED, ended_at, attempt="job-1.1", rank=0),
        event(EventKind.JOB_FINISHED, ended_at + 1, state=state),
    ]


def test_a_batch_job_counts_by_its_run_time_and_with_its_wait() -> None:
    (found,) = performances(story(ran_s=125.0, waited_s=75.0), {"job-1": Ideal(run_s=100.0)})
    assert (found.kind, found.running, found.turnaround, found.kept) == ("batch", 0.8, 0.5, False)
    (found,) = performances(story(ran_s=105.0), {"job-1": Ideal(run_s=100.0)})
    assert found.kept


def test_a_service_counts_by_its_latency_and_keeps_what_it_promised() -> None:
    ideal = Ideal(run_s=100.0, latency_ms=12.0, promised_ms=20.0)
    (found,) = performances(story(ran_s=100.0, latency_ms=20.5), {"job-1": ideal})
    assert (found.kind, found.running, found.kept) == ("service", pytest.approx(12 / 20.5), True)
    (found,) = performances(story(ran_s=100.0, latency_ms=24.0), {"job-1": ideal})
    assert (found.running, found.kept) == (0.5, False)


def test_failed_job_has_no_performance_and_other_jobs_are_ignored() -> None:
    (found,) = performances(story(ran_s=1.0, state="failed"), {"job-1": Ideal(run_s=100.0)})
    assert (found.running, found.turnaround, found.kept) == (0.0, 0.0, False)
    assert performances(story(ran_s=1.0), {}) == ()
    assert (mean(()), quantile((), 0.5), kept_pct(())) == (None, None, None)


def test_clusters_are_those_of_the_papers() -> None:
    assert sum(each.count for each in PARAGON_SMALL) == 40
    assert sum(each.count * each.vcpus for each in PARAGON_SMALL) == 178
    assert (sum(each.count for each in PARAGON_EC2), len(PARAGON_EC2)) == (1000, 14)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_are_the_same_for_the_same_seed(name: str) -> None:
    made, again, other = (make_experiment(name, seed, hours=0.2, share=0.1) for seed in (1, 1, 2))
    assert made == again != other


def test_invalid_experiments_are_refused() -> None:
    with pytest.raises(BadInput, match="there is no experiment 'quasars'; did you mean 'quasar'"):
        make_experiment("quasars")
    with pytest.raises(BadInput, match="share 2 is out of range"):
        make_experiment("quasar", share=2)


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith(("paragon-large", "quasar"))])
def test_a_share_of_the_jobs_comes_in_the_same_time(name: str) -> None:
    whole, tenth = (make_experiment(name, 1, share=share).workload.arrivals for share in (1.0, 0.1))
    assert tenth[-1].at_s == pytest.approx(whole[-1].at_s, rel=0.02)
    counts = [sum(each.spec.tags["kind"] != WARM_UP for each in arrivals) for arrivals in (whole, tenth)]
    assert counts[1] == counts[0] / 10


def test_the_burst_is_one_in_a_share_of_it_too() -> None:
    arrivals = make_experiment("paragon-large-oversubscribed", 1, share=0.1).workload.arrivals
    jobs = [each.at_s for each in arrivals if each.spec.tags["kind"] != WARM_UP]
    assert sum(WARM_UP_S + 3750 <= at_s < WARM_UP_S + 3850 for at_s in jobs) == 100 + 10


def test_small_cluster_boots_before_its_jobs_and_reports_performance(tmp_path: Path) -> None:
    made = make_experiment("paragon-small-low", 1, share=0.1)
    setting = Setting(workload=made.workload, policy=ROOMY, cloud=made.cloud, truth=made.truth)
    with simulated(setting, tmp_path) as simulation:
        simulation.run()
        outcome = outcome_of("here", simulation.events, simulation.commitments(), simulation.ideals())
    assert outcome.succeeded == outcome.jobs
    assert len(outcome.performance) == 18
    assert all(0 < each.turnaround <= each.running <= 1.1 for each in outcome.performance)
    table = comparison([outcome])
    shown = dict(zip((column.name for column in table.columns), table.rows[0], strict=True))
    assert 0 < float(str(shown["performance_p5_pct"])) <= float(str(shown["performance_pct"])) < 105
    up = [sum(each) for each in zip(*outcome.series.up_vcpus.values(), strict=True)]
    assert all(held <= there for held, there in zip(outcome.series.held_vcpus, up, strict=True))
