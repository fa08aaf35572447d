"""Soak runs: the real controller in a small random world full of faults, with every invariant checked after each cycle.

A run depends only on its seed. It injects faults for a while (clouds, engine, database, clocks, operators, kills
between any two effects) and checks every invariant after each cycle. Then all faults stop, and every job and machine
must end.
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
"""Longer than any machine's lease, including clock skew and late answers."""
NIGHTS_MAX = 3
_START_FAULTS = (StartFault.LOSE_REPLY, StartFault.LOSE_REQUEST, StartFault.REFUSE)
STEPS_S = (0.3, 1.0, 1.0, 2.0, 5.0)
LONGEST_STEP_S = 30.0
LIFT_AFTER_S = 400.0
"""Once, this long after the faults, budgets are lifted so that jobs waiting for them can end."""
CALM_CYCLES_MAX = 500
"""A run that has not ended this many cycles after the faults never will."""
CYCLES_MAX = 2000
PAUSE_S = 20.0
"""Longer than a leader's lease: a daemon paused this long in a cycle has lost its lead."""
SKEW_S = 60.0
Tamper = Callable[[Controller], object]
LogLine = Callable[[str], object]
_NO_LOG = logging.NullHandler()


@dataclass(slots=True)
class HostClock:
    """The clock of a daemon's host: the world's time plus an error that only grows during a process (``SystemClock``
    ensures that)."""

    world: ManualClock
    error_s: float = 0.0

    def now(self) -> float:
        """Return the time that the daemon's host shows."""
        return self.world.now() + self.error_s

    def wait(self, wake: object, timeout_s: float) -> bool:
        """Advance the world instead of waiting."""
        self.world.advance(timeout_s)
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakResult:
    """The result of one soak run."""

    seed: int
    cycles: int
    violations: tuple[str, ...]
    """All violations of the first cycle that had any."""
    jobs: int
    machines: int
    lives: int
    """Daemon processes started."""
    struck: int
    """Kills, pauses and failed commits that were really injected."""
    digest: str
    """Hash of the whole event log, equal for equal seeds in every process."""

    @property
    def replay(self) -> str:
        """The command that repeats exactly this run."""
        return f"python -m lab.soak --seed {self.seed} --cycles {self.cycles}"


@dataclass(slots=True)
class DaemonLife:
    """One daemon process: the memory that is lost when it is killed."""

    holder: str
    crash_points: CrashPoints
    store: Store
    controller: Controller
    clock: HostClock


@dataclass(slots=True)
class SoakRun:
    """One world and its daemons."""

    world: SoakWorld
    home: Path
    tamper: Tamper = lambda _: None
    """Called with each new controller; tests use it to seed bugs."""
    log: LogLine = lambda _: None
    """Called with a line for each fault."""
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
    """Total length of midnight jumps, which do not count as time with faults."""
    _night_count: int = 0
    _calm_since: float | None = None

    def __post_init__(self) -> None:
        """Create the world and start its daemons."""
        world, self.clock = self.world, ManualClock(self.world.starts_at)
        self._rng = np.random.default_rng([world.seed, 78])
        kinds = tuple(
            ProviderSettings(name=name, type="mock", settings=settings, poll_s=1.0)
            for name, settings in world.clouds.items()
        )
        self._config = Config(
            owner=OWNER,
            state_dir=self.home,
            run_dir=Path("run"),  # never used; the path of ``home`` may be too long for a socket
            providers=kinds,
            engine=EngineSettings(programs="simulated"),
        )
        providers = build_providers(self._config, self.clock)
        self.clouds = cast(dict[str, VirtualCloud], providers)
        self.runner = FakeRunner(list(self.clouds.values()), self.clock, work=work_of)
        clouds = cast(Sequence[Mapping[str, Any]], tuple(world.clouds.values()))
        self.monitor = InvariantMonitor(
            store=Store.open(self._config.database),
            clouds=self.clouds,
            runner=self.runner,
            owner=OWNER,
            no_unled_launches=not world.fault_rates.two_daemons,
            one_policy=len(world.policies) == 1,
            fixed_prices=all("spot" not in each["markets"] or each["spot"]["volatility"] == 0 for each in clouds),
            skew_s=SKEW_S if world.fault_rates.clock_step else 0.0,
            max_usd_per_h=1.2 * max(float(each["usd_per_h"]) for cloud in clouds for each in cloud["types"].values()),
            failing_stage=world.fault_rates.failing_stage,
            terminations_known_until=world.starts_at + min(float(each["keep_terminated_s"]) for each in clouds),
        )
        self._take_policy(0)
        for holder in ("one", "two") if world.fault_rates.two_daemons else ("one",):
            self.lives.append(self._start_daemon(holder, 0.0))

    # ------------------------------------------------------------------------------------------------------------- run
    def run(self, most: int = CYCLES_MAX) -> SoakResult:
        """Run to the end, to the first violation, or for ``most`` cycles."""
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
                found += [] if self._settled() else ["stuck: the run does not end"]
                break
            self._advance()
        return self._verdict(found)

    def close(self) -> None:
        """Close all stores."""
        for life in self.lives:
            life.store.close()
        self.monitor.store.close()

    def _verdict(self, found: list[str]) -> SoakResult:
        if self._database_away:  # the run was stopped meanwhile
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
        """Return the age of the world without midnight jumps."""
        return self.clock.now() - self.world.starts_at - self._nights_s

    def _one_cycle(self) -> list[str]:
        """Run a cycle of each daemon; return the violations after it."""
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
        daemon_spend = DaemonSpend(spend=daemon.last_spend, at=daemon.last_snapshot.now, seq=daemon.last_event_seq)
        moment = CycleContext(
            now=self.clock.now(),
            live=leader.store.live(),
            undisturbed=undisturbed,
            paused=paused and self._paused,
            reachable=daemon.last_seen.reachable,
            daemon_spend=daemon_spend if undisturbed else None,
        )
        return bugs + self.monitor.check(moment)

    def _cycle(self, at: int) -> bool:
        """Run one cycle of a daemon like its own loop would; return whether no fault disturbed it."""
        life = self.lives[at]
        struck = len(life.crash_points.injected)
        try:
            self._moved = life.controller.cycle().moved
        except StaleWrite as lost:
            self._log(f"daemon {life.holder} lost its lead: {lost}")
            life.controller.lease = None
            return False
        except StoreError as error:
            self._log(f"daemon {life.holder}: {error}")
            return False
        except Killed as where:
            self._restart_killed(at, str(where))
            return False
        except Exception as bug:  # noqa: BLE001 the daemon's loop survives it as well, but it is a bug
            self._record_bug("cycle", format_exception(bug))
            return False
        led = life.controller.lease is not None and life.controller.last_seen.engine_reachable
        whole = not life.controller.quarantine.left_out(life.clock.now()).stages
        return led and whole and len(life.crash_points.injected) == struck

    def _record_bug(self, step: str, trace: Sequence[str]) -> None:
        self.bugs.append(f"bug: the {step} failed: {''.join(trace).rstrip()}")

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
        """Start a daemon on the state that earlier ones left."""
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
        """Restart a killed daemon after a while; its host's clock may have been set meanwhile."""
        killed = self.lives[at]
        self._injected += len(killed.crash_points.injected)
        killed.store.close()
        away_s = float(self._rng.choice([0.0, 1.0, 10.0, 10.0, 500.0], p=[0.4, 0.3, 0.14, 0.14, 0.02]))
        self._log(f"daemon {killed.holder} was killed at {where}; restarting in {away_s:g} s")
        self.clock.advance(away_s)
        self.lives[at] = self._start_daemon(killed.holder, self._clock_error_s())

    def _clock_error_s(self) -> float:
        return (
            float(self._rng.uniform(0, SKEW_S)) if self.world.fault_rates.clock_step and self._faults_active() else 0.0
        )

    def _pass_pause(self, holder: str) -> None:
        """Let time and the other daemon go on while this one is paused in the middle of its cycle."""
        if self._in_pause:
            return
        self._in_pause = True
        self._log(f"daemon {holder} is paused for {PAUSE_S:g} s")
        for _ in range(2):
            self.clock.advance(PAUSE_S / 2)
            for at, life in enumerate(self.lives):
                if life.holder != holder:
                    self._cycle(at)
        self._in_pause = False

    # ----------------------------------------------------------------------------------------------------------- faults
    def _happens(self, chance: float) -> bool:
        return bool(chance > 0 and self._rng.random() < chance)

    def _inject_faults(self) -> None:
        rates = self.world.fault_rates
        for life in self.lives:
            self._arm_crash_points(life)
        self._inject_engine_faults()
        self._inject_cloud_faults()
        if self._happens(rates.policy):
            self._take_policy(int(self._rng.integers(len(self.world.policies))))
        if self._happens(rates.foreign_launches):
            self._launch_foreign_machine()
        if self._happens(rates.directives):
            self._operator_directive()
        if self._night_count < NIGHTS_MAX and self._happens(rates.midnight_jumps):
            self._jump_to_midnight()
        if self._happens(rates.sleep):
            self._log("the host is suspended")
            self.clock.advance(float(self._rng.choice([30.0, 200.0, 4000.0], p=[0.5, 0.4, 0.1])))
        if self._happens(0.3 if self._database_away else rates.database_away):
            self._move_database()
        if self._happens(0.2 if self._paused else rates.operator_pause):
            self._pause(not self._paused)

    def _arm_crash_points(self, life: DaemonLife) -> None:
        rates, crash_points = self.world.fault_rates, life.crash_points
        if not (crash_points.kill_in or crash_points.kill_at or self._database_away) and self._happens(rates.kill):
            # At any point, or, as these are few, at one around an effect on the world.
            if self._rng.random() < 0.5:
                crash_points.kill_in = int(self._rng.integers(1, 30))
            else:
                crash_points.kill_at = str(self._rng.choice(EFFECT_POINTS))
        if not crash_points.pause_in and self._happens(rates.pause):
            crash_points.pause_in = int(self._rng.integers(1, 20))
        if not crash_points.fail_commit_in and self._happens(rates.commit):
            crash_points.fail_commit_in, crash_points.fail_after_commit = (
                int(self._rng.integers(1, 4)),
                bool(self._rng.random() < 0.4),
            )
        if self._happens(rates.clock_step):
            life.clock.error_s = max(life.clock.error_s, self._clock_error_s())

    def _inject_engine_faults(self) -> None:
        rates = self.world.fault_rates
        if self._happens(rates.engine_away):
            self.runner.disconnect()
        elif self._happens(0.3):
            self.runner.reconnect()
        workers = sorted({machine.instance_id for _, machine in self._up()})
        if workers and self._happens(rates.silence):
            self.runner.silence(workers[int(self._rng.integers(len(workers)))])
        for worker in workers:
            if self._happens(0.05):
                self.runner.unsilence(worker)
        if workers and rates.refused_resizes and self._happens(rates.refused_resizes):
            self.runner.stiffen(workers[int(self._rng.integers(len(workers)))])
        if self._happens(rates.start):
            self.runner.inject(_START_FAULTS[int(self._rng.integers(len(_START_FAULTS)))])

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
        """Launch a machine of another tenant on the same account, with a name and a token like ours, or without."""
        name = str(self._rng.choice(sorted(self.clouds)))
        cloud, foreign = self.clouds[name], self.monitor.outsiders.foreign_machines
        request = draw_foreign_launch(self._rng, self.monitor.offers[name], len(foreign), self.clock.now())
        foreign[name, cloud.appear(request)] = request.expires_at
        self._log(f"owner {request.owner!r} launches {request.instance_id or 'a machine'} on {name}")

    def _jump_to_midnight(self) -> None:
        """Let nothing happen until shortly before or after the next day begins."""
        now = self.clock.now()
        night_s = max(0.0, DAY_S - now % DAY_S + float(self._rng.uniform(-60, 30)))
        self._log(f"nothing happens for {night_s:.0f} s")
        self._night_count += 1
        self._nights_s += night_s
        self.clock.advance(night_s)

    def _operator_directive(self) -> None:
        """Drain or destroy a machine, drain a type, or withdraw directives."""
        if self._database_away:
            return
        store, now = self.monitor.store, self.clock.now()
        view = store.live()
        if view.directives and self._happens(0.5):
            self._withdraw_directives()
        elif view.instances:
            directive = draw_directive(self._rng, view.instances[int(self._rng.integers(len(view.instances)))], now)
            self._log(f"{OPERATOR} {'destroys' if directive.destroy else 'drains'} {directive.name}")
            with store.transaction(now) as txn:
                record_directive(txn, directive)

    def _move_database(self) -> None:
        """Move the database's file away from under the daemons, or back."""
        here, there = self.home / "hcloud.db", self.home / "elsewhere.db"
        (there if self._database_away else here).rename(here if self._database_away else there)
        self._database_away = not self._database_away
        for life in self.lives:
            life.crash_points.cancel_kill()  # a daemon restarted without a database would create a new one
        self._log("the database is gone" if self._database_away else "the database is back")

    def _pause(self, paused: bool) -> None:
        if not self._database_away:
            self.monitor.store.set_meta(PAUSED, "an operator looks" if paused else "")
            self._paused = paused
            self._log("an operator pauses the daemon" if paused else "an operator resumes the daemon")

    def _take_policy(self, number: int) -> None:
        self._enforce(self.world.policies[number])

    def _enforce(self, policy: Policy) -> None:
        self._log(f"policy {policy.name} is now in force")
        self.monitor.policies.append(policy)
        self.monitor.recent_policies.append(policy)
        for life in self.lives:
            life.controller.policy = policy

    def _stop_faults(self) -> list[str]:
        """Stop all faults, and lift budgets after LIFT_AFTER_S. Return machines that did not expire without a
        daemon."""
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
            for directive in view.directives:
                withdraw_directive(txn, directive.scope, directive.name, OPERATOR, view.instances)

    def _run_without_daemons(self) -> list[str]:
        """Stop all daemons for longer than any lease; return machines that are still up."""
        self._log("all daemons are down")
        for life in self.lives:
            self._injected += len(life.crash_points.injected)
            life.store.close()
        self.clock.advance(LONGEST_LIFE_S)
        found = list(check_abandoned(self.clock.now(), self.monitor.money.ours(self.clock.now())))
        self.lives = [self._start_daemon(life.holder, 0.0) for life in self.lives]
        return found

    # --------------------------------------------------------------------------------------------------------- clients
    def _clients(self) -> None:
        """Act as persistent clients: submit until the job is confirmed, sometimes again, and cancel some jobs."""
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
        except StoreError as error:
            self._log(f"a client's call fails: {error}")
        except Killed as where:
            self._restart_killed(0, str(where))

    def _submit(self, job: PlannedJob) -> None:
        life = self.lives[0]
        submission = Submission(spec=job.spec, actor=job.spec.user, token=job.token)
        (made,) = life.store.submit([submission], life.clock.now())
        if self._accepted.setdefault(job.token, made.id) != made.id:
            self.bugs.append(f"duplicate job: {job.token} is {self._accepted[job.token]} and {made.id}")
        self.monitor.accepted[made.id] = submission

    def _cancel(self, job: PlannedJob) -> None:
        life = self.lives[0]
        life.store.request_cancel(self._accepted[job.token], job.spec.user, life.clock.now())
        self._cancelled.add(job.token)
        self._log(f"{self._accepted[job.token]} is cancelled")

    def _log(self, text: str) -> None:
        self.log(f"{self.cycles:4d} {self.clock.now() - self.world.starts_at:8.1f} s  {text}")


def ignore(_: object) -> None:
    """Do nothing."""


@contextmanager
def open_soak(
    seed: int, tamper: Tamper = ignore, log: LogLine = ignore, place: Path | None = None
) -> Iterator[SoakRun]:
    """Open the world of a seed for a block, in a folder in ``place``, or in memory if possible."""
    logging.getLogger("hcloud").addHandler(_NO_LOG)  # the result says what is wrong; errors in the log were injected
    with folder_in(place) as made:
        soak = SoakRun(draw_world(seed), made, tamper, log)
        try:
            yield soak
        finally:
            soak.close()


def run_seed(
    seed: int, most: int = CYCLES_MAX, tamper: Tamper = ignore, log: LogLine = ignore, place: Path | None = None
) -> SoakResult:
    """Run the world of a seed, to its end or for ``most`` cycles."""
    with open_soak(seed, tamper, log, place) as soak:
        return soak.run(most)
