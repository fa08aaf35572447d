"""A daemon is woken by what matters of its units, and by nothing else."""

from collections.abc import Callable

import pytest

from hcloud.core.errors import WorkerUnreachable
from hcloud.core.model import FailureCause, Resources
from hcloud.engine.link import HEARTBEAT_S
from hcloud.engine.runner import GatewayRunner
from hcloud.engine.unit import write_json
from hcloud.provider import NewsSource, UnitSpec
from tests.contract.runner_contract import BURNS_CPU
from tests.engine.conftest import NAME
from tests.engine.site import PATIENCE_S, Machine, Site, Watch, new_unit_id
from tests.waiting import wait_until


def unit(script: str) -> UnitSpec:
    small = Resources(vcpus=0.2, memory_mib=64, disk_gib=0.1)
    return UnitSpec(id=new_unit_id(), instance_id=NAME, rank=0, command=("/bin/sh", "-c", script), resources=small)


def without_news(runner: GatewayRunner) -> None:
    """Take in all news there are."""
    wait_until(lambda: not runner.await_news(0.5), PATIENCE_S)


@pytest.mark.parametrize(
    "change",
    [
        lambda watch, long: watch.runner.start([unit("true")]),
        lambda watch, long: watch.runner.stop({long.id: NAME}, cause=FailureCause.EVICTED),
    ],
    ids=["begin", "end"],
)
def test_a_unit_that_begins_or_ends_is_news_at_once(watch: Watch, change: Callable[[Watch, UnitSpec], object]) -> None:
    long = unit("sleep 300")
    watch.runner.start([long])
    watch.running(long)
    without_news(watch.runner)
    change(watch, long)
    assert watch.runner.await_news(PATIENCE_S)
    watch.runner.stop({long.id: NAME}, cause=None)


def test_a_notice_of_preemption_is_news_at_once_also_where_nothing_runs(watch: Watch, machine: Machine) -> None:
    def preempt_at() -> list[float | None]:
        return [each.preempt_at for each in watch.runner.observe().workers if each.instance_id == NAME]

    without_news(watch.runner)
    write_json(machine.notice_file, {"preempt_at": 2e9})
    assert watch.runner.await_news(HEARTBEAT_S / 2)  # without news an agent says that it lives, and looks around
    wait_until(lambda: preempt_at() == [2e9], PATIENCE_S)
    write_json(machine.notice_file, {})
    wait_until(lambda: preempt_at() == [None], PATIENCE_S)
    machine.notice_file.unlink()


def test_samples_are_no_news(watch: Watch) -> None:
    busy = unit(BURNS_CPU)
    watch.runner.start([busy])
    watch.running(busy)
    without_news(watch.runner)

    def used_s() -> float:
        report = watch.report(busy)
        return (report.sample.cpu_s or 0.0) if report is not None and report.sample is not None else 0.0

    before = used_s()
    wait_until(lambda: used_s() > before, PATIENCE_S)
    assert not watch.runner.await_news(0.1)
    watch.runner.stop({busy.id: NAME}, cause=None)


def test_a_unit_that_is_forgotten_is_no_news(watch: Watch) -> None:
    ended = unit("true")
    watch.runner.start([ended])
    watch.ended(ended)
    without_news(watch.runner)
    watch.runner.forget({ended.id: NAME})
    wait_until(lambda: watch.report(ended) is None, PATIENCE_S)
    assert not watch.runner.await_news(0.1)


def test_a_gateway_that_is_away_says_so_and_is_news_when_it_is_back(site: Site, watch: Watch) -> None:
    assert isinstance(watch.runner, NewsSource)
    without_news(watch.runner)
    site.kill_engine()
    with pytest.raises(WorkerUnreachable):
        watch.runner.await_news(0.1)
    site.start_engine()
    watch.registered(NAME)
    assert watch.runner.await_news(PATIENCE_S)
