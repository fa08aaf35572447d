"""Lives of a daemon in which one call to its cloud goes wrong, and what must hold after each of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hcloud.core.model import InstanceState, Nodes
from hcloud.store import Store
from tests.chaos.gateway import Death, Gateway, Kind, Trouble
from tests.chaos.lives import Build, Life, fresh_home, live
from tests.chaos.scene import Cast, CrashPoints, Scene, violations

RECONCILE_S = 30.0
"""How often a quiet deployment lists its machines."""
REACH_S = 2 * RECONCILE_S + 15.0
"""Two reconciles, and the time for which a new machine may be missing from listings."""
CAP_USD = 0.05
BILLING_MINIMUM_USD = 0.192 / 60
"""One minute of the dearest machine there is."""
LISTS = ("DescribeInstances", "instances.aggregatedList")
"""The calls by which machines are listed."""
OF_ONE_LAUNCH = ("instances.get", "zoneOperations.get", "zoneOperations.list")
"""Reads about one machine: after a restart its fate may be learnt from a listing, and they are not made again."""
CHANGES = (Kind.FAILS, Kind.HANGS, Kind.LOST, Kind.LIES, Kind.DENIES)
"""What a call that changes the cloud can meet."""
LIST_TIMES = 3
"""So many listings in a row meet trouble: absence is believed from the second on."""
BUSY = Cast(
    specs=(
        ("works", ("sleep", "24"), Nodes()),
        ("pair", ("sleep", "8"), Nodes(count=2, minimum=2)),
        ("cancelled", ("sleep", "500"), Nodes()),
    ),
    ends={"works": "succeeded", "pair": "succeeded", "cancelled": "cancelled"},
    policy={"budgets": {"per_day_usd": CAP_USD}},
    promised=frozenset({"works"}),
    step_s=2.0,
)
"""A job that runs while listings come and go, one that needs two machines, one that is cancelled."""


class When:
    """Which of the calls of one name goes wrong."""

    FIRST, MIDDLE = "first", "middle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One life: which call meets what, and where the daemon dies.

    ``side`` names a commit around the port's call (for calls that change the cloud): where the daemon is killed then.
    """

    call: str
    when: str
    kind: Kind
    death: Death = Death.NEVER
    side: str = ""

    def __str__(self) -> str:
        killed = self.side or self.death.value
        return f"{self.when} {self.call} {self.kind}, killed {killed}"


SIDES = ("before its intent", "after its intent", "before its result", "after its result")


@dataclass(slots=True)
class Site:
    """A fake cloud behind a gateway. ``begin`` gives a fresh account in a home, ``build`` opens a deployment there.

    ``writes`` maps calls that change the cloud to the port's call.
    """

    gateway: Gateway
    begin: Callable[[Path], None]
    build: Build
    writes: Mapping[str, str]
    problems: Callable[[], Sequence[str]]
    database: bytes = b""
    calm: Life | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def record(self) -> Mapping[str, int]:
        """Live once in calm; return how often each call was made."""
        if self.calm is None:
            with fresh_home() as home:
                self.calm = self._life(home, None, None)
            assert self.calm.violations == (), self.calm.violations
            self.counts = dict(self.gateway.counts)
        return self.counts

    def broken(self, case: Case, build: Build | None = None) -> list[str]:
        """Live one case, with restarts; return the promises that were broken."""
        trouble = self._trouble(case)
        kill_at = None
        if case.side:
            with fresh_home() as home:
                uncut = self._life(home, trouble, None, build)
            kill_at = _moment(uncut.passed, self.writes[case.call], case.side)
        with fresh_home() as home:
            life = self._life(home, trouble, kill_at, build)
            deaths = int(life.killed)
            if life.killed:
                life = self._live_on(home, build)
        found = [*life.violations, *self.problems()]
        if not self.gateway.struck:
            found.append("the trouble met no call")
        if (case.side or case.death is not Death.NEVER) and not deaths:
            found.append("nobody was killed")
        return found

    def _trouble(self, case: Case) -> Trouble:
        occurrence = 0 if case.when == When.FIRST else self.record()[case.call] // 2
        killed = case.death is not Death.NEVER
        then = "instances.aggregatedList" if killed and case.call in OF_ONE_LAUNCH else case.call
        times = LIST_TIMES if then in LISTS else 1
        return Trouble(call=case.call, occurrence=occurrence, kind=case.kind, death=case.death, times=times, then=then)

    def _life(self, home: Path, trouble: Trouble | None, kill_at: int | None, build: Build | None = None) -> Life:
        (home / "hcloud.db").write_bytes(self._empty_database())
        self.begin(home)
        self.gateway.reset(trouble, lambda: _kill(home))
        return live(home, self._played(build), kill_at, broken_promises)

    def _empty_database(self) -> bytes:
        """Return a database as a new deployment has it: making one takes as long as half a life."""
        if not self.database:
            with fresh_home() as home:
                Store.open(f"sqlite:///{home / 'hcloud.db'}").close()
                self.database = (home / "hcloud.db").read_bytes()
        return self.database

    def _live_on(self, home: Path, build: Build | None) -> Life:
        """Go on in the same place with the same cloud."""
        return live(home, self._played(build), None, broken_promises)

    def _played(self, build: Build | None) -> Build:
        opened = build or self.build

        def known_by_number(home: Path, crash: CrashPoints) -> Scene:
            (home / "pid").write_text(str(os.getpid()))
            return opened(home, crash)

        return known_by_number


def _kill(home: Path) -> None:
    """Kill the daemon that lives there now: a child of this process, not yet waited for."""
    with suppress(ProcessLookupError):
        os.kill(int((home / "pid").read_text()), signal.SIGKILL)


def _moment(passed: Sequence[str], call: str, side: str) -> int:
    """Return the number (from 1) of the commit on that side of the port's first ``call``."""
    at = passed.index(f"{call}:before")
    if side == "before its intent":
        return _last(passed, "commit:before", at) + 1
    if side == "after its intent":
        return _last(passed, "commit:after", at) + 1
    wanted = "commit:before" if side == "before its result" else "commit:after"
    return passed.index(wanted, at) + 1


def _last(passed: Sequence[str], label: str, before: int) -> int:
    return max(at for at in range(before) if passed[at] == label)


def cases(calls: Mapping[str, Sequence[str]], writes: Collection[str]) -> list[Case]:
    """Return every case there is: ``calls`` says which of the calls of a name are tried.

    A read changes nothing, so it does not matter whether one that goes wrong was carried out, nor how the one after a
    restart goes wrong. Reads of ``OF_ONE_LAUNCH`` are followed by a listing that fails.
    """
    sites = [(call, when) for call, whens in calls.items() for when in whens]
    told = [Case(call=call, when=when, kind=kind) for call, when in sites for kind in _kinds(call, writes)]
    killed = [
        Case(call=call, when=when, kind=kind, death=death)
        for call, when in sites
        for kind in (CHANGES if call in writes else (Kind.FAILS,))
        for death in (Death.ARRIVES, Death.ANSWERED)
    ]
    sides = [
        Case(call=call, when=When.FIRST, kind=kind, side=side)
        for call in writes
        for kind in (Kind.FAILS, Kind.LOST, Kind.DENIES)
        for side in SIDES
    ]
    return told + killed + sides


def _kinds(call: str, writes: Collection[str]) -> Sequence[Kind]:
    if call in writes:
        return CHANGES
    reads = (Kind.FAILS, Kind.HANGS, Kind.DENIES)
    return (*reads, Kind.PARTIAL) if call in LISTS else reads


# ---------------------------------------------------------------------------------------------------- what must hold
def broken_promises(scene: Scene) -> list[str]:
    """Return every broken promise of a life that has come to its end."""
    return [*violations(scene), *_outlived(scene), *_overspent(scene)]


def _outlived(scene: Scene) -> list[str]:
    """Machines that were up long after their record had ended, and records that ended while their machine was up."""
    rows = {row.token: row for row in scene.store.instances(live_only=False)}
    found = []
    for machine in scene.cloud.machines(scene.clock.now()):
        row = rows.get(machine.token)
        if row is None or row.state is not InstanceState.TERMINATED or machine.terminated_at is None:
            continue  # told by the other checks
        assert row.terminated_at is not None
        if machine.terminated_at > row.terminated_at + REACH_S:
            found.append(f"machine {machine.provider_id} outlived two reconciles after {row.id} was given up")
        if row.launched_at is not None and machine.terminated_at > row.terminated_at + 1e-6:
            found.append(f"{row.id} was called gone while {machine.provider_id} was up")
    return found


def _overspent(scene: Scene) -> list[str]:
    billed = scene.cloud.billed_usd(scene.clock.now())
    if billed <= CAP_USD + BILLING_MINIMUM_USD:
        return []
    return [f"{billed:.4f} USD were billed, {CAP_USD} and one billing minimum allowed"]
