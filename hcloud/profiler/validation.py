"""Check iBench's claims about its sources here (Dissertation §5.3): linear pressure, felt, little spill-over.

Every victim runs alone before and after it runs next to a source, so that slow drifts of a shared machine cancel out.
The median of the repeats counts. Results are coarse classes, and say so where noise decides.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hcloud.profiler import victims
from hcloud.profiler.host import ControlGroup, ProfilingHost
from hcloud.profiler.namespaces import loopback_network
from hcloud.profiler.probe import TARGETS, query, victim
from hcloud.profiler.sources import InterferenceSource, RunningSource, start

INTENSITIES = (25, 50, 100)
SETTLE_S, PRESSURE_S, LOAD_CHANGE_S = 0.2, 0.4, 0.3
VICTIM_S_MIN = 0.05
ALIKE = 0.15  # slowdowns closer than this are indistinguishable
FELT = 1.15
STARVED_CPUS = 0.75  # of each CPU; below this at full intensity, other work used it
BUSY_LOAD = 0.5  # runnable processes of other work before the start
METER_UNITS = {
    "cpu_s": "CPUs",
    "memory_mib": "MiB",
    "held_mib": "MiB",
    "written_mib": "MiB/s",
    "network_mib": "MiB/s",
}
_HOLDINGS = ("memory_mib", "held_mib")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceValidation:
    """The results for one source."""

    source: InterferenceSource
    shares_core: bool
    pressure: Mapping[int, float]
    """Meter reading by intensity."""
    slowdown: Mapping[str, Mapping[int, float]]
    """By victim, then by intensity (1: none)."""
    cpus: int = 1
    """CPUs it runs on: all but the victim's, or the victim's."""

    @property
    def linearity(self) -> str:
        """How pressure follows intensity: linear, rising, saturates, unclear, or starved (of CPU by other work)."""
        full = self.pressure[100]
        if full <= 0:
            return "unclear"
        quarter, half = self.pressure[25] / full, self.pressure[50] / full
        if 0.1 <= quarter <= 0.45 and 0.3 <= half <= 0.75:
            return "linear"
        if self.source.meter == "cpu_s" and full < STARVED_CPUS * self.cpus:
            return "starved"
        if half > 1.15 or quarter > 1.15 * half:
            return "unclear"
        return "saturates" if half > 0.85 else "rising"

    @property
    def target_slowdown(self) -> float | None:
        """Slowdown at full intensity of the victim that uses its resource; None if there is no such victim here."""
        by = self.slowdown.get(TARGETS.get(self.source.name, ""))
        return by[100] if by else None

    @property
    def spill_over(self) -> float:
        """The largest slowdown among victims of other resources."""
        target = TARGETS.get(self.source.name)
        return max((by[100] for name, by in self.slowdown.items() if name != target), default=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The results for all sources."""

    measured: tuple[SourceValidation, ...]
    noise: Mapping[str, float]
    """By victim, the median difference between two isolated runs, as a fraction."""
    repeats: int
    victim_s: float
    lacks: tuple[str, ...]
    """What could not be measured here, in sentences."""

    @property
    def not_felt(self) -> tuple[str, ...]:
        """Names of sources that slow no victim here by more than its noise and 15 %."""
        return tuple(each.source.name for each in self.measured if not self._felt(each))

    def _felt(self, each: SourceValidation) -> bool:
        return any(by[100] > max(FELT, 1 + 2 * self.noise[name]) for name, by in each.slowdown.items())

    @property
    def indistinguishable(self) -> tuple[tuple[str, ...], ...]:
        """Groups of sources that affect every victim alike, within 15 % or twice the noise."""
        groups: list[list[SourceValidation]] = []
        for each in self.measured:
            home = next((group for group in groups if all(self._alike(each, other) for other in group)), None)
            if home is None:
                groups.append([each])
            else:
                home.append(each)
        return tuple(tuple(each.source.name for each in group) for group in groups if len(group) > 1)

    def _alike(self, one: SourceValidation, other: SourceValidation) -> bool:
        return all(
            abs(one.slowdown[name][100] / other.slowdown[name][100] - 1) <= max(ALIKE, 2 * self.noise[name])
            for name in one.slowdown
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """The running victims, and where sources run."""

    cpu: int
    other_cpus: tuple[int, ...]
    """All but the victims'; theirs where there is no other."""
    victim_s: float
    directory: Path
    group: ControlGroup | None
    enter_network: Callable[[], None] | None
    running: Mapping[str, subprocess.Popen[str]]
    host: ProfilingHost

    def cpus_of(self, source: InterferenceSource) -> tuple[int, ...]:
        """Return the CPUs on which a source runs."""
        return self.other_cpus if source.cross_core else (self.cpu,)

    def rates(self) -> dict[str, float]:
        """Run each victim once, one after the other; return operations per second."""
        return {kind: self._rate(kind, process) for kind, process in self.running.items()}

    def _rate(self, kind: str, process: subprocess.Popen[str]) -> float:
        return float(query(kind, process, f"{self.victim_s:.3f}\n"))


@contextmanager
def _bench(host: ProfilingHost, victim_s: float) -> Iterator[_Bench]:
    usable = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hcloud-victims-")))
        group = stack.enter_context(host.own_group(vcpus=1.0, memory_mib=512, pids=64, cpus=(usable[0],)))
        enter = stack.enter_context(loopback_network(host))
        kinds = [kind for kind in victims.KINDS if kind != "network" or enter is not None]
        yield _Bench(
            cpu=usable[0],
            other_cpus=tuple(usable[1:]) or (usable[0],),
            victim_s=victim_s,
            directory=directory,
            group=group,
            enter_network=enter,
            host=host,
            running={
                kind: stack.enter_context(
                    victim(host, kind, usable[0], directory, group, enter if kind == "network" else None)
                )
                for kind in kinds
            },
        )


def steps(sources: Sequence[InterferenceSource], repeats: int) -> int:
    """Return how many times ``validate`` reports progress."""
    return len(sources) * repeats


def validate(
    sources: Sequence[InterferenceSource],
    *,
    seconds: float,
    repeats: int,
    host: ProfilingHost,
    advance: Callable[[str], None],
) -> Validation:
    """Measure sources within about ``seconds`` in total; ``advance`` receives the name of each source as it begins.

    Raises UnitRefused if stress-ng is not installed or a victim cannot run.
    """
    share_s = seconds / steps(sources, repeats) - len(INTENSITIES) * (SETTLE_S + PRESSURE_S + LOAD_CHANGE_S)
    victim_s = max(VICTIM_S_MIN, share_s / ((len(INTENSITIES) + 2) * len(victims.KINDS)))
    busy = os.getloadavg()[0]
    with _bench(host, victim_s) as bench:
        trials = list(_trials(bench, sources, repeats, advance))
    return Validation(
        measured=tuple(_summary(source, trials, bench) for source in sources),
        noise={kind: statistics.median(abs(trial.drift[kind]) for trial in trials) for kind in bench.running},
        repeats=repeats,
        victim_s=victim_s,
        lacks=tuple(_lacks(bench, busy)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One measurement of a source: pressure and slowdown by intensity, and the difference of the two isolated runs."""

    source: InterferenceSource
    pressure: Mapping[int, float]
    slowdown: Mapping[int, Mapping[str, float]]
    drift: Mapping[str, float]


def _trials(
    bench: _Bench, sources: Sequence[InterferenceSource], repeats: int, advance: Callable[[str], None]
) -> Iterator[_Trial]:
    for _ in range(repeats):
        for source in sources:
            advance(source.name)
            yield _trial(bench, source)


def _trial(bench: _Bench, source: InterferenceSource) -> _Trial:
    before = bench.rates()
    pressure, beside = {}, {}
    for intensity in INTENSITIES:
        pressure[intensity], beside[intensity] = _beside(bench, source, intensity)
    after = bench.rates()
    alone = {kind: (before[kind] + after[kind]) / 2 for kind in before}
    return _Trial(
        source=source,
        pressure=pressure,
        slowdown={at: {kind: alone[kind] / rate for kind, rate in rates.items()} for at, rates in beside.items()},
        drift={kind: after[kind] / before[kind] - 1 for kind in before},
    )


def _beside(bench: _Bench, source: InterferenceSource, intensity: int) -> tuple[float, dict[str, float]]:
    most_s = 10 + len(victims.KINDS) * (bench.victim_s + 1)
    # Without control groups only full intensity is available, so it is measured at every step.
    reachable = intensity if bench.group is not None or source.full_mib is not None else 100
    with start(
        source,
        reachable,
        bench.cpus_of(source),
        host=bench.host,
        max_s=most_s,
        directory=bench.directory,
        enter=bench.enter_network,
    ) as load:
        time.sleep(SETTLE_S)
        return _pressure(load, source), bench.rates()


def _pressure(load: RunningSource, source: InterferenceSource) -> float:
    """Return a source's meter: a rate over a short period, or the maximum held in it."""
    first, began = getattr(load.used(), source.meter), time.monotonic()
    if source.meter not in _HOLDINGS:
        time.sleep(PRESSURE_S)
        return float((getattr(load.used(), source.meter) - first) / (time.monotonic() - began))
    most = float(first)
    while time.monotonic() - began < PRESSURE_S:
        time.sleep(0.02)
        most = max(most, getattr(load.used(), source.meter))
    return most


def _summary(source: InterferenceSource, trials: Sequence[_Trial], bench: _Bench) -> SourceValidation:
    own = [trial for trial in trials if trial.source == source]
    return SourceValidation(
        source=source,
        shares_core=bench.cpu in bench.cpus_of(source),
        cpus=len(bench.cpus_of(source)),
        pressure={at: statistics.median(trial.pressure[at] for trial in own) for at in INTENSITIES},
        slowdown={
            kind: {at: statistics.median(trial.slowdown[at][kind] for trial in own) for at in INTENSITIES}
            for kind in bench.running
        },
    )


def _lacks(bench: _Bench, busy: float) -> Iterator[str]:
    if busy > BUSY_LOAD:
        yield f"the machine was busy with other work (load {busy:.1f}): these numbers are rough"
    if bench.group is None:
        yield "no writable control groups: CPU quotas cannot be set, so most sources were measured at full only"
    if bench.enter_network is None:
        yield "network namespaces are not permitted here: the network was not measured"
    if bench.cpu in bench.other_cpus:
        yield "there is only one CPU: every source shares it with its victim"
