"""Measure how hard a subject presses on a resource: the mirror of what it tolerates (Paragon §2.2, Dissertation §5.4).

Instead of the subject, a small probe of the resource next to it is observed (``victims``). Effects are about linear in
intensity. The probe's loss next to the subject, divided by its loss next to the source at full intensity in the
subject's place, is therefore the intensity at which the source would press as hard. Capacities need no probe: the
amount the subject holds is compared with that of the full source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from hcloud.core.errors import HCloudError, Unmeasurable
from hcloud.core.estimates import Reading
from hcloud.profiler.colocation import PlacedSource, SourceSwitch, switchable
from hcloud.profiler.probe import TARGETS, read_line, send_line, victim
from hcloud.profiler.repeats import Interval, enough, interval
from hcloud.profiler.scratch import scratch
from hcloud.profiler.sources import InterferenceSource
from hcloud.profiler.subject import Stage
from hcloud.profiler.tuning import FULL

PROBE_S = 0.3
PROBE_MEMORY_MIB, PROBE_NEEDS_MIB = 256, 128
ANSWER_PATIENCE_S = 20.0
SETTLE_S = 0.05
FELT_LOSS = 0.03
"""A probe that loses less next to the source at full intensity cannot measure pressure on it."""
TIGHT_LOSS = 0.03
HOLDING_LOOKS = 3


def caused(
    stage: Stage, placed: PlacedSource, vcpus: float, within_s: float, gathered: tuple[list[float], list[float]]
) -> Reading:
    """Return the source's intensity (0..100) that exerts the same pressure as the subject. Raises Unmeasurable.

    ``gathered``: the losses beside the subject and beside the source so far, to which more are added.
    """
    source = placed.source
    if source.full_mib is not None:
        found = _holding(stage, source, vcpus)
    elif source.name not in TARGETS:
        raise Unmeasurable(f"{source.name}: there is no probe for it, so the pressure caused cannot be measured")
    else:
        found = _compared(stage, placed, vcpus, within_s, gathered)
    low, value, high = (min(FULL, max(0.0, each)) for each in (found.low, found.value, found.high))
    return Reading(question="caused", column=source.name, value=value, low=low, high=high, runs=found.runs)


def _holding(stage: Stage, source: InterferenceSource, vcpus: float) -> Interval:
    assert source.full_mib is not None
    held = []
    for _ in range(HOLDING_LOOKS):
        live = stage.play(vcpus)
        stage.attend(PROBE_S)
        live = stage.play(vcpus)
        held.append(live.use().memory_mib if source.meter == "memory_mib" else live.output_mib())
    return interval([FULL * each / source.full_mib for each in held])


def _compared(
    stage: Stage, placed: PlacedSource, vcpus: float, within_s: float, gathered: tuple[list[float], list[float]]
) -> Interval:
    kind, began = TARGETS[placed.source.name], time.monotonic()
    beside, pressed = gathered
    cpus, intensity = _in_place(stage, placed, vcpus)
    stage.play(vcpus)
    # The source runs in the subject's place, at the same distance from the probe.
    with (
        _Probe(stage, kind, placed.cpus[-1]) as probe,
        switchable(stage, placed, stage.in_its_place(placed.highest), cpus) as presses,
        SourceSwitch(
            {
                "alone": stage.paused,
                "beside": lambda: _playing(stage, vcpus),
                "pressed": lambda: _pressed(stage, presses),
            }
        ) as switch,
    ):
        order = ["alone", "beside", "pressed"]
        while not beside or not (enough(beside, TIGHT_LOSS) and enough(pressed, TIGHT_LOSS)):
            round_at = time.monotonic()
            try:
                rates = {way: _probed(stage, switch, way, probe) for way in order}
            except Unmeasurable:
                if beside and stage.left_s() <= 0:
                    break
                raise
            order.reverse()
            pressed.append(1 - rates["pressed"] / rates["alone"])
            beside.append(1 - rates["beside"] / rates["alone"])
            now = time.monotonic()
            if now - began + (now - round_at) / 2 >= within_s:
                break
    return _ratio(interval(beside), interval(pressed), placed, intensity)


def _probed(stage: Stage, switch: SourceSwitch, way: str, probe: _Probe) -> float:
    if switch.to(way):
        stage.attend(SETTLE_S)
    return probe.rate()


def _in_place(stage: Stage, placed: PlacedSource, vcpus: float) -> tuple[tuple[int, ...], float]:
    """Return the subject's CPUs that the source takes in its place, and the intensity (0..100) it exerts there.

    At intensity 100 a source keeps all its CPUs busy; the subject's are perhaps only some of so many.
    """
    cpus = stage.cpus_of(vcpus)[: len(placed.cpus)]
    return cpus, stage.in_its_place(placed.highest) * len(cpus) / len(placed.cpus)


def _ratio(beside: Interval, pressed: Interval, placed: PlacedSource, intensity: float) -> Interval:
    """Divide two losses, that beside the source at ``intensity``; the limits combine the worst limits of both."""
    if pressed.value < FELT_LOSS:
        raise Unmeasurable(
            f"{placed.source.name}: even at {intensity:.3g} % the probe does not feel it, so the pressure caused "
            "cannot be measured"
        )
    least, most = (max(FELT_LOSS, each) for each in (pressed.low, pressed.high))
    corners = [intensity * loss / whole for loss in (beside.low, beside.high) for whole in (least, most)]
    value = intensity * beside.value / pressed.value
    return Interval(value=value, low=min(*corners, value), high=max(*corners, value), runs=beside.runs)


@contextmanager
def _playing(stage: Stage, vcpus: float) -> Iterator[None]:
    stage.play(vcpus)
    yield


@contextmanager
def _pressed(stage: Stage, presses: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    with stage.paused(), presses():
        yield


class _Probe:
    """A running victim, queried while the subject is attended to."""

    def __init__(self, stage: Stage, kind: str, cpu: int) -> None:
        self._stage, self._kind, self._cpu = stage, kind, cpu
        self._stack = ExitStack()

    def __enter__(self) -> _Probe:
        host = self._stage.host
        held = self._stage.held_mib()
        if host.memory_mib - held < PROBE_NEEDS_MIB:
            raise Unmeasurable(f"the {held:.0f} MiB of the program leave no memory for a probe on this machine")
        try:
            place = self._stack.enter_context(scratch("probe", host.directory))
            bounded = host.own_group(vcpus=1.0, memory_mib=PROBE_MEMORY_MIB, pids=16, cpus=(self._cpu,))
            group = self._stack.enter_context(bounded)
            self._process = self._stack.enter_context(
                victim(host, self._kind, self._cpu, place, group, self._stage.enter_network())
            )
        except (HCloudError, OSError) as error:
            self._stack.close()
            raise Unmeasurable(f"the probe could not be started: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def rate(self) -> float:
        """Return its operations per second over a short period. Raises Unmeasurable."""
        assert self._process.stdout is not None
        send_line(self._process, f"{PROBE_S}\n")
        if not self._stage.attend(PROBE_S + ANSWER_PATIENCE_S, self._process.stdout.fileno()):
            raise Unmeasurable(f"the {self._kind} probe gave no answer within {ANSWER_PATIENCE_S:g} s")
        try:
            return float(read_line(self._kind, self._process))
        except (HCloudError, ValueError) as error:
            raise Unmeasurable(f"the {self._kind} probe failed: {error}") from error
