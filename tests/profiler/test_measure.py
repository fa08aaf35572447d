"""Measurements of small real programs; nothing a program does may make profiling fail.

Of real measurements only what holds on a busy machine too is asserted; numbers are checked on known curves.
"""

import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hcloud.core.errors import Unmeasurable
from hcloud.core.estimates import MOST_KNEES, Findings, Measure, next_knee
from hcloud.core.model import MetricsHook, ProfileRequest, ProgressHook
from hcloud.engine.host import EngineHost, _isolation
from hcloud.profiler.colocation import PlacedSource
from hcloud.profiler.first_look import _grows_evenly
from hcloud.profiler.measure import Bench, Rate, Subject, _ProfilingRun, measure
from hcloud.profiler.pressure_caused import _ratio
from hcloud.profiler.repeats import Interval
from hcloud.profiler.sandbox import NOBODY_UID
from hcloud.profiler.sources import InterferenceSource, source_named
from hcloud.profiler.subject import Stage
from tests.machine import needs_stress_ng
from tests.other_user import as_ordinary_user
from tests.waiting import wait_until

LOOP = "i=0; while :; do i=$((i+1)); [ $((i % 300)) -ne 0 ] || echo $i/1000000000 > progress; done"
SPIN = "while :; do :; done"
PROBE = """echo '{"requests_per_s": 12.5, "latency_ms": {"50": 1.5, "99": 9.0}}'"""
PROGRESS = ProgressHook(file="progress")


@pytest.fixture
def workdir() -> Iterator[Path]:
    """A work directory that any user may reach, owned by nobody in particular."""
    with tempfile.TemporaryDirectory(prefix="measured-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(folder, 4321, 4321)
        yield folder


def subject(workdir: Path, script: str, **changes: Any) -> Subject:
    """A shell script as a subject."""
    return Subject(**{"name": "tested", "command": ("/bin/sh", "-c", script), "workdir": workdir, **changes})


def bench(subject: Subject, host: EngineHost | None = None, run_s: float = 0.8) -> Bench:
    """A bench with enough time for a busy machine."""
    return Bench(subject, host or EngineHost(), run_s=run_s, deadline_s=60.0)


def found(
    subject: Subject,
    host: EngineHost | None = None,
    report: Callable[[Findings], None] = lambda _: None,
    **changes: Any,
) -> Findings:
    """The findings of a profiling run at one size, with enough time for a busy machine."""
    request = {"job_id": "job-1", "type_column": "local/here", "steps_vcpus": (0.5,), "run_s": 0.8, "total_s": 60.0}
    return measure(ProfileRequest(**{**request, **changes}), subject, host or EngineHost(), report=report)


def found_with(
    wanted: Callable[[Findings], object], run: Callable[[float], Findings], total_s: float, most_s: float = 64.0
) -> Findings:
    """The findings of a run in which what is wanted was found; it is repeated with twice the time on a busy machine."""
    while not wanted(findings := run(total_s)) and total_s < most_s:
        total_s *= 2
    return findings


def asked(findings: Findings) -> list[tuple[str, str]]:
    """Questions and columns that were answered, in order."""
    return [(each.question, each.column) for each in findings.readings]


# ----------------------------------------------------------------------------------------------------------- measures
def test_progress_file_is_the_measure_where_there_is_one(workdir: Path) -> None:
    for run_s in (0.8, 6.4):  # other tests may leave it too little of this machine to be seen at work at first
        with bench(subject(workdir, LOOP, progress=PROGRESS), run_s=run_s) as ours:
            whole, little = ours.rate(1.0), ours.rate(0.05)
        if whole.measure is Measure.PROGRESS:
            break
    assert (whole.measure, little.measure) == (Measure.PROGRESS, Measure.PROGRESS)
    assert 0 <= whole.low <= whole.value <= whole.high
    assert little.value < whole.value
    assert len(whole.use) == 4 and whole.use[0] > 0


def test_program_shorter_than_a_window_is_measured_by_a_whole_copy(workdir: Path) -> None:
    script = "for at in 1 2 3 4 5 6 7 8 9; do echo 0.$at > progress; sleep 0.03; done"
    stage = Stage(subject(workdir, script, progress=PROGRESS), EngineHost(), run_s=0.8, deadline=time.monotonic() + 30)
    try:
        assert 0 < stage.sample(Measure.PROGRESS, 0.5) < 4  # 0.8 in at least 0.24 s
        assert stage.starts <= 6
    finally:
        stage.close()


def test_program_that_ends_in_time_is_measured_by_its_runs(workdir: Path) -> None:
    with bench(subject(workdir, "sleep 0.3"), run_s=10.0) as ours:
        rate = ours.rate(0.5, within_s=4.0)
    assert rate.measure is Measure.COMPLETION
    assert 0 < rate.value < 1 / 0.3
    assert rate.runs >= 3


def test_service_is_measured_by_its_requests(workdir: Path) -> None:
    hook = MetricsHook(probe=("/bin/sh", "-c", PROBE))
    with bench(subject(workdir, "while :; do sleep 0.05; done", metrics=hook)) as ours:
        rate = ours.rate(0.5)
    assert (rate.measure, rate.value) == (Measure.REQUESTS, 12.5)


def test_service_that_answers_later_under_the_same_load_has_lost_performance(workdir: Path) -> None:
    # Its rate stays, its tail latency doubles after a while: what a load that does not wait for answers shows.
    probe = """n=$(cat n 2>/dev/null || echo 0); n=$((n+1)); echo $n > n
    echo "{\\"requests_per_s\\": 10, \\"latency_ms\\": {\\"99\\": $((n > 3 ? 20 : 10))}}" """
    hook = MetricsHook(probe=("/bin/sh", "-c", probe))
    stage = Stage(
        subject(workdir, "while :; do sleep 0.05; done", metrics=hook),
        EngineHost(),
        run_s=0.8,
        deadline=time.monotonic() + 60,
    )
    try:
        values = [stage.sample(Measure.REQUESTS, 0.5)]
        wait_until(lambda: values.append(stage.sample(Measure.REQUESTS, 0.5)) or values[-1] == 5.0, timeout_s=60)
    finally:
        stage.clear()
    assert values[0] == 10.0


def test_requests_count_as_they_are_promised(workdir: Path) -> None:
    probe = """echo '{"requests_per_s": 10, "latency_ms": {"99": 25}}'"""
    hook = MetricsHook(probe=("/bin/sh", "-c", probe))
    for promised_ms, counted in ((20.0, 8.0), (25.0, 10.0)):
        late = subject(workdir, "while :; do sleep 0.05; done", metrics=hook, promised_ms=promised_ms)
        with bench(late) as ours:
            assert ours.rate(0.5).value == pytest.approx(counted)


def test_cpu_time_is_taken_where_nothing_better_is_to_be_had_and_that_is_said(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hcloud.profiler.first_look.can_count", lambda _: False)
    with bench(subject(workdir, SPIN)) as ours:
        rate = ours.rate(0.5)
        assert rate.measure is Measure.CPU
        assert 0 < rate.value < 0.9
        assert any("other cores" in note for note in ours.notes)


def test_output_is_counted_whether_streamed_or_filed(workdir: Path) -> None:
    for script in ("while :; do head -c 200000 /dev/zero; done", "while :; do head -c 200000 /dev/zero >> out; done"):
        stage = Stage(subject(workdir, script), EngineHost(), run_s=0.8, deadline=time.monotonic() + 60)
        try:
            assert stage.sample(Measure.OUTPUT, 0.5) > 0
        finally:
            stage.clear()


@pytest.mark.parametrize(
    ("output", "even"),
    [
        ([0, 0, 5, 10, 15], True),
        ([0, 50, 55, 61, 66], True),
        ([0, 5, 5, 10, 15], False),
        ([0, 1, 2, 30, 31], False),
        ([0, 0, 1e-4, 2e-4, 3e-4], False),
        ([0, 5, 10], False),
    ],
)
def test_output_is_a_measure_only_where_it_grows_evenly(output: Sequence[float], even: bool) -> None:
    assert _grows_evenly(list(output), run_s=4.0) is even


# -------------------------------------------------------------------------------------------------- what programs do
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo bad >&2; exit 3", "it ended with code 3 after .* s: bad"),
        ("exec no-such-program", "it ended with code 127"),
        ("kill -9 $$", "it ended with code 137"),
        ("sleep 60", "neither progress, requests, output nor CPU time"),
    ],
)
def test_program_without_a_number_is_told_in_a_sentence(workdir: Path, script: str, words: str) -> None:
    with bench(subject(workdir, script)) as ours, pytest.raises(Unmeasurable, match=words):
        ours.rate(0.5)


def test_missing_command_is_named(workdir: Path) -> None:
    with (
        bench(subject(workdir, "", command=("no-such-program",))) as ours,
        pytest.raises(Unmeasurable, match="no command 'no-such-program'"),
    ):
        ours.rate(0.5)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)", "Network is unreachable"),
        ("import os, sys; os.path.exists('/dev/no-gpu0') or sys.exit('no CUDA device found')", "no CUDA device found"),
    ],
    ids=["network", "gpu"],
)
def test_what_a_copy_may_not_or_cannot_have_is_its_own_failure(workdir: Path, script: str, words: str) -> None:
    findings = found(subject(workdir, "", command=("python3", "-c", script)), run_s=40.0)
    assert findings.readings == ()
    assert any("ended with code 1" in note and words in note for note in findings.notes)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        # Whenever it is looked at twice, it went backwards.
        ("p=999; while [ $p -gt 100 ]; do echo 0.$p > progress; p=$((p - 1)); sleep 0.02; done", "went backwards"),
        (f"echo many > progress; {SPIN}", "reported no progress"),
        (SPIN, "reported no progress"),
    ],
)
def test_nonsense_progress_is_said_and_something_else_measured(workdir: Path, script: str, words: str) -> None:
    with bench(subject(workdir, script, progress=PROGRESS)) as ours:
        look = ours.look(0.5)
    assert look.measure is not Measure.PROGRESS
    assert any(words in note for note in ours.notes)


def test_program_over_at_once_gives_readings_and_a_warning(workdir: Path) -> None:
    true = subject(workdir, "true")
    findings = found_with(asked, lambda total_s: found(true, run_s=20.0, total_s=total_s), 2.0)
    assert findings.measure is Measure.COMPLETION
    assert {each.question for each in findings.readings} >= {"type", "step"}


def test_job_that_needs_more_memory_than_it_has_is_told_so(workdir: Path) -> None:
    hog = "x = bytearray(300 << 20); import signal; signal.pause()"
    findings = found(subject(workdir, "", command=("python3", "-c", hog), memory_mib=64), run_s=40.0)
    assert findings.readings == ()
    assert findings.notes


# ------------------------------------------------------------------------------------------------------- the whole run
def test_run_answers_in_columns_of_the_classifier(workdir: Path) -> None:
    looped = subject(workdir, LOOP, progress=PROGRESS)
    columns = [("type", "local/here"), ("nodes", "1"), ("step", "0.5 vCPU"), ("step", "0.25 vCPU")]
    findings = found_with(
        lambda findings: findings.measure is Measure.PROGRESS and asked(findings) == columns,
        lambda total_s: found(looped, steps_vcpus=(0.5, 0.25), run_s=total_s / 5, total_s=total_s),
        4.0,
    )
    assert (findings.measure, asked(findings)) == (Measure.PROGRESS, columns), findings.notes
    assert findings.duration_s > 0


def test_run_of_one_more_node_answers_for_that_only(workdir: Path) -> None:
    looped = subject(workdir, LOOP, progress=PROGRESS)
    findings = found_with(asked, lambda total_s: found(looped, nodes=2, total_s=total_s), 3.0)
    assert asked(findings) == [("nodes", "2")], findings.notes


@pytest.mark.parametrize(
    ("measure", "together"), [(Measure.PROGRESS, 3.0), (Measure.CPU, 6.0), (Measure.REQUESTS, 6.0)]
)
def test_two_nodes_do_twice_what_each_counts_for_itself(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, measure: Measure, together: float
) -> None:
    rate = Rate(value=3.0, low=2.0, high=4.0, runs=2, measure=measure, use=(0.5, 1.0, 0.0, 0.0))
    monkeypatch.setattr(Bench, "rate", lambda *_, **__: rate)
    (reading,) = found(subject(workdir, LOOP), nodes=2).readings
    assert (reading.value, reading.low, reading.high) == pytest.approx((together, together * 2 / 3, together * 4 / 3))


class LittleFree(EngineHost):
    """This machine while others use all of its memory but 128 MiB, which are filled at once."""

    @property
    def free_mib(self) -> float:
        return 128.0


@needs_stress_ng
def test_tuned_sources_give_pressures_between_nothing_and_all(workdir: Path) -> None:
    sources = ("memory-capacity", "network-bandwidth", "no-such-source", "integer")
    looped = subject(workdir, LOOP, progress=PROGRESS)
    reports: list[list[Findings]] = []
    both = {(question, "memory-capacity") for question in ("tolerated", "caused")}

    def run(total_s: float) -> Findings:
        reports.append([])
        return found(looped, LittleFree(), sources=sources, total_s=total_s, report=reports[-1].append)

    findings = found_with(lambda findings: both <= set(asked(findings)), run, 12.0)
    pressures = {(each.question, each.column): each for each in findings.readings if each.question != "step"}
    assert both <= set(pressures), findings.notes
    for each in findings.readings:
        if each.question in ("tolerated", "caused"):
            assert 0 <= each.low <= each.value <= each.high <= 100
    assert pressures["tolerated", "network-bandwidth"].value == 100
    assert pressures["caused", "network-bandwidth"].value == 0
    assert any("there is no source 'no-such-source'" in note for note in findings.notes)
    assert [len(each.readings) for each in reports[-1]] == sorted(len(each.readings) for each in reports[-1])


def test_missing_stress_ng_is_noted_and_the_rest_measured(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hcloud.profiler.sources.shutil.which", lambda _: None)
    looped, questions = subject(workdir, LOOP, progress=PROGRESS), ["type", "step", "caused"]
    findings = found_with(
        lambda findings: [question for question, _ in asked(findings)] == questions,
        lambda total_s: found(looped, sources=("integer", "memory-capacity", "l2"), run_s=total_s / 5, total_s=total_s),
        6.0,
    )
    assert [question for question, _ in asked(findings)] == questions, findings.notes
    assert sum("stress-ng is not installed" in note for note in findings.notes) == 1


TALKS = """
import socket, threading
server = socket.create_server(("127.0.0.1", 8080))
near = socket.create_connection(server.getsockname())
far, done, block = server.accept()[0], 0, bytes(1 << 16)
threading.Thread(target=lambda: [near.sendall(block) for _ in iter(int, 1)], daemon=True).start()
progress = open("progress", "w")
while True:
    done += len(far.recv(1 << 16))
    progress.seek(0); progress.write(f"{done}/1000000000000000"); progress.flush()
"""


@needs_stress_ng
def test_networked_program_is_measured_on_a_loopback_beside_a_source_on_it(workdir: Path) -> None:
    talking = subject(workdir, "", command=("python3", "-c", TALKS), progress=PROGRESS, network=True)
    with bench(talking) as ours:
        reading = ours.tolerated(source_named("network-bandwidth"), 0.5, within_s=2.0)
        assert (reading.question, reading.column) == ("tolerated", "network-bandwidth")
        assert reading.runs >= 1  # 0: not measured, as for a program without a network
        assert any("loopback of its own" in note for note in ours.notes)


def test_run_without_time_says_so(workdir: Path) -> None:
    findings = found(subject(workdir, LOOP, progress=PROGRESS), total_s=0.05)
    assert findings.readings == ()
    assert any("time for profiling was over" in note for note in findings.notes)


def test_run_that_is_asked_to_end_says_what_it_had(workdir: Path) -> None:
    reports: list[Findings] = []
    host = EngineHost(stopping=lambda: bool(reports))
    request = ProfileRequest(
        job_id="job-1", type_column="local/here", steps_vcpus=(0.5, 0.25, 0.1), run_s=0.8, total_s=24.0
    )
    findings = measure(request, subject(workdir, LOOP, progress=PROGRESS), host, report=reports.append)
    assert [each.column for each in findings.readings if each.question == "step"] == ["0.5 vCPU"]
    assert [each.readings for each in reports[:1]] == [findings.readings]
    assert any("asked to end" in note for note in findings.notes)


class _KnownCurve(Bench):
    """A bench on which performance grows with the vCPUs, up to ``threads`` of them."""

    threads = 1.0

    def rate(
        self, vcpus: float, beside: tuple[InterferenceSource, float] | None = None, *, within_s: float | None = None
    ) -> Rate:
        value = min(vcpus, self.threads)
        return Rate(value=value, low=value, high=value, runs=1, measure=Measure.PROGRESS, use=())


@pytest.mark.parametrize(("knees", "measured"), [(True, [0.2, 2.0, 1.0]), (False, [0.2, 2.0])])
def test_sizes_between_are_measured_where_growth_ends(workdir: Path, knees: bool, measured: list[float]) -> None:
    request = ProfileRequest(job_id="job-1", type_column="local/here", steps_vcpus=(0.2, 2.0), knees=knees)
    with _KnownCurve(subject(workdir, LOOP), EngineHost(), run_s=0.4, deadline_s=60.0) as known:
        run = _ProfilingRun(request, known, lambda _: None)
        run.answer_all()
    assert list(_steps(run.findings())) == measured


def test_sizes_between_of_a_real_program_follow_from_what_was_measured_of_it(workdir: Path) -> None:
    script = subject(workdir, LOOP, progress=PROGRESS)
    steps = list(_steps(found(script, steps_vcpus=(0.2, 2.0), run_s=0.4, total_s=4.0, knees=True)).items())
    assert [vcpus for vcpus, _ in steps[:2]] == [0.2, 2.0][: len(steps)]
    # A busy machine may not allow all measurements, but those made after these must be the ones they require.
    assert [next_knee(dict(steps[:known])) for known in range(2, len(steps))] == [vcpus for vcpus, _ in steps[2:]]
    assert len(steps) <= 2 + MOST_KNEES


def _steps(findings: Findings) -> dict[float, float]:
    """Performance by vCPUs, in the order in which it was measured."""
    steps = (each for each in findings.readings if each.question == "step")
    return {float(each.column.split()[0]): each.value for each in steps}


def test_missing_work_directory_is_noted(tmp_path: Path) -> None:
    findings = found(subject(tmp_path / "gone", LOOP))
    assert findings.readings == ()
    assert any("not a directory" in note for note in findings.notes)


@needs_stress_ng
def test_without_groups_sources_are_on_or_off_and_that_is_said(workdir: Path) -> None:
    host, looped = EngineHost(isolation=_isolation(), cgroup=None), subject(workdir, LOOP, progress=PROGRESS)
    findings = found_with(
        lambda findings: ("tolerated", "integer") in asked(findings),
        lambda total_s: found(looped, host, sources=("integer",), total_s=total_s),
        6.0,
    )
    assert ("tolerated", "integer") in asked(findings), findings.notes
    assert any("no writable control groups" in note for note in findings.notes)


def _as_user(workdir: Path) -> dict[str, Any]:
    # A process that changed its user is closed to itself in /proc until it says otherwise; one born so is not.
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
    looped = subject(workdir, LOOP, progress=PROGRESS)
    findings = found_with(
        lambda findings: findings.measure is Measure.PROGRESS,
        lambda total_s: found(looped, run_s=total_s / 5, total_s=total_s),
        4.0,
    )
    return {"measure": findings.measure, "columns": [each.column for each in findings.readings]}


def test_ordinary_user_measures_the_same_things(workdir: Path) -> None:
    if os.geteuid() == 0:
        os.chown(workdir, NOBODY_UID, NOBODY_UID)
    assert as_ordinary_user(lambda: _as_user(workdir)) == {"measure": "progress", "columns": ["local/here", "0.5 vCPU"]}


# -------------------------------------------------------------------------------------------------------------- stages
def test_paused_copy_stands_still_and_goes_on(workdir: Path) -> None:
    stage = Stage(subject(workdir, LOOP, progress=PROGRESS), EngineHost(), run_s=0.8, deadline=time.monotonic() + 60)
    try:
        stage.play(0.5)
        wait_until(lambda: stage.attend(0.05) or stage.progress(), timeout_s=60)
        with stage.paused():
            stage.attend(0.2)
            before = stage.progress()
            stage.attend(0.4)
            assert stage.progress() == before
        wait_until(lambda: stage.attend(0.05) or stage.progress() != before, timeout_s=60)
    finally:
        stage.clear()


def test_stateful_subject_is_measured_after_its_warm_up_only(workdir: Path) -> None:
    script = f"i=1; while [ $i -lt 100000 ]; do i=$((i+1)); done; {LOOP}"
    began = time.monotonic()
    warm = subject(workdir, script, progress=PROGRESS, stateful=True, warm_up_s=1.0)
    with bench(warm) as ours:
        ours.look(0.5)
    assert time.monotonic() - began >= 1.0


def test_copy_that_ends_is_started_again(workdir: Path) -> None:
    stage = Stage(subject(workdir, "sleep 0.05"), EngineHost(), run_s=0.8, deadline=time.monotonic() + 60)
    try:
        stage.play(0.5)
        wait_until(lambda: stage.attend(0.05) or stage.starts >= 3, timeout_s=60)
    finally:
        stage.clear()


# ------------------------------------------------------------------------------------------------------- known curves
class Simulated(Bench):
    """A bench with a subject that loses performance along a known curve."""

    full = 0.5
    spread = 0.01

    def _kept(self, placed: PlacedSource, intensity: float, vcpus: float, within_s: float) -> Interval:
        kept = 1 - self.full * intensity / 100
        return Interval(value=kept, low=kept - self.spread, high=kept + self.spread, runs=4)


@pytest.mark.parametrize(("full", "tolerated"), [(0.5, 10.0), (0.1, 50.0), (0.02, 100.0)])
def test_tolerated_is_where_five_per_cent_are_lost(workdir: Path, full: float, tolerated: float) -> None:
    ours = Simulated(subject(workdir, LOOP), EngineHost(), run_s=1.0, deadline_s=60.0)
    ours.full = full
    reading = ours.tolerated(source_named("integer"), 0.5, within_s=20.0)
    assert reading.value == pytest.approx(tolerated)
    assert (reading.question, reading.column) == ("tolerated", "integer")
    assert reading.low <= reading.value <= reading.high


def lost(value: float, spread: float = 0.0) -> Interval:
    """A probe's loss."""
    return Interval(value=value, low=value - spread, high=value + spread, runs=3)


@pytest.mark.parametrize(
    ("beside", "pressed", "highest", "caused"),
    [(0.2, 0.4, 100.0, 50.0), (0.2, 0.2, 50.0, 50.0), (0.0, 0.4, 100.0, 0.0)],
)
def test_caused_compares_the_probe_beside_both(beside: float, pressed: float, highest: float, caused: float) -> None:
    placed = PlacedSource(source=source_named("llc-capacity"), highest=highest, cpus=(0,), notes=())
    value = _ratio(lost(beside, 0.02), lost(pressed, 0.02), placed, highest)
    assert value.value == pytest.approx(caused)
    assert value.low <= value.value <= value.high


def test_source_that_no_probe_feels_tells_nothing_of_what_is_caused() -> None:
    placed = PlacedSource(source=source_named("llc-capacity"), highest=100.0, cpus=(0,), notes=())
    with pytest.raises(Unmeasurable, match="the probe does not feel it"):
        _ratio(lost(0.2), lost(0.01), placed, 100.0)
