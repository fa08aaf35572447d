"""Measure a program on one dedicated machine: its performance by size, and the interference it tolerates and causes.

``Bench`` answers single questions; ``measure`` performs a whole profiling run (Quasar §4.3, Paragon §2, iBench ch. 5).
Windows with and without a source alternate within seconds (A B, B A, A B ...), and only their ratio counts, so slow
drifts of a shared machine cancel out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

from hcloud.core.errors import NotFound, UnitRefused, Unmeasurable
from hcloud.core.estimates import MOST_KNEES, Findings, Measure, Reading, next_knee, per_rank
from hcloud.core.model import ProfileRequest
from hcloud.profiler.colocation import PlacedSource, SourceSwitch, place, switchable
from hcloud.profiler.first_look import FirstLook, first_look
from hcloud.profiler.host import ProfilingHost
from hcloud.profiler.pressure_caused import caused
from hcloud.profiler.repeats import RUNS_MAX, Interval, enough, interval
from hcloud.profiler.sources import InterferenceSource, source_named, stress_ng
from hcloud.profiler.steal import Kept, undisturbed
from hcloud.profiler.subject import Stage, Subject
from hcloud.profiler.tuning import FULL, INTENSITY_MIN, LOSS, NEAR, Loss, next_intensity, tolerated

__all__ = ["Bench", "Rate", "Subject", "measure"]

TIGHT_RATE = 0.05
"""A rate is repeated until its 95 % limits are within this fraction of it."""
TIGHT_KEPT = 0.02
"""Target half-width for the share of performance kept, since 5 % is the threshold of interest."""
POINT_RUNS = 5
"""Least number of repeats for a further intensity of a source."""
LIGHTER = 1 / 3
"""Part of the intensity that presses first on a running unit."""
SETTLE_S = 0.05
RATE_RUNS, TOLERATED_RUNS = 2.0, 4.0
"""Default time for one answer, in multiples of ``run_s``."""
NETWORK = "network-bandwidth"
WEIGHT_RATE, WEIGHT_TOLERATED, WEIGHT_CAUSED = 1.5, 3.0, 2.0
"""Weights by which the time of a run is divided among its questions."""

Repeats = tuple[list[float], list[float]]
"""Ratios of a question and what the host took away in each, or losses beside and pressed. They are gathered while a
bench lasts, so that a question asked again is answered from all of them."""
_Question = tuple[float, Callable[[float], None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Performance per second with its 95 % limits."""

    value: float
    low: float
    high: float
    runs: int
    measure: Measure
    use: tuple[float, ...]
    """vCPUs busy, MiB held, MiB read and written per second."""


class Bench:
    """Measures one subject on this machine. Use it as a context manager, so that no process is left behind."""

    def __init__(
        self, subject: Subject, host: ProfilingHost, *, run_s: float, deadline_s: float, stage: Stage | None = None
    ) -> None:
        """Prepare a bench; nothing runs yet.

        ``run_s``: how long a copy is observed before it counts as long-running. ``deadline_s``: time for all questions
        together, counted from now. ``stage``: where a running unit is measured; None: copies are. ``notes`` collects
        remarks for readers of the results, in whole sentences.
        """
        self.host, self.notes = host, list[str]()
        self._began = time.monotonic()
        self._stage = stage or Stage(subject, host, run_s=run_s, deadline=time.monotonic() + deadline_s)
        self._look: FirstLook | None = None
        self._alone: dict[float, Rate] = {}
        self._gathered: dict[tuple[str, str, float, float], Repeats] = {}
        self._worst = Kept(values=(), discarded=0, taken=0.0)

    def __enter__(self) -> Bench:
        """Return the bench; nothing runs before the first question."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop running copies."""
        self.close()

    @property
    def measure(self) -> Measure | None:
        """How performance is measured; None before the first look."""
        return None if self._look is None else self._look.measure

    @property
    def spent_s(self) -> float:
        """Seconds since the bench was prepared."""
        return time.monotonic() - self._began

    def close(self) -> None:
        """Stop running copies."""
        self._stage.close()

    def look(self, vcpus: float) -> FirstLook:
        """Run it once, for at most ``run_s``, and return how it is measured; cached. Raises Unmeasurable."""
        if self._look is None:
            self._look = first_look(self._stage, vcpus)
            for note in (*self._stage.lacks, *self._look.notes):
                self.note(note)
        return self._look

    def note(self, sentence: str) -> None:
        """Record a sentence once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    # -------------------------------------------------------------------------------------------------------- answers
    def rate(
        self, vcpus: float, beside: tuple[InterferenceSource, float] | None = None, *, within_s: float | None = None
    ) -> Rate:
        """Return performance at a size, alone or with a source at an intensity.

        Raises Unmeasurable if there is no result or the time is over; the message says which.
        """
        if beside is not None:
            alone, kept = self.rate(vcpus, within_s=within_s), self.kept(*beside, vcpus, within_s=within_s)
            low, value, high = (each * alone.value for each in (kept.low, kept.value, kept.high))
            return replace(alone, value=value, low=max(0.0, low), high=high, runs=kept.runs)
        if vcpus not in self._alone:
            self._alone[vcpus] = self._rate_alone(vcpus, self._within(within_s, RATE_RUNS))
        return self._alone[vcpus]

    def _rate_alone(self, vcpus: float, within_s: float) -> Rate:
        began, look, values, taken = time.monotonic(), self.look(vcpus), list[float](), list[float]()
        used = list[tuple[float, ...]]()
        while not values or not _enough(values, taken, relative=TIGHT_RATE):
            try:
                values.append(self._stage.sample(look.measure, vcpus))
                taken.append(self._stage.taken)
                used.append(self._stage.use)
            except Unmeasurable:
                if not values or self._stage.left_s() > 0:
                    raise
                break
            if time.monotonic() - began >= within_s:
                break
        found = self._noted(undisturbed(values, taken)).widened(both=False)
        return Rate(
            value=found.value,
            low=max(0.0, found.low),
            high=found.high,
            runs=found.runs,
            measure=look.measure,
            # The median ignores a window in which the host took the CPU away.
            use=tuple(statistics.median(each) for each in zip(*used, strict=False)),
        )

    def kept(
        self, source: InterferenceSource, intensity: float, vcpus: float, *, within_s: float | None = None
    ) -> Interval:
        """Return the share of performance (1: all) it keeps with a source. Raises Unmeasurable."""
        return self._kept(self._placed(source, vcpus), intensity, vcpus, self._within(within_s, RATE_RUNS))

    def _kept(self, placed: PlacedSource, intensity: float, vcpus: float, within_s: float) -> Interval:
        measure = self.look(vcpus).measure
        ratios, taken = self._gathered.setdefault(("kept", placed.source.name, intensity, vcpus), ([], []))
        began = time.monotonic()
        with self._switch(placed, intensity) as switch:
            while not ratios or not _enough(ratios, taken, absolute=TIGHT_KEPT):
                round_at, order = time.monotonic(), ("alone", "beside") if len(ratios) % 2 == 0 else ("beside", "alone")
                found, worst = dict[str, float](), 0.0
                try:
                    for way in order:
                        found[way] = self._window(switch, way, measure, vcpus)
                        worst = max(worst, self._stage.taken)
                except Unmeasurable:
                    if ratios and self._stage.left_s() <= 0:
                        break
                    raise
                ratios.append(found["beside"] / found["alone"])
                taken.append(worst)
                now = time.monotonic()
                if now - began + (now - round_at) / 2 >= within_s:
                    break
        return self._noted(undisturbed(ratios, taken)).widened(both=True)

    @contextmanager
    def _switch(self, placed: PlacedSource, intensity: float) -> Iterator[SourceSwitch]:
        with (
            switchable(self._stage, placed, intensity) as presses,
            SourceSwitch({"alone": nullcontext, "beside": presses}) as switch,
        ):
            yield switch

    def _noted(self, kept: Kept) -> Kept:
        """Note what the host took away; of several measurements the worst."""
        if kept.note is not None and kept.taken >= self._worst.taken:
            if self._worst.note in self.notes:
                self.notes.remove(self._worst.note)
            self.note(kept.note)
            self._worst = kept
        return kept

    def _window(self, switch: SourceSwitch, way: str, measure: Measure, vcpus: float) -> float:
        if switch.to(way) and measure is not Measure.COMPLETION:
            self._stage.attend(SETTLE_S)
        return self._stage.sample(measure, vcpus)

    def tolerated(self, source: InterferenceSource, vcpus: float, *, within_s: float | None = None) -> Reading:
        """Return the intensity at which performance is 5 % below isolated; 100 if never. Raises Unmeasurable.

        Asked again, it adds repeats to those gathered before.
        """
        within_s = self._within(within_s, TOLERATED_RUNS)
        if source.name == NETWORK and (found := self._without_network("tolerated", FULL)) is not None:
            return found
        placed = self._placed(source, vcpus)
        until, points, run_s = time.monotonic() + within_s, list[Loss](), 0.0
        short_s = 3 * POINT_RUNS * 2 * self._stage.window_s
        while (wanted := next_intensity(points, placed.highest)) is not None:
            at = self._gathered_near(source, wanted, vcpus)
            left_s = until - time.monotonic()
            # A point of few repeats leaves more doubt than the straight line from the first one.
            if points and (left_s < POINT_RUNS * run_s or not self._tunable(source)):
                break
            began = time.monotonic()
            try:
                kept = self._kept(placed, at, vcpus, left_s if left_s < short_s else left_s / 1.5)
            except Unmeasurable:
                if not points:
                    raise
                break
            run_s = (time.monotonic() - began) / kept.runs
            lost = Interval(value=1 - kept.value, low=1 - kept.high, high=1 - kept.low, runs=kept.runs)
            points.append(Loss(intensity=at, loss=lost))
        at_five = tolerated(points)
        value, low, high, runs = at_five.value, at_five.low, at_five.high, at_five.runs
        return Reading(question="tolerated", column=source.name, value=value, low=low, high=high, runs=runs)

    def tolerated_up_to(self, most: float, source: InterferenceSource, vcpus: float, *, within_s: float) -> Reading:
        """Return the intensity at which performance is 5 % below isolated, pressing no harder than ``most``, and less
        hard before. If ``most`` costs less than that, the result is ``most`` or more. Raises Unmeasurable.
        """
        placed, points = self._placed(source, vcpus), list[Loss]()
        at = max(INTENSITY_MIN, min(most, placed.highest))
        for intensity in (at * LIGHTER, at):
            kept = self._kept(placed, intensity, vcpus, within_s / 2)
            lost = Interval(value=1 - kept.value, low=1 - kept.high, high=1 - kept.low, runs=kept.runs)
            points.append(Loss(intensity=intensity, loss=lost))
            if lost.low > LOSS:
                break
        found = tolerated(points)
        return Reading(
            question="tolerated",
            column=source.name,
            value=found.value,
            low=found.low,
            high=found.high,
            runs=found.runs,
        )

    def caused(self, source: InterferenceSource, vcpus: float, *, within_s: float | None = None) -> Reading:
        """Return the intensity at which the source exerts the same pressure as the subject. Raises Unmeasurable."""
        self.look(vcpus)
        within_s = self._within(within_s, TOLERATED_RUNS)
        if source.name == NETWORK and (found := self._without_network("caused", 0.0)) is not None:
            return found
        # What it holds of a capacity is compared with what the source would hold.
        placed = self._placed(source, vcpus, generated=source.full_mib is None)
        gathered = self._gathered.setdefault(("caused", source.name, placed.highest, vcpus), ([], []))
        return caused(self._stage, placed, vcpus, within_s, gathered)

    def _gathered_near(self, source: InterferenceSource, intensity: float, vcpus: float) -> float:
        """Return an intensity near ``intensity`` of which repeats were gathered before, or ``intensity`` itself."""
        known = (at for what, name, at, size in self._gathered if (what, name, size) == ("kept", source.name, vcpus))
        near = [at for at in known if abs(at - intensity) <= max(INTENSITY_MIN, NEAR * intensity)]
        return min(near, key=lambda at: abs(at - intensity), default=intensity)

    def _without_network(self, question: str, value: float) -> Reading | None:
        """Return the answer for a subject without a network; None for others. Raises Unmeasurable."""
        if self._stage.subject.network:
            if self._stage.enter_network() is None:
                raise Unmeasurable("network namespaces are not permitted here, so network bandwidth was not measured")
            self.note("its network was a loopback of its own: what it sends to other machines was not measured")
            return None
        self.note("it has no network: it tolerates any network load, and causes none")
        return Reading(question=question, column=NETWORK, value=value, low=value, high=value)

    def _placed(self, source: InterferenceSource, vcpus: float, *, generated: bool = True) -> PlacedSource:
        try:
            if generated:
                stress_ng()
        except UnitRefused as error:
            raise Unmeasurable(str(error)) from error
        placed = place(self._stage, source, vcpus)
        for sentence in placed.notes:
            self.note(sentence)
        return placed

    def _tunable(self, source: InterferenceSource) -> bool:
        if source.full_mib is None and not self._stage.bounded:
            self.note("without control groups sources are on or off: tolerance is extrapolated from full intensity")
            return False
        return True

    def _within(self, within_s: float | None, runs: float) -> float:
        wanted = runs * self._stage.run_s if within_s is None else within_s
        return max(0.0, min(wanted, self._stage.left_s()))


def _enough(values: Sequence[float], taken: Sequence[float], *, absolute: float = 0.0, relative: float = 0.0) -> bool:
    """Return whether to stop repeating: only windows in which the host took nothing away count, up to twice as many."""
    kept = undisturbed(values, taken)
    if kept.taken and len(values) < 2 * RUNS_MAX:
        return False
    return enough(kept.values, absolute + relative * interval(kept.values).value)


def measure(
    request: ProfileRequest,
    subject: Subject,
    host: ProfilingHost,
    *,
    report: Callable[[Findings], None] = lambda _: None,
) -> Findings:
    """Perform a profiling run as far as its time allows; ``report`` receives interim findings after each step.

    Never raises for failures of the subject or the machine: the findings contain the available readings, and notes in
    whole sentences.
    """
    warm = replace(subject, warm_up_s=max(subject.warm_up_s, request.warm_up_s))
    with Bench(warm, host, run_s=request.run_s, deadline_s=request.total_s) as bench:
        run = _ProfilingRun(request, bench, report)
        try:
            run.answer_all()
        except OSError as error:
            run.missed(f"this machine failed: {error}")
    return run.findings()


class _ProfilingRun:
    """One profiling run: its questions in order of importance, each with its share of the remaining time."""

    def __init__(self, request: ProfileRequest, bench: Bench, report: Callable[[Findings], None]) -> None:
        self._request, self._bench, self._report = request, bench, report
        self._began = time.monotonic()
        self._readings: list[Reading] = []
        self._first: Rate | None = None
        self._missed: list[str] = []

    def findings(self) -> Findings:
        """Return all results so far."""
        return Findings(
            measure=self._first.measure if self._first is not None else None,
            readings=tuple(self._readings),
            use=self._first.use if self._first is not None else (),
            duration_s=time.monotonic() - self._began,
            notes=(*self._bench.notes, *self._missed),
        )

    def missed(self, sentence: str) -> None:
        """Record once why something was not measured."""
        if sentence not in self._missed:
            self._missed.append(sentence)

    def answer_all(self) -> None:
        """Answer every requested question."""
        sizes = self._request.steps_vcpus[:1] if self._request.look else self._request.steps_vcpus
        questions: list[_Question] = [(WEIGHT_RATE, partial(self._size, size)) for size in sizes]
        if self._request.knees and not self._request.look:
            questions.append((WEIGHT_RATE * MOST_KNEES, self._knees))
        if not self._request.look:
            questions += self._about_neighbours()
        while questions and (self._first is not None or len(self._readings) == 0):
            left_s = self._began + self._request.total_s - time.monotonic()
            weight, ask = questions.pop(0)
            share_s = left_s * weight / (weight + sum(each for each, _ in questions))
            try:
                ask(self._request.run_s if self._request.look else share_s)
            except Unmeasurable as reason:
                self.missed(str(reason))
                if self._first is None:
                    return
            self._report(self.findings())

    def _size(self, vcpus: float, within_s: float) -> None:
        rate = self._bench.rate(vcpus, within_s=within_s)
        first, request = self._first is None, self._request
        self._first = self._first or rate
        if request.nodes > 1:
            together = 1.0 / per_rank(rate.measure, request.nodes)
            self._add("nodes", str(request.nodes), rate, together)
            return
        if first:
            self._add("type", request.type_column, rate)
            if len(request.steps_vcpus) > 1:
                self._add("nodes", "1", rate)
        self._add("step", f"{vcpus:g} vCPU", rate)

    def _knees(self, within_s: float) -> None:
        for _ in range(MOST_KNEES):
            steps = (each for each in self._readings if each.question == "step")
            at = next_knee({float(each.column.split()[0]): each.value for each in steps})
            if at is not None:
                self._size(at, within_s / MOST_KNEES)

    def _add(self, question: str, column: str, rate: Rate, times: float = 1.0) -> None:
        value, low, high = times * rate.value, times * rate.low, times * rate.high
        self._readings.append(
            Reading(question=question, column=column, value=value, low=low, high=high, runs=rate.runs)
        )

    def _about_neighbours(self) -> list[_Question]:
        size, questions = self._size_beside(), list[_Question]()
        for name in self._request.sources:
            try:
                source = source_named(name)
            except NotFound as error:
                self.missed(str(error))
                continue
            for weight, ask in ((WEIGHT_TOLERATED, self._bench.tolerated), (WEIGHT_CAUSED, self._bench.caused)):
                questions.append((weight, partial(self._neighbour, ask, source, size)))
        return questions

    def _neighbour(self, ask: Callable[..., Reading], source: InterferenceSource, size: float, within_s: float) -> None:
        if not self._bench.look(size).short:
            self._readings.append(ask(source, size, within_s=within_s))

    def _size_beside(self) -> float:
        """Return the requested size if it leaves a whole CPU to a neighbour.

        Otherwise the largest size that does, or the smallest.
        """
        room, steps = self._bench.host.vcpus - 1, self._request.steps_vcpus
        asked = steps[0]
        return asked if asked <= room else max((each for each in steps if each <= room), default=min(steps))
