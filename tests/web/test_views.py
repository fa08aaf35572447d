"""What pages compute themselves: use of machines, losses by neighbours, replays, and text."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hcloud.api.job_history import Step
from hcloud.api.turns import Busy
from hcloud.classifier.applications import identify
from hcloud.classifier.slowdown.calibration import Factor, PressureCalibration
from hcloud.classifier.slowdown.forecasts import NOTHING_OBSERVED
from hcloud.core.co_runs import CoRun
from hcloud.core.estimates import Application, Classification, Estimate
from hcloud.core.model import Event, EventKind
from hcloud.forecast.job_monitor import JobSamples, Sampled
from hcloud.forecast.use_history import SLOT_S, SLOTS, UseHistory
from hcloud.planner.snapshot import Snapshot
from hcloud.report.table import ReportTable, columns
from hcloud.store import LiveView
from hcloud.web import shapes, text
from hcloud.web.applications import history_words
from hcloud.web.fleet import FRESH_S, FleetCache, JobsByClass, MachineUses, busy_vcpus, fleet_groups
from hcloud.web.heat import EarlierUse, heat_map, use_points
from hcloud.web.jobs import known_name
from hcloud.web.machines import LOSSES_OF_OTHERS_S, busy_history, neighbour_losses
from hcloud.web.money import day_chart
from hcloud.web.timeline import job_periods, period_totals, timeline_entries
from hcloud.web.what_if import WhatIfRun, WhatIfRuns
from tests.waiting import wait_until
from tests.web.conftest import Site, form_token

PATIENCE_S = 60.0


def samples(*cpu_s: float) -> JobSamples:
    kept = tuple(Sampled(at=10.0 * at, values={"cpu_s": each}) for at, each in enumerate(cpu_s))
    return JobSamples(attempt="job-1.1", ranks={0: kept})


def test_busy_vcpus_are_the_pace_of_cpu_time() -> None:
    assert busy_vcpus(samples(0.0, 15.0, 30.0), 0) == 1.5
    assert busy_vcpus(samples(0.0), 0) is None
    assert busy_vcpus(samples(), 1) is None
    assert busy_vcpus(samples(*[0.0] * 20, 10.0, 20.0, 30.0, 40.0, 50.0), 0) == 1.0


def test_machines_are_counted_with_what_holds_them(site: Site) -> None:
    site.submitted("ada", command=["sleep", "90"], resources={"vcpus": 0.5})
    site.deployment.cycle(8)
    live = site.deployment.store.live()
    job = next(each for each in live.jobs if each.attempt is not None)
    measured = {job.id: replace(samples(0.0, 2.5), attempt=job.attempt.id if job.attempt else "")}
    (use,) = [each for each in MachineUses().at(live, measured).values() if each.jobs]
    assert (use.held_vcpus, use.busy_vcpus, use.vcpus) == (0.5, 0.25, 2.0)
    assert (use.held_share, use.busy_share) == (0.25, 0.125)
    assert use.unused_usd_per_h == pytest.approx(0.3 * 0.875)
    (group,) = fleet_groups([use])
    assert (group.machines, group.held_share, group.busy_share) == (1, 0.25, 0.125)
    old = {job.id: replace(samples(0.0, 2.5), attempt="job-1.0")}
    assert next(each for each in MachineUses().at(live, old).values() if each.jobs).busy_vcpus is None


def views_are_brought_up_to_date(site: Site) -> None:
    deployment, uses, queue, seen = site.deployment, MachineUses(), JobsByClass(), set[int]()
    for number in range(12):
        site.submitted("ada", command=["sleep", str(5 + 7 * number)], resources={"vcpus": 0.5})
    for _ in range(60):
        deployment.cycle()
        live, samples = deployment.store.live(), deployment.context.snapshot().job_samples
        assert uses.at(live, samples) == MachineUses().at(live, samples)
        assert queue.classes(live, 0.0) == JobsByClass().classes(live, 0.0)
        seen.add(sum(len(each.jobs) for each in uses.at(live, samples).values()))
    assert len(seen) > 5


def test_views_follow_what_changes(fresh_site: Site) -> None:
    views_are_brought_up_to_date(fresh_site)


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("sampled_since", lambda before, now: set()),
        ("MachineUses._remove", lambda self, job_id: frozenset()),
        ("JobsByClass._remove", lambda self, job: None),
    ],
)
def test_views_that_do_not_follow_are_noticed(
    fresh_site: Site, monkeypatch: pytest.MonkeyPatch, place: str, fault: Callable[..., object]
) -> None:
    monkeypatch.setattr(f"hcloud.web.fleet.{place}", fault)
    with pytest.raises(AssertionError):
        views_are_brought_up_to_date(fresh_site)


def test_waiting_jobs_are_grouped_by_class_and_reason(site: Site) -> None:
    job = site.deployment.store.job(site.submitted("ada"))
    waits = [replace(job, id=f"job-{at}", wait_code=f"code-{at % 2}", wait_text=f"why {at}") for at in range(5)]
    aged = [replace(each, submitted_at=100.0 + at) for at, each in enumerate(waits)]
    queue = JobsByClass()
    (found,) = queue.classes(LiveView(jobs=tuple(aged)), 200.0)
    assert (found.name, found.waiting, found.running, found.longest_s) == ("best effort", 5, 0, 100.0)
    assert [(each.code, each.jobs, each.text, each.example) for each in found.ranked] == [
        ("code-0", 3, "why 0", "job-0"),
        ("code-1", 2, "why 1", "job-1"),
    ]
    (later,) = queue.classes(LiveView(jobs=tuple(aged[1:])), 300.0)  # the one that waited longest does so no more
    assert [(each.jobs, each.longest_s, each.example) for each in later.ranked] == [
        (2, 198.0, "job-2"),
        (2, 199.0, "job-1"),
    ]


def test_a_job_names_what_earlier_runs_showed_of_its_program(site: Site) -> None:
    job = site.deployment.store.job(site.submitted("ada"))
    identity = identify(job.spec)
    row = Application(name=identity.name, program=identity.program, inputs={identity.input: 1.0}, profiled_at=1.0)
    assert known_name(job, Snapshot(now=0.0, programs={row.program: (row,)})) == row.name
    assert known_name(job, Snapshot(now=0.0)) == ""
    assert known_name(replace(job, application="ada:x#1"), Snapshot(now=0.0)) == "ada:x#1"


def test_the_fleet_is_looked_at_once_a_second_however_many_look(site: Site) -> None:
    cache = FleetCache(site.deployment.context)
    first = cache.current()
    assert cache.current() is first
    site.deployment.clock.advance(FRESH_S)
    assert cache.current() is not first


def application(tolerated: float) -> Classification:
    return Classification(
        quality_target=Estimate(0.5, 0.4, 0.6),
        tolerated={"memory-bandwidth": Estimate(tolerated, tolerated, tolerated)},
        caused={"memory-bandwidth": Estimate(60.0, 60.0, 60.0)},
    )


def test_losses_by_neighbours_are_expected_by_pressures_and_shown_beside_what_was_measured(site: Site) -> None:
    for _ in range(2):
        site.submitted("ada", command=["sleep", "90"], resources={"vcpus": 0.1})
    site.deployment.cycle(8)
    live = site.deployment.store.live()
    use = next(each for each in MachineUses().at(live, {}).values() if len(each.jobs) > 1)
    one, two, *_ = use.jobs = [replace(each, application=f"ada:{each.id}") for each in use.jobs[:2]]
    snapshot = Snapshot(
        now=0.0,
        applications={one.application: application(10.0), two.application: application(90.0)},
        slowdowns=NOTHING_OBSERVED,
    )
    column = f"mock/{use.instance.offer.instance_type.name}"
    record = CoRun(
        application=one.application, neighbours=(two.application,), type_column=column, log_speed=-0.5, doubt=0.1,
        seconds=120.0,
    )  # fmt: skip
    sensitive, robust = neighbour_losses(use, snapshot, {record.key: record})
    assert sensitive.expected is not None
    assert robust.expected is not None
    assert sensitive.expected > 0.1 > robust.expected
    assert sensitive.beside == (two.id,)
    assert sensitive.measured == pytest.approx(0.393, abs=0.001)
    assert (sensitive.measured_s, robust.measured) == (120.0, None)
    assert two.attempt is not None
    (held,) = two.attempt.allocations
    use.jobs = [one, replace(two, attempt=replace(two.attempt, allocations=(replace(held, paused_at=1.0),)))]
    assert neighbour_losses(use, snapshot, {})[0].beside == (), "the other one is paused"
    use.jobs = [one, two]
    others = PressureCalibration(by_type={column: Factor(0.2, 0.1)})
    by_others = replace(snapshot, slowdowns=replace(NOTHING_OBSERVED, calibration=others))
    learnt, _ = neighbour_losses(use, by_others, {})
    assert learnt.expected is not None
    assert learnt.expected < 0.3 * sensitive.expected
    assert learnt.source.endswith("what others lost by them on this type")
    unknown = neighbour_losses(use, Snapshot(now=0.0), {})
    assert [(each.expected, each.source) for each in unknown] == [(None, "nothing is known of it yet")] * 2


def test_use_is_a_row_of_colours_for_each_machine_over_the_time_it_was_up(site: Site) -> None:
    site.submitted("ada", command=["sleep", "90000"], resources={"vcpus": 2})
    site.deployment.cycle(8)
    began_at = site.deployment.clock.now()
    site.deployment.cycle(60, step_s=60.0)
    history, now = site.deployment.use_history, site.deployment.clock.now()
    uses = [each for each in MachineUses().at(site.deployment.store.live(), {}).values() if each.held_vcpus == 2.0]
    found = heat_map(uses, history, now)
    assert found is not None
    assert (found.column_s, found.end_at, found.begin_at % SLOT_S) == (SLOT_S, now, 0.0)
    assert found.columns == round((now // SLOT_S) - (found.begin_at // SLOT_S)) + 1 >= 6
    (row,) = found.rows
    # Programs that are pretended use eight tenths of what they hold.
    assert re.search(r'class="h8" d="M\d+ 0h\d+v1h-\d+z"', row.colours), row.colours
    assert re.search(r"inst-\d+: \d+ % of its vCPUs in use, between \d+ % and 8\d %", row.words), row.words
    times, shares = use_points(uses[0], history, now)
    assert began_at - SLOT_S <= times[0] < times[-1] <= now
    assert shares[-2] == pytest.approx(0.8, abs=0.02)
    day = heat_map(uses, history, now + 86400.0)
    assert day is not None
    assert (day.columns, day.column_s) == (48, 3 * SLOT_S)
    assert heat_map([], history, now) is None


def test_earlier_use_is_read_back_from_the_log_once(fresh_site: Site) -> None:
    fresh_site.submitted("ada", command=["sleep", "90000"], resources={"vcpus": 2})
    deployment, restarted = fresh_site.deployment, UseHistory()
    deployment.cycle(60, step_s=60.0)
    now, live = deployment.clock.now(), deployment.store.live()
    restarted.begin(live.jobs, live.instances, deployment.store.newest_event_seq())
    earlier = EarlierUse(replace(deployment.context, use_history=restarted))
    thread = earlier.read()
    assert thread is not None
    thread.join(PATIENCE_S)
    for each in live.instances:
        assert restarted.cpu_s(each.id, now) == deployment.use_history.cpu_s(each.id, now)
    assert max(sum(restarted.cpu_s(each.id, now)) for each in live.instances) > 1000.0
    assert restarted.known_since == now - SLOTS * SLOT_S
    assert earlier.read() is None


def test_a_job_s_life_is_cut_into_phases(site: Site) -> None:
    job = site.deployment.store.job(site.submitted("ada"))

    def state(at: float, to: str) -> Event:
        return Event(at=at, kind=EventKind.JOB_STATE, fields={"to": to})

    since = job.submitted_at
    moves = (("queued", 1), ("awaiting_instance", 5), ("placed", 9), ("running", 10), ("queued", 20), ("running", 30))
    events = [state(since + at, to) for to, at in moves]
    phases = job_periods(job, events, since + 50)
    assert [(each.kind, each.since - since, each.until - since) for each in phases] == [
        *(("waiting", 0, 5), ("starting", 5, 10), ("running", 10, 20), ("waiting", 20, 30), ("running", 30, 50)),
    ]
    assert period_totals(phases) == {"waiting": 15, "starting": 5, "running": 30}
    ended = job_periods(replace(job, finished_at=since + 40), events, since + 50)
    assert (ended[-1].until, job_periods(job, [], since)) == (since + 40, [])


def test_reasons_to_wait_that_follow_each_other_are_folded() -> None:
    def step(text: str) -> Step:
        return Step(at=0.0, after_s=0.0, code="", text=text, numbers={})

    steps = [step(each) for each in ("submitted", *(f"waiting: {at}" for at in range(6)), "placed", "waiting: a")]
    entries = timeline_entries(steps)
    assert [len(each.steps) for each in entries] == [1, 1, 4, 1, 1, 1]
    assert [each.is_folded for each in entries] == [False, False, True, False, False, False]
    assert [step for entry in entries for step in entry.steps] == steps


def test_losses_by_neighbours_are_listed_for_the_machines_of_a_page(fresh_site: Site) -> None:
    for number in range(2):
        fresh_site.submitted("ada", name=f"pair-{number}", command=["sleep", "900"], resources={"vcpus": 0.1})
    fresh_site.deployment.cycle(8)
    page = fresh_site.browser("eve").get("/machines/part/neighbours").text
    assert re.findall(
        r'<td><a href="/machines/(inst-\d+)">inst-\d+</a></td><th scope="row"><a href="/jobs/(job-\d)">', page
    ) == [
        ("inst-1", "job-1"),
        ("inst-1", "job-2"),
    ]
    assert "no jobs run side by side" in fresh_site.browser("eve").get("/machines/part/neighbours?page=9").text


def test_a_new_neighbour_is_listed_before_other_losses_are_computed_anew(fresh_site: Site) -> None:
    def submit_and_look(number: int) -> str:
        fresh_site.submitted("ada", name=f"job-{number}", command=["sleep", "900"], resources={"vcpus": 0.1})
        fresh_site.deployment.cycle(8)
        return fresh_site.browser("eve").get("/machines/part/neighbours").text

    submit_and_look(1)
    fresh_site.deployment.clock.advance(LOSSES_OF_OTHERS_S)
    assert 'href="/jobs/job-2"' in submit_and_look(2)
    fresh_site.deployment.clock.advance(LOSSES_OF_OTHERS_S)
    assert 'href="/jobs/job-3"' in submit_and_look(3)


def test_use_over_time_adds_up_the_units_that_still_report() -> None:
    def sample(at: float, rank: int, cpu_s: float) -> Event:
        fields = {"attempt": "job-1.1", "rank": rank, "cpu_s": cpu_s}
        return Event(at=at, kind=EventKind.SAMPLE, fields=fields)

    times, busy = busy_history(
        [sample(0, 0, 0), sample(1, 1, 0), sample(10, 0, 10), sample(11, 1, 5), sample(60, 0, 60)]
    )
    assert (times, busy) == ([10, 11, 60], [1.0, 1.5, 1.0])
    assert busy_history([]) == ([], [])


def test_a_chart_of_days_needs_two_of_them() -> None:
    table = ReportTable(title="", columns=columns("day", "cost_usd"), rows=(("2026-05-01", 1.5), ("2026-05-02", 2.0)))
    assert json.loads(day_chart(table))["data"] == [[1777593600, 1777680000], [1.5, 2.0]]
    assert day_chart(replace(table, rows=table.rows[:1])) == ""


@pytest.mark.parametrize(
    ("written", "shown"),
    [("plain ü", "plain ü"), ("a\u202eb", "a\\u202eb"), ("\x1b[0m\n\t", "\\x1b[0m\n\t"), ("\ud800", "\\ud800")],
)
def test_what_could_mislead_is_made_visible(written: str, shown: str) -> None:
    assert text.visible(written) == shown


def test_times_in_sentences_can_be_shown_in_the_reader_s_zone() -> None:
    shown = text.prose("expected <b> at 2026-11-29T06:17:26Z; \u202e")
    at = "2026-11-29T06:17:26Z"
    assert shown == f'expected &lt;b&gt; at <time datetime="{at}">{at}</time>; \\u202e'
    assert text.prose(None) == ""


def test_numbers_have_their_units() -> None:
    assert [text.money(each) for each in (None, 0.0, 0.00012, 0.5, 1234.5, -2.0)] == [
        *("", "$0", "$0.00012", "$0.50", "$1,234.50", "-$2.00"),
    ]
    assert [text.duration(each) for each in (None, 0.184, 59.6, 3599, 90000, -5)] == [
        *("", "0.18 s", "1m00s", "59m59s", "1d01h", "-5 s"),
    ]
    assert "1970-01-01 00:00:01 UTC" in text.moment(1.0)
    assert text.moment(1e30) == "1e+30"
    assert [text.cell(each, unit) for each, unit in ((None, ""), (12.345, "%"), (0.1, "usd"), (90.0, "s"))] == [
        *("", "12.3", "$0.10", "1m30s"),
    ]


def test_a_radar_has_a_corner_for_each_axis() -> None:
    assert shapes.radar({"up": 100.0, "left": 50.0}, ["up", "right", "down", "left"]).split() == [
        *("0.0,-90.0", "0.0,0.0", "0.0,0.0", "-45.0,0.0"),
    ]
    assert [shapes.heat(each) for each in (-1.0, 0.0, 0.44, 1.0, 2.0)] == [0, 0, 4, 10, 10]


def test_history_says_whether_predictions_held() -> None:
    fields = {
        "question": "type",
        "column": "m.one",
        "instance_type": "m.one",
        "predicted": 2.0,
        "low": 1.0,
        "high": 3.0,
    }
    said = [
        history_words(Event(at=0.0, kind=EventKind.PREDICTION, fields={**fields, "measured": measured}))
        for measured in (2.5, 4.0)
    ]
    assert ["within" in said[0], "outside of" in said[1]] == [True, True]


def test_applications_are_shown_to_their_owner_and_to_admins(site: Site) -> None:
    row = Application(name="ada:sort", program="ada:sort", cells={"step": {"1": 2.0, "2": 4.0}}, ended_runs=3)
    with site.deployment.store.transaction(0.0) as txn:
        txn.put_application(row)
    site.deployment.cycle(2)
    for name, seen in (("ada", True), ("root", True), ("mallory", False), ("eve", False)):
        browser = site.browser(name)
        assert ("<bdi>sort</bdi>" in browser.get("/applications").text) == seen, name
        assert browser.get("/applications/ada%3Asort").status_code == (200 if seen else 404)


def test_an_application_is_shown_by_type_size_and_pressure_with_its_doubt(site: Site) -> None:
    with site.deployment.store.transaction(0.0) as txn:
        txn.put_application(Application(name="ada:mix", program="ada:mix", missed=(True, False)))
    known = replace(
        application(30.0),
        by_type={"mock/m.one": Estimate(2.0, 1.0, 3.0, observed=True), "mock/m.two": Estimate(4.0, 3.0, 5.0)},
        by_step={"0.5 vCPU": Estimate(1.0, 0.5, 1.5), "2 vCPU": Estimate(3.0, 2.0, 4.0)},
        by_nodes={1: Estimate(2.0, 2.0, 2.0), 2: Estimate(3.0, 2.5, 3.5)},
    )
    context = site.over_tls.state.context
    site.over_tls.state.context = replace(context, classifications=lambda names: dict.fromkeys(names, known))
    page = site.browser("ada").get("/applications/ada%3Amix").text
    site.over_tls.state.context = context
    assert page.index("mock/m.two") < page.index("mock/m.one")
    assert "1 to 3" in page
    assert "[0.5, 2.0], [1.0, 3.0], [0.5, 2.0], [1.5, 4.0]" in page
    assert page.count("<polygon") == 2
    assert "50 % of 2" in page
    assert "Speed by number of nodes" in page


# ------------------------------------------------------------------------------------------------------------- what if
RESULT = ReportTable(
    title="", columns=columns("policy", "cost_usd", "jobs"), rows=(("default", 2.0, 5), ("no-spot", 3.0, 5))
)


def replays(site: Site, program: str) -> WhatIfRuns:
    """Replays by a program of a few lines."""
    context = replace(site.deployment.context, socket_path=Path("/nowhere"))
    return WhatIfRuns(context, (sys.executable, "-c", program))


def finished(runs: WhatIfRuns) -> WhatIfRun:
    run = runs.start("ada", "no-spot", "7d")
    wait_until(lambda: run.is_over, PATIENCE_S)
    return run


def test_a_replay_shows_how_far_it_is_and_what_it_found(site: Site) -> None:
    said = json.dumps({"policy": "no-spot", "ended": 3, "jobs": 4})
    document = json.dumps(RESULT.to_json())
    run = finished(replays(site, f"import sys; print({said!r}, file=sys.stderr); print({document!r})"))
    assert (run.progress, run.part, run.problem) == ("no-spot: 3 of 4 jobs", 0.75, "")
    assert run.sentence == "no-spot would have cost $3.00, the policy in force $2.00: 50 % more"
    assert run.brief is not None
    assert [column.name for column in run.brief.columns] == ["policy", "cost_usd", "jobs"]


def test_a_replay_that_fails_says_why(site: Site) -> None:
    run = finished(replays(site, "import sys; sys.exit('hcloud: no job was submitted')"))
    assert (run.problem, run.sentence) == ("no job was submitted", "")
    assert "ended with code 3" in finished(replays(site, "raise SystemExit(3)")).problem
    missing = WhatIfRuns(replace(site.deployment.context, socket_path=Path("/nowhere")), ("/no/such/program",))
    assert finished(missing).problem


def test_one_replay_runs_at_a_time(site: Site) -> None:
    runs = replays(site, "input()")
    runs._by_owner["eve"] = WhatIfRun(owner="eve", policy="hm", since="7d", started_at=0.0)
    with pytest.raises(Busy, match="under hm runs already"):
        runs.start("ada", "no-spot", "7d")
    runs._by_owner["eve"].finish(json.dumps(RESULT.to_json()), 0, 1.0)
    assert finished(runs).problem


def test_a_replay_is_started_by_a_form(site: Site) -> None:
    runs = replays(site, f"print({json.dumps(RESULT.to_json())!r})")
    site.over_tls.state.what_if = runs
    browser = site.browser("ada")
    token = form_token(browser.get("/money").text)
    for fields in ({"policy": "/etc/passwd"}, {"policy": "no-spot", "since": "1; rm"}):
        assert browser.post("/money/what-if", data={"form_token": token, **fields}).status_code == 400
    answer = browser.post("/money/what-if", data={"form_token": token, "policy": "no-spot"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/money#what-if")
    wait_until(lambda: "no-spot would have cost" in browser.get("/money/what-if").text, PATIENCE_S)
    assert "Nothing was tried yet" in site.browser("mallory").get("/money/what-if").text
