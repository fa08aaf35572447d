"""What a unit does on the fake engine: looked up in a table, or read from its command by a minimal shell."""

from __future__ import annotations

import math
import os.path
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol

from hcloud.core.task_runs import UnitTasks
from hcloud.fake_runner.tasks import TaskWork, end_of_task, task_spec
from hcloud.provider import SimulatedMachine, Stream, UnitSpec

SHELLS = {"sh", "/bin/sh", "bash", "/bin/bash"}
STATEMENT_END = re.compile(r"\s*(?:;|\n|&&)\s*")
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
UNKNOWN_PROGRAM_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one unit does at speed 1: alone on a machine of quality 1."""

    duration_s: float = 1.0
    """Amount of work: at half the speed it takes twice as long, unless ``timed``."""
    timed: bool = False
    """Whether its duration is fixed, whatever its speed."""
    exit_code: int = 0
    output: tuple[tuple[float, Stream, str], ...] = ()
    """(seconds after the start, stream, text)."""
    cpu_share: float = 0.8
    """Share of the unit's vCPUs that it keeps busy, of ``most_vcpus`` at most."""
    most_vcpus: float = math.inf
    """It makes no use of more."""
    memory_mib: float = 16.0
    progress_at: float | None = None
    """Constant content of its progress file; None: it grows evenly to 1."""
    requests_per_s: float | None = None
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    load: float = 0.0
    """Utilisation of a service at speed 1; latency grows as spare capacity shrinks."""
    promised_ms: float = math.inf
    """Latency up to which a service meets its target."""
    on_term: Literal["ends", "ignores"] | int = "ends"
    """Reaction to SIGTERM: it ``ends``, ``ignores`` it until it is killed, or exits with that code after its
    ``last_words``."""
    last_words: str = ""
    refusal: str = ""
    """Why it cannot be started."""
    tasks: tuple[TaskWork, ...] = ()
    """The tasks of a unit with many, whose work this is in sum."""


WorkOf = Callable[[UnitSpec], Work]


class Resident(NamedTuple):
    """A unit on a machine."""

    unit: UnitSpec
    work: Work
    done_s: float
    """How much of its work is done."""


class Surroundings(Protocol):
    """The speeds of co-located units; an extension point for simulators."""

    def speeds(
        self, machine: SimulatedMachine, residents: Sequence[Resident], now: float
    ) -> tuple[Sequence[float], float]:
        """Return each unit's speed from now on (above 0), and until when they hold if no unit starts or ends."""
        ...


def with_tasks(work: WorkOf) -> WorkOf:
    """Return ``work`` that knows units with many tasks as well: what they do one after the other."""

    def of(unit: UnitSpec) -> Work:
        return work(unit) if unit.tasks is None else _of_tasks(unit, unit.tasks, work)

    return of


def _of_tasks(unit: UnitSpec, tasks: UnitTasks, work: WorkOf) -> Work:
    elapsed_s, found, output, shares, memory_mib = 0.0, list[TaskWork](), list[tuple[float, Stream, str]](), 0.0, 16.0
    for position, environment in tasks.environments():
        if tasks.begin_within_s is not None and elapsed_s > tasks.begin_within_s:
            break
        own = work(task_spec(unit, environment))
        if own.refusal:
            return own
        lasts_s, code, cause = end_of_task(unit, own.duration_s, own.exit_code, own.memory_mib)
        output += [(elapsed_s + at_s, stream, text) for at_s, stream, text in own.output if at_s <= lasts_s]
        after_s = elapsed_s + lasts_s
        found.append(TaskWork(position=position, begins_s=elapsed_s, ends_s=after_s, exit_code=code, cause=cause))
        elapsed_s, shares, memory_mib = after_s, shares + own.cpu_share * lasts_s, max(memory_mib, own.memory_mib)
    return Work(
        duration_s=elapsed_s,
        output=tuple(output),
        cpu_share=shares / elapsed_s if elapsed_s > 0 else 0.8,
        memory_mib=min(memory_mib, unit.resources.memory_mib),
        tasks=tuple(found),
    )


def work_from(scripts: Mapping[str, Work]) -> WorkOf:
    """Return a reader of units that looks up shell scripts in a table, and reads all other commands itself."""

    def work(unit: UnitSpec) -> Work:
        known = scripts.get(unit.command[-1])
        return known if known is not None else read_work(unit)

    return work


def read_work(unit: UnitSpec) -> Work:
    """Return what the unit's setup and command do, as far as a minimal shell can determine.

    It supports ``sleep N``, ``true``, ``false``, ``exit N`` and ``echo WORDS [>&2]`` with variables, joined by ``;`` or
    ``&&``. An unknown program runs for a second or, with a metrics hook, serves until it is stopped.
    """
    refusal = _refusal(unit)
    if refusal:
        return Work(refusal=refusal)
    environment = unit_environment(unit)
    work = _read_script(_script_of(unit.command), environment)
    if unit.setup:
        setup = _read_script(unit.setup, environment)
        if setup.exit_code:
            return Work(refusal=f"setup ended with code {setup.exit_code}")
        later = tuple((at_s + setup.duration_s, stream, text) for at_s, stream, text in work.output)
        work = replace(work, duration_s=setup.duration_s + work.duration_s, output=setup.output + later)
    if unit.metrics is not None and work.duration_s <= UNKNOWN_PROGRAM_S:
        work = replace(work, duration_s=math.inf)
    if unit.metrics is not None:
        work = replace(work, requests_per_s=100.0, latency_ms={"50": 5.0, "95": 12.0, "99": 20.0})
    return work


def unit_environment(unit: UnitSpec) -> dict[str, str]:
    """Return a unit's environment variables, as specified by :class:`~hcloud.provider.UnitSpec`."""
    own = {"HCLOUD_UNIT_ID": unit.id, "HCLOUD_RANK": str(unit.rank), "HCLOUD_PEERS": ",".join(unit.peers)}
    return {**unit.env, **own}


def _refusal(unit: UnitSpec) -> str:
    if not unit.command:
        return "the command is empty"
    program = unit.command[0]
    if os.path.isabs(program) and not os.path.exists(program):
        return f"there is no program {program}"
    if unit.workdir is not None and not os.path.exists(unit.workdir):
        return f"there is no work directory archive {unit.workdir}"
    return ""


def _script_of(command: tuple[str, ...]) -> str:
    if len(command) == 3 and command[0] in SHELLS and command[1] == "-c":
        return command[2]
    return shlex.join((os.path.basename(command[0]), *command[1:]))


def _read_script(script: str, environment: Mapping[str, str]) -> Work:
    elapsed_s, status = 0.0, 0.0
    output: list[tuple[float, Stream, str]] = []
    for statement in filter(None, STATEMENT_END.split(script.strip())):
        words = _words(statement, environment)
        match words:
            case ["exit", *code]:
                status = _number(code, status)
                break
            case ["sleep", *seconds]:
                elapsed_s, status = elapsed_s + _number(seconds, 0.0), 0
            case ["echo", *arguments]:
                stream: Stream = "stderr" if ">&2" in arguments else "stdout"
                output.append((elapsed_s, stream, " ".join(word for word in arguments if word != ">&2") + "\n"))
                status = 0
            case ["true" | ":"] | []:
                status = 0
            case ["false"]:
                status = 1
            case _:
                elapsed_s, status = elapsed_s + UNKNOWN_PROGRAM_S, 0
    return Work(duration_s=elapsed_s, exit_code=int(status), output=tuple(output))


def _words(statement: str, environment: Mapping[str, str]) -> list[str]:
    expanded = VARIABLE.sub(lambda found: environment.get(found[1] or found[2], ""), statement)
    try:
        return shlex.split(expanded)
    except ValueError:  # an unbalanced quote, which this shell does not support
        return [statement]


def _number(words: list[str], otherwise: float) -> float:
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return otherwise
