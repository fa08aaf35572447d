"""Run times learnt from the event log, each job once: what was known when it was submitted, and how long it ran.

All that is learnt is a function of the events up to ``seq``. A tracker that is restored from
:meth:`RunTimeTracker.dump` and reads on from there knows exactly what one knows that never stopped.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hcloud.core.errors import BadInput
from hcloud.core.model import Event, EventKind, JobId, JobState
from hcloud.forecast.runtimes.distribution import RunTimes, unknown_run_time
from hcloud.forecast.runtimes.features import OF_ONE_PROGRAM, RunFeatures
from hcloud.forecast.runtimes.mixture import MixturePredictor
from hcloud.forecast.runtimes.state import dump, load

TRACKED_KINDS: tuple[EventKind, ...] = (EventKind.JOB_SUBMITTED, EventKind.JOB_FINISHED)
"""Event kinds that are read."""
MAX_SUBMITTED = 20_000
"""Of more jobs than these that have not ended, those submitted first are learnt from by what is known at their end."""
FORMAT = b"hcloud tracked run times, version 1\n"
VALUES_PER_RUN = 2000
"""A snapshot is taken again after one run for so many remembered values, as copying takes time in proportion."""
RENEWED_AFTER_S, RENEWED_AT_MORE = 60.0, 0.1
"""Nor is it taken again before so many seconds have passed, or so large a part of its runs more were learnt, unless a
program has become known: with each snapshot all that was predicted is predicted anew."""
_HOUR_S, _DAY_S = 3600.0, 86400.0
_SERVICE, _PROFILING_RUN = "service", ":profile-"
_UNKNOWN = unknown_run_time()


class Submitted(NamedTuple):
    """What is kept of a job from its submission to its end."""

    features: RunFeatures
    evidence: bytes
    """What was known of its features then, compressed."""


class FinishedRun(NamedTuple):
    """A run as it is learnt."""

    features: RunFeatures
    run_s: float
    """How long the last attempt ran, in seconds."""
    stopped: bool
    """Whether it was stopped, and would have run longer."""


def submission_hour_and_weekday(submitted_at: float) -> tuple[int, int]:
    """Return the hour (0 to 23) and weekday (0: Monday) of a submission, in UTC."""
    # 1970-01-01 was a Thursday.
    return int(submitted_at % _DAY_S // _HOUR_S), (int(submitted_at // _DAY_S) + 3) % 7


@dataclass(slots=True, eq=False)
class RunTimeTracker:
    """Learns run times from JOB_SUBMITTED and JOB_FINISHED events, in the order of the log."""

    predictor: MixturePredictor = field(default_factory=MixturePredictor)
    """What was learnt."""
    seq: int = 0
    """Number of the last event that is counted; earlier ones are ignored."""
    runs: int = 0
    """Number of runs learnt."""
    _submitted: dict[JobId, Submitted] = field(default_factory=dict)
    """Jobs that have not ended, oldest first."""
    _snapshot: MixturePredictor | None = None
    _snapshot_at: float = 0.0
    _runs_in_snapshot: int = -1
    _program_became_known: bool = False
    """Whether a program ran that is not in the snapshot."""

    def follow(self, events: Iterable[Event]) -> None:
        """Take in events in the order of the log. Those of before ``seq`` are ignored."""
        for event in events:
            if event.seq <= self.seq:
                continue
            if event.kind is EventKind.JOB_SUBMITTED:
                self._add(event)
            elif event.kind is EventKind.JOB_FINISHED:
                self._learn(event)
            self.seq = event.seq

    def snapshot(self, now: float) -> MixturePredictor:
        """Return a predictor that never changes, with nearly all that was learnt; the same one until it is renewed.

        With ``n`` remembered values it lacks at most the last ``n / VALUES_PER_RUN`` runs, or those of the last
        ``RENEWED_AFTER_S`` if they are few and of known programs.
        """
        if self._snapshot is None or self._is_renewed_at(now):
            self._snapshot, self._snapshot_at, self._runs_in_snapshot = self.predictor.copy(), now, self.runs
            self._program_became_known = False
        return self._snapshot

    def _is_renewed_at(self, now: float) -> bool:
        more = self.runs - self._runs_in_snapshot
        if more * VALUES_PER_RUN <= len(self.predictor.histories.index.rows):
            return False
        many, long = more > RENEWED_AT_MORE * self._runs_in_snapshot, now - self._snapshot_at >= RENEWED_AFTER_S
        return many or long or self._program_became_known

    def _add(self, event: Event) -> None:
        features = submitted_features(event)
        if event.job_id is None or features is None:
            return
        self._submitted[event.job_id] = Submitted(features, zlib.compress(self.predictor.evidence(features), 1))
        if len(self._submitted) > MAX_SUBMITTED:
            del self._submitted[next(iter(self._submitted))]

    def _learn(self, event: Event) -> None:
        before = self._submitted.pop(event.job_id or "", None)
        run = finished_run(event, None if before is None else before.features)
        if run is None:
            return
        predicted: RunTimes | None = None
        if before is not None and before.features == run.features:
            predicted = replace(_UNKNOWN, evidence=zlib.decompress(before.evidence))
        self._program_became_known |= not self.predictor.runs_of(run.features, *OF_ONE_PROGRAM)
        self.predictor.observe(run.features, run.run_s, run.stopped, predicted=predicted)
        self.runs += 1

    # --------------------------------------------------------------------------------------------------------- as bytes
    def dump(self) -> bytes:
        """Return all that is needed to go on after ``seq``."""
        jobs = [[name, each.features.to_fields(), len(each.evidence)] for name, each in self._submitted.items()]
        header = zlib.compress(json.dumps({"seq": self.seq, "runs": self.runs, "jobs": jobs}).encode())
        evidence = b"".join(each.evidence for each in self._submitted.values())
        return b"".join((FORMAT, len(header).to_bytes(4, "little"), header, evidence, dump(self.predictor)))

    @classmethod
    def load(cls, state: bytes) -> RunTimeTracker:
        """Return the tracker of which :meth:`dump` wrote the state.

        Raises BadInput if the state is of another version or damaged.
        """
        if not state.startswith(FORMAT):
            raise BadInput(f"the state of tracked run times begins with {state[: len(FORMAT)]!r}, expected {FORMAT!r}")
        at = len(FORMAT) + 4
        end = at + int.from_bytes(state[at - 4 : at], "little")
        try:
            header = json.loads(zlib.decompress(state[at:end]))
            submitted = dict[JobId, Submitted]()
            for name, fields, length in header["jobs"]:
                submitted[name] = Submitted(RunFeatures.from_fields(fields), state[end : end + length])
                end += length
            seq, runs = int(header["seq"]), int(header["runs"])
        except (zlib.error, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"the state of tracked run times is damaged: {error}; read the log again") from error
        return cls(predictor=load(state[end:]), seq=seq, runs=runs, _submitted=submitted)


def submitted_features(event: Event) -> RunFeatures | None:
    """Return what a JOB_SUBMITTED event says of a job; None: its run time is not predicted.

    Events of releases that recorded no features have user, name, queue, size and time of the submission.
    """
    recorded = event.fields.get("features")
    if isinstance(recorded, Mapping):
        return RunFeatures.from_fields(recorded) if recorded else None
    name, kind = str(event.fields.get("name", "")), str(event.fields.get("target_kind", ""))
    if _PROFILING_RUN in name or kind == _SERVICE:
        return None
    vcpus, nodes = event.fields.get("vcpus"), event.fields.get("nodes")
    is_sized = isinstance(vcpus, (int, float)) and isinstance(nodes, (int, float))
    hour, weekday = submission_hour_and_weekday(event.at)
    return RunFeatures(
        user=event.user,
        name=name,
        queue=queue_name(kind, event.fields.get("priority", 0)),
        size=float(vcpus * nodes) if is_sized else None,  # type: ignore[operator]
        submit_hour=hour,
        submit_weekday=weekday,
    )


def queue_name(target_kind: str, priority: object) -> str:
    """Return what stands for the queue of a job: its kind of target and its priority."""
    return f"{target_kind}:{priority}"


def finished_run(event: Event, submitted: RunFeatures | None) -> FinishedRun | None:
    """Return the run that a JOB_FINISHED event reports; None: there is none to learn from.

    ``submitted``: what its submission said, for events of releases that recorded no features at the end.
    """
    recorded, run_s = event.fields.get("features"), event.fields.get("run_s")
    features = submitted
    if isinstance(recorded, Mapping):
        features = RunFeatures.from_fields(recorded) if recorded else None
    if features is None or not isinstance(run_s, (int, float)) or run_s <= 0.0:
        return None
    stopped = event.fields.get("stopped", event.fields.get("state") != JobState.SUCCEEDED.value)
    return FinishedRun(features, float(run_s), bool(stopped))
