"""What every Runner must do when the bounds of running units are changed."""

from dataclasses import replace

from hcloud.provider import UnitSample
from tests.contract.benches import ContractSuite, needs
from tests.contract.runner_contract import BURNS_CPU, RunnerAbility, RunnerBench


class ResizeContract(ContractSuite):
    """The tests. Subclasses give the ``bench`` fixture, and end what it made."""

    @needs(RunnerAbility.RESIZE)
    def test_resized_unit_uses_as_much_as_it_may_from_then_on(self, bench: RunnerBench) -> None:
        unit = bench.started(BURNS_CPU, resources=replace(bench.unit_resources, vcpus=0.1))
        bench.until_running(unit)
        wanted = {unit.id: (unit.instance_id, replace(bench.unit_resources, vcpus=1.0))}
        for _ in range(2):
            assert [each.outcome for each in bench.runner.resize(wanted).values()] == ["resized"]
        first: list[UnitSample] = []

        def faster() -> bool:
            sample = bench.sample(unit)
            if sample is None or sample.cpu_s is None:
                return False
            first.append(sample)
            ran_s, used_s = sample.at - first[0].at, sample.cpu_s - (first[0].cpu_s or 0.0)
            return ran_s > 0 and used_s > 0.15 * ran_s  # by the former bounds: 0.1

        assert bench.until(faster, bench.patience_s)

    @needs(RunnerAbility.RESIZE)
    def test_resize_by_who_led_before_comes_too_late(self, bench: RunnerBench) -> None:
        unit = bench.started("sleep 300")
        bench.until_running(unit)
        wanted = {unit.id: (unit.instance_id, bench.unit_resources)}
        outcomes = [bench.runner.resize(wanted, epoch=epoch)[unit.id].outcome for epoch in (4, 5, 5, 4, 6)]
        assert outcomes == ["resized", "resized", "resized", "refused", "resized"]

    @needs(RunnerAbility.RESIZE)
    def test_pinned_unit_runs_on_those_cpus_until_it_may_run_anywhere(self, bench: RunnerBench) -> None:
        unit = bench.started("sleep 300", cpus=(0,))
        bench.until_running(unit)
        wanted = {unit.id: (unit.instance_id, bench.unit_resources)}

        def runs_on(cpus: tuple[int, ...]) -> bool:
            sample = bench.sample(unit)
            return sample is not None and sample.cpus == cpus

        assert bench.until(lambda: runs_on((0,)), bench.patience_s)
        for cpus in ((1,), ()):
            assert bench.runner.resize(wanted, cpus={unit.id: cpus})[unit.id].outcome == "resized"
            assert bench.until(lambda cpus=cpus: runs_on(cpus), bench.patience_s)  # type: ignore[misc]
        assert bench.runner.resize(wanted, cpus={unit.id: (0, 60_000)})[unit.id].outcome == "refused"

    def test_unit_for_cpus_that_its_machine_lacks_is_refused(self, bench: RunnerBench) -> None:
        unit = bench.unit("sleep 300", cpus=(60_000,))
        assert bench.runner.start([unit])[unit.id].outcome == "refused"

    def test_resize_of_what_does_not_run_is_refused(self, bench: RunnerBench) -> None:
        unit = bench.started("exit 0")
        bench.until_ended(unit)
        never = bench.unit("exit 0")
        wanted = {each.id: (each.instance_id, bench.unit_resources) for each in (unit, never)}
        assert [each.outcome for each in bench.runner.resize(wanted).values()] == ["refused", "refused"]

    def test_resize_on_a_machine_that_never_registered_is_unknown(self, bench: RunnerBench) -> None:
        unit = bench.unit("exit 0", instance_id="inst-never-registered")
        found = bench.runner.resize({unit.id: (unit.instance_id, bench.unit_resources)})
        assert [each.outcome for each in found.values()] == ["unknown"]
