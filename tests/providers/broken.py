"""Clouds and engines with one fault each, to show that the contract and the properties catch it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hcloud.core.errors import InsufficientCapacity, OutcomeUnknown
from hcloud.core.model import InstanceId, Offer, UnitId
from hcloud.fake_runner.runner import FakeRunner
from hcloud.fake_runner.unit import FakeUnit
from hcloud.provider import CloudInstance, LaunchRequest, Listing, StartResult, UnitSpec
from providers.mock import MachineRecord, MockProvider


class ForgetsTokens(MockProvider):
    """Launches again when a token is repeated."""

    def launch(self, request: LaunchRequest) -> CloudInstance:
        self._cloud.by_token.clear()
        return super().launch(request)


class TakesOwnerless(MockProvider):
    """Launches without an owner tag."""

    def _check_launch(self, request: LaunchRequest) -> None:
        super()._check_launch(replace(request, owner=request.owner or "nobody"))


class IgnoresExpiry(MockProvider):
    """Machines outlive their expiry."""

    def launch(self, request: LaunchRequest) -> CloudInstance:
        return super().launch(replace(request, expires_at=request.expires_at + 300))


class LiesAboutLaunches(MockProvider):
    """Says that certainly nothing was launched when the reply was lost."""

    def launch(self, request: LaunchRequest) -> CloudInstance:
        try:
            return super().launch(request)
        except OutcomeUnknown as error:
            raise InsufficientCapacity("out of stock") from error


class ShowsAllOwners(MockProvider):
    """Lists other owners' machines too."""

    def instances(self, owner: str) -> Listing:
        listing = super().instances(owner)
        return replace(listing, instances=listing.instances + self._list_owner("somebody-else"))


class HidesMissingZones(MockProvider):
    """Calls a partial listing complete."""

    def instances(self, owner: str) -> Listing:
        return replace(super().instances(owner), complete=True)


class UnderstatesLag(MockProvider):
    """Claims to be consistent at once."""

    def instances(self, owner: str) -> Listing:
        return replace(super().instances(owner), consistent_after_s=0.0)


class IgnoresQuotas(MockProvider):
    """Launches beyond the quota."""

    def _check_quotas(self, offer: Offer) -> None:
        pass


class BillsOn(MockProvider):
    """Bills machines that have ended."""

    def machines(self, now: float) -> tuple[MachineRecord, ...]:
        return tuple(replace(each, billed_usd=now - each.launched_at) for each in super().machines(now))


class ForgivesBills(MockProvider):
    """Bills less as time goes by."""

    def machines(self, now: float) -> tuple[MachineRecord, ...]:
        return tuple(replace(each, billed_usd=1 / (1 + now - each.launched_at)) for each in super().machines(now))


class EndsTwice(MockProvider):
    """A second terminate moves the end."""

    def terminate(self, provider_ids: Sequence[str]) -> None:
        with self._cloud.hold(self._clock.now()):
            now, known = self._cloud.now, self._cloud.machines
            ended = [known[each] for each in provider_ids if each in known]
            self._cloud.put(*(replace(row, expires_at=now, stopped_at=now) for row in ended))


class RevivesByRenewal(MockProvider):
    """A renewal brings expired machines back."""

    def set_expiry(self, expiries: Mapping[InstanceId, float]) -> frozenset[InstanceId]:
        rows = [row for row in self._cloud.machines.values() if row.instance_id in expiries]
        self._cloud.put(*(replace(row, expires_at=expiries[row.instance_id]) for row in rows))
        return frozenset(row.instance_id for row in rows)


class ForgetsFences(FakeRunner):
    """Starts a unit as often as it is asked to, where it can."""

    def start(self, units: Sequence[UnitSpec]) -> Mapping[UnitId, StartResult]:
        up = {worker.instance_id for worker in self.observe().workers}
        for unit in units:
            known = self._units.get(unit.id)
            if known is not None and unit.instance_id in up and self._forgets(known):
                del self._units[unit.id]
        return super().start(units)

    def _forgets(self, known: FakeUnit) -> bool:
        return True


class ForgetsFencesOfForgotten(ForgetsFences):
    """Loses the fence with the directory."""

    def _forgets(self, known: FakeUnit) -> bool:
        return known.forgotten


class ForgetsRefusals(ForgetsFences):
    """Starts what it has refused, once the reason is gone."""

    def _forgets(self, known: FakeUnit) -> bool:
        return bool(known.refusal)


class FencesNothing(FakeRunner):
    """A stop before the start is dropped."""

    def stop(self, units: Mapping[UnitId, InstanceId], **cause: Any) -> frozenset[UnitId]:
        known = {each: at for each, at in units.items() if each in self._units}
        super().stop(known, **cause)
        return frozenset(units)


class RefusesWrongly(FakeRunner):
    """Says refused of a start whose outcome is unknown."""

    def start(self, units: Sequence[UnitSpec]) -> Mapping[UnitId, StartResult]:
        results = super().start(units)
        return {
            key: replace(each, outcome="refused") if each.outcome == "unknown" else each
            for key, each in results.items()
        }


class ResizesInVain(FakeRunner):
    """Says that it changed bounds, and does not."""

    def _bounded(self, *wanted: Any) -> Any:
        _, result = super()._bounded(*wanted)
        return None, result


class BoundsForAnybody(FakeRunner):
    """Takes bounds of whoever led before as well."""

    def resize(self, units: Any, *, cpus: Any = None, epoch: int = 0) -> Any:
        return super().resize(units, cpus=cpus)


class PausesInVain(FakeRunner):
    """Says that it paused a unit, and does not."""

    def _paused(self, *wanted: Any) -> Any:
        _, result = super()._paused(*wanted)
        return None, result


class PausesForAnybody(FakeRunner):
    """Pauses for whoever led before as well."""

    def pause(self, units: Any, *, epoch: int = 0) -> Any:
        return super().pause(units)


class NeverResumesForAStop(FakeRunner):
    """Lets a stop wait until the unit is resumed."""

    def _stopped(self, unit_id: UnitId, instance_id: InstanceId, cause: Any, tasks: Any) -> Any:
        paused = self._units[unit_id].paused_at if unit_id in self._units else None
        return self._units[unit_id] if paused is not None else super()._stopped(unit_id, instance_id, cause, tasks)


class CountsPauses(FakeRunner):
    """Counts pauses as run time."""

    def _put(self, *units: Any, starts: bool = False) -> None:
        super()._put(*(replace(each, paused_s=0.0) for each in units), starts=starts)


class RewritesExits(FakeRunner):
    """A stop after the end changes the exit record."""

    def _stopped(self, unit_id: UnitId, instance_id: InstanceId, cause: Any, tasks: Any) -> Any:
        return replace(super()._stopped(unit_id, instance_id, cause, tasks), stop_at=self._now - 1, stop_cause=cause)


class KeepsDeadWorkers(FakeRunner):
    """Never notices that a machine went."""

    def _find_machines(self, *, news_of_units: bool) -> None:
        if not self._machines:
            super()._find_machines(news_of_units=news_of_units)


class RunsBackwards(FakeRunner):
    """Follows a clock that jumps back."""

    def observe(self) -> Any:
        self._now = float("-inf")
        self._changed |= self._machines.keys()
        return super().observe()


class LosesFindings(FakeRunner):
    """Tells nothing of what a profiling run found that was ended early."""

    def _report(self, machine: Any) -> Any:
        report = super()._report(machine)
        return replace(report, units=tuple(self._without(each) for each in report.units))

    def _without(self, unit: Any) -> Any:
        cut_short = unit.exit is not None and unit.exit.cause is not None
        return replace(unit, exit=replace(unit.exit, findings=None)) if cut_short else unit
