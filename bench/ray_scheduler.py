"""Ray's side of ``beside_ray``: reads demands and types from standard input, prints how long its scheduler takes.

Run in an environment with Ray, without HCloud: imports of the latter stay out of this file.
"""

# mypy: ignore-errors

import json
import logging
import statistics
import sys
import time

GIB = 1 << 30


class _NoEvents:
    """Takes the place of Ray's event logger, which writes files."""

    def log_cluster_scheduling_update(self, *_args, **_kwargs):
        """Write nothing."""


def main() -> None:
    """Answer one question."""
    logging.disable(logging.CRITICAL)  # Ray writes one record for each demand
    from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
    from ray.autoscaler.v2.schema import AutoscalerInstance
    from ray.autoscaler.v2.utils import ResourceRequestUtil
    from ray.core.generated.autoscaler_pb2 import NodeState, NodeStatus
    from ray.core.generated.instance_manager_pb2 import Instance

    asked = json.load(sys.stdin)
    types = {
        name: NodeTypeConfig(
            name=name, resources={"CPU": cpus, "memory": gib * GIB}, min_worker_nodes=0, max_worker_nodes=100_000
        )
        for name, (cpus, gib) in asked["types"].items()
    }
    has = types[asked["running"]].resources

    def running(number):
        """Return an idle machine."""
        node = NodeState(
            node_id=f"r{number}".encode(),
            instance_id=f"c{number}",
            ray_node_type_name=asked["running"],
            total_resources=has,
            available_resources=has,
            idle_duration_ms=0,
            status=NodeStatus.RUNNING,
        )
        record = Instance(
            instance_id=f"i{number}",
            instance_type=asked["running"],
            cloud_instance_id=f"c{number}",
            status=Instance.RAY_RUNNING,
            node_id=f"r{number}",
        )
        return AutoscalerInstance(ray_node=node, im_instance=record, cloud_instance_id=f"c{number}")

    wanted = [ResourceRequestUtil.make({"CPU": cpus, "memory": gib * GIB}) for cpus, gib in asked["demands"]]
    grouped = ResourceRequestUtil.group_by_count(wanted)
    times_s = []
    for _ in range(asked["rounds"]):
        request = SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=types,
            max_num_nodes=100_000,
            resource_requests=grouped,
            current_instances=[running(number) for number in range(asked["nodes"])],
        )
        scheduler = ResourceDemandScheduler(_NoEvents())
        began = time.process_time()
        scheduler.schedule(request)
        times_s.append(time.process_time() - began)
    print(json.dumps({"median_s": statistics.median(times_s)}))


if __name__ == "__main__":
    main()
