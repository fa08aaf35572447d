"""Soak runs: the daemon's own cycle in small random worlds where everything goes wrong, with every promise checked.

A run depends on its seed alone. It makes trouble for a while (clouds, engine, database, clocks, operators, kills
between any two effects), checks the promises after each cycle, then lets all trouble stop and waits for every job and
machine to end.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from traceback import format_exception
from typing import Any, cast

import numpy as np

from hcloud.apply.directives import PAUSED, record_directive, withdraw_directive
from hcloud.classifier.library import Library
from hcloud.config import Config, EngineSettings, ProviderSettings
from hcloud.controller import Controller
from hcloud.core.clock import Clock, ManualClock
from hcloud.core.errors import StaleWrite, StoreError
from hcloud.core.model import InstanceState, Market
from hcloud.fake_runner.runner import FakeRunner, StartFault
from hcloud.simulator.ground_truth import CycleContext, DaemonSpend, MachineTruth, VirtualCloud
from hcloud.simulator.scratch import folder_in
from hcloud.spec.policy import Allow, Budgets, Caps, Policy
from hcloud.spend_ledger import DAY_S
from hcloud.store import Store, Submission
from hcloud.wiring import build_controller, build_providers
from lab.soak.crash_points import EFFECT_POINTS, PROVIDER_CALLS, RUNNER_CALLS, CrashPoints, Killed
from lab.soak.invariant_monitor import InvariantMonitor
from lab.soak.lease_checks import check_abandoned
from lab.soak.outsiders import OPERATOR, draw_directive, draw_foreign_launch
from lab.soak.planted_defects import with_defects
from lab.soak.worlds import FAULTS_LAST_S, PlannedJob, SoakWorld, draw_world, work_of

OWNER = "hcloud-soak"
LONGEST_LIFE_S = 1200.0
"""Longer than any machine is paid ahead, with whatever a clock or a late answer adds."""
NIGHTS_MAX = 3
STEPS_S = (0.3, 1.0, 1.0, 2.0, 5.0)
LONGEST_STEP_S = 30.0
LIFT_AFTER_S = 400.0
"""So long after the trouble whoever still waits for money gets it: budgets are lifted, once."""
CALM_CYCLES_MAX = 500
"""Whoever has not ended so many cycles after the trouble never will."""
CYCLES_MAX = 2000
PAUSE_S = 20.0
"""Longer than a leader's lease: whoever pauses so long in the middle of a cycle has lost it."""
SKEW_S = 60.0
Tamper = Callable[[Controller], object]
LogLine = Callable[[str], object]
_NO_LOG = logging.NullHandler()


@dataclass(slots=True)
class HostClock:
    """The daemon's clock: the world's, with an error that may only grow in one life (``SystemClock`` sees to that)."""

    world: ManualClock
    error_s: float = 0.0

    def now(self) -> float:
        """Return the time that the daemon's host shows."""
        return self.world.now() + self.error_s

    def wait(self, wake: object, timeout_s: float) -> bool:
        """Jump ahead."""
        self.world.advance(timeout_s)
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakResult:
    """How a soak run ended. ``violations`` are those of the first moment at which there were any."""

    seed: int
    cycles: int
    violations: tuple[str, ...]
    jobs: int
    machines: int
    lives: int
    struck: int
    """Kills, pauses and failed commits that really happened."""
    digest: str
    """Of all that was written down: equal for equal seeds, in every process."""

    @property
    def replay(self) -> str:
        """The command that runs exactly this again."""
        return f"python -m lab.soak --seed {self.seed} --cycles {self.cycles}"


@dataclass(slots=True)
class DaemonLife:
    """One daemon process, as far as it matters here: its memory, which is gone when it is killed."""

    holder: str
    crash_points: CrashPoints
    store: Store
    controller: Controller
    clock: HostClock


@dataclass(slots=True)
class SoakRun:
    """One world and the daemons in it. ``tamper`` is let at each new daemon: it seeds bugs."""

    world: SoakWorld
    home: Path
    tamper: Tamper = lambda _: None
    log: LogLine = lambda _: None
    clock: ManualClock = field(init=False)
    clouds: dict[str, VirtualCloud] = field(init=False)
    runner: FakeRunner = field(init=False)
    monitor: InvariantMonitor = field(init=False)
    lives: list[DaemonLife] = field(default_factory=list)
    cycles: int = 0
    bugs: list[str] = field(default_factory=list)
    _config: Config = field(init=False)
    _rng: np.random.Generator = field(init=False)
    _daemons_started: int = 0
    _injected: int = 0
    _accepted: dict[str, str] = field(default_factory=dict)
    """Job ids by the client's token."""
    _cancelled: set[str] = field(default_factory=set)
    _database_away: bool = False
    _paused: bool = False
    _budgets_lifted: bool = False
    _in_pause: bool = False
    _moved: bool = True
    _nights_s: float = 0.0
    """For how long nothing happened, which does not count as trouble."""
    _night_count: int = 0
    _calm_since: float | None = None

    def __post_init__(self) -> None:
        """Make the world; the daemons are started by the first cycle."""
        world, self.clock = self.world, ManualClock(self.world.starts_at)
        self._rng = np.random.default_rng([world.seed, 78])
        kinds = tuple(
            ProviderSettings(name=name, type="mock", settings=settings, poll_s=1.0)
            for name, settings in world.clouds.items()
        )
        self._config = Config(
            owner=OWNER,
            state_dir=self.home,
            run_dir=Path("run"),  # nobody is called there; the path of a folder may be too long for a socket
            providers=kinds,
            engine=EngineSettings(runner="fake"),
        )
        providers = build_providers(self._config, self.clock)
        self.clouds = cast(dict[str, VirtualCloud], providers)
        self.runner = FakeRunner(list(self.clouds.values()), self.clock, work=work_of)
        self.monitor = InvariantMonitor(
            store=Store.open(self._config.database),
            clouds=self.clouds,
            runner=self.runner,
            owner=OWNER,
            no_unled_launches=not world.fault_rates.two_daemons,
            one_policy=len(world.policies) == 1,
            fixed_prices=all(_spot_volatility(each) == 0 for each in world.clouds.values()),
            skew_s=SKEW_S if world.fault_rates.clock_step else 0.0,
            max_usd_per_h=max(_max_usd_per_h(each) for each in world.clouds.values()),
            failing_stage=world.fault_rates.failing_stage,
            terminations_known_until=world.starts_at
            + min(_terminations_listed_for_s(each) for each in world.clouds.values()),
        )
        self._take_policy(0)
        for holder in ("one", "two") if world.fault_rates.two_daemons else ("one",):
            self.lives.append(self._start_daemon(holder, 0.0))

    # ------------------------------------------------------------------------------------------------------------- run
    def run(self, most: int = CYCLES_MAX) -> SoakResult:
        """Run to the end, to the first broken promise, or for ``most`` cycles."""
        found: list[str] = []
        calm_cycles = 0
        while not found and self.cycles < most:
            if self._faults_active():
                self._inject_faults()
            else:
                found = self._stop_faults()
                calm_cycles += 1
            self._clients()
            found += self._one_cycle()
            if not found and calm_cycles and (self._settled() or calm_cycles >= CALM_CYCLES_MAX):
                found = self.monitor.check_end(self.clock.now())
                found += [] if self._settled() else ["stuck: it never ends"]
                break
            self._advance()
        return self._verdict(found)

    def close(self) -> None:
        """Let go of all databases."""
        for life in self.lives:
            life.store.close()
        self.monitor.store.close()

    def _verdict(self, found: list[str]) -> SoakResult:
        if self._database_away:  # stopped in the middle of it
            self._move_database()
        digest = hashlib.sha256()
        for event in self.monitor.store.iter_events():
            digest.update(repr(event).encode())
        return SoakResult(
            seed=self.world.seed,
            cycles=self.cycles,
            violations=tuple(found),
            jobs=len(self._accepted),
            machines=len(self.monitor.money.ours(self.clock.now())),
            lives=self._daemons_started,
            struck=self._injected + sum(len(life.crash_points.injected) for life in self.lives),
            digest=digest.hexdigest()[:16],
        )

    def _faults_active(self) -> bool:
        return self._calm_since is None and self._elapsed_s() < FAULTS_LAST_S

    def _elapsed_s(self) -> float:
        """Return for how long the world has been there, without the nights."""
        return self.clock.now() - self.world.starts_at - self._nights_s

    def _one_cycle(self) -> list[str]:
        """Let each daemon cycle once; return the promises that are broken after it."""
        self.cycles += 1
        paused = self._paused
        undisturbed = False
        for at in range(len(self.lives)):
            if at == 0 or self._rng.random() < 0.7:
                undisturbed = self._cycle(at) or undisturbed
        bugs, self.bugs = self.bugs, []
        if self._database_away:
            return bugs
        leader = next((life for life in self.lives if life.controller.lease is not None), self.lives[0])
        undisturbed, daemon = undisturbed and len(self.lives) == 1, leader.controller
        moment = CycleContext(
            now=self.clock.now(),
            live=leader.store.live(),
            undisturbed=undisturbed,
            paused=paused and self._paused,
            reachable=daemon.last_seen.reachable,
            daemon_spend=_daemon_spend(daemon) if undisturbed else None,
        )
        return bugs + self.monitor.check(moment)

    def _cycle(self, at: int) -> bool:
        """Run one cycle of a daemon, as its own loop would; return whether nothing disturbed it."""
        life = self.lives[at]
        struck = len(life.crash_points.injected)
        try:
            self._moved = life.controller.cycle().moved
        except StaleWrite as lost:
            self._log(f"{life.holder} was overtaken: {lost}")
            life.controller.lease = None
            return False
        except StoreError as trouble:
            self._log(f"{life.holder}: {trouble}")
            return False
        except Killed as where:
            self._restart_killed(at, str(where))
            return False
        except Exception as bug:  # noqa: BLE001 the daemon's loop survives it too, but it is a bug
            self._record_bug("cycle", format_exception(bug))
            return False
        led = life.controller.lease is not None and life.controller.last_seen.engine_reachable
        whole = not life.controller.quarantine.left_out(life.clock.now()).stages
        return led and whole and len(life.crash_points.injected) == struck

    def _record_bug(self, what: str, trace: Sequence[str]) -> None:
        self.bugs.append(f"bug: the {what} failed: {''.join(trace).rstrip()}")

    def _settled(self) -> bool:
        live = self.monitor.store.live()
        rented = [m for m in live.instances if m.offer.market is not Market.RESERVED]
        on_the_way = [m for m in live.instances if m.state not in (InstanceState.READY, InstanceState.DRAINING)]
        return not (live.jobs or rented or on_the_way or live.intents) and len(self._accepted) == len(self.world.jobs)

    def _advance(self) -> None:
        if self._faults_active():
            self.clock.advance(float(self._rng.choice(STEPS_S)))
            return
        now = self.clock.now()
        changes = [cloud.next_event_at() for cloud in self.clouds.values()] + [self.runner.next_event_at()]
        soon = min((at for at in changes if at is not None and at > now), default=now + LONGEST_STEP_S)
        self.clock.advance(1.0 if self._moved else min(LONGEST_STEP_S, max(1.0, soon - now)))

    # --------------------------------------------------------------------------------------------------------- daemons
    def _start_daemon(self, holder: str, error_s: float) -> DaemonLife:
        """Start a daemon on what earlier ones left behind."""
        self._daemons_started += 1
        clock, crash_points = HostClock(self.clock, error_s), CrashPoints()
        store = Store.open(self._config.database)
        store.crash_point = crash_points.hit
        providers = {name: crash_points.wrap(cloud, PROVIDER_CALLS, "provider") for name, cloud in self.clouds.items()}
        controller = build_controller(
            self._config,
            store,
            providers,
            crash_points.wrap(self.runner, RUNNER_CALLS, "runner"),
            cast(Clock, clock),
            self.monitor.policies[-1],
            rng=np.random.default_rng([self.world.seed, self._daemons_started]),
            holder=holder,
            library=Library(),  # reading the shipped one would take longer than the whole run
        )
        self.tamper(controller)
        stage = self.world.fault_rates.failing_stage
        with_defects(controller, stage, self._faults_active, partial(self._record_bug, "plan"))
        life = DaemonLife(holder=holder, crash_points=crash_points, store=store, controller=controller, clock=clock)
        crash_points.pause = lambda: self._pass_pause(holder)
        return life

    def _restart_killed(self, at: int, where: str) -> None:
        """Start a killed daemon anew, after a while; its host's clock may have been set meanwhile."""
        killed = self.lives[at]
        self._injected += len(killed.crash_points.injected)
        killed.store.close()
        away_s = float(self._rng.choice([0.0, 1.0, 10.0, 10.0, 500.0], p=[0.4, 0.3, 0.14, 0.14, 0.02]))
        self._log(f"{killed.holder} was killed at {where}, comes back after {away_s:g} s")
        self.clock.advance(away_s)
        self.lives[at] = self._start_daemon(killed.holder, self._clock_error_s())

    def _clock_error_s(self) -> float:
        return (
            float(self._rng.uniform(0, SKEW_S)) if self.world.fault_rates.clock_step and self._faults_active() else 0.0
        )

    def _pass_pause(self, holder: str) -> None:
        """What the world and the other daemon do while this one stands still in the middle of its cycle."""
        if self._in_pause:
            return
        self._in_pause = True
        self._log(f"{holder} stands still for {PAUSE_S:g} s")
        for _ in range(2):
            self.clock.advance(PAUSE_S / 2)
            for at, life in enumerate(self.lives):
                if life.holder != holder:
                    self._cycle(at)
        self._in_pause = False

    # --------------------------------------------------------------------------------------------------------- trouble
    def _happens(self, chance: float) -> bool:
        return bool(chance > 0 and self._rng.random() < chance)

    def _inject_faults(self) -> None:
        dangers = self.world.fault_rates
        for life in self.lives:
            self._arm_crash_points(life)
        self._inject_engine_faults()
        self._inject_cloud_faults()
        if self._happens(dangers.policy):
            self._take_policy(int(self._rng.integers(len(self.world.policies))))
        if self._happens(dangers.foreign_launches):
            self._launch_foreign_machine()
        if self._happens(dangers.directives):
            self._operator_directive()
        if self._night_count < NIGHTS_MAX and self._happens(dangers.midnight_jumps):
            self._jump_to_midnight()
        if self._happens(dangers.sleep):
            self._log("the host sleeps")
            self.clock.advance(float(self._rng.choice([30.0, 200.0, 4000.0], p=[0.5, 0.4, 0.1])))
        if self._happens(0.3 if self._database_away else dangers.database_away):
            self._move_database()
        if self._happens(0.2 if self._paused else dangers.operator_pause):
            self._pause(not self._paused)

    def _arm_crash_points(self, life: DaemonLife) -> None:
        dangers, crash_points = self.world.fault_rates, life.crash_points
        if not (crash_points.kill_in or crash_points.kill_at or self._database_away) and self._happens(dangers.kill):
            self._aim(crash_points)
        if not crash_points.pause_in and self._happens(dangers.pause):
            crash_points.pause_in = int(self._rng.integers(1, 20))
        if not crash_points.fail_commit_in and self._happens(dangers.commit):
            crash_points.fail_commit_in, crash_points.fail_after_commit = (
                int(self._rng.integers(1, 4)),
                bool(self._rng.random() < 0.4),
            )
        if self._happens(dangers.clock_step):
            life.clock.error_s = max(life.clock.error_s, self._clock_error_s())

    def _aim(self, crash_points: CrashPoints) -> None:
        """Let a daemon be killed soon: at any moment or, as these are few, around an effect on the world."""
        if self._rng.random() < 0.5:
            crash_points.kill_in = int(self._rng.integers(1, 30))
        else:
            crash_points.kill_at = str(self._rng.choice(EFFECT_POINTS))

    def _inject_engine_faults(self) -> None:
        dangers = self.world.fault_rates
        if self._happens(dangers.engine_away):
            self.runner.disconnect()
        elif self._happens(0.3):
            self.runner.reconnect()
        workers = sorted({machine.instance_id for _, machine in self._up()})
        if workers and self._happens(dangers.silence):
            self.runner.silence(workers[int(self._rng.integers(len(workers)))])
        for worker in workers:
            if self._happens(0.05):
                self.runner.unsilence(worker)
        if workers and dangers.refused_resizes and self._happens(dangers.refused_resizes):
            self.runner.stiffen(workers[int(self._rng.integers(len(workers)))])
        if self._happens(dangers.start):
            self.runner.inject(list(StartFault)[int(self._rng.integers(len(StartFault)))])

    def _inject_cloud_faults(self) -> None:
        up = self._up()
        if up and self._happens(self.world.fault_rates.death):
            cloud, machine = up[int(self._rng.integers(len(up)))]
            self._log(f"{machine.instance_id} dies")
            cloud.kill(machine.provider_id)
        if self._happens(self.world.fault_rates.storm):
            self._log("a preemption storm")
            for cloud, machine in up:
                if machine.market is Market.SPOT:
                    cloud.preempt(machine.provider_id, float(self._rng.choice([0.0, 5.0, 30.0])))

    def _up(self) -> list[tuple[VirtualCloud, MachineTruth]]:
        now = self.clock.now()
        everything = ((cloud, machine) for cloud in self.clouds.values() for machine in cloud.machines(now))
        return [(c, m) for c, m in everything if m.owner == OWNER and m.terminated_at is None]

    def _launch_foreign_machine(self) -> None:
        """Somebody launches a machine on the same account, with a name and a token like ours, or none."""
        name = str(self._rng.choice(sorted(self.clouds)))
        cloud, others = self.clouds[name], self.monitor.outsiders.foreign_machines
        request = draw_foreign_launch(self._rng, self.monitor.offers[name], len(others), self.clock.now())
        others[name, cloud.appear(request)] = request.expires_at
        self._log(f"{request.owner or 'nobody'} launches {request.instance_id or 'a machine'} on {name}")

    def _jump_to_midnight(self) -> None:
        """Let nothing happen until shortly before, or after, the next day begins."""
        now = self.clock.now()
        night_s = max(0.0, DAY_S - now % DAY_S + float(self._rng.uniform(-60, 30)))
        self._log(f"everything stands still for {night_s:.0f} s")
        self._night_count += 1
        self._nights_s += night_s
        self.clock.advance(night_s)

    def _operator_directive(self) -> None:
        """An operator drains or destroys a machine, drains a type, or takes back what was ordered."""
        if self._database_away:
            return
        store, now = self.monitor.store, self.clock.now()
        view = store.live()
        if view.directives and self._happens(0.5):
            self._withdraw_directives()
        elif view.instances:
            order = draw_directive(self._rng, view.instances[int(self._rng.integers(len(view.instances)))], now)
            self._log(f"{OPERATOR} {'destroys' if order.destroy else 'drains'} {order.name}")
            with store.transaction(now) as txn:
                record_directive(txn, order)

    def _move_database(self) -> None:
        """Take the database's file away from under everybody, or bring it back."""
        here, there = self.home / "hcloud.db", self.home / "elsewhere.db"
        (there if self._database_away else here).rename(here if self._database_away else there)
        self._database_away = not self._database_away
        for life in self.lives:
            life.crash_points.cancel_kill()  # who is born without a database makes a new one
        self._log("the database is gone" if self._database_away else "the database is back")

    def _pause(self, paused: bool) -> None:
        if not self._database_away:
            self.monitor.store.set_meta(PAUSED, "an operator looks" if paused else "")
            self._paused = paused
            self._log("an operator pauses" if paused else "an operator resumes")

    def _take_policy(self, number: int) -> None:
        self._enforce(self.world.policies[number])

    def _enforce(self, policy: Policy) -> None:
        self._log(f"policy {policy.name} is in force")
        self.monitor.policies.append(policy)
        self.monitor.recent_policies.append(policy)
        for life in self.lives:
            life.controller.policy = policy

    def _stop_faults(self) -> list[str]:
        """Let all trouble of our own making stop; who waits for money for long gets it. Returns who did not end though
        left alone."""
        found: list[str] = []
        if self._database_away:
            self._move_database()
        if self._paused:
            self._pause(False)
        if self._calm_since is None:
            found = self._run_without_daemons() if self.world.fault_rates.abandoned else []
            self._calm_since = self.clock.now()
            self._withdraw_directives()
        for life in self.lives:
            life.crash_points.disarm()
        self.runner.reconnect()
        for _, machine in self._up():
            self.runner.unsilence(machine.instance_id)
        if not self._budgets_lifted and self.clock.now() > self._calm_since + LIFT_AFTER_S:
            self._budgets_lifted = True
            lifted = replace(self.world.policies[0], name="lifted", budgets=Budgets(), caps=Caps(), allow=Allow())
            self.monitor.one_policy = False
            self._enforce(lifted)
        return found

    def _withdraw_directives(self) -> None:
        view = self.monitor.store.live()
        with self.monitor.store.transaction(self.clock.now()) as txn:
            for order in view.directives:
                withdraw_directive(txn, order.scope, order.name, OPERATOR, view.instances)

    def _run_without_daemons(self) -> list[str]:
        """Let all daemons be away for longer than a machine may live without; return which are still up."""
        self._log("all daemons are away")
        for life in self.lives:
            self._injected += len(life.crash_points.injected)
            life.store.close()
        self.clock.advance(LONGEST_LIFE_S)
        found = list(check_abandoned(self.clock.now(), self.monitor.money.ours(self.clock.now())))
        self.lives = [self._start_daemon(life.holder, 0.0) for life in self.lives]
        return found

    # --------------------------------------------------------------------------------------------------------- clients
    def _clients(self) -> None:
        """Stubborn clients: each submits until it hears that its job was taken in, some once more, some cancel."""
        now_s = self._elapsed_s()
        for job in self.world.jobs:
            if self._database_away or now_s < job.at_s:
                continue
            if job.token not in self._accepted or self._happens(0.02):
                self._as_client(lambda job=job: self._submit(job))  # type: ignore[misc]
            cancel = job.cancel_at_s is not None and now_s >= job.cancel_at_s
            if cancel and job.token in self._accepted and job.token not in self._cancelled:
                self._as_client(lambda job=job: self._cancel(job))  # type: ignore[misc]

    def _as_client(self, call: Callable[[], object]) -> None:
        try:
            call()
        except StoreError as trouble:
            self._log(f"a client is told: {trouble}")
        except Killed as where:
            self._restart_killed(0, str(where))

    def _submit(self, job: PlannedJob) -> None:
        life = self.lives[0]
        wanted = Submission(spec=job.spec, actor=job.spec.user, token=job.token)
        (made,) = life.store.submit([wanted], life.clock.now())
        if self._accepted.setdefault(job.token, made.id) != made.id:
            self.bugs.append(f"twice: {job.token} is {self._accepted[job.token]} and {made.id}")
        self.monitor.accepted[made.id] = wanted

    def _cancel(self, job: PlannedJob) -> None:
        life = self.lives[0]
        life.store.request_cancel(self._accepted[job.token], job.spec.user, life.clock.now())
        self._cancelled.add(job.token)
        self._log(f"{self._accepted[job.token]} is cancelled")

    def _log(self, what: str) -> None:
        self.log(f"{self.cycles:4d} {self.clock.now() - self.world.starts_at:8.1f} s  {what}")


def _daemon_spend(daemon: Controller) -> DaemonSpend:
    return DaemonSpend(spend=daemon.last_spend, at=daemon.last_snapshot.now, seq=daemon.read_up_to)


def _spot_volatility(cloud: Mapping[str, Any]) -> float:
    return float(cloud["spot"]["volatility"]) if "spot" in cloud["markets"] else 0.0


def _max_usd_per_h(cloud: Mapping[str, Any]) -> float:
    return 1.2 * max(float(each["usd_per_h"]) for each in cloud["types"].values())


def _terminations_listed_for_s(cloud: Mapping[str, Any]) -> float:
    return float(cloud["keep_terminated_s"])


def ignore(_: object) -> None:
    """Do nothing."""


@contextmanager
def open_soak(
    seed: int, tamper: Tamper = ignore, tell: LogLine = ignore, place: Path | None = None
) -> Iterator[SoakRun]:
    """Open the world of a seed for a block, in a folder in ``place``, or in memory where there is such a place."""
    logging.getLogger("hcloud").addHandler(_NO_LOG)  # a verdict tells what is wrong; the rest was planted
    with folder_in(place) as made:
        soak = SoakRun(draw_world(seed), made, tamper, tell)
        try:
            yield soak
        finally:
            soak.close()


def run_seed(
    seed: int, most: int = CYCLES_MAX, tamper: Tamper = ignore, tell: LogLine = ignore, place: Path | None = None
) -> SoakResult:
    """Run the world of a seed, to its end or for ``most`` cycles."""
    with open_soak(seed, tamper, tell, place) as soak:
        return soak.run(most)
