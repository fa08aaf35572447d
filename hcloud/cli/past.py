"""What a running daemon was given and is offered, as a workload and a cloud for the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from hcloud.cli.client import Client
from hcloud.errors import BadInput
from hcloud.model import JobSpec, Offer
from hcloud.quantity import parse_duration_s
from hcloud.simulator.clouds import clouds_of_offers
from hcloud.simulator.workload import PastJob, Workload, from_past

PAGE, MOST_MACHINES = 2000, 10_000


def back_s_of(since: str) -> float:
    """Return how far ``--since`` (a duration such as 7d) goes back, in seconds. Raises BadInput."""
    try:
        return parse_duration_s(since)
    except ValueError as error:
        raise BadInput(f"--since {since!r}: write a duration such as 7d") from error


def recorded_workload(client: Client, back_s: float) -> Workload:
    """Return the jobs of the last ``back_s`` seconds. Raises BadInput where there are none."""
    from_at = client.get("/v1/status")["now"] - back_s
    # The daemon lists the newest first; of jobs submitted in one moment the first must be the first again.
    return from_past(reversed(list(_past_jobs(client, from_at))))


def _past_jobs(client: Client, from_at: float) -> Iterator[PastJob]:
    specs, before = TypeAdapter(JobSpec), None
    while page := client.get("/v1/jobs", limit=PAGE, before=before):
        for job in page:
            if job["submitted_at"] < from_at:
                return
            spec = specs.validate_python(job["spec"])
            yield PastJob(submitted_at=job["submitted_at"], spec=spec, run_s=_ran_s(job))
        before = page[-1]["id"]


def _ran_s(job: dict[str, Any]) -> float | None:
    """Return how long the last attempt of a job that succeeded ran."""
    if job["state"] != "succeeded" or job["attempt"] is None:
        return None
    started = [each["started_at"] for each in job["attempt"]["allocations"] if each["started_at"] is not None]
    ended = [each["ended_at"] for each in job["attempt"]["allocations"] if each["ended_at"] is not None]
    return max(ended) - min(started) if started and ended else None


def offered_clouds(client: Client) -> dict[str, dict[str, object]]:
    """Return clouds with what the daemon's providers offer now, and what it has of them already, by provider.

    Raises BadInput where nothing is offered.
    """
    offers = TypeAdapter(list[Offer]).validate_python(client.get("/v1/offers"))
    machines = client.get("/v1/instances", limit=MOST_MACHINES)
    taken = TypeAdapter(list[Offer]).validate_python([each["offer"] for each in machines])
    return clouds_of_offers(offers, taken)
