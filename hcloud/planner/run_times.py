"""How long jobs will run, as plans ask it: distributions learnt from past runs (:mod:`hcloud.forecast.runtimes`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hcloud.classifier.applications import Identity, identify
from hcloud.core.model import JOB_ENDED, JOB_ON_INSTANCE, Job, JobSpec
from hcloud.core.units import parse_number
from hcloud.forecast.run_time_tracker import queue_name, submission_hour_and_weekday
from hcloud.forecast.runtimes.distribution import RunTimes
from hcloud.forecast.runtimes.features import OF_ONE_PROGRAM, RunFeatures
from hcloud.forecast.runtimes.mixture import MixturePredictor
from hcloud.planner.text import seconds
from hcloud.spec.validation import counted

RUN_TIMES = "run_times"
"""Name of the learning of run times in the quarantine. It precedes planning, and no stage of plans depends on it."""
GROUP_TAG, QUEUE_TAG, EXECUTABLE_TAG, REQUESTED_TAG = "group", "queue", "executable", "requested_s"
"""Tags of a job that predict its run time, where they are given. Job logs are read into these."""
BY_PROFILE, BY_USUAL = "profile", "usual run time"
"""Sources of what past runs do not predict: the job's classification, and the mean of its program's runs."""
MOST_ANSWERS = 1_000
"""So many answers are remembered, of some 5 KB each."""
_UNANSWERED: Any = object()


class RunTimeLimits(NamedTuple):
    """What one decision asks of a distribution."""

    median_s: float
    """As likely as not the run takes no longer."""
    long_s: float
    """It takes no longer with the policy's ``placement.confidence``."""


def has_run_time(spec: JobSpec) -> bool:
    """Return whether a job's run time is learnt and predicted: services end when they are stopped, and profiling runs
    measure something else."""
    return spec.target.kind != "service" and spec.profile is None


def features_of(spec: JobSpec, submitted_at: float) -> RunFeatures:
    """Return what predicts a job's run time: all that is known when it is submitted."""
    hour, weekday = submission_hour_and_weekday(submitted_at)
    identity = identify(spec)
    return RunFeatures(
        name=spec.name,
        executable=spec.tags.get(EXECUTABLE_TAG, identity.name),
        submit_hour=hour,
        submit_weekday=weekday,
        **_of_kind(spec, identity),
    )


def recorded_features(spec: JobSpec, submitted_at: float) -> dict[str, str | float]:
    """Return :func:`features_of` for an event; empty: the job's run time is not learnt."""
    return features_of(spec, submitted_at).to_fields() if has_run_time(spec) else {}


def kind_features(spec: JobSpec) -> RunFeatures:
    """Return those features that all jobs of a kind (:mod:`hcloud.planner.queued_jobs`) have in common."""
    return RunFeatures(**_of_kind(spec, identify(spec)))


def _of_kind(spec: JobSpec, identity: Identity) -> dict[str, Any]:
    return {
        "user": spec.user,
        "application": identity.program,
        "group": spec.tags.get(GROUP_TAG),
        "queue": spec.tags.get(QUEUE_TAG, queue_name(spec.target.kind, spec.priority)),
        "requested_s": _requested_s(spec),
        "size": spec.resources.vcpus * spec.nodes.count,
    }


def _requested_s(spec: JobSpec) -> float | None:
    if spec.max_runtime_s is not None or not spec.tags:
        return spec.max_runtime_s
    return parse_number(spec.tags.get(REQUESTED_TAG, ""))


@dataclass(frozen=True, slots=True, eq=False)
class RunTimeForecasts:
    """The run times of jobs, by what was learnt up to one moment. The same question always has the same answer."""

    predictor: MixturePredictor | None = field(default=None, repr=False)
    """What was learnt, which never changes; None: nothing."""
    _answers: dict[RunFeatures, RunTimes | None] = field(default_factory=dict, repr=False)

    def of_job(self, job: Job) -> RunTimes | None:
        """Return the run time of ``job``, from start to end, by all that is known of it; None: nothing is."""
        if self.predictor is None or not has_run_time(job.spec):
            return None
        features = features_of(job.spec, job.submitted_at)
        answer: RunTimes | None = self._answers.get(features, _UNANSWERED)
        if answer is _UNANSWERED:
            if len(self._answers) >= MOST_ANSWERS:
                self._answers.clear()
            known = self.predictor.runs_of(features, *OF_ONE_PROGRAM) > 0
            # What was known when it was predicted is of no use to plans, and is as large as the rest.
            answer = replace(self.predictor.predict(features), evidence=b"") if known else None
            self._answers[features] = answer
        return answer

    def history(self, job: Job) -> int:
        """Return how many runs of the job's program, or of the user's jobs of that name, are remembered."""
        if self.predictor is None:
            return 0
        features = features_of(job.spec, job.submitted_at)
        return self.predictor.runs_of(features, *OF_ONE_PROGRAM)

    def deadline_probabilities(self, jobs: Sequence[Job], now: float) -> list[float | None]:
        """Return the probability of each job to meet its deadline if it starts now, or goes on running; None: it has
        none, or its run time is not known."""
        run_times = [None if job.deadline_at is None else self.of_job(job) for job in jobs]
        return [
            None if run_time is None else deadline_probability(job, run_time, now)
            for job, run_time in zip(jobs, run_times, strict=True)
        ]

    def of_program(self, program: str) -> RunTimes | None:
        """Return the run time of jobs of ``USER:PROGRAM``, from start to end; None: no run of it is known."""
        features = _program_features(program)
        if self.predictor is None or not self.runs_of_program(program):
            return None
        return self.predictor.predict(features)

    def runs_of_program(self, program: str) -> int:
        """Return how many runs of ``USER:PROGRAM`` are remembered."""
        if self.predictor is None:
            return 0
        return self.predictor.runs_of(_program_features(program), ("application",))


NO_RUN_TIMES = RunTimeForecasts()
"""Nothing is known."""


def _program_features(program: str) -> RunFeatures:
    return RunFeatures(user=program.partition(":")[0], application=program)


def program_of(spec: JobSpec) -> str:
    """Return user and program of a job, ``USER:PROGRAM``."""
    return identify(spec).program


def ran_for_s(job: Job, now: float) -> float:
    """Return how long the running attempt of a job ran already, without pauses, in seconds; 0: none runs."""
    if job.state not in JOB_ON_INSTANCE or job.attempt is None or job.attempt.over:
        return 0.0
    starts_at = [each.started_at for each in job.attempt.allocations if each.started_at is not None]
    paused_s = max((each.total_paused_s(now) for each in job.attempt.allocations), default=0.0)
    return max(0.0, now - min(starts_at, default=now) - paused_s)


def deadline_probability(job: Job, run_time: RunTimes, now: float) -> float | None:
    """Return the probability that a job meets its deadline if it starts now, or goes on running. None: it has none, or
    has ended, or is an array, whose last task may start much later."""
    deadline_at = job.deadline_at
    if deadline_at is None or job.state in JOB_ENDED or job.is_array:
        return None
    age_s = ran_for_s(job, now)
    return run_time.after(age_s).cdf(age_s + deadline_at - now)


def forecast_line(job: Job, found: RunTimes | None, forecasts: RunTimeForecasts, now: float) -> str:
    """Return one sentence about the run time of a job that has not ended, which plans count with; empty: nothing is
    known, or it is a profiling run."""
    if job.state in JOB_ENDED or job.spec.profile is not None or found is None:
        return ""
    age_s = ran_for_s(job, now)
    median_s, limit_s = found.after(age_s).quantiles((0.5, 0.9))
    text = f"run time: {seconds(median_s)} (median), {seconds(limit_s)} at most with probability 0.9"
    others = {BY_PROFILE: "its profile", BY_USUAL: "the usual run time of its program"}
    text += f", by {others.get(found.source) or counted(forecasts.history(job), 'similar run')}"
    text += f", given that it ran for {seconds(age_s)} already" if age_s > 0.0 else ""
    chance = deadline_probability(job, found, now)
    if chance is None:
        return text
    when = "" if job.state in JOB_ON_INSTANCE else " if it starts now"
    return f"{text}; probability to meet the deadline{when} {chance:.2f}"
