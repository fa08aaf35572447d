"""Counters and histograms of the daemon's process, for Prometheus: fed from the event log and from each request.

They start at 0 with the process, as Prometheus expects of counters, and follow the log only while this daemon leads:
events of another leader are counted by that one. Nothing is read from the store at a scrape.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from hcloud.core.model import PROFILE_TAG, Event, EventKind, Instance, Job
from hcloud.planner.plan import MET

_log = logging.getLogger("hcloud")
PROFILING: Final = "profiling"
CLASSES: Final = ("batch", "service", "best_effort", PROFILING)
"""Classes of jobs: the kind of their target; profiling runs are a class of their own."""
CAUSES: Final[Mapping[str, str]] = {
    "stockout": "out_of_stock",
    "quotaexceeded": "quota",
    "launchrejected": "rejected",
    "accountrejected": "account_rejected",
    "throttled": "throttled",
    "providerunavailable": "unavailable",
    "outcomeunknown": "outcome_unknown",
    "never_registered": "never_registered",
}
"""Why a launch failed, by reason code or name of the provider's error."""
WAIT_BUCKETS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
LAUNCH_BUCKETS_S = (5.0, 15.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0)
CYCLE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
REQUEST_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


RECENT_WAITS = 200
"""Of each class so many of the latest waits are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentWaits:
    """How long the latest jobs of a class waited until they started, since this daemon leads."""

    jobs: int
    p50_s: float
    p90_s: float
    """Nine in ten waited at most so long."""


@dataclass(slots=True)
class _LiveJob:
    """A job that has not ended."""

    job_class: str
    waits_since: float | None
    """Submission, or the end of the last job that it waited for (Unix seconds); None once it has started."""


@dataclass(slots=True)
class _LiveInstance:
    """What the labels of an instance's metrics need."""

    provider: str
    type: str
    market: str
    is_ready: bool = False
    has_failed: bool = False
    is_preempted: bool = False


class Telemetry:
    """The counters and histograms, in a registry of their own. Any thread may call."""

    def __init__(self, providers: Iterable[str] = ()) -> None:
        """``providers``: names for which counters begin at 0 instead of appearing with their first event."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._jobs: dict[str, _LiveJob] = {}
        self._instances: dict[str, _LiveInstance] = {}
        self._recent_s: dict[str, deque[float]] = {}
        self._has_failed = False

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"hcloud_{name}", meaning, labels, registry=self.registry)

        def histogram(name: str, meaning: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"hcloud_{name}", meaning, labels, buckets=buckets, registry=self.registry)

        self._wait_s = histogram(
            "job_wait_seconds", "Time from submission of a job to its first start, by class.", WAIT_BUCKETS_S, "class"
        )
        self._launch_s = histogram(
            "launch_to_ready_seconds",
            "Time from the launch of an instance until its worker registered.",
            LAUNCH_BUCKETS_S,
            "provider",
            "type",
        )
        self._cycle_s = histogram("cycle_seconds", "Duration of each cycle.", CYCLE_BUCKETS_S)
        self._request_s = histogram(
            "api_request_duration_seconds",
            "Duration of API requests by route, without those that wait for news.",
            REQUEST_BUCKETS_S,
            "method",
            "route",
        )
        self._requests = counter("api_requests_total", "API requests by status code.", "code")
        self._launches = counter("launches_total", "Instances launched.", "provider", "market")
        self._launch_failures = counter("launch_failures_total", "Failed launches by cause.", "provider", "cause")
        self._preemptions = counter(
            "preemptions_total", "Spot instances that their provider took back, or announced to.", "provider"
        )
        self._targets = counter("targets_total", "Ended jobs with a deadline, by result: met or missed.", "result")
        self._misses = counter(
            "target_misses_total", "How often a running job was found to miss its target, by class.", "class"
        )
        self._jobs_ended = counter("jobs_ended_total", "Jobs that ended, by class and state.", "class", "state")
        self._profile_runs = counter("profile_runs_total", "Profiling runs that ended, by state.", "state")
        self._start_at_zero(providers)

    def _start_at_zero(self, providers: Iterable[str]) -> None:
        for name in providers:
            self._preemptions.labels(name)
            for cause in CAUSES.values():
                self._launch_failures.labels(name, cause)
            for market in ("reserved", "on_demand", "spot"):
                self._launches.labels(name, market)
        for job_class in CLASSES:
            self._wait_s.labels(job_class)
        for job_class in CLASSES[:2]:
            self._misses.labels(job_class)
        for result in ("met", "missed"):
            self._targets.labels(result)
        for state in ("succeeded", "failed", "cancelled"):
            self._profile_runs.labels(state)
            for job_class in CLASSES:
                self._jobs_ended.labels(job_class, state)

    # ------------------------------------------------------------------------------------------------------ what is fed
    def record_cycle(self, duration_s: float) -> None:
        """Count a cycle that took ``duration_s``."""
        self._cycle_s.observe(duration_s)

    def record_request(self, method: str, route: str, code: int, duration_s: float | None) -> None:
        """Count an answered request. ``route``: its template; ``duration_s``: None if it waited for news."""
        self._requests.labels(str(code)).inc()
        if duration_s is not None:
            self._request_s.labels(method, route).observe(duration_s)

    def recent_waits(self) -> dict[str, RecentWaits]:
        """Return how long the latest jobs waited, by class; classes of which none has started are left out."""
        found = {}
        for job_class, waits in list(self._recent_s.items()):
            ordered = sorted(waits.copy())  # in one step: the cycle may add one
            p50_s, p90_s = (ordered[-(-len(ordered) * percent // 100) - 1] for percent in (50, 90))
            found[job_class] = RecentWaits(jobs=len(ordered), p50_s=p50_s, p90_s=p90_s)
        return found

    def begin(self, jobs: Iterable[Job], instances: Iterable[Instance], seq: int) -> None:
        """Forget what was followed; take the jobs and instances that live now."""
        del seq
        self._jobs = {
            job.id: _LiveJob(
                job_class=_class_of(job.spec.target.kind, job.spec.tags),
                waits_since=None if job.attempts_made else job.eligible_at,
            )
            for job in jobs
            if not job.is_array
        }
        self._instances = {
            each.id: _LiveInstance(
                provider=each.offer.provider,
                type=each.offer.instance_type.name,
                market=each.offer.market.value,
                is_ready=each.ready_at is not None,
                is_preempted=each.preempt_at is not None,
            )
            for each in instances
        }

    def follow(self, events: Sequence[Event]) -> None:
        """Count new events, in order, each once. A defect in this is logged once and stops nothing."""
        for event in events:
            handler = _HANDLERS.get(event.kind)
            if handler is None:
                continue
            try:
                handler(self, event)
            except Exception:  # noqa: BLE001 no defect of the counters may end a cycle
                _log.log(logging.DEBUG if self._has_failed else logging.ERROR, "metrics failed", exc_info=True)
                self._has_failed = True

    # ------------------------------------------------------------------------------------------------- event handlers
    def _submitted(self, event: Event) -> None:
        fields = event.fields
        if not fields.get("tasks"):  # an array starts and ends with its tasks
            since = _number(fields.get("submitted_at"), event.at)
            self._jobs[event.job_id or ""] = _LiveJob(_class_of(fields.get("target_kind"), _tags(fields)), since)

    def _job_state(self, event: Event) -> None:
        job = self._jobs.get(event.job_id or "")
        if job is not None and job.waits_since is not None and event.fields.get("code") == "released":
            job.waits_since = event.at

    def _unit_started(self, event: Event) -> None:
        job = self._jobs.get(event.job_id or "")
        if job is not None and job.waits_since is not None:
            wait_s, job.waits_since = max(0.0, event.at - job.waits_since), None
            self._wait_s.labels(job.job_class).observe(wait_s)
            self._recent_s.setdefault(job.job_class, deque(maxlen=RECENT_WAITS)).append(wait_s)

    def _target_missed(self, event: Event) -> None:
        job = self._jobs.get(event.job_id or "")
        if job is not None and event.fields.get("code") != MET:
            self._misses.labels(job.job_class).inc()

    def _job_finished(self, event: Event) -> None:
        job, fields = self._jobs.pop(event.job_id or "", None), event.fields
        if job is None:
            return
        state, met = str(fields.get("state")), fields.get("target_met")
        self._jobs_ended.labels(job.job_class, state).inc()
        if job.job_class == PROFILING:
            self._profile_runs.labels(state).inc()
        elif isinstance(met, bool):
            self._targets.labels("met" if met else "missed").inc()

    def _requested(self, event: Event) -> None:
        fields = event.fields
        self._instances[event.instance_id or ""] = _LiveInstance(
            provider=str(fields.get("provider", "")),
            type=str(fields.get("type", "")),
            market=str(fields.get("market", "")),
        )

    def _launched(self, event: Event) -> None:
        if (instance := self._instances.get(event.instance_id or "")) is not None:
            self._launches.labels(instance.provider, instance.market).inc()

    def _ready(self, event: Event) -> None:
        if (instance := self._instances.get(event.instance_id or "")) is not None:
            instance.is_ready = True
            self._launch_s.labels(instance.provider, instance.type).observe(_number(event.fields.get("boot_s"), 0.0))

    def _notice(self, event: Event) -> None:
        self._preempted(self._instances.get(event.instance_id or ""))

    def _instance_state(self, event: Event) -> None:
        if event.fields.get("code") == "never_registered":
            self._launch_failed(self._instances.get(event.instance_id or ""), "never_registered")

    def _terminated(self, event: Event) -> None:
        instance, code = self._instances.pop(event.instance_id or "", None), str(event.fields.get("code"))
        if code == "preempted":
            self._preempted(instance)
        elif code in CAUSES:
            self._launch_failed(instance, code)
        elif code == "gone" and instance is not None and not instance.is_ready:
            self._launch_failed(instance, "never_registered")

    def _provider_trouble(self, event: Event) -> None:
        error = str(event.fields.get("error")).lower()
        if event.fields.get("call") == "launch":
            cause = CAUSES.get(error, error)
            self._launch_failures.labels(str(event.fields.get("provider", "")), cause).inc()

    def _launch_failed(self, instance: _LiveInstance | None, code: str) -> None:
        """Count a launch that ended without a usable instance, once."""
        if instance is not None and not instance.has_failed:
            instance.has_failed = True
            self._launch_failures.labels(instance.provider, CAUSES[code]).inc()

    def _preempted(self, instance: _LiveInstance | None) -> None:
        """Count a preemption once, at its notice or its end."""
        if instance is not None and not instance.is_preempted:
            instance.is_preempted = True
            self._preemptions.labels(instance.provider).inc()


_HANDLERS: Mapping[EventKind, Callable[[Telemetry, Event], None]] = {
    EventKind.JOB_SUBMITTED: Telemetry._submitted,
    EventKind.JOB_STATE: Telemetry._job_state,
    EventKind.UNIT_STARTED: Telemetry._unit_started,
    EventKind.TARGET_MISSED: Telemetry._target_missed,
    EventKind.JOB_FINISHED: Telemetry._job_finished,
    EventKind.INSTANCE_REQUESTED: Telemetry._requested,
    EventKind.INSTANCE_LAUNCHED: Telemetry._launched,
    EventKind.INSTANCE_READY: Telemetry._ready,
    EventKind.INSTANCE_NOTICE: Telemetry._notice,
    EventKind.INSTANCE_STATE: Telemetry._instance_state,
    EventKind.INSTANCE_TERMINATED: Telemetry._terminated,
    EventKind.PROVIDER_TROUBLE: Telemetry._provider_trouble,
}


def _class_of(target_kind: object, tags: Mapping[str, object]) -> str:
    return PROFILING if PROFILE_TAG in tags else str(target_kind)


def _tags(fields: Mapping[str, Any]) -> Mapping[str, object]:
    tags = fields.get("tags")
    return tags if isinstance(tags, Mapping) else {}


def _number(value: object, default: float) -> float:
    return float(value) if isinstance(value, (int, float)) else default
