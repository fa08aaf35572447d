"""Right-sizing: what jobs asked for beside what profile and measurements show, and the money in the difference."""

from typing import Any

import pytest

from hcloud.core.model import EventKind
from hcloud.report import build_report
from tests.report.log_builder import HOUR, LogBuilder


def rows(log: LogBuilder, **how: Any) -> list[dict[str, Any]]:
    table = build_report("right-sizing", iter(log.events), 4 * HOUR, **how)
    return [dict(zip([column.name for column in table.columns], row, strict=True)) for row in table.rows]


def busy(
    log: LogBuilder, job: int, *, vcpus: float, memory_mib: float, used: float, used_mib: float, **fields: Any
) -> None:
    """One job that holds machine 1 for an hour and uses less."""
    log.submit(job, name="sort", **fields)
    log.machine(job, 0.0, 0.0, vcpus=8.0, memory_mib=16384)
    log.start(job, job, HOUR, vcpus=vcpus, memory_mib=memory_mib)
    log.sample(job, job, 1.5 * HOUR, cpu_s=used * HOUR / 2, memory_mib=used_mib)
    log.end(job, job, 2 * HOUR, cpu_s=used * HOUR, memory_mib_max=used_mib)
    log.finish(job, 2 * HOUR)
    log.terminate(job, 2 * HOUR)


def test_measured_use_says_what_a_batch_job_needs() -> None:
    log = LogBuilder()
    busy(log, 1, vcpus=4.0, memory_mib=4096, used=1.3, used_mib=1000)
    [row] = rows(log)
    assert (row["asked_vcpus"], row["needed_vcpus"], row["shown_by"]) == (4.0, 2.0, "measured use")
    assert (row["asked_memory_mib"], row["needed_memory_mib"]) == (4096.0, 1152.0)
    assert row["cost_usd"] == pytest.approx(0.5)  # half of a machine of $1/h
    assert row["saved_usd"] == pytest.approx(0.25)  # a quarter would do


def test_a_profile_counts_more_than_measured_use() -> None:
    log = LogBuilder()
    busy(log, 1, vcpus=4.0, memory_mib=512, used=3.9, used_mib=400)
    steps = ["step:1 vCPU:10:10:10:3", "step:2 vCPU:19.5:19:20:3", "step:4 vCPU:20:20:20:3", "tolerated:l2:9:6:18:1"]
    log.add(EventKind.JOB_PROFILED, 0.5, job_id="job-1", application="sort", readings=steps)
    log.events.insert(1, log.events.pop())  # right after the submission
    [row] = rows(log)
    assert (row["needed_vcpus"], row["shown_by"]) == (2.0, "profile")
    assert row["saved_usd"] == pytest.approx(0.25)


def test_memory_may_decide_so_that_fewer_vcpus_save_nothing() -> None:
    log = LogBuilder()
    busy(log, 1, vcpus=4.0, memory_mib=8192, used=1.0, used_mib=8000)
    [row] = rows(log)
    assert (row["needed_vcpus"], row["needed_memory_mib"]) == (1.0, 8192.0)
    assert row["saved_usd"] == pytest.approx(0.0)


def test_of_a_service_only_a_profile_tells_the_vcpus() -> None:
    log = LogBuilder()
    busy(log, 1, vcpus=4.0, memory_mib=512, used=0.2, used_mib=500, target_kind="service")
    [row] = rows(log)
    assert (row["needed_vcpus"], row["shown_by"], row["saved_usd"]) == (None, "not known", pytest.approx(0.0))


def test_jobs_of_a_program_count_together_and_the_greediest_decides() -> None:
    log = LogBuilder()
    busy(log, 1, vcpus=4.0, memory_mib=512, used=0.5, used_mib=100)
    busy(log, 2, vcpus=4.0, memory_mib=512, used=2.5, used_mib=100)
    [row] = rows(log)
    assert (row["jobs"], row["needed_vcpus"]) == (2, 3.0)
    assert [each["job"] for each in rows(log, by="job")] == ["job-1", "job-2"]
    assert [each["needed_vcpus"] for each in rows(log, by="job")] == [1.0, 3.0]
