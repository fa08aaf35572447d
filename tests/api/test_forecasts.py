"""What the API says of run times: of jobs and programs that ran before, and of none."""

import re
from itertools import pairwise

import pytest

from hcloud.api.forecasts import chart_of
from hcloud.core.rows import replace_fields
from hcloud.forecast.runtimes.distribution import unknown_run_time
from hcloud.forecast.runtimes.mixture import MixturePredictor
from hcloud.planner.placement.room_reservation import PLANNED
from hcloud.planner.plan import PlannedStart
from lab.soak.planted_defects import Planted
from tests.api.deployment import ROOT, STRANGER, SUBMITTER, Deployment

SLEEP = {"job": {"name": "nightly", "command": "sleep 20", "target": {"batch": {"within": "10m"}}}}


def ended(deployment: Deployment, count: int) -> str:
    """Run jobs of one program to their end; return the program."""
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[SLEEP] * count)
    deployment.cycle_until(lambda: all(job.finished_at for job in deployment.store.jobs()))
    deployment.cycle()
    return f"{deployment.store.job('job-1').spec.user}:sleep"


def test_forecast_of_a_job_counts_the_runs_of_its_program(deployment: Deployment) -> None:
    program = ended(deployment, 6)
    deployment.client(SUBMITTER).post("/v1/jobs", json=[SLEEP])
    found = deployment.client(SUBMITTER).get("/v1/forecast", params={"of": "job-7"}).json()
    assert (found["job"], found["program"], found["runs"], found["ran_s"]) == ("job-7", program, 6, 0.0)
    assert 5.0 < found["median_s"] <= found["within_80_pct_s"] <= found["within_90_pct_s"]
    assert found["median_s"] == pytest.approx(20.0, rel=0.3)
    assert 0.5 < found["deadline_probability"] <= 1.0
    assert sum(bar["probability"] for bar in found["chart"]) == pytest.approx(1.0)
    assert deployment.client(ROOT).get("/v1/forecast", params={"of": program}).json()["runs"] == 6


def test_what_jobs_run_is_not_told_to_other_users(deployment: Deployment) -> None:
    program = ended(deployment, 1)
    client = deployment.client(STRANGER)
    for of in ("job-1", program):
        assert client.get("/v1/forecast", params={"of": of}).status_code == 403
    for kind in ("job_submitted", "job_finished"):
        [theirs] = client.get("/v1/events", params={"kind": kind}).json()
        [own] = deployment.client(SUBMITTER).get("/v1/events", params={"kind": kind}).json()
        assert own["fields"].pop("features")["application"] == program
        assert theirs["fields"] == own["fields"] != {}
    assert '"features"' not in client.get("/v1/jobs/job-1/explain").text


def test_forecast_of_a_running_job_is_of_the_rest_given_its_age(deployment: Deployment) -> None:
    ended(deployment, 3)
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[{"job": {**SLEEP["job"], "command": "sleep 300"}}])
    deployment.cycle_until(lambda: deployment.store.job("job-4").state == "running")
    deployment.cycle(10, step_s=10.0)
    found = client.get("/v1/forecast", params={"of": "job-4"}).json()
    assert 90.0 < found["ran_s"] < found["median_s"]
    late = found["deadline_probability"]
    deployment.cycle(15, step_s=10.0)
    assert client.get("/v1/forecast", params={"of": "job-4"}).json()["deadline_probability"] < late


def test_explain_says_how_long_a_live_job_runs_and_how_likely_it_meets_its_deadline(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    ended(deployment, 2)
    client.post("/v1/jobs", json=[SLEEP])
    story = client.get("/v1/jobs/job-3/explain").json()
    assert story["run_time"] == story["lines"][1]
    assert story["run_time"].startswith("run time: ")
    assert ", by 2 similar runs; probability to meet the deadline if it starts now 0." in story["run_time"]
    first_story = client.get("/v1/jobs/job-1/explain").json()  # nothing was known when it started
    assert first_story["run_time"] == "" and not any("run time:" in line for line in first_story["lines"])


def test_explain_shows_what_was_predicted_of_an_ended_job_beside_what_was_measured(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    ended(deployment, 6)
    client.post("/v1/jobs", json=[SLEEP])
    deployment.cycle_until(lambda: deployment.store.job("job-7").state == "running")
    deployment.cycle(5)
    assert re.search(r"given that it ran for \d", client.get("/v1/jobs/job-7/explain").json()["run_time"])
    recorded = client.get("/v1/events", params={"kind": "attempt_placed"}).json()[-1]["fields"]["run_time"]
    deployment.cycle_until(lambda: deployment.store.job("job-7").finished_at is not None)
    story = client.get("/v1/jobs/job-7/explain").json()
    assert re.fullmatch(
        r"run time: predicted \d+(\.\d)? s \(median\), 2\d(\.\d)? s at most with probability 0.9, by user\+\S+; "
        r"ran 2\d(\.\d)? s, "
        r"(within|beyond) the limit",
        story["run_time"],
    )
    assert recorded == client.get("/v1/events", params={"kind": "attempt_placed"}).json()[-1]["fields"]["run_time"]
    report = client.get("/v1/reports/accuracy", params={"of": "runtime"}).json()
    assert report["total"]["runs"] == 1 and [row["feature"] for row in report["rows"]] == [recorded["source"]]
    others = deployment.client(STRANGER)
    assert "predicted" not in others.get("/v1/jobs/job-7/explain").text
    assert "quantiles_s" not in others.get("/v1/events", params={"kind": "attempt_placed"}).text


def test_submissions_and_previews_say_how_likely_deadlines_are_met(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    assert client.post("/v1/jobs", json=[SLEEP]).json()[0]["deadline_probability"] is None
    ended(deployment, 5)
    hurried = {"job": {**SLEEP["job"], "target": {"batch": {"within": "10s"}}}}
    some_time = {"job": {**SLEEP["job"], "target": {"batch": {}}}}
    for path in ("/v1/jobs", "/v1/plan"):
        likely, late, without = (each["deadline_probability"] for each in client.post(
            path, json=[SLEEP, hurried, some_time]
        ).json())  # fmt: skip
        assert likely > 0.9 and late < 0.2 and without is None


def test_a_defect_of_the_forecast_leaves_submissions(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(deployment, 1)

    def fail(*_: object) -> None:
        raise Planted("a defect")

    monkeypatch.setattr(MixturePredictor, "predict", fail)
    [answer] = deployment.client(SUBMITTER).post("/v1/jobs", json=[SLEEP]).json()
    assert (answer["id"], answer["deadline_probability"]) == ("job-2", None)


def test_explain_follows_each_plan_of_when_a_waiting_job_starts(deployment: Deployment) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[SLEEP])
    [waiting] = deployment.store.jobs()
    with deployment.store.transaction(deployment.clock.now()) as txn:
        txn.put_job(replace_fields(waiting, wait_code=PLANNED, wait_text="planned to start later"))
    for in_s in (300.0, 60.0):
        start = PlannedStart(at=deployment.clock.now() + in_s, chance=0.7, chance_now=0.9)
        deployment.controller.planned_starts = {"job-1": start}
        story = client.get("/v1/jobs/job-1/explain").json()
        assert story["planned_start"] == story["lines"][1] == start.sentence(deployment.clock.now())
    deployment.controller.planned_starts = {}
    assert client.get("/v1/jobs/job-1/explain").json()["planned_start"] == ""


def test_a_defect_of_the_forecast_leaves_the_timeline(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(deployment, 1)
    client = deployment.client(SUBMITTER)

    def fail(*_: object) -> None:
        raise Planted("a defect")

    monkeypatch.setattr(MixturePredictor, "predict", fail)  # before the job asks: answers are kept
    client.post("/v1/jobs", json=[SLEEP])
    story = client.get("/v1/jobs/job-2/explain").json()
    assert (story["run_time"], story["steps"][0]["code"]) == ("", "submitted")


@pytest.mark.parametrize(
    ("of", "told"),
    [
        ("job-1", "no run of .*:sleep, the program of job-1, or of that name is known yet"),
        ("job-7", "there is no job-7"),
        ("USER:sort", "no run of the program .*:sort is known"),
    ],
)
def test_what_never_ran_is_not_found_and_the_reason_is_one_sentence(deployment: Deployment, of: str, told: str) -> None:
    client = deployment.client(SUBMITTER)
    client.post("/v1/jobs", json=[SLEEP])
    deployment.cycle()
    of = of.replace("USER", deployment.store.job("job-1").spec.user)
    answer = client.get("/v1/forecast", params={"of": of})
    assert answer.status_code == 404
    assert re.search(told, answer.text)


def test_a_chart_has_few_bars_even_where_nothing_is_known() -> None:
    bars = chart_of(unknown_run_time())
    assert 10 <= len(bars) <= 30
    assert sum(bar.probability for bar in bars) == pytest.approx(1.0)
    assert all(one.until_s == other.from_s for one, other in pairwise(bars))
