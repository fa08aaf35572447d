"""The table of act 1: what was learnt of each program in round 1, and what was predicted and measured in round 2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

AGAIN = "-again"
"""Suffix of the names of round 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the command line says about all jobs."""

    jobs: Sequence[Mapping[str, Any]]
    """Of `hcloud queue`, profiling runs included."""
    predictions: Sequence[Mapping[str, Any]]
    """Events of this kind."""
    profiled: Sequence[Mapping[str, Any]]
    """Events of this kind."""
    classified: Sequence[Mapping[str, Any]]
    """Events of this kind."""
    types: Mapping[str, str]
    """Machine type by machine."""
    cost_usd: Mapping[str, float]
    """Cost by job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """One program in both rounds."""

    program: str
    first_s: float
    """Mean run time in round 1."""
    runs: int
    """Jobs of round 1."""
    profiles: int
    """Profiling runs beside them that measured something."""
    source: str
    """How the job of round 2 was classified when it was submitted: known, profiled or prior."""
    waited_s: float
    """From its submission to its start."""
    predicted_s: tuple[float, float, float] | None
    """Predicted run time of round 2 with its 80 % limits (lower, value, upper); None: no prediction."""
    measured_s: float
    vcpus: float
    machine: str
    cost_usd: float

    @property
    def is_within(self) -> bool:
        """Whether the run time of round 2 is within the limits of its prediction."""
        return self.predicted_s is not None and self.predicted_s[0] <= self.measured_s <= self.predicted_s[2]


def rounds(facts: Facts) -> Iterator[Learnt]:
    """Yield each program that ran in both rounds, in the order of round 2."""
    own = [job for job in facts.jobs if not is_profiling_run(job)]
    useful = [event for event in facts.profiled if event["fields"]["readings"]]
    for job in own:
        name = job["spec"]["name"]
        if not name.endswith(AGAIN):
            continue
        program = name.removesuffix(AGAIN)
        first = [each for each in own if each["spec"]["command"] == job["spec"]["command"] and each is not job]
        ids = {each["id"] for each in first}
        held = allocation(job)
        measured_s = run_s(job)
        yield Learnt(
            program=program,
            first_s=sum(map(run_s, first)) / len(first),
            runs=len(first),
            profiles=sum(len(event["fields"]["runs"]) for event in useful if event["job_id"] in ids),
            source=next(
                (each["fields"]["source"] for each in facts.classified if each["job_id"] == job["id"]), "prior"
            ),
            waited_s=held["started_at"] - job["submitted_at"],
            predicted_s=_predicted_s(facts.predictions, job["id"], measured_s),
            measured_s=measured_s,
            vcpus=held["resources"]["vcpus"],
            machine=facts.types.get(held["instance_id"], "?"),
            cost_usd=facts.cost_usd.get(job["id"], 0.0),
        )


def _predicted_s(
    predictions: Sequence[Mapping[str, Any]], job_id: str, measured_s: float
) -> tuple[float, float, float] | None:
    """Return the predicted run time with its limits: predictions are of work per second, which is its inverse."""
    for event in predictions:
        fields = event["fields"]
        if event["job_id"] == job_id and fields["question"] == "run" and fields["low"] > 0:
            low, value, high = (measured_s * fields["measured"] / fields[each] for each in ("high", "predicted", "low"))
            return low, value, high
    return None


def table(found: Sequence[Learnt]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{'':13}{'round 1, unknown':34}round 2, known"
    yield (
        f"{'program':13}{'ran':>7}  {'learnt from':25}{'start':>7}{'predicted (80 % limits)':>27}{'measured':>10}"
        f"{'vCPUs':>7}  {'machine':13}{'cost':>10}"
    )
    for each in found:
        learnt = f"{each.runs} own run{'s' if each.runs > 1 else ''}"
        learnt += f", {each.profiles} beside" if each.profiles else ""
        predicted = "none"
        if each.predicted_s is not None:
            low, value, high = each.predicted_s
            predicted = f"{value:.1f} s ({low:.1f} to {high:.1f})"
        yield (
            f"{each.program:13}{each.first_s:5.1f} s  {learnt:25}{each.waited_s:5.1f} s{predicted:>27}"
            f"{each.measured_s:8.1f} s{each.vcpus:7g}  {each.machine:13}{'$' + format(each.cost_usd, '.6f'):>10}"
        )


def is_profiling_run(job: Mapping[str, Any]) -> bool:
    """Whether a job measures a copy of another one."""
    return "hcloud.profile" in job["spec"]["tags"]


def allocation(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return where the last attempt of a job of one node ran."""
    found: Mapping[str, Any] = job["attempt"]["allocations"][0]
    return found


def run_s(job: Mapping[str, Any]) -> float:
    """Return how long the last attempt of a job that has ended ran."""
    held = allocation(job)
    return float(held["ended_at"] - held["started_at"])
