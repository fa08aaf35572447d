"""Identify the program a job runs, and turn measurements of it into a stored application.

A *program* is what a user starts, independent of its data: the commands of a shell line without arguments, the script
given to an interpreter, the container image. An *input* is everything else a run depends on: arguments, work directory,
set-up script, environment. A known program with a new input gets one short profiling run. If its measure and resource
use match, the known profile is reused, scaled by a constant factor.
"""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hcloud.classifier.library import WIDEST, Drift, MeasuredApplication, Question, half_width, use_per_vcpu
from hcloud.classifier.step_curve import conversion
from hcloud.core.errors import BadInput
from hcloud.core.estimates import APART, WHOLE_JOBS, Application, Estimate, Findings, Measure, Reading
from hcloud.core.model import JobSpec, ProfileRequest
from hcloud.core.rows import replace_fields

TRUSTED_INPUTS = 3
"""A program that behaved alike for this many inputs is not profiled again for a new one."""
MOST_INPUTS = 200
MOST_OWN_ROWS = 4
"""Rows that the own runs of one program may make: one for each group of inputs with which it behaves alike."""
BUSY_ROOM = 1.25
"""A program is expected to keep its performance with this many times the vCPUs it kept busy: it does not need them all
all the time."""
LEAST_VCPUS = 0.1
"""No program is expected to run well on less."""
MOST_RUNS = 12
FEED_WEIGHT = 0.3
"""Weight of a new measurement in a known cell. Jobs share machines, so single measurements are noisy."""
RUN_SPREAD, LEAST_SPREAD = 0.2, 0.05
"""``RUN_SPREAD``: 95 % deviation of one run from a job's usual performance; ``LEAST_SPREAD``: the least that many runs
leave (both natural logarithms)."""
TO_80 = 1.2815515655446004 / 1.959963984540054
"""Converts 95 % limits to 80 % limits."""
MOST_LOST = 0.9
"""No more of a job's performance than this is ever explained by its neighbours."""
NOTHING_LOST = Estimate(0.0, 0.0, 0.0)
"""A run without neighbours."""
SHARED_DOUBT = 0.5
"""Share of the doubt of what neighbours cost that no number of runs takes away: the same belief corrects all."""
STRAGGLES_BELOW = 0.5
"""A run below this share of the lower limit is treated as a straggler (Quasar, Dissertation §4.4), not as a wrong
estimate. It corrects nothing, unless a recent run also missed its estimate."""
PROGRAM_CHARS = 80
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_INTERPRETERS = re.compile(r"(python|pypy|perl|ruby|node|php|lua|tclsh|Rscript|octave|julia|java|awk|gawk|mawk)[\d.]*$")
_WRAPPERS = frozenset({"env", "nice", "nohup", "time", "exec", "stdbuf", "setsid", "ionice", "taskset", "timeout"})
_NO_PROGRAM = frozenset({"cd", "export", "set", "umask", "ulimit", "unset", "source", ".", "true", ":", "exit", "wait"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_JOINTS = frozenset({"|", "||", "&", "&&", ";", ";;", "(", ")", "|&"})
_OPTIONS_WITH_VALUE = frozenset({"-cp", "-classpath", "-W", "-X", "-I", "-n", "-u", "-k", "-s", "-f"})


SHELL_LINE_CHARS = 2000
"""Programs are looked for so far into a shell line: to take apart 128 KiB of signs takes a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The program and the input of a job."""

    program: str
    """User, programs and image, readable: ``user:program``."""
    input: str
    """Digest of everything else the run depends on."""

    @property
    def name(self) -> str:
        """Name of the application created for this program and input."""
        return f"{self.program}~{self.input[:8]}"


# ------------------------------------------------------------------------------------------------------------- identity
def identify(spec: JobSpec) -> Identity:
    """Return the program and input of a job."""
    # Of secrets only the names: a digest of a value could be guessed.
    environment = (*sorted(spec.env.items()), *[(name, "") for name in spec.secrets])
    workdir = spec.workdir_content_sha256 or spec.workdir_sha256
    inputs = tuple([(each.source, each.to) for each in spec.inputs])
    return _identify(spec.user, spec.image, spec.command, spec.setup, workdir, environment, inputs)


@lru_cache(maxsize=50_000)
def _identify(
    user: str,
    image: str | None,
    command: tuple[str, ...],
    setup: str | None,
    workdir_sha256: str | None,
    environment: tuple[tuple[str, str], ...],
    inputs: tuple[tuple[str, str], ...],
) -> Identity:
    words = programs_of(command) + ([image] if image else [])
    line = " ".join(words)
    readable = "".join(each if each.isprintable() else "?" for each in line)
    # Long names are cut; a digest of the full name keeps them unique.
    short = (
        readable
        if readable == line and len(line) <= PROGRAM_CHARS
        else f"{readable[:PROGRAM_CHARS]}.{_digest(line)[:8]}"
    )
    owner = "".join(each if each.isprintable() else "?" for each in user)
    parts = [command, setup, workdir_sha256, environment, user, image, *([inputs] if inputs else [])]
    return Identity(program=f"{owner}:{short}", input=_digest(parts))


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def programs_of(command: Sequence[str]) -> list[str]:
    """Return the programs a command starts, in order, without their arguments."""
    words = list(command)
    if len(words) >= 3 and posixpath.basename(words[0]) in _SHELLS and words[1] in ("-c", "-ec", "-lc", "-euc"):
        found = [each for simple in _simple_commands(words[2][:SHELL_LINE_CHARS]) if (each := _program(simple))]
        return found or [f"sh -c {_digest(words[2])[:8]}"]
    return [_program(words) or posixpath.basename(words[0]) or "?"] if words else ["?"]


def _simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a shell line, split at pipes, separators and parentheses."""
    lexer = shlex.shlex(line.replace("\n", " ; "), posix=True, punctuation_chars="|&;()")
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if word in _JOINTS or set(word) <= set("|&;()"):
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:  # an open quote: keep the commands before it
        pass
    yield words


def _program(words: Sequence[str]) -> str:
    """Return the program of one command: its name, plus script or module for an interpreter; "" if there is none."""
    left = list(words)
    while left and (_ASSIGNMENT.match(left[0]) or posixpath.basename(left[0]) in _WRAPPERS):
        wrapper = posixpath.basename(left.pop(0))
        while wrapper in _WRAPPERS and left and (left[0].startswith("-") or re.fullmatch(r"[\d.]+[smhd]?", left[0])):
            left.pop(0)
    if not left or left[0] in _NO_PROGRAM:
        return ""
    name = posixpath.basename(left[0]) or left[0]
    if _INTERPRETERS.fullmatch(name) or name in _SHELLS:
        return f"{name} {_script(left[1:])}".strip()
    return name


def _script(arguments: Sequence[str]) -> str:
    """Return what an interpreter runs: a file, ``-m module``, ``-jar file``, or a digest of inline code."""
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word in ("-m", "-jar") and left:
            return f"{word} {posixpath.basename(left[0])}"
        if word in ("-c", "-e", "-r", "--eval") and left:
            return f"{word} {_digest(left[0])[:8]}"
        if word in _OPTIONS_WITH_VALUE and left and word in ("-cp", "-classpath", "-W", "-X", "-I"):
            left.pop(0)
        elif not word.startswith("-"):
            return posixpath.normpath(word) if len(word) <= PROGRAM_CHARS else _digest(word)[:8]
    return ""


# ---------------------------------------------------------------------------------------------------------------- known
def known_as(identity: Identity, rows: Iterable[Application], *, own_runs: bool = False) -> Application | None:
    """Return the profiled application that a job can use without a new profiling run, or None.

    It must be of the same program, still valid (not drifted), and either known to behave alike for this input or
    trusted after ``TRUSTED_INPUTS`` inputs. With ``own_runs``, what only jobs' own runs have shown counts as well, but
    a profile is preferred.
    """
    ours = [row for row in rows if row.program == identity.program]
    profiled = _known_among(identity, [row for row in ours if is_profiled(row)])
    if profiled is not None or not own_runs:
        return profiled
    return _known_among(identity, [row for row in ours if row.profiled_at is None and has_own_runs(row)])


def _known_among(identity: Identity, ours: Sequence[Application]) -> Application | None:
    exact = [row for row in ours if identity.input in row.inputs]
    trusted = [row for row in ours if len(row.inputs) >= TRUSTED_INPUTS]
    return max(
        exact or (trusted if len(ours) == 1 else []), key=lambda row: (row.profiled_at or 0.0, row.name), default=None
    )


def is_profiled(row: Application) -> bool:
    """Return whether the application has a full profile that is still valid."""
    return row.profiled_at is not None and not Drift(missed=row.missed).drifted


def has_own_runs(row: Application) -> bool:
    """Return whether own runs of its jobs have shown the application's performance, and the estimates still hold."""
    return row.ended_runs > 0 and bool(row.cells.get(Question.TYPE)) and not Drift(missed=row.missed).drifted


def key_of(row: Application, identity: Identity) -> str:
    """Return the value of ``Job.application``: the row's name, with the input's digest if its scale differs."""
    scale = row.inputs.get(identity.input, 0.0)
    if scale and abs(scale - 1.0) <= 0.02:
        return row.name
    return f"{row.name}#{identity.input[:16]}"


def row_name(key: str) -> str:
    """Return the row's name contained in ``Job.application``."""
    return key.rpartition("#")[0] or key if "#" in key else key


def scale_of(row: Application, key: str) -> float:
    """Return the performance factor that ``key`` stands for; 0 means alike, but of unknown scale."""
    if key == row.name:
        return 1.0
    prefix = key.rpartition("#")[2]
    return next((scale for digest, scale in row.inputs.items() if digest.startswith(prefix)), 0.0)


# ------------------------------------------------------------------------------------------------------------- learning
def learn(
    row: Application | None, identity: Identity, request: ProfileRequest, findings: Findings, run: str, now: float
) -> Application:
    """Return the application updated with a profiling run's readings; a new reading of a cell replaces the old one.

    Performance by type is kept at one number of vCPUs, that of the latest base run (several sizes); readings at others
    are converted by the program's step curve. Readings of different measures are not comparable and never share a row:
    with a new measure, a base run or a short run resets the row, and readings of any other run are dropped.
    """
    row = row or Application(name=identity.name, program=identity.program)
    base = not request.look and len(request.steps_vcpus) > 1
    if not comparable(row, findings):
        if not base and not request.look:
            return replace(row, runs=(*row.runs, run)[-MOST_RUNS:])
        row = replace(row, measure=None, cells={}, spreads={}, inputs={}, use=(), reference_vcpus=0.0)
    usable = [reading for reading in findings.readings if _usable(reading.question, reading.value)]
    if row.type_column not in ("", request.type_column):  # one curve is of one machine
        if base:
            row = replace(row, cells=_without_steps(row.cells), spreads=_without_steps(row.spreads))
        else:
            usable = [reading for reading in usable if reading.question != Question.STEP]
    row = with_readings(row, [reading for reading in usable if reading.question != Question.TYPE])
    measured_vcpus = next(iter(request.steps_vcpus), 0.0)
    if base or not row.reference_vcpus:
        row = _at_vcpus(row, measured_vcpus)
    types = [reading for reading in usable if reading.question == Question.TYPE]
    row = with_readings(row, types, step_factor(row, measured_vcpus, row.reference_vcpus))
    measured = bool(findings.readings)
    return replace(
        row,
        measure=findings.measure or row.measure,
        use=(findings.use if base or request.look else row.use) or findings.use or row.use,
        inputs=_with_input(row.inputs, identity.input, 1.0) if measured else row.inputs,
        type_column=request.type_column if base or not row.type_column else row.type_column,
        profiled_at=now if base and measured else row.profiled_at,
        looked_at=now if request.look else row.looked_at,
        runs=(*row.runs, run)[-MOST_RUNS:],
        missed=() if base and measured else row.missed,
    )


def with_readings(row: Application, readings: Iterable[Reading], factor: float | None = 1.0) -> Application:
    """Return the row with the readings in place of its cells, each times ``factor``; unchanged if that is None.

    What was converted is no surer than the curve that converted it.
    """
    cells = {question: dict(columns) for question, columns in row.cells.items()}
    spreads = {question: dict(columns) for question, columns in row.spreads.items()}
    least = max(row.spreads.get(Question.STEP, {}).values(), default=0.0) if factor != 1.0 else 0.0
    for each in readings if factor is not None else ():
        cells.setdefault(each.question, {})[each.column] = each.value * (factor or 1.0)
        width = half_width(Question(each.question), each.value, each.low, each.high)
        spreads.setdefault(each.question, {})[each.column] = max(width, least)
    return replace(row, cells=cells, spreads=spreads)


def _without_steps(columns: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    return {question: row for question, row in columns.items() if question != Question.STEP}


def _at_vcpus(row: Application, vcpus: float) -> Application:
    """Return the row with performance by type at another number of vCPUs; types that cannot be converted are lost."""
    known, factor = row.cells.get(Question.TYPE, {}), step_factor(row, row.reference_vcpus, vcpus)
    if factor != 1.0 and known:
        types = {} if factor is None else {column: rate * factor for column, rate in known.items()}
        row = replace(row, cells={**row.cells, Question.TYPE.value: types})
    return replace(row, reference_vcpus=vcpus)


def step_factor(row: Application, measured_vcpus: float, wanted_vcpus: float) -> float | None:
    """Return the factor between performance at two numbers of vCPUs; 1 if one is not known, None without a curve."""
    if 0.0 in (measured_vcpus, wanted_vcpus):
        return 1.0
    return conversion(row.cells.get(Question.STEP, {}), measured_vcpus, wanted_vcpus)


def comparable(row: Application | None, findings: Findings) -> bool:
    """Return whether a run used the same performance measure as the row, or one of them has none."""
    return row is None or None in (row.measure, findings.measure) or row.measure is findings.measure


def alike(row: Application, request: ProfileRequest, findings: Findings) -> bool:
    """Return whether a short run of a program with a new input matches the known profile.

    The measure must be the same, and resource use within a factor of 1.35 (vCPUs), 2 (memory) or 3 (read and written).
    For measures that do not depend on the amount of work, performance must be within a factor of 2.
    """
    if not is_profiled(row) or row.measure is None or row.measure is not findings.measure:
        return False
    factor = _scale(row, request, findings)
    near = uses_alike(findings.use, row.use)
    return near and (row.measure in WHOLE_JOBS or factor == 0.0 or 0.5 <= factor <= 2.0)


def uses_alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two runs used resources alike: ``use`` as in :class:`Findings`; False if either is unknown."""
    if len(one) < 4 or len(other) < 4:
        return False
    reaches, least = (1.35, 2.0, 3.0, 3.0), (0.05, 16.0, 1.0, 1.0)
    return all(
        max(a, floor) <= reach * max(b, floor) and max(b, floor) <= reach * max(a, floor)
        for a, b, reach, floor in zip(one, other, reaches, least, strict=False)
    )


def recognise(
    row: Application, identity: Identity, request: ProfileRequest, findings: Findings, run: str
) -> Application:
    """Return the application with this input added, at the scale the short run measured."""
    scale = _scale(row, request, findings)
    return replace(row, inputs=_with_input(row.inputs, identity.input, scale), runs=(*row.runs, run)[-MOST_RUNS:])


def _scale(row: Application, request: ProfileRequest, findings: Findings) -> float:
    """Return the short run's performance divided by the known cells (geometric mean); 0 without a common cell."""
    pairs = []
    for reading in findings.readings:
        known = row.cells.get(reading.question, {}).get(reading.column)
        same_amount = reading.question != Question.TYPE or request.steps_vcpus[:1] == (row.reference_vcpus,)
        if (
            known
            and same_amount
            and Question(reading.question).scale is not Question.CAUSED.scale
            and reading.value > 0
        ):
            pairs.append(math.log(reading.value / known))
    return math.exp(sum(pairs) / len(pairs)) if pairs else 0.0


def _with_input(inputs: Mapping[str, float], digest: str, scale: float) -> dict[str, float]:
    kept = {each: factor for each, factor in inputs.items() if each != digest}
    while len(kept) >= MOST_INPUTS:
        del kept[next(iter(kept))]
    return {**kept, digest: scale}


def _usable(question: str, value: float) -> bool:
    try:
        scale = Question(question).scale
        scale.to_axis(value, question)
    except (ValueError, BadInput):
        return False
    return scale is Question.CAUSED.scale or (math.isfinite(value) and value > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """What a successful job showed of itself, without having been profiled."""

    measure: Measure
    type_column: str
    """``provider/type`` of its instance."""
    vcpus: float
    """What its rank 0 held."""
    performance: float
    """Work per second in the unit of ``measure``."""
    use: tuple[float, ...]
    """Resource use as in :class:`Findings`."""
    run_s: float
    lost: Estimate = NOTHING_LOST
    """Share of performance (0..1) that its neighbours are expected to have cost it, with 80 % limits."""


def learn_own_run(rows: Sequence[Application], identity: Identity, run: OwnRun) -> Application | None:
    """Return the row that a job's own run adds to, updated or new; None if it adds to none.

    ``rows`` are those of the job's program. A run with a known input corrects its row; one with a new input that uses
    resources like a row of own runs gives that row another input; any other makes a row, up to ``MOST_OWN_ROWS``. A run
    that left vCPUs unused also shows where the program stops scaling.
    """
    ours = [row for row in rows if row.program == identity.program and row.measure in (None, run.measure)]
    exact = next((row for row in ours if identity.input in row.inputs), None)
    if exact is not None:
        scale = exact.inputs[identity.input]
        if scale and run.vcpus == exact.reference_vcpus:
            exact = feed(exact, run.type_column, run.performance / scale, None, lost=run.lost)
        return ran(exact, run.run_s)
    own = [row for row in ours if row.profiled_at is None and row.ended_runs > 0]
    like = next((row for row in own if uses_alike(run.use, row.use)), None)
    if like is not None:
        known = like.cells.get(Question.TYPE, {}).get(run.type_column)
        scale = run.performance / known if known and run.vcpus == like.reference_vcpus else 0.0
        return ran(replace(like, inputs=_with_input(like.inputs, identity.input, scale)), run.run_s)
    named = next((row for row in rows if row.name == identity.name), None)
    if named is not None and named.cells:  # profiled by another measure, with which this run does not compare
        return ran(named, run.run_s)
    if len(own) >= MOST_OWN_ROWS or not _usable(Question.TYPE, run.performance):
        return None
    beside = _PerformanceAlone.of(run.performance, run.lost)
    alone, spread = beside.expected, beside.spread
    cells: dict[str, dict[str, float]] = {Question.TYPE: {run.type_column: alone}}
    spreads: dict[str, dict[str, float]] = {Question.TYPE: {run.type_column: spread}}
    enough = max(BUSY_ROOM * run.use[0], LEAST_VCPUS) if run.use else run.vcpus
    if APART * enough < run.vcpus:
        amounts = [f"{run.vcpus:g} vCPU", f"{enough:.2g} vCPU"]
        cells[Question.STEP] = dict.fromkeys(amounts, alone)
        spreads[Question.STEP] = dict.fromkeys(amounts, spread)
    row = replace(
        named or Application(name=identity.name, program=identity.program),
        inputs={identity.input: 1.0},
        measure=run.measure,
        cells=cells,
        spreads=spreads,
        use=run.use,
        type_column=run.type_column,
        reference_vcpus=run.vcpus,
    )
    return ran(row, run.run_s)


def feed(
    row: Application, type_column: str, measured: float, predicted: Estimate | None, *, lost: Estimate = NOTHING_LOST,
    best_before: float | None = None,
) -> Application:  # fmt: skip
    """Return the application updated with one measurement of a job that ran (feedback loop, Dissertation §4.3.2).

    ``measured``: performance on ``type_column`` at the reference amount and scale 1. ``lost``: share of performance
    (0..1) that neighbours are expected to have cost it. Alone it would have been between ``measured`` and what the most
    of that makes of it. An expectation beyond is corrected towards the nearer end; one in between towards the most
    likely value, by as much as the cell is less sure than that.
    ``predicted``: what was estimated; a first run on a type is averaged with it by their uncertainties.
    ``best_before``: the best earlier measurement of the same attempt; a straggler (``STRAGGLES_BELOW``) counts for
    drift only, and once.
    """
    missed, beside = row.missed, _PerformanceAlone.of(measured, lost)
    at_most = beside.at_most
    if predicted is not None:
        least = STRAGGLES_BELOW * predicted.low
        if best_before is not None and max(at_most, best_before) < least:
            return row
        nearest = min(max(measured, predicted.value), at_most)
        missed = Drift(missed=row.missed).seen(of_one_run(predicted), nearest).missed
        if at_most < least and not any(row.missed):
            return replace(row, missed=missed)
    question = Question.TYPE.value
    types, spread = dict(row.cells.get(question, {})), dict(row.spreads.get(question, {}))
    known, unsure, least_weight = types.get(type_column), spread.get(type_column, 0.0), FEED_WEIGHT
    if known is None and predicted is not None:
        # A confident prediction outweighs a single run.
        known, unsure, least_weight = predicted.value, _doubt_of(predicted), 0.0
    is_usable = _usable(question, measured)
    if is_usable and known is None:
        types[type_column], spread[type_column] = beside.expected, beside.spread
    elif is_usable and known is not None and (lost == NOTHING_LOST or not measured <= known <= at_most):
        # The less certain the cell, the higher the weight of a full run.
        weight = max(least_weight, unsure**2 / (unsure**2 + RUN_SPREAD**2))
        types[type_column] = known ** (1 - weight) * min(max(measured, known), at_most) ** weight
        spread[type_column] = _less_unsure(unsure, weight, beside)
    elif is_usable and type_column in types and known is not None:
        weight = unsure**2 / (unsure**2 + beside.spread**2)
        types[type_column] = known ** (1 - weight) * beside.expected**weight
        spread[type_column] = _less_unsure(unsure, weight, beside)
    cells, spreads = {**row.cells, question: types}, {**row.spreads, question: spread}
    return replace_fields(row, cells=cells, spreads=spreads, missed=missed)


@dataclass(frozen=True, slots=True)
class _PerformanceAlone:
    """What a run beside neighbours says of the performance alone."""

    expected: float
    at_most: float
    doubt: float
    """95 % half-width by the doubt of what the neighbours cost (natural logarithm)."""

    @classmethod
    def of(cls, measured: float, lost: Estimate) -> _PerformanceAlone:
        kept, most, least = (1.0 - min(max(each, 0.0), MOST_LOST) for each in (lost.value, lost.low, lost.high))
        return cls(measured / kept, measured / least, math.log(most / least) / 2.0 / TO_80)

    @property
    def spread(self) -> float:
        """95 % half-width of one such run (natural logarithm)."""
        return math.hypot(RUN_SPREAD, self.doubt)


def _less_unsure(unsure: float, weight: float, beside: _PerformanceAlone) -> float:
    """Return the spread of a cell of spread ``unsure`` after a run that counts with ``weight``."""
    least = max(LEAST_SPREAD, SHARED_DOUBT * beside.doubt)
    return min(unsure, max(least, unsure * math.sqrt(1.0 - weight)))


def of_one_run(usual: Estimate) -> Estimate:
    """Return an estimate of usual performance (above 0) with the limits of a single run, which varies around it."""
    low, high = max(usual.low, usual.value / WIDEST), min(max(usual.high, usual.value), usual.value * WIDEST)
    below = math.hypot(math.log(usual.value / low), RUN_SPREAD * TO_80)
    above = math.hypot(math.log(high / usual.value), RUN_SPREAD * TO_80)
    return usual._replace(low=usual.value * math.exp(-below), high=usual.value * math.exp(above))


def _doubt_of(predicted: Estimate) -> float:
    """Return the 95 % half-width of a prediction (natural logarithm), at least ``LEAST_SPREAD``."""
    low, high = max(predicted.low, predicted.value / WIDEST), min(predicted.high, predicted.value * WIDEST)
    return max(LEAST_SPREAD, math.log(max(high / predicted.value, predicted.value / low)) / TO_80)


def ran(row: Application, run_s: float) -> Application:
    """Return the application updated with the run time of one more successful job, in seconds."""
    known = row.run_s
    typical_s = run_s if known is None else known + FEED_WEIGHT * (run_s - known)
    return replace_fields(row, run_s=typical_s, ended_runs=row.ended_runs + 1)


def measured_of(row: Application) -> MeasuredApplication:
    """Return a stored row as the classifier's input."""
    use = {row.type_column: use_per_vcpu(row.use, row.reference_vcpus)} if row.use and row.type_column else {}
    return MeasuredApplication(
        name=row.name,
        program=row.program,
        cells={Question(question): dict(columns) for question, columns in row.cells.items()},
        spreads={Question(question): dict(columns) for question, columns in row.spreads.items()},
        use=use,
    )
