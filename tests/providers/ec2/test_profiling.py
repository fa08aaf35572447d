"""An unknown job on EC2: profiled by real processes on a type within the price cap, and nothing is left."""

from pathlib import Path

import pytest

from providers.ec2 import factory
from tests.machine import needs_stress_ng
from tests.providers.ec2.ec2_bench import settings_for
from tests.providers.ec2.ec2_scene import Ec2Machines
from tests.providers.ec2.fake_ec2 import TRUTH_PATH, FakeEc2
from tests.providers.rented import OWNER, RentedSite, assert_learnt, in_time

PRICE_MAX_USD_PER_H = 0.09


@needs_stress_ng
def test_unknown_job_is_profiled_on_a_rented_machine_beside_real_sources(
    fake: FakeEc2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.providers.ec2.fake_ec2.BOOT_S", 0.0)
    monkeypatch.setattr("tests.providers.ec2.fake_ec2.STOP_S", 0.0)

    def flow(total_s: float) -> None:
        home = tmp_path / f"{total_s:g}"
        rented = RentedSite(home, total_s)
        try:
            fake.reset(rented.clock)
            settings = settings_for(fake, list_lag_s=0.5, read_attempts=1)
            cloud = factory("ec2", settings, rented.clock, OWNER, str(home / "ec2"))
            machines = Ec2Machines(fake.url + TRUTH_PATH, rented.clock, home)
            caps = {"max_instances": 2, "max_price_usd_per_h": PRICE_MAX_USD_PER_H}
            store = rented.run(cloud, machines, {"caps": caps})
            assert_learnt(store, "ec2/c5.large", PRICE_MAX_USD_PER_H)
            assert [each for each in machines.machines(rented.clock.now()) if each.terminated_at is None] == []
            assert fake.unknown_calls == []
        finally:
            rented.close()

    in_time(flow)
