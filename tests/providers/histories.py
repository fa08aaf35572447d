"""Random histories of a mock cloud and of the engine on it, and what must hold in every one of them.

A history is a list of steps; ``live_through`` carries it out as a careful caller and returns every rule that was
broken, in words. Each rule is shown able to fail by a fault seeded into the code under test (``test_mock_properties``).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st

from hcloud.core.clock import ManualClock
from hcloud.core.errors import OutcomeUnknown, ProviderError
from hcloud.core.model import FailureCause, Market, Offer
from hcloud.fake_runner.runner import FakeRunner, StartFault
from hcloud.provider import CloudState, ExitRecord, LaunchRequest, UnitSpec, UnitState
from providers.mock import Fault, FaultKind, MachineRecord, MockProvider
from tests.providers.clouds import AT_ONCE, OWNER, request_for, unit_on

What = Literal[
    "launch", "launch_ownerless", "launch_foreign", "terminate", "pass", "jump_back", "inject", "kill", "preempt",
    "list", "renew", "start", "stop", "inject_start", "forget", "silence",
]  # fmt: skip
SLOTS = (0, 0, 0, 1, 1, 2, 3)  # few things that much happens to find more than many that little happens to
QUOTA_VCPUS = 6.0
ORDER = [CloudState.PENDING, CloudState.RUNNING, CloudState.STOPPING, CloudState.TERMINATED]
SETTINGS = {
    "types": {"m.medium": {"vcpus": 2, "memory_mib": 8192, "usd_per_h": 0.096}},
    "zones": ["east-1a", "east-1b"],
    "boot": {"p50_s": 10, "p95_s": 40},
    "list_lag_s": 6.0,
    "spot": {"preemptions_per_h": 20.0, "notice_s": 30.0},
    "deaths_per_h": 5.0,
    "keep_terminated_s": 200.0,
    "quotas": [{"vcpus": QUOTA_VCPUS}],
    "reserved_default": 1,
}


@dataclass(frozen=True)
class Step:
    """One step: what, with which machine slot, for how long, with which fault, on which market."""

    what: What
    slot: int = 0
    seconds: float = 1.0
    fault: FaultKind = FaultKind.LOSE_REPLY
    start_fault: StartFault = StartFault.LOSE_REPLY
    market: Market = Market.ON_DEMAND


def histories(*whats: What) -> st.SearchStrategy[list[Step]]:
    """Lists of steps of these kinds."""
    step = st.builds(
        Step,
        what=st.sampled_from(whats),
        slot=st.sampled_from(SLOTS),
        seconds=st.sampled_from([0.0, 1.0, 7.0, 30.0, 100.0, 400.0]),
        fault=st.sampled_from([*2 * [FaultKind.LIST_PARTLY], FaultKind.LOSE_REPLY, FaultKind.ANSWER_LATE, *FaultKind]),
        start_fault=st.sampled_from(StartFault),
        market=st.sampled_from(Market),
    )
    return st.lists(step, min_size=1, max_size=25)


def cloud_histories() -> st.SearchStrategy[list[Step]]:
    """Histories of a cloud alone; launches and time are as frequent as all else together."""
    return histories(
        "launch", "launch", "launch", "pass", "pass", "list", "list", "launch_ownerless", "launch_foreign", "terminate",
        "jump_back", "inject", "inject", "kill", "preempt", "renew",
    )  # fmt: skip


def engine_histories() -> st.SearchStrategy[list[Step]]:
    """Histories of units on machines that are launched beforehand."""
    return histories(
        "start", "start", "start", "pass", "pass", "stop", "forget", "forget", "inject_start", "silence", "kill",
        "jump_back",
    )  # fmt: skip


class CloudWitness:
    """Carries steps out on a cloud, remembers what it was told, and notes broken rules in ``broken``."""

    def __init__(self, cloud: MockProvider, clock: ManualClock) -> None:
        self.cloud = cloud
        self.clock = clock
        self.broken: list[str] = []
        self._offers: Sequence[Offer] = cloud.offers()
        self._requests: dict[str, LaunchRequest] = {}
        self._may_exist: set[str] = set()
        self._expiries: dict[str, float] = {}
        self._states: dict[str, CloudState] = {}
        self._ends: dict[str, float | None] = {}
        self._billed_usd: dict[str, float] = {}
        self._latest = clock.now()

    def take(self, step: Step) -> None:
        """Carry one step out, then look whether every rule still holds."""
        match step.what:
            case "launch":
                self._launch(step, OWNER)
            case "launch_foreign":
                self._launch(step, "somebody-else")
            case "launch_ownerless":
                self._launch(step, "")
            case "list":
                self._list()
            case "terminate":
                self._try(lambda: self.cloud.terminate([*self._ids(step.slot), "unknown"]))
            case "inject":
                self.cloud.inject(Fault(kind=step.fault, delay_s=step.seconds))
            case "renew":
                self._renew(step)
            case _:
                self._time_and_strikes(step)
        self._check()

    def _time_and_strikes(self, step: Step) -> None:
        match step.what:
            case "pass":
                self.clock.advance(step.seconds)
            case "jump_back":
                self.clock.advance(-step.seconds)
            case "kill" | "preempt":
                strike = self.cloud.kill if step.what == "kill" else self.cloud.preempt
                for provider_id in self._ids(step.slot):
                    strike(provider_id)
        self._latest = max(self._latest, self.clock.now())

    def _launch(self, step: Step, owner: str) -> None:
        token = f"{owner}-{step.slot}"
        offer = next(each for each in self._offers if each.market is step.market)
        fresh = LaunchRequest(
            token=token,
            instance_id=f"inst-{step.slot}",
            owner=owner,
            offer=offer,
            expires_at=self._latest + 60 + step.seconds,
        )
        request = self._requests.setdefault(token, fresh)
        self._expiries.setdefault(token, request.expires_at)
        try:
            machine = self.cloud.launch(request)
        except OutcomeUnknown:
            self._may_exist.add(token)
        except ProviderError:
            return  # certainly not launched by this call
        else:
            self._may_exist.add(token)
            if (machine.token, machine.owner) != (token, owner):
                self.broken.append(f"asked for {token} of {owner!r}, got {machine}")

    def _renew(self, step: Step) -> None:
        at = self._latest + 50 + step.seconds
        for instance_id in self.cloud.set_expiry({f"inst-{step.slot}": at}):
            self._expiries[f"{OWNER}-{instance_id.removeprefix('inst-')}"] = at

    def _list(self) -> None:
        try:
            listing = self.cloud.instances(OWNER)
        except ProviderError:
            return
        listed = {each.provider_id for each in listing.instances}
        self.broken += [f"listed {each} of another owner" for each in listing.instances if each.owner != OWNER]
        settled_at = self._latest - listing.consistent_after_s
        for record in self._records():
            due = record.owner == OWNER and record.terminated_at is None and record.launched_at <= settled_at
            if due and listing.complete and record.provider_id not in listed:
                self.broken.append(f"complete listing lacks {record}")

    def _ids(self, slot: int) -> list[str]:
        return [each.provider_id for each in self._records() if each.instance_id == f"inst-{slot}"]

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except ProviderError:
            return  # the caller would repeat it; here the next step may

    def _records(self) -> tuple[MachineRecord, ...]:
        return self.cloud.machines(self._latest)

    def _check(self) -> None:
        records = self._records()
        tokens = [each.token for each in records]
        self.broken += [f"two machines for {token}" for token in set(tokens) if tokens.count(token) > 1]
        for record in records:
            self.broken += self._wrong_with(record)
        held = sum(2.0 for each in records if each.terminated_at is None)
        if held > QUOTA_VCPUS:
            self.broken.append(f"{held} vCPUs live, quota {QUOTA_VCPUS}")

    def _wrong_with(self, record: MachineRecord) -> Iterator[str]:
        key, end = record.provider_id, record.terminated_at
        if not record.owner or not record.token:
            yield f"{record} has no owner or no token"
        if record.token not in self._may_exist:
            yield f"{record} exists although its launch certainly failed"
        if ORDER.index(record.state) < ORDER.index(self._states.get(key, CloudState.PENDING)):
            yield f"{record} went back from {self._states[key]}"
        if self._ends.get(key) is not None and end != self._ends[key]:
            yield f"{record} changed its end from {self._ends[key]}"
        if end is None and self._latest >= self._expiries.get(record.token, math.inf):
            yield f"{record} lives past its expiry"
        if end is not None and end < record.launched_at:
            yield f"{record} ended before it was launched"
        billed_usd = self._billed_usd.get(key, 0.0)
        if record.billed_usd < billed_usd - 1e-12:
            yield f"{record} was billed {billed_usd} before"
        if self._ends.get(key) is not None and record.billed_usd > billed_usd + 1e-12:
            yield f"{record} was billed on after its end"
        self._states[key], self._ends[key], self._billed_usd[key] = record.state, end, record.billed_usd


class EngineWitness:
    """The same for units: one unit id per slot, on two machines."""

    def __init__(self, cloud: MockProvider, runner: FakeRunner, clock: ManualClock) -> None:
        self.cloud = cloud
        self.runner = runner
        self.clock = clock
        self.broken: list[str] = []
        self._exits: dict[str, ExitRecord] = {}
        self._cpu_s: dict[str, float] = {}
        self._fenced: set[str] = set()
        self._dead: set[str] = set()

    def take(self, step: Step) -> None:
        """Carry one step out, then look whether every rule still holds."""
        unit = self._unit(step)
        match step.what:
            case "start":
                self._start(unit)
            case "stop":
                self._stop(unit)
            case "forget":
                self.runner.forget({unit.id: unit.instance_id})
            case "inject_start":
                self.runner.inject(step.start_fault)
            case "kill":
                self._dead.add(unit.instance_id)
                self.cloud.kill({"inst-0": "mock-000001", "inst-1": "mock-000002"}[unit.instance_id])
            case "silence":
                (self.runner.silence if step.seconds > 5 else self.runner.unsilence)(unit.instance_id)
            case "pass" | "jump_back":
                self.clock.advance(step.seconds if step.what == "pass" else -step.seconds)
        self._check()

    def _unit(self, step: Step) -> UnitSpec:
        # Slots 2 and 3 are the ids of 0 and 1 on the other machine: a fence holds everywhere.
        return unit_on(f"inst-{step.slot % 2}", "sleep 20; exit 3", f"job-{(step.slot + step.slot // 2) % 2}.1.0")

    def _start(self, unit: UnitSpec) -> None:
        before = len(self.runner.starts(unit.id))
        result = self.runner.start([unit])[unit.id]
        begun = len(self.runner.starts(unit.id)) - before
        if result.outcome == "refused" and begun:
            self.broken.append(f"{unit.id} was refused and started")
        if begun and unit.instance_id in self._dead:
            self.broken.append(f"{unit.id} started on a dead machine")

    def _stop(self, unit: UnitSpec) -> None:
        never_started = not self.runner.starts(unit.id)
        asked = self.runner.stop({unit.id: unit.instance_id}, cause=FailureCause.EVICTED)
        if asked and never_started:
            self._fenced.add(unit.id)

    def _check(self) -> None:
        for number in range(2):
            started = len(self.runner.starts(f"job-{number}."))
            if started > 1:
                self.broken.append(f"job-{number}.1.0 was started {started} times")
            if started and f"job-{number}.1.0" in self._fenced:
                self.broken.append(f"job-{number}.1.0 was started after its fence")
        view = self.runner.observe()
        for worker in view.workers:
            if worker.instance_id in self._dead or worker.instance_id in view.silent:
                self.broken.append(f"{worker.instance_id} reports although it is dead or silent")
            for report in worker.units:
                self._check_end(report.id, report.exit, report.state)
                if report.sample is not None and report.sample.cpu_s is not None:
                    if report.sample.cpu_s < self._cpu_s.get(report.id, 0.0):
                        self.broken.append(f"{report.id} un-used CPU time")
                    self._cpu_s[report.id] = report.sample.cpu_s

    def _check_end(self, unit_id: str, record: ExitRecord | None, state: UnitState) -> None:
        known = self._exits.get(unit_id)
        if known is not None and record != known:
            self.broken.append(f"{unit_id} ended as {known}, now {record}")
        if (state is UnitState.ENDED) != (record is not None):
            self.broken.append(f"{unit_id} is {state} with exit {record}")
        if record is not None:
            self._exits[unit_id] = record


def live_through_cloud(make: Callable[[ManualClock], MockProvider], steps: Sequence[Step]) -> list[str]:
    """Carry a history out on a fresh cloud; return the broken rules."""
    clock = ManualClock()
    monitor = CloudWitness(make(clock), clock)
    for step in steps:
        monitor.take(step)
    return monitor.broken


def live_through_engine(make: Callable[[MockProvider, ManualClock], FakeRunner], steps: Sequence[Step]) -> list[str]:
    """Carry a history out on a fresh engine on two machines; return the broken rules."""
    clock = ManualClock()
    cloud = MockProvider("mock", {"types": SETTINGS["types"], **AT_ONCE}, clock, OWNER, "")
    for number in range(2):
        cloud.launch(request_for(cloud, number, clock.now(), expires_at=clock.now() + 1e6))
    monitor = EngineWitness(cloud, make(cloud, clock), clock)
    for step in steps:
        monitor.take(step)
    return monitor.broken
