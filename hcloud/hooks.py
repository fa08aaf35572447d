"""How a run is watched and measured: where progress, rate and latency are read, what a profiling run is to measure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressHook:
    """How a batch job's progress (0..1) is read: by the last line (number or ``done/total``) of a file."""

    file: str
    total: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsHook:
    """How a service's rate and latency are read, inside its own network: a URL (Prometheus text) or a probe command.

    A probe prints one JSON object ``{"requests_per_s": r, "latency_ms": {"50": .., "99": ..}}`` as its last line.
    """

    url: str | None = None
    probe: tuple[str, ...] | None = None
    every_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """What one profiling run measures on the one machine it has for itself (Quasar, Dissertation §4.3.2).

    ``job_id`` is who is profiled. ``type_column`` names the machine's type in the utility matrix; ``steps_vcpus`` are
    the scale-up settings to run at, first what it is for; ``sources`` the sources of interference that are tuned to the
    5 % point (tolerated) and measured beside it (caused); ``nodes`` the node count of this run. ``run_s`` ends each
    copy of the job, ``total_s`` the whole run; what is not measured by then stays unknown. ``warm_up_s`` passes before
    a stateful job is measured. ``look``: only one short run, to see whether a known program still behaves as known.
    ``knees``: also at the sizes between where it seems to stop growing (:func:`hcloud.known.next_knee`).
    """

    job_id: str
    type_column: str
    steps_vcpus: tuple[float, ...]
    sources: tuple[str, ...] = ()
    nodes: int = 1
    run_s: float = 5.0
    total_s: float = 60.0
    warm_up_s: float = 0.0
    look: bool = False
    knees: bool = False
