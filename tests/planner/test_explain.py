"""The timeline of a job: in order, with numbers, and of the right instances only."""

from dataclasses import replace

from hcloud.core.model import Event, EventKind, InstanceState
from hcloud.planner.explain import job_timeline
from tests.planner.scenes import NOW, machine, running


def _event(seq: int, kind: EventKind, *, job: str | None = None, on: str | None = None, **fields: object) -> Event:
    return Event(
        seq=seq, at=NOW + seq, kind=kind, job_id=job, instance_id=on, user="ann" if job else None, fields=fields
    )


EVENTS = [
    _event(1, EventKind.JOB_SUBMITTED, job="job-1", name="fit", target_kind="batch", vcpus=1, memory_mib=512, nodes=1),
    _event(
        2,
        EventKind.JOB_STATE,
        job="job-1",
        **{"from": "queued", "to": "queued", "code": "budget_per_day", "text": "needs $0.10, but $0.02 is left"},
    ),
    _event(
        3,
        EventKind.INSTANCE_REQUESTED,
        on="inst-1",
        code="launched_for_jobs",
        text="small on_demand in a at $0.1/h for job-1, job-2: the best value",
        alternatives="large on_demand in a at $0.4/h",
    ),
    _event(4, EventKind.INSTANCE_REQUESTED, on="inst-2", text="for job-10: the best value"),
    _event(5, EventKind.INSTANCE_READY, on="inst-1", boot_s=31.0),
    _event(
        6, EventKind.ATTEMPT_PLACED, job="job-1", attempt="job-1.1", allocations=["inst-1:0:1.0:512"], text="has room"
    ),
    _event(
        3606,
        EventKind.UNIT_ENDED,
        job="job-1",
        on="inst-1",
        rank=0,
        exit_code=0,
        cause=None,
        detail="",
        started_at=NOW + 6,
    ),
    _event(
        3607,
        EventKind.JOB_FINISHED,
        job="job-1",
        state="succeeded",
        outcome="all succeeded",
        run_s=3600.0,
        queue_s=5.0,
        attempts=1,
        target_met=True,
    ),
]


def test_timeline_shows_why_it_waited_what_was_launched_and_how_it_ended() -> None:
    lines = job_timeline(running(1, machine(1)), EVENTS[::-1], [machine(1)])
    assert [line.code for line in lines] == [
        "submitted",
        "budget_per_day",
        "bought",
        "machine_ready",
        "placed",
        "unit_ended",
        "finished",
        "cost",
    ]
    told = "\n".join(line.text for line in lines)
    for words in (
        "$0.02 is left",
        "alternatives: large",
        "after 31 s",
        "placed on inst-1",
        "ran 60 min",
        "deadline met",
    ):
        assert words in told
    assert "inst-2" not in told


def test_story_counts_the_share_of_the_machine_the_job_held() -> None:
    cost = job_timeline(running(1, machine(1)), EVENTS, [machine(1)])[-1]
    assert cost.numbers["cost_usd"] == 0.05
    assert "50 % of inst-1 at $0.1/h" in cost.text


def test_a_failed_unit_is_shown_with_its_exit_code_if_it_has_one() -> None:
    for fields, text in (
        ({"cause": "exit_code", "exit_code": 3, "detail": "ended with code 3"}, "inst-1 failed with exit code 3 after"),
        (
            {"cause": "exit_code", "exit_code": 3, "detail": "setup failed"},
            "failed with exit code 3 (setup failed) after",
        ),
        ({"cause": "instance_lost", "exit_code": None}, "inst-1 lost its machine after"),
    ):
        ended = replace(EVENTS[6], fields={**EVENTS[6].fields, **fields})
        lines = job_timeline(running(1, machine(1)), [*EVENTS[:6], ended], [machine(1)])
        assert any(text in line.text for line in lines), lines


def test_a_unit_that_was_stopped_did_not_succeed() -> None:
    killed = "though a process of it was killed"
    for detail, said in (("stopped on request", "stopped on request"), (killed, f"succeeded {killed}")):
        ended = replace(EVENTS[6], fields={**EVENTS[6].fields, "detail": detail})
        lines = job_timeline(running(1, machine(1)), [*EVENTS[:6], ended], [machine(1)])
        assert any(line.text.startswith(f"rank 0 on inst-1 {said} after") for line in lines), lines


def test_an_attempt_says_how_much_of_the_work_before_is_done_again() -> None:
    events = [
        _event(1, EventKind.UNIT_STARTED, job="job-1", on="inst-1", attempt="job-1.1", rank=0),
        _event(61, EventKind.UNIT_ENDED, job="job-1", on="inst-1", attempt="job-1.1", rank=0, cause="preempted"),
        _event(70, EventKind.UNIT_STARTED, job="job-1", on="inst-1", attempt="job-1.2", restored_at=NOW + 41),
        _event(75, EventKind.UNIT_ENDED, job="job-1", on="inst-1", attempt="job-1.2", rank=0, cause="preempted"),
        _event(80, EventKind.UNIT_STARTED, job="job-1", on="inst-1", attempt="job-1.3"),
    ]
    again = [each.text for each in job_timeline(running(1, machine(1)), events, []) if each.code == "begun_again"]
    assert again == [
        "attempt job-1.2 goes on from a checkpoint: 20 s of the work before are done again",
        "attempt job-1.3 begins anew: 5 s of the work before are done again",
    ]


def test_a_defect_that_affects_the_job_is_shown() -> None:
    text = "defect in HCloud: reading the report of job-1.1.0 fails; everything else goes on"
    trouble = _event(7, EventKind.PLANNING_TROUBLE, job="job-1", error="KeyError: 'state'", text=text)
    elsewhere = _event(8, EventKind.PLANNING_TROUBLE, job="job-2", error="KeyError", text="HCloud fails on job-2")
    lines = [each.text for each in job_timeline(running(1, machine(1)), [*EVENTS, trouble, elsewhere], [machine(1)])]
    assert f"{text}: KeyError: 'state'" in lines
    assert not [each for each in lines if "job-2, a defect" in each or "on job-2" in each]


def test_story_of_a_job_without_events_is_empty() -> None:
    assert job_timeline(running(1, machine(1, state=InstanceState.DRAINING)), [], []) == []


def test_timeline_shows_prediction_and_measurement() -> None:
    events = [
        _event(1, EventKind.JOB_PROFILED, job="job-1", text="job-2 (profile-base, 20.0 s): measured 3 x step"),
        _event(2, EventKind.JOB_CLASSIFIED, job="job-1", source="profiled", text="profiled in 2 run(s)",
               quality_target=0.71, quality_class=7, nearest="gzip (90%)"),
        _event(9, EventKind.PREDICTION, job="job-1", predicted=12.0, low=10.0, high=14.0, measured=8.0,
               measure="progress", instance_type="mock/small", alone=False),
    ]  # fmt: skip
    profiled, classified, predicted = job_timeline(running(1, machine(1)), events, [])
    assert profiled.text == "profiling run job-2 (profile-base, 20.0 s): measured 3 x step"
    assert "needs quality 0.71 (class 7); nearest known: gzip (90%)" in classified.text
    assert "measured 8 progress/s on mock/small; predicted 12 (10 to 14): 50 % too high, outside" in predicted.text
    assert "the machine was shared" in predicted.text


def test_timeline_shows_what_neighbours_cost_beside_what_was_expected() -> None:
    event = _event(
        9, EventKind.PREDICTION, job="job-1", question="loss", predicted=12.0, low=2.0, high=20.0, measured=0.0
    )
    (line,) = job_timeline(running(1, machine(1)), [event], [])
    assert line.text == "lost 0 % beside neighbours; predicted 12 % (2 to 20), outside the limits"


def test_corrections_are_shown_and_cost_follows_the_size() -> None:
    corrected = _event(1000, EventKind.CORRECTION, job="job-1", step="resize", code="correct_resize", text="too slow")
    resized = _event(
        1806, EventKind.UNIT_RESIZED, job="job-1", on="inst-1", attempt="job-1.1", rank=0, vcpus=2.0, memory_mib=512
    )
    drained = _event(
        1900, EventKind.INSTANCE_STATE, on="inst-1", code="misbehaved", text="delivered 50 %", to="draining"
    )
    events = [replace(e, fields={**e.fields, "attempt": "job-1.1"}) for e in EVENTS]
    lines = job_timeline(running(1, machine(1)), [*events, corrected, resized, drained], [machine(1)])
    told = {line.code: line for line in lines}
    assert told["correct_resize"].text == "corrected (resize): too slow"
    assert told["resized"].text.startswith("rank 0 resized to 2.0 vCPU")
    assert told["misbehaved"].text == "inst-1: delivered 50 %"
    # Half an hour of half the instance, half an hour of all of it, at $0.1/h.
    assert told["cost"].numbers["cost_usd"] == 0.075


def test_candidates_are_shown() -> None:
    given = ["mock/small spot|0.1|1.2|1|1.4|", "mock/tiny|0.05||||no room"]
    placed = _event(6, EventKind.ATTEMPT_PLACED, job="job-1", attempt="job-1.1", text="has room", candidates=given)
    [line] = [each for each in job_timeline(running(1, machine(1)), [placed], []) if each.code == "placed"]
    assert line.text.endswith(
        "chosen: mock/small spot at $0.1/h, expected 1.2 (1 to 1.4)/s; alternatives: mock/tiny at $0.05/h (no room)"
    )
