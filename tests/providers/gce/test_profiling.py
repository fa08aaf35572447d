"""An unknown job on GCE: profiled by real processes on a type within the price cap, and nothing is left."""

import json
from pathlib import Path

from providers.gce import GceProvider
from tests.machine import needs_stress_ng
from tests.providers.gce.bench import PRICES
from tests.providers.gce.compute import PROJECT, FakeCompute
from tests.providers.gce.scene import GceMachines
from tests.providers.gce.server import TRUTH_PATH, Server
from tests.providers.rented import OWNER, RentedSite, assert_learnt, in_time

PRICE_MAX_USD_PER_H = 0.1


@needs_stress_ng
def test_unknown_job_is_profiled_on_a_rented_machine_beside_real_sources(tmp_path: Path) -> None:
    def flow(total_s: float) -> None:
        home = tmp_path / f"{total_s:g}"
        rented = RentedSite(home, total_s)
        compute = FakeCompute(rented.clock, operation_s=0.1, stop_s=0.1, lag_s=0.0)
        server = Server(compute)
        try:
            (home / "prices.json").write_text(json.dumps(PRICES))
            settings = {
                "project": PROJECT,
                "zones": ["us-central1-a", "us-central1-b"],
                "types": ["e2-standard-*"],
                "prices_file": str(home / "prices.json"),
                "endpoint": server.endpoint,
                "credentials": "anonymous",
                "list_lag_s": 0.5,
            }
            cloud = GceProvider("gce", settings, rented.clock, OWNER, str(home))
            machines = GceMachines(server.endpoint + TRUTH_PATH, rented.clock, home)
            caps = {"max_instances": 2, "max_price_usd_per_h": PRICE_MAX_USD_PER_H}
            store = rented.run(cloud, machines, {"caps": caps})
            assert_learnt(store, "gce/e2-standard-2", PRICE_MAX_USD_PER_H)
            assert compute.machines == {}
            assert compute.problems == []
        finally:
            server.close()
            rented.close()

    in_time(flow)
