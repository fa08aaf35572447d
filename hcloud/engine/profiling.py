"""A unit that is measured instead of run: a child of its keeper does it, inside the unit's own groups and limits.

The engine knows nothing of how a program is measured; ``hcloud.agent`` hands in the profiler (``Profile``). The
child
dies with the keeper, and everything it starts dies with it. What it has found so far is in ``findings.json`` all the
time, so that a run that is stopped, killed or over its time reports what it found by then.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hcloud.core.errors import UnitRefused
from hcloud.core.estimates import Findings
from hcloud.core.files import remove_tree
from hcloud.engine import launch
from hcloud.engine.host import EngineHost, RunningUnit
from hcloud.engine.limits import Bounds, group_for, groups_inside
from hcloud.engine.output import OutputFile
from hcloud.engine.sandbox import Isolation
from hcloud.engine.unit import Unit
from hcloud.engine.wire import findings_from_wire
from hcloud.provider import UnitSpec

Tell = Callable[[Findings], None]
Profile = Callable[[UnitSpec, Path, EngineHost, Tell], Findings]
"""Measures what a unit would run: the unit, its prepared work directory, the machine, and whom to tell what is known so
far. Called in a process of its own."""

FINDINGS = "findings.json"
OWN_GROUP = "profiler"


class Measurement:
    """The child that measures; to its keeper it looks like a ``Launch``."""

    def __init__(
        self,
        unit: Unit,
        spec: UnitSpec,
        profile: Profile,
        *,
        isolation: Isolation,
        bounds: Bounds,
        readonly: tuple[str, ...],
        image_root: Path | None,
        running: RunningUnit | None = None,
    ) -> None:
        """Fork and begin. ``spec.env`` holds everything that a copy is to find in its environment; ``running``: the
        unit that is measured in place of copies."""
        self.status: int | None = None
        self.missing = self.lost_output = False
        self._unit = unit
        scratch = scratch_of(unit)
        scratch.mkdir(mode=0o711, exist_ok=True)
        scratch.chmod(0o711)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become_profiler(unit, spec, profile, isolation, bounds, readonly, image_root, running, parent)

    @property
    def handles(self) -> list[int]:
        """Descriptors to wait on: none, its output goes to the keeper's own log."""
        return []

    def take(self, ready: Iterable[int]) -> None:
        """There is nothing to copy."""

    def drain(self) -> None:
        """Nothing of it is left but what it found."""
        clear(self._unit)


def scratch_of(unit: Unit) -> Path:
    """Where copies and loads keep their files: counted as the unit's own, out of its sandbox's sight."""
    return unit.path / "root" / "profile"


def findings_of(unit: Unit) -> Findings | None:
    """Return what a unit's measurement has found so far; None: nothing that can be read."""
    plain = unit.read(FINDINGS)
    try:
        return findings_from_wire(plain) if plain is not None else None
    except (KeyError, TypeError, ValueError):
        return None


def clear(unit: Unit) -> None:
    """Remove the files of copies and loads; none of them lives any more."""
    with suppress(RecursionError):
        shutil.rmtree(scratch_of(unit), onerror=_force_removal)
    remove_tree(scratch_of(unit))


def write_log(unit: Unit, findings: Findings, log_bytes: int) -> None:
    """Write findings where the unit's output would be, for people. Best effort: a full disk costs these lines."""
    (unit.path / "log").mkdir(mode=0o700, exist_ok=True)
    output = OutputFile(unit.path / "log", "stdout", log_bytes)
    try:
        output.write("".join(f"{line}\n" for line in _lines(findings)).encode())
    except OSError:
        return
    finally:
        output.close()


def _lines(findings: Findings) -> Iterable[str]:
    took = f"profiled for {findings.duration_s:.0f} s"
    yield f"{took}; performance is {findings.measure} per second" if findings.measure else f"{took}; no number found"
    for each in findings.readings:
        limits = f"{each.low:.4g} to {each.high:.4g}, {each.runs} runs"
        yield f"{each.question} {each.column}: {each.value:.4g} ({limits})"
    yield from findings.notes


def _force_removal(remove: Callable[[str], object], path: str, error: tuple[type[BaseException], Any, Any]) -> None:
    """An overlay leaves a directory without permissions in its work layer. What cannot be removed stays."""
    if issubclass(error[0], FileNotFoundError):
        return
    try:
        os.chmod(os.path.dirname(path), 0o700)
        os.chmod(path, 0o700)
        shutil.rmtree(path) if remove in (os.open, os.scandir, os.lstat) else remove(path)
    except OSError:
        return


def subject_of(unit: Unit, spec: UnitSpec, isolation: Isolation, cpus: tuple[int, ...] | None) -> RunningUnit | None:
    """Return the unit that ``unit`` measures in place, None if it measures copies. Raises UnitRefused if that unit does
    not run here, or has no control group in which it could be measured."""
    assert spec.profile is not None
    if not spec.profile.unit_id:
        return None
    subject = Unit(unit.path.with_name(spec.profile.unit_id))
    if subject.read("started.json") is None or subject.ended or not subject.kept:
        raise UnitRefused(f"{subject.id}, which it was to measure, does not run here")
    group = group_for(isolation.cgroup, subject.id)
    if group is None:
        raise UnitRefused("this machine has no control groups, so no running unit can be measured in place")
    return RunningUnit(subject, group, cpus)


def release_subject(unit: Unit, isolation: Isolation) -> None:
    """Continue the unit that ``unit`` measured in place, in case its profiler was killed while that was halted."""
    profile = ((unit.read("spec.json") or {}).get("unit") or {}).get("profile") or {}
    group = group_for(isolation.cgroup, profile.get("unit_id") or "")
    if profile.get("unit_id") and group is not None:
        with suppress(OSError):  # it has ended, or cannot be halted here
            group.freeze(False)


def _become_profiler(
    unit: Unit,
    spec: UnitSpec,
    profile: Profile,
    isolation: Isolation,
    bounds: Bounds,
    readonly: tuple[str, ...],
    image_root: Path | None,
    running: RunningUnit | None,
    parent: int,
) -> None:
    """In the child: go into the unit's group, measure, write down what was found. Never returns."""
    code, stopped = 1, list[int]()
    try:
        os.setsid()
        launch.die_with_parent()
        launch.become_subreaper()
        signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
        _note(unit, Findings(notes=("it was ended before anything was measured",)))
        if os.getppid() == parent:
            host = EngineHost(
                isolation=isolation,
                cgroup=_entered(isolation, unit.id, bounds),
                bounds=bounds,
                directory=scratch_of(unit),
                readonly=readonly,
                image_root=image_root,
                running=running,
                stopping=lambda: bool(stopped),
            )
            _note(unit, profile(spec, unit.path / "root" / "job", host, lambda so_far: _note(unit, so_far)))
            code = 0
    except Exception as bug:  # noqa: BLE001 the process's top: its trace is worth more than the process
        traceback.print_exc(file=sys.stderr)
        _note_failure(unit, bug)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _entered(isolation: Isolation, unit_id: str, bounds: Bounds) -> Mapping[str, Any] | None:
    """Go into a group of one's own inside the unit's (version 2 keeps processes in leaves); return the unit's."""
    if isolation.cgroup is None:
        if bounds.cpus:
            os.sched_setaffinity(0, bounds.cpus)
        return None
    inside = groups_inside(isolation.cgroup, unit_id)
    group = group_for(inside, OWN_GROUP)
    assert group is not None
    group.make(bounds)
    group.enter()
    return inside


def _note(unit: Unit, findings: Findings) -> None:
    try:
        unit.write(FINDINGS, asdict(findings))
    except OSError:  # a full disk: what was written before stays
        return


def _note_failure(unit: Unit, bug: Exception) -> None:
    known = findings_of(unit) or Findings()
    said = f"profiling ended early by a fault of its own: {type(bug).__name__}: {bug}"
    _note(unit, replace(known, notes=(*known.notes, said)))
