"""Metadata that makes an instance a worker: user data for cloud-init, and a start script for images without it."""

from __future__ import annotations

from hcloud.provider import LaunchRequest
from providers.cloud_init import WorkerSetup, render_user_data
from providers.gce.settings import GceSettings

WITHOUT_CLOUD_INIT = """#!/bin/sh
# cloud-init makes this instance an HCloud worker. Without cloud-init in the image, switch off.
command -v cloud-init >/dev/null && exit 0
echo "hcloud: this image has no cloud-init, so it cannot become a worker; switching off"
systemctl poweroff || poweroff -f
"""


def worker_metadata(request: LaunchRequest, settings: GceSettings) -> dict[str, str]:
    """Return the metadata items of a worker; empty if the request has no bootstrap.

    Raises AccountRejected: the gateway cannot be reached from the instance.
    """
    if request.bootstrap is None:
        return {}
    worker = settings.worker
    setup = WorkerSetup(
        request=request,
        capacity=request.offer.instance_type.capacity,
        gateway_addresses=worker.gateway_addresses,
        system_packages=worker.system_packages,
        container_images=worker.container_images,
        notice="gce",
        boot_timeout_s=worker.boot_timeout_s,
    )
    return {"user-data": render_user_data(setup), "startup-script": WITHOUT_CLOUD_INIT}
