"""What a running daemon was given and is offered, as a workload and a cloud for the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from hcloud.cli.arguments import moment_of
from hcloud.cli.client import Client
from hcloud.core.errors import BadInput, NoJobs
from hcloud.core.model import InstanceState, JobSpec, JobState, Market, Offer, ServiceTarget
from hcloud.report import minute_of
from hcloud.simulator.clouds import clouds_of_offers
from hcloud.simulator.workload import PastJob, Workload, from_past
from hcloud.spec.validation import counted

PAGE, MOST_MACHINES = 2000, 10_000
AS_IT_WAS = "as it was"


def back_s_of(since: str, now: Callable[[], float]) -> float:
    """Return how far ``--since`` (a duration such as 7d, or a UTC date or time) goes back from ``now``, in seconds.

    Raises:
        BadInput: it is neither, or nothing can be so short ago.
    """
    begin = moment_of(since, "--since")
    ago_s = -begin(0.0)
    back_s = ago_s if ago_s >= 0 else now() + ago_s  # a date is after 1970: how far back that is depends on now
    if back_s <= 0:
        raise BadInput(f"--since {since!r}: nothing is so short ago; write a duration such as 7d")
    return back_s


def now_of(client: Client) -> float:
    """Return the time of the daemon's clock."""
    now: float = client.get("/v1/status")["now"]
    return now


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What was submitted to a daemon from ``from_at`` to ``until_at`` (Unix seconds): jobs by id, in their order.

    ``earlier``: whether anything was submitted before.
    """

    from_at: float
    until_at: float
    jobs: Mapping[str, PastJob]
    earlier: bool = False

    def workload(self) -> Workload:
        """Return the jobs as work to be replayed. Raises NoJobs, since when, where there are none that ran."""
        asked = [job for job in self.jobs.values() if job.spec.profile is None]
        if any(job.run_s is not None for job in asked):
            return from_past(self.jobs.values())
        raise NoJobs(self._why_none(len(asked)))

    def _why_none(self, asked: int) -> str:
        """Return in words why of so many jobs nothing can be replayed."""
        since, further = f"since {minute_of(self.from_at)} UTC", "; go further back with --since"
        if not asked:
            never = ", and none before: nothing was recorded yet that could be replayed"
            return f"no job was submitted {since}{further if self.earlier else never}"
        none = (
            f"the only job submitted {since} has not" if asked == 1 else f"none of {asked} jobs submitted {since} has"
        )
        return f"{none} succeeded, so that nobody knows how long it runs{further if self.earlier else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What that really cost and kept: by column of a comparison, and what of it can be compared."""

    numbers: Mapping[str, float | int | str | None]
    notes: tuple[str, ...]


def read_past(client: Client, back_s: float) -> Past:
    """Return what was submitted in the last ``back_s`` seconds."""
    now: float = client.get("/v1/status")["now"]
    # The daemon lists the newest first; of jobs submitted in one moment the first must be the first again.
    jobs = dict(reversed(list(_past_jobs(client, now - back_s, now))))
    earlier = bool(client.get("/v1/jobs", limit=1, before=next(iter(jobs), None)))
    return Past(from_at=now - back_s, until_at=now, jobs=jobs, earlier=earlier)


def recorded_workload(client: Client, back_s: float) -> Workload:
    """Return the jobs of the last ``back_s`` seconds. Raises NoJobs where there are none that ran."""
    return read_past(client, back_s).workload()


def recorded_outcome(client: Client, past: Past) -> Recorded:
    """Return what the ledger says of that time: of the jobs that are replayed what they waited for and what was kept,
    and the cost of all machines."""
    within = {"since": past.from_at, "until": past.until_at}
    of_jobs = _rows(client.get("/v1/reports/performance", by="job", **within))
    replayed = [each for each in of_jobs if (job := past.jobs.get(each["job"])) and job.run_s is not None]
    cost = {each["market"]: each["cost_usd"] for each in _rows(client.get("/v1/reports/cost", by="market", **within))}
    reserved_usd = cost.get(Market.RESERVED.value, 0.0)
    services = [each for each in replayed if isinstance(past.jobs[each["job"]].spec.target, ServiceTarget)]
    batch = [each for each in replayed if each not in services]
    waits = [each["queue_s"] for each in replayed]
    numbers: dict[str, float | int | str | None] = {
        "policy": AS_IT_WAS,
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
    }
    return Recorded(numbers=numbers, notes=_notes_on(past, len(replayed)))


def _rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    return list(report["rows"])


def _mean_met(jobs: Sequence[Mapping[str, Any]]) -> float | None:
    met = [each["target_met_pct"] for each in jobs if each["target_met_pct"] is not None]
    return sum(met) / len(met) if met else None


def _launches(client: Client, past: Past) -> Iterator[object]:
    after = 0
    while page := client.get(
        "/v1/events", after_seq=after, since=past.from_at, until=past.until_at, kind=["instance_launched"], limit=10_000
    ):
        yield from page
        after = page[-1]["seq"]


def _notes_on(past: Past, replayed: int) -> tuple[str, ...]:
    span = f"{minute_of(past.from_at)} to {minute_of(past.until_at)} UTC"
    others = sum(job.spec.profile is None for job in past.jobs.values()) - replayed
    left_out = f"{counted(others, 'job')} that {'is' if others == 1 else 'are'} not replayed"
    also = f", of {left_out} (failed, cancelled, or not over) too" if others else ""
    waits = (
        f"targets and waits with {AS_IT_WAS} only as far as the {left_out} held nothing up"
        if others
        else f"targets and waits with {AS_IT_WAS}"
    )
    return (
        f"{AS_IT_WAS}: the ledger, {span}; targets and waits of the {counted(replayed, 'job')} that "
        f"{'is' if replayed == 1 else 'are'} replayed, cost and launches of all machines up in that "
        f"time{also}, and of what was running before; reserved ones while they were up",
        f"comparable: the replays with each other (same jobs, cloud and chances); {waits}",
        f"not comparable to the cent: cost as it was. The replays pay prices of now, for every reserved machine all "
        f"the time, and know nothing of outages, cancelled jobs or what operators did; how far the first row is from "
        f"{AS_IT_WAS} says how far to trust them",
        "a service is replayed for as long as it was up, or is so far; replays number jobs anew",
    )


def _past_jobs(client: Client, from_at: float, now: float) -> Iterator[tuple[str, PastJob]]:
    specs, before = TypeAdapter(JobSpec), None
    while page := client.get("/v1/jobs", limit=PAGE, before=before):
        for job in page:
            if job["submitted_at"] < from_at:
                return
            spec = specs.validate_python(job["spec"])
            yield job["id"], PastJob(submitted_at=job["submitted_at"], spec=spec, run_s=_ran_s(job, spec, now))
        before = page[-1]["id"]


def _ran_s(job: Mapping[str, Any], spec: JobSpec, now: float) -> float | None:
    """Return for how long a job is to run in a replay; None: unknown.

    A batch job that succeeded, for as long as the longest of its nodes did, however late others joined; a service for
    as long as it was wanted: until it was cancelled or ended, or up to ``now``.
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


def offered_clouds(client: Client) -> dict[str, dict[str, object]]:
    """Return clouds with what the daemon's providers offer now, and what it has of them already, by provider.

    Raises BadInput where nothing is offered.
    """
    offers = TypeAdapter(list[Offer]).validate_python(client.get("/v1/offers"))
    return clouds_of_offers(offers, _taken(client, offers))


def _taken(client: Client, offers: Sequence[Offer]) -> list[Offer]:
    """Return what machines are had of these offers, one by one.

    What is left of a host of one's own was read up to a minute ago: beside it count the machines that were up then,
    those that ended since too, and not those that began since.
    """
    read_at = {offer.provider: offer.priced_at for offer in offers if offer.pool_free is not None}
    # The newest are listed first: among many that ended, one that lives might not be told.
    listed = [client.get("/v1/instances", limit=MOST_MACHINES, ended=ended) for ended in (False, True)]
    machines = {machine["id"]: machine for page in listed for machine in page}
    found = [each["offer"] for each in machines.values() if _was_up(each, read_at.get(each["offer"]["provider"]))]
    return TypeAdapter(list[Offer]).validate_python(found)


def _was_up(machine: Mapping[str, Any], at: float | None) -> bool:
    """Return whether a machine was up at a moment (Unix seconds); None: whether it is not gone."""
    launched_at, gone_at = machine["launched_at"], machine["terminated_at"]
    if at is None:
        return bool(machine["state"] != InstanceState.TERMINATED.value)
    return launched_at is not None and launched_at <= at and (gone_at is None or gone_at > at)
