"""The jobs and offers of a running daemon, as a workload and a cloud for the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from hcloud.cli.arguments import moment_of
from hcloud.client.connection import Connection
from hcloud.core.errors import BadInput, NoJobs
from hcloud.core.model import InstanceState, JobSpec, JobState, Market, Offer, ServiceTarget
from hcloud.report import minute_of
from hcloud.report.spending_accounts import SPENT
from hcloud.simulator.clouds import clouds_of_offers
from hcloud.simulator.workload import PastJob, Workload, from_past
from hcloud.spec.validation import counted

PAGE, MOST_MACHINES = 2000, 10_000
RECORDED = "as it was"
"""Name of the row of recorded results."""


def back_s_of(since: str, now: Callable[[], float]) -> float:
    """Return how many seconds ``--since`` (a duration such as 7d, or a UTC date or time) is before ``now``.

    Raises:
        BadInput: neither of them, or not in the past.
    """
    begin = moment_of(since, "--since")
    ago_s = -begin(0.0)
    back_s = ago_s if ago_s >= 0 else now() + ago_s  # negative for a date, whose distance depends on the current time
    if back_s <= 0:
        raise BadInput(f"--since {since!r}: must be in the past; write a duration such as 7d")
    return back_s


def now_of(client: Connection) -> float:
    """Return the daemon's current time, Unix seconds."""
    return float(client.get("/v1/status")["now"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The jobs submitted to a daemon in a period."""

    from_at: float
    """Start of the period, Unix seconds."""
    until_at: float
    """End of the period, Unix seconds."""
    jobs: Mapping[str, PastJob]
    """By id, in the order of submission."""
    earlier: bool = False
    """Whether jobs were submitted before the period."""

    def workload(self) -> Workload:
        """Return the jobs as a workload for a replay. Raises NoJobs if the run time of none is known."""
        submitted = [job for job in self.jobs.values() if job.spec.profile is None]
        if any(job.run_s is not None for job in submitted):
            return from_past(self.jobs.values())
        raise NoJobs(self._why_none(len(submitted)))

    def _why_none(self, submitted: int) -> str:
        since, hint = f"since {minute_of(self.from_at)} UTC", "; go further back with --since"
        if not submitted:
            never = " or before; there is nothing to replay yet"
            return f"no job was submitted {since}{hint if self.earlier else never}"
        none = (
            f"the only job submitted {since} has not succeeded"
            if submitted == 1
            else f"none of the {submitted} jobs submitted {since} has succeeded"
        )
        its = "its" if submitted == 1 else "their"
        return f"{none}, so {its} run time is unknown{hint if self.earlier else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Recorded results of jobs that a comparison replays."""

    numbers: Mapping[str, float | int | str | None]
    """Values by column name of a comparison."""
    notes: tuple[str, ...]


def read_past(client: Connection, back_s: float) -> Past:
    """Return the jobs submitted in the last ``back_s`` seconds."""
    now = now_of(client)
    # The daemon lists the newest first; jobs submitted at the same time must keep their order of submission.
    jobs = dict(reversed(list(_past_jobs(client, now - back_s, now))))
    earlier = bool(client.get("/v1/jobs", limit=1, before=next(iter(jobs), None)))
    return Past(from_at=now - back_s, until_at=now, jobs=jobs, earlier=earlier)


def recorded_workload(client: Connection, back_s: float) -> Workload:
    """Return the jobs of the last ``back_s`` seconds as a workload. Raises NoJobs if the run time of none is known."""
    return read_past(client, back_s).workload()


def recorded_outcome(client: Connection, past: Past) -> Recorded:
    """Return the recorded results of the period: waits and targets of the replayed jobs, cost of all machines."""
    period = {"since": past.from_at, "until": past.until_at}
    by_job = client.get("/v1/reports/performance", by="job", **period)["rows"]
    replayed = [each for each in by_job if (job := past.jobs.get(each["job"])) and job.run_s is not None]
    by_market = client.get("/v1/reports/cost", by="market", **period)["rows"]
    cost = {each["market"]: each["cost_usd"] for each in by_market}
    reserved_usd = cost.get(Market.RESERVED.value, 0.0)
    services = [each for each in replayed if isinstance(past.jobs[each["job"]].spec.target, ServiceTarget)]
    batch = [each for each in replayed if each not in services]
    waits = [each["queue_s"] for each in replayed]
    numbers: dict[str, float | int | str | None] = {
        "policy": RECORDED,
        "cost_usd": sum(cost.values()),
        "metered_usd": sum(cost.values()) - reserved_usd,
        "committed_usd": reserved_usd,
        "target_met_pct": _mean_met(replayed),
        "batch_met_pct": _mean_met(batch),
        "service_met_pct": _mean_met(services),
        "wait_p50_s": float(np.quantile(waits, 0.5)) if waits else None,
        "wait_p95_s": float(np.quantile(waits, 0.95)) if waits else None,
        "launches": sum(1 for _ in _launches(client, past)),
        "succeeded": len(replayed),
        "jobs": len(replayed),
        **dict(_recorded_accounts(client.get("/v1/reports/utilisation", **period))),
    }
    return Recorded(numbers=numbers, notes=_notes_on(past, len(replayed)))


def _recorded_accounts(utilisation: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Yield what was spent on each account, by column of a comparison; nothing if the daemon does not report it."""
    for table in utilisation.get("further", ()):
        for row in table["rows"]:
            yield f"{SPENT}{row['account']}_usd", row["cost_usd"]
            yield f"{SPENT}{row['account']}_pct", row["share_pct"]


def _mean_met(jobs: Sequence[Mapping[str, Any]]) -> float | None:
    met = [each["target_met_pct"] for each in jobs if each["target_met_pct"] is not None]
    return sum(met) / len(met) if met else None


def _launches(client: Connection, past: Past) -> Iterator[object]:
    after = 0
    while page := client.get(
        "/v1/events", after_seq=after, since=past.from_at, until=past.until_at, kind=["instance_launched"], limit=10_000
    ):
        yield from page
        after = page[-1]["seq"]


def _notes_on(past: Past, replayed: int) -> tuple[str, ...]:
    period = f"{minute_of(past.from_at)} to {minute_of(past.until_at)} UTC"
    others = sum(job.spec.profile is None for job in past.jobs.values()) - replayed
    left_out = f"{counted(others, 'job')} not replayed (failed, cancelled or unfinished)"
    also = f"{left_out} and " if others else ""
    caveat = f", unless the {counted(others, 'job')} not replayed delayed the others" if others else ""
    return (
        f"{RECORDED}: from the ledger, {period}. Targets and waits: {counted(replayed, 'replayed job')} only. Cost and "
        f"launches: all machines up then, also those of {also}of earlier jobs; reserved machines only while up",
        f"comparable: the replays with each other (same jobs, cloud and seeds); their targets and waits with "
        f"{RECORDED}{caveat}",
        f"not directly comparable: cost {RECORDED}. The replays use today's prices, pay for reserved machines all the "
        f"time, and have no outages, cancelled jobs or manual operations. The difference between the first row and "
        f"{RECORDED} shows how accurate the replays are",
        "services are replayed for as long as they were up (so far); job ids in replays differ from the recorded ones",
    )


def _past_jobs(client: Connection, from_at: float, now: float) -> Iterator[tuple[str, PastJob]]:
    specs, before = TypeAdapter(JobSpec), None
    while page := client.get("/v1/jobs", limit=PAGE, before=before):
        for job in page:
            if job["submitted_at"] < from_at:
                return
            spec = specs.validate_python(job["spec"])
            yield job["id"], PastJob(submitted_at=job["submitted_at"], spec=spec, run_s=_ran_s(job, spec, now))
        before = page[-1]["id"]


def _ran_s(job: Mapping[str, Any], spec: JobSpec, now: float) -> float | None:
    """Return how long a job runs in a replay, in seconds; None if its run time is unknown.

    A batch job that succeeded runs as long as its longest node did, however late other nodes joined. A service runs
    until it was cancelled or ended, or up to ``now``.
    """
    parts = job["attempt"]["allocations"] if job["attempt"] is not None else ()
    started = [float(part["started_at"]) for part in parts if part["started_at"] is not None]
    if not started:
        return None
    if isinstance(spec.target, ServiceTarget):
        began_at = min(started) if job["attempts_made"] == 1 else float(job["submitted_at"])
        ended_at = now if job["finished_at"] is None else float(job["finished_at"])
        return None if job["state"] == JobState.FAILED.value else max(0.0, ended_at - began_at)
    ended = [part for part in parts if part["started_at"] is not None and part["ended_at"] is not None]
    ran_s = [float(part["ended_at"]) - float(part["started_at"]) for part in ended]
    return max(ran_s) if ran_s and job["state"] == JobState.SUCCEEDED.value else None


def offered_clouds(client: Connection) -> tuple[dict[str, dict[str, object]], float]:
    """Return simulator settings of a cloud per provider: its current offers, and the machines in use now.

    Also returns the age of the oldest price among these offers, in seconds. Raises BadInput if nothing is offered.
    """
    offers = TypeAdapter(list[Offer]).validate_python(client.get("/v1/offers"))
    clouds = clouds_of_offers(offers, _offers_in_use(client, offers))
    return clouds, max(0.0, now_of(client) - min(each.priced_at for each in offers))


def _offers_in_use(client: Connection, offers: Sequence[Offer]) -> list[Offer]:
    """Return the offer of each machine in use, for providers with a pool at the time the pool was read.

    The free resources of a pool are up to a minute old. To get its size, machines that were up then are added, even if
    they ended since, and machines launched since are not.
    """
    read_at = {offer.provider: offer.priced_at for offer in offers if offer.pool_free is not None}
    # Two requests, as the newest machines come first: many ended ones could push a live one over the limit.
    pages = [client.get("/v1/instances", limit=MOST_MACHINES, ended=ended) for ended in (False, True)]
    machines = {machine["id"]: machine for page in pages for machine in page}

    def was_up(machine: Mapping[str, Any]) -> bool:
        at = read_at.get(machine["offer"]["provider"])
        launched_at, gone_at = machine["launched_at"], machine["terminated_at"]
        if at is None:
            return bool(machine["state"] != InstanceState.TERMINATED.value)
        return launched_at is not None and launched_at <= at and (gone_at is None or gone_at > at)

    in_use = [machine["offer"] for machine in machines.values() if was_up(machine)]
    return TypeAdapter(list[Offer]).validate_python(in_use)
