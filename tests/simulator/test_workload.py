"""Workloads from job logs, CSV lists, history and scenarios."""

import io
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from hcloud.core.errors import BadInput
from hcloud.core.model import BatchTarget, BestEffortTarget, JobSpec, ProfileRequest, ServiceTarget
from hcloud.planner.run_times import features_of
from hcloud.simulator import workload
from hcloud.simulator.scenarios import SCENARIOS, make_scenario
from hcloud.simulator.workload import LogReading, PastJob, Workload, from_past

LOG = """; UnixStartTime: 0
1 100 5 60 4 -1 2048 4 600 -1 1 7 1 1 1 -1 -1 -1
2 130 5 30 40 -1 -1 40 600 -1 1 8 1 1 1 -1 -1 -1
3 140 5 0 4 -1 -1 4 600 -1 0 8 1 1 1 -1 -1 -1
"""
ARRIVALS = """at_s,run_s,vcpus,name,within_s,requests_per_s,latency_ms,nodes
5,60,2,first,600,,,
0,30,1,,,100,20,
7,1,0.5,,,,,3
"""


def read_swf(text: str, name: str, reading: LogReading) -> Workload:
    return workload.read_swf(io.StringIO(text, newline=""), name, reading)


def read_csv(text: str, name: str) -> Workload:
    return workload.read_csv(io.StringIO(text, newline=""), name)


def test_job_log_gives_jobs_with_deadlines_and_wide_ones_get_nodes() -> None:
    made = read_swf(LOG, "log.swf", LogReading(node_vcpus=16, slack=1.0, slack_s=10.0))
    first, second = made.arrivals
    assert (first.at_s, first.run_s, first.spec.resources.vcpus, first.spec.user) == (0.0, 60.0, 4, "user7")
    assert first.spec.resources.memory_mib == 4 * 2
    assert first.spec.target == BatchTarget(finish_within_s=130.0)
    assert (second.at_s, second.spec.nodes.count, second.spec.resources.vcpus) == (30.0, 3, 14)
    assert made.notes == ("1 job never ran or requested nothing; left out",)


@pytest.mark.parametrize(("said", "began_at"), [("1084838103", 1084838203.0), ("0", None), ("-1", None), ("", None)])
def test_a_log_that_says_when_it_began_is_replayed_at_its_own_time_of_day(said: str, began_at: float | None) -> None:
    made = read_swf(LOG.replace("UnixStartTime: 0", f"UnixStartTime: {said}"), "log.swf", LogReading())
    assert (made.began_at, made.arrivals[0].at_s) == (began_at, 0.0)


def test_the_first_moment_a_log_begins_at_is_the_one_that_counts() -> None:
    made = read_swf(LOG.replace(": 0", ": 1084838103") + "; UnixStartTime: 7\n", "log.swf", LogReading())
    assert made.began_at == 1084838203.0


@pytest.mark.parametrize("said", ["noon", "1e300", "99999999999", "-5", "9e999"])
def test_a_log_that_begins_at_no_time_is_refused_by_that_line(said: str) -> None:
    with pytest.raises(
        BadInput, match=rf"log\.swf:2: UnixStartTime is '{said}'; it must be in seconds since 1970, before"
    ):
        read_swf("; a log\n" + LOG.replace("UnixStartTime: 0", f"UnixStartTime: {said}"), "log.swf", LogReading())


def test_jobs_so_long_after_a_logs_beginning_that_they_have_no_date_are_refused_by_line() -> None:
    far = LOG.replace(": 0", ": 1084838103").replace(" 100 5", " 1e12 5").replace(" 130 5", " 1e12 5")
    with pytest.raises(BadInput, match=r"log\.swf:2: with UnixStartTime 1084838103 this job was submitted after the"):
        read_swf(far, "log.swf", LogReading())


def test_lines_about_parts_of_a_resumed_job_are_skipped() -> None:
    line = "1 0 5 {} 4 -1 -1 4 600 -1 {} 1 1 1 1 -1 -1 -1\n"
    whole, first, last = line.format(60, 1), line.format(20, 2), line.format(40, 3).replace("1 0 5", "1 -1 5")
    made = read_swf(whole + first + last, "log.swf", LogReading())
    assert [each.run_s for each in made.arrivals] == [60.0]
    assert made.notes == ("2 lines about parts of jobs that were stopped and resumed; only lines of whole jobs count",)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_job_log_lines_are_counted_like_editors_do(end: str) -> None:
    comments = "; a page\x0c ends, 1 2\x85 3\u2028 4" + end + end
    assert len(read_swf(comments + LOG.replace("\n", end), "log.swf", LogReading()).arrivals) == 2
    with pytest.raises(BadInput, match=r"log\.swf: line 4: expected 18 numbers"):
        read_swf(f"{comments}; more{end}1 2{end}", "log.swf", LogReading())


def test_what_predicts_run_times_is_kept_from_job_logs_as_far_as_it_is_known() -> None:
    lines = "1 0 5 60 4 -1 -1 4 3600 -1 1 7 2 31 3 -1 -1 -1\n2 9 5 60 4 -1 -1 4 -1 -1 1 7 -1 31 0 -1 -1 -1\n"
    first, second = (each.spec for each in read_swf(lines, "log.swf", LogReading()).arrivals)
    assert first.tags == {"requested_s": "3600", "group": "2", "executable": "31", "queue": "3"}
    assert second.tags == {"executable": "31", "queue": "0"}
    known = features_of(first, 0.0)
    assert (known.user, known.group, known.executable, known.queue) == ("user7", "2", "31", "3")
    assert (known.requested_s, first.max_runtime_s) == (3600.0, None)
    assert features_of(second, 0.0).requested_s is None


def test_what_predicts_run_times_is_kept_from_lists_of_arrivals() -> None:
    text = (
        "at_s,run_s,vcpus,user,requested_s,group,executable,queue\n0,30,1,ann,90.5,birds,sort,night\n0,30,1,ann,,,,\n"
    )
    first, second = (each.spec for each in read_csv(text, "jobs.csv").arrivals)
    known = features_of(first, 0.0)
    assert (known.requested_s, known.group, known.executable, known.queue) == (90.5, "birds", "sort", "night")
    assert second.tags == {}
    assert features_of(second, 0.0).queue == "best_effort:0"


def test_job_log_without_a_user_has_an_unknown_user() -> None:
    (job,) = read_swf("1 0 5 60 4 -1 -1 4 600 -1 1 -1 1 1 1 -1 -1 -1\n", "log.swf", LogReading()).arrivals
    assert job.spec.user == "unknown"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 2 3\n", "log.swf: line 1: expected 18 numbers, not 3"),
        ("; fine\nname,size\n", "log.swf: line 2: expected 18 numbers, not 1"),
        ("; nothing\n", "log.swf: there is no job to simulate"),
        (
            "1 nan 0 60 4 -1 -1 4 600 -1 1 1 1 1 1 -1 -1 -1\n",
            r"log.swf: column 2 \(submit time\): line 1: 'nan' is not a number",
        ),
        (
            "1 0 0 60 inf -1 -1 4 600 -1 1 1 1 1 1 -1 -1 -1\n",
            r"log.swf: column 5 \(allocated processors\): line 1: 'inf' is not a number",
        ),
        (
            "1 0 0 60 1e9 -1 -1 4 600 -1 1 1 1 1 1 -1 -1 -1\n",
            "log.swf: line 1: a job of 1000000000 processors needs more than",
        ),
        (
            "1 0 0 1e12 4 -1 -1 4 600 -1 1 1 1 1 1 -1 -1 -1\n",
            "log.swf:1: a job runs for 1.16e\\+07 days; it must be at most 3650 days, and times are in seconds",
        ),
        (
            "1 1e300 0 60 4 -1 -1 4 600 -1 1 1 1 1 1 -1 -1 -1\n",
            r"log.swf: column 2 \(submit time\): line 1: 1e\+300 is too large; times are in seconds",
        ),
        ("1 0 0 60 4 -1 1e14 4 600 -1 1 1 1 1 1 -1 -1 -1\n", "log.swf: line 1: a node of this job has 3.91e\\+11 MiB"),
        (
            "1 0 5 \uff16\uff10 4 -1 -1 4 600 -1 1 1 1 1 1 -1 -1 -1\n",
            r"log.swf: column 4 \(run time\): line 1: ",
        ),
        (
            "1 0 5 6_0 4 -1 -1 4 600 -1 1 1 1 1 1 -1 -1 -1\n",
            r"log.swf: column 4 \(run time\): line 1: '6_0' is not a number",
        ),
        (
            "1 0 5 -60 4 -1 -1 4 600 -1 1 1 1 1 1 -1 -1 -1\n",
            r"log.swf: column 4 \(run time\): line 1: -60 is negative; only -1 \(unknown\) may be",
        ),
        (
            "1 -1 5 60 4 -1 -1 4 600 -1 1 1 1 1 1 -1 -1 -1\n",
            r"log.swf: column 2 \(submit time\): line 1: -1, unknown; it must be known",
        ),
        ("1 0 5 60 4 -1 -1 4 600 -1 1 1 1 1 1 -1 -1 -1 7\n", "log.swf: line 1: expected 18 numbers, not more than 18"),
    ],
)
def test_invalid_job_log_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_swf(text, "log.swf", LogReading())


def test_bad_lines_of_a_job_log_are_left_out_and_counted() -> None:
    good, bad = "1 {} 5 60 4 -1 -1 4 600 -1 1 1 1 1 1 -1 -1 -1\n", "2 0 5 -60 4 -1 -1 4 600 -1 1 1 1 1 1 -1 -1 -1\n"
    made = read_swf(good.format(0) + bad + "1 2 3\n" + good.format(9), "log.swf", LogReading())
    assert len(made.arrivals) == 2
    assert made.notes == (
        "2 lines left out as invalid: column 4 (run time): line 2: -60 is negative; only -1 (unknown) may be; "
        "line 3: expected 18 numbers, not 3",
    )


def test_a_negative_wait_says_nothing_of_the_job() -> None:
    made = read_swf("1 0 -3600 60 4 -1 -1 4 600 -1 1 1 1 1 1 -1 -1 -1\n", "log.swf", LogReading())
    assert (len(made.arrivals), made.notes) == (1, ())


def test_list_of_arrivals_gives_jobs_in_order_of_time() -> None:
    made = read_csv(ARRIVALS, "jobs.csv")
    assert [each.at_s for each in made.arrivals] == [0.0, 5.0, 7.0]
    service, batch, effort = (each.spec for each in made.arrivals)
    assert service.target == ServiceTarget(requests_per_s=100.0, latency_ms=20.0)
    assert (batch.name, batch.target) == ("first", BatchTarget(finish_within_s=600.0))
    assert (effort.target, effort.nodes.count, effort.resources.memory_mib) == (BestEffortTarget(), 3, 512)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("at_s,run_s\n1,2\n", "jobs.csv: column vcpus: missing"),
        ("at_s,run_s,vcpus,cpus\n1,2,3,4\n", "jobs.csv: column cpus: unknown, "),
        ("at_s;run_s;vcpus\n1;2;3\n", "jobs.csv: line 1: columns are separated by ';'; separate columns and values by"),
        ("at_s,run_s,vcpus\n1;2;3\n", "jobs.csv: line 2: the line ends before run_s; values are separated by commas"),
        ("at_s,run_s,vcpus\n1,2,3\n1,x,3\n", "jobs.csv: column run_s: line 3: 'x' is not a number"),
        ("at_s,run_s,vcpus\n1,nan,3\n", "jobs.csv: column run_s: line 2: 'nan' is not a number"),
        ("at_s,run_s,vcpus\n-1,2,3\n", "jobs.csv: column at_s: line 2: -1 must be at least 0"),
        ("", "jobs.csv: is empty; a list of arrivals starts with a header, such as at_s,run_s,vcpus"),
        (
            "# nothing\n\n# more of it\n",
            "jobs.csv: contains only comments or empty lines; a list of arrivals starts with a header",
        ),
        ("# now\nat_s,run_s,vcpus\n", "jobs.csv: there is no job below the header; write one line per job"),
        (
            "at_s,run_s,vcpus\n1.8e9,1,1\n0,1,1\n",
            "jobs.csv:2: this job arrives 2.08e\\+04 days after the first; it must be",
        ),
        (
            "at_s,run_s,vcpus\n9,1,1\n# long\n0,1e9,1\n",
            "jobs.csv:4: a job runs for 1.16e\\+04 days; it must be at most 3650 days, and times are in seconds",
        ),
        ("at_s,run_s,vcpus,run_s\n0,1,1,2\n", "jobs.csv: column run_s: appears 2 times; name it once"),
        ("at_s,run_s,vcpus\n0,1,1,7\n", "jobs.csv: line 2: 1 value more than columns; the first is '7'"),
        ("at_s,run_s,vcpus\n0,1,1,7,8\n", "jobs.csv: line 2: 2 values more than columns; the first is '7'"),
        ("at_s,run_s,vcpus,nodes\n0,1,1,2.7\n", "jobs.csv: column nodes: line 2: 2.7 must be a whole number"),
        ("at_s,run_s,vcpus,nodes\n0,1,1,1e9\n", r"jobs.csv: column nodes: line 2: 1e\+09 must be from 1 to 10000"),
        (
            "at_s,run_s,vcpus,priority\n0,1,1,1e300\n",
            r"jobs.csv: column priority: line 2: 1e\+300 must be from -1000",
        ),
        (
            "at_s,run_s,vcpus,interruptible\n0,1,1,maybe\n",
            "jobs.csv: column interruptible: line 2: 'maybe' must be one of true,",
        ),
        (
            "at_s,run_s,vcpus,latency_ms\n0,1,1,5\n",
            "jobs.csv: line 2: a service needs both requests_per_s and latency_ms",
        ),
        (
            "at_s,run_s,vcpus,within_s,requests_per_s,latency_ms\n0,1,1,5,5,5\n",
            "jobs.csv: line 2: a service needs .* no within_s",
        ),
        (
            "at_s,run_s,vcpus,within_s\n0,1,1,0\n",
            "jobs.csv: column within_s: line 2: 0 must be from 0.001 to 315360000$",
        ),
        ("at_s,run_s,vcpus,within_s\n0,1,1,1e300\n", r"jobs.csv: column within_s: line 2: 1e\+300 must be from"),
        ("at_s,run_s,vcpus\n0,1,1e300\n", r"jobs.csv: column vcpus: line 2: 1e\+300 must be from 0.001 to 4096"),
        ("at_s,run_s,vcpus,memory_mib\n0,1,1,1e15\n", r"jobs.csv: column memory_mib: line 2: 1e\+15 must be from 1"),
        (
            "at_s,run_s,vcpus,requests_per_s,latency_ms\n0,1,1,1e300,5\n",
            r"jobs.csv: column requests_per_s: line 2: 1e\+300 must be from",
        ),
        (
            "at_s,run_s,vcpus,name\n0,1,1,a\n0,1,1,a\0b\n",
            r"jobs.csv: column name: line 3: 'a\\x00b' must be of printable",
        ),
        (
            "at_s,run_s,vcpus,user\n0,1,1,a\x1b[31m\n",
            r"jobs.csv: column user: line 2: 'a\\x1b\[31m' must be of printable",
        ),
        ('at_s,run_s,vcpus,name\n0,1,1,"a\nb"\n', r"jobs.csv: column name: line 3: 'a\\nb' must be of printable"),
        (
            f"at_s,run_s,vcpus,name\n0,1,1,{'x' * 256}\n",
            "jobs.csv: column name: line 2: has 256 characters, must have at most",
        ),
        (f"at_s,run_s,vcpus,name\n0,1,1,a\n0,1,1,{'x' * 200_000}\n", "jobs.csv: line 3: is not valid CSV"),
        ('at_s,run_s,vcpus,name\n0,1,1,"a\n', "jobs.csv: line 2: is not valid CSV"),
    ],
)
def test_invalid_list_of_arrivals_is_refused_with_line_and_column(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_csv(text, "jobs.csv")


def test_arrivals_as_spreadsheets_write_them_are_read() -> None:
    (job,) = read_csv("at_s, run_s , vcpus, interruptible\r\n0, 10, 1, No\r\n", "jobs.csv").arrivals
    assert (job.run_s, job.spec.interruptible) == (10.0, False)


def test_comments_among_arrivals_are_skipped_but_counted_as_lines() -> None:
    text = "# from the cluster\nat_s,run_s,vcpus\n# the first day\n0,10,1\n"
    assert len(read_csv(text + "#\n5,10,1\n", "jobs.csv").arrivals) == 2
    with pytest.raises(BadInput, match=r"jobs.csv: column run_s: line 5: 'long'"):
        read_csv(text + "0,long,1\n", "jobs.csv")


def test_empty_lines_among_arrivals_are_skipped_but_counted_as_lines() -> None:
    text = "\n\r\nat_s,run_s,vcpus\n  \n0,10,1\n,,\r\n"
    assert len(read_csv(text + "5,10,1\n\n", "jobs.csv").arrivals) == 2
    with pytest.raises(BadInput, match=r"jobs.csv: column run_s: line 7: 'long'"):
        read_csv(text + "0,long,1\n", "jobs.csv")


def test_share_that_leaves_no_job_is_refused() -> None:
    with pytest.raises(BadInput, match=r"jobs.csv: a share of 0.1 of 3 jobs leaves none"):
        read_csv(ARRIVALS, "jobs.csv").scaled(0.1)


def test_share_of_a_workload_is_evenly_picked() -> None:
    made = make_scenario("static", 0, hours=0.2)
    half = made.scaled(0.5)
    assert len(half.arrivals) == len(made.arrivals) // 2
    names = [each.spec.name for each in made.arrivals]
    assert [each.spec.name for each in half.arrivals] == names[1::2]
    with pytest.raises(BadInput, match="the share of a workload is 0"):
        made.scaled(0)


def past(submitted_at: float, run_s: float | None, **changes: Any) -> PastJob:
    spec = JobSpec(name="a", user="u", command=("true",), target=BatchTarget(finish_by_at=1100.0), setup="make")
    return PastJob(submitted_at=submitted_at, spec=replace(spec, **changes), run_s=run_s)


def test_history_is_replayed_with_deadlines_that_move_with_their_jobs() -> None:
    run = ProfileRequest(job_id="job-1", type_column="t", steps_vcpus=(1.0,))
    made = from_past([past(1050.0, 7.0), past(1000.0, 5.0), past(1010.0, None), past(1001.0, 3.0, profile=run)])
    first, second = made.arrivals
    assert (first.at_s, first.run_s, first.spec.target) == (0.0, 5.0, BatchTarget(finish_within_s=100.0))
    assert (second.at_s, second.spec.setup) == (50.0, None)
    assert made.notes == (
        "1 job has not succeeded (failed, cancelled or still active), so its run time is unknown; left out",
    )


def test_history_without_a_job_is_refused() -> None:
    with pytest.raises(BadInput, match="history: there is no job to simulate; 1 job has not"):
        from_past([past(0.0, None)])


# ----------------------------------------------------------------------------------------------------------- scenarios
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_has_the_load_it_states_and_is_the_same_for_the_same_seed(name: str) -> None:
    made, again, other = (make_scenario(name, seed, hours=2.0) for seed in (1, 1, 2))
    assert made == again != other
    scenario, cores = SCENARIOS[name], made.cores()
    assert max(cores) == pytest.approx(scenario.peak_cores, rel=0.15)
    assert min(cores[5:]) == pytest.approx(scenario.steady_cores, rel=0.2)
    batch = [each for each in made.arrivals if isinstance(each.spec.target, BatchTarget)]
    services = len(made.arrivals) - len(batch)
    assert len(batch) / services == pytest.approx(scenario.batch_per_service, rel=0.15)


def test_share_of_sensitive_jobs_can_grow_without_changing_sizes() -> None:
    usual, more = (make_scenario("high-variability", 1, hours=0.5, sensitive=part) for part in (None, 0.8))

    def sizes(work: Workload, kind: str) -> list[float | None]:
        return [each.spec.resources.vcpus for each in work.arrivals if each.spec.target.kind == kind]

    assert len(sizes(more, "service")) == pytest.approx(0.8 * len(more.arrivals), rel=0.05)
    assert len(sizes(usual, "service")) == pytest.approx(len(usual.arrivals) / 5.1, rel=0.15)
    for kind in ("service", "batch"):
        assert fmean(sizes(more, kind)) == pytest.approx(fmean(sizes(usual, kind)), rel=0.1)
    with pytest.raises(BadInput, match="the sensitive share of the jobs is 1; it must be above 0 and below 1"):
        make_scenario("static", sensitive=1.0)


def test_unknown_scenario_or_size_is_refused() -> None:
    with pytest.raises(BadInput, match="there is no scenario 'statik'; did you mean 'static'"):
        make_scenario("statik")
    with pytest.raises(BadInput, match="share 2 or hours 2 is out of range"):
        make_scenario("static", share=2)


@pytest.mark.parametrize(
    ("first_s", "run_s", "cores"), [(0.0, 30.0, 50.0), (45.0, 30.0, 50.0), (45.0, 6.0, 10.0), (0.0, 90.0, 150.0)]
)
def test_load_of_short_jobs_at_regular_times_is_counted(first_s: float, run_s: float, cores: float) -> None:
    (job,) = read_csv(f"at_s,run_s,vcpus\n0,{run_s},1\n", "jobs.csv").arrivals
    jobs = tuple(replace(job, at_s=first_s + 60.0 * n) for n in range(200) for _ in range(100))
    work = Workload(name="regular", arrivals=jobs)
    assert work.cores()[10:190] == pytest.approx([cores] * 180, rel=1e-6)
